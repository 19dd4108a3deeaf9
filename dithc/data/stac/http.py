"""HTTP(S) requests with token hosts, permitted redirects, bounded answers, and messages without secrets."""

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

from dithc.core.logging import UserError, user_error

TOKEN, TOKEN_HOSTS = "DITHC_STAC_TOKEN", "DITHC_STAC_TOKEN_HOSTS"
PORTS = {"http": 80, "https": 443}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
TIMEOUT_SECONDS = 60.0
"""Longest silence of a server; the rate is not limited."""
MAX_REDIRECTS = 5
RETRY_STATUSES = {408, 425, 429, 500, 502, 503, 504}
"""Statuses after which a request is repeated."""
REDIRECTS = (301, 302, 303, 307, 308)
MAX_MESSAGE = 300
BLOCK_BYTES = 1 << 16
IDENTITY_ENCODINGS, ZLIB_ENCODINGS = ("", "identity"), ("gzip", "x-gzip", "deflate")
"""Supported values of Content-Encoding. Nested encodings are rejected."""
PRINTABLE = re.compile(r"[!-~]+")
QUERY = re.compile(r"\?[^\s\"'<>)]*")


@dataclass(frozen=True)
class Credentials:
    """Token, and the hosts that receive it: `HOST` at any port, or `HOST:PORT`."""

    token: str | None
    hosts: frozenset[str]

    @classmethod
    def read(cls, catalog: str | None) -> "Credentials":
        """Read the environment; the host of `catalog` receives the token too."""
        token = os.environ.get(TOKEN, "").strip() or None
        if token is not None and not PRINTABLE.fullmatch(token):
            raise user_error(
                f"the token in {TOKEN} is invalid",
                got="spaces, line ends or other characters that a header cannot contain",
                expected="one word",
                fix=f"set {TOKEN} to the token alone, without `Bearer`",
            )
        hosts = {host.strip().lower() for host in os.environ.get(TOKEN_HOSTS, "").split(",")}
        host = urlsplit(catalog).netloc.rpartition("@")[2].lower() if catalog else ""
        return cls(token, frozenset((hosts | {host}) - {""}))

    def headers(self, url: str) -> dict[str, str]:
        """Return the Authorization header for a permitted host over https or loopback."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        written = f"[{host}]" if ":" in host else host
        names = {host, written, f"{written}:{parts.port or PORTS.get(parts.scheme)}"}
        private = parts.scheme == "https" or host in LOOPBACK
        if self.token is None or not names & self.hosts or not private:
            return {}
        return {"Authorization": f"Bearer {self.token}"}

    def redact(self, error: object) -> str:
        """Return an external message as one line, without token and address queries."""
        text = QUERY.sub("", str(error))
        if self.token is not None:
            text = text.replace(self.token, "...")
        return " ".join(text.split())[:MAX_MESSAGE] or type(error).__name__


def is_remote(href: str) -> bool:
    """Return whether an address names a server, with any scheme except `file`."""
    return re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://", href) is not None and not href.lower().startswith("file://")


def strip_query(href: str) -> str:
    """Return an address without user, query and fragment."""
    try:
        parts = urlsplit(href)
    except ValueError:
        return "an invalid address"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def resolve_url(base: str, href: str) -> str:
    """Resolve `href` against `base`; an invalid `href` is returned unchanged."""
    try:
        return urljoin(base, href)
    except ValueError:
        return href


def check_address(href: str, *, origin: str) -> None:
    """Reject addresses other than HTTP(S), and with a user or password. `origin` names their origin in the error."""
    try:
        parts = urlsplit(href)
        fits = bool(parts.scheme in PORTS and parts.hostname and parts.port != 0 and PRINTABLE.fullmatch(href))
        secret = fits and parts.username is not None
    except ValueError:
        fits = secret = False
    if not fits or secret:
        raise user_error(
            f"{origin} leads to an unsupported address",
            got="a user or password in the address" if secret else ascii(strip_query(href))[:MAX_MESSAGE],
            expected="https://HOST/PATH, or http",
            fix=f"use another catalog, or correct the address; set a token in the variable {TOKEN}",
        )


def check_redirect(before: str, after: str) -> None:
    """Reject a redirect to an unsupported address, and a redirect from https to http."""
    origin = f"a redirect of {strip_query(before)}"
    check_address(after, origin=origin)
    if urlsplit(before).scheme == "https" and urlsplit(after).scheme == "http":
        raise _redirect_error(before, got=strip_query(after), expected="https, as before")


def open_url(
    url: str, *, headers: Mapping[str, str], credentials: Credentials, content: bytes | None = None
) -> HTTPResponse:
    """Request `url`, with POST if there is `content`, and follow permitted redirects.

    The token is sent again only if the new host is permitted too. Raises HTTPError for an error status, UserError for
    a rejected redirect or too many, and OSError, HTTPException or ValueError if the request failed.
    """
    check_address(url, origin=f"the catalog's {strip_query(url)}")
    for _ in range(MAX_REDIRECTS + 1):
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
        before, url = url, resolve_url(url, location)
        check_redirect(before, url)
    raise _redirect_error(before, got=f"more than {MAX_REDIRECTS} redirects", expected="an answer")


def read_block(response: HTTPResponse, most: int) -> bytes:
    """Read at most `most` bytes; `HTTPResponse.read` is unbounded for a chunk of negative size."""
    buffer = bytearray(most)
    return bytes(buffer[: response.readinto(buffer)])


def read_body(response: HTTPResponse | HTTPError, *, most: int) -> bytes:
    """Read and decompress an answer block by block.

    Raises ValueError if it is larger than `most` bytes, damaged, or has an unsupported encoding.
    """
    packed = (response.headers.get("Content-Encoding") or "").strip().lower()
    if packed not in IDENTITY_ENCODINGS + ZLIB_ENCODINGS:
        raise ValueError(f"unsupported Content-Encoding {packed[:40]}")
    source = cast(HTTPResponse, response.fp) if isinstance(response, HTTPError) else response
    body, unpack = bytearray(), zlib.decompressobj(zlib.MAX_WBITS | 32) if packed in ZLIB_ENCODINGS else None
    while block := read_block(source, min(BLOCK_BYTES, most + 1)):
        while block:
            try:
                body += block if unpack is None else unpack.decompress(block, most + 1 - len(body))
            except zlib.error as error:
                raise ValueError(f"damaged {packed} content: {error}") from None
            if len(body) > most:
                raise ValueError(f"more than {most / 2**20:g} MiB{' after decompression' if unpack else ''}")
            block = unpack.unconsumed_tail if unpack is not None else b""
    if unpack is not None and not unpack.eof:
        raise ValueError(f"damaged {packed} content: it ends early")
    return bytes(body)


def _opener() -> OpenerDirector:
    opener = OpenerDirector()
    for handler in (ProxyHandler, HTTPHandler, HTTPSHandler, HTTPDefaultErrorHandler, HTTPErrorProcessor):
        opener.add_handler(handler())
    return opener


def _redirect_error(before: str, *, got: str, expected: str) -> UserError:
    fix = "use another catalog, or report the redirect to its operator"
    return user_error(f"a redirect of {strip_query(before)} is not followed", got=got, expected=expected, fix=fix)
