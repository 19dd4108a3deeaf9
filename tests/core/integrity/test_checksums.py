"""Checksummed documents and lines: every changed byte is detected."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dithc.config import load, load_experiment
from dithc.core.integrity import (
    Altered,
    dump_checksummed,
    dump_checksummed_line,
    has_checksum,
    load_checksummed,
    load_checksummed_lines,
    load_document,
    read_document,
)
from dithc.core.logging import UserError

CONTENT = {"step": 2, "files": [{"path": "a.npy", "bytes": 7}], "name": "Küste \n ☃", "loss": 0.125, "seal of": None}
KEYS = st.text(min_size=1).filter(lambda key: key not in ("checksum", "crc"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


def flip_bit(text: str, bit: int) -> str:
    data = bytearray(text.encode())
    data[bit // 8] ^= 1 << bit % 8
    return data.decode(errors="replace")


@pytest.mark.slow
@given(st.dictionaries(KEYS, VALUES, min_size=1))
def test_checksummed_documents_are_json_and_round_trip(content: dict[str, object]) -> None:
    text = dump_checksummed(content)
    assert load_checksummed(text) == content
    assert has_checksum(text)
    assert {key: value for key, value in json.loads(text).items() if key != "checksum"} == content
    assert load_checksummed_lines(dump_checksummed_line(content)) == ([content], [])
    assert {key: value for key, value in json.loads(dump_checksummed_line(content)).items() if key != "crc"} == content


def test_flipped_bits_of_a_document_are_detected() -> None:
    text = dump_checksummed(CONTENT)
    for bit in range(8 * len(text.encode())):
        altered = flip_bit(text, bit)
        assert has_checksum(altered), f"bit {bit}: it no longer looks as if it had had a checksum"
        with pytest.raises(ValueError):
            load_checksummed(altered)


def test_truncated_or_extended_document_is_rejected() -> None:
    text = dump_checksummed(CONTENT)
    for cut in range(len(text)):
        with pytest.raises(ValueError):
            load_checksummed(text[:cut])
    for more in (" ", "\n", "{}"):
        with pytest.raises(ValueError):
            load_checksummed(text + more)


def test_document_without_a_checksum_is_rejected() -> None:
    for text in (json.dumps({"a": 1}), "[]", "1", "", "null"):
        with pytest.raises(ValueError, match="changed after it was written: its checksum is missing"):
            load_checksummed(text)
        assert not has_checksum(text)


EDITS = {
    "value": lambda text: text.replace('"step": 2', '"step": 3'),
    "indent": lambda text: json.dumps(json.loads(text), indent=4),
    "one line": lambda text: json.dumps(json.loads(text)),
    "other order": lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=1),
    "key after the checksum": lambda text: json.dumps(json.loads(text) | {"runs": {}}, indent=1),
    "key before the checksum": lambda text: text.replace("{\n", '{\n "runs": {},\n', 1),
    "line ends": lambda text: text.replace("\n", "\r\n"),
    "no last line end": lambda text: text.rstrip(),
    "more": lambda text: text + "\n\n",
    "YAML": lambda text: "\n".join(f"{key}: {json.dumps(value)}" for key, value in json.loads(text).items()),
    "broken": lambda text: text.replace("[", "", 1),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edited_document_is_rejected(edit: Callable[[str], str], tmp_path: Path) -> None:
    text = edit(dump_checksummed(CONTENT))
    path = tmp_path / "config.json"
    path.write_bytes(text.encode())
    assert has_checksum(text)
    for attempt in (lambda: load_checksummed(text), lambda: load_document(text), lambda: read_document(path)):
        with pytest.raises(Altered, match="changed after it was written"):
            attempt()
    with pytest.raises(UserError, match=r"config\.json was changed after it was written\n  got"):
        load(path)
    with pytest.raises(UserError, match=r"config\.json was changed after it was written\n  got"):
        load_experiment([path])


def test_document_above_the_size_limit_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    path.write_text(dump_checksummed(CONTENT))
    assert read_document(path, most=1 << 10) == CONTENT
    with pytest.raises(Altered, match=r"lock\.json: .*more than 6\.10352e-05 MiB"):
        read_document(path, most=64)


def test_nonfinite_number_is_rejected() -> None:
    with pytest.raises(ValueError):
        dump_checksummed({"fid": float("nan")})


def test_flipped_bits_of_lines_are_reported() -> None:
    """A flipped bit, also in a line end, never yields a row that was not written, and is always reported."""
    rows = [{"step": step, "loss": 1.0 / step, "word": "J*j\n"} for step in range(1, 4)]
    text = "".join(map(dump_checksummed_line, rows))
    for bit in range(8 * len(text) - 8):  # except the last line end
        found, altered = load_checksummed_lines(flip_bit(text, bit))
        assert altered, f"bit {bit}"
        assert all(row in rows for row in found), f"bit {bit}"
        assert len(found) >= 1


def test_torn_line_is_skipped() -> None:
    line = dump_checksummed_line({"step": 2, "loss": 0.5})
    for cut in range(1, len(line) - 3):
        found, altered = load_checksummed_lines(
            dump_checksummed_line({"step": 1}) + line[:cut] + "\n" + dump_checksummed_line({"step": 3})
        )
        assert ([row["step"] for row in found], altered) == ([1, 3], []), f"cut at {cut}"


def test_altered_last_line_is_reported_and_incomplete_line_is_skipped() -> None:
    assert load_checksummed_lines('{"step": 1}\n' + dump_checksummed_line({"step": 3}) + '{"step": 4}\n') == (
        [{"step": 3}],
        [1, 3],
    )
    text = dump_checksummed_line({"step": 1}) + dump_checksummed_line({"step": 2})
    for bit in range(8):
        found, altered = load_checksummed_lines(flip_bit(text, 8 * (len(text) - 1) + bit))
        assert (found, altered) == ([{"step": 1}], [2])
    for cut in range(len(text) // 2 + 1, len(text) - 1):
        assert load_checksummed_lines(text[:cut]) == ([{"step": 1}], [])
