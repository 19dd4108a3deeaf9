"""Local STAC API with files. Tests can replace its answers."""

import hashlib
import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

CONFORMS = ("core", "item-search", "item-search#query", "ogcapi-features")
PAGE = 2  # largest number of items per page


@dataclass
class Reply:
    """Replacement of an answer; None keeps the original part.

    Attributes:
        cut: Bytes of the body before the connection ends.
        headers: Replacements of headers; None removes a header.
    """

    status: int | None = None
    body: bytes | None = None
    cut: int | None = None
    headers: dict[str, str | None] = field(default_factory=dict)


class StacServer(ThreadingHTTPServer):
    """Server of a folder of items under /v1 (API) and /files (byte ranges, ETags).

    Attributes:
        replies: Answers of the next requests, by path. The last one is repeated for paths in `forever`.
        requests: Method, path with query, and headers of every request.
        token: Token that requests must contain, if any.
        signature: Query that requests of files must contain, if any.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.replies: dict[str, list[Reply]] = {}
        self.forever: set[str] = set()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.token: str | None = None
        self.signature: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def catalog(self) -> str:
        return f"{self.url}/v1"

    def requests_of(self, path: str) -> list[dict[str, str]]:
        """Return the headers of all requests for a path."""
        return [headers for _, target, headers in self.requests if urlsplit(target).path == path]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StacServer

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests."""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, sent: bytes) -> None:
        parts = urlsplit(self.path)
        self.server.requests.append((self.command, self.path, dict(self.headers)))
        queue = self.server.replies.get(parts.path, [])
        last = len(queue) == 1 and parts.path in self.server.forever
        reply = (queue[0] if last else queue.pop(0)) if queue else Reply()
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            status, headers, body = 401, {}, b"no token"
        elif parts.path.startswith("/files/"):
            status, headers, body = self._file(parts.path.removeprefix("/files/"), parts.query)
        else:
            status, headers, body = self._api(parts.path, parts.query, sent)
        body = body if reply.body is None else reply.body
        headers = {"Content-Length": str(len(body)), **headers, **reply.headers}
        self.send_response(status if reply.status is None else reply.status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body if reply.cut is None else body[: reply.cut])
        if reply.cut is not None or headers["Content-Length"] != str(len(body)):
            self.close_connection = True

    def _file(self, name: str, query: str) -> tuple[int, dict[str, str], bytes]:
        path = self.server.folder / name
        if self.server.signature is not None and query != self.server.signature:
            return 403, {}, b"no signature"
        if not path.is_file():
            return 404, {}, b""
        content = path.read_bytes()
        headers = {"ETag": f'"{hashlib.md5(content).hexdigest()}"', "Content-Type": "image/tiff"}
        requested = self.headers.get("Range")
        if requested is None or self.headers.get("If-Range", headers["ETag"]) != headers["ETag"]:
            return 200, headers, content
        start = int(requested.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            return 416, headers, b""
        headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return 206, headers, content[start:]

    def _api(self, path: str, query: str, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        headers = {"Content-Type": "application/geo+json"}
        if path == "/sign":
            href = parse_qs(query)["href"][0]
            return 200, headers, json.dumps({"href": f"{href}?{self.server.signature}"}).encode()
        if path == "/v1":
            search = {"rel": "search", "type": "application/geo+json", "href": f"{self.server.catalog}/search"}
            links = [{"rel": "self", "href": self.server.catalog}, {**search, "method": "POST"}]
            conforms = [f"https://api.stacspec.org/v1.0.0/{name}" for name in CONFORMS]
            root = {"type": "Catalog", "stac_version": "1.0.0", "id": "test", "description": "of tests"}
            return 200, headers, json.dumps({**root, "conformsTo": conforms, "links": links}).encode()
        if path != "/v1/search":
            return 404, headers, b"{}"
        return 200, headers, json.dumps(self._found(json.loads(sent))).encode()

    def _found(self, requested: dict[str, Any]) -> dict[str, Any]:
        """Return a page of matching items, with a link to the next page in the form of Earth Search."""
        first, last = requested["datetime"].split("/")
        most = requested.get("query", {}).get("eo:cloud_cover", {}).get("lte", 100)
        items = [json.loads(path.read_text()) for path in sorted(self.server.folder.rglob("*.json"))]
        items = [
            item
            for item in items
            if item.get("type") == "Feature"
            and item["collection"] in requested["collections"]
            and first <= item["properties"]["datetime"] <= last
            and item["properties"]["eo:cloud_cover"] <= most
            and _overlap(item["bbox"], requested["bbox"] if "bbox" in requested else _bounds(requested["intersects"]))
        ]
        start = int(requested.get("token", 0))
        page = items[start : start + min(PAGE, requested["limit"])]
        for item in page:
            for asset in item["assets"].values():
                asset["href"] = f"{self.server.url}/files/{item['id']}/{asset['href'].removeprefix('./')}"
        links = []
        if start + len(page) < len(items):
            body = {**requested, "token": str(start + len(page))}
            links.append({"rel": "next", "method": "POST", "href": f"{self.server.catalog}/search", "body": body})
        return {"type": "FeatureCollection", "features": page, "links": links}


def _overlap(a: list[float], b: list[float]) -> bool:
    return a[0] <= b[2] and b[0] <= a[2] and a[1] <= b[3] and b[1] <= a[3]


def _bounds(geometry: dict[str, Any]) -> list[float]:
    points = [point for ring in geometry["coordinates"] for point in ring]
    return [*(min(axis) for axis in zip(*points, strict=True)), *(max(axis) for axis in zip(*points, strict=True))]
