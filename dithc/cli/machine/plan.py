"""`dithc plan`: predicts time and memory of a training run, and chooses the settings of `machine`."""

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dithc.core.logging import get_logger, user_error

if TYPE_CHECKING:
    from dithc.bench.plan import PlanSettings
    from dithc.config import ExperimentConfig

log = get_logger(__name__)
SUMMARY = (
    "Predict seconds per step and memory of a training run for all strategies, ranks, shardings and micro-batches, from short "
    "training runs on this machine, on a node of a profile, or from a description. Print the choice with its reasons."
)
EXAMPLE = (
    "dithc plan --config config/experiments/demo.yaml --run sentinel2\n"
    "dithc plan --config config/experiments/demo.yaml --run sentinel2 --profile cluster --write\n"
    "dithc plan --config config/experiments/demo.yaml --run sentinel2 --machine profiles/machines/lx2.yaml --step 2.48 "
    "--images-per-node 112 --nodes 8"
)
JOB_MINUTES, QUEUE_SECONDS, LARGEST = 10, 3600.0, 1e15
SLOWEST_LINK = 1e6  # bytes per second
LOCAL = "profiles/local"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    files = "configuration of the experiment, then files that override it (default: the only experiment in results/)"
    parser.add_argument("--config", type=Path, nargs="+", metavar="FILE", help=files)
    parser.add_argument("--run", required=True, help="name in the section `runs`")
    parser.add_argument("--profile", metavar="NAME", help="plan for the nodes of a Slurm profile, by one short job")
    parser.add_argument("--nodes", type=count, metavar="N", help="nodes of the run (default: the profile's, or 1)")
    limit = "memory of a node for the ranks (default: free memory, or the profile's `memory_per_node_mb`)"
    parser.add_argument("--memory-limit", type=number, metavar="GIB", help=limit)
    parser.add_argument(
        "--seconds", type=number, default=110.0, metavar="S", help="time of the measurements (default 110)"
    )
    parser.add_argument("--machine", type=Path, metavar="FILE", help="description of nodes, instead of measurements")
    step = "with --machine: seconds of a step on one node, or JSON of `dithc bench step` or `scaling`"
    parser.add_argument("--step", metavar="FILE|SECONDS", help=step)
    images = "with --step: its images (default: the file's, or 112)"
    parser.add_argument("--images-per-node", type=count, metavar="N", help=images)
    links = "bandwidth between nodes, such as 1.25e9 (default: the machine's description; with --profile, measured)"
    parser.add_argument("--link-bandwidth", type=_bandwidth, metavar="BYTES/S", help=links)
    kinds = "relative speeds of unequal nodes, such as 1.0x512,0.6x512"
    parser.add_argument("--node-speeds", type=_speeds, default=(), metavar="SPEEDxNODES,...", help=kinds)
    parser.add_argument("--write", action="store_true", help="write the choice to the profile and to plan-RUN.yaml")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the plan with all numbers")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--timed-nodes", type=int, default=1, help=argparse.SUPPRESS)


def _bandwidth(text: str) -> float:
    if (value := float(number(text))) < SLOWEST_LINK:
        raise argparse.ArgumentTypeError(f"{text} bytes per second are less than {SLOWEST_LINK:g}; 10 Gb/s are 1.25e9")
    return value


def number(text: str, kind: type = float) -> Any:
    if not 0 < (value := kind(text)) <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0 and up to {LARGEST:g}")
    return value


def count(text: str) -> int:
    return int(number(text, int))


def _speeds(text: str) -> tuple[tuple[float, int], ...]:
    parts = [part.partition("x") for part in text.split(",")]
    try:
        return tuple((number(speed), count(many)) for speed, _, many in parts)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as 1.0x8,0.6x4") from None


