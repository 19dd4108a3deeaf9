"""Named tensors in safetensors files, complete or in pieces over several files.

Contents: `TensorPiece` is a part of a named tensor, and `assemble` joins pieces. `TensorFile` is the content of a file.
`write_file` writes and hashes it in blocks; `write_tensors` writes complete tensors. `read_tensors` reads complete
tensors from any number of files, and `read_external` reads weights of other programs.

Invariants: every rank writes its own part of a checkpoint, for any number of ranks and any strategy; readers get
complete tensors. Any safetensors reader accepts a file of complete tensors. If a tensor is cut, the file's metadata
describe its pieces. Files of one name are numbered `model-00001-of-00002.safetensors`. Reading maps files into memory
and holds at most one assembled tensor. Equal content produces equal bytes.

Extending: another partitioning of tensors is a field of `TensorPiece`, which `safetensors_file.py` stores in the metadata and
`reading.py` reads.
"""

from dithc.core.tensor_files.reading import read_external, read_tensors
from dithc.core.tensor_files.safetensors_file import (
    TensorFile,
    TensorPiece,
    assemble,
    shard_name,
    write_file,
    write_tensors,
)

__all__ = [
    "TensorFile",
    "TensorPiece",
    "assemble",
    "read_external",
    "read_tensors",
    "shard_name",
    "write_file",
    "write_tensors",
]
