"""Lists of CPUs and of cores in short text, for descriptions: `0-3,8`, and `0-19+80-99` for cores of two CPUs."""

from collections.abc import Sequence

from dithc.hardware.limits import parse_cpu_list


def compact_cpus(cpus: Sequence[int]) -> str:
    """Numbers as the kernel lists them, `0-3,8`; the inverse of `parse_cpu_list`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def compact_cores(cores: Sequence[tuple[int, ...]]) -> str:
    """Cores, each the tuple of its CPUs: runs whose CPUs all go up by one are shortened, `0-19+80-99`."""
    runs: list[list[tuple[int, ...]]] = []
    for core in cores:
        if runs and core == tuple(cpu + 1 for cpu in runs[-1][-1]):
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join("+".join(compact_cpus(thread) for thread in zip(*run, strict=True)) for run in runs)


def expand_cores(text: str | int) -> tuple[tuple[int, ...], ...]:
    """Return the inverse of `compact_cores`; a single number is one core.

    Raises ValueError for another form or unequal runs beside a `+`, TypeError for neither text nor number.
    """
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise TypeError
    cores: list[tuple[int, ...]] = []
    for part in str(text).split(","):
        threads = [parse_cpu_list(run) for run in part.split("+")]
        if not all(threads):
            raise ValueError
        cores += zip(*threads, strict=True)
    return tuple(cores)
