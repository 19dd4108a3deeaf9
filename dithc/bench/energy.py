"""Energy of the processors of a node, from the RAPL counters of Linux.

A counter covers one package (cores and caches, no DRAM), in microjoules, and wraps at a published range. Since Linux
5.10 only root may read it, unless an administrator runs `chmod a+r /sys/class/powercap/*/energy_uj`.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path("/sys/class/powercap")
MICRO = 1e-6
LEAST_SECONDS = 2.0  # a counter is updated once per millisecond
NOTHING = "no readable RAPL counter of a package in /sys/class/powercap"


class RaplPackages:
    """RAPL counters of all sockets: paths and ranges. `reason` explains an empty set, otherwise it is unset (None)."""

    def __init__(self, root: Path = ROOT) -> None:
        self._counters: list[tuple[Path, int]] = []
        for folder in sorted(root.glob("*-rapl:*")):
            with suppress(OSError, ValueError):
                if (folder / "name").read_text().startswith("package"):
                    int((folder / "energy_uj").read_text())
                    self._counters.append((folder / "energy_uj", int((folder / "max_energy_range_uj").read_text())))
        self.reason = None if self._counters else NOTHING

    def read(self) -> list[int]:
        """Return the microjoules of each counter."""
        return [int(path.read_text()) for path, _ in self._counters]

    def joules(self, before: list[int], after: list[int]) -> float:
        """Return joules between two readings; each counter may wrap once."""
        spans = zip(before, after, self._counters, strict=True)
        return MICRO * sum((b - a) % (most + 1) for a, b, (_, most) in spans)


def images_per_joule(
    step: Callable[[], object], images: int, *, packages: RaplPackages | None = None
) -> dict[str, Any]:
    """Repeat a step of `images` images for some seconds. Return images per joule, or a reason without counters."""
    packages = packages or RaplPackages()
    if packages.reason is not None:
        return {"status": "skipped", "reason": packages.reason}
    before, start, steps = packages.read(), time.monotonic(), 0
    while steps == 0 or time.monotonic() - start < LEAST_SECONDS:
        step()
        steps += 1
    joules, seconds = packages.joules(before, packages.read()), time.monotonic() - start
    if joules <= 0:
        return {"status": "skipped", "reason": "the RAPL counters do not advance"}
    found = {"status": "ok", "images_per_joule": steps * images / joules, "watts": joules / seconds}
    return found | {"of": "all sockets without memory, including other processes"}
