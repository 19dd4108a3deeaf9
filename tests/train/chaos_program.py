"""Rank program of a training run with a fault: `chaos_program.py <pickled jobs> <fault as JSON>`.

Runs on two ranks. A fault is {"kind", "rank", "step"}: from step `step` on, it affects `rank` by its kind. blocks,
commit, rename: SIGKILL when a checkpoint file is half written, before the commit file is written, or before the
checkpoint is renamed. disk: the kernel rejects files longer than `LARGEST_FILE`.
"""

import json
import os
import pickle
import resource
import signal
import sys
import time
from pathlib import Path

import torch

from dithc.core.artifacts import CheckpointStore, store
from dithc.engine.comm import connect_ranks
from dithc.train import train
from dithc.train.checkpoints import writer
from dithc.train.step.step import Trainer

# Less than a rank's share of the small model's moments, more than all other files of a training run of a few steps.
LARGEST_FILE = 150_000


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)


def die_half_way(path: Path, content: writer.TensorFile, **_: object) -> None:
    path.write_bytes(content.head() + b"half")
    die()


def strike(kind: str) -> None:
    match kind:
        case "blocks":
            writer.write_file = die_half_way
        case "commit":
            CheckpointStore.commit = die
        case "rename":
            store.OutputFolder.move = die
        case "disk":
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, hard))


def main() -> None:
    fault, step = json.loads(sys.argv[2]), Trainer.step
    with connect_ranks(2, timeout_seconds=600) as group:
        torch.set_num_threads(1)

        def struck_step(self: Trainer, number: int) -> dict:
            if fault["rank"] == group.rank and number == fault["step"]:
                strike(fault["kind"])
            return step(self, number)

        Trainer.step = struck_step
        status = [train(job, group) for job in pickle.loads(Path(sys.argv[1]).read_bytes())]
    sys.exit(max(status))


if __name__ == "__main__":
    main()
