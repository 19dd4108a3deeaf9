"""Examples of all commands: all are valid, and cheap ones run in the given order."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from dithc.cli import COMMANDS, GROUPS, command_module, main
from dithc.cli.bench.command import KINDS
from dithc.config import load_experiment
from dithc.core.integrity import dump_checksummed
from dithc.engine import native

ROOT = Path(__file__).parents[2]
REDUCED = ROOT / ".test/config/reduced.yaml"
# Examples that do not run here, with the reason.
TOO_MUCH = {
    "run": "the tests of the workflow do",
    "status results/demo --watch": "ends with a complete experiment",
    "fetch": "queries a catalog",
    "doctor": "has separate tests; on a cluster it writes a profile",
    "bench": "measures for minutes",
    "tune-kernels": "searches for minutes",
    "verify results/demo store --repair": "runs the workflow",
    "launch": "starts ranks",
    "plan": "measures for a minute; on a cluster it submits a job",
    "restore": "needs the results of restore-demo; the tests of the restoration run it",
    "report": "draws for half a minute; the tests of the report do",
}


def examples() -> list[str]:
    """Return all command lines, in the order of the commands; those on data of both datasets of the demo."""
    lines = []
    for verb in COMMANDS:
        text = import_module(command_module(verb)).EXAMPLE
        lines += [command.strip() for line in text.splitlines() for command in line.split("&&")]
        if verb in GROUPS["data"]:
            lines.append(lines[-1].replace("landscape", "sentinel2"))
    return list(dict.fromkeys(lines))


def parse_line(line: str) -> argparse.Namespace:
    """Parse a command line; SystemExit if it is invalid."""
    _, verb, *arguments = shlex.split(line)
    module = import_module(command_module(verb))
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("line", examples())
def test_example_is_parsed_and_named_configurations_exist(line: str) -> None:
    assert parse_line(line) is not None
    for name in re.findall(r"config/\S+\.yaml", line):
        assert (ROOT / name).exists() or line.startswith("dithc fetch"), f"{name} is missing after an installation"


@pytest.mark.parametrize("kind", KINDS)
def test_bench_help_contains_an_example(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", kind, "--help"])
    assert stop.value.code == 0
    assert re.search(rf"example:\n  dithc .*bench {kind} ", capsys.readouterr().out)


def test_misspelled_option_is_rejected_by_the_parser() -> None:
    with pytest.raises(SystemExit):
        parse_line("dithc tiles --confg a.yaml --dataset a --scenes b --out c")


RUN = """
import glob, shlex, sys, time
from dithc.cli import main

statuses = []
for line in sys.argv[1:]:
    words = [found for word in shlex.split(line)[1:] for found in (sorted(glob.glob(word)) if "*" in word else [word])]
    print(f"$ {line}", flush=True)
    begun = time.process_time()
    statuses.append(main(words))
    print(f"status {statuses[-1]} after {time.process_time() - begun:.1f} s of CPU time", flush=True)
sys.exit(max(statuses))
"""


def run_lines(folder: Path, lines: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", RUN, *lines]
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a reduced demo, with the steps of the examples, after all examples."""
    folder = tmp_path_factory.mktemp("examples")
    small = folder / "config/experiments/demo.yaml"
    small.parent.mkdir(parents=True)
    steps = folder / "steps.yaml"
    steps.write_text(
        "runs: {pretrain: {steps: 160, steps_per_job: 160, global_batch_size: 4}, "
        "sentinel2: {steps: 1000, checkpoint_every: 200, keep_every: 200, global_batch_size: 2}}\n"
        "evaluations: {sentinel2-after: {guidance_reference: 200}}"
    )
    content = load_experiment([ROOT / "config/experiments/demo.yaml", REDUCED, steps]).model_dump(mode="json")
    small.write_text(json.dumps(content))
    (folder / "results/demo").mkdir(parents=True)
    (folder / "results/demo/config.json").write_text(dump_checksummed(content))  # written by `dithc run`
    (folder / "profiles").symlink_to(ROOT / "profiles")
    done = run_lines(folder, cheap_examples())
    print(done.stdout)
    assert done.stdout.count("status 0 after") == len(cheap_examples()), done.stderr[-4000:]
    return folder


def cheap_examples() -> list[str]:
    return [line for line in examples() if not line.removeprefix("dithc ").startswith(tuple(TOO_MUCH))]


@pytest.mark.slow
@pytest.mark.alternates("whole workflows", "examples")
def test_examples_run_in_the_given_order(demo: Path) -> None:
    for product in ("results/demo/fid/sentinel2-after/manifest.json", "sentinel2.safetensors", "tiles.png"):
        assert (demo / product).exists(), product


