"""The catalog's own format, as types. A YAML file that does not fit is refused with file, key and reason."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from prefect_tao.catalog.packaged_schemas import packaged_schema

Source = Literal["train", "eval", "inference", "calibration", "train_wds"]
Direction = Literal["maximize", "minimize"]


class Entry(BaseModel):
    """Base of all entries: what is not known is refused, so a typo in a catalog is found."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# -- platforms ---------------------------------------------------------------------------------------------------------


class Credential(Entry):
    """A credential or setting that a person supplies by the name of an environment variable."""

    description: str
    how_to_get: str
    secret: bool = True


class CredentialUse(Entry):
    """An optional credential; it is asked for only when the condition holds."""

    name: str
    only_when: str = ""


class CredentialGroup(Entry):
    """One of several credentials is needed; the preferred one is asked for first."""

    name: str
    one_of: tuple[str, ...]
    preferred: str
    description: str = ""
    how_to_get: str = ""


class Storage(Entry):
    """How data is named where the platform runs."""

    scheme: str
    uri: str


class PlatformEntry(Entry):
    """One execution platform."""

    title: str
    description: str
    aliases: tuple[str, ...] = ()
    block: str
    required: tuple[str, ...] = ()
    groups: tuple[CredentialGroup, ...] = ()
    optional: tuple[CredentialUse, ...] = ()
    defaults: dict[str, Any] = Field(default_factory=dict)
    storage: Storage
    remote: bool = True
    multi_node: bool = False
    containers: bool = True
    path_examples: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()


# -- models ------------------------------------------------------------------------------------------------------------


class FieldRule(Entry):
    """One field of an object that a dataset root fills."""

    path: str
    optional: bool = False


class DatasetRule(Entry):
    """How a dataset root becomes the value of a spec key.

    `path` is a file below the root; the empty path is the root itself. `by_format` chooses the path by data format,
    with `*` for the others; of several names the first that exists is taken. `fields` builds an object. `many` makes a
    list of one value per root. `extracted` names an archive that is unpacked: the key gets the folder.
    """

    source: Source
    path: str | None = None
    by_format: dict[str, str | tuple[str, ...]] | None = None
    fields: dict[str, FieldRule] | None = None
    many: bool = False
    optional: bool = False
    extracted: bool = False


class ActionEntry(Entry):
    """What one action of a model runs and needs. The rules of inputs and outputs are those of a job request."""

    command: str
    config_format: Literal["yaml", "toml", "json"] = "yaml"
    mode: Literal["config", "args", "passthrough"] = "config"
    container_image: str | None = None
    image: str | None = None
    inputs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    outputs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    upload_excludes: tuple[str, ...] = ()
    datasets: dict[str, DatasetRule] = Field(default_factory=dict)
    needs_data: bool = Field(
        True, description="whether a training must be given data where all its places are optional"
    )
    handoff: dict[str, Any] = Field(default_factory=dict)
    template: dict[str, Any] = Field(default_factory=dict)
    idle_keys: tuple[str, ...] = Field((), description="keys of the template that only other actions read")
    spec_schema: dict[str, Any] | None = None
    packaged_as: tuple[str, str] | None = Field(None, description="model and action of the packaged schema that holds")
    json_required_fields: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    json_advised_fields: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="fields of annotation records that only some images need"
    )
    metric: str | None = None
    direction: Direction | None = None
    metric_file: str | None = None

    @property
    def full_schema(self) -> dict[str, Any] | None:
        """What the spec may hold: the entry's own schema, else the packaged one; None where there is neither."""
        return self.spec_schema or (packaged_schema(*self.packaged_as) if self.packaged_as else None)


class SearchParameter(Entry):
    """A hyperparameter that AutoML may search, with real bounds."""

    name: str
    type: str
    default: Any = None
    min: float | None = None
    max: float | None = None
    options: tuple[Any, ...] = ()
    weights: tuple[float, ...] = ()
    condition: str = ""
    depends_on: str = ""
    log: bool = False


class AutoMLEntry(Entry):
    """Whether and how a model's training is searched."""

    enabled: bool = False
    runnable: bool = False
    blocked_reason: str = ""
    metric: str | None = None
    direction: Direction | None = None
    evaluate_metric: str | None = None
    parameters: tuple[SearchParameter, ...] = ()


class Hardware(Entry):
    """GPUs that a training wants."""

    min_gpus: int | None = None
    recommended_gpus: int | None = None
    vram_gb: float | None = None
    disk_gb: float | None = Field(None, description="free space that the results of a training want")


class ModelEntry(Entry):
    """One model and its actions."""

    title: str
    arch: str
    aliases: tuple[str, ...] = ()
    huggingface_ids: tuple[str, ...] = ()
    container_image: str | None = None
    image: str | None = None
    data_format: str | None = None
    formats: tuple[str, ...] = ()
    gpu_key: str | None = None
    node_key: str | None = None
    credentials: tuple[str, ...] = ()
    conditional_credentials: dict[str, str] = Field(default_factory=dict)
    shorthand: dict[str, str] = Field(default_factory=dict)
    defaults: dict[str, Any] = Field(default_factory=dict)
    hardware: Hardware = Field(default_factory=Hardware)
    host_minimum: dict[str, str] = Field(default_factory=dict)
    gpu_architectures: tuple[str, ...] = ()
    actions: dict[str, ActionEntry]
    automl: AutoMLEntry = Field(default_factory=AutoMLEntry)


class Catalog(Entry):
    """Everything, by name. `images` holds dotted version keys as nested maps."""

    platforms: dict[str, PlatformEntry]
    credentials: dict[str, Credential]
    images: dict[str, Any]
    host_minimum: dict[str, str] = Field(default_factory=dict)
    long_running_enabled: bool = True
    status_interval_minutes: float = 5.0
    models: dict[str, ModelEntry]
    sources: tuple[str, ...] = ()
