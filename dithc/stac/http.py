"""Addresses asked for over HTTP(S): who gets the token, where redirects may lead, and texts without what must not be told."""

import os
import re
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
REDIRECTS = (301, 302, 303, 307, 308)
MOST_SAID = 300
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
                remedy=f"set {TOKEN} to the token alone, without `Bearer`",
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
            remedy=f"take another catalogue, or correct the address; a token goes into the variable {TOKEN}",
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


def answer(url: str, *, headers: Mapping[str, str], credentials: Credentials) -> HTTPResponse:
    """Asks for `url`; redirects are followed after a look at where they lead, and get the token only by their own host.

    Raises:
        HTTPError: the server answers with another status than success.
        UserError: a redirect leads to no web server, from https to http, or on and on.
        OSError, HTTPException, ValueError: there is no answer.
    """
    check_address(url, said_by=f"the catalogue's {without_query(url)}")
    for _ in range(MOST_REDIRECTS + 1):
        sent = {"User-Agent": "dithc", "Accept-Encoding": "identity", **headers, **credentials.headers(url)}
        try:
            return cast(HTTPResponse, _opener().open(Request(url, headers=sent), timeout=TIMEOUT_SECONDS))
        except HTTPError as error:
            location = error.headers.get("Location")
            if error.code not in REDIRECTS or location is None:
                raise
            error.close()
        before, url = url, joined(url, location)
        check_redirect(before, url)
    raise _astray(
        f"a redirect of {without_query(before)}", got=f"more than {MOST_REDIRECTS} redirects", expected="an answer"
    )


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
        remedy="take another catalogue, or tell the one that runs it",
    )
