"""Reading of weights from other programs: official DiT files, safetensors, diffusers folders.

Names and shapes identify neither the prediction type nor the norm or rotary embedding of the blocks. Files of dithc store
these unless they are the default: noise and the original blocks.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from dithc.config import training
from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import get_logger, user_error
from dithc.core.tensor_files import read_external
from dithc.core.weights import files_of
from dithc.model import DiTConfig, diffusers_keys, official_state_dict

CONFIG_FILE = "config.json"  # in a diffusers folder
FREQUENCIES = (
    "diffusers' DiTTransformer2DModel spaces the frequencies of the timestep by i / 127, the official DiT and dithc by "
    "i / 128; outputs differ by some percent, depending on the weights"
)
PREDICT = "prediction_type"
ORIGINAL = {PREDICT: training.ObjectiveConfig().prediction_type, **training.BlockKind()._asdict()}
KIND_PREFIX = "dithc."  # prefix of names in a file's metadata
log = get_logger(__name__)


def network_kind(predict: str, block: training.BlockKind) -> dict[str, str]:
    """Return the file metadata of a network. The metadata is empty for noise prediction and the original blocks."""
    properties = {PREDICT: predict, **block._asdict()}
    return {f"{KIND_PREFIX}{name}": str(value).lower() for name, value in properties.items() if value != ORIGINAL[name]}


def read_weights(
    path: Path, config: DiTConfig, *, weights: Literal["ema", "raw"]
) -> tuple[dict[str, Tensor], DiTConfig | None]:
    """Return the weights under the official names, and their model if specified.

    Files are memory-mapped, so that unused contents cost nothing. Only torch.save files from before version 1.6 are
    read completely.

    Args:
        path: safetensors or torch.save file, or folder or index of diffusers shards.
        config: model to start; used for settings that files without `config.json` lack.
        weights: choice in a file with several sets.

    Raises:
        UserError: the file is unreadable, holds no DiT weights, or declares a prediction type or blocks that
            `init_from_file` rejects.
    """
    content, metadata = read_external(path)
    _check_kind(path, metadata or content)
    if not diffusers_keys.are_diffusers_keys(content):
        return official_state_dict(content, weights="ema" if weights == "ema" else "model"), None
    source = _read_config(files_of(path)[0].with_name(CONFIG_FILE))
    log.info(f"weights for diffusers: {FREQUENCIES}; correct for weights converted from official ones")
    return diffusers_keys.from_diffusers(content, source or config), source


def _check_kind(path: Path, metadata: Any) -> None:
    """Reject weights of another declared type, which would load but be meaningless."""
    if not isinstance(metadata, Mapping):
        return
    texts = {str(name): value for name, value in metadata.items()}
    kind = {name.removeprefix(KIND_PREFIX): text for name, text in texts.items() if name.startswith(KIND_PREFIX)}
    if kind:
        raise user_error(
            f"weights in {path} have the expected names and shapes, but belong to another type of network",
            got=", ".join(f"{name} {value}" for name, value in sorted(kind.items())),
            expected=f"{PREDICT} {ORIGINAL[PREDICT]}, {training.BlockKind()}",
            fix="start from its run by `init_from_run`, which supports its type, or choose another file",
        )


def _read_config(path: Path) -> DiTConfig | None:
    """Return the model of a config.json, or None without the file."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a regular file")
        content = parse_json(require_regular_file(path).read_text())
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} at the top")
    except FileNotFoundError:
        log.info(f"no {CONFIG_FILE} next to the weights: assuming heads and size of this run's model")
        return None
    except (OSError, ValueError) as error:
        raise user_error(
            f"{path} cannot be read",
            got=error,
            expected="the settings of the model, a JSON object",
            fix="restore the file",
        ) from error
    source = diffusers_keys.source_of(content)
    eps = content.get("norm_eps", diffusers_keys.DEFAULTS["norm_eps"])
    if eps != diffusers_keys.NORM_EPS:
        log.info(
            f"weights for diffusers: norm_eps is {eps}; dithc, like the official DiT, uses {diffusers_keys.NORM_EPS}"
        )
    return source
