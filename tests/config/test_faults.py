"""Errors of a configuration contain line and column, and suggest a correction."""

from pathlib import Path

import pytest

from dithc.config import load
from dithc.config.schema.experiment import ExperimentConfig
from dithc.config.suggestions import KEY_SYNONYMS, VALUE_SYNONYMS, sections
from dithc.core.logging import UserError

TEXT = """\
name: x
datasets:
  a:
    title: A
    source: {kind: image-folder, path: x}
    rendering: {bands: [R, G, B], low: 0, high: 1}
    codec: c
codecs: {c: {kind: pixel}}
runs:
  r: {dataset: a}
"""


def fault(path: Path, old: str, new: str) -> str:
    assert old in TEXT
    (path / "x.yaml").write_text(TEXT.replace(old, new))
    with pytest.raises(UserError) as caught:
        load(path / "x.yaml")
    return str(caught.value)


FAULTS = [
    (
        "dataset: a",
        "dataset: a, learning_rate: 1",
        "r.learning_rate (line 10, column 19): unknown key; did you mean `lr`?",
    ),
    ("dataset: a", "dataset: a, zzzzzz: 1", "zzzzzz (line 10, column 19): unknown key\n"),
    ("name: x", "nmae: x", "nmae (line 1, column 1): unknown key; did you mean `name`?"),
    ("name: x", "global_batch_size: 3", "unknown key; keys of that name: runs.NAME.global_batch_size"),
    (
        "{kind: pixel}",
        "{kind: kl-vae, train_dataset: a, stepss: 3}",
        "(line 8, column 46): unknown key; did you mean `st",
    ),
    ("kind: image-folder", "kind: sentinel", "; did you mean `sentinel2`?"),
    ("kind: image-folder, ", "", "datasets.a.source (line 5, column 5): `kind` is missing"),
    ("dataset: a", "dataset: a, dtype: bfloat16", "'bf16', got 'bfloat16'; did you mean `bf16`?"),
    ("dataset: a", "dataset: b", "runs.r.dataset (line 10, column 7) is 'b', which is not defined; there are: a"),
    ("    title: A\n", "", "datasets.a.title (line 3, column 3): Field required"),
    ("    codec: c\n", "    codec: c\n    views: 3\n", "(line 8, column 5): Input should be 2 or 8, got 3"),
    ("  r: {dataset: a}", "  r:", "(line 10, column 3): Input should be a section, `key: value`, got nothing\n"),
    ("  r: {", "  R R: {", "(line 10, column 3): Names may contain only lower-case letters, digits and -, got 'R R'"),
    ("dataset: a", "dataset: a, steps: 1e3", "Input should be an integer, got '1e3'\n"),
    ("name: x", "machine: {nodes: null}", "(line 1, column 11): Input should be an integer, got nothing\n"),
    ("codecs: {c", "codecs: [c", "line 8, column 26: invalid YAML"),
    (
        "name: x",
        "name: x\nmachine: {pipeline_stages: 2, sharding: node}",
        "does not support machine.sharding node",
    ),
    (
        "name: x",
        "name: x\nmachine: {pipeline_stages: 2, launcher: mpiexec, ranks_per_node: 3}",
        "2 cannot share 3 ranks equally",
    ),
    (
        "  r: {dataset: a}",
        "  r: {dataset: a, micro_batch_size: 112}\nmachine: {pipeline_stages: 2}",
        "micro_batch_size below 112",
    ),
    (
        "  r: {dataset: a}",
        "  r: {dataset: a, micro_batch_size: 1}\nmachine: {pipeline_stages: 13}",
        "at least 13 blocks, runs.r has 12",
    ),
    (
        "name: x",
        "name: x\nmachine: {pipeline_stages: 2, launcher: mpiexec, ranks_per_node: 2}",
        "requires runs.r.micro_batch_size below 112: stages compute different micro-batches at the same time; try 14",
    ),
    ("  a:\n", "  a:\n\ttitle: B\n", "line 4, column 1: invalid YAML"),
]


@pytest.mark.parametrize(("old", "new", "said"), FAULTS)
def test_fault_is_reported_with_position_and_suggestion(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert said in fault(tmp_path, old, new)


def test_synonyms_map_to_existing_keys_and_shadow_no_common_key() -> None:
    known = {name for section in sections(ExperimentConfig) for name in section.model.model_fields}
    assert set(KEY_SYNONYMS.values()) <= known
    assert not set(KEY_SYNONYMS) & {"lr", "steps", "kind", "path", "codec", "dtype", "max_grad_norm"}
    assert not set(VALUE_SYNONYMS) & set(VALUE_SYNONYMS.values())


SAMPLING = "name: x\nmachine: {sampling: {%s}}"


KINDS = [
    ("data_parallel_degree: 0", "data_parallel_degree", "'auto' or a number from 1, got 0"),
    ("data_parallel_degree: atuo", "data_parallel_degree", "'auto' or an integer, got 'atuo'; did you mean `auto`?"),
    ("data_parallel_degree: 1.5", "data_parallel_degree", "'auto' or an integer, got 1.5"),
    ("cfg_parallel: 3", "cfg_parallel", "'auto' or true or false, got 3"),
]


@pytest.mark.parametrize(("given", "key", "said"), KINDS)
def test_invalid_value_of_a_union_type_has_one_fault_in_four_lines(
    tmp_path: Path, given: str, key: str, said: str
) -> None:
    title, got, expected, fix = fault(tmp_path, "name: x", SAMPLING % given).split("\n")
    assert title.endswith("has 1 fault")
    assert got == f"  got:      machine.sampling.{key} (line 2, column 22): Input should be {said}"
    assert expected.startswith("  expected: ")
    assert fix.startswith("  fix:      ")


def test_several_faults_are_listed_on_separate_lines(tmp_path: Path) -> None:
    lines = fault(tmp_path, "name: x", SAMPLING % "data_parallel_degree: 0, window_degree: -2").split("\n")
    assert lines[0].endswith("has 2 faults")
    assert lines[1].startswith("  got:      machine.sampling.data_parallel_degree (line 2, ")
    assert lines[2].startswith("            machine.sampling.window_degree (line 2, ")


def test_faults_inside_a_union_value_are_reported_per_element(tmp_path: Path) -> None:
    said = fault(tmp_path, "low: 0", "low: [0, x, y]")
    assert "has 2 faults\n" in said
    for number, column, value in ((1, 44, "x"), (2, 47, "y")):
        location = f"datasets.a.rendering.low.{number} (line 6, column {column})"
        assert f"{location}: Input should be a number, got '{value}'\n" in said


@pytest.mark.parametrize(("text", "got"), [("", "nothing"), ("- a", "a list"), ("word", "a single value")])
def test_file_without_a_mapping_is_rejected_with_the_content_type(tmp_path: Path, text: str, got: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"does not contain a mapping\n  got:      {got}\n"):
        load(tmp_path / "x.yaml")
