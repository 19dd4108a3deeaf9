"""Download of one file in one or more requests. The file gets its final name after all checks.

Until then `.NAME.part` holds the received bytes and `.NAME.etag` the server's identifier of the file version. The next
request asks for the remaining bytes on the condition that the version is unchanged (RFC 9110, sections 8.8.3, 13.1.5
and 14).
"""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError

from dithc.core.artifacts import sha256_file
from dithc.core.logging import UserError, get_logger, user_error
from dithc.core.units import format_bytes
from dithc.data.stac.http import RETRY_STATUSES, TOKEN, TOKEN_HOSTS, Credentials, open_url, read_block
from dithc.data.stac.multihash import difference

BLOCK_BYTES = 1 << 20
MAX_ATTEMPTS = 6
"""Limit of successive attempts that receive less than a block each."""
MAX_WAIT_SECONDS = 120.0
SPARE_BYTES = 1 << 30
"""Disk space that downloads leave free."""
LENGTH = re.compile(r"[0-9]{1,18}")
CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
"""First bytes of TIFF and JPEG 2000 files. A login page fails this check."""
log = get_logger("dithc.fetch")


class _RetryError(Exception):
    """Failure of one attempt; `wait` is the server's Retry-After in seconds."""

    def __init__(self, message: str, *, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True, kw_only=True)
