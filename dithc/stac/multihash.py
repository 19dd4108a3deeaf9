"""Checksums as STAC's file extension has them: a multihash, which names its algorithm, as hexadecimal text.

Source: the table of multicodecs (github.com/multiformats/multicodec, table.csv), of which catalogues use the first two.
"""

import hashlib
from pathlib import Path

from dithc.sealed import plain

ALGORITHMS = {
    0x12: "sha256",
    0x16: "sha3_256",
    0x11: "sha1",
    0x13: "sha512",
    0x14: "sha3_512",
    0x15: "sha3_384",
    0x17: "sha3_224",
    0x20: "sha384",
    0xD5: "md5",
}


def parse_multihash(text: str) -> tuple[str, str]:
    """Algorithm, as `hashlib` names it, and digest.

    Raises:
        ValueError: it is no multihash, or of an algorithm that is not known.
    """
    rest = bytes.fromhex(text)
    code, rest = _varint(rest)
    length, digest = _varint(rest)
    if code not in ALGORITHMS:
        raise ValueError(f"algorithm 0x{code:x} is not known")
    if length != len(digest) or length != hashlib.new(ALGORITHMS[code]).digest_size:
        raise ValueError(f"{len(digest)} bytes of {ALGORITHMS[code]}")
    return ALGORITHMS[code], digest.hex()


def difference(path: Path, checksum: str) -> tuple[str, str] | None:
    """What was got and what was expected, where a file's checksum is not this multihash, or where that is none.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        algorithm, expected = parse_multihash(checksum)
    except ValueError as error:
        return f"file:checksum {checksum[:80]!r}: {error}", "a multihash as hexadecimal text"
    with plain(path).open("rb") as file:
        got = hashlib.file_digest(file, algorithm).hexdigest()
    return None if got == expected else (f"{algorithm} {got}", f"{algorithm} {expected}")


def _varint(content: bytes) -> tuple[int, bytes]:
    """An unsigned integer of seven bits a byte, and what follows it."""
    value = 0
    for number, byte in enumerate(content[:3]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, content[number + 1 :]
    raise ValueError("it ends too early")
