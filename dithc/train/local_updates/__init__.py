"""Workers that train one network apart and exchange updates of many steps through a folder.

Contents: `LocalUpdates` finishes a round of steps on all ranks of a worker; `optimizer.OuterState` is its state. Inside,
`exchange` publishes and sums in a thread, `encoding` rounds updates, `shared_folder` writes and reads files.
Invariants: a worker writes only in its own subfolder, and a published update never changes. A repeated round uses the
published update, so that all workers add the same numbers. At the end of a job all workers have the same weights.
Extending: a type of exchanged numbers is a branch of `encoding.encode` and `decode`.
"""

from dithc.train.local_updates.rounds import Interrupted, LocalUpdates

__all__ = ["Interrupted", "LocalUpdates"]
