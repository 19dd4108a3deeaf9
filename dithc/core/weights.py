"""Weight files of other programs: their paths, formats and tensor names.

Purpose: the workflow plan, training runs, codecs and extractors accept the same files and report the same errors.
Contents: `files_of` returns the files of a path, including sharded folders; `content_of` the format of a file;
`unwrapped` a state dictionary without the prefixes of torch.compile, DDP, FSDP and checkpointing; `unreadable` the
error of all readers.
Invariants: no import of torch, because the workflow plan imports this module. Users never get messages of torch or
pickle.
Extending: a new format is a line of `SIGNATURES`, a new wrapper an entry of `WRAPPERS`.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import UserError, get_logger, user_error

DIFFUSERS_FILE = "diffusion_pytorch_model.safetensors"
NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})$")
WRAPPERS = frozenset(
    {
        *("module", "_orig_mod", "_fsdp_wrapped_module", "_fpw_module"),
        *("_checkpoint_wrapped_module", "_forward_module", "_original_module"),
    }
)
"""Attributes that hold a module in DistributedDataParallel, torch.compile, FSDP, activation checkpointing and
Fabric."""
AVERAGED = "n_averaged"  # counter of torch.optim.swa_utils.AveragedModel
T = TypeVar("T")
log = get_logger(__name__)


def files_of(path: Path) -> list[Path]:
    """Return the weight files of a path.

    Args:
        path: A file; an index of shards (`*.index.json`); a name with numbered shards (`x-00001-of-00002.safetensors`),
            or one of these shards; or a folder in the layout of diffusers, with one file or with shards.

    Raises:
        OSError: The file, the folder or a shard does not exist.
        ValueError: An index is invalid.
    """
    if path.is_dir():
        indexes = sorted(
            path.glob("*.safetensors.index*.json"), key=lambda index: (not index.name.startswith(DIFFUSERS_FILE), index)
        )
        return files_of(path / DIFFUSERS_FILE if (path / DIFFUSERS_FILE).exists() or not indexes else indexes[0])
    if path.suffix == ".json" and ".index" in path.suffixes and path.exists():
        return _read_index(path)
    if path.exists() and not NUMBERED.search(path.stem):
        return [require_regular_file(path)]
    stem = NUMBERED.sub("", path.stem)
    counts = {
        int(match[2])
        for sibling in path.parent.glob(f"*{path.suffix}")
        if (match := NUMBERED.search(sibling.stem)) and sibling.stem[: match.start()] == stem
    }
    if len(counts) != 1:
        raise FileNotFoundError(f"{path}: {f'shards of {sorted(counts)} files' if counts else 'no such file'}")
    count = counts.pop()
    return _check([path.with_name(f"{stem}-{number + 1:05d}-of-{count:05d}{path.suffix}") for number in range(count)])


def _read_index(path: Path) -> list[Path]:
    content = parse_json(require_regular_file(path).read_text())
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{path.name}: no `weight_map` of shards")
    shards = sorted(set(names.values()))
    if invalid := [name for name in shards if Path(name).name != name]:
        raise ValueError(f"{path.name}: shard {invalid[0]!r} is not a file name")
    return _check([path.with_name(name) for name in shards])


def _check(files: list[Path]) -> list[Path]:
    if missing := [file.name for file in files if not file.is_file()]:
        raise FileNotFoundError(f"{', '.join(missing[:3])} missing, of {len(files)} shards")
    return files


def unwrapped(state: Mapping[str, T], *, source: object) -> Mapping[str, T]:
    """Remove the attributes of wrappers from all names of a state dictionary, at any depth; logs a removal in one line.

    `source` names the file or object in messages. Raises UserError if two names differ by wrappers only.
    """
    parts = {key: str(key).split(".") for key in state}
    names = {
        key: ".".join([*(part for part in segments[:-1] if part not in WRAPPERS), segments[-1]])
        for key, segments in parts.items()
    }
    removed = sorted({part for segments in parts.values() for part in segments[:-1] if part in WRAPPERS})
    if not removed:
        return state
    if "module" in removed and len(parts.get(AVERAGED, ())) == 1:
        del names[AVERAGED]
    if len(set(names.values())) < len(names):
        duplicate = next(name for name in names.values() if list(names.values()).count(name) > 1)
        got, expected = f"{duplicate} twice", "each name once, with or without prefixes of wrappers"
        raise user_error(f"names in {source}", got=got, expected=expected, fix="save the weights of one model alone")
    prefixes = ", ".join(f"{part}." for part in removed)
    log.info("%s: removed the wrapper prefixes %s from names of weights", source, prefixes)
    return {name: state[key] for key, name in names.items()}


def digest_of_files(paths: Sequence[Path], *, settings: Any = None) -> str:
    """Return the SHA-256 over settings, as JSON unless None, and the bytes of files, in hex digits."""
    digest = hashlib.sha256(b"" if settings is None else json.dumps(settings).encode())
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


HEAD_BYTES = 4096
HEAD_LENGTH_BYTES, LONGEST_HEAD = 8, 100_000_000  # of the safetensors format
TAR_MAGIC = slice(257, 262)
LONGEST_CAUSE = 300  # characters
DOWNLOAD, UNPACK = "download or copy the file again", "unpack it and give the file of weights in it"
EXPORT = "save the tensors as safetensors, or by torch.save(model.state_dict(), path)"
SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer instead of the file", "run `git lfs pull` in its repository"),
    (b"/annex/objects/", "a git-annex pointer instead of the file", "run `git annex get` in its repository"),
    (b"\x1f\x8b", "a gzip archive", UNPACK),
    (b"BZh", "a bzip2 archive", UNPACK),
    (b"\xfd7zXZ\0", "an xz archive", UNPACK),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (b"Rar!", "a rar archive", UNPACK),
    (b"\x89HDF", "an HDF5 file", EXPORT),
    (b"\x93NUMPY", "a NumPy array", EXPORT),
    (b"GGUF", "a GGUF file", EXPORT),
    (b"%PDF", "a PDF document", DOWNLOAD),
    (b"\x89PNG", "a PNG image", DOWNLOAD),
    (b"\xff\xd8\xff", "a JPEG image", DOWNLOAD),
)
MARKUP = re.compile(rb"^(?:\xef\xbb\xbf)?\s*<(!doctype\s+html|html|head|body|\?xml|!--|error)", re.IGNORECASE)
ADVICE = re.compile(r"weights[_ ]only|pickle|trust", re.IGNORECASE)


class Content(NamedTuple):
    """The content of a file."""

    words: str  # with an article
    format: str = ""  # safetensors, torch (torch.save), torchscript or export
    fix: str = ""  # set if the file certainly contains no weights


def content_of(path: Path) -> Content:
    """Identify the content of a file; OSError if it is missing, not a plain file or unreadable."""
    size = require_regular_file(path).stat().st_size
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        if not head:
            return Content("an empty file", fix=DOWNLOAD)
        for signature, description, fix in SIGNATURES:
            if head.startswith(signature):
                return Content(description, fix=fix)
        if head.startswith(b"PK"):
            return _identify_zip(path)
        if head[TAR_MAGIC] == b"ustar":
            return Content("a tar archive", fix=UNPACK)
        if head[HEAD_LENGTH_BYTES : HEAD_LENGTH_BYTES + 1] == b"{" or (size < HEAD_LENGTH_BYTES and b"\0" in head):
            return _identify_safetensors(file, size) or _identify_text(head)
    if re.match(rb"\x80[\x02-\x05]", head):
        return Content("a pickle", "torch")
    if not any(head):
        return Content("a file that begins with zeros, as an unfinished download", fix=DOWNLOAD)
    return _identify_text(head)


def _identify_text(head: bytes) -> Content:
    if markup := MARKUP.match(head):
        is_xml = markup[1].lower() in (b"?xml", b"error") and b"<html" not in head.lower()
        kind = "an XML document" if is_xml else "an HTML page"
        return Content(f"{kind} instead of the file", fix=f"{DOWNLOAD}; the server answered with a page")
    try:
        text = head.decode().strip()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # not a character at the end of the block
            return Content("unknown binary data")
        text = head[: error.start].decode().strip()
    if not text.isprintable() and any(ord(letter) < ord(" ") and letter not in "\t\r\n\f" for letter in text):
        return Content("unknown binary data")
    kind = "JSON" if text[:1] in ("{", "[") else "text"
    return Content(f"{kind} that begins with {text[:40]!r}", fix=DOWNLOAD)


def _identify_zip(path: Path) -> Content:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return Content("a zip archive (also the format of torch.save) that is cut short or damaged", fix=DOWNLOAD)
    inner = {name.partition("/")[2] or name for name in names}
    if any("/code/" in name or name.endswith("/constants.pkl") for name in names):
        return Content("a TorchScript program", "torchscript")
    if "data.pkl" in inner:
        return Content("a file of torch.save", "torch")
    if inner & {"archive_format", "serialized_exported_program.json"}:
        return Content("a program of torch.export", "export")
    return Content(f"a zip archive with {names[0]!r}" if names else "an empty zip archive", fix=UNPACK)


def _identify_safetensors(file: io.BufferedReader, size: int) -> Content | None:
    file.seek(0)
    length = int.from_bytes(file.read(HEAD_LENGTH_BYTES), "little")
    if length > LONGEST_HEAD:
        return None
    start = HEAD_LENGTH_BYTES + length
    expected: int | str = f"at least {start}"
    if start <= size:
        try:
            tensors = parse_json(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"]
            expected = start + max(ends, default=0)
            if size >= expected:
                return Content("a safetensors file", "safetensors")
        except (ValueError, LookupError, TypeError, AttributeError):
            return Content("a safetensors file with a damaged header", "safetensors", DOWNLOAD)
    return Content(f"a safetensors file that is cut short: {size} of {expected} bytes", "safetensors", DOWNLOAD)


def unreadable(
    title: str, path: Path, *, expected: str, fix: str = "copy the file again, or choose another", error: object = ""
) -> UserError:
    """Build the error for a file that a reader rejects, from the file's content and the reader's message (`error`).

    The last line of the message is the cause. Messages that mention pickle or trust are left out, because they advise
    unsafe loading. `fix` applies if the content does not imply one.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = lines[-1] if lines else type(error).__name__ if isinstance(error, Exception) else ""
    cause = type(error).__name__ if ADVICE.search(str(error)) else cause[:LONGEST_CAUSE]
    if object_name := re.search(r"GLOBAL (\S+)", str(error)):
        cause, fix = f"an object of {object_name[1]} in it", EXPORT
    try:
        content = content_of(path)
        got = f"{path.name}: {content.words}" + ("" if content.fix or not cause else f"; {cause}")
    except OSError as missing:
        content, got = Content(""), cause or str(missing)
    return user_error(title, got=got, expected=expected, fix=content.fix or fix)