@pytest.mark.slow
@pytest.mark.alternates("whole workflows", "examples")
def test_commands_preserve_files_of_users_and_other_stages(demo: Path) -> None:
    """Pass `--out` in a home directory, another stage's folder, and its own folder with one more file."""
    foreign = demo / "home"
    files = ("thesis.tex", ".env", "shard-00000.npy", "image-000000.tif", "figures/loss.png", ".git/HEAD")
    for name in (*files, "manifest.json"):
        (foreign / name).parent.mkdir(parents=True, exist_ok=True)
        (foreign / name).write_text(f"of years: {name}")
    lines = []
    for line in cheap_examples():
        if (found := re.search(r" --out (\S+)", line)) is None:
            continue
        written = demo / found[1]
        notes = (written if written.is_dir() else written.parent) / "notes.txt"
        notes.write_text("of the user")
        is_stage = written.name == "manifest.json"
        places = ["home", f"home/{written.name}", "home/thesis.tex"] if not is_stage else ["home/manifest.json"]
        places += ["results/demo/manifest.json", "results/demo/fid/sentinel2-after/manifest.json"]
        if " synthesize " not in line:  # it writes its manifest next to its folder
            places += [found[1]] if is_stage or written.is_dir() else []
        lines += [line.replace(found[0], f" --out {place}") for place in places]
    kept = (path for path in demo.rglob("*") if path.is_file() and path.name != ".dithc-output.json")
    before = {path: path.read_bytes() for path in kept}
    done = run_lines(demo, lines)
    print(done.stdout)
    assert done.stdout.count("status ") == len(lines), "a command did not end"
    after = {path: path.read_bytes() for path in before if path.exists()}
    changed = [str(path.relative_to(demo)) for path in before if after.get(path) != before[path]]
    assert changed == []
    assert done.stdout.count("status 2 after") >= len(lines) * 3 // 4


GENERATED = ("docs/config.md", "docs/generated")
DOCUMENTS = tuple(
    name
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if not (name := path.relative_to(ROOT).as_posix()).startswith(GENERATED)
)
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/|make |dithc |snakemake |pip )")


def read_documents() -> tuple[list[str], list[str]]:
    """Return the command lines and the Python programs of the documents."""
    lines, programs = [], []
    for name in DOCUMENTS:
        text = (ROOT / name).read_text()
        programs += re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        typed = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        lines += [
            line.strip() for line in typed.splitlines() if line.startswith("    ") and COMMAND.match(line.strip())
        ]
    return list(dict.fromkeys(lines)), list(dict.fromkeys(programs))


@pytest.mark.parametrize("line", read_documents()[0])
def test_documented_command_line_is_valid(line: str) -> None:
    arguments = shlex.split(line, comments=True)
    while re.fullmatch(r"[A-Z_]+=\S+", arguments[0]):  # environment variables
        arguments = arguments[1:]
    program = arguments[0].removeprefix(".venv/bin/")
    if program == "make":
        assert re.search(rf"^{arguments[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    assert arguments[0].startswith(".venv/bin/"), "the command requires an activated environment"
    assert (Path(sys.executable).parent / program).exists()
    if program == "dithc":
        parse_line(shlex.join(["dithc", *arguments[1:]]))
    for name in (argument for argument in arguments if argument.startswith(("config/", "profiles/"))):
        assert (ROOT / name).exists()


def test_linked_file_and_section_exist() -> None:
    broken = []
    for name in DOCUMENTS:
        text = re.sub(r"^```.*?^```|^    .*?$", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\((?!https?://)([^)]+)\)", text):
            file, _, section = target.partition("#")
            path = (ROOT / name).parent / (file or Path(name).name)
            if path.parent.name == "generated":  # by the build of the site
                continue
            if not path.exists() or (section and section not in sections(path)):
                broken.append(f"{name}: {target}")
    assert broken == []


def sections(path: Path) -> list[str]:
    """Return the anchors of the headings of a page, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)", path.read_text(), re.MULTILINE)
    return [re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.slow
@pytest.mark.parametrize("program", read_documents()[1])
def test_documented_python_program_runs(program: str, tmp_path: Path) -> None:
    if native.library() is None:
        pytest.skip(f"C kernels: {native.load_library().reason}")
    line = [sys.executable, "-c", program]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    remaining = [path.name for path in tmp_path.iterdir()]
    if "Tiers" in program:
        assert "loaded_bytes=" in done.stdout
        assert remaining == [], "the file tier left a named file"
    elif "Checkpoints" in program:
        assert remaining == ["store"]
