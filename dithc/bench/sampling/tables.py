"""Table of the sampling result."""

from collections.abc import Iterator, Mapping
from typing import Any

from dithc.bench.sampling.contenders import BASE
from dithc.bench.sampling.decoders import APART
from dithc.bench.sampling.decoding import ALIKE

MIB = 1 << 20


def sampling_table(result: Mapping[str, Any]) -> str:
    """Format each cell, then the images, then the variants."""
    settings, ranks = result["settings"], result["ranks"]
    lines = [
        f"{settings['model']}, {ranks['ranks']} ranks x {ranks['cpus']} thread(s), medians of {settings['rounds']} "
        f"interleaved rounds; speedup over one rank with {ranks['cpus']} thread(s)"
    ]
    for cell in result["cells"]:
        lines += ["", f"{_cell(cell)}: seconds of a {'guided step' if cell['guidance'] != 1 else 'step'}", _head("s")]
        lines += [line for row in cell["rows"] for line in _row(row)]
    if images := result["images"]:
        lines += [
            "",
            f"{_cell(images)}: seconds of an image of {images['steps']} steps, not decoded",
            _head("s", rate="images/s"),
        ]
        lines += [line for row in images["rows"] for line in _row(row, is_image=True)]
    lines += ["", *(f"{one['name']}: {one['what']}" for one in result["contenders"])]
    return "\n".join([*lines, *decoding_lines(result)])


def decoding_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Format each decoder, then the decoding variants; empty without measurements."""
    decoding = result["decoding"]
    for one in decoding["decoders"]:
        yield ""
        title = (
            f"decoder {one['decoder']} of width {one['width']}, random weights: seconds of an image of {one['size']} px"
        )
        if one["status"] != "ok":
            yield f"{title}: -  {one['reason']}"
            continue
        yield from (title, f"{_head('s')[: -len('  output')]}{'peak MiB':>10}{'of one':>8}  image")
        for row in one["rows"]:
            peak, ratio = row.get("peak_bytes"), row.get("peak_over_one_rank")
            memory = f"{'-' if peak is None else format(max(peak) / MIB, '.1f'):>10}"
            memory += f"{'-' if ratio is None else format(ratio, '.3f'):>8}"
            yield f"{_numbers(row)}{memory}  {decoded_said(row)}"
    if decoding["decoders"]:
        yield from ("", *(f"{way['name']}: {way['what']}" for way in decoding["ways"]))
        yield "peak MiB: peak memory of decoding above its start, maximum over ranks"


def decoded_said(row: Mapping[str, Any]) -> str:
    """Describe the difference between a decoded image and the image of one rank."""
    if row["name"] == BASE or row["alike"]:
        return said(row)
    if row["name"] == APART:
        return f"another image, differs by {row['difference']:.1e}"
    return f"WRONG: differs from one rank by {row['difference']:.1e}, expected less than {ALIKE:g}"


def said(row: Mapping[str, Any]) -> str:
    """Describe the difference between an output and the output of one rank."""
    if row["name"] == BASE:
        return "baseline"
    compared = "bitwise equal" if row["equal"] else f"within {row['difference']:.1e}"
    if (ran := row.get("blocks_run")) is None:
        return compared
    return f"{'approximate' if ran < 1 else 'without reuse'}: {ran:.0%} of blocks run, {compared}"


def sent_bytes(row: Mapping[str, Any]) -> int | None:
    """Return the bytes sent by all ranks; None if a part was not counted."""
    counts = list(row["sent"].values())
    return None if None in counts else sum(counts)


def _cell(cell: Mapping[str, Any]) -> str:
    guided = f"guidance {cell['guidance']:g}" if cell["guidance"] != 1 else "without guidance"
    return f"{cell['tokens']} tokens, {cell['dtype']}, {guided}"


def _head(unit: str, *, rate: str = "sent MiB") -> str:
    return (
        f"{'variant':<16}{unit:>10}{'+- MAD':>9}{'speedup':>10}{'+- MAD':>8}{'of side-by-side':>17}"
        f"{'over all cores':>16}{rate:>10}  output"
    )


def _row(row: Mapping[str, Any], *, is_image: bool = False) -> Iterator[str]:
    if row["status"] != "ok":
        yield f"{row['name']:<16}{'-':>10}  {row['reason']}"
        return
    yield f"{_numbers(row, is_image=is_image)}  {said(row)}"


def _numbers(row: Mapping[str, Any], *, is_image: bool = False) -> str:
    seconds, speedup = row["seconds"], row["speedup"]
    ceiling, over = (
        "-" if row.get(name) is None else format(row[name]["median"], ".3f")
        for name in ("over_side_by_side", "over_all_cores")
    )
    if is_image:
        more = f"{row['images_per_second']:.3g}"
    else:
        sent = sent_bytes(row)
        more = "-" if sent is None else f"{sent / MIB:.2f}"
    return (
        f"{row['name']:<16}{seconds['median']:>10.4f}{seconds['mad']:>9.4f}"
        f"{speedup['median']:>10.3f}{speedup['mad']:>8.3f}"
        f"{ceiling:>17}{over:>16}{more:>10}"
    )
