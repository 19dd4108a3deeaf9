"""Base classes for settings of installed packages, and their validation in a configuration.

A subclass adds its settings as fields with ranges and docstrings, and implements the open methods of its base. It
imports libraries such as torch inside these methods, because every job reads the configuration."""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import Field, TypeAdapter, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from dithc.config.schema.base import Band, Name, Place, Settings
from dithc.config.suggestions import suggest_value
from dithc.core import plugins
from dithc.core.logging import UserError, user_error

T = TypeVar("T")


class PluginSettings(Settings):
    """Settings common to all installed plugins."""

    kind: Name
    """Name of the entry point."""
    group: ClassVar[plugins.Group]

    @property
    def plugin(self) -> dict[str, str]:
        """Package and version, which are part of the settings that determine a result."""
        plugin = plugins.find_plugin(self.group, self.kind)
        return {"package": plugin.package, "version": plugin.version}

    @property
    def words(self) -> str:
        """Name, and the settings that differ from their defaults."""
        changed = self.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True)
        return " ".join([self.kind, *(f"{name} {value}" for name, value in changed.items())])

    @property
    def files(self) -> list[Path]:
        """Files at `path`, whose bytes determine results; empty without `path`. Raises UserError if none exists."""
        path: str | None = getattr(self, "path", None)
        if path is None:
            return []
        paths = [Path(path)] if Path(path).is_file() else sorted(one for one in Path(path).rglob("*") if one.is_file())
        if not paths:
            fix = "copy it there, or set `path`; dithc does not download it"
            raise user_error(
                f"`path` of {self.kind}", got=f"{path}, no such file", expected="a file or folder", fix=fix
            )
        return paths

    def called(self, work: Callable[..., T], *given: Any) -> T:
        """Call code of the package; raises UserError for any exception."""
        try:
            return work(*given)
        except UserError:
            raise
        except Exception as error:
            raise self.fault(
                f"fails in `{getattr(work, '__name__', work)}`",
                got=f"{type(error).__name__}: {error}",
                expected="no error",
            ) from error

    def fault(self, problem: str, *, got: object, expected: object) -> UserError:
        plugin = f"{self.kind!r} of dithc.{self.group} ({type(self).__module__}.{type(self).__qualname__})"
        return plugins.fault(f"{plugin} {problem}", got=got, expected=expected)

    @classmethod
    def load_class(cls, found: plugins.Plugin) -> type[Self]:
        """Return the class of an entry point; raises UserError unless it is a valid subclass of this class."""
        loaded = found.load()
        if not (isinstance(loaded, type) and issubclass(loaded, cls)):
            raise found.fault("has the wrong type", got=loaded, expected=f"a subclass of dithc's {cls.__name__}")
        if reserved := [name for name in loaded.model_fields if name not in cls.model_fields and hasattr(cls, name)]:
            raise found.fault("has settings with reserved names", got=", ".join(reserved), expected="other names")
        return loaded


class PluginSampler(PluginSettings):
    """A sampler of an installed package (docs/extending.md); its `run(context)` turns noise into images."""

    group: ClassVar[plugins.Group] = "samplers"
    predicts: ClassVar[Literal["noise", "flow"]] = "noise"
    """noise: for networks that predict noise; flow: for networks with `objective.prediction_type: flow`."""
    spacing: ClassVar[Literal["time", "snr"]] = "time"
    """Spacing of the timesteps of a noise schedule."""
    orders: ClassVar[tuple[int, ...]] = ()

    def __str__(self) -> str:
        return self.words

    def run(self, context: Any) -> Any:
        """Return images (N, C, h, w) from the noise `context.noise(0)`, with as many evaluations of the network as steps."""
        raise NotImplementedError(f"{type(self).__name__} has no `run(context)`")


