"""Loads the catalog: the packaged data and platforms, then a skill bank if one is named, then a team's folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from prefect_tao.catalog.demo_values import MISSING, undeclared
from prefect_tao.catalog.image_versions import IMAGES_FILE, image_keys, is_image_key, resolve_image_key
from prefect_tao.catalog.nouns import ActionEntry, AutoMLEntry, Catalog, Credential, ModelEntry, PlatformEntry
from prefect_tao.catalog.packaged_schemas import has_schemas
from prefect_tao.catalog.platform_packages import FILE as PLATFORM_FILE
from prefect_tao.catalog.platform_packages import OURS, PlatformPackage, platform_packages
from prefect_tao.catalog.skill_bank import ASK_THEM, SkillBank, is_skill_bank, read_skill_bank, unexplained
from prefect_tao.catalog.yaml_files import CatalogError, Faults, entry_of, map_at, read_yaml

__all__ = ["CatalogError", "load_catalog", "resolve_image_key"]

DATA = Path(__file__).parent / "data"
BANK_VARIABLE = "TAO_SKILL_BANK_PATH"
# Where the TAO tools look for a bank when nothing names one.
USUAL_BANK = "~/tao-skills-external"
OVERLAYS_VARIABLE = "PREFECT_TAO_CATALOG"

_FILES = {
    "platforms.yaml": ("platforms", "long_running_enabled", "status_interval_minutes"),
    "credentials.yaml": ("credentials",),
    IMAGES_FILE: ("images", "host_minimum"),
}
_KEYS = {**_FILES, PLATFORM_FILE: ("platforms", "credentials")}
_SETTINGS = ("long_running_enabled", "status_interval_minutes")


def load_catalog(skill_bank: str | Path | None = None, overlays: Sequence[str | Path] | None = None) -> Catalog:
    """The whole catalog, kept for the next caller who asks for the same.

    Without arguments the environment decides: TAO_SKILL_BANK_PATH names a skill bank, else `~/tao-skills-external` is
    one if it is there; PREFECT_TAO_CATALOG names folders to lay over (the last one wins), after
    `~/.config/prefect-tao/catalog` if that is there. Raises CatalogError.
    """
    bank = skill_bank or os.environ.get(BANK_VARIABLE) or _usual_bank()
    folders = _usual_overlays() if overlays is None else overlays
    return _load(
        Path(bank).expanduser().absolute() if bank else None,
        tuple(Path(folder).expanduser().absolute() for folder in folders),
    )


def _usual_bank() -> Path | None:
    usual = Path(USUAL_BANK).expanduser()
    return usual if is_skill_bank(usual) else None


def _usual_overlays() -> list[Path]:
    home = Path("~/.config/prefect-tao/catalog").expanduser()
    named = [Path(part) for part in os.environ.get(OVERLAYS_VARIABLE, "").split(os.pathsep) if part]
    return ([home] if home.is_dir() else []) + named


@cache
def _load(bank: Path | None, overlays: tuple[Path, ...]) -> Catalog:
    draft, faults = _packaged().copy(), Faults()
    if bank:
        with faults.gathered():
            draft.add_bank(read_skill_bank(bank))
    for folder in overlays:
        with faults.gathered():
            draft.add_folder(folder)
    faults.tell()
    return draft.finish()


@cache
def _packaged() -> _Draft:
    draft, faults = _Draft(), Faults()
    draft.add_folder(DATA)
    for platform in platform_packages():
        with faults.gathered():
            draft.add_platform(platform)
    faults.tell()
    return draft


@dataclass
class _Draft:
    """A catalog in the making, which knows the file of each entry."""

    platforms: dict[str, PlatformEntry] = field(default_factory=dict)
    credentials: dict[str, Credential] = field(default_factory=dict)
    models: dict[str, ModelEntry] = field(default_factory=dict)
    images: dict[str, Any] = field(default_factory=dict)
    host_minimum: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)

    def copy(self) -> _Draft:
        return _Draft(**{name: value.copy() for name, value in vars(self).items()})

    # -- our own folders --

    def add_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CatalogError(folder, "", "there is no such catalog folder")
        faults = Faults()
        for path in _yaml_files(folder):
            with faults.gathered():
                _check_name(path)
                self._add_file(path)
        for path in _yaml_files(folder / "models"):
            with faults.gathered():
                model = entry_of(ModelEntry, read_yaml(path), path)
                self.models[path.stem] = _with_schemas(path.stem, model) if folder == DATA else model
            self.files[f"models.{path.stem}"] = path
        faults.tell()
        self.sources.append("packaged" if folder == DATA else str(folder))

    def add_platform(self, platform: PlatformPackage) -> None:
        """The entry of one registered platform, with the defaults that its settings declare."""
        if platform.name not in self.platforms:  # one file may hold several
            self._add_file(platform.file)
            if platform.package != OURS and platform.package not in self.sources:
                self.sources.append(platform.package)
        entry = self.platforms.get(platform.name)
        if entry is None:
            raise CatalogError(platform.file, f"platforms.{platform.name}", "there is no entry for this platform")
        update = {"defaults": {**platform.info.defaults, **entry.defaults}}
        self.platforms[platform.name] = entry.model_copy(update=update)

    def _add_file(self, path: Path) -> None:
        tree, faults = read_yaml(path), Faults()
        for key in tree:
            with faults.gathered():
                _known_key(path, key)
        for name, values in map_at(path, tree, "platforms").items():
            with faults.gathered():
                self.platforms[name] = entry_of(PlatformEntry, values, path, f"platforms.{name}")
            self.files[f"platforms.{name}"] = path
        for name, values in map_at(path, tree, "credentials").items():
            with faults.gathered():
                self.credentials[name] = entry_of(Credential, values, path, f"credentials.{name}")
        faults.tell()
        images = map_at(path, tree, "images")
        self.images = _deep_merged(self.images, images)
        self.files |= {f"images.{key}": path for key in image_keys(images)}
        host_minimum = map_at(path, tree, "host_minimum")
        self._check(path, {"host_minimum": host_minimum})
        self.host_minimum = {**self.host_minimum, **host_minimum}
        self._set(path, {key: tree[key] for key in _SETTINGS if key in tree})

    def _set(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._check(path, settings)
        self.settings |= settings

    def _check(self, path: Path, fields: Mapping[str, Any]) -> None:
        # Checked where they are read, because later their file is not known any more.
        entry_of(Catalog, {"platforms": {}, "credentials": {}, "images": {}, "models": {}, **fields}, path)

    # -- a skill bank --

    def add_bank(self, bank: SkillBank) -> None:
        """Its models replace ours by name or arch; its platforms change what they speak about; its images win."""
        self.images = _deep_merged(self.images, bank.images)
        self.files |= {f"images.{key}": bank.root / "versions.yaml" for key in image_keys(bank.images)}
        for name, credential in bank.credentials.items():
            if name not in self.credentials or credential.how_to_get != ASK_THEM:  # ours tells more than a remark
                self.credentials[name] = credential
        self._set(bank.root, bank.settings)
        for name, platform in bank.platforms.items():
            ours = self.platforms.get(name)
            self.platforms[name] = _changed_platform(ours, platform) if ours else platform
            self.files[f"platforms.{name}"] = bank.files[f"platforms.{name}"]
        for name, model in bank.models.items():
            key = self._replaced(name, model, bank)
            ours_model = self.models.get(key)
            model = _completed_model(model, ours_model) if ours_model else model
            self.models[key] = _without_names(model, (self.models[one] for one in self.models if one != key))
            self.files[f"models.{key}"] = bank.files[f"models.{name}"]
        for _, _, named in self._named_credentials():
            self.credentials.setdefault(named, unexplained(named))  # in a bank the name alone is enough
        self.sources.append(str(bank.root))

    def _replaced(self, name: str, model: ModelEntry, bank: SkillBank) -> str:
        """The name under which a bank's model goes: that of ours with the same arch, if there is no doubt which."""
        if name in self.models:
            return name
        ours = [known for known, entry in self.models.items() if entry.arch == model.arch]
        theirs = [known for known, entry in bank.models.items() if entry.arch == model.arch]
        return ours[0] if len(ours) == len(theirs) == 1 else name

    # -- the end --

    def finish(self) -> Catalog:
        faults = Faults()
        for check in (self._check_images, self._check_credentials):
            with faults.gathered():
                check()
        faults.tell()
        fields = {
            name: value for name, value in vars(self).items() if name not in ("settings", "files", "sources")
        } | self.settings
        return entry_of(Catalog, {**fields, "sources": tuple(self.sources)}, DATA / IMAGES_FILE)

    def _check_images(self) -> None:
        faults = Faults()
        for key in image_keys(self.images):
            with faults.gathered():
                resolve_image_key(self.images, key, self.files.get(f"images.{key}", IMAGES_FILE))
        faults.tell()  # before the models that lead to the same keys
        for name, model in self.models.items():
            for key, image in _images_of(model):
                with faults.gathered():
                    self._check_image(self.files[f"models.{name}"], key, image)
        faults.tell()

    def _check_image(self, file: Path, key: str, image: str) -> None:
        if not is_image_key(image):
            return
        try:
            resolve_image_key(self.images, image)
        except CatalogError as error:
            raise CatalogError(file, key, f"{image}: {error.fault.reason}") from None

    def _check_credentials(self) -> None:
        faults = Faults()
        for entry, key, credential in self._named_credentials():
            with faults.gathered():
                self._check_credential(entry, key, credential)
        faults.tell()

    def _named_credentials(self) -> Iterator[tuple[str, str, str]]:
        """Every use of a credential: by which entry, under which key, which one."""
        for name, platform in self.platforms.items():
            yield from (
                (f"platforms.{name}", f"platforms.{name}.{key}", used) for key, used in _credentials_of(platform)
            )
        for name, model in self.models.items():
            for key in ("credentials", "conditional_credentials"):
                yield from ((f"models.{name}", key, used) for used in getattr(model, key))

    def _check_credential(self, entry: str, key: str, credential: str) -> None:
        if credential not in self.credentials:
            reason = f"{credential} is not defined; add it to a credentials.yaml with description and how_to_get"
            raise CatalogError(self.files[entry], key, reason)


