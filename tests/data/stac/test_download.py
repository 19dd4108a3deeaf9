"""Downloads from a failing server: the file is complete and correct, or does not exist."""

import errno
import hashlib
import ssl
from collections.abc import Callable
from email.utils import formatdate
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from dithc.core.logging import UserError
from dithc.data.stac.download import MAX_ATTEMPTS, DownloadRequest, download
from dithc.data.stac.http import Credentials, check_redirect
from tests.data.stac.server import Reply, StacServer

PATH = "/files/one.tif"


@pytest.fixture
def content(server: StacServer) -> bytes:
    """Three blocks and a remainder, served as one.tif."""
    found = b"II*\0" + bytes(range(256)) * 13_000
    (server.folder / "one.tif").write_bytes(found)
    return found


@pytest.fixture
def get(server: StacServer, content: bytes, tmp_path: Path, pauses: list[float]) -> Callable[..., tuple[int, str]]:
    """Function that downloads one.tif."""

    def download_file(
        *,
        size: int | None = None,
        checksum: str | None = None,
        token: str | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> tuple[int, str]:
        url = f"{server.url}{PATH}"
        request = DownloadRequest(
            address=lambda: url, display_url=url, target=tmp_path / "one.tif", size=size, checksum=checksum
        )
        return download(request, credentials=Credentials(token, frozenset({"127.0.0.1"})), progress=progress)

    return download_file


Get = Callable[..., tuple[int, str]]


def interrupt(_: int) -> None:
    raise KeyboardInterrupt


def assert_complete(folder: Path, content: bytes) -> None:
    assert (folder / "one.tif").read_bytes() == content
    assert not list(folder.glob(".one*"))


@pytest.mark.slow
def test_download_returns_size_and_hash(get: Get, content: bytes, tmp_path: Path) -> None:
    checksum = "1620" + hashlib.sha3_256(content).hexdigest()
    assert get(size=len(content), checksum=checksum) == (len(content), hashlib.sha256(content).hexdigest())
    assert_complete(tmp_path, content)


@pytest.mark.parametrize("offset", [0, 1, 3, 4, 1 << 20, (1 << 20) + 7, 3_000_000])
def test_truncated_transfer_resumes_at_the_last_byte(
    get: Get, server: StacServer, content: bytes, tmp_path: Path, offset: int
) -> None:
    server.replies[PATH] = [Reply(cut=offset)]
    get()
    assert_complete(tmp_path, content)
    first, second = server.requests_of(PATH)
    assert "Range" not in first
    assert second.get("Range") == (f"bytes={offset}-" if offset else None)
    assert second.get("If-Range") == (f'"{hashlib.md5(content).hexdigest()}"' if offset else None)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_interrupted_download_resumes_or_restarts_with_a_replaced_file(
    get: Get, server: StacServer, content: bytes, tmp_path: Path, is_replaced: bool
) -> None:
    with pytest.raises(KeyboardInterrupt):
        get(progress=interrupt)
    assert not (tmp_path / "one.tif").exists()
    expected = content[:4] + content[:3:-1] if is_replaced else content
    (server.folder / "one.tif").write_bytes(expected)
    get()
    assert [headers.get("Range") for headers in server.requests_of(PATH)] == [None, f"bytes={1 << 20}-"]
    assert_complete(tmp_path, expected)


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_download_without_a_strong_etag_restarts_at_the_first_byte(
    get: Get, server: StacServer, content: bytes, tmp_path: Path, etag: str | None
) -> None:
    server.replies[PATH] = [Reply(cut=5000, headers={"ETag": etag})]
    get()
    assert "Range" not in server.requests_of(PATH)[1]
    assert_complete(tmp_path, content)


@pytest.mark.parametrize(
    ("headers", "skipped"),
    [
        ({"Content-Range": "bytes 7-3328003/3328004"}, 0),
        ({"Content-Range": "bytes 7-3328003/3328004"}, 7),  # consistent, but not the requested part
        ({"Content-Range": "bytes 5000-3328002/3328004"}, 0),
        ({"Content-Range": "bytes 5000-3328003/*"}, 0),
        ({"Content-Range": None}, 0),
        ({"ETag": '"another"'}, 0),
    ],
)
def test_mismatched_range_response_is_discarded(
    get: Get, server: StacServer, content: bytes, tmp_path: Path, headers: dict[str, str | None], skipped: int
) -> None:
    body = content[skipped:] if skipped else None
    server.replies[PATH] = [Reply(cut=5000), Reply(body=body, headers=headers)]
    get()
    assert [request.get("Range") for request in server.requests_of(PATH)] == [None, "bytes=5000-", None]
    assert_complete(tmp_path, content)


def test_unrequested_partial_response_is_rejected(get: Get, server: StacServer, tmp_path: Path) -> None:
    server.replies[PATH] = [Reply(status=206, headers={"Content-Range": "bytes 0-9/10"})]
    server.forever.add(PATH)
    with pytest.raises(UserError, match=r"another part than requested"):
        get()
    assert not (tmp_path / "one.tif").exists()


def test_busy_server_is_retried_after_the_requested_delay(
    get: Get, server: StacServer, content: bytes, tmp_path: Path, pauses: list[float]
) -> None:
    past = formatdate(0, usegmt=True)
    busy = [("7", 7.0), (past, 0.0), ("999999", 120.0), (None, 8.0)]
    server.replies[PATH] = [
        Reply(status=429 + 74 * (i % 2), headers={"Retry-After": message}) for i, (message, _) in enumerate(busy)
    ]
    get()
    assert pauses == [wait for _, wait in busy]
    assert_complete(tmp_path, content)


def test_permanently_busy_server_fails_after_the_maximum_attempts(
    get: Get, server: StacServer, tmp_path: Path, pauses: list[float]
) -> None:
    server.replies[PATH] = [Reply(status=503)]
    server.forever.add(PATH)
    with pytest.raises(UserError, match=f"status 503, {MAX_ATTEMPTS} times in a row"):
        get()
    assert len(pauses) == MAX_ATTEMPTS - 1
    assert not (tmp_path / "one.tif").exists()


@pytest.mark.parametrize(
    ("status", "message"), [(401, "DITHC_STAC_TOKEN"), (403, "search.sign"), (404, "no longer exists")]
)
def test_denied_or_missing_file_raises_an_error_with_the_fix(
    get: Get, server: StacServer, status: int, message: str
) -> None:
    server.replies[PATH] = [Reply(status=status)]
    with pytest.raises(UserError, match=rf"(?s)status {status}.*{message}"):
        get()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(body=b"<html>Please log in</html>"), "begins with b'<html>Please"),
        (Reply(headers={"Content-Encoding": "gzip"}), "Content-Encoding gzip"),
        (Reply(headers={"Content-Length": None}), "no length"),
        (Reply(status=204, body=b""), "status 204"),
        (Reply(body=b""), "begins with b''"),
    ],
)
def test_invalid_raster_response_leaves_no_target_file(
    get: Get, server: StacServer, tmp_path: Path, reply: Reply, message: str
) -> None:
    server.replies[PATH] = [reply]
    with pytest.raises(UserError, match=message):
        get()
    assert not (tmp_path / "one.tif").exists()


