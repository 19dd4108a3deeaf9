"""manifest.safe of an invented Sentinel-2 product: every file with its checksum."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dithc.data.synthetic.safe_metadata import utc
from dithc.data.synthetic.safe_product import SafeProduct
from dithc.data.xml import Element, element, write_xml
from dithc.sealed import plain

ChecksumName = Literal["SHA3-256", "MD5"]
ALGORITHMS: dict[ChecksumName, str] = {"SHA3-256": "sha3_256", "MD5": "md5"}


@dataclass(frozen=True)
class DataObject:
    """One file of the product as the manifest lists it."""

    identity: str
    href: str
    size_bytes: int
    checksum: str


def write_manifest(root: Path, product: SafeProduct) -> None:
    """Lists every file below `root`, which must be complete but for the manifest."""
    name: ChecksumName = "SHA3-256" if product.datatake % 2 == 0 else "MD5"
    objects = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        content = plain(path).read_bytes()
        href = path.relative_to(root).as_posix()
        identity = f"{path.stem}_{path.parent.name}_Data" if path.suffix == ".jp2" else f"{path.stem}_Metadata"
        checksum = hashlib.new(ALGORITHMS[name], content, usedforsecurity=False).hexdigest()
        objects.append(DataObject(identity=identity, href=href, size_bytes=len(content), checksum=checksum))
    write_xml(root / "manifest.safe", manifest_document(product, objects, checksum_name=name))


def manifest_document(product: SafeProduct, objects: Iterable[DataObject], *, checksum_name: ChecksumName) -> Element:
    """manifest.safe: what the product holds, with the checksum of every file."""
    space = {
        "safe": "http://www.esa.int/safe/sentinel/1.1",
        "gml": "http://www.opengis.net/gml",
        "xfdu": "urn:ccsds:schema:xfdu:1",
    }
    period = element("safe:startTime", text=utc(product.sensed), namespaces=space)
    orbit = element("safe:relativeOrbitNumber", text=f"{product.relative_orbit:03d}", namespaces=space)
    return element(
        "xfdu:XFDU",
        element("informationPackageMap"),
        element(
            "metadataSection",
            _metadata_object("acquisitionPeriod", element("safe:acquisitionPeriod", period, namespaces=space)),
            _metadata_object("measurementOrbitReference", element("safe:orbitReference", orbit, namespaces=space)),
        ),
        element("dataObjectSection", *(_data_object(entry, checksum_name) for entry in objects)),
        namespaces=space,
        attributes={"version": f"esa/safe/sentinel/1.1/sentinel-2/msi/archive_{product.level.lower()}_user_product"},
    )


def _metadata_object(identity: str, content: Element) -> Element:
    wrapped = element("metadataWrap", element("xmlData", content), attributes={"mimeType": "text/xml"})
    return element("metadataObject", wrapped, attributes={"ID": identity, "category": "DMD"})


def _data_object(entry: DataObject, checksum_name: ChecksumName) -> Element:
    mime = "text/xml" if entry.href.endswith(".xml") else "application/octet-stream"
    return element(
        "dataObject",
        element(
            "byteStream",
            element("fileLocation", attributes={"locatorType": "URL", "href": f"./{entry.href}"}),
            element("checksum", text=entry.checksum, attributes={"checksumName": checksum_name}),
            attributes={"mimeType": mime, "size": entry.size_bytes},
        ),
        attributes={"ID": entry.identity},
    )
