"""Simulation from settings to curves: machine, step time, methods; and the table of results."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dithc.bench.environment import require, require_among
from dithc.bench.simulate import paper_scaling
from dithc.bench.simulate.measured_step import measured_curve, read_measured
from dithc.core.logging import get_logger, user_error
from dithc.engine.cost import Links, ModelWorkload, links, scenario
from dithc.engine.hardware import Machine, description

log = get_logger(__name__)

PETA = 1e15
MEGA = 1_000_000


@dataclass(frozen=True, kw_only=True)
class SimulationSettings:
    """Settings of a simulation, described by `dithc simulate --help`."""

    machine: Path
    models: tuple[str, ...] = (paper_scaling.MODEL,)
    nodes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    scaling: scenario.Mode = "weak"
    global_batches: tuple[int, ...] = paper_scaling.GLOBAL_BATCHES
    step: float | Path | None = None
    images_per_node: int | None = None
    ranks_per_node: int | None = None
    collectives: tuple[links.Collective, ...] = ("hierarchical",)
    wires: tuple[links.Wire, ...] = ("fp32",)
    bucket_mb: float | None = None
    zero1: bool = False
    local_steps: int | None = None
    spread: float | None = None
    fixed_step_seconds: float = 0.0
    steps: int = 32
    seed: int = 0
    reproduces_paper: bool = False


def run_simulation(settings: SimulationSettings) -> dict[str, Any]:
    """Run the simulation and return its result for JSON."""
    _check(settings)
    machine = description.read(settings.machine)
    ranks = settings.ranks_per_node or max(1, machine.num_dies)
    described = Links.of(machine)
    result: dict[str, Any] = {"machine": describe_machine(settings, machine, ranks)}
    models = [ModelWorkload.of_preset(name) for name in settings.models]
    inputs: dict[str, Any] = {
        "settings": {
            name: str(value) if isinstance(value, Path) else value for name, value in asdict(settings).items()
        },
        "models": {
            model.name: {
                "gradient_bytes": model.gradient_bytes,
                "flops_per_image": {"training_total": model.flops, "training_linear": model.linear_flops},
            }
            for model in models
        },
    }
    if settings.reproduces_paper:
        _check_paper(settings, machine, ranks)
        draws = {"steps": settings.steps, "seed": settings.seed}
        reproduction = paper_scaling.reproduce(models[0], described, nodes=settings.nodes, **draws)
        return {**result, **reproduction, "inputs": {**inputs, **reproduction["inputs"]}}
    curves = []
    for model in models:
        computing, source = computing_of(settings, machine, model.name)
        inputs["models"][model.name] |= {"computing": asdict(computing), "source_of_computing": source}
        common = {"model": model, "computing": computing, "links": described, "ranks_per_node": ranks}
        curves += _curves(settings, common)
    return {**result, "curves": curves, "inputs": inputs}


def describe_machine(settings: SimulationSettings, machine: Machine, ranks_per_node: int) -> dict[str, Any]:
    """Return the properties of a machine with a network for JSON."""
    assert machine.network is not None
    return {
        "description": str(settings.machine),
        "model_name": machine.model_name,
        "ranks_per_node": ranks_per_node,
        "network": asdict(machine.network),
    }


def _curves(settings: SimulationSettings, common: Mapping[str, Any]) -> list[dict[str, Any]]:
    batches = [None] if settings.scaling == "weak" else list(settings.global_batches)
    curves: list[dict[str, Any]] = []
    for method in _methods(settings):
        simulated = scenario.Scenario(method=method, steps=settings.steps, seed=settings.seed, **common)
        for batch in batches:
            curves += simulated.curves(settings.nodes, mode=settings.scaling, global_batch_size=batch)
    if not curves:
        got = f"{settings.nodes} nodes for {settings.global_batches} images"
        expected = "at least one image per rank"
        raise user_error("no point can be simulated", got=got, expected=expected, fix="set fewer nodes or more images")
    if isinstance(settings.step, Path) and settings.scaling == "weak":
        model = common["model"]
        curves.insert(0, measured_curve(read_measured(settings.step, model.name), model))
    return curves


def _methods(settings: SimulationSettings) -> list[scenario.ReductionMethod]:
    methods = []
    common = {
        "bucket_bytes": int(settings.bucket_mb * MEGA) if settings.bucket_mb else None,
        "zero1": settings.zero1,
    }
    notes = ["ZeRO-1"] if settings.zero1 else []
    for collective in settings.collectives:
        for wire in settings.wires if collective == "hierarchical" else ("fp32",):
            label = ", ".join([f"dithc: {collective}, {wire} wire", *notes])
            methods.append(scenario.ReductionMethod(label=label, collective=collective, wire=wire, **common))  # type: ignore[arg-type]
    if settings.local_steps is not None:
        label = f"dithc: local updates, {settings.local_steps} steps, bf16 wire"
        methods.append(scenario.ReductionMethod(label=label, wire="bf16", local_steps=settings.local_steps))
    return methods


def computing_of(settings: SimulationSettings, machine: Machine, model: str) -> tuple[scenario.ComputeTime, str]:
    """Return the time of a step and its source. Waits inside a node of a published step count as computing."""
    is_paper = paper_scaling.is_paper_machine(machine.model_name)
    spread = settings.spread if settings.spread is not None else paper_scaling.SPREAD if is_paper else 0.0
    images = settings.images_per_node or paper_scaling.IMAGES_PER_NODE
    if isinstance(settings.step, Path):
        measured = read_measured(settings.step, model)
        seconds, images, source = measured.seconds, measured.images, f"measured: {settings.step}"
        is_valid = settings.images_per_node in (None, images)
        require(is_valid, "simulate --images-per-node", settings.images_per_node, f"{images}, as in {settings.step}")
    elif settings.step is not None:
        seconds, source = settings.step, "given"
    else:
        published_seconds = paper_scaling.TUNED_SECONDS.get(model, {}).get(images) if is_paper else None
        if published_seconds is None:
            raise user_error(
                f"step time of {model} with {images} images on a node of {machine.model_name!r}",
                got="no step time",
                expected="seconds, or the JSON file of `dithc bench step` or `dithc bench scaling`; published are steps of "
                f"DiT-S/2 to XL/2 with {paper_scaling.IMAGES_PER_NODE} or 224 images on LX2",
                fix="add --step",
            )
        seconds, source = published_seconds, "published: arXiv:2601.01500, table 2 (CFTP)"
    is_valid = settings.fixed_step_seconds < seconds
    require(is_valid, "--fixed-step-seconds", settings.fixed_step_seconds, f"less than the step of {seconds:g} s")
    log.info("step time: %.3f s per node with %d images (%s); spread of ranks %.3f", seconds, images, source, spread)
    return scenario.ComputeTime(
        seconds=seconds, images=images, fixed_seconds=settings.fixed_step_seconds, spread=spread
    ), source


def _check(settings: SimulationSettings) -> None:
    require_among("simulate --collectives", settings.collectives, links.COLLECTIVES)
    require_among("simulate --wire", settings.wires, links.WIRE_BYTES)
    models = ", ".join(settings.models)
    is_valid = not isinstance(settings.step, float | int) or len(settings.models) == 1
    expected = "seconds of one model, or a file with a step of each"
    require(is_valid, "simulate --step", f"{settings.step} for {models}", expected)
    is_valid = 0 < len(settings.models) == len(set(settings.models))
    require(is_valid, "simulate --models", models, "presets, each once")


def _check_paper(settings: SimulationSettings, machine: Machine, ranks: int) -> None:
    configuration = (settings.models, paper_scaling.is_paper_machine(machine.model_name), ranks)
    if configuration != ((paper_scaling.MODEL,), True, paper_scaling.RANKS_PER_NODE):
        raise user_error(
            "--reproduce-paper",
            got=f"{', '.join(settings.models)}, {ranks} ranks per node of {machine.model_name}",
            expected=f"{paper_scaling.MODEL}, {paper_scaling.RANKS_PER_NODE} ranks per node of LX2",
            fix="remove --models and --ranks-per-node, and use profiles/machines/lx2.yaml",
        )


def format_curves(result: Mapping[str, Any]) -> str:
    """Format every curve, and the comparison with published points."""
    lines = [f"machine: {result['machine']['model_name']}, {result['machine']['ranks_per_node']} ranks per node"]
    for curve in result["curves"]:
        batch = f", global batch {curve['global_batch_size']}" if curve["global_batch_size"] else ""
        lines += ["", f"{curve['kind']}: {curve['label']} ({curve['model']}, {curve['mode']}{batch})"]
        lines.append("  nodes   ranks    seconds  efficiency  exposed s     PFLOP/s  linear only")
        for point in curve["points"]:
            exposed = "-" if point["exposed_seconds"] is None else f"{point['exposed_seconds']:.3f}"
            lines.append(
                f"{point['nodes']:7d} {point['ranks']:7d} {point['seconds']:10.3f} {point['efficiency']:11.1%} {exposed:>10}"
                f"  {point['flops_per_second'] / PETA:10.4g}   {point['linear_flops_per_second'] / PETA:10.4g}"
            )
    if validation := result.get("validation"):
        lines += ["", "published against simulated:", *_comparison(validation)]
    return "\n".join(lines)


def _comparison(validation: Mapping[str, Any]) -> Sequence[str]:
    lines = [
        f"  {row['nodes']:4d} nodes  {row['published']:6.2f} s  {row['simulated']:6.2f} s  {row['error']:+6.1%}  {row['use']}"
        for row in validation["seconds"]
    ]
    row = validation["efficiency"]
    lines.append(
        f"  {row['nodes']:4d} nodes  {row['published']:6.1%}    {row['simulated']:6.1%}   {row['error_points']:+5.1f} points"
        f"  {row['use']}"
    )
    for name, check in validation["checks"].items():
        published = " to ".join(f"{value:.3g}" for value in check["published"])
        lines.append(f"  {name}: published {published}, simulated {check['simulated']:.3g} ({check['note']})")
    return lines
