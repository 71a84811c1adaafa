"""What all blocks share: fields that know their variables, settings for a driver, credentials by name.

These are plain models, not blocks: a block class between Block and ours would show up in the UI as a type of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import get_annotations
from typing import Annotated, Any, NamedTuple, Self

from prefect.types import SecretDict
from pydantic import BaseModel, Field, SecretStr, SerializerFunctionWrapHandler, field_serializer

from prefect_tao.environment import FILE, variables
from prefect_tao.platforms import fields
from prefect_tao.platforms.fields import Fields, Variable

BLOCK_NAME = r"^[a-z0-9-]+/[a-z0-9-]+$"


class Named(NamedTuple):
    """Marks a field that names another block as `slug/name`; `extra` installs the block's type."""

    extra: str | None = None


class After(NamedTuple):
    """Marks a field that only the block has with the field that it follows in the form."""

    field: str


class TaoBlock(Fields):
    """The ways in and out of a block: variables to fields, fields to settings and credentials."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """The block that the variables in `environ`, or in the process's environment and the .env file, describe.

        Raises ValueError with the names of all required variables that are not set, or with the values that are wrong,
        and InvalidInput for a .env file that cannot be read.
        """
        values = cls.from_variables(variables(environ))
        missing = [
            variable.name
            for field, variable in cls.marked(Variable).items()
            if field not in values and cls.model_fields[field].is_required()
        ]
        if missing:
            raise ValueError(f"{', '.join(missing)} not set: export them, or write NAME=value lines into ~/{FILE}")
        return cls(**values)

    def settings(self) -> dict[str, Any]:
        """What the driver's settings are made of: all that is said here, but no secret and no name of another block."""
        hidden = {name for name, value in self if isinstance(value, SecretStr | SecretDict)} | self.marked(Named).keys()
        # Not by model_dump: Prefect adds its own keys there.
        values = {name: _plain(getattr(self, name)) for name in type(self).model_fields if name not in hidden}
        return {name: value for name, value in values.items() if value is not None}

    def credentials(self) -> dict[str, str]:
        """The variables of this block that are set, by name, secrets in clear. Never log or store the result."""
        marks = {field: mark for field, mark in self.marked(Variable).items() if mark.is_credential}
        found = {mark.name: _text(getattr(self, field)) for field, mark in marks.items()}
        return {name: text for name, text in found.items() if text}

    def named(self) -> dict[str, str]:
        """The other blocks that this one names, by field, as `slug/name`. They are loaded when they are used."""
        return {field: getattr(self, field) for field in self.marked(Named) if getattr(self, field)}

    def platform_among(self, platforms: Sequence[str]) -> str:
        """Of the platforms that share this type of block, the one that this very block is for."""
        return platforms[0]

    @field_serializer("*", mode="wrap")
    def _as_in_the_form(self, value: Any, handler: SerializerFunctionWrapHandler) -> Any:
        return ", ".join(value) if isinstance(value, list) else handler(value)

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Pydantic's schema, in the order of a form."""
        schema = super().model_json_schema(*args, **kwargs)
        fields = schema["properties"]
        schema["properties"] = {
            name: {**_form_field(fields[name]), "position": place} for place, name in enumerate(_form_order(cls))
        }
        return schema


class PlatformBlock(TaoBlock):
    """What the block of every platform away from this machine has besides its settings: secrets, and named blocks."""

    secrets: Annotated[SecretDict, After("env")] = Field(
        default_factory=lambda: SecretDict({}),
        title="Secret variables",
        description="Further secrets by variable name, such as WANDB_API_KEY. A job gets those that it asks for.",
    )
    access_key: Annotated[SecretStr, Variable("ACCESS_KEY", ("AWS_ACCESS_KEY_ID",)), After("cloud_region")] = Field(
        SecretStr(""), title="S3 access key", description="Needed for s3:// locations, unless a block is named below."
    )
    secret_key: Annotated[SecretStr, Variable("SECRET_KEY", ("AWS_SECRET_ACCESS_KEY",)), After("access_key")] = Field(
        SecretStr(""), title="S3 secret key", description="The secret half of the access key."
    )
    aws_credentials: Annotated[str | None, Named("aws"), After("secret_key")] = Field(
        None,
        title="S3 credentials block",
        description="Instead of keys here: a saved block such as aws-credentials/prod or minio-credentials/lab.",
        pattern=BLOCK_NAME,
    )
    registry: Annotated[str | None, Named("docker"), After("aws_credentials")] = Field(
        None,
        title="Registry block",
        description="A saved block for private images, such as docker-registry-credentials/ngc.",
        pattern=BLOCK_NAME,
    )
    ngc_key: Annotated[str | None, Named(), After("registry")] = Field(
        None, title="NGC key block", description="A saved block such as tao-ngc-key/team.", pattern=BLOCK_NAME
    )
    hugging_face_token: Annotated[str | None, Named(), After("ngc_key")] = Field(
        None,
        title="Hugging Face token block",
        description="A saved block such as tao-hugging-face-token/me.",
        pattern=BLOCK_NAME,
    )

    def credentials(self) -> dict[str, str]:
        """The variables of this block that are set, by name, secrets in clear. Never log or store the result."""
        further = {name: _text(value) for name, value in self.secrets.get_secret_value().items()}
        return {**{name: text for name, text in further.items() if text}, **super().credentials()}


def _form_order(kind: type[TaoBlock]) -> list[str]:
    """What is special about a platform before what all have, required fields first, each `After` behind its field."""
    shared = (fields.__name__, __name__)
    declared = [
        name
        for is_shared in (False, True)
        for base in kind.__mro__[::-1]
        if (base.__module__ in shared) == is_shared and issubclass(base, BaseModel)
        for name in get_annotations(base)
        if name in kind.model_fields
    ]
    following = {name: mark.field for name, mark in kind.marked(After).items()}
    order = [name for name in dict.fromkeys(declared) if name not in following]
    order.sort(key=lambda name: not kind.model_fields[name].is_required())
    for name, before in following.items():
        order.insert(order.index(before) + 1, name)
    return order


def _form_field(field: dict[str, Any]) -> dict[str, Any]:
    """A field of the form without the choice of None, which the UI makes a tab of; left empty, it says the same.

    A list is one text: Prefect's older UI has an editor of JSON for lists, and people know commas.
    """
    kinds = [kind for kind in field.get("anyOf", []) if kind != {"type": "null"}]
    if len(kinds) == 1:
        field = {key: value for key, value in {**field, **kinds[0]}.items() if key not in ("anyOf", "default")}
    if field.get("type") != "array":
        return field
    told = f"{field.get('description', '')} Several with commas between them.".strip()
    return {"title": field["title"], "description": told, "type": "string"}


def _plain(value: Any) -> Any:
    """A copy, so that no change of the settings reaches the block."""
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
