"""Reads a checkout of the TAO skill bank: the older generation with a platform manifest, the current one without, and
the collections that hold its skills side by side in one folder.

Spec templates become templates, schemas become spec schemas, image versions stay dotted keys. Their words are turned
into ours by `skill_info`; what is theirs alone is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect_tao.catalog.demo_values import idle_keys, without_demo_values
from prefect_tao.catalog.nouns import Credential, ModelEntry, PlatformEntry
from prefect_tao.catalog.skill_info import (
    TRT_NAMES,
    Tree,
    action_fields,
    plain_schema,
    search_parameters,
    short_name,
)
from prefect_tao.catalog.yaml_files import CatalogError, Faults, entry_of, expected_shape, map_at, read_json, read_yaml

# What the current generation calls otherwise than we do.
_OUR_PLATFORMS = {"docker": "local-docker", "virtualenv": "process"}
ASK_THEM = "Ask the people who maintain the skill bank that names it."
_DEPLOY_IMAGE = "tao_toolkit.deploy"
_INFO = "references/skill_info.yaml"


@dataclass
class SkillBank:
    """What a checkout holds, in our types, and the file of each platform and model."""

    root: Path
    platforms: dict[str, PlatformEntry] = field(default_factory=dict)
    credentials: dict[str, Credential] = field(default_factory=dict)
    images: Tree = field(default_factory=dict)
    models: dict[str, ModelEntry] = field(default_factory=dict)
    settings: Tree = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)


def read_skill_bank(root: str | Path) -> SkillBank:
    """The content of the checkout at `root`. Raises CatalogError when it is none or a file of it cannot be used."""
    bank = SkillBank(Path(root).expanduser())
    models = _model_folder(bank.root)
    if not bank.root.is_dir():
        raise CatalogError(bank.root, "", "there is no such folder; give the checkout of a TAO skill bank")
    if models is None:
        reason = (
            f"this is no TAO skill bank: it has no folder skills/models, nor models with {_INFO} in models or skills"
        )
        raise CatalogError(bank.root, "", reason)
    versions = bank.root / "versions.yaml"
    if versions.exists():
        bank.images = map_at(versions, read_yaml(versions), "images")
    platforms = (bank.root / "skills" / "platform", bank.root / "platform", models)
    _read_platforms(bank, next(folder for folder in platforms if folder.is_dir()))
    _read_models(bank, models)
    return bank


def is_skill_bank(root: Path) -> bool:
    """Whether a folder looks like a checkout."""
    return _model_folder(root) is not None


def _model_folder(root: Path) -> Path | None:
    """Where the models are: in a folder of their own, or among all other skills."""
    usual = root / "skills" / "models"
    others = ((root / "models", "*"), (root / "skills", "tao-*"), (root, "tao-*"))
    found = (folder for folder, skills in others if next(folder.glob(f"{skills}/{_INFO}"), None))
    return usual if usual.is_dir() else next(found, None)


# -- platforms ---------------------------------------------------------------------------------------------------------


def _read_platforms(bank: SkillBank, folder: Path) -> None:
    manifest = folder / "platforms.manifest.json"
    if manifest.exists():
        _read_manifest(bank, manifest)
        return
    for path in sorted(folder.glob(f"tao-run-on-*/{_INFO}")):
        record = read_yaml(path)
        name = path.parents[1].name.removeprefix("tao-run-on-")
        _add_platform(bank, path, {"name": name, "storage": record.get("cloud_storage"), **record}, name)


def _read_manifest(bank: SkillBank, path: Path) -> None:
    manifest = read_json(path)
    for ours in ("long_running_enabled", "status_interval_minutes"):
        if f"default_{ours}" in manifest:
            bank.settings[ours] = manifest[f"default_{ours}"]
    for name, values in map_at(path, manifest, "credential_definitions").items():
        bank.credentials[name] = _credential(name, values, path, f"credential_definitions.{name}")
    records = manifest.get("platforms")
    if not isinstance(records, list):
        raise CatalogError(path, "platforms", "a list of platforms is expected here")
    for index, record in enumerate(records):
        if not isinstance(record, dict) or not isinstance(record.get("name"), str):
            raise CatalogError(path, f"platforms.{index}", "a platform with a name is expected here")
        _add_platform(bank, path, record, record["name"])


def _add_platform(bank: SkillBank, path: Path, record: Tree, said: str) -> None:
    with expected_shape(path, said):
        _add_checked(bank, path, record, said)


def _add_checked(bank: SkillBank, path: Path, record: Tree, said: str) -> None:
    name = _OUR_PLATFORMS.get(said, said)
    storage = map_at(path, record, "storage", f"{said}.storage")
    fields: Tree = {
        "title": record.get("display_name") or said,
        "description": record.get("description") or f"The platform {said} of a skill bank.",
        "aliases": [*(record.get("aliases") or ()), *([said] if said != name else ())],
        "block": f"tao-{name.removeprefix('local-').removeprefix('remote-')}",
        "storage": {"scheme": _scheme(storage), "uri": storage.get("uri_format") or "{path}"},
        "remote": storage.get("protocol") != "local",
    }
    if record.get("resource_defaults"):
        fields["defaults"] = record["resource_defaults"]
    if examples := [text for text in record.get("dataset_examples") or () if _is_location(text)]:
        fields["path_examples"] = examples
    if record.get("preflight_checks"):
        fields["checks"] = record["preflight_checks"]
    fields |= _credential_fields(bank, path, record, said)
    bank.platforms[name] = entry_of(PlatformEntry, fields, path, said)
    bank.files[f"platforms.{name}"] = path


def _credential_fields(bank: SkillBank, path: Path, record: Tree, said: str) -> Tree:
    """Required, grouped and optional credentials; each is defined, be it by the entry itself."""
    fields: Tree = {}
    if "required_credentials" in record:
        named = _named(record["required_credentials"], path, f"{said}.required_credentials")
        fields["required"] = [item["name"] for item in named]
        _define(bank, path, named)
    if "optional_credentials" in record:
        named = _named(record["optional_credentials"], path, f"{said}.optional_credentials")
        fields["optional"] = [{"name": item["name"], "only_when": item.get("only_when") or ""} for item in named]
        _define(bank, path, named)
    if "credential_groups" in record:
        groups = _named(record["credential_groups"], path, f"{said}.credential_groups")
        fields["groups"] = [_group(group) for group in groups]
        _define(bank, path, [{"name": name} for group in groups for name in group.get("require_one_of") or ()])
    return fields


def _group(group: Mapping[str, Any]) -> Tree:
    names = list(group.get("require_one_of") or ())
    return {
        "name": group["name"],
        "one_of": names,
        "preferred": group.get("preferred") or (names[0] if names else None),
        "description": group.get("description") or "",
        "how_to_get": group.get("how_to_get") or "",
    }


def _named(items: Any, path: Path, key: str) -> list[Tree]:
    """A list of records with a name; a bare name is a record too."""
    found = [{"name": item} if isinstance(item, str) else item for item in items or ()]
    for index, item in enumerate(found):
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise CatalogError(path, f"{key}.{index}", "a name is expected here")
    return found


def _define(bank: SkillBank, path: Path, named: list[Tree]) -> None:
    for item in named:
        if item.get("description") and item["name"] not in bank.credentials:
            bank.credentials[item["name"]] = _credential(item["name"], item, path, item["name"])


def _credential(name: str, values: Any, path: Path, key: str) -> Credential:
    values = values if isinstance(values, dict) else {}
    fields = {
        "description": values.get("description"),
        "how_to_get": values.get("how_to_get") or ASK_THEM,
        "secret": _is_secret(name),
    }
    return entry_of(Credential, fields, path, key)


def unexplained(name: str) -> Credential:
    """A credential of which a bank says nothing but its name."""
    return Credential(description="A skill bank names it.", how_to_get=ASK_THEM, secret=_is_secret(name))


def _is_secret(name: str) -> bool:
    return any(word in name for word in ("TOKEN", "SECRET", "PASSWORD")) or name.endswith("KEY")


def _is_location(text: str) -> bool:
    """Whether an example is a location, and not one behind a spec key: `custom.path=/data/x`."""
    return "=" not in text.partition("://")[0].partition("/")[0]


def _scheme(storage: Mapping[str, Any]) -> str:
    protocol = str(storage.get("protocol") or "local")
    return {"aws": "s3", "local": "file"}.get(protocol, protocol)


# -- models ------------------------------------------------------------------------------------------------------------


def _read_models(bank: SkillBank, folder: Path) -> None:
    index = folder / "schemas.manifest.json"
    known = map_at(index, read_json(index), "models") if index.exists() else {}
    skills = {path.parents[1].name: path for path in sorted(folder.glob(f"*/{_INFO}"))}
    infos = {skill: read_yaml(path) for skill, path in skills.items()}
    if folder.name != "models":  # where all skills lie in one folder, only some are models
        infos = {skill: info for skill, info in infos.items() if "network_arch" in info and "actions" in info}
    archs = Counter(str(info.get("network_arch")) for info in infos.values())
    faults = Faults()
    for skill, info in infos.items():
        bank.files[f"models.{short_name(skill)}"] = skills[skill]
        with faults.gathered(), expected_shape(skills[skill], ""):
            reader = _Model(bank, skills[skill], skill, info, map_at(index, known, skill, f"models.{skill}"))
            entry = reader.entry(unique=archs[str(info.get("network_arch"))] == 1)
            bank.models[short_name(skill)] = entry
    faults.tell()


class _Model:
    """One model's folder on its way to an entry."""

    def __init__(self, bank: SkillBank, path: Path, skill: str, info: Tree, indexed: Tree) -> None:
        self.bank, self.path, self.skill, self.info, self.indexed = bank, path, skill, info, indexed
        self.folder = path.parents[1]

    def entry(self, unique: bool) -> ModelEntry:
        info = self.info
        actions, shorthand = self._actions(self.path, info), dict(self._map("spec_shorthand_keys"))
        beside = sorted(self.path.parent.glob("tao-deploy-*.skill_info.yaml"))
        for path in beside or sorted(self.folder.glob("deploy/skill_info.yaml")):
            deploy = read_yaml(path)
            shorthand = {**map_at(path, deploy, "spec_shorthand_keys"), **shorthand}
            for name, fields in self._actions(path, deploy, deploy=True).items():
                actions[name] = _joined(actions.get(name, {}), fields)
        for fields in actions.values():
            if fields.get("template"):
                fields["template"] = without_demo_values(fields["template"], fields)
        for name, fields in actions.items():
            if idle := idle_keys(name, actions):
                fields["idle_keys"] = idle
        arch = info.get("network_arch")
        names = [arch] if unique and arch != short_name(self.skill) else []
        conditions = info.get("conditional_credentials")
        fields = {
            "title": info.get("name") or info.get("model") or short_name(self.skill),
            "arch": arch,
            "aliases": list(dict.fromkeys([*names, self.skill, *(info.get("aliases") or ())])),
            "huggingface_ids": info.get("huggingface_model_ids"),
            "container_image": _named_image(info.get("container_image")),
            "image": _named_image(info.get("image")),
            "data_format": info.get("data_format"),
            "gpu_key": info.get("gpu_spec_key"),
            "node_key": info.get("node_spec_key"),
            "credentials": info.get("required_credentials"),
            "conditional_credentials": _conditions(conditions),
            "shorthand": shorthand,
            "defaults": info.get("key_defaults"),
            "host_minimum": self._host_minimum(),
            "actions": actions,
            "automl": self._automl(actions),
        }
        given = {name: value for name, value in fields.items() if value is not None}
        return entry_of(ModelEntry, given, self.path)

    def _map(self, key: str) -> Tree:
        return map_at(self.path, self.info, key)

    def _actions(self, path: Path, info: Tree, deploy: bool = False) -> dict[str, Tree]:
        """The actions of one metadata file. Those that TensorRT runs have names of their own."""
        sources, params = map_at(path, info, "data_sources"), map_at(path, info, "spec_params")
        found = {}
        for action in map_at(path, info, "actions"):
            raw = map_at(path, info["actions"], action, f"actions.{action}")
            key = f"{{}}.{action}"
            with expected_shape(path, f"actions.{action}"):
                fields = action_fields(
                    raw,
                    map_at(path, sources, action, key.format("data_sources")),
                    map_at(path, params, action, key.format("spec_params")),
                )
            if "command" not in fields:
                raise CatalogError(path, f"actions.{action}.command", "this key is missing")
            image = self._image(info, action, fields, deploy)
            if image:
                fields["container_image"] = image
            fields |= self._spec(path, info, action, deploy)
            found[TRT_NAMES.get(action, action) if deploy else action] = fields
        return found

    def _image(self, info: Tree, action: str, fields: Tree, deploy: bool) -> str | None:
        """An image of the action's own. An engine is never built in the training image: it has no TensorRT tools."""
        own = fields.get("container_image") or fields.get("image")
        if own:
            return None
        if deploy:
            declared: str | None = _named_image(info.get("container_image"))
            return declared
        toolkit = self.bank.images.get("tao_toolkit")
        if action == "gen_trt_engine" and isinstance(toolkit, Mapping) and "deploy" in toolkit:
            return _DEPLOY_IMAGE
        return self._backend_image(action)

    def _backend_image(self, action: str) -> str | None:
        """The image of the backend that is chosen for the action, where a model has several."""
        contracts = self._map("backend_contracts")
        chosen = _chosen(self.info.get("backend_selection"), action, contracts)
        backend = contracts.get(chosen or next(iter(contracts), ""))
        if isinstance(backend, str):  # the contract has a file of its own
            file = self.folder / backend
            backend = read_yaml(file) if file.is_file() else None
        image: str | None = _named_image(backend.get("container_image")) if isinstance(backend, Mapping) else None
        return image

    def _spec(self, path: Path, info: Tree, action: str, deploy: bool) -> Tree:
        said = map_at(path, info, "spec_templates").get(action)
        usual = f"spec_template_deploy_{action}.yaml" if deploy else f"spec_template_{action}.yaml"
        name = said if isinstance(said, str) else usual
        places = [path.parent / name, self.folder / name, self.path.parent / name]
        found: Tree = {}
        for place in places:
            if place.is_file():
                found["template"] = read_yaml(place)
                break
        schema = self.folder / "schemas" / f"{action}.schema.json"
        if schema.is_file() and (not deploy or action not in TRT_NAMES):
            found["spec_schema"] = plain_schema(read_json(schema))
        return found

    def _host_minimum(self) -> Tree:
        host = map_at(self.path, self._map("runtime_requirements"), "gpu_host", "runtime_requirements.gpu_host")
        names = ("driver", "cuda", "container_toolkit")
        return {name: str(host[f"min_{name}_version"]) for name in names if f"min_{name}_version" in host}

    def _automl(self, actions: Mapping[str, Tree]) -> Tree:
        """AutoML is on unless the model turns it off, and runnable when its training has a schema and a template."""
        enabled = self.info.get("automl_enabled", self.indexed.get("automl_enabled", True))
        train = actions.get("train", {})
        lacking = [name for name, key in (("schema", "spec_schema"), ("template", "template")) if not train.get(key)]
        failure = map_at(self.path, self.indexed, "failures").get("train")
        reason = self.info.get("automl_blocked_reason") or (str(failure) if failure else "")
        if not reason and lacking:
            reason = f"the skill bank has no train {' and no train '.join(lacking)} for this model"
        found: Tree = {"enabled": enabled, "runnable": bool(enabled) and not reason, "blocked_reason": reason}
        if not lacking:
            path = self.folder / "schemas" / "train.schema.json"
            with expected_shape(path, "automl_default_parameters"):
                found["parameters"] = search_parameters(read_json(path))
        found |= {key: train[key] for key in ("metric", "direction") if key in train}
        return found


def _joined(first: Tree, second: Tree) -> Tree:
    """Two records of one action: maps are joined, and the second decides."""
    found = dict(first)
    for key, value in second.items():
        known = found.get(key)
        found[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return found


def _named_image(said: Any) -> Any:
    """An image as it was named; a map tells how to build one, which leaves the name to the person who launches."""
    return None if isinstance(said, Mapping) else said


def _conditions(said: Any) -> Any:
    """Credentials by the condition that makes them necessary; a list leaves the condition open."""
    if isinstance(said, list):
        return {str(name): "the model's pages say so" for name in said}
    if isinstance(said, dict):
        return {name: text if isinstance(text, str) else str(text) for name, text in said.items()}
    return said


def _chosen(selection: Any, action: str, contracts: Mapping[str, Any]) -> str | None:
    """The backend that is named for an action, wherever in the selection it stands."""
    if not isinstance(selection, Mapping):
        return None
    backend = selection.get(action)
    if isinstance(backend, str) and backend in contracts:
        return backend
    for part in selection.values():
        found = _chosen(part, action, contracts)
        if found:
            return found
    return None
