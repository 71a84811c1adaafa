"""Turns a skill bank's words into ours: dataset rules, inputs, hand-offs, schemas, search parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from prefect_tao.catalog.bounds import search_parameter
from prefect_tao.catalog.nouns import SearchParameter

Tree = dict[str, Any]

SOURCES = {
    "train_datasets": "train",
    "eval_dataset": "eval",
    "inference_dataset": "inference",
    "calibration_dataset": "calibration",
    "train_wds_dataset": "train_wds",
    "id": "train",  # the one dataset that a conversion works on
}
TRT_NAMES = {"evaluate": "trt_evaluate", "inference": "trt_inference"}

_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
_ANNOTATION = re.compile(r"\{\w*annotation\}")
_MEDIA = (".media_path", ".media_dir")
_OUTPUTS = {
    "results_dir": "output_dir",
    "train.output_dir": "output_dir",
    "export.onnx_file": "create_onnx_file",
    "gen_trt_engine.trt_engine": "create_engine_file",
}
_TYPES = {
    "int": "integer",
    "ordered_int": "integer",
    "float": "number",
    "bool": "boolean",
    "string": "string",
    "str": "string",
    "dict": "object",
    "collection": "object",
}


def short_name(skill: str) -> str:
    """The model's name in our catalog: `tao-train-dino` is `dino`."""
    return re.sub(r"^tao-(train|finetune)-", "", skill)


def action_fields(raw: Mapping[str, Any], sources: Mapping[str, Any], params: Mapping[str, Any]) -> Tree:
    """An action entry from its record, its `data_sources` and its `spec_params`."""
    rules = dataset_rules(sources)
    outputs = dict(raw.get("outputs") or {})
    inputs = fitted_inputs(raw.get("inputs") or {}, outputs, rules)
    images = {name: raw[name] for name in ("container_image", "image") if isinstance(raw.get(name), str)}
    fields = {
        **images,
        "command": raw.get("command"),
        "config_format": raw.get("config_format"),
        "mode": raw.get("mode"),
        "inputs": inputs,
        "outputs": outputs,
        "upload_excludes": raw.get("upload_excludes"),
        "datasets": rules,
        "handoff": completed_handoff(params, inputs, outputs),
        "metric": raw.get("metric"),
        "direction": raw.get("metric_direction"),
        "metric_file": raw.get("metric_file"),
    }
    return {name: value for name, value in fields.items() if value not in (None, {}, [])}


# -- datasets ----------------------------------------------------------------------------------------------------------


def dataset_rules(sources: Mapping[str, Any]) -> dict[str, Tree]:
    """Our dataset rules. What only another job can supply has none: its key keeps the mark of a missing value."""
    found = {}
    for key, rule in sources.items():
        source = SOURCES.get(rule.get("source", ""))
        where = _where(key, rule)
        if source and where:
            found[key] = {"source": source, **where, **_flags(key, rule, where)}
    return found


def is_archive(path: Any) -> bool:
    return isinstance(path, str) and path.endswith(_ARCHIVES)


def _where(key: str, rule: Mapping[str, Any]) -> Tree:
    if "path_from_format" in rule:
        # A root holds the annotations and the media beside each other, packed or not, so media are the root itself.
        return {"path": ""} if key.endswith(_MEDIA) else {"by_format": rule["path_from_format"]}
    if "mapping" in rule:
        fields = {
            name: {"path": part["path"], **({"optional": True} if part.get("optional") else {})}
            for name, part in rule["mapping"].items()
            if isinstance(part, Mapping) and isinstance(part.get("path"), str) and "{" not in part["path"]
        }
        return {"fields": fields} if fields else {}
    path = rule.get("path", rule.get("value"))
    if not isinstance(path, str):
        return {}
    path = _ANNOTATION.sub("annotations.json", path)
    return {} if "{" in path else {"path": path}


def _flags(key: str, rule: Mapping[str, Any], where: Tree) -> Tree:
    many = rule.get("multiple_sources") or rule.get("list") or "wrap_in_list" in (rule.get("transform") or ())
    # A TensorRT engine is calibrated for int8 only.
    optional = rule.get("optional") or key.startswith("gen_trt_engine.")
    extracted = rule.get("runtime") == "extracted_folder" or is_archive(where.get("path"))
    flags = {"many": many, "optional": optional, "extracted": extracted}
    return {name: True for name, given in flags.items() if given}


