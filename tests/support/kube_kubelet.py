"""The nodes of the stand-in: Pods that are bound to one really run, as processes of this machine, and leave logs."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import kube_container
from kube_controllers import OVER, phase, set_condition
from kube_store import CLAIMS, CONFIG_MAPS, PODS, SECRETS, Object, Store, stamp

PAUSE = 0.03
LONGEST_LINE = 16384
MOST_MESSAGE = 4096
ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"
NOT_READY = {"Pending": "ContainersNotReady", "Succeeded": "PodCompleted", "Failed": "PodFailed"}
TOO_LATE = "Pod was active on the node longer than the specified deadline"
_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")


class Missing(Exception):
    """Something that the Pod names is not there."""


class Log:
    """The lines of a container with the moments they came; a line that goes on is kept until it is whole."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self.lock = threading.Lock()

    def read(self, stream: Any) -> None:
        rest = b""
        while chunk := os.read(stream.fileno(), 1 << 16):
            *whole, rest = (rest + chunk).split(b"\n")
            while len(rest) > LONGEST_LINE:
                whole, rest = [*whole, rest[:LONGEST_LINE]], rest[LONGEST_LINE:]
            self._add([line + b"\n" for line in whole])
        if rest:
            self._add([rest + b"\n"])

    def _add(self, lines: list[bytes]) -> None:
        with self.lock:
            last = self.entries[-1][0] if self.entries else 0
            for line in lines:
                last = max(time.time_ns(), last + 1)
                self.entries.append((last, line))

    def text(self, since: int = 0, tail: int | None = None, timestamps: bool = False) -> bytes:
        with self.lock:
            found = [entry for entry in self.entries if entry[0] >= since]
        found = found[len(found) - tail :] if tail is not None and tail < len(found) else found
        return b"".join((_rfc3339(moment) + b" " + line) if timestamps else line for moment, line in found)


