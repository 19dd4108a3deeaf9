"""Extensions of installed packages are found by name; a broken package affects only configurations that name it."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from dithc.config import load
from dithc.core import plugins
from dithc.core.logging import UserError
from tests.plugin_packages import MODULE, DdimSampler, add_to_path, install_plugin

BROKEN = {"broken": "broken_module:Nothing", "absent": f"{MODULE}:Absent"}


def test_plugin_is_found_with_package_and_loaded_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(
        tmp_path, monkeypatch, package="mine", version="2.5", samplers={"last": f"{MODULE}:DdimSampler"} | BROKEN
    )
    found = plugins.find_plugin("samplers", "last", built_in=("ddim",))
    assert (found.package, found.version, found.target) == ("mine", "2.5", f"{MODULE}:DdimSampler")
    assert str(found) == "last (mine 2.5)"
    assert found.load() is DdimSampler
    assert [one.name for one in plugins.list_plugins("samplers")] == ["absent", "broken", "last"]
    assert plugins.list_plugins("codecs") == []


def test_broken_package_raises_an_error_on_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("raise SystemExit('no licence here')\n")
    add_to_path(tmp_path, monkeypatch)
    install_plugin(tmp_path, monkeypatch, samplers=BROKEN)
    for name, cause in (("broken", "SystemExit: no licence here"), ("absent", "AttributeError")):
        with pytest.raises(UserError, match=rf"'{name}' of mine 1.0 [\s\S]*{cause}[\s\S]*fix: "):
            plugins.find_plugin("samplers", name).load()


def test_unknown_and_ambiguous_names_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path, monkeypatch, package="one", samplers={"last": f"{MODULE}:DdimSampler"})
    with pytest.raises(UserError, match=r"'lost' is neither[\s\S]*last \(one 1.0\)[\s\S]*ddim[\s\S]*pip install"):
        plugins.find_plugin("samplers", "lost", built_in=("ddim",))
    install_plugin(tmp_path, monkeypatch, package="other", samplers={"last": f"{MODULE}:DdimSampler"})
    with pytest.raises(UserError, match=r"several packages[\s\S]*one 1.0, other 1.0[\s\S]*pip uninstall"):
        plugins.find_plugin("samplers", "last")


def test_built_in_names_require_no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: pytest.fail("entry points were read"))
    monkeypatch.setattr("dithc.core.plugins.entry_points", metadata.entry_points)
    assert load(Path("config/experiments/demo.yaml")).evaluations


def test_help_works_with_a_broken_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("raise SystemExit('no licence here')\n")
    add_to_path(tmp_path, monkeypatch)
    install_plugin(tmp_path, monkeypatch, samplers={"last": f"{MODULE}:DdimSampler"} | BROKEN)
    code = (
        "from dithc import cli; from dithc.core import plugins; import sys; "
        "assert plugins.find_plugin('samplers', 'last').version == '1.0'; "
        "cli.main(['--help']); assert 'tests.plugin_packages' not in sys.modules and 'torch' not in sys.modules"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "commands:" in process.stdout
