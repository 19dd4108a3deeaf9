"""Folder through which workers exchange tensors: one subfolder per worker, written by that worker alone.

A tensor file is followed by its document with size and hash, so that a file that another program is still copying is not read.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from dithc.core.artifacts import atomic_replace, atomic_write, difference, digest, sha256_file
from dithc.core.integrity import dump_checksummed, read_document
from dithc.core.logging import get_logger, unwritten
from dithc.core.tensor_files import TensorFile, TensorPiece, read_tensors, write_file

DESCRIPTION = "worker.json"
log = get_logger(__name__)


class SharedFolder:
    """Files of the workers of one training run.

    `identity` has the settings that must be equal in all workers, and names the folder. `description` adds settings that may
    change during a run.
    """

    def __init__(
        self,
        root: Path,
        workers: Sequence[str],
        *,
        worker: str,
        identity: Mapping[str, Any],
        description: Mapping[str, Any],
    ) -> None:
        """Publish the settings of this worker. Raises UserError if the folder cannot be written."""
        self._root, self._worker = root, worker
        self.folder = root / f"{'+'.join(workers)}-{digest(dict(identity))}"
        self._description = {**identity, **description}
        self._saved = dict.fromkeys(workers, 0)  # by worker, the last round that its checkpoints contain
        self._damaged: tuple[Path, int] | None = None  # file with another hash, and its time
        self._write(DESCRIPTION, dump_checksummed(self._description))

    def publish(self, name: str, number: int, tensors: Mapping[str, Tensor], *, saved: int) -> None:
        """Write tensors of round `number` for the other workers, unless an earlier attempt has; UserError if it fails.

        `saved` is the last round that a checkpoint of this worker contains. Removes files that no worker reads again.
        """
        self._saved[self._worker] = saved
        self._remove_before(min(self._saved.values()))
        if self._is_published(name, number):
            return
        path = self._path(self._worker, name, number)
        try:
            with atomic_replace(path) as temporary:
                pieces = TensorFile.of(TensorPiece.whole(key, value) for key, value in tensors.items())
                entry = write_file(temporary, pieces)
        except OSError as error:
            raise self._unwritten(path, error) from error
        self._write(path.with_suffix(".json").name, dump_checksummed(entry | {"path": path.name, "saved": saved}))

    def read(self, worker: str, name: str, number: int) -> Mapping[str, Tensor] | None:
        """Return tensors that a worker has published, mapped into memory; None if they are missing or incomplete."""
        path = self._path(worker, name, number)
        try:
            entry, state = read_document(path.with_suffix(".json")), path.stat()
            changed = path, state.st_mtime_ns
            if state.st_size != entry["bytes"] or changed == self._damaged:
                return None
            if sha256_file(path) != entry["sha256"]:
                self._damaged = changed
                return None
        except (OSError, ValueError, KeyError):
            return None
        self._saved[worker] = max(self._saved[worker], int(entry["saved"]))
        return read_tensors(path)

    def own(self, name: str, number: int) -> Mapping[str, Tensor] | None:
        """Return tensors that an earlier attempt of this worker has published."""
        return self.read(self._worker, name, number) if self._is_published(name, number) else None

    def reason(self, worker: str, name: str, number: int) -> str:
        """Return the probable reason for missing tensors of a worker."""
        path = self._path(worker, name, number)
        if path.exists() or path.with_suffix(".json").exists():
            return f"{path} is incomplete or damaged; a damaged file has to be removed with its .json, and {worker} restarted"
        rounds = [int(other.stem.rpartition("-")[2]) for other in path.parent.glob(f"{name}-*.json")]
        if any(other > number for other in rounds):
            return f"{worker} is in round {max(rounds) + 1} and has removed it: this worker has lost its checkpoint"
        descriptions = list(self._root.glob(f"*/{worker}/{DESCRIPTION}"))
        for newest in sorted(descriptions, key=lambda found: found.stat().st_mtime)[-1:]:
            with suppress(OSError, ValueError):
                if text := difference(self._description, read_document(newest)):
                    return f"{worker} has other settings ({text}) in {newest.parent}"
            return f"{worker} has not published it yet"
        names = sorted({found.parent.name for found in self._root.glob(f"*/*/{DESCRIPTION}")})
        return f"no worker of this name has started with this folder; there are {', '.join(names)}"

    def _is_published(self, name: str, number: int) -> bool:
        return self._path(self._worker, name, number).with_suffix(".json").exists()

    def _path(self, worker: str, name: str, number: int) -> Path:
        return self.folder / worker / f"{name}-{number:07d}.safetensors"

    def _write(self, name: str, text: str) -> None:
        path = self.folder / self._worker / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, text)
        except OSError as error:
            raise self._unwritten(path, error) from error

    def _unwritten(self, path: Path, error: OSError) -> Exception:
        fix = "free space, or set `machine.exchange_folder` to a folder that all workers can write, then start again"
        return unwritten("update for the other workers", path, error, fix=fix)

    def _remove_before(self, number: int) -> None:
        """Remove own files of rounds before `number`, documents first."""
        for suffix in (".json", ".safetensors"):
            for path in (self.folder / self._worker).glob(f"*-*{suffix}"):
                count = path.stem.rpartition("-")[2]
                if count.isdigit() and int(count) < number:
                    path.unlink(missing_ok=True)
