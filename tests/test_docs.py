"""Tests of the documentation: the site builds; settings, environment variables and file names exist."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dithc.config import ExperimentConfig, load
from dithc.config.load import merge_settings
from dithc.core.logging import UserError

ROOT = Path(__file__).parents[1]
FOLDERS = ("dithc", "docs", "tests", "examples", "kernels", "config", "profiles", "workflow")
EXAMPLES = ("archive.yaml", "mine.yaml", "plan-RUN.yaml", "profiles/cluster/config.yaml")  # files of the user


@pytest.mark.slow
def test_site_builds_without_warnings_and_links_every_page(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="sphinx is not installed: pip install 'dithc[docs]'")
    line = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(tmp_path / "trees"), "docs"]
    done = subprocess.run([*line, str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "site/index.html").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (tmp_path / "site" / name).exists()
        assert name == "index.html" or f'href="{name}"' in index
    commands = (tmp_path / "site/generated/commands.html").read_text()
    assert re.search(r"usage: dithc sample ", commands)


def sources(*suffixes: str) -> list[Path]:
    return [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]


PAGES = [path for path in [*sources(".md"), ROOT / "ARCHITECTURE.md"] if "generated" not in path.parts]
BLOCKS = [
    pytest.param(yaml.safe_load(block), id=f"{path.stem}-{number}")
    for path in PAGES
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))
]


def completed(block: dict[str, Any]) -> list[dict[str, Any]]:
    """Return experiments with the settings of a block: the block itself, or the shipped experiments with its changes."""
    bases = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "config/experiments").iterdir())]
    if block.keys() <= ExperimentConfig.model_fields.keys():
        return [block] if "name" in block else [merge_settings(base, block) for base in bases]
    bands = block.get("source", {}).get("bands")
    changes = block | ({"rendering": {"bands": bands[:3], "low": 0.0, "high": 1.0}} if bands else {})
    datasets = [(base, name) for base in bases for name in base.get("datasets", {})]
    return [base | {"datasets": base["datasets"] | {name: base["datasets"][name] | changes}} for base, name in datasets]


def fault_of(experiment: dict[str, Any]) -> str:
    try:
        load(experiment)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("block", BLOCKS)
def test_yaml_blocks_are_valid_settings(block: dict[str, Any]) -> None:
    faults = {fault_of(experiment) for experiment in completed(block)}
    assert "" in faults, "\n".join(sorted(faults))


def test_each_setting_of_the_recipes_changes_real_sample() -> None:
    recipes = [block.values[0] for block in BLOCKS if "gaofen2" in block.values[0].get("runs", {})]
    base = yaml.safe_load((ROOT / "config/experiments/real-sample.yaml").read_text())
    assert len(recipes) == 2
    for recipe in recipes:
        assert fault_of(merge_settings(base, recipe)) == ""
        for name, run in recipe["runs"].items():
            assert [key for key, value in run.items() if base["runs"][name].get(key) == value] == []


def test_settings_are_in_yaml_blocks() -> None:
    indented = re.compile(r"\n\n    (source|split|datasets|codecs|runs|evaluations|machine|resources):")
    assert [path.name for path in PAGES if indented.search(path.read_text())] == []


def test_environment_variables_are_documented() -> None:
    text = "".join(path.read_text() for path in sources(".py", ".c", ".cpp") if path.is_relative_to(ROOT / "dithc"))
    variables = set(re.findall(r'"((?:DITHC|HCOPS)_[A-Z_]+)"', text))
    assert "HCOPS_ISA" in variables
    assert sorted(name for name in variables if f"`{name}`" not in (ROOT / "docs/installation.md").read_text()) == []


def test_named_files_exist() -> None:
    files = [f"/{path.relative_to(ROOT)}" for path in sources(".py", ".smk", ".yaml", ".c")]
    missing = []
    for path in [*PAGES, *(ROOT / "dithc").rglob("__init__.py")]:
        is_page = path.suffix == ".md"
        text = path.read_text() if is_page else ast.get_docstring(ast.parse(path.read_text())) or ""
        folder = "/" if is_page else f"/{path.parent.relative_to(ROOT)}/"
        for name in re.findall(r"`([\w./-]+\.(?:py|smk|yaml|c))`", text):
            is_below = any(file.startswith(folder) and file.endswith(f"/{name}") for file in files)
            if not is_below and name not in EXAMPLES and not any((parent / name).exists() for parent in path.parents):
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []
