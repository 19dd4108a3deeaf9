"""Reading and writing of weights files. Only this module of the package opens them."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from dithc.core.artifacts import atomic_replace
from dithc.core.integrity import parse_json
from dithc.core.logging import user_error
from dithc.core.tensor_files import read_external
from dithc.core.weights import unreadable

NAMES_SHOWN = 6
METADATA_KEY = "dithc"


def require_file(path: Path, *, kind: str, what_to_put: str) -> None:
    """Reject a path that is not a file; `what_to_put` describes the file."""
    if not path.is_file():
        raise user_error(
            f"weights file of the {kind} feature extractor is missing",
            got=f"{path} ({'a folder' if path.is_dir() else 'no such file'})",
            expected=what_to_put,
            fix="copy that file or correct its path; nothing is downloaded and no other network replaces it",
        )


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a state dictionary from a safetensors file or a file of torch.save, without running code from it.

    Returns:
        Tensors by name, and the metadata of `write_safetensors` (empty for files of other programs).
    """
    state, file_metadata = read_external(path)
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise user_error(
            f"weights file {path} does not contain a state dict",
            got=type(state).__name__,
            expected="a mapping of parameter names to tensors",
            fix="save the network's state_dict(), not the network or a training checkpoint",
        )
    try:
        return dict(state), parse_json(file_metadata.get(METADATA_KEY, "{}"))
    except ValueError as error:
        title, expected = f"metadata of {path} cannot be read", "JSON of dithc"
        raise unreadable(title, path, expected=expected, error=error) from error


def write_safetensors(path: Path, state: dict[str, Tensor], *, metadata: Mapping[str, object]) -> None:
    """Write tensors with metadata (JSON values) atomically; an OSError leaves an earlier file at `path` intact.

    Equal content produces equal bytes: metadata is one sorted JSON text, because the library does not order keys.
    """
    text = json.dumps(metadata, sort_keys=True)
    tensors = {name: value.contiguous() for name, value in state.items()}
    with atomic_replace(path) as temporary:
        try:
            save_file(tensors, temporary, metadata={METADATA_KEY: text})
        except SafetensorError as error:  # the library wraps the error of the system
            number = re.search(r"os error (\d+)", str(error))
            arguments = (int(number[1]), os.strerror(int(number[1])), str(path)) if number else (str(error),)
            raise OSError(*arguments) from error


def fill(network: nn.Module, state: Mapping[str, Tensor], *, path: Path, hint: str) -> None:
    """Copy a state dict into a network.

    Counters of batch normalization (`num_batches_tracked`) do not affect inference and may be absent.
    """
    expected = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    missing = [name for name in expected if name not in state and not name.endswith("num_batches_tracked")]
    unknown = [name for name in state if name not in expected]
    shapes = [
        f"{name} {tuple(state[name].shape)} instead of {shape}"
        for name, shape in expected.items()
        if name in state and tuple(state[name].shape) != shape
    ]
    faults = [("missing", missing), ("unknown", unknown), ("wrong shape", shapes)]
    if any(names for _, names in faults):
        raise user_error(
            f"weights file {path} does not match the network",
            got="; ".join(f"{len(names)} {fault}: {_list_names(names)}" for fault, names in faults if names),
            expected=f"{len(expected)} tensors such as {_list_names(list(expected)[:2])}",
            fix=hint,
        )
    network.load_state_dict(dict(state), strict=False)


def _list_names(names: list[str]) -> str:
    text = ", ".join(names[:NAMES_SHOWN])
    return f"{text}, ..." if len(names) > NAMES_SHOWN else text
