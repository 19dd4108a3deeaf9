"""JSON documents that stand beside manifests, or that benches wrote."""

from pathlib import Path
from typing import Any

from dithc.log import problem
from dithc.sealed import content_of, plain


def read_json(path: Path | None) -> dict[str, Any]:
    """Read a JSON mapping; empty for None."""
    if path is None:
        return {}
    try:
        content = content_of(plain(path).read_text())
        return dict(content)
    except (OSError, ValueError, TypeError) as error:
        raise problem(
            f"{path} cannot be read", got=error, expected="a JSON mapping", fix="remove it and rerun its stage"
        ) from error


def read_bench(path: Path, kind: str, *, part: str, what: str, option: str = "") -> dict[str, Any]:
    """Read the JSON that `dithc bench <kind> --json` wrote; `part` is a key that it must contain.

    Raises:
        UserError: the file is unreadable, or has another content than `what`.
    """
    content = read_json(path)
    if content.get("bench") != kind or part not in content:
        raise problem(
            f"{path} is no {what}",
            got=f"keys {', '.join(content) or 'none'}",
            expected=f"what `dithc bench {kind} --json` wrote, with `{part}`",
            fix=f"run the bench again, or leave out --{option or kind}",
        )
    return content
