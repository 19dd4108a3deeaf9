"""What of results and checkpoints is not as it was written: every document by itself, and every file that one lists."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from dithc.log import problem, progress
from dithc.runs import Manifest, Store, outputs
from dithc.sealed import content_of, has_seal, unseal, unseal_lines

CHECKPOINT = "checkpoint.json"
# Documents by name; of others, those with a seal.
DOCUMENTS = ("manifest.json", "step_*.json", CHECKPOINT, "index.json", "shard-*.json", "flip-*.json", "turned?-*.json")
ELSEWHERE = ("identity", "origin")  # keys under which a document tells of what it was made from
# Folders of what a run says of itself while it runs; nothing is computed from it.
NOTES = ("logs", "benchmarks", "tensorboard")
RECORDS = (".scenes.jsonl",)  # hidden, and read by the next ingestion


@dataclass(frozen=True)
class Entry:
    """A file and what a document says of it (`path` relative to it, `sha256`, and `bytes` where it says so)."""

    document: Path
    said: dict[str, Any]

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.document.parent / str(self.said["path"])


@dataclass(frozen=True)
class Fault:
    """What is not as it was written.

    Attributes:
        path: a document, or a file that one lists.
        what: is wrong with it, a sentence.
        fix: what makes it again.
        goes: what is deleted so that it is: the file, its folder (a checkpoint), or of its lines those that are altered.
    """

    path: str
    what: str
    fix: str
    goes: Literal["file", "folder", "lines"]


@dataclass
class Finding:
    """What was looked at, and what is wrong.

    Attributes:
        documents: that list files, or are sealed.
        files: that they list.
        bytes: of those that are whole.
        faults: one for each document and file that is not as it was written.
    """

    documents: int = 0
    files: int = 0
    bytes: int = 0
    faults: list[Fault] = field(default_factory=list)


def find(paths: list[Path]) -> Finding:
    """Looks at every document under `paths` and at every file they name, each file once.

    Raises:
        UserError: a path does not exist, or a folder holds no document.
    """
    finding, entries = Finding(), dict[tuple[Path, str], Entry]()
    for document in dict.fromkeys(document for path in paths for document in _documents(path)):
        finding.documents += 1
        try:
            for entry in _lines(document) if document.suffix == ".jsonl" else _entries(document):
                entries.setdefault((entry.path.resolve(), str(entry.said["sha256"])), entry)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            told = "; ".join(line.strip() for line in str(error).splitlines()[:2])
            finding.faults.append(
                _fault(document, f"{document} cannot be used: {told or type(error).__name__}", document)
            )
    with progress(total=len(entries), label="verify", unit="file") as bar:
        for entry in entries.values():
            finding.files += 1
            if fault := Manifest.fault(entry.path, entry.said):
                what = f"{entry.path} {fault} (listed in {entry.document})"
                finding.faults.append(_fault(entry.path, what, entry.document))
            else:
                finding.bytes += entry.path.stat().st_size
            bar.update(1)
    return finding


def _documents(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise problem(
            f"nothing to verify at {path}",
            got="no such file or folder",
            expected="a manifest, a checkpoint, or a folder with such in it",
            fix="check the path",
        )
    found = [file for file in sorted(_below(path)) if file.suffix in (".json", ".jsonl")]
    found = [document for document in found if _counts(document, document.relative_to(path).parts)]
    if not found:
        raise problem(
            f"nothing to verify in {path}",
            got="no document that lists files",
            expected=", ".join(DOCUMENTS),
            fix="point at a results or store folder",
        )
    return found


def _below(folder: Path) -> Iterator[Path]:
    """Every file below a folder, through links too, each folder once.

    Raises:
        OSError: a folder cannot be read, and so nothing can be said of what is in it.
    """

    def stop(error: OSError) -> None:
        raise error

    seen = {os.path.realpath(folder)}
    for here, folders, files in os.walk(folder, onerror=stop, followlinks=True):
        new = {os.path.realpath(os.path.join(here, name)): name for name in sorted(folders, reverse=True)}
        folders[:] = sorted(name for path, name in new.items() if path not in seen)
        seen |= new.keys()
        yield from (Path(here, name) for name in files)


def _counts(document: Path, parts: tuple[str, ...]) -> bool:
    """Whether a file is a document of its own; hidden ones are being written, or were left by a crash, but for records."""
    if document.name.endswith(outputs.MARKER_FILE):
        return document.is_file()
    if any((part.startswith(".") and part not in RECORDS) or part in NOTES for part in parts) or not document.is_file():
        return False
    by_name = document.suffix == ".jsonl" or any(fnmatch(document.name, name) for name in DOCUMENTS)
    by_name |= document.name == "config.json" and document.with_name("fingerprints.json").exists()
    return by_name or has_seal(document.read_text(errors="replace"))


def _lines(document: Path) -> list[Entry]:
    """Nothing: lines list no files.

    Raises:
        ValueError: a line is not what was written.
    """
    _, altered = unseal_lines(document.read_text(errors="replace"))
    if altered:
        raise ValueError(f"lines that are not what was written: {', '.join(map(str, altered))}")
    return []


def _entries(document: Path) -> Iterator[Entry]:
    """The files that a document names.

    Raises:
        ValueError: the document itself is altered.
    """
    text = document.read_text()
    is_sealed = document.name == "config.json" or document.name.endswith(outputs.MARKER_FILE)
    content = unseal(text) if is_sealed else content_of(text)
    if "stage" in content and "digest" in content:
        listed = Manifest.read(document).files
    elif document.name == CHECKPOINT:
        content, faults = Store.commit_content(text, _step_of(document, content))
        if faults:
            raise ValueError("; ".join(faults))
        listed = content["files"]
    elif document.name == "manifest.json":
        raise ValueError("it is no manifest")
    elif "file_sha256" in content:  # the sidecar of one array
        listed = [{"path": document.with_suffix(".npy").name, "sha256": content["file_sha256"]}]
    else:
        listed = list(_listed(content))
    for said in listed:
        yield Entry(document, said)


def _step_of(document: Path, content: dict[str, Any]) -> int:
    """The step that the folder of a checkpoint says; what it says itself where the folder has another name."""
    name = document.parent.name.removeprefix("step_")
    return int(name) if name.isdigit() else int(content["step"])


def _listed(value: Any) -> Iterator[dict[str, Any]]:
    """Every record of a file beside the document (a path and a hash), at any depth."""
    if isinstance(value, dict):
        if "path" in value and "sha256" in value:
            yield value
        else:
            for key, item in value.items():
                yield from _listed(item) if key not in ELSEWHERE else ()
    elif isinstance(value, list):
        for item in value:
            yield from _listed(item)


def _fault(path: Path, what: str, document: Path) -> Fault:
    """A fault of a file that is a document, or that a document lists."""
    if path.name in RECORDS:
        return Fault(str(path), what, "the scenes of its altered lines are read again where staging runs", "lines")
    if path.name.endswith(outputs.MARKER_FILE):
        fix = "without it, dithc replaces only files that a manifest lists: move the others elsewhere"
        return Fault(str(path), what, fix, "file")
    if path.suffix == ".jsonl":
        return Fault(str(path), what, "its altered lines are passed over, and cannot be had again", "lines")
    if path.name == CHECKPOINT or (path.parent / CHECKPOINT).exists():
        return Fault(str(path), what, "the training goes on from the checkpoint before, and makes it again", "folder")
    if path.name == "spec.json":
        return Fault(str(path), what, "it only tells people what its folder is", "file")
    if path.name == "config.json" and path == document:
        return Fault(str(path), what, "every run of the workflow writes it", "file")
    if path.exists() and not outputs.owns(path):
        return Fault(
            str(path), what, "no list of dithc has it with its size: move it out of this folder if it is yours", "file"
        )
    stage = "report" if document.name == "report.json" else " ".join(document.parent.parts[-2:])
    return Fault(str(path), what, f"the workflow makes it again, once it is deleted ({stage})", "file")
