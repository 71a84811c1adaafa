"""A Kubernetes cluster in this process: an API server, controllers and nodes whose Pods are processes of this machine.

It answers as a real cluster was recorded to answer, as far as the driver and its tests look. It needs root, because a
Pod has files, processes and a name of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from kube_api import Api
from kube_controllers import Controllers, evict
from kube_kubelet import Kubelet
from kube_rules import defaults
from kube_store import (
    ACCOUNTS,
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    QUOTAS,
    RESOURCES,
    SECRETS,
    ApiError,
    Object,
    Resource,
    Store,
)

SERVICES = RESOURCES["", "services"]
ADMIN = "admin"
IMAGE = "registry.example/tools/python:3"
GPU = "nvidia.com/gpu"


class KubeCluster:
    """Two nodes with eight pretended GPUs each, and the namespace `default`."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder = folder
        self.store = Store()
        self.kubelet = Kubelet(self.store, folder / "pods")
        self.controllers = Controllers(self.store)
        self.api = Api(self.store, self.kubelet)
        # kubectl sends no token without TLS.
        self.api.rights |= dict.fromkeys((ADMIN, ""), lambda verb, resource: True)
        self.add_namespace("default")
        for number in range(1, nodes + 1):
            self.add_node(f"node{number}")

    def __enter__(self) -> KubeCluster:
        self.folder.mkdir(parents=True, exist_ok=True)
        for part in (self.api, self.controllers, self.kubelet):
            part.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.api.is_stopping = self.controllers.is_stopping = True
        self.api.close()
        self.kubelet.stop()
        for part in (self.controllers, self.kubelet):
            part.thread.join(5)

    # -- what there is -------------------------------------------------------------------------------------------------

    def add_namespace(self, name: str) -> None:
        self.store.create(NAMESPACES, "", {"metadata": {"name": name}, "status": {"phase": "Active"}})
        self.store.create(ACCOUNTS, name, {"metadata": {"name": "default"}})
        root = {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "a certificate of the stand-in"}}
        self.store.create(CONFIG_MAPS, name, root)

    def add_node(
        self, name: str, gpus: int = 8, labels: dict[str, str] | None = None, taints: list[Object] | None = None
    ) -> None:
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", **({GPU: str(gpus)} if gpus else {})}
        status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}}
        self.store.create(NODES, "", {"metadata": meta, "spec": {"taints": taints or []}, "status": status})

    def add_claim(
        self, name: str, folder: Path | None, namespace: str = "default", mode: str = "ReadWriteMany"
    ) -> None:
        """A volume claim that is bound to a folder, or to nothing."""
        notes = {"stand-in/folder": str(folder)} if folder else {}
        status = {"phase": "Bound" if folder else "Pending"}
        claim = {"metadata": {"name": name, "annotations": notes}, "spec": {"accessModes": [mode]}, "status": status}
        self.store.create(CLAIMS, namespace, claim)

    def add_quota(self, hard: dict[str, str], namespace: str = "default") -> None:
        self.store.create(QUOTAS, namespace, {"metadata": {"name": "quota"}, "spec": {"hard": hard}})

    def add_user(self, token: str, allowed: Callable[[str, str], bool]) -> None:
        self.api.rights[token] = allowed

    def add_account(self, name: str, allowed: Callable[[str, str], bool]) -> None:
        """A service account, whose Pods find the cluster and its token as on a real one."""
        self.store.create(ACCOUNTS, "default", {"metadata": {"name": name}})
        self.add_user(name, allowed)
        if not self.kubelet.api_port:
            self.kubelet.api_port = self.api.listen_to_pods(self.folder)
            self.kubelet.certificate = (self.folder / "ca.crt").read_text()

    def kubeconfig(self, token: str = ADMIN, namespace: str = "default") -> Path:
        """A file that leads here, for the user of a token."""
        path = self.folder / f"kubeconfig-{token}"
        content: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stand-in",
            "clusters": [{"name": "stand-in", "cluster": {"server": self.api.url}}],
            "users": [{"name": token, "user": {"token": token}}],
            "contexts": [
                {"name": "stand-in", "context": {"cluster": "stand-in", "user": token, "namespace": namespace}}
            ],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    # -- what happens --------------------------------------------------------------------------------------------------

    def jobs(self) -> list[Object]:
        return self.store.all(JOBS)

    def pods(self) -> list[Object]:
        return self.store.all(PODS)

    def evict(self, pod: Object) -> None:
        evict(self.store, pod)

    def clear(self) -> None:
        """Take away all that was made, and wait until it is gone."""
        self.api.is_away, self.api.fault = False, lambda method, path: None
        self.api.missing_features.clear()
        self.api.unknown_fields.clear()
        self.api.added.clear()
        self.controllers.is_counting = True
        self.kubelet.silent_nodes.clear()
        self.kubelet.pull_error = lambda image: None
        deadline = time.monotonic() + 30
        while left := self._left():
            assert time.monotonic() < deadline, f"not gone: {[one['metadata']['name'] for _, one in left]}"
            for resource, one in left:
                self.store.delete(resource, one, "Background", grace=0)
            time.sleep(0.02)

    def _left(self) -> list[tuple[Resource, Object]]:
        made = (JOBS, PODS, SECRETS, SERVICES, QUOTAS, CLAIMS, CONFIG_MAPS, EVENTS)
        found = [(resource, one) for resource in made for one in self.store.all(resource)]
        return [pair for pair in found if pair[1]["metadata"]["name"] != "kube-root-ca.crt"]


__all__ = ["ADMIN", "GPU", "IMAGE", "ApiError", "KubeCluster", "defaults"]
