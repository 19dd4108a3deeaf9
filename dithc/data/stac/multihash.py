"""Checksums of STAC's file extension: hexadecimal multihashes, which begin with a code of the algorithm and the length.

Source: table of multicodecs, github.com/multiformats/multicodec, table.csv.
"""

import hashlib
import re
from pathlib import Path

from dithc.core.integrity import require_regular_file

ALGORITHMS = {
    "1220": "sha256",
    "1620": "sha3_256",
    "1114": "sha1",
    "1340": "sha512",
    "1440": "sha3_512",
    "1530": "sha3_384",
    "171c": "sha3_224",
    "2030": "sha384",
    "d50110": "md5",
}
"""Names in `hashlib` by code and length, both as varint. Catalogs use the first two."""
MULTIHASH = re.compile(f"({'|'.join(ALGORITHMS)})([0-9a-f]*)")


def parse_multihash(text: str) -> tuple[str, str]:
    """Return the algorithm as named by `hashlib`, and the digest, or raise ValueError."""
    match = MULTIHASH.fullmatch(text.lower())
    if match is None or len(match[2]) != 2 * hashlib.new(ALGORITHMS[match[1]]).digest_size:
        raise ValueError("unknown algorithm or wrong length")
    return ALGORITHMS[match[1]], match[2]


def difference(path: Path, checksum: str) -> tuple[str, str] | None:
    """Return actual and expected digest if they differ or the checksum is invalid."""
    try:
        algorithm, expected = parse_multihash(checksum)
    except ValueError as error:
        return f"file:checksum {checksum[:80]!r}: {error}", "a multihash as hexadecimal text"
    with require_regular_file(path).open("rb") as file:
        got = hashlib.file_digest(file, algorithm).hexdigest()
    return None if got == expected else (f"{algorithm} {got}", f"{algorithm} {expected}")