def test_wrong_size_or_checksum_is_rejected_and_leaves_no_files(get: Get, content: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"(?s){len(content)} bytes.*{len(content) + 1} \(file:size"):
        get(size=len(content) + 1)
    with pytest.raises(UserError, match=r"(?s)sha256 .*sha256 0000"):
        get(checksum="1220" + 64 * "0")
    assert list(tmp_path.glob("*.tif")) + list(tmp_path.glob(".one*")) == []


def test_catalog_size_replaces_a_missing_content_length(
    get: Get, server: StacServer, content: bytes, tmp_path: Path
) -> None:
    server.replies[PATH] = [Reply(headers={"Content-Length": None}, cut=len(content))]
    get(size=len(content))
    assert_complete(tmp_path, content)


@pytest.mark.parametrize(
    "place", ["file:///etc/passwd", "ftp://127.0.0.1/a", "data:text/plain,a", "/etc passwd", "http://[::", "/\xe4"]
)
def test_redirects_to_unsupported_addresses_are_rejected(
    get: Get, server: StacServer, tmp_path: Path, place: str
) -> None:
    server.replies[PATH] = [Reply(status=302, headers={"Location": place})]
    with pytest.raises(UserError, match=r"a redirect of .* leads to an unsupported address"):
        get()
    assert not (tmp_path / "one.tif").exists()


