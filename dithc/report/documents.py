"""JSON documents next to manifests, and results of benchmarks."""

from pathlib import Path
from typing import Any

from dithc.core.integrity import load_document, require_regular_file
from dithc.core.logging import user_error


def read_json(path: Path | None) -> dict[str, Any]:
    """Read a JSON mapping; return an empty one for None."""
    if path is None:
        return {}
    try:
        content = load_document(require_regular_file(path).read_text())
        return dict(content)
    except (OSError, ValueError, TypeError) as error:
        raise user_error(
            f"{path} cannot be read", got=error, expected="a JSON mapping", fix="remove it and rerun its stage"
        ) from error


def read_bench(path: Path, kind: str) -> dict[str, Any]:
    """Read the file of `dithc bench KIND --json`."""
    content = read_json(path)
    if content.get("bench") != kind or "summary" not in content:
        raise user_error(
            f"{path} is not a result of `dithc bench {kind}`",
            got=f"keys {', '.join(content) or 'none'}",
            expected=f"the file of `dithc bench {kind} --json`",
            fix=f"rerun the benchmark, or leave out --{'bench' if kind == 'step' else kind}",
        )
    return content
