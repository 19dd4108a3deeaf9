"""Commands in cluster shells: other locales, little memory, unwritable folders."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dithc import cli
from dithc.cli import starting
from dithc.cli.experiment import run
from dithc.core import caches
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError, out_of_memory
from dithc.workflow.workflow import Workflow

MIB = 1 << 20
SHOWS = """
import json, os, sys, tempfile
from dithc import cli
from dithc.cli.results import show
def run(args):
    print(json.dumps([sys.argv[-1], sys.flags.utf8_mode, os.listdir("."), os.environ["PYTHONUTF8"]]))
    return 0
show.run, show.add_arguments = run, lambda parser: parser.add_argument("word")
sys.exit(cli.main())
"""
ENDS = """
import ctypes, os, signal, sys, time
from dithc import cli
from dithc.cli.results import show
def run(args):
    {body}
    return 3
show.run, show.add_arguments = run, lambda parser: None
sys.exit(cli.main())
"""

IMPORTS = """
import sys
from dithc import cli
none, config = "missing.json", ["--config", "missing.json", "--out", "out/manifest.json"]
libraries = {"torch", "numpy", "pandas", "xarray", "pyarrow", "PIL", "rasterio", "scipy", "matplotlib", "lxml", "pyproj"}
stages = [
    ([["status", none], ["verify", none], ["show", none], ["run", "--configfile", none, "--", "-n"]], set()),
    ([["fid", *config, "--evaluation", "e", "--real", none, "--generated", none]], {"numpy", "pyarrow"}),
    ([["tiles", *config, "--dataset", "d", "--scenes", none], ["ingest", *config, "--dataset", "d", "--inputs", none]], {"PIL"}),
    ([["synthesize", *config, "--dataset", "d"]], {"rasterio", "scipy"}),
    ([["report", *config, "--manifests", none]], {"matplotlib"}),
]
allowed = set()
import dithc.workflow.workflow
for commands, needed in stages:
    allowed |= needed
    for command in commands:
        assert cli.main(command) == 2, command  # the configuration is missing
        assert not libraries & set(sys.modules) - allowed, (command, libraries & set(sys.modules) - allowed)
