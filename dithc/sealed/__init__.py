"""Small JSON documents and lines that show when a byte of them is not what was written.

Why: a manifest's numbers, a checkpoint's list of files or a line of metrics decides or reports a result and is named by no
other document whose hash could protect it.
`plain` and `parse` are how such files are opened and read: a pipe is none, and what is no document is a ValueError.
Invariants: a sealed document is plain JSON to any other reader; every byte of it is under its seal, white space and seal
included. A seal finds damage, not malice: whoever rewrites a document can seal it anew.
How to change it: every document that decides or reports a result is written with `seal` and read with
`documents.read` or `unseal`.
"""

from dithc.sealed.documents import content_of, has_seal, parse, plain, seal, unseal
from dithc.sealed.lines import seal_line, unseal_lines

__all__ = ["content_of", "has_seal", "parse", "plain", "seal", "seal_line", "unseal", "unseal_lines"]
