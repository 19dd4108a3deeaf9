"""Short text form of CPU and core lists for descriptions: `0-3,8`, or `0-19+80-99` for cores with two CPUs."""

from collections.abc import Sequence

from dithc.engine.hardware.limits import parse_cpu_list


def compact_cpus(cpus: Sequence[int]) -> str:
    """Format numbers like the kernel, `0-3,8`. Inverse of `parse_cpu_list`."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def compact_cores(cores: Sequence[tuple[int, ...]]) -> str:
    """Format cores, each a tuple of CPUs. Runs of cores with consecutive CPUs are shortened, `0-19+80-99`."""
    runs: list[list[tuple[int, ...]]] = []
    for core in cores:
        if runs and core == tuple(cpu + 1 for cpu in runs[-1][-1]):
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join("+".join(compact_cpus(thread) for thread in zip(*run, strict=True)) for run in runs)


def expand_cores(text: str | int) -> tuple[tuple[int, ...], ...]:
    """Parse the output of `compact_cores`. A single number is one core. ValueError if the form is different."""
    cores: list[tuple[int, ...]] = []
    for part in str(text).split(","):
        threads = [parse_cpu_list(run) for run in part.split("+")]
        if not all(threads):
            raise ValueError("a list of cores is empty")
        cores += zip(*threads, strict=True)
    return tuple(cores)
