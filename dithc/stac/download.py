"""One file brought from a server, in as many parts as it takes: nothing has its name before all of it is there and right.

Beside it grow `.NAME.part` and `.NAME.etag`: what came so far, and the server's name for what it is of (RFC 9110, sections 8.8.3,
13.1.5 and 14): the rest is asked for under the condition that it is still the same.
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

from dithc.log import UserError, logger, problem
from dithc.runs import sha256_file
from dithc.stac.http import AGAIN, TOKEN, TOKEN_HOSTS, Credentials, answer, block_of
from dithc.stac.multihash import difference

BLOCK_BYTES = 1 << 20
MOST_ATTEMPTS = 6
"""In a row that bring less than a block each."""
LONGEST_WAIT_SECONDS = 120.0
SPARE_BYTES = 1 << 30
"""Of the disk, left alone."""
LENGTH = re.compile(r"[0-9]{1,18}")
CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51")
"""Of TIFF and JPEG 2000; a page that asks for a login has another."""
log = logger("dithc.fetch")


class _Again(Exception):
    """This attempt brought no whole file; another may."""

    def __init__(self, said: str, *, wait: float | None = None) -> None:
        super().__init__(said)
        self.wait = wait


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file and what is known of it before.

    Attributes:
        address: gives the address to ask, anew for each attempt (signed ones expire).
        shown: the address for messages.
        target: where it goes.
        size: bytes, if the catalogue says so.
        checksum: multihash, if the catalogue says so.
    """

    address: Callable[[], str]
    shown: str
    target: Path
    size: int | None
    checksum: str | None

    @property
    def part(self) -> Path:
        return self.target.with_name(f".{self.target.name}.part")

    @property
    def etag(self) -> Path:
        return self.target.with_name(f".{self.target.name}.etag")


def download(wanted: Wanted, *, credentials: Credentials, told: Callable[[int], None]) -> tuple[int, str]:
    """Brings a file; `told` is called with the bytes of each block.

    Returns:
        Its size and SHA-256.

    Raises:
        UserError: the server refuses, goes on failing, or sends something else than what is wanted.
        OSError: the file cannot be written.
    """
    attempts = 0
    while True:
        before = _size(wanted.part)
        try:
            total = _transfer(wanted, credentials, told)
            break
        except _Again as error:
            attempts = 1 if _size(wanted.part) >= before + BLOCK_BYTES else attempts + 1
            if attempts >= MOST_ATTEMPTS:
                raise problem(
                    f"{wanted.shown} could not be fetched",
                    got=f"{error}, {attempts} times in a row",
                    expected="the file",
                    fix="start again later: what has come so far is kept",
                ) from None
            wait = min(error.wait if error.wait is not None else 2.0 ** (attempts - 1), LONGEST_WAIT_SECONDS)
            log.info(f"{wanted.target.name}: {error}; again in {wait:g} s")
            time.sleep(wait)
    _judge(wanted, total)
    digest = sha256_file(wanted.part)
    with wanted.part.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(wanted.part, wanted.target)
    wanted.etag.unlink(missing_ok=True)
    return total, digest


def _transfer(wanted: Wanted, credentials: Credentials, told: Callable[[int], None]) -> int:
    """One request and its answer, written behind what is there; returns the bytes of the whole file."""
    have, etag = _size(wanted.part), _text(wanted.etag)
    have = have if etag else 0
    headers = {"Range": f"bytes={have}-", "If-Range": etag} if have else {}
    with _answered(wanted, headers, credentials) as response:
        start, total = _announced(wanted, response, have=have, etag=etag)
        _check_room(wanted, total - start)
        if start == 0:
            wanted.part.unlink(missing_ok=True)  # before its name changes: of two files no part follows another
        now = response.headers.get("ETag", "")
        wanted.etag.write_text(now if now.startswith('"') else "")  # a weak one (W/) names no bytes
        with wanted.part.open("r+b" if start else "wb") as file:
            file.seek(start)
            file.truncate()
            while start < total and (block := _block(response, total - start)):
                file.write(block)
                start += len(block)
                told(len(block))
    if start != total:
        raise _Again(f"the connection ended at byte {start} of {total}")
    return total


