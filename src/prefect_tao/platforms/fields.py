"""What the settings of all platforms share: fields that know their variable, and those that every platform has.

A platform declares its fields once, in its own `settings.py`, in a class that inherits from one here. The block adds
Prefect and the secrets to that class; the driver's settings are a frozen copy of it that refuses unknown names. So this
module and every `settings.py` import pydantic only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, StringConstraints, model_validator

T = TypeVar("T")
# For the settings of a driver, never for what a block inherits: Prefect changes blocks, and keeps extra keys in them.
FROZEN = ConfigDict(frozen=True, extra="forbid")


class Variable(NamedTuple):
    """The environment variable that a field is read from, and its names in other tools.

    A credential is handed on under that name; what is no credential, but a habit of the site, is not.
    """

    name: str
    others: tuple[str, ...] = ()
    is_credential: bool = True


class InShape(NamedTuple):
    """Marks a field as part of the compute shape of a job that does not say, by the catalog's name for it."""

    name: str


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


# Neither blank nor an option: such words end up as arguments of ssh and sbatch.
Word = Annotated[str, StringConstraints(pattern=r"^[^\s-]\S*$")]
# A list that may also be written as one text with commas, as variables do.
Words = Annotated[list[Word], BeforeValidator(_split)]


class Fields(BaseModel):
    """Fields with marks: which variable each comes from, and what it is called elsewhere."""

    # Otherwise an error about one field quotes the others, secrets included.
    model_config = ConfigDict(hide_input_in_errors=True)

    @classmethod
    def marked(cls, kind: type[T]) -> dict[str, T]:
        """The fields that carry a mark of this kind, with their marks."""
        return {
            name: mark for name, field in cls.model_fields.items() for mark in field.metadata if isinstance(mark, kind)
        }

    @classmethod
    def from_variables(cls, environ: Mapping[str, str]) -> dict[str, str]:
        """The values that variables give, by field. Our name of a variable wins over those of other tools."""
        found = {
            field: [environ[name] for name in (variable.name, *variable.others) if name in environ]
            for field, variable in cls.marked(Variable).items()
        }
        return {field: values[0] for field, values in found.items() if values}

    @classmethod
    def filled(cls, given: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """`given`, and from variables what it leaves out; defaults apply to the rest. Raises ValidationError."""
        return cls(**{**cls.from_variables(environ), **given})

    def shape(self) -> dict[str, Any]:
        """The compute shape of a job that asks for none, and its limits, by the catalog's names."""
        return {mark.name: getattr(self, field) for field, mark in self.marked(InShape).items()}

    @model_validator(mode="before")
    @classmethod
    def _blank_is_not_given(cls, values: Any) -> Any:
        # A form sends an emptied field as "", and an exported variable may be empty: neither is a value.
        return (
            {key: value for key, value in values.items() if not _blank(value)} if isinstance(values, dict) else values
        )


class LimitedFields(Fields):
    """A platform that is asked for only so much. The limits are kept by those who launch, not by drivers."""

    max_jobs: int | None = Field(
        None, ge=1, title="Most jobs at once", description="How many jobs may be there at once; no limit when left out."
    )
    submits_per_second: float | None = Field(
        None, gt=0, title="Most launches per second", description="How fast new jobs are sent; no limit when left out."
    )
    gpu_hour_price: float | None = Field(
        None, gt=0, title="Price of a GPU hour", description="For searches with a budget of money, which count in it."
    )


class RemoteFields(LimitedFields):
    """What every platform away from this machine may need."""

    results_root: Annotated[str | None, Variable("TAO_RESULTS_ROOT")] = Field(
        None, title="Results folder", description="Where results are kept, as the jobs see it."
    )
    env: dict[str, str] = Field(
        default_factory=dict, title="Environment", description="Variables for every job here. Not for secrets."
    )
    s3_bucket_name: Annotated[str | None, Variable("S3_BUCKET_NAME")] = Field(
        None, title="S3 bucket", description="The bucket for results when there is no results folder."
    )
    s3_endpoint_url: Annotated[str | None, Variable("S3_ENDPOINT_URL", ("AWS_ENDPOINT_URL",))] = Field(
        None, title="S3 endpoint", description="Of an object store that is not AWS.", pattern="^https?://"
    )
    cloud_region: Annotated[str | None, Variable("CLOUD_REGION", ("AWS_REGION", "AWS_DEFAULT_REGION"))] = Field(
        None, title="S3 region", description="The region of the bucket, where its store has regions."
    )
    poll_seconds: float | None = Field(
        None,
        gt=0,
        title="Seconds between looks",
        description="The shortest pause between two questions about all jobs; the driver's own when left out.",
    )

    def pauses(self, own: tuple[float, float]) -> tuple[float, float]:
        """The shortest and the longest pause between two looks; `own` are the driver's."""
        shortest = self.poll_seconds or own[0]
        return shortest, max(own[1], shortest)


def _blank(value: Any) -> bool:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    return isinstance(text, str) and not text.strip()