class PluginSource(PluginSettings):
    """A source of an installed package (docs/extending.md); `scenes(folder)` lists files, `read(path)` reads one."""

    group: ClassVar[plugins.Group] = "sources"
    synthetic: ClassVar[None] = None
    labeled: ClassVar[bool] = False
    """True if the scenes have more than one class."""
    path: Place
    """Folder with the user's files, relative to the working folder."""
    bands: list[Band] = Field(min_length=1, max_length=64)
    """Names of the bands of its scenes, in this order."""

    def scenes(self, folder: Path) -> list[Path]:
        """Return the file or folder of each scene, always in the same order."""
        raise NotImplementedError(f"{type(self).__name__} has no `scenes(folder)`")

    def classes(self, folder: Path) -> list[str]:
        """Return the names of the classes that labels index."""
        return [self.kind]

    def inputs(self, path: Path) -> list[Path]:
        """Return all files that determine a scene; the scene is reread if one of them changes."""
        return [path]

    def read(self, path: Path) -> Any:
        """Return a `Raster` of dithc/data/readers/plugin.py; raise OSError or ValueError for an unreadable file."""
        raise NotImplementedError(f"{type(self).__name__} has no `read(path)`")


class PluginExtractor(PluginSettings):
    """A feature extractor of an installed package (docs/extending.md); its `network()` computes features of images."""

    group: ClassVar[plugins.Group] = "extractors"
    train_dataset: ClassVar[None] = None
    path: Place | None = None
    """File or folder that the extractor reads, if any; its bytes are part of the identity of the features."""
    resize: ClassVar[str] = "none"

    def network(self) -> Callable[[Any], Any]:
        """Return a function from float32 RGB (N, 3, H, W), 0 to 255, H and W from 32 up, to features (N, d)."""
        raise NotImplementedError(f"{type(self).__name__} has no `network()`")


class PluginConditions(PluginSettings):
    """Conditions of tiles from an installed package (docs/extending.md); the function of its `open()` computes them."""

    group: ClassVar[plugins.Group] = "conditions"
    path: Place | None = None
    """File that the package reads, if any. A rule runs again if its bytes change."""

    def model(self) -> list[dict[str, Any]]:
        """Return the map of each column to numbers for a model, like `MODEL` in dithc/data/tiles/conditions.py."""
        raise NotImplementedError(f"{type(self).__name__} has no `model()`")

    def open(self) -> Callable[[Mapping[str, list[Any]]], Mapping[str, list[float | None]]]:
        """Return a function from the conditions of N tiles to columns of N numbers.

        The input also has `scene_id`, `x` and `y`. None is an unknown number.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `open()`")


REGISTERED: dict[plugins.Group, tuple[type[PluginSettings], tuple[str, ...]]] = {}
"""Base class and built-in names of each group, as passed to `plugin_field`."""


def kinds_of(models: Any) -> tuple[str, ...]:
    """Return the `kind` of each model of a discriminated union."""
    union, *_ = get_args(models)
    return tuple(get_args(model.model_fields["kind"].annotation)[0] for model in get_args(union))


def plugin_field(
    base: type[PluginSettings], built_in: Collection[str], models: Any, *, bare: bool = False
) -> WrapValidator:
    """Return a validator that accepts the built-in kinds of a setting, of type `models`, and those of installed packages.

    With `bare`, a name without settings is valid, such as `sampler: ddim`.
    """
    REGISTERED[base.group] = base, tuple(built_in)

    @cache
    def adapter() -> TypeAdapter[Any]:
        return TypeAdapter(models)

    def validate(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, base):
            return value
        settings = {"kind": value} if bare and isinstance(value, str) else value
        name = settings.get("kind") if isinstance(settings, Mapping) else None
        if not isinstance(name, str) or name in built_in:
            return adapter().validate_python(value)
        try:
            plugin = plugins.find_plugin(base.group, name, built_in=built_in)
            return _validated(base.load_class(plugin), settings, plugin)
        except UserError as error:
            text = "; ".join(" ".join(line.split()) for line in str(error).splitlines())
            is_known = any(one.name == name for one in plugins.list_plugins(base.group))
            raise ValueError(text + ("" if is_known else suggest_value(name, list(built_in)))) from error

    return WrapValidator(validate)


def _validated(model: type[PluginSettings], settings: Mapping[str, Any], plugin: plugins.Plugin) -> PluginSettings:
    """Validate settings with the class of a package; raises UserError if a validator of the package fails."""
    try:
        return model.model_validate(dict(settings))
    except (UserError, ValidationError):
        raise
    except Exception as error:  # pydantic reports only ValueError and AssertionError as faults of a value
        got = f"{type(error).__name__}: {error}"
        raise plugin.fault("fails in a validator of its settings", got=got, expected="ValueError or success") from error
