"""A small classifier that the workflow trains on tiles, as a feature extractor without a published network.

Its features distinguish only the classes of one dataset and, on request, defects of images. Distances of them rank
models of one experiment. They are not comparable with published FID or with another classifier.

Legend: N batch, C channels, H height, W width, K classes, D defects, d features: 128, with defects 224.
"""

import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from dithc.core.artifacts import outputs, sha256_file
from dithc.core.logging import MetricsWriter, get_logger, progress, user_error
from dithc.evaluate.extractors.defects import DEFECTS, damaged
from dithc.evaluate.extractors.extractor import Extractor
from dithc.evaluate.extractors.weights import fill, read_state, require_file, write_safetensors

log = get_logger(__name__)

KIND = "dithc-classifier"
METRICS_FOLDER = "metrics"
WIDTHS = (32, 64, 128)
NUM_GROUPS = 8
LEARNING_RATE = 2e-3
WEIGHT_DECAY = 1e-2
NOTE = "features of a small classifier trained on the tiles of this experiment: not comparable with published FID"


class Classifier(nn.Module):
    """Three convolutions of stride 2 with group normalization, averages over positions, one linear layer for the classes.

    Group normalization makes features independent of the other images in the batch. With defects, another layer
    predicts their levels, and features are the averages of all stages, because the first stages contain textures.
    """

    def __init__(self, num_classes: int, num_defects: int = 0) -> None:
        super().__init__()
        self.num_features = sum(WIDTHS) if num_defects else WIDTHS[-1]
        self.convs = nn.ModuleList(
            nn.Conv2d(width_in, width, 3, stride=2, padding=1)
            for width_in, width in zip((3, *WIDTHS[:-1]), WIDTHS, strict=True)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(NUM_GROUPS, width) for width in WIDTHS)
        self.head = nn.Linear(self.num_features, num_classes)
        self.defects = nn.Linear(self.num_features, num_defects) if num_defects else None

    def features(self, images: Tensor) -> Tensor:
        """Return features (N, d) of pixels 0..255 (N, 3, H, W)."""
        x = images.float() / 127.5 - 1  # (N, 3, H, W), -1..1
        stages: list[Tensor] = []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = functional.relu(norm(conv(x)))  # (N, C, H / 2, W / 2)
            stages.append(x.mean(dim=(2, 3)))  # (N, C)
        return stages[-1] if self.defects is None else torch.cat(stages, dim=1)  # (N, d)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))  # type: ignore[no-any-return]  # (N, K)


def train_classifier(
    images: NDArray[np.uint8],
    labels: NDArray[np.integer],
    *,
    path: Path,
    steps: int = 400,
    seed: int = 0,
    batch: int = 64,
    defects: bool = False,
) -> dict[str, object]:
    """Train the classifier and write it as safetensors with metadata; equal arguments and thread count give equal files.

    Args:
        images: uint8 RGB (N, 3, H, W), H and W at least 8; memory maps are read in batches.
        labels: Integer class of each image (N,).
        path: File to write; `metrics` in the same folder receives the loss of every step.
        defects: Whether to add defects (`defects.py`) and learn their type and level; one class is then enough.

    Returns:
        path, sha256, classes, images, steps, loss, and train_accuracy (0..1) on all images; with defects, their names and
        `defect_accuracy`, the share (0..1) of defects that the classifier recognizes.

    Raises:
        UserError: Images are too small, only one class exists, or training diverged.
        OSError: The disk is full or not writable; an earlier file at `path` is intact.
    """
    classes = _require_trainable(images, labels, minimum=1 if defects else 2)
    targets = torch.from_numpy(np.searchsorted(classes, labels).astype(np.int64))  # (N,)
    generator = torch.Generator().manual_seed(seed)
    network = _initial(len(classes), len(DEFECTS) if defects else 0, generator)
    loss = math.nan
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    order = torch.empty(0, dtype=torch.int64)
    output = outputs.OutputFolder(path.parent)
    output.plan([path])
    output.prune([], prefix=f"{METRICS_FOLDER}/")
    metrics = MetricsWriter(path.parent / METRICS_FOLDER, claim=output.plan)
    with progress(total=steps, label="train classifier", unit="step") as bar, metrics:
        for step in range(steps):
            if len(order) < min(batch, len(images)):
                order = torch.randperm(len(images), generator=generator)  # (N,)
            rows, order = order[:batch], order[batch:]
            pixels = torch.from_numpy(np.array(images[rows.numpy()]))  # (batch, 3, H, W)
            flipped = torch.rand(len(rows), generator=generator) < 0.5  # (batch,)
            pixels = torch.where(flipped.view(-1, 1, 1, 1), pixels.flip(3), pixels)
            lr = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
            for group in optimizer.param_groups:
                group["lr"] = lr
            error = _loss(network, pixels, targets[rows], generator)
            optimizer.zero_grad(set_to_none=True)
            error.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss = error.item()
            metrics.write(step + 1, loss=loss, lr=lr)
            bar.update(1, loss=f"{loss:.3f}")
    accuracy = _accuracy(network, images, targets, batch=batch)
    numbers: dict[str, object] = {
        "classes": [int(value) for value in classes],
        "images": len(images),
        "steps": steps,
        "seed": seed,
        "loss": loss,
        "train_accuracy": accuracy,
    }
    if defects:
        recognized = _defect_accuracy(network, images, generator, batch=batch)
        numbers |= {"defects": list(DEFECTS), "defect_accuracy": recognized}
    _check_training(loss, accuracy, num_classes=len(classes), numbers=numbers)
    write_safetensors(path, network.state_dict(), metadata={"kind": KIND, "note": NOTE, **numbers})
    return {"path": str(path), "sha256": sha256_file(path), **numbers}


