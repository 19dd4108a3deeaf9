"""What staging costs beside the library that it wraps: bare decodes of the same files, and `dithc stage` and `dithc tiles`.

Both are programs of their own that take turns; what counts is the time of their work, after their libraries are loaded.
"""

import json
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

from dithc.bench.bound_child import child_of
from dithc.bench.record import circumstances, prepare_threads
from dithc.bench.timing import Timing
from dithc.data import synthesize
from dithc.log import logger, problem
from dithc.pages import pss_bytes
from dithc.runs import Manifest, atomic_write
from dithc.sittings import Stopped, now

BAND = re.compile(r"_(B\d\d|B8A|SCL)_(\d\d)m\.jp2$")
TILE, LEAST_SIZE, MOST_SIZE = 256, 264, 10_980
PAUSE_SECONDS = 0.05
PICTURES_A_CLASS, PICTURE_CLASSES = 100, 4
OF_PRODUCTS = """
import json, sys, time
import rasterio
start = time.perf_counter()
for path in json.load(open(sys.argv[1])):
    with rasterio.open(path) as source:
        source.read()
print(time.perf_counter() - start)
"""
OF_PICTURES = """
import json, os, sys, time
import numpy as np
from PIL import Image
size, processes = int(sys.argv[2]), int(sys.argv[3])
paths = json.load(open(sys.argv[1]))
start = time.perf_counter()
def loop(share):
    for path in share:
        with Image.open(path) as image:
            image = image.convert("RGB")
        while min(image.size) >= 2 * size:
            image = image.resize((image.width // 2, image.height // 2), resample=Image.Resampling.BOX)
        scale = size / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), resample=Image.Resampling.BICUBIC)
        top, left = (image.height - size) // 2, (image.width - size) // 2
        np.asarray(image)[top : top + size, left : left + size].copy()
children = []
for first in range(processes):
    child = os.fork()
    if not child:
        loop(paths[first::processes])
        os._exit(0)
    children.append(child)
assert not any(os.waitpid(child, 0)[1] for child in children)
print(time.perf_counter() - start)
"""
"""What the libraries need alone: every band file with rasterio's own threads; pictures with Pillow, a loop for each core."""
log = logger(__name__)


@dataclass(frozen=True, kw_only=True)
class StagingSettings:
    """What is staged and how.

    Attributes:
        of: a Sentinel-2 product of level 2A, or a folder of pictures.
        size: side of the product in pixels of 10 m, a multiple of 6; of pictures, about their side.
        rounds: turns of each.
        threads: cores of `dithc stage`; all that there are if it is not given.
        folder: where what is made stands meanwhile; it is removed.
        inputs: a folder of a product, or of pictures in class folders, that is read instead of a generated one.
    """

    of: Literal["product", "pictures"] = "product"
    size: int = 2196
    rounds: int = 3
    threads: int | None = None
    folder: Path | None = None
    inputs: Path | None = None


def bench_staging(settings: StagingSettings) -> dict[str, Any]:
    """Measures; a dictionary for JSON: seconds and peak memory of each program, and the ratio of their times by round."""
    if (
        settings.inputs is None
        and settings.of == "product"
        and (settings.size % 6 or not LEAST_SIZE <= settings.size <= MOST_SIZE)
    ):
        raise problem(
            "no product has this size",
            got=f"--size {settings.size}",
            expected=f"a multiple of 6 from {LEAST_SIZE} to {MOST_SIZE}",
            remedy="choose another; a whole product has 10980",
        )
    machine, core_plan = prepare_threads(settings.threads)
    threads = settings.threads or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="dithc-bench-", dir=settings.folder) as name:
        programs = _programs(settings, Path(name), threads=threads)
        rounds = []
        with suppress(Stopped):
            for turn in range(settings.rounds):
                order = list(programs) if turn % 2 == 0 else list(programs)[::-1]
                rounds.append(now().unit("round", partial(_round, programs, order)))
                log.info(
                    f"round {turn + 1}: " + ", ".join(f"{one} {rounds[-1][one]['seconds']:.2f} s" for one in order)
                )
    turns = {program: [one[program] for one in rounds] for program in programs}
    timings = {name: Timing(tuple(run["seconds"] for run in runs)) for name, runs in turns.items()}
    ratios = timings["dithc"].ratios_to(timings["bare"])
    return {
        "bench": "data",
        "settings": {
            **asdict(settings),
            "threads": threads,
            "folder": None,
            "inputs": settings.inputs and str(settings.inputs),
        },
        "programs": {
            name: {
                "seconds": timings[name].to_dict(),
                "peak_bytes": max(run["peak_bytes"] for run in runs),
                **{
                    part: median(run[part] for run in runs) for part in runs[0] if part not in ("seconds", "peak_bytes")
                },
            }
            for name, runs in turns.items()
        },
        "ratio": Timing(ratios).to_dict(),
        **circumstances(machine, core_plan),
    }


class _Program:
    """One of those that take turns."""

    def __init__(self, settings: StagingSettings, folder: Path, *, threads: int) -> None:
        self.settings, self.folder, self.threads = settings, folder, threads


