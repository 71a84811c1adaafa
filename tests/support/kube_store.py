"""The objects of the stand-in cluster: versions, watches, owners and finalizers, as an API server keeps them."""

from __future__ import annotations

import copy
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

Object = dict[str, Any]
FIRST_VERSION = 100
FOREGROUND, TRACKING = "foregroundDeletion", "batch.kubernetes.io/job-tracking"
_TERM = re.compile(r"([\w./-]+)\s*(==|!=|=)\s*([\w.-]*)")
_SET_TERM = re.compile(r"([\w./-]+)\s+(in|notin)\s+\(([^)]*)\)")


class Resource(NamedTuple):
    """A kind of object: where the API has it and what it is called."""

    group: str
    plural: str
    kind: str
    namespaced: bool = True
    short: str = ""

    @property
    def version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def qualified(self) -> str:
        """As error messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind


RESOURCES = {
    (one.group, one.plural): one
    for one in (
        Resource("batch", "jobs", "Job"),
        Resource("", "pods", "Pod", short="po"),
        Resource("", "secrets", "Secret"),
        Resource("", "configmaps", "ConfigMap", short="cm"),
        Resource("", "services", "Service", short="svc"),
        Resource("", "events", "Event", short="ev"),
        Resource("", "persistentvolumeclaims", "PersistentVolumeClaim", short="pvc"),
        Resource("", "serviceaccounts", "ServiceAccount", short="sa"),
        Resource("", "resourcequotas", "ResourceQuota", short="quota"),
        Resource("", "namespaces", "Namespace", namespaced=False, short="ns"),
        Resource("", "nodes", "Node", namespaced=False, short="no"),
    )
}
JOBS, PODS, SECRETS, CONFIG_MAPS = (
    RESOURCES["batch", "jobs"],
    RESOURCES["", "pods"],
    RESOURCES["", "secrets"],
    RESOURCES["", "configmaps"],
)
EVENTS, NODES, NAMESPACES = RESOURCES["", "events"], RESOURCES["", "nodes"], RESOURCES["", "namespaces"]
CLAIMS, ACCOUNTS, QUOTAS = (
    RESOURCES["", name] for name in ("persistentvolumeclaims", "serviceaccounts", "resourcequotas")
)


class ApiError(Exception):
    """An answer that is a Status."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            **({"details": details} if details else {}),
            "code": code,
        }


def named(resource: Resource, name: str) -> Object:
    """The details of an answer about one object."""
    return {"name": name, **({"group": resource.group} if resource.group else {}), "kind": resource.plural}


def stamp(moment: datetime | None = None) -> str:
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Change(NamedTuple):
    """One entry of the history that watches read."""

    version: int
    type: str
    resource: Resource
    object: Object


