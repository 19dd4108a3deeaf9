"""Named tensors in files: whole, or in pieces over several files, in the safetensors format.

What: `Piece`, a part of a named tensor, and `assemble`, which puts whole ones together; `TensorFile`, the content of a file, and
`write_file`, which writes one in blocks and hashes it on the way; `read_tensors`, whole tensors by name however many files they
are in, and `read_external`, weights that other programs wrote; `write_tensors`, one file of whole tensors.
Why: every rank of a training writes its own part of a checkpoint, at any number of ranks and under any strategy; who reads it
wants whole tensors and need not know.
Invariants: a file of whole tensors is one that any safetensors reader takes; where a tensor is cut, the pieces stand in the
file's metadata. Several files of one name are numbered `model-00001-of-00002.safetensors`. Reading maps files into memory and
holds at most one tensor that had to be put together. Equal content gives equal bytes.
How to change it: another way to cut a tensor is a field of `Piece`, said in the metadata by `files.py` and understood by
`reading.py`.
"""

from dithc.tensors.files import TensorFile, numbered, write_file, write_tensors
from dithc.tensors.pieces import Piece, assemble
from dithc.tensors.reading import read_external, read_tensors

__all__ = [
    "Piece",
    "TensorFile",
    "assemble",
    "numbered",
    "read_external",
    "read_tensors",
    "write_file",
    "write_tensors",
]
