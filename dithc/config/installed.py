"""Settings that installed packages bring: the classes that theirs are subclasses of, and how a configuration takes them.

A subclass adds its settings as fields, with ranges and docstrings as all models here, and does what its base leaves open. What it
needs for that (torch, a library) it imports when it is called, since configurations are read in every job.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

from pydantic import Field, TypeAdapter, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from dithc import extensions
from dithc.config.base import Band, Name, Place, Settings
from dithc.config.nearest import word_meant
from dithc.log import UserError, problem

T = TypeVar("T")


class Installed(Settings):
    """What all have: the name in the configuration, and the package that stands behind it."""

    kind: Name
    """Name of the entry point."""
    group: ClassVar[extensions.Group]

    @property
    def extension(self) -> dict[str, str]:
        """Package and version, part of what decides a result."""
        found = extensions.find(self.group, self.kind)
        return {"package": found.package, "version": found.version}

    @property
    def words(self) -> str:
        """Its name, and the settings that differ from their defaults."""
        changed = self.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True)
        return " ".join([self.kind, *(f"{name} {value}" for name, value in changed.items())])

    @property
    def files(self) -> list[Path]:
        """Files whose bytes decide, beside the settings: what stands at `path`, where it has one.

        Raises:
            UserError: there is nothing.
        """
        path: str | None = getattr(self, "path", None)
        if path is None:
            return []
        found = [Path(path)] if Path(path).is_file() else sorted(one for one in Path(path).rglob("*") if one.is_file())
        if not found:
            fix = "put it there, or set `path`; nothing is downloaded"
            raise problem(
                f"`path` of {self.kind}", got=f"{path}, where no file is", expected="a file or a folder", fix=fix
            )
        return found

    def called(self, work: Callable[..., T], *given: Any) -> T:
        """What the package's code gives; whatever it raises is told as a fault of the package.

        Raises:
            UserError: it raised something.
        """
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

    def fault(self, what: str, *, got: object, expected: object) -> UserError:
        """The error of an extension that does not keep its contract."""
        return problem(
            f"{self.kind!r} of dithc.{self.group} ({type(self).__module__}.{type(self).__qualname__}) {what}",
            got=got,
            expected=expected,
            fix="mend it, or install another version of its package; docs/extending.md says what is expected",
        )

    @classmethod
    def of(cls, given: Mapping[str, Any], *, built_in: Collection[str] = ()) -> Self:
        """The settings of an installed extension, read by its own class.

        Raises:
            UserError: no package brings it, or what it brings is none.
            ValidationError: a setting is wrong.
        """
        found = extensions.find(cls.group, str(given["kind"]), built_in=built_in)
        brought = cls.brought(found)
        try:
            return brought.model_validate(dict(given))
        except (UserError, ValidationError):
            raise
        except (
            Exception
        ) as error:  # of a check that the package makes: pydantic takes ValueError and AssertionError for faults
            told = f"{type(error).__name__}: {error}"
            raise found.fault(
                "fails where it checks its settings", got=told, expected="a ValueError, or none"
            ) from error

    @classmethod
    def brought(cls, found: extensions.Extension) -> type[Self]:
        """The class that an entry point names.

        Raises:
            UserError: it cannot be loaded, or is no subclass of this one.
        """
        loaded = found.load()
        if not (isinstance(loaded, type) and issubclass(loaded, cls)):
            raise found.fault("is none", got=loaded, expected=f"a subclass of dithc's {cls.__name__}")
        if taken := [name for name in loaded.model_fields if name not in cls.model_fields and hasattr(cls, name)]:
            raise found.fault("has settings of names that are taken", got=", ".join(taken), expected="other names")
        return loaded


class InstalledSampler(Installed):
    """A sampler of an installed package (docs/extending.md); its `run(walk)` goes from noise to images."""

    group: ClassVar[extensions.Group] = "samplers"
    predicts: ClassVar[Literal["noise", "flow"]] = "noise"
    """noise: for networks that predict noise or v; flow: for those of `objective.predict: flow`."""
    spacing: ClassVar[Literal["time", "snr"]] = "time"
    """How the timesteps of a noise schedule are spread."""
    orders: ClassVar[tuple[int, ...]] = ()

    def __str__(self) -> str:
        return self.words

    def run(self, walk: Any) -> Any:
        """Images (N, C, h, w) of `walk.noise(0)`, by `walk.steps` evaluations of the network."""
        raise NotImplementedError(f"{type(self).__name__} has no `run(walk)`")


class InstalledSource(Installed):
    """A source of an installed package (docs/extending.md); its `scenes(folder)` lists files, `read(path)` reads one."""

    group: ClassVar[extensions.Group] = "sources"
    synthetic: ClassVar[None] = None
    labelled: ClassVar[bool] = False
    """Whether its scenes are of more than one class."""
    path: Place
    """Folder with the user's files, relative to the working folder."""
    bands: list[Band] = Field(min_length=1, max_length=64)
    """Names of the bands that its scenes have, in this order."""

    def scenes(self, folder: Path) -> list[Path]:
        """The file (or folder) of each scene, in an order that is always the same."""
        raise NotImplementedError(f"{type(self).__name__} has no `scenes(folder)`")

    def classes(self, folder: Path) -> list[str]:
        """Names of the classes that labels index."""
        return [self.kind]

    def inputs(self, path: Path) -> list[Path]:
        """All files that decide what is read of a scene: while they are as they were, it is not read again."""
        return [path]

    def read(self, path: Path) -> Any:
        """A `Raster` of dithc/data/readers/installed.py. Raises OSError or ValueError where it cannot be read."""
        raise NotImplementedError(f"{type(self).__name__} has no `read(path)`")


