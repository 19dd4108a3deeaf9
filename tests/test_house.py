"""Tests of the project rules: sizes, public APIs, and the places of external dependencies."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "dithc").rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_DOOR_NAMES = 300, 60, 10

# Each external dependency is imported by one file, or by one package that exists for that dependency.
ENTRANCES = {
    "rasterio": ("dithc/data/raster/", "dithc/data/grids.py", "dithc/data/ground.py"),
    "PIL": ("dithc/data/pictures.py",),
    "zarr": ("dithc/products/zarr_store.py",),
    "pystac_client": ("dithc/stac/catalogue.py",),
    "lxml": ("dithc/data/xml.py",),
    "pyarrow": ("dithc/data/table.py",),
    "diffusers": (
        "dithc/latents/codecs/diffusers_networks.py",
        "dithc/bench/patched/foreign.py",
        "dithc/bench/sampling/theirs.py",
    ),
    "timm": ("dithc/bench/patched/foreign.py",),
    "transformers": ("dithc/bench/patched/foreign.py",),
    "mpi4py": ("dithc/comm/mpi.py",),
    "matplotlib": ("dithc/report/figures/",),
    "jinja2": ("dithc/report/page/render.py",),
    "snakemake": ("dithc/workflow/layers.py",),
    "tensorboard": ("dithc/log/metrics.py",),
    "tqdm": ("dithc/log/progress.py",),
    "pydantic": ("dithc/config/", "dithc/runs/outcome.py", "dithc/stac/lock.py"),
    "typing_extensions": ("dithc/runs/outcome.py",),
    "yaml": (
        "dithc/config/reading.py",
        "dithc/hardware/description.py",
        "dithc/papers/reference.py",
        "dithc/report/engine/published.py",
    ),
    "ctypes": (
        "dithc/native/",
        "dithc/cli/starting.py",
        "dithc/openmp.py",
        "dithc/comm/launching/supervision.py",
        "dithc/comm/process_group/exchange.py",
        "dithc/comm/process_group/segment.py",
        "dithc/memory/",
        "dithc/pages/",
        "dithc/bench/libraries/",
    ),
    "numba": ("dithc/hcops/numba/",),
    "llvmlite": ("dithc/hcops/numba/",),
}

# Files and functions that may be longer, with the reason.
LONGER: dict[str, str] = {}


def code_lines(text: str) -> int:
    """Return the number of code lines, without blank lines, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        ):
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_and_its_functions_are_short(path: Path) -> None:
    text = path.read_text()
    name = str(path.relative_to(ROOT))
    assert code_lines(text) <= MAX_FILE_LINES or name in LONGER
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            length = (node.end_lineno or 0) - first.lineno + 1
            assert length <= MAX_FUNCTION_LINES or f"{name}:{node.name}" in LONGER, (
                f"{node.name} has {length} lines, {MAX_FUNCTION_LINES} at most: extract a function"
            )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_outside_dependency_enters_through_its_file(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(path.read_text())):
        modules = (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        for module in modules:
            allowed = ENTRANCES.get(module.split(".")[0])
            assert allowed is None or name.startswith(allowed), f"{module} may be imported by {allowed} only"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_room_is_entered_through_its_door(path: Path) -> None:
    within = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dithc."):
            parts = tuple(node.module.split("."))
            for depth in range(2, len(parts)):  # each package on the path to the import
                room = ".".join(parts[:depth])
                assert within[:depth] == parts[:depth], f"{node.module}: import from {room} instead"


ROOMS = [path for path in FILES if path.name == "__init__.py" and len(path.relative_to(ROOT).parts) > 2]


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: ".".join(path.relative_to(ROOT).parts[1:-1]))
def test_door_is_a_page_of_words_and_few_names(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert len((ast.get_docstring(tree) or "").splitlines()) >= 4, "document purpose, invariants and extension"
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            assert isinstance(node.value, ast.List)
            assert len(node.value.elts) <= MAX_DOOR_NAMES
            return
    pytest.fail("a public API has __all__")
