"""Product metadata in XML, read without network or entities: the only use of lxml."""

from contextlib import suppress
from pathlib import Path

from lxml import etree

from dithc.core.logging import UserError, user_error
from dithc.data.file_checks import open_regular

Element = etree._Element
XML_BYTES = 64 << 20
"""A hundred times the largest metadata file of a product."""
INTACT, COPY_FIX = "an intact XML file as its producer delivers it", "copy the file again from its source"


def read_xml(path: Path) -> Element:
    """Return the root of an XML file without external entities; UserError if it is unusable or declares a document type."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True)
    if path.is_file() and path.stat().st_size > XML_BYTES:
        expected, fix = f"at most {XML_BYTES >> 20} MiB of metadata", "list the product in `source.exclude`"
        raise _unreadable(path, got=f"{path.stat().st_size} bytes", expected=expected, fix=fix)
    try:
        with open_regular(path) as file:
            tree = etree.parse(file, parser)
    except (OSError, etree.LxmlError, LookupError) as error:
        raise _unreadable(path, got=str(error)) from error
    if tree.docinfo.internalDTD is not None:
        raise _unreadable(path, got="a document type declaration")
    return tree.getroot()


def find_all(root: Element, name: str) -> list[Element]:
    """Return all elements of this local name below `root` in document order, in any namespace."""
    return list(root.iter(f"{{*}}{name}"))


def find_text(root: Element, name: str) -> str | None:
    """Return the stripped text of the first element of this local name below `root`; None without such element."""
    element = next(iter(root.iter(f"{{*}}{name}")), None)
    return None if element is None else (element.text or "").strip()


def sun_position(root: Element, zenith: str, azimuth: str) -> dict[str, float]:
    """Return elevation and azimuth of the sun in degrees from elements of these names; empty without plausible values."""
    with suppress(ValueError):
        angles = [float(find_text(root, name) or "") for name in (zenith, azimuth)]
        if 0.0 <= angles[0] <= 180.0 and 0.0 <= angles[1] <= 360.0:
            return {"sun_elevation": 90.0 - angles[0], "sun_azimuth": angles[1]}
    return {}


def _unreadable(path: Path, *, got: str, expected: str = INTACT, fix: str = COPY_FIX) -> UserError:
    return user_error(f"{path} cannot be read as metadata", got=got, expected=expected, fix=fix)
