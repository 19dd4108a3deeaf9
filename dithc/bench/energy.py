"""Energy of the processors of a node, from the RAPL counters of Linux.

A counter covers one package (cores and caches, no DRAM), in microjoules, and wraps at a published range. Since Linux
5.10 only root may read it, unless an administrator runs `chmod a+r /sys/class/powercap/*/energy_uj`.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path("/sys/class/powercap")
MICRO = 1e-6
MIN_SECONDS = 2.0  # a counter is updated once per millisecond
NO_COUNTERS = "no readable RAPL counter of a package in /sys/class/powercap"


def images_per_joule(step: Callable[[], object], images: int, *, root: Path = ROOT) -> dict[str, Any]:
    """Repeat a step of `images` images for some seconds. Return images per joule, or a reason without counters."""
    ranges = _ranges(root)
    if not ranges:
        return {"status": "skipped", "reason": NO_COUNTERS}
    initial, start, steps = _read_counters(ranges), time.monotonic(), 0
    while steps == 0 or time.monotonic() - start < MIN_SECONDS:
        step()
        steps += 1
    seconds = time.monotonic() - start
    spans = zip(initial, _read_counters(ranges), ranges.values(), strict=True)
    joules = MICRO * sum((final - first) % (maximum + 1) for first, final, maximum in spans)
    if joules <= 0:
        return {"status": "skipped", "reason": "the RAPL counters do not advance"}
    measurement = {"status": "ok", "images_per_joule": steps * images / joules, "watts": joules / seconds}
    return measurement | {"of": "all sockets without memory, including other processes"}


def _ranges(root: Path) -> dict[Path, int]:
    """Return the readable counters of all sockets, and the value after which each wraps."""
    ranges = {}
    for folder in sorted(root.glob("*-rapl:*")):
        with suppress(OSError, ValueError):
            if (folder / "name").read_text().startswith("package"):
                int((folder / "energy_uj").read_text())
                ranges[folder / "energy_uj"] = int((folder / "max_energy_range_uj").read_text())
    return ranges


def _read_counters(counters: Iterable[Path]) -> list[int]:
    return [int(path.read_text()) for path in counters]
