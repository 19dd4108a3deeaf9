"""The store: owns checkpoint bytes, one folder per run and digest, whatever the workflow engine does around it."""

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from dithc.log import UserError, logger, problem
from dithc.runs.files import atomic_write, beside, flush
from dithc.runs.manifest import Manifest, file_entry
from dithc.runs.outputs import MARKER_FILE, OutputFolder, make_scratch, remove
from dithc.sealed import plain, seal, seal_line, unseal

COMMIT_FILE = "checkpoint.json"
PIN_FILE = "pinned"
log = logger(__name__)


@dataclass(frozen=True)
class StoredCheckpoint:
    """A complete checkpoint.

    Attributes:
        folder: where its files are.
        step: the optimizer step it stands for.
        meta: what was said of it when it was written.
        files: path (relative to `folder`), SHA-256 and bytes of each file.
    """

    folder: Path
    step: int
    meta: dict[str, Any]
    files: list[dict[str, Any]]

    def weights(self, kind: Literal["ema", "raw"]) -> Path:
        """The file with the averaged or the raw weights; where it is not there, its numbered parts are."""
        return self.folder / Store.WEIGHTS[kind]


class Store:
    """Checkpoints of one run under `folder` as `step_0000100/`, with hashes and a commit file that is written last.

    A checkpoint is written to a temporary folder (`begin`), by one process or by several; its commit file is written last, then
    it is renamed (`commit`): one that has its name is complete. Bytes are verified when it is read, those of the commit file
    too; a damaged one is passed over, with the reason said, for the next older. One that cannot be read is not known to be
    damaged, and is an error.
    """

    Checkpoint: TypeAlias = StoredCheckpoint
    WEIGHTS: Final = {"raw": "model.safetensors", "ema": "ema.safetensors"}

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def average_file(length: float) -> str:
        """The file with the average of a length, one of the run's `ema.lengths`."""
        return f"ema-{length}.safetensors"

    @classmethod
    def of_run(cls, path: Path) -> tuple[Self, int]:
        """The store and the step that a run's manifest (a file of stage `train`) names.

        Raises:
            UserError: the manifest is missing, is none of a run, or lists no checkpoint.
        """
        manifest = Manifest.read(path, stage="train")
        for entry in manifest.files:
            folder = Path(os.path.normpath(path.parent / entry["path"])).parent
            if folder.name.startswith("step_"):
                return cls(folder.parent), int(folder.name.removeprefix("step_"))
        raise problem(
            f"manifest {path} names no checkpoint",
            got=f"{len(manifest.files)} files",
            expected="files in a folder step_NNNNNNN",
            fix="remove it and run the training again",
        )

    def begin(self, step: int) -> Path:
        """An empty folder beside the store's checkpoints, into which any number of processes may write that of `step`.

        Raises:
            UserError: the disk is full or not writable.
        """
        try:
            folder = beside(self.path(step))
            make_scratch(folder)
        except OSError as error:
            raise self.unwritten(step, error) from error
        return folder

    def commit(self, step: int, folder: Path, *, files: list[dict[str, Any]], meta: dict[str, Any]) -> StoredCheckpoint:
        """Makes what stands in `folder` the checkpoint of `step`; the files are written, forced to disk and hashed already.

        Args:
            step: the optimizer step.
            folder: from `begin`.
            files: path (relative to `folder`), SHA-256 and bytes of each.
            meta: what is to be said of the checkpoint.

        Raises:
            UserError: the disk is full or not writable; earlier checkpoints are intact.
        """
        target, files = self.path(step), sorted(files, key=lambda entry: str(entry["path"]))
        try:
            output = OutputFolder(folder, manifest=COMMIT_FILE)
            output.plan([folder / PIN_FILE])
            if (target / PIN_FILE).exists():  # a damaged checkpoint that a manifest names is written again
                (folder / PIN_FILE).touch()
            atomic_write(folder / COMMIT_FILE, seal({"step": step, "meta": meta, "files": files}))
            output.move(target)
        except OSError as error:
            self.discard(folder)
            raise self.unwritten(step, error) from error
        return StoredCheckpoint(target, step, meta, files)

    def discard(self, folder: Path) -> None:
        """Remove a folder of `begin`, as far as ranks that still write into it allow; `sweep` removes the rest."""
        remove(folder)

    def save(self, step: int, write: Callable[[Path], None], *, meta: dict[str, Any]) -> StoredCheckpoint:
        """Writes the checkpoint of `step` from one process; `write` puts its files into the folder it is given.

        Raises:
            UserError: the disk is full or not writable; earlier checkpoints are intact.
        """
        folder = self.begin(step)
        try:
            write(folder)
            paths = sorted(path for path in folder.iterdir() if path.name != MARKER_FILE)
            files = [file_entry(path, relative_to=folder) for path in paths]
            for entry in files:
                flush(folder / entry["path"])
        except OSError as error:
            self.discard(folder)
            raise self.unwritten(step, error) from error
        return self.commit(step, folder, files=files, meta=meta)

    def unwritten(self, step: int, reason: object) -> UserError:
        """The error that says why the checkpoint of `step` is not there, and what is."""
        return problem(
            f"checkpoint of step {step} could not be written to {self.path(step)}",
            got=reason,
            expected="a writable folder with room for it",
            fix="free space or change `store` in the config, then start again: training continues "
            f"from the last complete checkpoint ({self.steps()[-1] if self.steps() else 'none yet'})",
        )

    @staticmethod
    def commit_content(text: str, step: int) -> tuple[dict[str, Any], list[str]]:
        """What a commit file says, and what is wrong with it by itself.

        Args:
            text: of the file.
            step: that the folder says.

        Raises:
            ValueError: it is altered.
        """
        content = unseal(text)
        faults = []
        if content["step"] != step:
            faults.append(f"{COMMIT_FILE} is of step {content['step']}")
        if not content["files"]:
            faults.append(f"{COMMIT_FILE} lists no files")
        return content, faults

    def path(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.folder / f"step_{step:07d}"

    def steps(self) -> list[int]:
        """Steps that have a committed checkpoint, ascending; their bytes are not looked at."""
        return sorted(int(path.parent.name.removeprefix("step_")) for path in self.folder.glob(f"step_*/{COMMIT_FILE}"))

    def open(
        self, step: int, *, manifest: Path | None = None, files: Collection[str] | None = None
    ) -> StoredCheckpoint:
        """The checkpoint of `step`, every file's hash verified.

        Args:
            step: which.
            manifest: the run's manifest through which the store was found (`of_run`), if it was: the fix names it.
            files: that are going to be read, whole or in numbered parts; others are not looked at. None for all.

        Raises:
            UserError: it is missing, cut short or altered, or cannot be read.
        """
        found, faults = self._read(step, files=files)
        if found is None:
            raise problem(
                f"checkpoint {self.path(step)} is damaged",
                got="; ".join(faults),
                expected="the bytes that were written (SHA-256 in checkpoint.json)",
                fix=self._fix(step, manifest),
            )
        return found

    def _read(self, step: int, *, files: Collection[str] | None = None) -> tuple[StoredCheckpoint | None, list[str]]:
        """A checkpoint, or None with what is wrong with its bytes.

        Raises:
            UserError: they are there and cannot be read.
        """
        folder = self.path(step)
        wanted = ("",) if files is None else tuple(Path(file).stem for file in files)
        faults: list[str] = []
        try:
            content, faults = self.commit_content(plain(folder / COMMIT_FILE).read_text(), step)
            found = StoredCheckpoint(folder, content["step"], content["meta"], content["files"])
            for entry in found.files:
                if entry["path"].startswith(wanted) and file_entry(folder / entry["path"], relative_to=folder) != entry:
                    faults.append(f"{entry['path']} is cut short or altered")
        except (FileNotFoundError, NotADirectoryError) as error:
            faults.append(f"{Path(str(error.filename)).name} is missing")
        except OSError as error:
            raise problem(
                f"checkpoint {folder} cannot be read",
                got=error,
                expected="files that this user may read, on a file system that answers",
                fix="see to the file system or the permissions, then start again; or, if it is lost, delete that folder: "
                "training then continues from the next older checkpoint",
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            faults.append(f"{COMMIT_FILE} is altered ({type(error).__name__}: {error})")
        return (None, faults) if faults else (found, [])

    def _fix(self, step: int, manifest: Path | None) -> str:
        """How to get a damaged checkpoint again."""
        if manifest is None:
            return "remove that folder; training continues from the next older checkpoint"
        if step == 0:  # written only where there is no checkpoint at all
            return f"delete the folder {self.folder}, then run the workflow again: it trains the run of {manifest} anew"
        return (
            f"delete that folder, then run the workflow again: it sees that {manifest} is not whole, and trains "
            "that last part again"
        )

    def newest(self, *, at_most: int | None = None, go_back: bool = False) -> StoredCheckpoint | None:
        """The newest checkpoint that is complete and verified, at or before step `at_most`; None where there is none.

        One damaged checkpoint is passed over. More of them, or one that leaves nothing to go on from, are no accident of a file:
        somebody has to look, and to say `go_back`.

        Raises:
            UserError: one that would be newer cannot be read, or it would be further back than that.
        """
        damaged: dict[int, str] = {}
        found = None
        for step in reversed([step for step in self.steps() if at_most is None or step <= at_most]):
            found, faults = self._read(step)
            if found is not None:
                break
            damaged[step] = "; ".join(faults)
        if not go_back and (len(damaged) > 1 or (found is None and max(damaged, default=0) > 0)):
            raise self._too_far_back(damaged, found)
        for step, reason in damaged.items():
            log.warning(f"checkpoint {self.path(step)} is passed over, using the next older: {reason}")
            self.event("checkpoint passed over", step=step, reason=reason)
        return found

    def _too_far_back(self, damaged: dict[int, str], found: StoredCheckpoint | None) -> UserError:
        goal = "begins anew" if found is None else f"goes on from step {found.step}"
        return problem(
            f"the newest {len(damaged)} checkpoint(s) in {self.folder} are damaged",
            got=", ".join(f"step {step} ({reason})" for step, reason in damaged.items()),
            expected="the newest one whole, or the one before it",
            fix="look what has damaged them, and put the files back if there is a copy; or pass them all over: the training "
            f"then {goal} (`dithc train --go-back`; in the workflow machine.go_back: true)",
        )

    def pin(self, step: int) -> None:
        """Protects a checkpoint that a manifest names from `prune`, whatever the segments of later jobs are."""
        (self.path(step) / PIN_FILE).touch()

    def prune(self, *, saved: int, keep_last: int, keep_every: Collection[int]) -> None:
        """Removes checkpoints before the one just saved that are not wanted.

        Later ones, of a training with other segments, say nothing of what a job that ends before them needs to go on; they
        stay until this training has come to them.

        Args:
            saved: the step just saved.
            keep_last: how many to keep up to that step; at least 1, itself.
            keep_every: multiples of any of these stay, as do pinned checkpoints.
        """
        for step in [step for step in self.steps() if step <= saved][:-keep_last]:
            if all(step % every for every in keep_every) and not (self.path(step) / PIN_FILE).exists():
                (self.path(step) / COMMIT_FILE).unlink()  # an interrupted removal leaves no checkpoint
                remove(self.path(step), manifest=COMMIT_FILE)

    def sweep(self) -> None:
        """Remove checkpoints that killed trainers left incomplete; only for the holder of the lease."""
        torn = [path for path in self.folder.glob("step_*") if not (path / COMMIT_FILE).exists()]
        for path in [*self.folder.glob(".step_*.tmp.*"), *torn]:
            remove(path, manifest=COMMIT_FILE, reason="its trainer was killed while it wrote or removed the checkpoint")

    def event(self, what: str, **facts: object) -> None:
        """Appends a line to `events.jsonl`: the history of the run over all its attempts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": what, **facts}
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(seal_line(line))

    def describe(self, spec: dict[str, Any]) -> None:
        """Writes `spec.json`, so that a person can see which settings the folder's digest stands for."""
        path = self.folder / "spec.json"
        if not path.exists():
            atomic_write(path, seal(spec))
