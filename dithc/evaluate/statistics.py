"""Mean and covariance of features, streamed in float64, stored in an npz file.

Legend: n rows added, d features.
"""

import zipfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dithc.core.artifacts import atomic_replace
from dithc.core.logging import user_error

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class FeatureOrigin:
    """Provenance of features: fields that must be equal in a comparison, and fields to print with the result."""

    extractor: str = ""  # name of the weights file
    kind: str = ""  # type of extractor
    sha256: str = ""  # hash of the weights file
    resize: str = ""  # conversion of images to the input size of the network
    comparable_to_published: bool = False  # whether the FID is comparable with published FID
    note: str = ""  # one sentence to print with the scores
    set_hash: str = ""  # hash of the set of images
    rendering_digest: str = ""  # name or hash of the fixed display stretch to uint8


NO_ORIGIN = FeatureOrigin()


class Statistics:
    """n, sum(x - c) and sum((x - c)(x - c)^T) of feature vectors x, in float64.

    The shift c is the mean of the first batch. It keeps the sums at the size of the spread, so that the covariance does
    not suffer from cancellation if features are far from zero.
    """

    def __init__(self, num_features: int, *, origin: FeatureOrigin = NO_ORIGIN) -> None:
        self.num_features = num_features
        self.origin = origin
        self.n = 0
        self._shift: FloatArray = np.zeros(num_features)  # (d,)
        self._sum: FloatArray = np.zeros(num_features)  # (d,)
        self._outer: FloatArray = np.zeros((num_features, num_features))  # (d, d)

    def update(self, features: NDArray[np.floating]) -> None:
        """Add finite rows (n, d) of any floating dtype."""
        if not len(features):
            return
        rows = features.astype(np.float64)  # (n, d)
        if not self.n:
            self._shift = rows.mean(axis=0)
        rows -= self._shift
        self.n += len(rows)
        self._sum += rows.sum(axis=0)
        self._outer += rows.T @ rows

    def mean(self) -> FloatArray:
        """Return the mean (d,) of at least one row."""
        return self._shift + self._sum / self.n

    def covariance(self) -> FloatArray:
        """Return the unbiased covariance (d, d) of at least two rows, divided by n - 1 and exactly symmetric."""
        scatter = self._outer - np.outer(self._sum, self._sum) / self.n  # (d, d)
        return (scatter + scatter.T) / (2 * (self.n - 1))

    def save(self, path: Path) -> None:
        """Write {mu, sigma, n, extractor, resize, set_hash, ...}; pytorch-fid reads mu and sigma."""
        arrays: dict[str, Any] = {"mu": self.mean(), "sigma": self.covariance(), "n": np.int64(self.n)}
        with atomic_replace(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays, **asdict(self.origin))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of `save`; further rows can be added."""
        try:
            file = read_arrays(path)
            mu, sigma, n = file["mu"], file["sigma"], int(file["n"])
            origin = FeatureOrigin(**{field.name: file[field.name].item() for field in fields(FeatureOrigin)})
        except (ValueError, KeyError) as error:
            raise user_error(
                f"statistics file {path} cannot be read",
                got=error,
                expected="an npz file with mu, sigma, n, extractor, sha256, resize, set_hash",
                fix="rerun the features stage",
            ) from error
        statistics = cls(len(mu), origin=origin)
        statistics.n, statistics._shift, statistics._outer = n, mu, sigma * (n - 1)
        return statistics


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an npz file; ValueError if it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def require_same(a: Statistics, b: Statistics) -> None:
    """Reject statistics of different extractors, resize modes, stretches or sizes."""
    names = ("kind", "sha256", "resize", "rendering_digest")
    pairs = [(name, getattr(a.origin, name), getattr(b.origin, name)) for name in names]
    pairs.append(("num_features", a.num_features, b.num_features))
    different = [f"{name}: {first!r} and {second!r}" for name, first, second in pairs if first != second]
    if different:
        raise user_error(
            "statistics of different origin cannot be compared",
            got="; ".join(different),
            expected="equal extractor, resize, stretch and number of features",
            fix="extract the features of both sets with one extractor, one resize mode and one stretch",
        )