# -- parts -------------------------------------------------------------------------------------------------------------


def _known_key(path: Path, key: str) -> None:
    if key not in _KEYS[path.name]:
        raise CatalogError(path, key, f"this key is not known; there are {', '.join(_KEYS[path.name])}")


def _check_name(path: Path) -> None:
    if path.name not in _FILES:
        raise CatalogError(path, "", f"not a catalog file; there are {', '.join(_FILES)} and models/<name>.yaml")


def _yaml_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix in (".yaml", ".yml"))


def _deep_merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(first)
    for key, value in second.items():
        known = found.get(key)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        found[key] = _deep_merged(known, value) if both else value  # type: ignore[arg-type]
    return found


def _with_schemas(name: str, model: ModelEntry) -> ModelEntry:
    """A packaged model whose actions know their packaged schemas; those are read when they are asked for."""
    if not has_schemas(name):
        return model
    actions = {key: action.model_copy(update={"packaged_as": (name, key)}) for key, action in model.actions.items()}
    return model.model_copy(update={"actions": actions})


def _images_of(model: ModelEntry) -> Iterator[tuple[str, str]]:
    for holder, prefix in [(model, ""), *((entry, f"actions.{name}.") for name, entry in model.actions.items())]:
        for key in ("container_image", "image"):
            image = getattr(holder, key)
            if image:
                yield prefix + key, image


