"""What the stand-in cluster refuses, and what it fills in: the official schemas, names, labels, Job rules, quota."""

from __future__ import annotations

import base64
import json
import re
from functools import cache
from typing import Any

from jsonschema.validators import Draft202012Validator
from kube_store import ACCOUNTS, JOBS, NAMESPACES, PODS, QUOTAS, ApiError, Object, Store, named
from kube_store import Resource as ApiResource
from kubernetes_validate.utils import all_versions, schema_contents
from referencing import Registry, Resource

SERVER = "1.32"
MIB = 1 << 20
LABEL_RULE = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.'"
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


@cache
def _schema(kind: str, version: str, strict: bool) -> Any:
    """A validator of the official schemas, kept, because reading them takes longer than using them."""
    folder = f"kubernetes-json-schema/v{_full_version()}-local{'-strict' if strict else ''}"
    name = f"{kind.lower()}-{version.replace('/', '-')}"
    own, shared = (schema_contents(f"{folder}/{file}.json", SERVER) for file in (name, "_definitions"))
    registry = Resource.from_contents(shared) @ (Resource.from_contents(own) @ Registry())
    return Draft202012Validator(own, registry=registry)


@cache
def _full_version() -> str:
    return next(version for version in all_versions() if version.startswith(f"{SERVER}."))


def check(resource: ApiResource, given: Object, strict: bool) -> list[str]:
    """Raise what the API server answers to an object that it does not take; returns its warnings."""
    kind, group = resource.kind, resource.group
    if given.get("kind", kind) != kind:
        raise ApiError(400, "BadRequest", f'{given["kind"]} in version "v1" cannot be handled as a {kind}')
    one = {"apiVersion": resource.version, "kind": kind, **given}
    wrong = list(_schema(kind, resource.version, False).iter_errors(one))
    typed = [error for error in wrong if error.validator != "required"]
    if typed:
        where = ".".join(str(part) for part in typed[0].path)
        text = (
            f'{kind} in version "v1" cannot be handled as a {kind}: json: cannot unmarshal {where}: {typed[0].message}'
        )
        raise ApiError(400, "BadRequest", text)
    unknown = [] if wrong else [_unknown(error) for error in _schema(kind, resource.version, True).iter_errors(one)]
    if unknown and strict:
        said = ", ".join(unknown)
        raise ApiError(
            400, "BadRequest", f'{kind} in version "v1" cannot be handled as a {kind}: strict decoding error: {said}'
        )
    name = one["metadata"].get("name") or ""
    faults = [
        *_name_faults(resource, one),
        *_label_faults(one),
        *(f"{_path(error)}: Required value" for error in wrong),
    ]
    faults += _job_faults(one) if resource is JOBS else []
    faults += _size_faults(one)
    if faults:
        text = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
        details = {"name": name, **({"group": group} if group else {}), "kind": kind}
        raise ApiError(422, "Invalid", f'{resource.qualified_kind} "{name}" is invalid: {text}', **details)
    return unknown


def _path(error: Any) -> str:
    lacking = re.match(r"'(\w+)'", error.message)
    return ".".join([*(str(part) for part in error.absolute_path), lacking[1] if lacking else ""])


def _unknown(error: Any) -> str:
    field = re.search(r"\('([^']+)'", error.message)
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path).lstrip(".")
    return f'unknown field "{where + "." if where else ""}{field[1] if field else error.message}"'


def _name_faults(resource: ApiResource, one: Object) -> list[str]:
    meta = one["metadata"]
    name = meta.get("name") or meta.get("generateName", "").rstrip("-")
    if not name:
        return ["metadata.name: Required value: name or generateName is required"]
    if not _SUBDOMAIN.fullmatch(name) or len(name) > 253:
        rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'"
        return [f'metadata.name: Invalid value: "{name}": {rule}']
    most = 61 if one.get("spec", {}).get("completionMode") == "Indexed" else 63
    if resource is JOBS and len(name) > most:
        return [f'spec.template.labels: Invalid value: "{name}": must be no more than {most} characters']
    return []


