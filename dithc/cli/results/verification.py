"""Faults of results and checkpoints: altered documents, and altered or missing files that documents list."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from dithc.core.artifacts import CheckpointStore, Manifest, outputs
from dithc.core.integrity import has_checksum, load_checksummed, load_checksummed_lines, load_document
from dithc.core.logging import progress, user_error

CHECKPOINT = "checkpoint.json"
# Documents by name. Other files count if they have a checksum.
DOCUMENTS = (
    "manifest.json",
    "step_*.json",
    CHECKPOINT,
    "index.json",
    "shard-*.json",
    "flip-*.json",
    "dihedral?-*.json",
)
ELSEWHERE = ("identity", "origin")  # keys of records about inputs, which are outside the folder
# Folders of logs and other records of a run. No result depends on them.
NOTES = ("logs", "benchmarks", "tensorboard")
RECORDS = (".scenes.jsonl",)  # hidden, but read by the next ingestion


@dataclass(frozen=True)
class FileEntry:
    """File and its record in a document: `path` relative to the document, `sha256`, and `bytes` if present."""

    document: Path
    record: dict[str, Any]

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.document.parent / str(self.record["path"])


@dataclass(frozen=True)
class Problem:
    """Missing or altered document or listed file, with a sentence about the fault, and one about its repair.

    `delete` is the part to delete for the repair: the file, its folder (a checkpoint), its altered lines, or only its name: a
    file of another size than listed may be the user's, so that it is renamed.
    """

    path: str
    text: str
    fix: str
    delete: Literal["file", "folder", "lines", "name"]


@dataclass
class VerificationReport:
    """Result of a verification: numbers of documents and of listed files, bytes of intact files, and faults."""

    documents: int = 0
    files: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)


def find(paths: list[Path]) -> VerificationReport:
    """Verify every document under `paths` and every file that they list, once; UserError if a path has none."""
    report, entries = VerificationReport(), dict[tuple[Path, str], FileEntry]()
    for document in dict.fromkeys(document for path in paths for document in _documents(path)):
        report.documents += 1
        try:
            for entry in _entries(document):
                entries.setdefault((entry.path.resolve(), str(entry.record["sha256"])), entry)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            detail = "; ".join(line.strip() for line in str(error).splitlines()[:2])
            message = f"{document} cannot be used: {detail or type(error).__name__}"
            report.problems.append(_fault(document, message, document))
    with progress(total=len(entries), label="verify", unit="file") as bar:
        for entry in entries.values():
            report.files += 1
            if fault := Manifest.fault(entry.path, entry.record):
                message = f"{entry.path} {fault} (listed in {entry.document})"
                report.problems.append(_fault(entry.path, message, entry.document))
            else:
                report.bytes += entry.path.stat().st_size
            bar.update(1)
    return report


def _documents(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        got, expected = "no such file or folder", "a manifest, a checkpoint, or a folder that contains them"
        raise user_error(f"{path} cannot be verified", got=got, expected=expected, fix="check the path")
    documents = [file for file in sorted(_below(path)) if file.suffix in (".json", ".jsonl")]
    documents = [document for document in documents if _counts(document, document.relative_to(path).parts)]
    if not documents:
        raise user_error(
            f"{path} cannot be verified",
            got="a folder without documents that list files",
            expected=", ".join(DOCUMENTS),
            fix="pass a results or store folder",
        )
    return documents


def _below(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder, also through links, each folder once; OSError if a folder is unreadable."""

    def stop(error: OSError) -> None:
        raise error

    visited = {os.path.realpath(folder)}
    for directory, folders, files in os.walk(folder, onerror=stop, followlinks=True):
        new = {os.path.realpath(os.path.join(directory, name)): name for name in sorted(folders, reverse=True)}
        folders[:] = sorted(name for path, name in new.items() if path not in visited)
        visited |= new.keys()
        yield from (Path(directory, name) for name in files)


def _counts(document: Path, parts: tuple[str, ...]) -> bool:
    """Test whether a file is a document. Hidden files, except records, are incomplete or left by a crash."""
    if document.name.endswith(outputs.MARKER_FILE):
        return document.is_file()
    if any((part.startswith(".") and part not in RECORDS) or part in NOTES for part in parts) or not document.is_file():
        return False
    by_name = document.suffix == ".jsonl" or any(fnmatch(document.name, name) for name in DOCUMENTS)
    by_name |= document.name == "config.json" and document.with_name("fingerprints.json").exists()
    return by_name or has_checksum(document.read_text(errors="replace"))


def _entries(document: Path) -> Iterator[FileEntry]:
    """Yield the files that a document lists; ValueError if the document itself is altered."""
    if document.suffix == ".jsonl":  # its lines list no files
        if altered := load_checksummed_lines(document.read_text(errors="replace"))[1]:
            raise ValueError(f"altered lines: {', '.join(map(str, altered))}")
        return
    text = document.read_text()
    is_checksummed = document.name == "config.json" or document.name.endswith(outputs.MARKER_FILE)
    content = load_checksummed(text) if is_checksummed else load_document(text)
    if "stage" in content and "digest" in content:
        listed = Manifest.read(document).files
    elif document.name == CHECKPOINT:
        step = document.parent.name.removeprefix("step_")  # of its folder, if that is the name of a checkpoint
        content, faults = CheckpointStore.commit_content(text, int(step) if step.isdigit() else int(content["step"]))
        if faults:
            raise ValueError("; ".join(faults))
        listed = content["files"]
    elif document.name == "manifest.json":
        raise ValueError("it is not a manifest")
    elif "file_sha256" in content:  # sidecar of one array
        listed = [{"path": document.with_suffix(".npy").name, "sha256": content["file_sha256"]}]
    else:
        listed = list(_listed(content))
    for entry in listed:
        yield FileEntry(document, entry)


def _listed(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every record of a file next to the document (a path and a hash), at any depth."""
    if isinstance(value, dict):
        if "path" in value and "sha256" in value:
            yield value
        else:
            for key, item in value.items():
                yield from _listed(item) if key not in ELSEWHERE else ()
    elif isinstance(value, list):
        for item in value:
            yield from _listed(item)


def _fault(path: Path, text: str, document: Path) -> Problem:
    delete: Literal["file", "folder", "lines", "name"] = "file"
    stage = "report" if document.name == "report.json" else " ".join(document.parent.parts[-2:])
    fix = f"the workflow rebuilds it after it is deleted ({stage})"
    if path.name in RECORDS:
        fix, delete = "ingestion rereads the scenes of its altered lines", "lines"
    elif path.name.endswith(outputs.MARKER_FILE):
        fix = "without it, dithc replaces only files listed in a manifest: move other files elsewhere"
    elif path.suffix == ".jsonl":
        fix, delete = "dithc ignores its altered lines; they cannot be restored", "lines"
    elif path.name == CHECKPOINT or (path.parent / CHECKPOINT).exists():
        fix, delete = "training resumes from the previous checkpoint and rewrites this one", "folder"
    elif path.name == "spec.json":
        fix = "it only describes its folder for users"
    elif path.name == "config.json" and path == document:
        fix = "every run of the workflow rewrites it"
    elif path.exists() and not outputs.owns(path) and path != document:
        fix, delete = f"the workflow rebuilds it after it is renamed ({stage})", "name"
    elif path.exists() and not outputs.owns(path):
        fix = "no document of dithc lists it with its size: move it out of this folder if it is yours"
    return Problem(str(path), text, fix, delete)