class Store:
    """All objects. Whoever reads or changes several of them together holds `changed`, which is the lock too."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = FIRST_VERSION
        self.objects: dict[tuple[Resource, str, str], Object] = {}
        self.history: list[Change] = []
        self.oldest = FIRST_VERSION

    # -- reading -------------------------------------------------------------------------------------------------------

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        with self.changed:
            return self.objects.get((resource, namespace if resource.namespaced else "", name))

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        found = self.find(resource, namespace, name)
        if found is None:
            raise ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found', **named(resource, name))
        return found

    def all(self, resource: Resource, namespace: str = "") -> list[Object]:
        with self.changed:
            found = [
                (key, one) for key, one in self.objects.items() if key[0] is resource and namespace in ("", key[1])
            ]
        return [one for _, one in sorted(found, key=lambda pair: pair[0][1:])]

    def owned(self, owner: Object) -> Iterator[tuple[Resource, Object]]:
        uid = owner["metadata"]["uid"]
        for (resource, _, _), one in list(self.objects.items()):
            if any(ref["uid"] == uid for ref in one["metadata"].get("ownerReferences") or ()):
                yield resource, one

    # -- changing ------------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, given: Object, dry: bool = False) -> Object:
        one = copy.deepcopy(given)
        meta = one.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        name = meta["name"]
        one.setdefault("apiVersion", resource.version)
        one.setdefault("kind", resource.kind)
        with self.changed:
            if there := self.find(resource, namespace, name):
                self._refuse_name(resource, name, there)
            if resource.namespaced:
                meta["namespace"] = namespace
            meta["uid"] = meta.get("uid") or str(uuid.uuid4())
            meta["creationTimestamp"] = stamp()
            if resource in (JOBS, PODS):
                meta["generation"] = 1
            if not dry:
                self._put("ADDED", resource, one)
        return one

    @staticmethod
    def _refuse_name(resource: Resource, name: str, there: Object) -> None:
        if there["metadata"].get("deletionTimestamp"):
            text = f'object is being deleted: {resource.qualified} "{name}" already exists'
        else:
            text = f'{resource.qualified} "{name}" already exists'
        raise ApiError(409, "AlreadyExists", text, **named(resource, name))

    def _put(self, kind: str, resource: Resource, one: Object) -> None:
        self.version += 1
        meta = one["metadata"]
        meta["resourceVersion"] = str(self.version)
        key = (resource, meta.get("namespace", "") if resource.namespaced else "", meta["name"])
        if kind == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = one
        self.history.append(Change(self.version, kind, resource, copy.deepcopy(one)))
        self.changed.notify_all()

    def update(self, resource: Resource, one: Object, change: Callable[[Object], None]) -> Object | None:
        """Change the newest version of an object; None when it is gone. An object without finalizers may go by it."""
        with self.changed:
            meta = one["metadata"]
            there = self.find(resource, meta.get("namespace", ""), meta["name"])
            if there is None or there["metadata"]["uid"] != meta["uid"]:
                return None
            new = copy.deepcopy(there)
            change(new)
            if new == there:
                return there
            if _is_over(resource, new):
                self._put("DELETED", resource, new)
            else:
                self._put("MODIFIED", resource, new)
            return new

    def delete(self, resource: Resource, one: Object, policy: str = "Background", grace: int | None = None) -> Object:
        """Delete as DELETE does; what has finalizers, or runs on a node, goes later."""
        with self.changed:
            if policy == "Orphan":
                for kind, other in self.owned(one):
                    self.update(kind, other, lambda new: new["metadata"].pop("ownerReferences"))

            def mark(new: Object) -> None:
                meta = new["metadata"]
                if policy == "Foreground" and FOREGROUND not in meta.get("finalizers", []):
                    meta["finalizers"] = [*meta.get("finalizers", []), FOREGROUND]
                seconds = _grace(resource, new, grace)
                known = meta.get("deletionGracePeriodSeconds")
                if known is None or seconds < known:
                    meta["deletionTimestamp"] = stamp(datetime.now(UTC) + timedelta(seconds=seconds))
                    meta["deletionGracePeriodSeconds"] = seconds

            return self.update(resource, one, mark) or one

    def forget_history(self) -> None:
        """As etcd does now and then: who watches from before has to list anew."""
        with self.changed:
            self.oldest = self.version
            self.history.clear()

    def event(self, about: Object, kind: str, reason: str, message: str, component: str) -> None:
        """Write down that something happened to an object; the same thing twice is counted."""
        meta = about["metadata"]
        for one in self.all(EVENTS, meta["namespace"]):
            if (one["involvedObject"].get("uid"), one["reason"], one["message"]) == (meta["uid"], reason, message):

                def count(new: Object) -> None:
                    new["count"] += 1
                    new["lastTimestamp"] = stamp()

                self.update(EVENTS, one, count)
                return
        involved = {"kind": about["kind"], "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
        self.create(
            EVENTS,
            meta["namespace"],
            {
                "metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}"},
                "involvedObject": {**involved, "apiVersion": about["apiVersion"]},
                "type": kind,
                "reason": reason,
                "message": message,
                "count": 1,
                "firstTimestamp": stamp(),
                "lastTimestamp": stamp(),
                "source": {"component": component},
                "reportingComponent": component,
            },
        )


def _grace(resource: Resource, one: Object, grace: int | None) -> int:
    if resource is not PODS:
        return 0
    phase = (one.get("status") or {}).get("phase")
    if not one["spec"].get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0
    return one["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace


def _is_over(resource: Resource, one: Object) -> bool:
    meta = one["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers"):
        return False
    return meta.get("deletionGracePeriodSeconds", 0) == 0


# -- selectors ---------------------------------------------------------------------------------------------------------


def label_test(text: str) -> Callable[[Object], bool]:
    """What a labelSelector asks for. Raises ApiError."""
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    for part in filter(None, (part.strip() for part in re.split(r",(?![^(]*\))", text))):
        tests.append(_label_term(part))
    return lambda one: all(test(one["metadata"].get("labels") or {}) for test in tests)


def _label_term(part: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _SET_TERM.fullmatch(part):
        values = {value.strip() for value in match[3].split(",")}
        wanted = match[2] == "in"
        return lambda labels: (labels.get(match[1]) in values) == wanted
    if match := _TERM.fullmatch(part):
        return lambda labels: (labels.get(match[1]) == match[3]) == (match[2] != "!=")
    if re.fullmatch(r"!?[\w./-]+", part):
        name = part.lstrip("!")
        return lambda labels: (name in labels) != part.startswith("!")
    raise ApiError(400, "BadRequest", f"unable to parse requirement: found '{part}', expected: identifier")


def field_test(text: str) -> Callable[[Object], bool]:
    """What a fieldSelector asks for."""

    def value(one: Object, path: str) -> str:
        found: Any = one
        for step in path.split("."):
            found = (found or {}).get(step)
        return str(found or "")

    terms = [re.split(r"(!=|==?)", part, maxsplit=1) for part in filter(None, text.split(","))]
    return lambda one: all((value(one, path) == wanted) == (sign != "!=") for path, sign, wanted in terms)