def _label_faults(one: Object) -> list[str]:
    faults = []
    for where in (one, one.get("spec", {}).get("template", {}) if isinstance(one.get("spec"), dict) else {}):
        for value in (where.get("metadata", {}).get("labels") or {}).values():
            if not _LABEL_VALUE.fullmatch(value):
                faults.append(f'metadata.labels: Invalid value: "{value}": {LABEL_RULE}')
            elif len(value) > 63:
                faults.append(f'metadata.labels: Invalid value: "{value}": must be no more than 63 characters')
    return faults


def _job_faults(one: Object) -> list[str]:
    pod = one["spec"].get("template", {}).get("spec", {})
    faults = []
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        faults.append('spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"')
    if one["spec"].get("podFailurePolicy") and pod.get("restartPolicy") == "OnFailure":
        faults.append('spec.podFailurePolicy: Invalid value: only "Never" restartPolicy is supported')
    volumes = {volume["name"] for volume in pod.get("volumes") or ()}
    for number, container in enumerate(pod.get("containers") or ()):
        where = f"spec.template.spec.containers[{number}]"
        if not container.get("image"):
            faults.append(f"{where}.image: Required value")
        for place, mount in enumerate(container.get("volumeMounts") or ()):
            if mount["name"] not in volumes:
                faults.append(f'{where}.volumeMounts[{place}].name: Not found: "{mount["name"]}"')
        amounts = container.get("resources") or {}
        for name, value in (amounts.get("requests") or {}).items():
            limit = (amounts.get("limits") or {}).get(name)
            if limit is not None and quantity(value) > quantity(limit):
                text = f'Invalid value: "{value}": must be less than or equal to {name} limit of {limit}'
                faults.append(f"{where}.resources.requests: {text}")
    return faults


def _size_faults(one: Object) -> list[str]:
    if one["kind"] not in ("Secret", "ConfigMap"):
        return []
    try:
        size = (
            sum(len(base64.b64decode(value, validate=True)) for value in (one.get("data") or {}).values())
            if one["kind"] == "Secret"
            else len(json.dumps(one.get("data") or {}))
        )
    except ValueError as error:
        raise ApiError(400, "BadRequest", f"illegal base64 data: {error}") from error
    return ["data: Too long: may not be more than 1048576 bytes"] if size > MIB else []


