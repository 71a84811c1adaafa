"""What all blocks share: fields that know their variables, settings for a driver, credentials by name.

These are plain models, not blocks: a block class between Block and ours would show up in the UI as a type of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

from prefect.types import SecretDict
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    model_validator,
)

from prefect_tao.environment import FILE, variables

T = TypeVar("T")
BLOCK_NAME = r"^[a-z0-9-]+/[a-z0-9-]+$"


class Variable(NamedTuple):
    """The variable that a field is read from and handed on as, and what others call it."""

    name: str
    others: tuple[str, ...] = ()


class Named(NamedTuple):
    """Marks a field that names another block as `slug/name`; `extra` installs the block's type."""

    extra: str | None = None


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


# Neither blank nor an option: such words end up as arguments of ssh and sbatch.
Word = Annotated[str, StringConstraints(pattern=r"^[^\s-]\S*$")]
# A list that may also be written as one text with commas, as variables do.
Words = Annotated[list[Word], BeforeValidator(_split)]


class TaoBlock(BaseModel):
    """The ways in and out of a block: variables to fields, fields to settings and credentials."""

    # Otherwise an error about one field quotes the others, secrets included.
    model_config = ConfigDict(hide_input_in_errors=True)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """The block that the variables in `environ`, or in the process's environment and the .env file, describe.

        Raises ValueError with the names of all required variables that are not set, or with the values that are wrong.
        """
        given, values, missing = variables(environ), {}, []
        for field, variable in cls._variables().items():
            names = [name for name in (variable.name, *variable.others) if name in given]
            if names:
                values[field] = given[names[0]]
            elif cls.model_fields[field].is_required():
                missing.append(variable.name)
        if missing:
            raise ValueError(f"{', '.join(missing)} not set: export them, or write NAME=value lines into ~/{FILE}")
        return cls(**values)

    def settings(self) -> dict[str, Any]:
        """What the driver is made with: plain values, no secret, and no name of another block."""
        hidden = {name for name, value in self if isinstance(value, SecretStr | SecretDict)} | self._marked(
            Named
        ).keys()
        # Not by model_dump: Prefect adds its own keys there.
        return {name: _plain(getattr(self, name)) for name in type(self).model_fields if name not in hidden}

    def credentials(self) -> dict[str, str]:
        """The variables of this block that are set, by name, secrets in clear. Never log or store the result."""
        found = {variable.name: _text(getattr(self, field)) for field, variable in self._variables().items()}
        return {name: text for name, text in found.items() if text}

    def named(self) -> dict[str, str]:
        """The other blocks that this one names, by field, as `slug/name`. They are loaded when they are used."""
        return {field: getattr(self, field) for field in self._marked(Named) if getattr(self, field)}

    @classmethod
    def _variables(cls) -> dict[str, Variable]:
        return cls._marked(Variable)

    @classmethod
    def _marked(cls, kind: type[T]) -> dict[str, T]:
        return {
            name: mark for name, field in cls.model_fields.items() for mark in field.metadata if isinstance(mark, kind)
        }

    @model_validator(mode="before")
    @classmethod
    def _blank_is_not_given(cls, values: Any) -> Any:
        # A form sends an emptied field as "", and an exported variable may be empty: neither is a value.
        return (
            {key: value for key, value in values.items() if not _blank(value)} if isinstance(values, dict) else values
        )

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Pydantic's schema, in the order of a form: what is special about a platform before what all have."""
        schema = super().model_json_schema(*args, **kwargs)
        fields = schema["properties"]
        own = [name for name in cls.__annotations__ if name in fields]
        order = [*own, *(name for name in fields if name not in own)]
        schema["properties"] = {
            name: {**_form_field(fields[name]), "position": place} for place, name in enumerate(order)
        }
        return schema


