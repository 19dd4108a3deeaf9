"""The base of every configuration model: unknown keys are refused, values do not change, every field is documented."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]


class Settings(BaseModel):
    """A section of the configuration; each field's docstring is its documentation in the generated files."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