def _credentials_of(platform: PlatformEntry) -> Iterator[tuple[str, str]]:
    for name in platform.required:
        yield "required", name
    for group in platform.groups:
        for name in (*group.one_of, group.preferred):
            yield "groups", name
    for use in platform.optional:
        yield "optional", use.name


def _changed_platform(ours: PlatformEntry, theirs: PlatformEntry) -> PlatformEntry:
    """Our platform with what the bank says. How data is named there stays ours: the drivers depend on it."""
    said = theirs.model_fields_set
    update: dict[str, Any] = {
        key: getattr(theirs, key)
        for key in ("required", "groups", "optional", "path_examples", "checks")
        if key in said
    }
    update["aliases"] = tuple(dict.fromkeys((*ours.aliases, *theirs.aliases)))
    update["defaults"] = {**ours.defaults, **theirs.defaults}
    return ours.model_copy(update=update)


def _completed_model(theirs: ModelEntry, ours: ModelEntry) -> ModelEntry:
    """The bank's model with what a bank tells in prose only: metric, hardware, and what its actions leave empty."""
    update: dict[str, Any] = {
        key: getattr(ours, key)
        for key in ("hardware", "gpu_architectures", "formats", "node_key")
        if key not in theirs.model_fields_set
    }
    if theirs.title in (theirs.arch, *theirs.aliases):  # a name for machines
        update["title"] = ours.title
    update["aliases"] = tuple(dict.fromkeys((*theirs.aliases, *ours.aliases)))
    update["automl"] = _completed_automl(theirs.automl, ours.automl)
    update["actions"] = {
        name: _completed_action(action, ours.actions[name]) if name in ours.actions else action
        for name, action in theirs.actions.items()
    }
    return theirs.model_copy(update=update)