class DownloadRequest:
    """File to download, with its bytes and multihash if the catalog states them.

    `address` returns the address for each attempt, because signed addresses expire. Messages contain `display_url`.
    """

    address: Callable[[], str]
    display_url: str
    target: Path
    size: int | None
    checksum: str | None

    @property
    def part(self) -> Path:
        return self.target.with_name(f".{self.target.name}.part")

    @property
    def etag(self) -> Path:
        return self.target.with_name(f".{self.target.name}.etag")

    @property
    def received(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def discard(self) -> None:
        self.part.unlink(missing_ok=True)
        self.etag.unlink(missing_ok=True)

    def mismatch(self, *, got: str, expected: str) -> UserError:
        fix = "start again; if the error persists, report it to the catalog and leave the scene out"
        return user_error(f"{self.display_url} differs from its catalog entry", got=got, expected=expected, fix=fix)


def download(request: DownloadRequest, *, credentials: Credentials, progress: Callable[[int], None]) -> tuple[int, str]:
    """Download a file and return its size and SHA-256. `progress` receives the length of each block.

    Raises UserError if the server rejects the request, fails repeatedly, or sends another file than the catalog describes.
    """
    attempts = 0
    while True:
        before = request.received
        try:
            total = _transfer(request, credentials, progress)
            break
        except _RetryError as error:
            attempts = 1 if request.received >= before + BLOCK_BYTES else attempts + 1
            if attempts >= MAX_ATTEMPTS:
                raise user_error(
                    f"{request.display_url} could not be fetched",
                    got=f"{error}, {attempts} times in a row",
                    expected="the file",
                    fix="run `dithc fetch` again later; the received part is kept",
                ) from None
            wait = min(error.wait if error.wait is not None else 2.0 ** (attempts - 1), MAX_WAIT_SECONDS)
            log.info(f"{request.target.name}: {error}; retrying in {wait:g} s")
            time.sleep(wait)
    _check(request, total)
    digest = sha256_file(request.part)
    with request.part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(request.part, request.target)
    request.etag.unlink(missing_ok=True)
    return total, digest


def _transfer(request: DownloadRequest, credentials: Credentials, progress: Callable[[int], None]) -> int:
    """Append one answer to the partial file; return the size of the complete file."""
    etag = request.etag.read_text() if request.etag.exists() else ""
    received = request.received if etag else 0
    headers = {"Range": f"bytes={received}-", "If-Range": etag} if received else {}
    with _open_response(request, headers, credentials) as response:
        start, total = _check_headers(request, response, received=received, etag=etag)
        free = shutil.disk_usage(request.target.parent).free - SPARE_BYTES
        if total - start > free:
            raise user_error(
                f"not enough disk space for {request.target.name}",
                got=f"{format_bytes(max(free, 0))} in {request.target.parent}, besides a reserve of 1 GiB",
                expected=format_bytes(total - start),
                fix="free space, or set `source.path` to a larger disk; the received part is kept",
            )
        if start == 0:
            # Before its ETag changes, so that parts of two versions are never joined.
            request.part.unlink(missing_ok=True)
        tag = response.headers.get("ETag", "")
        request.etag.write_text(tag if tag.startswith('"') else "")  # a weak ETag (W/) does not identify bytes
        with request.part.open("r+b" if start else "wb") as file:
            file.seek(start)
            file.truncate()
            while start < total and (block := _read_block(response, total - start)):
                file.write(block)
                start += len(block)
                progress(len(block))
    if start != total:
        raise _RetryError(f"the connection ended at byte {start} of {total}")
    return total


def _open_response(request: DownloadRequest, headers: dict[str, str], credentials: Credentials) -> HTTPResponse:
    try:
        return open_url(request.address(), headers=headers, credentials=credentials)
    except HTTPError as error:
        with error:
            raise _status_error(request, error) from None
    except (OSError, HTTPException) as error:  # urllib raises URLError only for errors while sending
        raise _RetryError(credentials.redact(error)) from None


def _read_block(response: HTTPResponse, remaining: int) -> bytes:
    try:
        return read_block(response, min(BLOCK_BYTES, remaining))
    except (OSError, HTTPException) as error:
        raise _RetryError(f"the connection failed ({type(error).__name__})") from None


def _check_headers(request: DownloadRequest, response: HTTPResponse, *, received: int, etag: str) -> tuple[int, int]:
    """Check the headers; return the offset of the answer and the size of the file."""
    packed, length = response.headers.get("Content-Encoding"), response.headers.get("Content-Length", "")
    if packed not in (None, "", "identity"):
        raise request.mismatch(got=f"Content-Encoding {packed[:40]}", expected="the file without compression")
    start, total = 0, int(length) if LENGTH.fullmatch(length) else request.size
    if response.status == 206:
        place = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        start, last, total = map(int, place.groups()) if place else (-1, -1, -1)
        same = response.headers.get("ETag") in (None, etag)
        if not received or start != received or last != total - 1 or not same or length not in ("", str(total - start)):
            request.discard()
            raise _RetryError("the server sent another part than requested")
    elif response.status != 200:
        raise request.mismatch(got=f"status {response.status}", expected="the file (200) or its remaining bytes (206)")
    if total is None:
        raise request.mismatch(got="no length (Content-Length)", expected="a length, to detect a truncated file")
    if request.size is not None and total != request.size:
        request.discard()
        raise request.mismatch(got=f"{total} bytes", expected=f"{request.size} (file:size of the catalog)")
    return start, total


def _status_error(request: DownloadRequest, error: HTTPError) -> Exception:
    """Return the exception for an error status: `_RetryError` or an error for the user."""
    if error.code == 416:
        request.discard()
        return _RetryError("the server does not have the requested part")
    if error.code in RETRY_STATUSES:
        return _RetryError(f"status {error.code}", wait=_retry_after(error.headers.get("Retry-After")))
    fix = f"set {TOKEN} (and {TOKEN_HOSTS}, if the files have another host than the catalog), or `search.signing_url`"
    return user_error(
        f"the server does not deliver {request.display_url}",
        got=f"status {error.code}",
        expected="the file",
        fix=fix if error.code in (401, 403, 409) else "leave the scene out; the file no longer exists on the server",
    )


def _retry_after(text: str | None) -> float | None:
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    return None


def _check(request: DownloadRequest, total: int) -> None:
    """Compare the received file with the catalog entry, and discard it if it differs."""
    with request.part.open("rb") as file:
        first = file.read(12)
    differs = difference(request.part, request.checksum) if request.checksum is not None else None
    got, expected = differs or (f"a file that begins with {first!r}", "GeoTIFF or JPEG 2000")
    if differs or not first.startswith(SIGNATURES) or request.received != total:
        request.discard()
        raise request.mismatch(got=got, expected=expected)