def _answered(wanted: Wanted, headers: dict[str, str], credentials: Credentials) -> HTTPResponse:
    """An answer of success; all others as what they mean."""
    try:
        return answer(wanted.address(), headers=headers, credentials=credentials)
    except HTTPError as error:
        with error:
            raise _refused(wanted, error) from None
    except (OSError, HTTPException) as error:  # urllib makes URLError of those of sending alone
        raise _Again(credentials.scrubbed(error)) from None


def _block(response: HTTPResponse, left: int) -> bytes:
    try:
        return block_of(response, min(BLOCK_BYTES, left))
    except (OSError, HTTPException) as error:
        raise _Again(f"the connection failed ({type(error).__name__})") from None


def _announced(wanted: Wanted, response: HTTPResponse, *, have: int, etag: str) -> tuple[int, int]:
    """At which byte the answer begins, and how many the whole file has."""
    packed, length = response.headers.get("Content-Encoding"), response.headers.get("Content-Length", "")
    if packed not in (None, "", "identity"):
        raise _other(wanted, got=f"content packed as {packed[:40]}", expected="the file itself, as it was asked for")
    start, total = 0, int(length) if LENGTH.fullmatch(length) else wanted.size
    if response.status == 206:
        place = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        start, last, total = map(int, place.groups()) if place else (-1, -1, -1)
        same = response.headers.get("ETag") in (None, etag)
        if not have or start != have or last != total - 1 or not same or length not in ("", str(total - start)):
            _forget(wanted)
            raise _Again("the server sent another part than was asked for")
    elif response.status != 200:
        raise _other(wanted, got=f"status {response.status}", expected="the file (200) or its rest (206)")
    if total is None:
        raise _other(wanted, got="no length (Content-Length)", expected="a length, without which a part looks whole")
    if wanted.size is not None and total != wanted.size:
        _forget(wanted)
        raise _other(wanted, got=f"{total} bytes", expected=f"{wanted.size}, as the catalogue says (file:size)")
    return start, total


def _refused(wanted: Wanted, error: HTTPError) -> Exception:
    """What a status that is none of success means: to try again, or an error for the user."""
    if error.code == 416:
        _forget(wanted)
        return _Again("the server has no such part")
    if error.code in AGAIN:
        return _Again(f"status {error.code}", wait=_wait(error.headers.get("Retry-After")))
    secret = f"set {TOKEN} (and {TOKEN_HOSTS}, where files have another host than the catalogue), or `search.sign`"
    return problem(
        f"{wanted.shown} is not given",
        got=f"status {error.code}",
        expected="the file",
        fix=secret if error.code in (401, 403, 409) else "the catalogue names a file that is gone: leave the scene out",
    )


def _wait(text: str | None) -> float | None:
    """Seconds that a server asks to wait: a number of them, or a date."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    return None


def _judge(wanted: Wanted, total: int) -> None:
    """Whether what came is what was wanted; it is thrown away where it is not."""
    with wanted.part.open("rb") as file:
        first = file.read(12)
    differs = difference(wanted.part, wanted.checksum) if wanted.checksum is not None else None
    got, expected = differs or (f"a file that begins with {first!r}", "GeoTIFF or JPEG 2000")
    if differs or not first.startswith(SIGNATURES) or _size(wanted.part) != total:
        _forget(wanted)
        raise _other(wanted, got=got, expected=expected)


def _check_room(wanted: Wanted, num_bytes: int) -> None:
    free = shutil.disk_usage(wanted.target.parent).free - SPARE_BYTES
    if num_bytes > free:
        raise problem(
            f"there is no room for {wanted.target.name}",
            got=f"{num_bytes / 2**30:.1f} GiB to come",
            expected=f"that much free in {wanted.target.parent}, and {SPARE_BYTES / 2**30:g} GiB that is left alone",
            fix="free space, or let `source.path` be on a larger disk; what has come so far is kept",
        )


def _other(wanted: Wanted, *, got: str, expected: str) -> UserError:
    return problem(
        f"{wanted.shown} is not what the catalogue says",
        got=got,
        expected=expected,
        fix="start again; if it stays so, tell the catalogue, and leave the scene out",
    )


def _forget(wanted: Wanted) -> None:
    wanted.part.unlink(missing_ok=True)
    wanted.etag.unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