class InstalledExtractor(Installed):
    """A feature extractor of an installed package (docs/extending.md); its `network()` makes features of pictures."""

    group: ClassVar[extensions.Group] = "extractors"
    trained_on: ClassVar[None] = None
    path: Place | None = None
    """File or folder that it reads, if it does; its bytes are part of what features are compared by."""
    resize: ClassVar[str] = "none"

    def network(self) -> Callable[[Any], Any]:
        """Takes float32 RGB (N, 3, H, W), 0 to 255, of any size from 32 up; gives floating features (N, d)."""
        raise NotImplementedError(f"{type(self).__name__} has no `network()`")


class InstalledConditions(Installed):
    """Conditions of tiles of an installed package (docs/extending.md); what its `open()` gives computes them."""

    group: ClassVar[extensions.Group] = "conditions"
    path: Place | None = None
    """File that it reads, if it does; its bytes count where a rule is to run again."""

    def model(self) -> list[dict[str, Any]]:
        """How columns become numbers for a model: entries as those of `MODEL` in dithc/data/tiles/conditions.py."""
        raise NotImplementedError(f"{type(self).__name__} has no `model()`")

    def open(self) -> Callable[[Mapping[str, list[Any]]], Mapping[str, list[float | None]]]:
        """A function from the conditions of N tiles (and `scene_id`, `x`, `y`) to columns of N numbers, None where unknown."""
        raise NotImplementedError(f"{type(self).__name__} has no `open()`")


def kinds_of(models: Any) -> tuple[str, ...]:
    """The `kind` of each model of a union that is told apart by it."""
    union, *_ = get_args(models)
    return tuple(get_args(model.model_fields["kind"].annotation)[0] for model in get_args(union))


def taking(base: type[Installed], built_in: Collection[str], models: Any, *, bare: bool = False) -> WrapValidator:
    """Lets a setting be one of the built-in kinds, or of an installed package's; faults are told as of the built-in ones.

    Args:
        base: class of the installed ones.
        built_in: names of those that are not.
        models: type of those.
        bare: whether a name alone stands for one: `sampler: ddim`.
    """
    known: TypeAdapter[Any] = TypeAdapter(models)

    def take(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, base):
            return value
        given = {"kind": value} if bare and isinstance(value, str) else value
        name = given.get("kind") if isinstance(given, Mapping) else None
        if not isinstance(name, str) or name in built_in:
            return known.validate_python(value)
        try:
            return base.of(given, built_in=built_in)
        except UserError as error:
            told = "; ".join(" ".join(line.split()) for line in str(error).splitlines())
            is_known = any(one.name == name for one in extensions.installed(base.group))
            raise ValueError(told + ("" if is_known else word_meant(name, list(built_in)))) from error

    return WrapValidator(take)
