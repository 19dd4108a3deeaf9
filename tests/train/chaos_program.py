"""Rank program of a training run with a fault: `chaos_program.py <pickled jobs> <fault as JSON>`.

Runs on two ranks. A fault is {"kind", "rank", "step", ...}: from step `step` on, it affects `rank` by its kind. kill:
SIGKILL after `delay` seconds. launcher: the file `reached` makes the test kill the launcher. blocks, commit, rename:
SIGKILL when a checkpoint file is half written, before the commit file is written, or before the checkpoint is renamed.
disk: the kernel rejects files longer than `LARGEST_FILE`. Steps take at least `seconds`, to leave time for the fault.
"""

import json
import os
import pickle
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import torch

from dithc.comm import connect
from dithc.runs import Store, store
from dithc.train import train
from dithc.train.checkpoints import saving
from dithc.train.step.step import Trainer

# Less than a rank's share of the small model's moments, more than all other files of a training run of a few steps.
LARGEST_FILE = 150_000


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


def die_half_way(path: Path, content: saving.TensorFile, **_: object) -> None:
    path.write_bytes(content.head() + b"half")
    die()


def strike(fault: dict, folder: Path) -> None:
    """Trigger the due fault now, or at the next checkpoint."""
    match fault["kind"]:
        case "kill":
            threading.Timer(fault["delay"], die).start()
        case "launcher":
            (folder / "reached").touch()
        case "blocks":
            saving.write_file = die_half_way
        case "commit":
            Store.commit = die
        case "rename":
            store.rename = die
        case "disk":
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, hard))
        case kind:
            raise ValueError(kind)


def main() -> None:
    path, fault = Path(sys.argv[1]), json.loads(sys.argv[2])
    with connect(2, timeout_seconds=600) as group:
        (path.parent / f"rank-{group.rank}-{os.getpid()}").touch()
        torch.set_num_threads(1)
        step, is_due = Trainer.step, [fault["kind"] != "none" and fault["rank"] == group.rank]

        def slow_step(self: Trainer, number: int) -> dict:
            if is_due[0] and number >= fault["step"]:
                is_due[0] = False
                strike(fault, path.parent)
            time.sleep(fault.get("seconds", 0.0))
            return step(self, number)

        Trainer.step = slow_step
        status = [train(job, group) for job in pickle.loads(path.read_bytes())]
    sys.exit(max(status))


if __name__ == "__main__":
    main()
