"""Metadata files: read without network or entities, found by local name, written well-formed."""

from pathlib import Path

import pytest

from dithc.data.xml import find_all, find_text, read_xml
from dithc.log import UserError


def test_elements_are_found_by_local_name_in_any_namespace(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text('<n:R xmlns:n="urn:x"><n:A>1</n:A><!-- note --><A k="v"> 2 </A></n:R>')
    root = read_xml(path)
    assert [found.text for found in find_all(root, "A")] == ["1", " 2 "]
    assert find_all(root, "A")[1].get("k") == "v"
    assert find_text(root, "A") == "1"
    assert find_text(root, "B") is None


@pytest.mark.parametrize("content", ["", "<a>", "<a></b>", "no xml"])
def test_a_malformed_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.xml").write_text(content)
    with pytest.raises(UserError, match=r"bad\.xml"):
        read_xml(tmp_path / "bad.xml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.xml"):
        read_xml(tmp_path / "none.xml")


@pytest.mark.parametrize(
    "declaration",
    [
        '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/hostname">]>',
        '<!DOCTYPE a [<!ENTITY e "x">]>',
        '<!DOCTYPE a SYSTEM "http://localhost/a.dtd">',
    ],
)
def test_a_document_type_is_refused_so_that_no_entity_is_ever_expanded(tmp_path: Path, declaration: str) -> None:
    (tmp_path / "e.xml").write_text(f"{declaration}<a>text</a>")
    with pytest.raises(UserError, match="document type"):
        read_xml(tmp_path / "e.xml")
