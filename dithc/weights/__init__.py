"""Files of weights from other programs: which files a path names, what they contain, and names without wrapper prefixes.

What: `files_of`, the files of a path, also of sharded folders; `content_of`, the format of a file by its bytes; `unwrapped`, a
state dictionary without the prefixes of torch.compile, DDP, FSDP and checkpointing; `unreadable`, the error of all readers.
Why: the plan of a workflow, trainings, codecs and extractors accept the same files and report the same faults.
Invariants: no torch here, because the plan of a workflow imports this package. No message of torch or pickle reaches the user.
How to change it: a new format is a line of `SIGNATURES`, a new wrapper an entry of `WRAPPERS`.
"""

from dithc.weights.content import content_of, unreadable
from dithc.weights.files import DIFFUSERS_FILE, digest_of_files, files_of, unwrapped

__all__ = ["DIFFUSERS_FILE", "content_of", "digest_of_files", "files_of", "unreadable", "unwrapped"]