class _Bare(_Program):
    def __call__(self) -> dict[str, float]:
        """Runs a script that decodes the files of a list, and says how long that took."""
        script = OF_PRODUCTS if self.settings.of == "product" else OF_PICTURES
        words = [sys.executable, "-c", script, str(self.folder / "files.json"), str(TILE), str(self.threads)]
        said, peak, cpu = _ran(words, self.folder / "bare.log")
        return {"seconds": float(said.split()[-1]), "peak_bytes": peak, "cpu_seconds": cpu}


class _Ours(_Program):
    def __call__(self) -> dict[str, float]:
        """Runs the verbs as a workflow does, on nothing that was there before; their manifests say how long they worked."""
        found = {"seconds": 0.0, "peak_bytes": 0.0, "cpu_seconds": 0.0}
        given = {
            "stage": ["--threads", str(self.threads)],
            "tiles": ["--scenes", str(self.folder / "stage/manifest.json")],
        }
        for verb, words in given.items():
            out = self.folder / verb / "manifest.json"
            words = [*words, "--config", str(self.folder / "config.json"), "--dataset", "set", "--out", str(out)]
            _, peak, cpu = _ran([sys.executable, "-m", "dithc", verb, *words], self.folder / f"{verb}.log")
            found[f"{verb}_seconds"] = Manifest.read(out, stage=verb).seconds
            found["seconds"] += found[f"{verb}_seconds"]
            found["peak_bytes"] = max(found["peak_bytes"], peak)
            found["cpu_seconds"] += cpu
        for verb in given:
            shutil.rmtree(self.folder / verb)
        return found


def _round(programs: Mapping[str, "_Bare | _Ours"], order: Sequence[str]) -> dict[str, dict[str, float]]:
    """What each program took, one after the other."""
    return {program: programs[program]() for program in order}


def _programs(settings: StagingSettings, folder: Path, *, threads: int) -> dict[str, _Bare | _Ours]:
    """Makes the input and says what runs on it."""
    source = settings.inputs or folder / "source"
    kind: dict[str, Any]
    if settings.of == "product":
        if settings.inputs is None:
            synthesize("sentinel2", source, seed=1, scenes=1, size=settings.size)
        files, kind = _band_files(source), {"kind": "sentinel2"}
        shown: dict[str, Any] = {"bands": ["B04", "B03", "B02"], "low": 0.0, "high": 0.3}
    else:
        kind = {"kind": "image-folder", "size": TILE}
        if settings.inputs is None:
            scenes, classes = PICTURES_A_CLASS, PICTURE_CLASSES
            synthesize("image-folder", source, seed=1, size=settings.size, scenes=scenes, classes=classes)
        files = sorted(path for path in source.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
        shown = {"bands": ["R", "G", "B"], "low": 0.0, "high": 255.0}
    data = {"title": "bench", "codec": "none", "source": {**kind, "path": str(source.resolve())}, "rendering": shown}
    data |= {
        "tiles": {"size": TILE, "min_valid": 0.0, "max_cloud": 1.0},
        "split": {"train": 1.0, "val": 0.0},
    }  # all are written
    config = {"datasets": {"set": data}, "codecs": {"none": {"kind": "pixel"}}}
    atomic_write(folder / "config.json", json.dumps(config))
    atomic_write(folder / "files.json", json.dumps([str(path.resolve()) for path in files]))
    return {
        made.__name__[1:].lower().replace("ours", "dithc"): made(settings, folder, threads=threads)
        for made in (_Bare, _Ours)
    }


def _band_files(product: Path) -> list[Path]:
    """The finest file of each band and of the classification, which are those that are read for a grid of 10 m."""
    found: dict[str, tuple[int, Path]] = {}
    for path in product.rglob("*.jp2"):
        if match := BAND.search(path.name):
            found[match[1]] = min((int(match[2]), path), found.get(match[1], (99, path)))
    return [path for _, path in found.values()]


def _ran(words: Sequence[str], log_file: Path) -> tuple[str, int, float]:
    """Runs a program to its end; what it said, the most memory of it and its children together, and their processor time."""
    peak, before = 0, resource.getrusage(resource.RUSAGE_CHILDREN)
    with log_file.open("w") as said, child_of(words, stdout=said, stderr=said) as child:
        while child.poll() is None:
            peak = max(peak, sum(pss_bytes(process) or 0 for process in _tree(child.pid)))
            time.sleep(PAUSE_SECONDS)
    text = log_file.read_text(errors="replace")
    if child.returncode:
        raise problem(
            f"a program of the bench ended with status {child.returncode}",
            got="".join(f"\n    {line}" for line in text[-2000:].splitlines()),
            expected="one that ends well",
            remedy="what it says above; `--folder` chooses a disk with more room",
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return text, peak, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _tree(process: int) -> list[int]:
    """A process and all below it that live."""
    found = [process]
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            found += [one for text in (task / "children").read_text().split() for one in _tree(int(text))]
    return found