def quantity(text: Any) -> float:
    """An amount as Kubernetes writes it. Raises ApiError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m|[kMGTPE]i?)?", str(text))
    if not match:
        raise ApiError(
            400,
            "BadRequest",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        )
    unit = match[2] or ""
    if unit == "m":
        return float(match[1]) / 1000
    power = "kMGTPE".find(unit[0]) + 1 if unit else 0
    return float(match[1]) * (1024 if unit.endswith("i") else 1000) ** power


def immutable(resource: ApiResource, old: Object, new: Object) -> None:
    """Raise for a change that is not allowed."""
    name = old["metadata"]["name"]
    if new["metadata"].get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
        text = f'metadata.uid: Invalid value: "{new["metadata"]["uid"]}": field is immutable'
        raise ApiError(
            422, "Invalid", f'{resource.qualified_kind} "{name}" is invalid: {text}', **named(resource, name)
        )
    if resource is not JOBS:
        return
    for field in ("template", "completions", "selector", "completionMode", "podFailurePolicy"):
        is_held = old["spec"].get("suspend") and not (old.get("status") or {}).get("startTime")
        if new["spec"].get(field) != old["spec"].get(field) and not (field == "template" and is_held):
            text = f"spec.{field}: Invalid value: field is immutable"
            raise ApiError(
                422, "Invalid", f'{resource.qualified_kind} "{name}" is invalid: {text}', **named(resource, name)
            )


def defaults(resource: ApiResource, one: Object) -> None:
    """What the API server fills in."""
    if resource is JOBS:
        spec, uid, name = one["spec"], one["metadata"]["uid"], one["metadata"]["name"]
        for field, value in (("parallelism", 1), ("completions", 1), ("backoffLimit", 6), ("suspend", False)):
            spec.setdefault(field, value)
        spec.setdefault("completionMode", "NonIndexed")
        spec.setdefault("podReplacementPolicy", "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed")
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
        spec["manualSelector"] = False
        labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
        for prefix in ("", "batch.kubernetes.io/"):
            labels |= {f"{prefix}controller-uid": uid, f"{prefix}job-name": name}
        _pod_defaults(spec["template"]["spec"])
        one["status"] = {}
    elif resource is PODS:
        _pod_defaults(one["spec"])
        one["spec"].setdefault("serviceAccountName", "default")
        one["status"] = {"phase": "Pending"}
    elif resource.kind == "Secret":
        one.setdefault("type", "Opaque")


def _pod_defaults(spec: Object) -> None:
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for container in spec["containers"]:
        container.setdefault("resources", {})
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", "IfNotPresent")


def admit(store: Store, resource: ApiResource, namespace: str, one: Object) -> None:
    """Raise for what the namespace does not take: one that is not there, an unknown account, a quota."""
    if resource.namespaced and store.find(NAMESPACES, "", namespace) is None:
        raise ApiError(404, "NotFound", f'namespaces "{namespace}" not found', name=namespace, kind="namespaces")
    name = one["metadata"].get("name") or one["metadata"].get("generateName") or ""
    if resource is PODS:
        account = one["spec"].get("serviceAccountName") or "default"
        if store.find(ACCOUNTS, namespace, account) is None:
            said = f'{namespace}/{account}: serviceaccount "{account}" not found'
            text = f'pods "{name}" is forbidden: error looking up service account {said}'
            raise ApiError(403, "Forbidden", text, **named(resource, name))
    for quota in store.all(QUOTAS, namespace):
        for field, most in (quota["spec"].get("hard") or {}).items():
            counted = {"count/jobs.batch": JOBS, "pods": PODS}.get(field)
            used = len(_living(store, counted, namespace)) if counted else 0
            if counted is resource and used + 1 > quantity(most):
                title = quota["metadata"]["name"]
                said = f"exceeded quota: {title}, requested: {field}=1, used: {field}={used}, limited: {field}={most}"
                text = f'{resource.qualified} "{name}" is forbidden: {said}'
                raise ApiError(403, "Forbidden", text, **named(resource, name))
            if resource is PODS and (said := _beyond(store, quota, field, most, namespace, one)):
                raise ApiError(403, "Forbidden", f'pods "{name}" is forbidden: {said}', **named(resource, name))


def _beyond(store: Store, quota: Object, field: str, most: str, namespace: str, pod: Object) -> str:
    """What is said of a Pod that wants more of something than a quota has left, or does not say how much it wants."""
    kind, _, wanted = field.partition(".")
    if kind not in ("requests", "limits"):
        return ""
    title, containers = quota["metadata"]["name"], pod["spec"]["containers"]
    silent = [one["name"] for one in containers if wanted in ("cpu", "memory") and wanted not in _amounts(one, kind)]
    if silent:
        return f"failed quota: {title}: must specify {field} for: {','.join(silent)}"
    asked = sum(quantity(_amounts(one, kind).get(wanted, 0)) for one in containers)
    others = [one for other in _living(store, PODS, namespace) for one in other["spec"]["containers"]]
    used = sum(quantity(_amounts(one, kind).get(wanted, 0)) for one in others)
    if not asked or used + asked <= quantity(most):
        return ""
    return f"exceeded quota: {title}, requested: {field}={asked:g}, used: {field}={used:g}, limited: {field}={most}"


def _amounts(container: Object, kind: str) -> Object:
    """A container's limits, or its requests, which are its limits where it does not say otherwise."""
    given = container.get("resources") or {}
    return {**(given.get("limits") or {}), **(given.get(kind) or {})} if kind == "requests" else given.get(kind) or {}


def _living(store: Store, resource: ApiResource, namespace: str) -> list[Object]:
    ended = ("Succeeded", "Failed")
    return [one for one in store.all(resource, namespace) if (one.get("status") or {}).get("phase") not in ended]
