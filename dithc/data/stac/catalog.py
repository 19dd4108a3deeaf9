"""Search of a STAC API with pystac-client, an optional dependency that only this module imports.

pystac-client finds the search link, checks conformance and follows pages. Its requests go through `dithc.data.stac.http`,
because requests would follow every redirect, use netrc credentials and read answers of any size.
"""

import json
import logging
import time
import warnings
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

from dithc.config import datasets
from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import UserError, user_error
from dithc.data.stac.http import RETRY_STATUSES, Credentials, check_address, open_url, read_body
from dithc.data.stac.item import Item, item_of

PAGE_SIZE = 100
MAX_PAGES = 10_000
AREA_BYTES = 4 << 20
ANSWER_BYTES, ERROR_BYTES = 16 << 20, 1 << 16
ATTEMPTS = 4


def search_catalog(search: datasets.SearchConfig, *, credentials: Credentials) -> list[Item]:
    """Return the first `limit` items that match, in the order of the catalog.

    Raises UserError if pystac-client is missing, the catalog does not answer or is invalid, or no item matches.
    """
    if find_spec("pystac_client") is None:
        raise user_error(
            "pystac-client is not installed",
            got="a search without this package",
            expected="pystac-client 0.8 or later",
            fix="pip install 'dithc[stac]', or fetch saved items without a search: --items FOLDER",
        )
    items: dict[str, Item] = {}
    for document in _documents(search, credentials):
        item = item_of(document, origin=f"{search.catalog}: {str(document.get('id'))[:100]}")
        if (item.cloud_cover or 0.0) <= 100 * search.max_cloud_cover:
            items.setdefault(item.id, item)
        if len(items) == search.max_items:
            break
    if not items:
        raise user_error(
            f"no item of {search.catalog} matches the search",
            got=f"0 items of {search.collection}",
            expected="a scene in the area and period, with at most `max_cloud_cover` clouds",
            fix="widen `source.search`, or correct the name of the collection",
        )
    return list(items.values())


def _documents(search: datasets.SearchConfig, credentials: Credentials) -> Iterator[dict[str, Any]]:
    from pystac_client import Client
    from pystac_client.stac_api_io import StacApiIO

    logging.getLogger("pystac_client").setLevel(logging.WARNING)  # its DEBUG messages contain headers with the token
    service = StacApiIO()
    setattr(service, "request", partial(_request_text, credentials))  # noqa: B010  # every request of the client
    place = {"bbox": list(search.bbox)} if search.bbox else {"intersects": _area(Path(search.area_file or ""))}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # missing conformance classes are handled here
            client = Client.open(search.catalog, stac_io=service)
            clear = {"eo:cloud_cover": {"lte": 100 * search.max_cloud_cover}} if search.max_cloud_cover < 1.0 else None
            query = client.search(
                collections=[search.collection],
                datetime=f"{search.start_date}T00:00:00Z/{search.end_date}T23:59:59.999999Z",
                query=clear if client.conforms_to("QUERY") else None,
                limit=min(PAGE_SIZE, search.max_items),
                **place,
            )
            check_address(query.url, origin=f"the catalog {search.catalog}")
            for number, page in enumerate(query.pages_as_dicts()):
                features = page.get("features")
                if not isinstance(features, list) or not all(isinstance(feature, dict) for feature in features):
                    raise ValueError("a page without features")
                if number >= MAX_PAGES:
                    raise ValueError(f"more than {MAX_PAGES} pages")
                yield from features
    except UserError:
        raise
    except Exception as error:  # pystac raises various exceptions for invalid documents
        prefix = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
        raise user_error(
            f"the catalog {search.catalog} does not answer the search",
            got=prefix + credentials.redact(error),
            expected="a STAC API with item search, at the address of its root (such as .../v1)",
            fix="check `source.search.catalog`, the network and https_proxy; on a cluster, use a login node",
        ) from None


def _request_text(
    credentials: Credentials, href: str, method: str | None = None, headers: Any = None, parameters: Any = None
) -> str:
    """Return the text of an answer without sending headers that the catalog requests; replaces `StacApiIO.request`.

    Raises ValueError if the answer is an error or larger than `ANSWER_BYTES`.
    """
    posted = (method or "GET").upper() == "POST"
    query = {name: value for name, value in (parameters or {}).items() if value is not None}
    if query and not posted:
        href += f"{'&' if '?' in href else '?'}{urlencode(query, doseq=True)}"
    content = json.dumps(parameters).encode() if posted else None
    for attempt in range(ATTEMPTS):
        try:
            with open_url(href, headers={}, credentials=credentials, content=content) as response:
                return read_body(response, most=ANSWER_BYTES).decode("utf-8")
        except HTTPError as error:
            with error:
                try:
                    message = read_body(error, most=ERROR_BYTES).decode(errors="replace")
                except (OSError, HTTPException, ValueError) as failure:
                    message = str(failure)
            if error.code not in RETRY_STATUSES or attempt == ATTEMPTS - 1:
                raise ValueError(f"status {error.code}: {credentials.redact(message)}") from None
        except (OSError, HTTPException):
            if attempt == ATTEMPTS - 1:
                raise
        time.sleep(2.0**attempt)
    raise AssertionError("unreachable")


def _area(path: Path) -> dict[str, Any]:
    try:
        with require_regular_file(path).open("rb") as file:
            content = file.read(AREA_BYTES + 1)
        area = parse_json(content) if len(content) <= AREA_BYTES else None
        if isinstance(area, dict) and area.get("type") == "FeatureCollection":
            (area,) = area["features"]
        if isinstance(area, dict) and area.get("type") == "Feature":
            area = area["geometry"]
        if not isinstance(area, dict) or area.get("type") not in ("Polygon", "MultiPolygon"):
            raise ValueError(f"{json.dumps(area)[:80]}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise user_error(
            f"the area {path} (`source.search.area_file`) cannot be read",
            got=error,
            expected="GeoJSON with one Polygon or MultiPolygon, in degrees of longitude and latitude",
            fix="save one feature as GeoJSON (EPSG:4326), or set `bbox: [west, south, east, north]`",
        ) from None
    return area
