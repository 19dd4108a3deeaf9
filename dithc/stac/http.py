"""HTTP(S) requests: hosts of the token, permitted redirects, answers of bounded size, and texts without secrets."""

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import cast
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit, urlunsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from dithc.log import UserError, problem

TOKEN, TOKEN_HOSTS = "DITHC_STAC_TOKEN", "DITHC_STAC_TOKEN_HOSTS"
PORTS = {"http": 80, "https": 443}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
TIMEOUT_SECONDS = 60.0
"""Of silence; a server that is slow may take as long as it likes."""
MOST_REDIRECTS = 5
AGAIN = {408, 425, 429, 500, 502, 503, 504}
REDIRECTS = (301, 302, 303, 307, 308)
MOST_SAID = 300
BLOCK_BYTES = 1 << 16
PACKED = {"": False, "identity": False, "gzip": True, "x-gzip": True, "deflate": True}
"""Values of Content-Encoding that are read, and whether they are compressed; nested ones are rejected."""
PRINTABLE = re.compile(r"[!-~]+")
QUERY = re.compile(r"\?[^\s\"'<>)]*")


@dataclass(frozen=True)
class Credentials:
    """The token of the environment, and the hosts that get it: `HOST` at any port, `HOST:PORT` at that one."""

    token: str | None
    hosts: frozenset[str]

    @classmethod
    def read(cls, catalog: str | None) -> "Credentials":
        """Those of the environment, for a catalogue.

        Raises:
            UserError: the token cannot be part of a header.
        """
        token = os.environ.get(TOKEN, "").strip() or None
        if token is not None and not PRINTABLE.fullmatch(token):
            raise problem(
                f"the token in {TOKEN} is none",
                got="spaces, line ends or other characters that a header cannot have",
                expected="one word",
                fix=f"set {TOKEN} to the token alone, without `Bearer`",
            )
        named = {host.strip().lower() for host in os.environ.get(TOKEN_HOSTS, "").split(",")}
        host = urlsplit(catalog).netloc.rpartition("@")[2].lower() if catalog else ""
        return cls(token, frozenset((named | {host}) - {""}))

    def headers(self, url: str) -> dict[str, str]:
        """What goes with a request for `url`: the token, if its host gets it, and not where others could read it."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        written = f"[{host}]" if ":" in host else host
        names = {host, written, f"{written}:{parts.port or PORTS.get(parts.scheme)}"}
        private = parts.scheme == "https" or host in LOOPBACK
        if self.token is None or not names & self.hosts or not private:
            return {}
        return {"Authorization": f"Bearer {self.token}"}

    def scrubbed(self, error: object) -> str:
        """A text of another program in one line, without the token and without queries of addresses."""
        text = QUERY.sub("", str(error))
        if self.token is not None:
            text = text.replace(self.token, "...")
        return " ".join(text.split())[:MOST_SAID] or type(error).__name__


def is_remote(href: str) -> bool:
    """Whether an address is one of a server, of whatever kind."""
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", href) is not None and not href.lower().startswith("file://")


def without_query(href: str) -> str:
    """An address without user, query and fragment: what may be kept and told."""
    try:
        parts = urlsplit(href)
    except ValueError:
        return "an address that is none"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def joined(base: str, href: str) -> str:
    """The address that `href` is at `base`."""
    try:
        return urljoin(base, href)
    except ValueError:
        return href  # which `check_address` refuses


def check_address(href: str, *, said_by: str) -> None:
    """Refuses what is no address of a web server, and one with a password in it.

    Raises:
        UserError: it is.
    """
    try:
        parts = urlsplit(href)
        fits = (
            parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0 and PRINTABLE.fullmatch(href) is not None
        )
        secret = fits and parts.username is not None
    except ValueError:
        fits = secret = False
    if not fits or secret:
        raise problem(
            f"{said_by} leads to an address that is not asked for",
            got="a user or password in it" if secret else ascii(without_query(href))[:MOST_SAID],
            expected="https://HOST/PATH, or http",
            fix=f"take another catalogue, or correct the address; a token goes into the variable {TOKEN}",
        )


def check_redirect(before: str, after: str) -> None:
    """Refuses a redirect to what is no web server, and one from https to http.

    Raises:
        UserError: it is one.
    """
    said_by = f"a redirect of {without_query(before)}"
    check_address(after, said_by=said_by)
    if urlsplit(before).scheme == "https" and urlsplit(after).scheme == "http":
        raise _astray(said_by, got=without_query(after), expected="https, as before")


def answer(
    url: str, *, headers: Mapping[str, str], credentials: Credentials, content: bytes | None = None
) -> HTTPResponse:
    """Request `url`, by POST if there is `content`. Redirects are checked, and get the token only at their own host.

    Raises:
        HTTPError: the server answers with another status than success.
        UserError: a redirect leads to no web server, from https to http, or on and on.
        OSError, HTTPException, ValueError: there is no answer.
    """
    check_address(url, said_by=f"the catalogue's {without_query(url)}")
    for _ in range(MOST_REDIRECTS + 1):
        sent = {"User-Agent": "dithc", "Accept-Encoding": "identity", **headers, **credentials.headers(url)}
        sent |= {"Content-Type": "application/json"} if content is not None else {}
        try:
            request = Request(url, data=content, headers=sent)
            return cast(HTTPResponse, _opener().open(request, timeout=TIMEOUT_SECONDS))
        except HTTPError as error:
            location = error.headers.get("Location")
            if error.code not in REDIRECTS or location is None:
                raise
            error.close()
            content = content if error.code in (307, 308) else None
        before, url = url, joined(url, location)
        check_redirect(before, url)
    raise _astray(
        f"a redirect of {without_query(before)}", got=f"more than {MOST_REDIRECTS} redirects", expected="an answer"
    )


def block_of(response: HTTPResponse, most: int) -> bytes:
    """Read at most `most` bytes. `HTTPResponse.read` is unbounded if a server declares a chunk of negative size."""
    buffer = bytearray(most)
    return bytes(buffer[: response.readinto(buffer)])


def body(response: HTTPResponse | HTTPError, *, most: int) -> bytes:
    """Read an answer and decompress it block by block, at most `most` bytes.

    Raises:
        ValueError: the answer is larger, compressed in an unsupported way, or damaged.
        OSError, HTTPException: the connection failed.
    """
    packed = (response.headers.get("Content-Encoding") or "").strip().lower()
    if packed not in PACKED:
        raise ValueError(f"content packed as {packed[:40]}")
    source = cast(HTTPResponse, response.fp) if isinstance(response, HTTPError) else response
    found, unpack = bytearray(), zlib.decompressobj(zlib.MAX_WBITS | 32) if PACKED[packed] else None
    while block := block_of(source, min(BLOCK_BYTES, most + 1)):
        while block:
            try:
                found += block if unpack is None else unpack.decompress(block, most + 1 - len(found))
            except zlib.error as error:
                raise ValueError(f"damaged content packed as {packed}: {error}") from None
            if len(found) > most:
                raise ValueError(f"more than {most / 2**20:g} MiB{' after decompression' if unpack else ''}")
            block = unpack.unconsumed_tail if unpack is not None else b""
    if unpack is not None and not unpack.eof:
        raise ValueError(f"damaged content packed as {packed}: it ends early")
    return bytes(found)


def _opener() -> OpenerDirector:
    """Of HTTP(S) alone, by the proxies of the environment, without urllib's own redirects."""
    opener = OpenerDirector()
    for handler in (ProxyHandler, HTTPHandler, HTTPSHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor):
        opener.add_handler(handler())
    return opener


def _astray(what: str, *, got: str, expected: str) -> UserError:
    return problem(
        f"{what} is not followed",
        got=got,
        expected=expected,
        fix="take another catalogue, or tell the one that runs it",
    )
