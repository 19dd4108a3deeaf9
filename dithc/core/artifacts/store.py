"""Store of checkpoints: one folder per run and digest, independent of Snakemake's handling of outputs."""

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from dithc.core.artifacts.atomic_files import atomic_write, flush, unused_name
from dithc.core.artifacts.manifest import Manifest, file_entry
from dithc.core.artifacts.outputs import MARKER_FILE, OutputFolder, make_scratch, remove
from dithc.core.integrity import dump_checksummed, dump_checksummed_line, load_checksummed, require_regular_file
from dithc.core.logging import UserError, get_logger, unwritten, user_error

COMMIT_FILE = "checkpoint.json"
PIN_FILE = "pinned"
log = get_logger(__name__)


@dataclass(frozen=True)
class StoredCheckpoint:
    """A complete checkpoint: metadata from `commit`; path (relative to `folder`), SHA-256 and bytes of each file."""

    folder: Path
    step: int
    meta: dict[str, Any]
    files: list[dict[str, Any]]

    def weights(self, kind: Literal["ema", "raw"]) -> Path:
        """Return the file of averaged or raw weights; if it does not exist, the checkpoint has its numbered parts."""
        return self.folder / CheckpointStore.WEIGHTS[kind]


class CheckpointStore:
    """Checkpoints of one run in folders `step_0000100/`, with hashes and a commit file.

    One or several processes write a checkpoint to a temporary folder (`begin`). `commit` writes the commit file last
    and renames the folder, so a folder with its final name is complete. Reading verifies all bytes including the commit
    file. A damaged checkpoint is skipped with its reason logged, and the next older one is used. An unreadable
    checkpoint is an error, because it may be intact."""

    Checkpoint: TypeAlias = StoredCheckpoint
    WEIGHTS: Final = {"raw": "model.safetensors", "ema": "ema.safetensors"}

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of_run(cls, path: Path) -> tuple[Self, int]:
        """Return the store and the step in the manifest of a run; UserError if it lists no checkpoint."""
        manifest = Manifest.read(path, stage="train")
        for entry in manifest.files:
            folder = Path(os.path.normpath(path.parent / entry["path"])).parent
            if folder.name.startswith("step_"):
                return cls(folder.parent), int(folder.name.removeprefix("step_"))
        raise user_error(
            f"manifest {path} lists no checkpoint",
            got=f"{len(manifest.files)} files",
            expected="files in a folder step_NNNNNNN",
            fix="remove it and rerun the training stage",
        )

    def begin(self, step: int) -> Path:
        """Create an empty folder in the store, to which any number of processes may write; UserError if it fails."""
        try:
            folder = unused_name(self.path(step))
            make_scratch(folder)
        except OSError as error:
            raise self.unwritten(step, error) from error
        return folder

    def commit(self, step: int, folder: Path, *, files: list[dict[str, Any]], meta: dict[str, Any]) -> StoredCheckpoint:
        """Turn a folder of `begin` into a checkpoint; its files (see `file_entry`) are already written, flushed and hashed.

        `meta` has JSON values. UserError if the disk is full or not writable; earlier checkpoints are intact.
        """
        target, files = self.path(step), sorted(files, key=lambda entry: str(entry["path"]))
        try:
            output = OutputFolder(folder, manifest=COMMIT_FILE)
            output.plan([folder / PIN_FILE])
            if (target / PIN_FILE).exists():  # rewrites a damaged checkpoint that a manifest lists
                (folder / PIN_FILE).touch()
            atomic_write(folder / COMMIT_FILE, dump_checksummed({"step": step, "meta": meta, "files": files}))
            output.move(target)
        except OSError as error:
            self.discard(folder)
            raise self.unwritten(step, error) from error
        return StoredCheckpoint(target, step, meta, files)

    discard = staticmethod(remove)
    """Remove a folder of `begin`. Files of ranks that still write remain until `sweep` removes them."""

    def save(self, step: int, write: Callable[[Path], None], *, meta: dict[str, Any]) -> StoredCheckpoint:
        """Write a checkpoint from one process; `write` creates its files in the given folder. Errors as in `commit`."""
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
        """Build the error of a failed write, with the last complete checkpoint."""
        fix = (
            "free space or change `store` in the configuration, then start again: training continues from the last "
            f"complete checkpoint ({self.steps()[-1] if self.steps() else 'none yet'})"
        )
        return unwritten(f"checkpoint of step {step}", self.path(step), reason, fix=fix)

    @staticmethod
    def commit_content(text: str, step: int) -> tuple[dict[str, Any], list[str]]:
        """Return the content of a commit file and its faults; `step` is of the folder's name. ValueError if altered."""
        content = load_checksummed(text)
        faults = []
        if content["step"] != step:
            faults.append(f"{COMMIT_FILE} is of step {content['step']}")
        if not content["files"]:
            faults.append(f"{COMMIT_FILE} lists no files")
        return content, faults

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step:07d}"

    def steps(self) -> list[int]:
        """Return the steps with a committed checkpoint, ascending, without verifying their bytes."""
        return sorted(int(path.parent.name.removeprefix("step_")) for path in self.folder.glob(f"step_*/{COMMIT_FILE}"))

    def open(
        self, step: int, *, manifest: Path | None = None, files: Collection[str] | None = None
    ) -> StoredCheckpoint:
        """Return the checkpoint of a step after verifying the hashes of all or some files (or their numbered parts).

        The UserError of a missing, damaged or unreadable checkpoint contains the manifest of a store from `of_run`.
        """
        checkpoint, faults = self._verify(step, files=files)
        if checkpoint is None:
            raise user_error(
                f"checkpoint {self.path(step)} is damaged",
                got="; ".join(faults),
                expected="the bytes that were written (SHA-256 in checkpoint.json)",
                fix=self._fix(step, manifest),
            )
        return checkpoint

    def _verify(self, step: int, *, files: Collection[str] | None = None) -> tuple[StoredCheckpoint | None, list[str]]:
        """Return a checkpoint, or None and its faults; raises UserError if files exist but cannot be read."""
        folder = self.path(step)
        stems = ("",) if files is None else tuple(Path(file).stem for file in files)
        faults: list[str] = []
        try:
            content, faults = self.commit_content(require_regular_file(folder / COMMIT_FILE).read_text(), step)
            checkpoint = StoredCheckpoint(folder, content["step"], content["meta"], content["files"])
            for entry in checkpoint.files:
                if entry["path"].startswith(stems) and file_entry(folder / entry["path"], relative_to=folder) != entry:
                    faults.append(f"{entry['path']} is truncated or altered")
        except (FileNotFoundError, NotADirectoryError) as error:
            faults.append(f"{Path(str(error.filename)).name} is missing")
        except OSError as error:
            raise user_error(
                f"checkpoint {folder} cannot be read",
                got=error,
                expected="files with read permission, on a working file system",
                fix="repair the file system or the permissions, then start again; or, if it is lost, delete this folder: "
                "training then continues from the next older checkpoint",
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            faults.append(f"{COMMIT_FILE} is altered ({type(error).__name__}: {error})")
        return (None, faults) if faults else (checkpoint, [])

    def _fix(self, step: int, manifest: Path | None) -> str:
        if manifest is None:
            return "remove this folder; training continues from the next older checkpoint"
        if step == 0:  # only a store without checkpoints gets a checkpoint of step 0
            return f"delete the folder {self.folder}, then rerun the workflow: it restarts the run of {manifest}"
        return (
            f"delete this folder, then rerun the workflow: it detects that {manifest} is incomplete, and repeats "
            "the last part of the training run"
        )

    def newest(self, *, at_most: int | None = None, allow_checkpoint_rollback: bool = False) -> StoredCheckpoint | None:
        """Return the newest intact checkpoint at or before step `at_most`; None for a store without checkpoints.

        Skips one damaged checkpoint. Several damaged checkpoints, or no remaining checkpoint, suggest a larger problem: the
        user must examine it and set `allow_checkpoint_rollback`, else it is a UserError. An unreadable checkpoint is always an
        error.
        """
        damaged: dict[int, str] = {}
        checkpoint = None
        for step in reversed([step for step in self.steps() if at_most is None or step <= at_most]):
            checkpoint, faults = self._verify(step)
            if checkpoint is not None:
                break
            damaged[step] = "; ".join(faults)
        if not allow_checkpoint_rollback and (len(damaged) > 1 or (checkpoint is None and max(damaged, default=0) > 0)):
            effect = "restarts" if checkpoint is None else f"continues from step {checkpoint.step}"
            raise user_error(
                f"the newest {len(damaged)} checkpoint(s) in {self.folder} are damaged",
                got=", ".join(f"step {step} ({reason})" for step, reason in damaged.items()),
                expected="an intact newest or second newest checkpoint",
                fix="find the cause of the damage and restore the files from a copy; or skip them: training then "
                f"{effect} (`dithc train --allow-checkpoint-rollback`; in the workflow "
                "machine.allow_checkpoint_rollback: true)",
            )
        for step, reason in damaged.items():
            log.warning(f"skipping damaged checkpoint {self.path(step)}, using the next older: {reason}")
            self.event("checkpoint passed over", step=step, reason=reason)
        return checkpoint

    def pin(self, step: int) -> None:
        """Protect a checkpoint that a manifest lists from `prune`, independent of the segments of later jobs."""
        (self.path(step) / PIN_FILE).touch()

    def prune(self, *, saved: int, keep_last: int, keep_every: Collection[int]) -> None:
        """Remove old checkpoints up to the step just saved.

        Keeps later checkpoints of a run with other segments until training reaches them, because a job that ends earlier
        may still need older checkpoints. Keeps the `keep_last` checkpoints up to `saved` (at least this one), multiples of
        `keep_every`, and pinned checkpoints.
        """
        for step in [step for step in self.steps() if step <= saved][:-keep_last]:
            if all(step % every for every in keep_every) and not (self.path(step) / PIN_FILE).exists():
                (self.path(step) / COMMIT_FILE).unlink()  # an interrupted removal leaves no checkpoint
                remove(self.path(step), manifest=COMMIT_FILE)

    def sweep(self) -> None:
        """Remove incomplete checkpoints of killed training runs; only for the holder of the lease."""
        incomplete = [path for path in self.folder.glob("step_*") if not (path / COMMIT_FILE).exists()]
        for path in [*self.folder.glob(".step_*.tmp.*"), *incomplete]:
            remove(path, manifest=COMMIT_FILE, reason="training was killed while it wrote or removed the checkpoint")

    def event(self, event_name: str, **fields: object) -> None:
        """Append a line to `events.jsonl`, the history of the run over all attempts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event_name, **fields}
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(dump_checksummed_line(line))

    def describe(self, spec: dict[str, Any]) -> None:
        """Write `spec.json`, the settings behind the digest in the folder's name, for users."""
        path = self.folder / "spec.json"
        if not path.exists():
            atomic_write(path, dump_checksummed(spec))