# -- inputs and hand-offs ----------------------------------------------------------------------------------------------


def fitted_inputs(inputs: Mapping[str, Any], outputs: Mapping[str, Any], rules: Mapping[str, Tree]) -> dict[str, Tree]:
    """The declared inputs, made to fit the dataset rules.

    A key that receives a root or an archive's content is a folder; a key that has a rule is an input; the first element
    of a list that a rule fills stands for the list; and what the action writes is not an input.
    """
    found: dict[str, Tree] = {}
    for key, rule in inputs.items():
        whole = key.removesuffix("[0]")
        if key not in outputs:
            found[whole if whole in rules else key] = dict(rule or {})
    for key, kind, optional in _filled(rules):
        known = found.setdefault(key, {"type": kind, **({"optional": True} if optional else {})})
        if kind == "folder":
            known["type"] = kind
    return found


def _filled(rules: Mapping[str, Tree]) -> Iterator[tuple[str, str, bool]]:
    """Every key that the rules fill, with what it receives and whether it may stay empty."""
    for key, rule in rules.items():
        optional = bool(rule.get("optional"))
        if "fields" in rule:
            element = f"{key}[0]" if rule.get("many") else key
            for name, part in rule["fields"].items():
                yield f"{element}.{name}", _kind(part["path"]), optional or bool(part.get("optional"))
        else:
            yield key, _kind(rule.get("path")), optional


def _kind(path: Any) -> str:
    return "folder" if path is None or path == "" or is_archive(path) else "file"


def completed_handoff(params: Mapping[str, Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Tree:
    """The hand-off functions, with those added that follow from the names of inputs and outputs.

    An action that takes a checkpoint gets no engine from the same parent: one file cannot be both.
    """
    found = dict(params)
    takes_checkpoint = any(key.endswith(".checkpoint") for key in inputs)
    for key in inputs:
        if key.endswith((".checkpoint", ".onnx_file")) or (key.endswith(".trt_engine") and not takes_checkpoint):
            found.setdefault(key, "parent_model")
    for key in outputs:
        if key in _OUTPUTS:
            found.setdefault(key, _OUTPUTS[key])
    if takes_checkpoint:
        found = {key: value for key, value in found.items() if not (key.endswith(".trt_engine") and key in inputs)}
    return found


# -- schemas -----------------------------------------------------------------------------------------------------------


def plain_schema(schema: Mapping[str, Any]) -> Tree:
    """A schema in the words of JSON Schema: types that it knows, no infinite bounds, nothing that only tools need."""
    found: Tree = {}
    kind = str(schema.get("type") or "")
    if kind:
        known = "array" if kind.startswith(("list", "array")) else _TYPES.get(kind, kind)
        if known in ("object", "array", "integer", "number", "boolean", "string"):
            found["type"] = known
    for key in ("minimum", "maximum"):
        bound = schema.get(key)
        if isinstance(bound, int | float) and not isinstance(bound, bool) and math.isfinite(bound):
            found[key] = bound
    options = schema.get("enum") or schema.get("valid_options")
    if options:
        found["enum"] = options
    for key in ("title", "description", "required"):
        if schema.get(key):
            found[key] = schema[key]
    if isinstance(schema.get("properties"), Mapping):
        found["type"] = "object"
        found["properties"] = {
            name: plain_schema(part) for name, part in schema["properties"].items() if isinstance(part, Mapping)
        }
    return found


def search_parameters(schema: Mapping[str, Any]) -> list[SearchParameter]:
    """The parameters that a train schema offers for search, with real bounds."""
    found = []
    for name in schema.get("automl_default_parameters") or ():
        leaf = schema_leaf(schema, name)
        if leaf is not None:
            words = {"min": leaf.get("minimum"), "max": leaf.get("maximum"), "options": leaf.get("enum")}
            found.append(search_parameter({**leaf, **words, "name": name}))
    return found


def schema_leaf(schema: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """What a schema says about the key of this dotted name; None where it has none."""
    found: Any = schema
    for part in name.split("."):
        found = (found.get("properties") or {}).get(part) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None