def test_redirect_is_followed_and_redirect_loop_is_rejected(
    get: Get, server: StacServer, content: bytes, tmp_path: Path
) -> None:
    (server.folder / "two.tif").write_bytes(content)
    server.replies[PATH] = [Reply(status=307, headers={"Location": "two.tif"})]
    get()
    assert_complete(tmp_path, content)
    server.replies[PATH] = [Reply(status=301, headers={"Location": PATH})]
    server.forever.add(PATH)
    with pytest.raises(UserError, match=r"more than 5 redirects"):
        get()


def test_token_is_sent_only_to_configured_hosts(get: Get, server: StacServer, content: bytes) -> None:
    elsewhere = f"{server.url.replace('127.0.0.1', 'localhost')}/files/two.tif"
    (server.folder / "two.tif").write_bytes(content)
    server.replies[PATH] = [Reply(status=302, headers={"Location": elsewhere})]
    get(token="secret")
    assert server.requests_of(PATH)[0]["Authorization"] == "Bearer secret"
    assert "Authorization" not in server.requests_of("/files/two.tif")[0]
    assert Credentials("secret", frozenset({"example.org"})).headers("http://example.org/a") == {}
    assert Credentials("secret", frozenset({"example.org"})).headers("https://example.org/a") != {}


def test_token_is_sent_only_to_configured_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DITHC_STAC_TOKEN", "secret")
    monkeypatch.setenv("DITHC_STAC_TOKEN_HOSTS", "a.org:8443, b.org,[::1]:99")
    found = Credentials.read("https://C.org:443/v1")
    given = ["https://a.org:8443/x", "https://b.org/x", "https://b.org:7/x", "https://c.org/x", "http://[::1]:99/x"]
    assert all(found.headers(url) for url in given)
    others = ["https://a.org/x", "https://a.org:8444/x", "https://c.org:444/x", "http://[::1]:98/x", "http://b.org/x"]
    assert not any(found.headers(url) for url in others)


def test_https_to_http_redirect_is_rejected_case_insensitively() -> None:
    for before, after in (("https://a.org/x", "HTTP://a.org/x"), ("HTTPS://a.org/x?sig=secret", "http://a.org/x")):
        with pytest.raises(UserError, match=r"(?s)a redirect of .* is not followed.*https, as before") as error:
            check_redirect(before, after)
        assert "secret" not in str(error.value)
    for before, after in (("https://a.org/x", "HTTPS://b.org/x"), ("http://a.org/x", "HTTP://b.org/x")):
        check_redirect(before, after)


def test_interruption_between_two_file_versions_never_mixes_bytes(
    get: Get, server: StacServer, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        get(progress=interrupt)
    other = content[:4] + content[:3:-1]
    (server.folder / "one.tif").write_bytes(other)
    write = Path.write_text

    def killed(path: Path, text: str) -> None:
        write(path, text)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            get()
    get()
    assert_complete(tmp_path, other)


@pytest.mark.parametrize("error", [ssl.SSLError("cut"), OSError(errno.EHOSTUNREACH, "no route")])
def test_network_error_during_a_response_is_retried(
    get: Get, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float], error: OSError
) -> None:
    answers = HTTPConnection.getresponse
    failing = [error]

    def response(self: HTTPConnection) -> HTTPResponse:
        if failing:
            raise failing.pop()
        return answers(self)

    monkeypatch.setattr(HTTPConnection, "getresponse", response)
    get()
    assert len(pauses) == 1
    assert_complete(tmp_path, content)


def test_unreachable_server_error_omits_the_signed_address(tmp_path: Path, pauses: list[float]) -> None:
    url = "http://127.0.0.1:9/one.tif?sig=secret"
    request = DownloadRequest(
        address=lambda: url,
        display_url="http://127.0.0.1:9/one.tif",
        target=tmp_path / "a.tif",
        size=None,
        checksum=None,
    )
    with pytest.raises(UserError, match=r"could not be fetched") as error:
        download(request, credentials=Credentials(None, frozenset()), progress=lambda _: None)
    assert "secret" not in str(error.value)