"""
"""Commands in order of the libraries that they need; each imports them before it opens its inputs."""


def python(*args: str | bytes, cwd: Path, **settings: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, timeout=120, check=False, **settings)  # type: ignore[call-overload]
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def is_user_error(text: str) -> bool:
    return "Traceback" not in text and all(text.count(key) == 1 for key in ("got:", "expected:", "fix:"))


def test_commands_import_only_the_libraries_they_need(tmp_path: Path) -> None:
    done = python("-c", IMPORTS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def locales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("locales")
    if shutil.which("localedef") is None:
        pytest.skip("no localedef")
    name = folder / "de_DE.ISO-8859-1"  # for other locales, localedef takes up to a minute
    subprocess.run(["localedef", "-i", "de_DE", "-f", "ISO-8859-1", name], check=False, capture_output=True)
    return folder


@pytest.mark.parametrize("name", ["de_DE.ISO-8859-1", "C", "no_SUCH.ASCII"])
def test_names_are_utf8_in_every_locale(name: str, locales: Path, tmp_path: Path) -> None:
    if "." in name and name != "no_SUCH.ASCII" and not (locales / name).exists():
        pytest.skip(f"localedef has no {name}")
    (tmp_path / "城市é").touch()
    variables = {**os.environ, "LOCPATH": str(locales), "LC_ALL": name}
    variables.pop("PYTHONUTF8", None)
    done = python("-c", SHOWS, "show", "水体\x80é", cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["水体\x80é", 1, ["城市é"], "1"]


@pytest.mark.parametrize(("verb", "limit"), [("doctor", 100), ("train", 900), ("show", 400)])
def test_insufficient_memory_for_libraries_prints_one_error(verb: str, limit: int, tmp_path: Path) -> None:
    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit * MIB, limit * MIB))

    done = python("-m", "dithc", verb, cwd=tmp_path, preexec_fn=limit_memory)
    assert done.returncode == 2
    assert is_user_error(done.stderr), done.stderr
    assert "ulimit -v" in done.stderr


@pytest.mark.parametrize(
    ("body", "status", "is_memory"),
    [
        ("ctypes.CDLL(None).exit(1)", 2, True),  # libgomp, OpenBLAS
        ("os.kill(os.getpid(), signal.SIGSEGV)", 2, True),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", 2, True),  # OpenBLAS
        ("raise MemoryError", 2, True),
        ("os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)", 143, False),
        ("os.kill(os.getppid(), signal.SIGINT); time.sleep(60)", 130, False),
        ("sys.exit(1)", 1, False),
    ],
)
def test_process_ended_by_a_library_under_a_memory_limit_is_reported(
    body: str, status: int, is_memory: bool, tmp_path: Path
) -> None:
    def limit_memory() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored if the tests run in the background of a shell
        resource.setrlimit(resource.RLIMIT_AS, (4096 * MIB, 4096 * MIB))

    done = python("-c", ENDS.format(body=body), "show", cwd=tmp_path, preexec_fn=limit_memory)
    assert done.returncode == status, done.stderr
    assert ("out of memory" in done.stderr) == is_memory
    assert is_user_error(done.stderr) if is_memory else "got:" not in done.stderr, done.stderr


MEMORY_ERRORS = [
    MemoryError(),
    ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ImportError("PLEASE READ THIS\nOriginal error was: libstdc++.so.6: cannot allocate memory in static TLS block"),
    OSError("x.so: cannot create shared object descriptor: Cannot allocate memory"),
    OSError(12, "Cannot allocate memory"),
    RuntimeError("can't start new thread"),
    Exception("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
    ValueError("hc_context_create: a thread, or its place on a CPU, that the system refused"),
]
OTHER = [ImportError("No module named x"), OSError(28, "No space left"), ValueError("map")]


@pytest.mark.parametrize("error", [*MEMORY_ERRORS, *OTHER], ids=str)
def test_failed_allocations_are_detected_in_all_error_types(error: Exception) -> None:
    assert (out_of_memory.requested_memory(error) is not None) == (error in MEMORY_ERRORS)


def folders_of(monkeypatch: pytest.MonkeyPatch, **variables: str | None) -> tuple[str | None, str | None]:
    """Return the temporary folder and the cache that a command chooses."""
    for name in ("XDG_CACHE_HOME", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(starting.tempfile, "tempdir", None)
    starting.choose_folders()
    return os.environ.get("TMPDIR"), os.environ.get("XDG_CACHE_HOME")


def test_unwritable_cache_of_matplotlib_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders_of(monkeypatch, XDG_CACHE_HOME=str(tmp_path), MPLCONFIGDIR=str(read_only(tmp_path) / "x"))
    assert os.environ["MPLCONFIGDIR"] == str(tmp_path / "matplotlib")


def read_only(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file"  # unwritable for root too


def missing_folder(folder: Path) -> Path:
    return folder / "none"


@pytest.mark.parametrize("broken", [read_only, missing_folder])
def test_invalid_home_falls_back_to_a_private_cache(
    broken: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cache = folders_of(monkeypatch, HOME=str(broken(tmp_path)), TMPDIR=str(tmp_path))
    assert cache is not None
    assert Path(cache).parent == tmp_path
    assert Path(cache).stat().st_mode & 0o077 == 0
    assert folders_of(monkeypatch, XDG_CACHE_HOME=cache, HOME="/nowhere", TMPDIR=str(tmp_path))[1] == cache


def test_cache_writable_by_other_users_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"dithc-cache-{os.geteuid()}").mkdir(mode=0o700)
    (tmp_path / f"dithc-cache-{os.geteuid()}").chmod(0o777)
    assert folders_of(monkeypatch, HOME="/nowhere", TMPDIR=str(tmp_path))[1] is None
    assert caches.cache_home() is None


@pytest.mark.parametrize("broken", [read_only, missing_folder])
def test_unusable_temporary_folder_is_replaced_for_child_processes(
    broken: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, cache = folders_of(monkeypatch, TMPDIR=str(broken(tmp_path)), HOME=str(tmp_path))
    assert temporary is not None
    assert Path(temporary).is_dir()
    assert cache == str(tmp_path / ".cache")


@pytest.mark.parametrize("broken", ["working folder", "cache"])
def test_run_rejects_folders_unwritable_for_snakemake(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "is_writable", lambda _: broken != "working folder")
    monkeypatch.setattr(caches, "cache_home", lambda: None)
    with pytest.raises(UserError, match=broken):
        run._check_folders()


def test_missing_temporary_folder_error_contains_the_variable() -> None:
    error = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
    assert "set TMPDIR" in str(cli._unwritable("ingest", error))


def test_workflow_outside_dithc_run_rejects_a_locale_without_utf8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "gb18030")
    with pytest.raises(UserError, match="PYTHONUTF8=1"):
        Workflow.of(None, {})


CLOSED = (
    "import os, sys; [os.close(int(n)) for n in sys.argv[1]]; os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Write a manifest with an intact file, in a folder with a non-ASCII name."""
    folder = tmp_path / "Höhe ≥ 日本"
    folder.mkdir()
    (folder / "scores.bin").write_bytes(b"scores")
    files = Manifest.entries(folder, [folder / "scores.bin"])
    Manifest(stage="codec", name="höhe", spec={}, files=files, summary={"loss": 1.5}).write(folder / "manifest.json")
    return folder / "manifest.json"


@pytest.mark.parametrize("closed", ["0", "12", "012"])
@pytest.mark.slow
def test_closed_streams_do_not_change_the_verify_status(manifest: Path, tmp_path: Path, closed: str) -> None:
    out = tmp_path / "found.json"
    arguments = ("-c", CLOSED, closed, "-m", "dithc", "verify", str(manifest), "--json", str(out))
    done = python(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())  # and no log lines are in it
    assert (found["files"], found["problems"]) == (1, [])
    (manifest.parent / "scores.bin").write_bytes(b"others")
    assert python(*arguments, cwd=tmp_path).returncode == 1


@pytest.mark.slow
def test_ascii_streams_accept_any_text(manifest: Path, tmp_path: Path) -> None:
    for arguments in (["show", str(manifest)], ["verify", str(manifest.parent)]):
        done = python("-m", "dithc", *arguments, cwd=tmp_path, env=os.environ | {"PYTHONIOENCODING": "ascii"})
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