def load(path: Path) -> Extractor:
    """Read a file of `train_classifier`."""
    require_file(path, kind="classifier", what_to_put="the file of `train_classifier`, about 0.4 MB")
    state, metadata = read_state(path)
    kind = metadata.get("kind")
    if kind != KIND:
        raise user_error(
            f"weights file {path} is not a classifier of dithc",
            got=f"kind {kind!r}",
            expected=f"kind {KIND!r} in the file's metadata",
            fix="train one on the tiles of the experiment, or select another `kind` of extractor",
        )
    network = Classifier(len(metadata["classes"]), len(metadata.get("defects", ()))).eval()
    fill(network, state, path=path, hint="train the classifier again")
    defect_note = f", defects recognized {metadata['defect_accuracy']:.3f}" if "defects" in metadata else ""
    return Extractor(
        name=path.name,
        kind="classifier",
        sha256=sha256_file(path),
        num_features=network.num_features,
        note=f"{NOTE} (train accuracy {metadata['train_accuracy']:.3f}{defect_note})",
        network=network.features,
    )


def _require_trainable(images: NDArray[np.uint8], labels: NDArray[np.integer], *, minimum: int) -> NDArray[np.integer]:
    classes = np.unique(labels)
    if len(classes) < minimum:
        raise user_error(
            "the classifier requires two classes",
            got=f"{len(classes)} class(es) in {len(labels)} images",
            expected="at least two classes",
            fix="set `train_on_defects: true`, which requires only one class, or use another extractor",
        )
    if min(images.shape[2:]) < 8:
        raise user_error(
            "images for the classifier are too small",
            got=f"{images.shape[2]}x{images.shape[3]} pixels",
            expected="at least 8x8",
            fix="use larger tiles",
        )
    return classes


def _loss(network: Classifier, pixels: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
    """Return the cross entropy of the classes (N,), plus the sum over levels of added defects."""
    if network.defects is None:
        return functional.cross_entropy(network(pixels), targets)
    pixels, levels = damaged(pixels.float(), generator)  # (N, 3, H, W), (N, D)
    features = network.features(pixels)  # (N, d)
    defect_loss = functional.binary_cross_entropy_with_logits(network.defects(features), levels) * len(DEFECTS)
    return functional.cross_entropy(network.head(features), targets) + defect_loss


def _initial(num_classes: int, num_defects: int, generator: torch.Generator) -> Classifier:
    """Return a network initialized from the generator alone; the global random state is unchanged."""
    with torch.random.fork_rng(devices=[]):
        network = Classifier(num_classes, num_defects)
    for conv in network.convs:
        assert isinstance(conv, nn.Conv2d)
        assert conv.bias is not None
        nn.init.kaiming_normal_(conv.weight, nonlinearity="relu", generator=generator)
        nn.init.zeros_(conv.bias)
    for layer in [network.head] if network.defects is None else [network.head, network.defects]:
        nn.init.normal_(layer.weight, std=network.num_features**-0.5, generator=generator)
        nn.init.zeros_(layer.bias)
    return network


@torch.inference_mode()
def _accuracy(network: Classifier, images: NDArray[np.uint8], targets: Tensor, *, batch: int) -> float:
    correct = 0
    for first in range(0, len(images), batch):
        scores = network(torch.from_numpy(np.array(images[first : first + batch])))  # (batch, K)
        correct += int((scores.argmax(dim=1) == targets[first : first + batch]).sum())
    return correct / len(images)


@torch.inference_mode()
def _defect_accuracy(
    network: Classifier, images: NDArray[np.uint8], generator: torch.Generator, *, batch: int
) -> float:
    assert network.defects is not None
    correct = total = 0
    for first in range(0, len(images), batch):
        pixels, levels = damaged(torch.from_numpy(np.array(images[first : first + batch])).float(), generator)
        has_defect = levels.amax(dim=1) > 0  # (batch,)
        predicted = network.defects(network.features(pixels)).argmax(dim=1)  # (batch,)
        correct += int((predicted == levels.argmax(dim=1))[has_defect].sum())
        total += int(has_defect.sum())
    return correct / max(total, 1)


def _check_training(loss: float, accuracy: float, *, num_classes: int, numbers: dict[str, object]) -> None:
    """Reject a diverged training run, and warn if it did not beat guessing."""
    if not math.isfinite(loss):
        raise user_error(
            "training of the classifier diverged or did not run",
            got=f"loss {loss} after {numbers['steps']} steps",
            expected="a finite loss and at least one step",
            fix="check the images and the number of steps",
        )
    if accuracy < 2 / num_classes and num_classes > 2:
        log.warning(
            f"classifier: train accuracy {accuracy:.3f} with {num_classes} classes is close to guessing; "
            "distances of its features have little meaning: train longer"
        )
    else:
        log.info(f"classifier: train accuracy {accuracy:.3f} over {num_classes} classes, loss {loss:.3f}")
    recognized = numbers.get("defect_accuracy")
    if isinstance(recognized, float) and recognized < 2 / len(DEFECTS):
        log.warning(
            f"classifier: it recognizes {recognized:.3f} of the defects of {len(DEFECTS)} types, which is close to guessing; "
            "distances of its features have little meaning for defects: train longer"
        )
