"""Format of a weight file by its first bytes, and the error for unreadable files."""

import io
import re
import zipfile
from pathlib import Path
from typing import NamedTuple

from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import UserError, user_error

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
