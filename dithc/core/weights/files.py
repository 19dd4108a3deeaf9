"""Paths of weight files, and tensor names without wrapper prefixes."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import get_logger, user_error

DIFFUSERS_FILE = "diffusion_pytorch_model.safetensors"
NUMBERED = re.compile(r"-(\d{5})-of-(\d{5})$")
WRAPPERS = frozenset(
    {
        *("module", "_orig_mod", "_fsdp_wrapped_module", "_fpw_module"),
        *("_checkpoint_wrapped_module", "_forward_module", "_original_module"),
    }
)
"""Attributes that hold a module in DistributedDataParallel, torch.compile, FSDP, activation checkpointing and
Fabric."""
AVERAGED = "n_averaged"  # counter of torch.optim.swa_utils.AveragedModel
T = TypeVar("T")
log = get_logger(__name__)


def files_of(path: Path) -> list[Path]:
    """Return the weight files of a path.

    Args:
        path: A file; an index of shards (`*.index.json`); a name with numbered shards (`x-00001-of-00002.safetensors`),
            or one of these shards; or a folder in the layout of diffusers, with one file or with shards.

    Raises:
        OSError: The file, the folder or a shard does not exist.
        ValueError: An index is invalid.
    """
    if path.is_dir():
        indexes = sorted(
            path.glob("*.safetensors.index*.json"), key=lambda index: (not index.name.startswith(DIFFUSERS_FILE), index)
        )
        return files_of(path / DIFFUSERS_FILE if (path / DIFFUSERS_FILE).exists() or not indexes else indexes[0])
    if path.suffix == ".json" and ".index" in path.suffixes and path.exists():
        return _read_index(path)
    if path.exists() and not NUMBERED.search(path.stem):
        return [require_regular_file(path)]
    stem = NUMBERED.sub("", path.stem)
    counts = {
        int(match[2])
        for sibling in path.parent.glob(f"*{path.suffix}")
        if (match := NUMBERED.search(sibling.stem)) and sibling.stem[: match.start()] == stem
    }
    if len(counts) != 1:
        raise FileNotFoundError(f"{path}: {f'shards of {sorted(counts)} files' if counts else 'no such file'}")
    count = counts.pop()
    return _check([path.with_name(f"{stem}-{number + 1:05d}-of-{count:05d}{path.suffix}") for number in range(count)])


def _read_index(path: Path) -> list[Path]:
    content = parse_json(require_regular_file(path).read_text())
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{path.name}: no `weight_map` of shards")
    shards = sorted(set(names.values()))
    if invalid := [name for name in shards if Path(name).name != name]:
        raise ValueError(f"{path.name}: shard {invalid[0]!r} is not a file name")
    return _check([path.with_name(name) for name in shards])


def _check(files: list[Path]) -> list[Path]:
    if missing := [file.name for file in files if not file.is_file()]:
        raise FileNotFoundError(f"{', '.join(missing[:3])} missing, of {len(files)} shards")
    return files


def unwrapped(state: Mapping[str, T], *, source: object) -> Mapping[str, T]:
    """Remove the attributes of wrappers from all names of a state dictionary, at any depth; logs a removal in one line.

    `source` names the file or object in messages. Raises UserError if two names differ by wrappers only.
    """
    parts = {key: str(key).split(".") for key in state}
    names = {
        key: ".".join([*(part for part in segments[:-1] if part not in WRAPPERS), segments[-1]])
        for key, segments in parts.items()
    }
    removed = sorted({part for segments in parts.values() for part in segments[:-1] if part in WRAPPERS})
    if not removed:
        return state
    if "module" in removed and len(parts.get(AVERAGED, ())) == 1:
        del names[AVERAGED]
    if len(set(names.values())) < len(names):
        duplicate = next(name for name in names.values() if list(names.values()).count(name) > 1)
        got, expected = f"{duplicate} twice", "each name once, with or without prefixes of wrappers"
        raise user_error(f"names in {source}", got=got, expected=expected, fix="save the weights of one model alone")
    prefixes = ", ".join(f"{part}." for part in removed)
    log.info("%s: removed the wrapper prefixes %s from names of weights", source, prefixes)
    return {name: state[key] for key, name in names.items()}


def digest_of_files(paths: Sequence[Path], *, settings: Any = None) -> str:
    """Return the SHA-256 over settings, as JSON unless None, and the bytes of files, in hex digits."""
    digest = hashlib.sha256(b"" if settings is None else json.dumps(settings).encode())
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()
