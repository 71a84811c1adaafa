"""What the stand-in says it has: versions, groups, resources, and as much OpenAPI as kubectl apply asks for."""

from __future__ import annotations

from typing import Any

from kube_store import RESOURCES, Resource

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.13", "platform": "linux/amd64"}
GROUPS = {"/api/v1": "", "/apis/batch/v1": "batch"}


def discovery(path: str) -> Any:
    """The answer to a question about the API itself; None for any other."""
    if path in ("/readyz", "/livez", "/healthz"):
        return b"ok"
    if path == "/version":
        return VERSION
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        version = {"groupVersion": "batch/v1", "version": "v1"}
        group = {"name": "batch", "versions": [version], "preferredVersion": version}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    if path in GROUPS:
        found = [part for one in _of(GROUPS[path]) for part in (_resource(one), _status(one))]
        version = path.removeprefix("/apis/").removeprefix("/api/")
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": found}
    if path == "/openapi/v3":
        return {"paths": {one.lstrip("/"): {"serverRelativeURL": f"/openapi/v3{one}"} for one in GROUPS}}
    if path.startswith("/openapi/v3/"):
        return _open_api(path.removeprefix("/openapi/v3"))
    return None


def _of(group: str) -> list[Resource]:
    return [one for one in RESOURCES.values() if one.group == group]


def _resource(one: Resource) -> dict[str, Any]:
    names = {"name": one.plural, "singularName": one.kind.lower(), "shortNames": [one.short] if one.short else []}
    return {**names, "namespaced": one.namespaced, "kind": one.kind, "verbs": VERBS}


def _status(one: Resource) -> dict[str, Any]:
    names = {"name": f"{one.plural}/status", "singularName": "", "namespaced": one.namespaced, "kind": one.kind}
    return {**names, "verbs": ["get", "patch", "update"]}


def _open_api(path: str) -> Any:
    """That a patch can be checked by the server: then kubectl leaves it to that."""
    if path not in GROUPS:
        return None
    asked = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {}
    for one in _of(GROUPS[path]):
        space = "/namespaces/{namespace}" if one.namespaced else ""
        kind = {"group": one.group, "version": "v1", "kind": one.kind}
        patch = {"parameters": asked, "x-kubernetes-group-version-kind": kind, "responses": {}}
        paths[f"{path}{space}/{one.plural}/{{name}}"] = {"patch": patch}
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths}
