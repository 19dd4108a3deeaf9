"""JSON documents and JSON lines with checksums that detect every changed byte.

Purpose: manifests, lists of files of checkpoints and lines of metrics determine or report results, and no other
document contains their hash.
Contents: `dump_checksummed` and `load_checksummed` for documents, `dump_checksummed_line` and `load_checksummed_lines` for lines;
`require_regular_file` rejects pipes and devices, `parse_json` reports invalid JSON as ValueError.
Invariants: a checksummed document is JSON for every other reader. The checksum covers every byte, including white space and the
checksum. It detects damage, not manipulation: anyone can compute the checksum of a changed document.
Extending: write every document that determines or reports a result with `dump_checksummed`; read it with `json_documents.read` or
`load_checksummed`.
"""

from dithc.core.integrity.json_documents import (
    dump_checksummed,
    has_checksum,
    load_checksummed,
    load_document,
    parse_json,
    require_regular_file,
)
from dithc.core.integrity.json_lines import dump_checksummed_line, load_checksummed_lines

__all__ = [
    "dump_checksummed",
    "dump_checksummed_line",
    "has_checksum",
    "load_checksummed",
    "load_checksummed_lines",
    "load_document",
    "parse_json",
    "require_regular_file",
]
