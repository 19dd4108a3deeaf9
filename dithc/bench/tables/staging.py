"""What staging costs beside bare decodes, for a terminal."""

from collections.abc import Mapping
from typing import Any

GIB = 1 << 30


def staging_table(result: Mapping[str, Any]) -> str:
    """A line for each program, its parts, and the ratio."""
    settings, programs = result["settings"], result["programs"]
    is_product = settings["of"] == "product"
    what = f"product of {settings['size']} x {settings['size']}" if is_product else "folder of pictures"
    if settings["inputs"] is not None:
        what = f"own {'product' if is_product else 'pictures'}"
    names = {
        "bare": "rasterio" if is_product else "Pillow, a loop a core",
        "dithc": "dithc stage, tiles",
    }
    lines = [
        f"{what}, {settings['threads']} core(s), medians of {settings['rounds']} rounds",
        f"{'program':<24}{'seconds':>10}{'+- MAD':>9}{'CPU s':>9}{'peak GiB':>10}",
    ]
    for name, found in programs.items():
        seconds = found["seconds"]
        lines.append(
            f"{names[name]:<24}{seconds['median']:>10.2f}{seconds['mad']:>9.2f}{found['cpu_seconds']:>9.1f}"
            f"{found['peak_bytes'] / GIB:>10.2f}"
        )
    lines += [f"  {verb:<22}{programs['dithc'][f'{verb}_seconds']:>10.2f}" for verb in ("stage", "tiles")]
    ratio = result["ratio"]
    return "\n".join(
        [*lines, f"dithc over bare: median {ratio['median']:.2f}, {min(ratio['all']):.2f} to {max(ratio['all']):.2f}"]
    )
