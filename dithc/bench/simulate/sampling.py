"""Prediction of sampling time on a machine with any number of nodes, for all partitions over ranks.

`dithc sample` uses the same formulas (`dithc.sample.parallel.planner`). FLOP/s of a rank come from the training step. The
decoder defaults to Stable Diffusion's, distributed by rows over the ranks of an image.

T tokens, p side of a patch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import torch

from dithc.bench.simulate.links import Links
from dithc.bench.simulate.simulation import SimulationSettings, computing_of, describe_machine
from dithc.core.units import TERA
from dithc.engine.hardware import Machine, description
from dithc.model import DiT, flops_per_image
from dithc.sample.parallel import ParallelDegrees, SamplingWork, planner

LATENT_SIDE, SHARD_IMAGES = 8, 64  # pixels per side of a latent pixel; images per shard, as in `dithc sample`
# Stable Diffusion's decoder: multiply-adds per pixel, channels of its attention over all latent pixels.
DECODER_MACS, DECODER_CHANNELS = 4.73e6, 512


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling task, described by `dithc simulate --help`."""

    num_images: int = 1
    size: int = 256
    steps: int = 50
    guided: bool = True
    bandwidth: float | None = None
    flops_per_rank: float | None = None
    half_rate_tokens: float = 16.0
    decode_tflop: float | None = None
    shown: int = 8


def predict(settings: SimulationSettings, sampling: Sampling) -> dict[str, Any]:
    """Return the choices on each number of nodes for JSON."""
    machine = description.read(settings.machine)
    Links.of(machine)  # raises if the network is missing
    ranks_per_node = settings.ranks_per_node or max(1, machine.num_dies)
    curves = [_predict_model(name, settings, sampling, machine, ranks_per_node) for name in settings.models]
    head = describe_machine(settings, machine, ranks_per_node)
    return {"machine": head, "sampling": asdict(sampling), "curves": curves}


def _predict_model(
    name: str, settings: SimulationSettings, sampling: Sampling, machine: Machine, ranks_per_node: int
) -> dict[str, Any]:
    with torch.device("meta"):
        config = DiT.from_preset(name, input_size=sampling.size // LATENT_SIDE).config
    flops, source = sampling.flops_per_rank, "given"
    if flops is None:
        step, source = computing_of(settings, machine, name)
        with torch.device("meta"):
            trained = flops_per_image(DiT.from_preset(name).config)
        flops = trained.training_total * step.images / step.seconds / ranks_per_node
    shards = [min(SHARD_IMAGES, sampling.num_images - first) for first in range(0, sampling.num_images, SHARD_IMAGES)]
    branches = 1 + sampling.guided
    work = SamplingWork.of(config, shards=shards, branches=branches, calls=sampling.steps, decoders=config.size[0])
    decoding = (_decoder_tflop(sampling.size) if sampling.decode_tflop is None else sampling.decode_tflop) * TERA
    rates = planner.rates_from_description(
        machine,
        ranks_per_node=ranks_per_node,
        bandwidth=sampling.bandwidth,
        flops=flops,
        half_tokens=sampling.half_rate_tokens,
        decoding=decoding / flops,
    )
    points = []
    for nodes in sorted(set(settings.nodes)):
        costs = planner.CostModel(work=work, rates=rates, ranks=nodes * ranks_per_node, ranks_per_node=ranks_per_node)
        points.append(_point(planner.rank_degrees(costs), nodes=nodes, num_choices=sampling.shown))
    return {
        "model": name,
        "tokens": work.tokens,
        "row_flops": work.row_flops,
        "rates": asdict(rates),
        "source_of_flops": source,
        "seconds_alone": points[0]["seconds"] * points[0]["speedup"],
        "points": points,
    }


def _point(plan: planner.PlanResult, *, nodes: int, num_choices: int) -> dict[str, Any]:
    best, costs = plan.best, plan.costs
    return {
        "nodes": nodes,
        "ranks": costs.ranks,
        "degrees": asdict(best.degrees),
        "seconds": best.seconds,
        "exchange_seconds": best.exchange,
        "speedup": best.speedup,
        "share_of_ideal": best.ideal,
        "legal": len(plan.legal),
        "rejected": len(plan.rejected),
        "choices": [
            {"degrees": asdict(choice.degrees), "seconds": choice.seconds, "exchange_seconds": choice.exchange}
            for choice in plan.legal[:num_choices]
        ],
        "description": plan.describe(),
        "table": plan.table(num_choices).split("\n"),
    }


def _decoder_tflop(size: int) -> float:
    return (2 * DECODER_MACS * size**2 + 4 * DECODER_CHANNELS * (size // LATENT_SIDE) ** 4) / TERA


def table(result: Mapping[str, Any]) -> str:
    """Format the best choice per number of nodes, and all choices for the fewest sufficient nodes."""
    task, machine = result["sampling"], result["machine"]
    lines = [f"machine: {machine['model_name']}, {machine['ranks_per_node']} ranks per node"]
    for curve in result["curves"]:
        rates = curve["rates"]
        lines += [
            "",
            f"{task['num_images']} image(s) of {task['size']} pixels ({curve['model']}, {curve['tokens']} tokens, "
            f"{task['steps']} steps, {'guided' if task['guided'] else 'one branch'}, decoded): "
            f"{curve['seconds_alone']:.4g} s on one rank of {rates['flops'] / TERA:.3g} TFLOP/s ({curve['source_of_flops']}), "
            f"half of it with {rates['half_tokens']:g} tokens (assumed)",
            f"messages: {rates['inside']['bandwidth'] / 1e9:.3g} GB/s in a node, {rates['between']['bandwidth'] / 1e9:.3g} GB/s "
            f"between nodes; copies of a rank {rates['copy_rate'] / 1e9:.3g} GB/s",
            "  nodes   ranks    seconds  exchange  speed-up  of ideal  degrees",
        ]
        points, further = _split(curve["points"])
        for point in points:
            degrees = ParallelDegrees(**point["degrees"])
            exchange = point["exchange_seconds"] / point["seconds"]
            lines.append(
                f"{point['nodes']:7d} {point['ranks']:7d} {point['seconds']:10.4g} {exchange:9.1%} {point['speedup']:9.4g} "
                f"{point['share_of_ideal']:9.1%}  {degrees}"
            )
        if further:
            last = points[-1]
            nodes = ", ".join(str(point["nodes"]) for point in further)
            lines.append(f"  {last['ranks']} ranks are enough: {nodes} nodes take the same {last['seconds']:.4g} s")
        lines += ["", f"on {points[-1]['ranks']} ranks:", *points[-1]["table"]]
    return "\n".join(lines)


def _split(points: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Split the points after the first from which more nodes change nothing."""
    last = points[-1]
    same = [point["degrees"] == last["degrees"] and point["seconds"] == last["seconds"] for point in points]
    enough = len(points) - len(list(takewhile(bool, reversed(same))))
    return points[: enough + 1], points[enough + 1 :]
