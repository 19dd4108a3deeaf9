"""Outputs of stages: digests of settings, manifests, atomic files, leases, and the store of checkpoints.

Purpose: Snakemake deletes outputs of failed jobs, reruns stages after cosmetic edits and does not handle walltimes. It
therefore owns only JSON manifests. Checkpoints are in a store folder named by a digest of the semantic settings.
Contents: `Manifest`, `summaries` (the numbers of each stage), `digest`, `CheckpointStore`, `Lease`, `outputs` (ownership of
files) and atomic file functions.
Invariants: a file with its final name is complete. A manifest is written last. A checkpoint exists only with its commit
file. At most one training run holds the lease of a store folder. Digests are independent of ranks, nodes and paths.
Extending: a new stage writes a `Manifest` and declares its numbers in `summaries`. A new file of a checkpoint is written
between `CheckpointStore.begin` and `CheckpointStore.commit`. Replace and delete files only through `outputs`.
"""

from dithc.core.artifacts import outputs, summaries
from dithc.core.artifacts.atomic_files import atomic_replace, atomic_write, sha256_file
from dithc.core.artifacts.digest import difference, digest
from dithc.core.artifacts.lease import Lease
from dithc.core.artifacts.manifest import Manifest
from dithc.core.artifacts.store import CheckpointStore

__all__ = [
    "CheckpointStore",
    "Lease",
    "Manifest",
    "atomic_replace",
    "atomic_write",
    "difference",
    "digest",
    "outputs",
    "sha256_file",
    "summaries",
]
