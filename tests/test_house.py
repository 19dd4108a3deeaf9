"""Tests of the project rules: sizes, public APIs, and the places of external dependencies."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "dithc").rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PUBLIC_NAMES = 300, 60, 10

# Each external dependency is imported by one file, or by one package that exists for that dependency.
ENTRANCES = {
    "rasterio": ("dithc/data/raster/", "dithc/data/grids.py", "dithc/data/readers/gaofen2/orthorectify.py"),
    "PIL": ("dithc/data/images.py",),
    "pystac_client": ("dithc/data/stac/catalog.py",),
    "lxml": ("dithc/data/xml.py",),
    "pyarrow": ("dithc/data/parquet.py",),
    "diffusers": ("dithc/latents/codecs/diffusers_autoencoder.py",),
    "timm": (),
    "transformers": (),
    "mpi4py": ("dithc/engine/comm/mpi.py",),
    "matplotlib": ("dithc/report/figures/",),
    "jinja2": ("dithc/report/html/render.py",),
    "xarray": ("dithc/__init__.py", "dithc/data/export/", "dithc/data/readers/cf_fields.py"),
    "pyproj": ("dithc/data/readers/cf_grids.py",),
    "snakemake": ("dithc/workflow/snakemake_api.py",),
    "tensorboard": ("dithc/core/logging/metrics.py",),
    "tqdm": ("dithc/core/logging/progress.py",),
    "pydantic": (
        "dithc/config/",
        "dithc/engine/hardware/",
        "dithc/core/artifacts/summaries.py",
        "dithc/data/stac/lock.py",
    ),
    "typing_extensions": ("dithc/core/artifacts/summaries.py",),
    "yaml": (
        "dithc/config/yaml_reader.py",
        "dithc/engine/hardware/description.py",
        "dithc/core/reproduction/published_values.py",
    ),
    "ctypes": (
        "dithc/engine/native/",
        "dithc/core/openmp.py",
        "dithc/core/processes.py",
        "dithc/engine/comm/process_group/shm_collectives.py",
        "dithc/engine/memory/",
        "dithc/engine/numa/",
        "dithc/bench/gemm_libraries/",
    ),
    "numba": ("dithc/engine/hcops/numba/",),
    "llvmlite": ("dithc/engine/hcops/numba/",),
}

# Packages that contain only packages, and import nothing.
NAMESPACES = {"dithc.core", "dithc.engine"}
# Packages inside packages with a public API of their own.
PUBLIC = {
    "dithc.bench.resume",
    "dithc.bench.plan",
    "dithc.bench.simulate",
    "dithc.bench.training.turns",
    "dithc.data.export",
    "dithc.data.export.lazy_arrays",
    "dithc.data.export.open_stage",
    "dithc.data.scenes.ingest",
    "dithc.data.stac",
    "dithc.data.tiles.tile_scenes",
    "dithc.engine.comm.launch",
    "dithc.engine.hcops.blocks",
    "dithc.sample.parallel",
    "dithc.evaluate.restoration",
    "dithc.sample.restoration",
    "dithc.diffusion.restoration",
    "dithc.latents.as_xarray",
}


def code_lines(text: str, nodes: list[ast.AST]) -> int:
    """Return the number of lines without blank lines, comments and docstrings."""
    lines = {number for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.strip()[0] != "#"}
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


@pytest.fixture(scope="module")
def nodes() -> dict[str, list[ast.AST]]:
    """Return the syntax nodes of every file, its module first."""
    return {path.relative_to(ROOT).as_posix(): list(ast.walk(ast.parse(path.read_text()))) for path in FILES}


def test_files_and_functions_are_short(nodes: dict[str, list[ast.AST]]) -> None:
    long = [name for name, found in nodes.items() if code_lines((ROOT / name).read_text(), found) > MAX_FILE_LINES]
    for name, found in nodes.items():
        for node in found:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                if (node.end_lineno or 0) - first.lineno + 1 > MAX_FUNCTION_LINES:
                    long.append(f"{name}:{node.name}")
    assert long == []


def test_external_dependencies_are_imported_only_in_designated_files(nodes: dict[str, list[ast.AST]]) -> None:
    wrong = []
    for name, found in nodes.items():
        for node in found:
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for module in modules:
                allowed = ENTRANCES.get(module.split(".")[0])
                if allowed is not None and not name.startswith(allowed):
                    wrong.append(f"{name} imports {module}, which only {allowed} may import")
    assert wrong == []


def test_imports_use_the_public_api_of_packages(nodes: dict[str, list[ast.AST]]) -> None:
    wrong = []
    for name, found in nodes.items():
        importer = tuple(name.removesuffix(".py").split("/"))
        for node in found:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dithc."):
                parts = tuple(node.module.split("."))
                for depth in range(2, len(parts)):  # each package on the path to the import
                    package, subpackage = ".".join(parts[:depth]), ".".join(parts[: depth + 1])
                    if package in NAMESPACES or subpackage in PUBLIC:
                        continue
                    if importer[:depth] != parts[:depth]:
                        wrong.append(f"{name} imports {node.module}: import from {'.'.join(parts[:depth])} instead")
    assert wrong == []


def test_packages_have_a_docstring_and_a_small_public_api(nodes: dict[str, list[ast.AST]]) -> None:
    wrong = []
    for name, (tree, *_) in nodes.items():
        package = name.removesuffix("/__init__.py")
        if package == name or package.count("/") < 1:
            continue
        if len((ast.get_docstring(tree) or "").splitlines()) < 4:
            wrong.append(f"{name}: document purpose, invariants and extension")
        assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
        public = [node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__"]
        if package.replace("/", ".") in NAMESPACES:
            continue
        if not public or len(getattr(public[0], "elts", [None] * 99)) > MAX_PUBLIC_NAMES:
            wrong.append(f"{name}: __all__ with at most {MAX_PUBLIC_NAMES} names")
    assert wrong == []


# Phrases that standard technical English avoids, and docstrings that begin with a clause instead of a verb or noun.
DIALECT = re.compile(
    r"\b(says|said|told|tells|who|whoever|whose|nobody|somebody|beside|anew|likewise|alike|judges?|brought"
    r"|(is|are) (no|none)|(that|those) of|made again|goes on|in the place of|of (its|their|one's) own|such an?"
    r"|trainings|samplings|(images|steps|bytes|seconds) an? (step|rank|image|second|block|layer|job|node|core))\b",
    re.IGNORECASE,
)
INTERROGATIVE = re.compile(r"(What|Where|Whether|Who|How|Which|Whose|All that|Those|That)\b")
FOLDERS = ("dithc", "tests", "examples", "docs", "kernels", "config", "profiles", "workflow", "containers")
PROSE_FILES = ("setup.py", "pyproject.toml")
COMMENTED = {".yaml", ".toml", ".smk", ".def"}  # only comments of these files are text
SUFFIXES = {".py", ".md", ".c", ".h", *COMMENTED}
MAX_DIALECT_PER_1000_WORDS = 1.0
DOCSTRING_RULE = (
    'start a docstring with a verb ("Return the plan.") or noun ("Plan of a step."), not a clause ("What it is")'
)
DIALECT_RULE = f"""more than {MAX_DIALECT_PER_1000_WORDS:g} of the phrases of DIALECT per 1,000 words of text. Name the component
instead of `who`. Write `reports` or `returns` instead of `says` or `tells`, `is not` or `does not exist` instead of `is no`,
the noun instead of `that of`, `per step` instead of `a step`, `training runs` instead of `trainings`. Found:\n"""


def prose(path: Path) -> tuple[list[str], list[str]]:
    """Return the docstrings of a file, and its further prose: comments, messages, Markdown."""
    text = path.read_text()
    if path.suffix == ".md":
        return [], [re.sub(r"```.*?```|`[^`]*`", " ", text, flags=re.DOTALL)]
    if path.suffix in COMMENTED:
        return [], re.findall(r"(?:^|\s)#+ (.*)", text)
    if path.suffix in {".c", ".h"}:
        return [], re.findall(r"/\*.*?\*/|//[^\n]*", text, flags=re.DOTALL)
    nodes = list(ast.walk(ast.parse(text)))
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    docstrings = [doc for node in nodes if isinstance(node, documented) and (doc := ast.get_docstring(node))]
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    comments = re.findall(r"(?:^|  )# (.*)", text, re.MULTILINE)
    return docstrings, [one for one in strings if one.count(" ") > 1] + comments


def test_text_uses_standard_terms() -> None:
    words, found, clauses = 0, [], []
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    for path in [*files, *(ROOT / name for name in PROSE_FILES)]:
        docstrings, texts = prose(path)
        clauses += [f"{path}: {doc[:60]}" for doc in docstrings if INTERROGATIVE.match(doc)]
        words += sum(len(text.split()) for text in texts)
        found += [f"{path}: {match[0]}" for text in texts for match in DIALECT.finditer(text)]
    assert clauses == [], DOCSTRING_RULE
    assert 1000 * len(found) / words <= MAX_DIALECT_PER_1000_WORDS, DIALECT_RULE + "\n".join(found)