class LimitedBlock(TaoBlock):
    """A platform that is asked for only so much at once. The limits are kept by those who launch, not by drivers."""

    max_jobs: int | None = Field(
        None, ge=1, title="Most jobs at once", description="How many jobs may be there at once; no limit when left out."
    )
    submits_per_second: float | None = Field(
        None, gt=0, title="Most launches per second", description="How fast new jobs are sent; no limit when left out."
    )

    def settings(self) -> dict[str, Any]:
        """All but secrets, named blocks and the limits: what a driver is made with."""
        return {name: value for name, value in super().settings().items() if name not in LimitedBlock.__annotations__}


class PlatformBlock(LimitedBlock):
    """What every platform away from this machine may need."""

    results_root: Annotated[str | None, Variable("TAO_RESULTS_ROOT")] = Field(
        None, title="Results folder", description="Where results are kept, as the jobs see it."
    )
    env: dict[str, str] = Field(
        default_factory=dict, title="Environment", description="Variables for every job here. Not for secrets."
    )
    secrets: SecretDict = Field(
        default_factory=lambda: SecretDict({}),
        title="Secret variables",
        description="Further secrets by variable name, such as WANDB_API_KEY. A job gets those that it asks for.",
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
    access_key: Annotated[SecretStr, Variable("ACCESS_KEY", ("AWS_ACCESS_KEY_ID",))] = Field(
        SecretStr(""), title="S3 access key", description="Needed for s3:// locations, unless a block is named below."
    )
    secret_key: Annotated[SecretStr, Variable("SECRET_KEY", ("AWS_SECRET_ACCESS_KEY",))] = Field(
        SecretStr(""), title="S3 secret key", description="The secret half of the access key."
    )
    aws_credentials: Annotated[str | None, Named("aws")] = Field(
        None,
        title="S3 credentials block",
        description="Instead of keys here: a saved block such as aws-credentials/prod or minio-credentials/lab.",
        pattern=BLOCK_NAME,
    )
    registry: Annotated[str | None, Named("docker")] = Field(
        None,
        title="Registry block",
        description="A saved block for private images, such as docker-registry-credentials/ngc.",
        pattern=BLOCK_NAME,
    )
    ngc_key: Annotated[str | None, Named()] = Field(
        None, title="NGC key block", description="A saved block such as tao-ngc-key/team.", pattern=BLOCK_NAME
    )
    hugging_face_token: Annotated[str | None, Named()] = Field(
        None,
        title="Hugging Face token block",
        description="A saved block such as tao-hugging-face-token/me.",
        pattern=BLOCK_NAME,
    )
    poll_seconds: float | None = Field(
        None,
        gt=0,
        title="Seconds between looks",
        description="The shortest pause between two questions about all jobs; the driver's own when left out.",
    )

    # Field -> what the catalog calls it: where both say something, what a person saved holds.
    _shape: ClassVar[Mapping[str, str]] = {}

    def shape(self) -> dict[str, Any]:
        """The compute shape of a job that asks for none, and its limits, by the catalog's names."""
        return {theirs: getattr(self, ours) for ours, theirs in self._shape.items()}

    def credentials(self) -> dict[str, str]:
        """The variables of this block that are set, by name, secrets in clear. Never log or store the result."""
        further = {name: _text(value) for name, value in self.secrets.get_secret_value().items()}
        return {**{name: text for name, text in further.items() if text}, **super().credentials()}


def _form_field(field: dict[str, Any]) -> dict[str, Any]:
    """A field of the form without the choice of None, which the UI makes a tab of; left empty, it says the same."""
    kinds = [kind for kind in field.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return field
    return {key: value for key, value in {**field, **kinds[0]}.items() if key not in ("anyOf", "default")}


def _blank(value: Any) -> bool:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    return isinstance(text, str) and not text.strip()


def _plain(value: Any) -> Any:
    """A copy, so that nobody changes the block through its settings."""
    return value.copy() if isinstance(value, list | dict) else value


def _text(value: Any) -> str:
    """`value` as a variable holds it; empty when there is none."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
