"""Scenes of a source in order: reused from earlier runs, or read by this process or by several worker processes."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from dithc.core.artifacts import outputs
from dithc.core.logging import UserError, setup_logging, user_error
from dithc.core.units import format_bytes
from dithc.data.file_checks import memory_bytes
from dithc.data.readers import SceneSource
from dithc.data.scene import Rejection
from dithc.data.scenes.scene_cache import CachedScene, SceneCache, SceneCacheWriter
from dithc.data.scenes.stacks import FileCanvas

PIECE_SCENES, PIECE_BYTES = 256, 256 << 20
"""Most scenes per piece of a worker, and most bytes of their files; the first file may exceed the latter."""
PIECES_PER_PROCESS = 4
"""Least pieces per process, so that all finish at about the same time; also the most pieces in flight per process."""


def gather(
    scenes: SceneSource, kept: Sequence[SceneCache], *, partial: Path, settings: str, threads: int
) -> Iterator[tuple[CachedScene | Rejection, str | None]]:
    """Yield each scene of a source, in order, with the state of its files before reading; independent of `kept` and
    `threads`.

    `kept` are folders of scenes from earlier runs. Those below `partial` are removed after their scenes are taken.
    `partial` receives new scenes, with `settings` as in `partial_folder`.
    """
    states = [scenes.inspect(position) for position in range(len(scenes))]
    names = [scenes.scene_id(position) for position in range(len(scenes))]
    caches = [
        next((cached for cached in kept if state is not None and cached.state(name) == state), None)
        for name, (state, _) in zip(names, states, strict=True)
    ]
    new = [position for position, cache in enumerate(caches) if cache is None]
    folder = partial / "canvas"
    folder.mkdir()
    canvas = FileCanvas(folder)
    with _read_pieces(scenes, states, new, partial=partial, settings=settings, threads=threads) as read:
        for position, cache in enumerate(caches):
            scene, source = None, read(position) if cache is None else cache
            if source is not None:
                scene = source.take(names[position], scenes.path(position))
            yield scene or _read_scene(scenes, position, canvas), states[position][0]
            canvas.discard()
            if source is not None and not source and source.folder.parent == partial:
                outputs.remove(source.folder)


def _read_scene(scenes: SceneSource, position: int, canvas: FileCanvas) -> CachedScene | Rejection:
    scene = scenes.read(position, canvas)
    return scene if isinstance(scene, Rejection) else CachedScene.from_scene(scene, scenes.folder, canvas)


FileStates = list[tuple[str | None, int]]


@contextmanager
def _read_pieces(
    scenes: SceneSource, file_states: FileStates, new: list[int], *, partial: Path, settings: str, threads: int
) -> Iterator[Callable[[int], SceneCache | None]]:
    """Yield a function that waits for the piece of a position; it returns None if no worker processes are used."""
    memory = scenes.memory_bytes(max((file_states[position][1] for position in new), default=0))
    processes = min(threads, len(new), max(1, memory_bytes() // memory))
    if processes < 2:
        yield lambda position: None
        return
    pending = deque(_split_positions(file_states, new, processes=processes))
    running: deque[tuple[list[int], Future[None], Path]] = deque()
    loaded: dict[int, SceneCache] = {}
    context = multiprocessing.get_context("spawn")  # a fork would copy locks held by other threads
    numbers = context.SimpleQueue()
    for number in range(processes):
        numbers.put(number)
    arguments = (scenes, settings, numbers, max(1, threads // processes))
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_init_worker, initargs=arguments)
    children: set[BaseProcess] = set()

    def submit() -> None:
        while pending and len(running) < PIECES_PER_PROCESS * processes:
            piece = pending.popleft()
            folder = partial / f"piece-{piece[0]:08d}"
            states = [file_states[position][0] for position in piece]
            running.append((piece, pool.submit(_read_piece, piece, states, folder), folder))
            children.update(multiprocessing.active_children())

    def read(position: int) -> SceneCache:
        if position not in loaded:
            submit()
            piece, future, folder = running.popleft()
            future.result()
            submit()
            loaded.update(dict.fromkeys(piece, SceneCache(folder, settings=settings, is_own=True)))
        return loaded.pop(position)

    try:
        yield read
    except BrokenProcessPool as error:
        pool.shutdown(cancel_futures=True)  # waits for all processes
        raise _worker_error([child.exitcode for child in children], memory=memory) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _worker_error(statuses: Sequence[int | None], *, memory: int) -> UserError:
    """Return the error of a pool after the early end of a process, which needs `memory` bytes.

    `statuses` are -n after signal n. SIGTERM ended the remaining processes. A process that failed to start has status 0.
    """
    failed = [status for status in statuses if status not in (None, 0, -signal.SIGTERM)]
    causes = [signal.Signals(-status).name if status < 0 else f"status {status}" for status in failed]
    return user_error(
        f"one of the {len(statuses)} processes that read scenes has ended early",
        got=", ".join(causes) or "unknown exit status",
        expected=f"processes that run until all scenes are read, with {format_bytes(memory)} of memory each",
        fix="see the messages above; after SIGKILL, give the job more memory or fewer `--workers` "
        "(`resources: {ingest: {mem_mb, cpus}}`); start again: scenes already read are kept",
    )


def _split_positions(states: FileStates, new: list[int], *, processes: int) -> list[list[int]]:
    """Divide positions into pieces of limited scenes and bytes, at least `PIECES_PER_PROCESS` per process if possible."""
    max_scenes = max(1, min(PIECE_SCENES, len(new) // (PIECES_PER_PROCESS * processes)))
    pieces: list[list[int]] = []
    num_bytes = 0
    for position in new:
        size = states[position][1]
        if not pieces or len(pieces[-1]) == max_scenes or num_bytes + size > PIECE_BYTES:
            pieces.append([])
            num_bytes = 0
        pieces[-1].append(position)
        num_bytes += size
    return pieces


_worker_state: list[Any] = []
"""Scenes and settings of a worker process, which are sent once."""


def _init_worker(scenes: SceneSource, settings: str, numbers: Any, cpus: int) -> None:
    """Initialize a worker: it uses a share of the cores, and exits when its parent exits."""
    setup_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C; the current piece is finished and kept
    allowed, first = sorted(os.sched_getaffinity(0)), numbers.get() * cpus
    os.sched_setaffinity(0, {allowed[(first + offset) % len(allowed)] for offset in range(cpus)})
    _worker_state[:] = [scenes, settings]
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=lambda: wait([parent.sentinel]) and os._exit(1), daemon=True).start()


def _read_piece(positions: list[int], states: list[str | None], folder: Path) -> None:
    scenes, settings = _worker_state
    folder.mkdir()
    canvas = FileCanvas(folder)
    with SceneCacheWriter(folder, settings=settings) as record:
        for position, state in zip(positions, states, strict=True):
            outcome = _read_scene(scenes, position, canvas)
            if isinstance(outcome, Rejection):
                record.reject(outcome, state)
            else:
                record.add(outcome, state)
            canvas.discard()
