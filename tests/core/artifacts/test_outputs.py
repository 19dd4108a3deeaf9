"""Output folders: dithc replaces and deletes its own files, and no other file."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from dithc.core.artifacts import Manifest, outputs
from dithc.core.artifacts.outputs import MARKER_FILE, OutputFolder
from dithc.core.integrity import dump_checksummed
from dithc.core.logging import UserError

NAMES = ("shard-00000.npy", "index.json", "manifest.json", ".manifest.provenance.json", "grid.png")


def finish(folder: Path, *names: str, stage: str = "latents", name: str = "set") -> OutputFolder:
    """Write the files of a stage in place, with manifest and marker."""
    output = OutputFolder(folder)
    output.claim(stage=stage, name=name)
    paths = [folder / file for file in names]
    output.plan(paths)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{path.name} of {stage}")
    output.prune(paths)
    manifest = Manifest(stage=stage, name=name, spec={}, files=Manifest.entries(folder, paths))
    manifest.write(folder / "manifest.json")
    output.finish(stage=stage, name=name)
    return output


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in outputs.files_of(folder)}


def rejection(folder: Path, *, stage: str = "latents", name: str = "set") -> str:
    """Return the error of every function that opens a folder; all must be equal and change no byte."""
    before = content(folder)
    output, errors = OutputFolder(folder), []
    for attempt in (output.check, output.claim):
        with pytest.raises(UserError) as error:
            attempt(stage=stage, name=name)
        errors.append(str(error.value))
    with pytest.raises(UserError) as error, output.replaced(stage=stage, name=name):
        pytest.fail("the body must not run")
    assert content(folder) == before
    assert {*errors, str(error.value)} == {errors[0]}
    return errors[0]


def test_own_files_are_replaced_and_stale_files_deleted(tmp_path: Path) -> None:
    finish(tmp_path / "out", "shard-00000.npy", "shard-00001.npy", "B4+B3+B2/stats.npz")
    finish(tmp_path / "out", "shard-00000.npy")
    assert content(tmp_path / "out").keys() == {"shard-00000.npy", "manifest.json", ".manifest.provenance.json"}
    assert not (tmp_path / "out/B4+B3+B2").exists()


def test_manifest_without_a_marker_identifies_the_owner(tmp_path: Path) -> None:
    finish(tmp_path / "out", "a.npy")
    (tmp_path / "out" / MARKER_FILE).unlink()
    OutputFolder(tmp_path / "out").check(stage="latents", name="set")
    assert "latents set" in rejection(tmp_path / "out", stage="sample")


@pytest.mark.parametrize("damage", ["marker", "manifest"])
def test_one_intact_document_identifies_the_owner(tmp_path: Path, damage: str) -> None:
    finish(tmp_path / "out", "a.npy")
    (tmp_path / "out" / (MARKER_FILE if damage == "marker" else "manifest.json")).write_text('{"stage": "latents"')
    OutputFolder(tmp_path / "out").check(stage="latents", name="set")


def test_truncated_file_is_accepted_and_larger_file_is_rejected(tmp_path: Path) -> None:
    finish(tmp_path / "out", "a.npy")
    (tmp_path / "out/a.npy").write_text("")
    OutputFolder(tmp_path / "out").check(stage="latents", name="set")
    (tmp_path / "out/a.npy").write_text("an array of the user, with more bytes")
    assert "a.npy" in rejection(tmp_path / "out")


@pytest.mark.parametrize("name", [".git", ".hg", ".datalad"])
def test_empty_version_control_folder_is_rejected(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert name in rejection(tmp_path)


def test_error_lists_three_files_and_ignores_files_of_system_and_qgis(tmp_path: Path) -> None:
    for name in ("a", "a.tif.aux.xml", "b", "c", "d", ".DS_Store", "Thumbs.db", ".nfs0001"):
        (tmp_path / name).touch()
    assert "got:      a, b, c\n" in rejection(tmp_path)


@pytest.mark.parametrize("kind", ["folder link", "file link", "fifo"])
def test_links_and_pipes_under_listed_names_are_rejected(tmp_path: Path, kind: str) -> None:
    folder, outside = tmp_path / "out", tmp_path / "thesis"
    finish(folder, "a.npy")
    (folder / "a.npy").unlink()
    outside.mkdir() if kind == "folder link" else outside.write_text("of years")
    os.mkfifo(folder / "a.npy") if kind == "fifo" else (folder / "a.npy").symlink_to(outside)
    assert "a.npy" in rejection(folder)


def test_files_of_a_killed_process_are_owned_by_the_next_process(tmp_path: Path) -> None:
    output = OutputFolder(tmp_path)
    output.claim(stage="latents", name="set")
    output.plan([tmp_path / "a.npy", tmp_path / "b.npy"])
    (tmp_path / "a.npy").touch()
    (tmp_path / ".b.npy.tmp.host.77").touch()
    (tmp_path / ".thesis.tex.tmp.host.77").touch()
    assert ".thesis.tex.tmp.host.77" in rejection(tmp_path)
    (tmp_path / ".thesis.tex.tmp.host.77").unlink()
    output.claim(stage="latents", name="set")
    assert content(tmp_path).keys() == {"a.npy"}


def test_user_file_at_an_output_path_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("thesis")
    with pytest.raises(UserError, match=r"report\.html"):
        outputs.write(tmp_path / "report.html", "page")
    with pytest.raises(UserError, match=r"report\.html"):
        outputs.check_file(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == "thesis"
    outputs.write(tmp_path / "mine.html", "page")
    outputs.write(tmp_path / "mine.html", "new page")
    (tmp_path / "sealed.json").write_text(dump_checksummed({"a": 1}))
    outputs.check_file(tmp_path / "sealed.json", stage="train", name="run")
    finish(tmp_path / "tiles", stage="tiles")
    with pytest.raises(UserError, match="tiles set"):
        outputs.check_file(tmp_path / "tiles/manifest.json", stage="train", name="run")


def test_unlistable_folder_raises_permission_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def fail(path: Path) -> object:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(PermissionError):
        OutputFolder(tmp_path).check()


def test_failed_replacement_preserves_the_earlier_folder(tmp_path: Path) -> None:
    output = OutputFolder(tmp_path / "out")
    for text in ("old", "new"):
        with output.replaced() as temporary:
            (temporary / text).write_text(text)
    before = content(tmp_path)
    with pytest.raises(ZeroDivisionError), output.replaced() as temporary:
        (temporary / "half").write_text(str(1 / len("")))
    assert content(tmp_path) == before == {"out/new": b"new"}


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EFBIG, "ulimit -f")])
def test_failed_write_reports_the_full_disk_or_the_size_limit(tmp_path: Path, number: int, words: str) -> None:
    with pytest.raises(UserError, match=words), OutputFolder(tmp_path / "out").replaced():
        raise OSError(number, "x")
    assert not any(tmp_path.iterdir())


def test_failed_rename_restores_the_earlier_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = OutputFolder(tmp_path / "out")
    with output.replaced() as temporary:
        (temporary / "old").touch()
    rename = os.rename

    def fail(old: Path, new: Path) -> None:
        if Path(new) == output.folder and not str(old).endswith(".replaced"):
            raise OSError(28, "No space left on device")
        rename(old, new)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(UserError, match="No space"), output.replaced() as temporary:
        (temporary / "new").touch()
    assert content(tmp_path).keys() == {"out/old"}


@pytest.mark.parametrize("moment", ["building", "moved aside", "moved in"])
def test_killed_replacement_is_recovered_and_user_files_are_preserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    output, calls = OutputFolder(tmp_path / "out"), []
    with output.replaced(stage="tiles", name="set") as temporary:
        (temporary / "old").touch()
    rename = os.rename

    def rename_and_exit(old: Path, new: Path) -> None:
        rename(old, new)
        calls.append(new)
        if len(calls) > ("moved aside", "moved in").index(moment):
            os._exit(9)

    (tmp_path / ".out.tmp.mine").mkdir()
    (tmp_path / ".out.tmp.mine/thesis").touch()
    if (child := os.fork()) == 0:
        with output.replaced(stage="tiles", name="set") as temporary:
            (temporary / "new").touch()
            (tmp_path / "out/notes").touch()
            if moment == "building":
                os._exit(9)
            os.rename = rename_and_exit  # type: ignore[assignment]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with pytest.raises(UserError, match="notes"), output.replaced(stage="tiles", name="set"):
        pass
    own_file = "out/old" if moment != "moved in" else "out/new"
    assert content(tmp_path).keys() == {".out.tmp.mine/thesis", "out/notes", own_file}


TREE = st.dictionaries(
    st.builds(
        lambda folder, name: folder + name,
        st.sampled_from(["", ".git/", "B4+B3+B2/", "metrics/", ".out.tmp.host.1/", "deep/er/"]),
        st.sampled_from([*NAMES, "shard-00007.npy", "thesis.tex", ".env", ".a.npy.tmp.host.1", "image-holiday.tif"]),
    ),
    st.binary(min_size=1, max_size=9),
    min_size=1,
    max_size=5,
)


@seed(int(os.environ.get("DITHC_ATTACK_SEED", "0")))
@settings(max_examples=5000 if "DITHC_ATTACK_SEED" in os.environ else 40, deadline=None)
@given(users=TREE, is_ours_first=st.booleans(), names=st.lists(st.sampled_from(NAMES[:2]), unique=True), data=st.data())
def test_no_operation_changes_user_files(
    tmp_path_factory: pytest.TempPathFactory,
    users: dict[str, bytes],
    is_ours_first: bool,
    names: list[str],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("home") / "out"
    if is_ours_first:
        finish(folder, *names)
    users = {path: text for path, text in users.items() if not (folder / path).exists()}
    for path, text in users.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text)
    output = OutputFolder(folder)
    for operation in data.draw(st.permutations(["claim", "plan", "prune", "replaced", "delete", "scratch", "write"])):
        try:
            match operation:
                case "claim":
                    output.claim(stage="latents", name="set")
                case "plan":
                    output.plan([folder / name for name in names])
                case "prune":
                    output.prune([])
                case "replaced":
                    with output.replaced(stage="latents", name="set") as temporary:
                        (temporary / "new").touch()
                case "delete":
                    output.delete()
                case "scratch":
                    outputs.remove(folder)
                case "write":
                    outputs.write(folder / "thesis.tex", "ours")
        except UserError:
            pass
        assert users.items() <= content(folder).items(), operation


def test_only_one_module_deletes_folders() -> None:
    """Only one module may call `rmtree`, because it decides ownership."""
    package = Path(outputs.__file__).parents[3]
    assert [path.name for path in package.rglob("*.py") if "rmtree" in path.read_text()] == ["scratch.py"]


def test_files_of_one_stem_share_a_marker(tmp_path: Path) -> None:
    for _ in range(2):
        for name in ("out.json", "out.png", "figures/out.svg"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            outputs.write(tmp_path / name, "x" * len(name), of=tmp_path / "out.json")
    (tmp_path / "figures" / "of-the-user.svg").write_text("x")
    owned = [path.name for path in outputs.files_of(tmp_path) if outputs.owns(path)]
    assert owned == ["out.svg", "out.json", "out.png"]


def test_user_file_created_during_a_write_is_preserved(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    writer = outputs.replacing(path)
    writer.__enter__().write_text("of dithc")
    path.write_text("of the user")
    with pytest.raises(UserError, match="did not write"):
        writer.__exit__(None, None, None)
    assert path.read_text() == "of the user"
    assert outputs.files_of(tmp_path) == [path]


def test_failed_marker_write_leaves_no_output_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"

    def full(self: object, *arguments: object, **settings: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(outputs.OutputFolder, "_write", full)
        with pytest.raises(OSError, match="No space"):
            outputs.write(path, "content")
    assert outputs.files_of(tmp_path) == []
    outputs.write(path, "content")
    outputs.write(path, "other content")
    assert path.read_text() == "other content"


def test_pipe_as_marker_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f".out{outputs.MARKER_FILE}")
    with pytest.raises(UserError, match="pipe"):
        outputs.write(tmp_path / "out.json", "content")
    assert not (tmp_path / "out.json").exists()


def test_empty_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "made-by-mktemp").touch()
    outputs.write(tmp_path / "made-by-mktemp", "content")
