"""Weight files of other programs: their paths, formats and tensor names.

Purpose: the workflow plan, training runs, codecs and extractors accept the same files and report the same errors.
Contents: `files_of` returns the files of a path, including sharded folders; `content_of` the format of a file;
`unwrapped` a state dictionary without the prefixes of torch.compile, DDP, FSDP and checkpointing; `unreadable` the
error of all readers.
Invariants: no import of torch, because the workflow plan imports this package. Users never get messages of torch or
pickle.
Extending: a new format is a line of `SIGNATURES`, a new wrapper an entry of `WRAPPERS`.
"""

from dithc.core.weights.content import content_of, unreadable
from dithc.core.weights.files import DIFFUSERS_FILE, digest_of_files, files_of, unwrapped

__all__ = ["DIFFUSERS_FILE", "content_of", "digest_of_files", "files_of", "unreadable", "unwrapped"]