def run(args: argparse.Namespace) -> int:
    """Plan, print, and record the plan in the results. Return 1 if no plan fits."""
    from dithc.config import load_experiment, load_machine
    from dithc.core.artifacts import outputs
    from dithc.engine.cost import records
    from dithc.engine.doctor import profile_folder, update_profile

    if args.write:  # errors come before the measurement
        outputs.check_file(_plan_file(args))
        if args.profile:
            update_profile(args.profile, {})
    args.config = args.config or _started_experiment()
    experiment, machine = load_experiment(args.config), None
    experiment.entry(experiment.runs, args.run)
    if args.profile:
        machine, _ = load_machine(profile_folder(args.profile))
        experiment = experiment.updated(machine=machine)
    results = Path(experiment.results, experiment.name)
    path = records.plan_path(results, args.run)
    settings = _settings(args, experiment)
    is_here = args.measure is not None or args.machine is not None
    if machine is not None and machine.scheduler == "slurm" and not is_here:
        record, text = _in_job(args, settings, results)
    else:
        record, text = _plan(experiment, settings)
    if args.measure is not None:
        _write_document(args.measure, {"record": record, "text": text})
        return 0
    try:
        if reason := _reason_against_storing(args, record, path):
            log.warning("the plan is not stored in the results: %s", reason)
        else:
            records.write_plan(path, record)
        if args.json:
            _write_document(args.json, record)
    finally:  # a full disk does not lose the measurement
        print(text)
    if not record["plans"]:
        return 1
    _print_settings(args, record["settings"])
    return 0


def _plan_file(args: argparse.Namespace) -> Path:
    return Path(f"plan-{args.run}.yaml")


def _reason_against_storing(args: argparse.Namespace, record: dict[str, Any], path: Path) -> str | None:
    """Return why a plan does not replace the stored one: a longer measurement of the same run is kept."""
    from dithc.bench.plan import TIME_OVER
    from dithc.engine.cost import records

    if not record["plans"] or args.machine is not None:
        return "--machine describes other nodes" if record["plans"] else "no plan fits"
    stored = records.read_plan(path)
    if stored is None or stored["network"] != record["network"] or stored["node"]["cores"] != record["node"]["cores"]:
        return None
    is_short = any(TIME_OVER in line for line in record["sources"]["skipped"])
    is_short &= len(stored["sources"]["measured"]) > len(record["sources"]["measured"])
    return f"{path} has measurements of more kinds of plans; raise --seconds, or delete it" if is_short else None


def _started_experiment() -> list[Path]:
    """Return the configuration of the only experiment in results/."""
    found = sorted(Path("results").glob("*/config.json"))
    if len(found) != 1:
        got = f"{len(found)} experiments in results/"
        fix = "pass --config FILE, such as config/experiments/demo.yaml"
        raise user_error("configuration of the experiment", got=got, expected="one experiment, or --config", fix=fix)
    return found


def _settings(args: argparse.Namespace, experiment: "ExperimentConfig") -> "PlanSettings":
    from dithc.bench.plan import PlanSettings
    from dithc.cli.machine.simulate import step_of

    machine = experiment.machine
    total = sum(count for _, count in args.node_speeds)
    nodes = (total or (machine.nodes if args.profile else 1)) if args.nodes is None else args.nodes
    if total not in (0, nodes):
        text = ", ".join(f"{count} nodes of speed {speed:g}" for speed, count in args.node_speeds)
        got, expected = f"{text} for {nodes} nodes", "the counts of all nodes"
        raise user_error("plan --node-speeds", got=got, expected=expected, fix="correct the option, or --nodes")
    if args.machine is None and (args.step is not None or args.images_per_node is not None):
        raise user_error("plan --step", got="no --machine", expected="a described machine", fix="add --machine FILE")
    limit = args.memory_limit
    if limit is None and args.profile and machine.memory_per_node_mb:
        limit = (machine.memory_per_node_mb - 500) * 1e6 / (1 << 30)
    return PlanSettings(
        run=args.run,
        nodes=nodes,
        memory_limit_gib=limit,
        seconds=args.seconds,
        machine=args.machine,
        step=step_of(args.step),
        images_per_node=args.images_per_node,
        link_bandwidth=args.link_bandwidth,
        timed_nodes=args.timed_nodes,
        results=Path(experiment.results).resolve(),
        node_speeds=args.node_speeds,
    )


