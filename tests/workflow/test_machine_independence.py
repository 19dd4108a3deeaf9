"""Results do not depend on the machine: no rule has a machine setting as a parameter."""

import re
from pathlib import Path

import pytest

from dithc.config import load_machine
from dithc.workflow.experiment_graph import ExperimentGraph
from dithc.workflow.jobs.benches import BenchmarkArguments

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"^    params:\n((?: {8}.*\n|\n)+)", re.MULTILINE)
MACHINE = re.compile(r"W\.jobs|W\.experiment\.(machine|resources)|threads|resources|launch")
PROFILES = sorted(path.parent for path in (ROOT / "profiles").glob("*/config.yaml"))
REQUESTED = {
    "bench": {
        "model": "DiT-S/2",
        "scaling": {"models": ["DiT-S/2"], "ranks": [1, 2]},
        "strategies": {"models": ["DiT-S/2"]},
        **{name: {"model": "DiT-S/2"} for name in ("stepwise", "automem")},
    }
}


@pytest.mark.parametrize("path", sorted((ROOT / "workflow" / "rules").glob("*.smk")), ids=lambda path: path.stem)
def test_rule_params_contain_no_machine_settings(path: Path) -> None:
    text = path.read_text()
    assert len(BLOCK.findall(text)) == text.count("params:")
    for block in BLOCK.findall(text):
        assert not MACHINE.search(block), f"machine settings belong to `resources`:\n{block}"


def test_bench_arguments_are_equal_on_all_machine_profiles() -> None:
    found = set()
    for profile in PROFILES:
        machine = load_machine(profile)[0].model_dump()
        graph = ExperimentGraph({**REQUESTED, "machine": machine})
        benches = BenchmarkArguments(graph.experiment)
        commands = (benches.step, benches.strategies, benches.stepwise, benches.automem)
        found.add((*commands, *(benches.scaling(mode) for mode in ("weak", "strong")), benches.simulate("weak")))
    assert len(PROFILES) >= 4
    assert len(found) == 1


def test_simulation_arguments_contain_mode_models_and_nodes() -> None:
    simulate = {"experiments": ["weak", "strong"], "models": ["DiT-L/2"], "nodes": [1, 8]}
    graph = ExperimentGraph({**REQUESTED, "bench": {"simulate": simulate}})
    arguments = "--machine profiles/machines/lx2.yaml --models DiT-L/2 --nodes 1,8"
    for mode, path in zip(("weak", "strong"), graph.simulated_files, strict=True):
        assert BenchmarkArguments(graph.experiment).simulate(mode) == f"--scaling {mode} {arguments}"
        assert path.endswith(f"bench/simulated-{mode}.json")
