"""Metadata files: read without network or entities, found by local name, written well-formed."""

import os
from pathlib import Path

import pytest

from dithc.core.logging import UserError
from dithc.data.xml import find_all, find_text, read_xml


def test_elements_are_found_by_local_name_in_any_namespace(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text('<n:R xmlns:n="urn:x"><n:A>1</n:A><!-- note --><A k="v"> 2 </A></n:R>')
    root = read_xml(path)
    assert [found.text for found in find_all(root, "A")] == ["1", " 2 "]
    assert find_all(root, "A")[1].get("k") == "v"
    assert find_text(root, "A") == "1"
    assert find_text(root, "B") is None


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"<a>", b"<a></b>", b"no xml", b"<a/><a/>", b"<a>\x01</a>", b"\x89\x00\xff", b"<a>" * 100_000),
        b'<?xml version="1.0" encoding="EBCDIC-XX-99"?><a/>',
        b'<?xml version="1.0" encoding="UTF-8"?><a>\xe9</a>',
    ],
)
def test_error_for_a_malformed_file_contains_the_file_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.xml").write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.xml"):
        read_xml(tmp_path / "bad.xml")


def test_error_for_a_missing_file_or_pipe_contains_the_file_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.xml")
    for name in ("none.xml", "pipe.xml"):
        with pytest.raises(UserError, match=name):
            read_xml(tmp_path / name)


@pytest.mark.parametrize(
    "declaration",
    [
        '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/hostname">]>',
        '<!DOCTYPE a [<!ENTITY e "x">]>',
        '<!DOCTYPE a SYSTEM "http://localhost/a.dtd">',
    ],
)
def test_document_type_declaration_is_rejected(tmp_path: Path, declaration: str) -> None:
    (tmp_path / "e.xml").write_text(f"{declaration}<a>text</a>")
    with pytest.raises(UserError, match="document type"):
        read_xml(tmp_path / "e.xml")