def _rfc3339(moment: int) -> bytes:
    seconds, fraction = divmod(moment, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode() + b".%09dZ" % fraction


class Kubelet:
    """All nodes at once. `images` says which images can be pulled: None for one, or the registry's words."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.pull_error: Callable[[str], str | None] = lambda image: None
        self.silent_nodes: set[str] = set()
        self.api_port, self.certificate = 0, ""  # for Pods with an account, once there is one
        self.start_seconds = 0.0  # what a node needs for a container
        self.is_stopping = False
        self.logs: dict[str, Log] = {}
        self.running: dict[str, PodRun] = {}
        self.addresses = iter(f"127.77.{number // 250}.{number % 250 + 1}" for number in range(1, 60000))
        self.thread = threading.Thread(target=self._run, daemon=True, name="kubelet")

    def _run(self) -> None:
        seen = -1
        while not self.is_stopping:
            with self.store.changed:
                if self.store.version == seen:
                    self.store.changed.wait(0.2)
                seen = self.store.version
                fresh = [
                    pod
                    for pod in self.store.all(PODS)
                    if pod["spec"].get("nodeName")
                    and pod["metadata"]["uid"] not in self.running
                    and phase(pod) not in OVER
                ]
            for pod in fresh:
                if pod["spec"]["nodeName"] not in self.silent_nodes:
                    run = PodRun(self, pod)
                    self.running[pod["metadata"]["uid"]] = run
                    run.thread.start()
            self._remove_ended()

    def _remove_ended(self) -> None:
        """A Pod that is over and to be deleted goes as soon as its grace is of no use any more."""
        for pod in self.store.all(PODS):
            meta = pod["metadata"]
            if meta.get("deletionTimestamp") and phase(pod) in OVER and meta.get("deletionGracePeriodSeconds"):
                self.store.delete(PODS, pod, grace=0)

    def stop(self) -> None:
        self.is_stopping = True
        for run in list(self.running.values()):
            run.kill()
        for run in list(self.running.values()):
            run.thread.join(10)

    def hosts(self) -> str:
        """The names of all Pods that have one, as the cluster's DNS knows them."""
        lines = ["127.0.0.1 localhost"]
        for pod in self.store.all(PODS):
            spec, address = pod["spec"], pod["status"].get("podIP")
            if address and spec.get("hostname") and spec.get("subdomain"):
                names = [f"{spec['hostname']}.{spec['subdomain']}", spec["hostname"]]
                lines.append(f"{address} {' '.join(names)}")
        return "\n".join(lines) + "\n"

    def tell_hosts(self) -> None:
        for run in list(self.running.values()):
            with suppress(OSError):
                (run.folder / "hosts").write_text(self.hosts())


class PodRun:
    """One Pod on its node, from its image to its end."""

    def __init__(self, kubelet: Kubelet, pod: Object) -> None:
        self.kubelet, self.store, self.pod = kubelet, kubelet.store, pod
        self.folder = kubelet.folder / pod["metadata"]["uid"]
        self.process: subprocess.Popen[bytes] | None = None
        self.is_late = False
        self.thread = threading.Thread(target=self._guarded, daemon=True, name=f"pod-{pod['metadata']['name']}")

    # -- what the API shows --------------------------------------------------------------------------------------------

    def current(self) -> Object | None:
        """The Pod as it is now; None when it is gone."""
        meta = self.pod["metadata"]
        found = self.store.find(PODS, meta["namespace"], meta["name"])
        return found if found and found["metadata"]["uid"] == meta["uid"] else None

    def tell(self, state: Object, pod_phase: str = "Pending", ready: bool = False, **more: Any) -> None:
        """Write the status, unless the node is silent."""
        while self.pod["spec"]["nodeName"] in self.kubelet.silent_nodes and not self.kubelet.is_stopping:
            time.sleep(PAUSE)
        names = [one["name"] for one in self.pod["spec"]["containers"]]

        def write(new: Object) -> None:
            status = new["status"]
            status["phase"] = pod_phase
            status.setdefault("startTime", stamp())
            status |= more
            for kind in ("Initialized", "Ready", "ContainersReady"):
                flag = "True" if ready or kind == "Initialized" else "False"
                is_told = flag == "False" or pod_phase == "Succeeded"
                set_condition(new, kind, flag, NOT_READY[pod_phase] if is_told else "")
            base = {"name": names[0], "ready": ready, "started": ready, "restartCount": 0, "lastState": {}}
            image = {"image": self.pod["spec"]["containers"][0]["image"], "imageID": ""}
            status["containerStatuses"] = [{**base, **image, "state": state}]

        self.store.update(PODS, self.pod, write)

    def event(self, kind: str, reason: str, message: str) -> None:
        self.store.event(self.pod, kind, reason, message, "kubelet")

    # -- its life ------------------------------------------------------------------------------------------------------

    def _guarded(self) -> None:
        try:
            if self._prepare():
                self._live()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _is_wanted(self) -> bool:
        now = self.current()
        return bool(now) and not self.kubelet.is_stopping and not (now or {})["metadata"].get("deletionTimestamp")

    def _prepare(self) -> bool:
        """Wait for image, Secrets and volumes; false when the Pod was deleted meanwhile."""
        image = self.pod["spec"]["containers"][0]["image"]
        self.tell({"waiting": {"reason": "ContainerCreating"}})
        time.sleep(self.kubelet.start_seconds)
        tries = 0
        while self._is_wanted():
            try:
                self._check_image(image, tries)
                self._spec = self._container_spec()
                return True
            except Missing as error:
                reason, message = str(error.args[0]), str(error.args[1])
                if reason == "FailedMount":
                    self.event("Warning", reason, message)
                else:
                    self.event("Warning", "Failed", f"Error: {message}")
                    self.tell({"waiting": {"reason": reason, "message": message}})
            tries += 1
            for _ in range(20):
                if not self._is_wanted():
                    break
                time.sleep(PAUSE)
        if self.current() and not self.kubelet.is_stopping:
            self._gone(137)
        return False

    def _check_image(self, image: str, tries: int) -> None:
        if re.search(r"[A-Z]", image.rpartition(":")[0]):
            said = f'couldn\'t parse image name "{image}": invalid reference format: repository name must be lowercase'
            text = f'Failed to apply default image tag "{image}": {said}'
            raise Missing("InvalidImageName", text)
        if said := self.kubelet.pull_error(image):
            if tries % 2:
                raise Missing("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {said}')
            raise Missing("ErrImagePull", said)

    def _live(self) -> None:
        log = self.kubelet.logs.setdefault(self.pod["metadata"]["uid"], Log())
        self.folder.mkdir(parents=True, exist_ok=True)
        address = next(self.kubelet.addresses)
        began = stamp()
        self.tell({"running": {"startedAt": began}}, "Running", True, podIP=address, podIPs=[{"ip": address}])
        self.kubelet.tell_hosts()
        path = self.folder / "spec.json"
        path.write_text(json.dumps(self._spec))
        command = [sys.executable, "-S", "-E", kube_container.__file__, str(path)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=subprocess.STDOUT)
        reader = threading.Thread(target=log.read, args=(self.process.stdout,), daemon=True)
        reader.start()
        name = self.pod["spec"]["containers"][0]["name"]
        self.event("Normal", "Started", f"Started container {name}")
        code = self._wait()
        reader.join(5)
        self._ended(code, began)

    def _wait(self) -> int:
        """Until the command ends; a Pod that is deleted gets its signal, and after its grace the last one."""
        assert self.process
        kill_at, grace = None, None
        give_up = time.monotonic() + self.pod["spec"].get("activeDeadlineSeconds", math.inf)
        while self.process.poll() is None:
            now = self.current()
            if time.monotonic() > give_up and not self.is_late:
                self.is_late = True
                self.event_if_there("Killing", "Stopping container main")
                self._signal(signal.SIGTERM)
                kill_at = time.monotonic() + self.pod["spec"]["terminationGracePeriodSeconds"]
            wanted = (now or {"metadata": {"deletionGracePeriodSeconds": 0}})["metadata"].get(
                "deletionGracePeriodSeconds"
            )
            is_silent = self.pod["spec"]["nodeName"] in self.kubelet.silent_nodes
            if wanted is not None and wanted != grace and not is_silent:
                if grace is None:
                    self.event_if_there("Killing", "Stopping container main")
                    self._signal(signal.SIGTERM)
                grace, kill_at = wanted, time.monotonic() + wanted
            if kill_at is not None and time.monotonic() >= kill_at:
                self.kill()
            time.sleep(PAUSE)
        return self.process.returncode

    def event_if_there(self, reason: str, message: str) -> None:
        if self.current():
            self.event("Normal", reason, message)

    def _ended(self, code: int, began: str) -> None:
        told = self.folder / "termination-log"
        message = told.read_bytes()[:MOST_MESSAGE].decode(errors="replace") if told.exists() else ""
        policy = self.pod["spec"]["containers"][0].get("terminationMessagePolicy")
        if not message and code and policy == "FallbackToLogsOnError":
            message = self.kubelet.logs[self.pod["metadata"]["uid"]].text(tail=80)[-2048:].decode(errors="replace")
        error = self.folder / "error"
        reason = "Completed" if code == 0 else "Error"
        if code == kube_container.NOT_STARTED and error.exists():
            reason, message = "StartError", f"failed to create containerd task: {error.read_text()}"
        state = {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": stamp()}
        late = {"reason": "DeadlineExceeded", "message": TOO_LATE} if self.is_late else {}
        ended = {"terminated": {**state, **({"message": message} if message else {})}}
        self.tell(ended, "Failed" if code or late else "Succeeded", **late)
        self._let_go()

    def _gone(self, code: int) -> None:
        state = {"exitCode": code, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
        self.tell({"terminated": state}, "Failed")
        self._let_go()

    def _let_go(self) -> None:
        now = self.current()
        if now and now["metadata"].get("deletionTimestamp"):
            self.store.delete(PODS, now, grace=0)

    def _pid(self) -> int:
        with suppress(OSError, ValueError):
            return int((self.folder / "pid").read_text())
        return 0

    def _signal(self, number: signal.Signals) -> None:
        for _ in range(100):
            if pid := self._pid():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                return
            if not self.process or self.process.poll() is not None:
                return
            time.sleep(0.02)

    def kill(self) -> None:
        """End everything in the container: its first process takes all others with it."""
        if self.process and self.process.poll() is None:
            self._signal(signal.SIGKILL)

    # -- what the container gets ---------------------------------------------------------------------------------------

    def _container_spec(self) -> Object:
        spec, container = self.pod["spec"], self.pod["spec"]["containers"][0]
        self.folder.mkdir(parents=True, exist_ok=True)
        env = self._env(container)
        security = {**(spec.get("securityContext") or {}), **(container.get("securityContext") or {})}
        told, hosts = self.folder / "termination-log", self.folder / "hosts"
        told.touch(mode=0o666)
        told.chmod(0o666)
        hosts.write_text(self.kubelet.hosts())
        mounts = [{"source": str(hosts), "target": "/etc/hosts"}, *self._mounts(container, security.get("fsGroup"))]
        mounts.append({"source": str(told), "target": container["terminationMessagePath"]})
        if self.kubelet.api_port and spec.get("automountServiceAccountToken", True):
            mounts.append(self._account(spec["serviceAccountName"]))
            env |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.kubelet.api_port)}
        words = [*(container.get("command") or ["/bin/sh", "-c", "true"]), *(container.get("args") or [])]
        return {
            "root": str(self.folder / "root"),
            "mounts": mounts,
            "hostname": spec.get("hostname") or self.pod["metadata"]["name"],
            "uid": security.get("runAsUser"),
            "gid": security.get("runAsGroup", security.get("fsGroup", security.get("runAsUser"))),
            "cwd": container.get("workingDir"),
            "env": env,
            "argv": [expanded(word, env) for word in words],
            "pid_file": str(self.folder / "pid"),
            "error_file": str(self.folder / "error"),
        }

    def _account(self, name: str) -> Object:
        own = self.folder / "account"
        own.mkdir(exist_ok=True)
        files = {"token": name, "ca.crt": self.kubelet.certificate, "namespace": self.pod["metadata"]["namespace"]}
        for file, text in files.items():
            (own / file).write_text(text)
        return {"source": str(own), "target": ACCOUNT, "read_only": True}

    def _env(self, container: Object) -> dict[str, str]:
        env = {"PATH": os.environ["PATH"], "HOME": "/root", "HOSTNAME": self.pod["metadata"]["name"]}
        for one in container.get("env") or ():
            source = one.get("valueFrom") or {}
            if field := source.get("fieldRef"):
                env[one["name"]] = self._field(field["fieldPath"])
            elif key := source.get("secretKeyRef"):
                env[one["name"]] = self._key(SECRETS, "secret", key).decode()
            elif key := source.get("configMapKeyRef"):
                env[one["name"]] = self._key(CONFIG_MAPS, "configmap", key).decode()
            else:
                env[one["name"]] = expanded(one.get("value", ""), env)
        return env

    def _field(self, path: str) -> str:
        if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
            return str((self.pod["metadata"].get(match[1]) or {}).get(match[2], ""))
        found: Any = self.current() or self.pod
        for step in path.split("."):
            found = (found or {}).get(step)
        return str(found or "")

    def _key(self, resource: Any, title: str, key: Object) -> bytes:
        data = self._data(resource, title, key["name"], "CreateContainerConfigError", "")
        if key["key"] not in data:
            space = self.pod["metadata"]["namespace"]
            raise Missing(
                "CreateContainerConfigError", f"couldn't find key {key['key']} in {title.title()} {space}/{key['name']}"
            )
        return data[key["key"]]

    def _data(self, resource: Any, title: str, name: str, reason: str, prefix: str) -> dict[str, bytes]:
        found = self.store.find(resource, self.pod["metadata"]["namespace"], name)
        if found is None:
            raise Missing(reason, f'{prefix}{title} "{name}" not found')
        data = found.get("data") or {}
        if resource is SECRETS:
            return {key: base64.b64decode(value) for key, value in data.items()}
        return {key: value.encode() for key, value in data.items()}

    def _mounts(self, container: Object, group: int | None) -> list[Object]:
        volumes = {one["name"]: one for one in self.pod["spec"].get("volumes") or ()}
        found = []
        for place in container.get("volumeMounts") or ():
            volume = volumes[place["name"]]
            one: Object = {"target": place["mountPath"], "read_only": bool(place.get("readOnly"))}
            empty = volume.get("emptyDir")
            if empty is not None and empty.get("medium") == "Memory":
                one["tmpfs"] = f"mode=1777,size={int(empty.get('sizeLimit', 1 << 26))}"
            else:
                source = self._source(volume, group) / place.get("subPath", "")
                source.mkdir(parents=True, exist_ok=True)
                one["source"] = str(source)
            found.append(one)
        return sorted(found, key=lambda one: one["target"].count("/"))

    def _source(self, volume: Object, group: int | None) -> Path:
        own = self.folder / "volumes" / volume["name"]
        if path := (volume.get("hostPath") or {}).get("path"):
            return Path(path)
        if claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            bound = self.store.get(CLAIMS, self.pod["metadata"]["namespace"], claim)
            return Path(bound["metadata"]["annotations"]["stand-in/folder"])
        own.mkdir(parents=True, exist_ok=True)
        own.chmod(0o777)
        parts = (volume.get("projected") or {}).get("sources") or [volume]
        if volume.get("secret"):
            parts = [{"secret": {"name": volume["secret"]["secretName"]}}]
        mode = next(
            (
                volume[kind].get("defaultMode", 0o644)
                for kind in ("projected", "secret", "configMap")
                if volume.get(kind)
            ),
            0o644,
        )
        for part in parts:
            for kind, resource, title in (("secret", SECRETS, "secret"), ("configMap", CONFIG_MAPS, "configmap")):
                if part.get(kind):
                    prefix = f'MountVolume.SetUp failed for volume "{volume["name"]}" : '
                    for key, data in self._data(resource, title, part[kind]["name"], "FailedMount", prefix).items():
                        (own / key).write_bytes(data)
                        os.chown(own / key, 0, group or 0)
                        (own / key).chmod(mode)
        return own


def expanded(text: str, env: dict[str, str]) -> str:
    """As the kubelet does it: $(NAME) where NAME is known, and $$ for a dollar."""
    return _VARIABLE.sub(lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]), text)
