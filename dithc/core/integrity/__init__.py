"""JSON documents and JSON lines with checksums that detect every changed byte.

Purpose: manifests, lists of files of checkpoints and lines of metrics determine or report results, and no other
document contains their hash.
Contents: `seal` and `unseal` for documents, `seal_line` and `unseal_lines` for lines; `plain` rejects pipes and
devices, `parse` reports invalid JSON as ValueError.
Invariants: a sealed document is JSON for every other reader. The seal covers every byte, including white space and the
seal. It detects damage, not manipulation: anyone can compute the seal of a changed document.
Extending: write every document that determines or reports a result with `seal`; read it with `json_documents.read` or
`unseal`.
"""

from dithc.core.integrity.json_documents import content_of, has_seal, parse, plain, seal, unseal
from dithc.core.integrity.json_lines import seal_line, unseal_lines

__all__ = ["content_of", "has_seal", "parse", "plain", "seal", "seal_line", "unseal", "unseal_lines"]
