"""JSON documents that stand beside manifests, or that benches wrote."""

from pathlib import Path
from typing import Any

from dithc.log import problem
from dithc.sealed import content_of, plain


def read_json(path: Path | None) -> dict[str, Any]:
    """A JSON mapping that must be readable; nothing for None."""
    if path is None:
        return {}
    try:
        content = content_of(plain(path).read_text())
        return dict(content)
    except (OSError, ValueError, TypeError) as error:
        raise problem(
            f"{path} cannot be read", got=error, expected="a JSON mapping", remedy="remove it and rerun its stage"
        ) from error
