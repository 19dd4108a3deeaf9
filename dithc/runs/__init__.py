"""What a run is, and what it leaves: digests, manifests, atomic files, and the store that owns checkpoint bytes.

Why: the workflow engine removes the outputs of failed jobs, reruns on cosmetic edits and knows nothing of walltimes. So it
owns only small JSON manifests; the bytes of a training live in a store folder named by a digest of the semantic settings.
Invariants: a file with its final name is complete; a manifest is written last; a checkpoint without its commit file does
not exist; at most one trainer holds the lease of a store folder; the digest does not depend on ranks, nodes or paths.
How to change it: a new stage writes a `Manifest`, whose numbers `outcome` declares; a new kind of bytes in a checkpoint is
one more file between `Store.begin` and `Store.commit`. Files are replaced and deleted through `outputs` only.
"""

from dithc.runs import outcome, outputs
from dithc.runs.files import atomic_write, replacing, sha256_file
from dithc.runs.lease import Lease
from dithc.runs.manifest import Manifest
from dithc.runs.spec import digest
from dithc.runs.store import Store

__all__ = [
    "Lease",
    "Manifest",
    "Store",
    "atomic_write",
    "digest",
    "outcome",
    "outputs",
    "replacing",
    "sha256_file",
]