def _without_names(model: ModelEntry, others: Iterable[ModelEntry]) -> ModelEntry:
    """The model without the names that other models have here: one entry of a bank may be several of ours."""
    taken = {word.casefold() for other in others for word in (*other.aliases, *other.huggingface_ids)}
    kept = {
        key: tuple(word for word in getattr(model, key) if word.casefold() not in taken)
        for key in ("aliases", "huggingface_ids")
    }
    return model.model_copy(update=kept)


def _completed_automl(theirs: AutoMLEntry, ours: AutoMLEntry) -> AutoMLEntry:
    if theirs.metric:
        return theirs
    return theirs.model_copy(update={key: getattr(ours, key) for key in ("metric", "direction", "evaluate_metric")})


def _with_required(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """A bank's template with a ??? where it leaves empty what our catalog knows to be required."""
    found = dict(theirs)
    for key in found.keys() & ours.keys():
        if isinstance(found[key], Mapping) and isinstance(ours[key], Mapping):
            found[key] = _with_required(found[key], ours[key])
        elif ours[key] == MISSING and found[key] in (None, ""):
            found[key] = MISSING
    return found


def _not_required(theirs: ActionEntry, ours: ActionEntry) -> list[str]:
    """Keys that a bank's template marks as missing, and that our catalog knows and does not require."""
    marked = undeclared(theirs.model_dump(include={"template", "inputs", "outputs", "datasets", "handoff"}))
    required = undeclared({"template": ours.template}) if marked else []
    return [key for key in marked if key not in required and _is_in(ours.full_schema, key)]


def _is_in(schema: Mapping[str, Any] | None, pointer: str) -> bool:
    """Whether a schema has such a key."""
    found: Any = schema
    for part in pointer.split("."):
        found = (found.get("properties") or {}).get(part) if isinstance(found, Mapping) else None
    return found is not None


def _completed_action(theirs: ActionEntry, ours: ActionEntry) -> ActionEntry:
    """What the bank leaves empty. Rules come with our inputs: a folder that a rule unpacks must be declared as one."""
    update: dict[str, Any] = {}
    if not theirs.datasets and ours.datasets:
        update |= {"datasets": ours.datasets, "inputs": {**theirs.inputs, **ours.inputs}}
    if not theirs.inputs and ours.inputs:
        update |= {"inputs": ours.inputs, "handoff": {**ours.handoff, **theirs.handoff}}
    if not theirs.template and ours.template:
        update["template"] = ours.template
    else:
        update["template"] = _with_required(theirs.template, ours.template)
        update["idle_keys"] = tuple(dict.fromkeys((*theirs.idle_keys, *_not_required(theirs, ours))))
    if theirs.full_schema is None:
        update["packaged_as"] = ours.packaged_as
    return theirs.model_copy(update=update)
