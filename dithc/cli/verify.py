"""`dithc verify`: re-hashes everything that manifests, checkpoints and shard lists say was written."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dithc.log import logger, problem, progress

SUMMARY = "Re-hashes what manifests, checkpoints and shard lists name; a line for each file that is missing or altered."
EXAMPLE = "dithc verify results/demo store --json verify.json"
MANIFEST, CHECKPOINT, INDEX, SIDECAR = "manifest.json", "checkpoint.json", "index.json", "shard-*.json"
ELSEWHERE = ("identity", "origin")  # keys under which a document tells of what it was made from
DOCUMENTS = (MANIFEST, "step_*.json", CHECKPOINT, INDEX, SIDECAR)
log = logger(__name__)


@dataclass(frozen=True)
class Entry:
    """A file and what a document says of it; `num_bytes` is None where the document does not say."""

    document: Path
    path: Path
    sha256: str
    num_bytes: int | None


@dataclass
class Finding:
    """What was looked at, and one sentence per fault."""

    documents: int = 0
    files: int = 0
    bytes: int = 0
    faults: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "paths",
        type=Path,
        nargs="+",
        metavar="PATH",
        help=f"a document, or a folder searched for {', '.join(DOCUMENTS)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was found to this file")


def run(args: argparse.Namespace) -> int:
    """Verifies; status 1 when anything is missing or altered."""
    from dithc.runs import atomic_write

    finding = verify(args.paths)
    for fault in finding.faults:
        print(fault)
    if finding.faults:
        log.warning("delete the files that have other bytes, then run the workflow again: it makes those results again")
    verdict = f"{len(finding.faults)} faults" if finding.faults else "all as they were written"
    print(f"{finding.files} files ({finding.bytes:,} bytes) of {finding.documents} documents: {verdict}")
    if args.json:
        atomic_write(args.json, json.dumps(asdict(finding), indent=1) + "\n")
    return 1 if finding.faults else 0


def verify(paths: list[Path]) -> Finding:
    """Looks at every document under `paths` and at every file they name, each file once.

    Raises:
        UserError: a path does not exist, or a folder holds no document.
    """
    documents = list(dict.fromkeys(document for path in paths for document in _documents(path)))
    finding, entries = Finding(documents=len(documents)), dict[tuple[Path, str], Entry]()
    for document in documents:
        try:
            for entry in _entries(document, finding):
                entries.setdefault((entry.path.resolve(), entry.sha256), entry)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            finding.faults.append(f"{document} cannot be read: {type(error).__name__}: {error}")
    with progress(total=len(entries), label="verify", unit="file") as bar:
        for entry in entries.values():
            finding.files += 1
            if fault := _fault(entry):
                finding.faults.append(f"{entry.path} {fault} (listed in {entry.document})")
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
            remedy="check the path",
        )
    found = [
        document
        for name in DOCUMENTS
        for document in sorted(path.rglob(name))
        if not any(
            part.startswith(".") for part in document.relative_to(path).parts
        )  # being written, or left by a crash
    ]
    if not found:
        raise problem(
            f"nothing to verify in {path}",
            got="no document that lists files",
            expected=", ".join(DOCUMENTS),
            remedy="point at a results or store folder",
        )
    return found


def _entries(document: Path, finding: Finding) -> Iterator[Entry]:
    """The files a document names; a document whose own digest is wrong is a fault of itself."""
    from dithc.runs import Store

    content = json.loads(document.read_text())
    if not isinstance(content, dict) or (document.name in (MANIFEST, CHECKPOINT) and "files" not in content):
        raise ValueError("it lists no files")
    if "stage" in content and "digest" in content:
        if (fault := _digest_fault(document, content["digest"])) is not None:
            finding.faults.append(f"{document} {fault}")
        listed = content["files"]
    elif document.name == CHECKPOINT:
        finding.faults += [
            f"{document}: {fault}" for fault in Store.commit_faults(content, _step_of(document, content))
        ]
        listed = content["files"]
    elif "file_sha256" in content:  # the sidecar of one array
        listed = [{"path": document.with_suffix(".npy").name, "sha256": content["file_sha256"]}]
    else:
        listed = list(_listed(content))
    for item in listed:
        yield Entry(document, document.parent / item["path"], item["sha256"], item.get("bytes"))


def _step_of(document: Path, content: dict[str, Any]) -> int:
    """The step that the folder of a checkpoint says; what it says itself where the folder has another name."""
    name = document.parent.name.removeprefix("step_")
    return int(name) if name.isdigit() else int(content["step"])


def _digest_fault(document: Path, written: str) -> str | None:
    from dithc.runs import Manifest

    digest = Manifest.read(document).digest
    return None if digest == written else f"is altered: its content has digest {digest}, {written} was written"


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


def _fault(entry: Entry) -> str | None:
    from dithc.runs import sha256_file

    if not entry.path.is_file():
        return "is missing"
    size = entry.path.stat().st_size
    if entry.num_bytes is not None and size != entry.num_bytes:
        return f"has {size} bytes, {entry.num_bytes} were written"
    return None if sha256_file(entry.path) == entry.sha256 else "has other bytes than were written (SHA-256 differs)"
