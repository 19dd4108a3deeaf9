"""Ranges of the numeric arguments of `dithc simulate`, checked before slow imports."""

import argparse
from collections.abc import Callable
from typing import Any

from dithc.log import problem

SIZE_STEP = 16  # pixels of a patch of two latent pixels
INFINITY = float("inf")


def check(args: argparse.Namespace) -> None:
    """Reject numbers outside their ranges.

    Raises:
        UserError: a number is out of range; the title is its argument.
    """
    counts = {
        "--nodes": args.nodes,
        "--global-batch": args.global_batch,
        "--steps": args.steps,
        "--ranks-per-node": args.ranks_per_node,
        "--images-per-node": args.images_per_node,
        "--images": args.images,
        "--sampling-steps": args.sampling_steps,
        "--top": args.top,
    }
    for name, given in counts.items():
        _refuse_unless(name, given, lambda one: one >= 1, "integers from 1")
    _refuse_unless("--size", args.size, lambda one: one > 0 == one % SIZE_STEP, f"pixels, a multiple of {SIZE_STEP}")
    for name, given in (("--bandwidth", args.bandwidth), ("--flops", args.flops), ("--bucket-mb", args.bucket_mb)):
        _refuse_unless(name, given, lambda one: 0 < one < INFINITY, "a number above 0")
    for name, given in (
        ("--half-tokens", args.half_tokens),
        ("--decode-tflop", args.decode_tflop),
        ("--fixed-seconds", args.fixed_seconds),
    ):
        _refuse_unless(name, given, lambda one: 0 <= one < INFINITY, "a number from 0")
    _refuse_unless(
        "--stragglers",
        args.stragglers,
        lambda one: 0 <= one < 1,
        "a standard deviation from 0 to below 1, such as 0.05",
    )


def _refuse_unless(name: str, given: Any, is_right: Callable[[Any], bool], expected: str) -> None:
    """Check a number or each number of a tuple; None passes."""
    values = given if isinstance(given, tuple) else () if given is None else (given,)
    if not all(map(is_right, values)):
        raise problem(f"simulate {name}", got=", ".join(map(str, values)), expected=expected, fix=f"correct {name}")