def _plan(experiment: "ExperimentConfig", settings: "PlanSettings") -> tuple[dict[str, Any], str]:
    from dithc.bench.plan import describe, format_plan, measure, record_of

    table, found = measure(experiment, settings) if settings.machine is None else describe(experiment, settings)
    record = record_of(table, found, launcher=experiment.machine.launcher)
    return record, format_plan(table, record)


def _in_job(args: argparse.Namespace, settings: "PlanSettings", results: Path) -> tuple[dict[str, Any], str]:
    """Measure by a job on one or two nodes of the profile; return the plan and its text."""
    import sys

    from dithc.core.integrity import load_document
    from dithc.engine.doctor import job_options, measured_bandwidth
    from dithc.engine.scheduler import run_probe_job

    folder = results / "plans"
    folder.mkdir(parents=True, exist_ok=True)
    out, log = folder / f"{args.run}.measured.json", folder / f"{args.run}.log"
    out.unlink(missing_ok=True)
    words = [str(Path(sys.executable).parent / "dithc"), "plan", "--config", *map(str, args.config), "--run", args.run]
    words += ["--profile", args.profile, "--nodes", str(settings.nodes), "--seconds", f"{settings.seconds:g}"]
    words += ["--memory-limit", f"{settings.memory_limit_gib:g}"] if settings.memory_limit_gib else []
    if settings.node_speeds:
        words += ["--node-speeds", ",".join(f"{speed:g}x{count}" for speed, count in settings.node_speeds)]
    nodes = 1 if settings.nodes == 1 or settings.link_bandwidth else 2
    if settings.nodes > 1:
        words += ["--link-bandwidth", f"{settings.link_bandwidth or measured_bandwidth(args.profile):g}"]
        words += ["--timed-nodes", str(nodes)]
    minutes = JOB_MINUTES + int(settings.seconds / 60)
    options = job_options(args.profile, minutes=minutes, job="dithc-plan", nodes=nodes)
    print(f"measuring by a job on {nodes} node(s); its log: {log}", flush=True)
    command = shlex.join([*words, "--measure", str(out)])
    error = run_probe_job(options, command, leaves=out, log=log, wait_seconds=QUEUE_SECONDS)
    if error is not None:
        fix = "read the log; if the job only waited, retry later"
        raise user_error("the job that measures", got=error, expected="a complete job", fix=fix)
    document = load_document(out.read_text())
    return document["record"], document["text"]


def _print_settings(args: argparse.Namespace, sections: dict[str, Any]) -> None:
    """Print the sections of the choice, or write them: `machine` to the profile, others to plan-RUN.yaml."""
    from dithc.core.artifacts import outputs
    from dithc.engine.doctor import update_profile

    if args.write and args.profile:
        profile, changes = update_profile(args.profile, sections["machine"])
        print(f"wrote `machine` to {profile}, for all runs: {', '.join(changes) or 'no changes'}")
        sections = {"runs": sections["runs"]}
    text = "\n".join(_yaml_lines(sections)) + "\n"
    if not args.write:
        print(f"\n{text}\nadd these sections to the experiment (machine: to the profile), or use --write")
        return
    path = _plan_file(args)
    outputs.write(path, text)
    if args.machine is not None:
        print(f"wrote {path} for the described nodes: start the experiment there, with their profile")
        return
    files = [str(one) for one in args.config if one != path]
    words = ["dithc", "run", "--profile", args.profile or LOCAL, "--configfile", *files, str(path)]
    print(f"wrote {path}; start the experiment with it (add `-- -n` to list its jobs):\n  {shlex.join(words)}")


def _yaml_lines(section: dict[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _yaml_lines(value, f"{indent}  ")
        else:
            yield f"{indent}{key}: {value}"


def _write_document(path: Path, content: dict[str, Any]) -> None:
    from dithc.core.artifacts import outputs
    from dithc.core.integrity import dump_checksummed

    outputs.write(path, dump_checksummed(content))
