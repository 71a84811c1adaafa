"""A real Docker engine of our own: private socket and folders, stopped by its process id, images from this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import debian
import docker
import pytest
from docker_images import python_tar, tools_tar

TOOLS, PYTHON, GPU = "tao-test:tools", "tao-test:python", "tao-test:gpu"
START_SECONDS = 60
# Two GPUs as nvidia-smi tells of them; somebody computes on the first one.
NVIDIA_SMI = """#!/bin/bash
case "$*" in
*query-gpu*) cat <<'END'
0, GPU-aaaa, NVIDIA A100, 81920, 40000, 8.0, 580.82
1, GPU-bbbb, NVIDIA A100, 81920, 4, 8.0, 580.82
END
;;
*query-compute-apps*) echo 'GPU-aaaa, 4711, python3' ;;
*) echo '| NVIDIA-SMI 580.82   Driver Version: 580.82   CUDA Version: 13.0 |' ;;
esac
"""

# The same with nobody there.
IDLE_SMI = NVIDIA_SMI.replace("40000", "4").replace("echo 'GPU-aaaa, 4711, python3'", "true")


class Engine:
    """`dockerd`, with a stand-in for NVIDIA's hook, so that requests for GPUs get as far as they can without any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "docker.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self._client: Any = None

    @property
    def host(self) -> str:
        return f"unix://{self.socket}"

    @property
    def client(self) -> Any:
        """docker-py's client, for looking at what the driver did."""
        if self._client is None:
            self._client = docker.APIClient(base_url=self.host, timeout=60)
        return self._client

    def start(self, *words: str) -> None:
        hooks = self.folder / "hooks"
        hooks.mkdir(exist_ok=True)
        hook = hooks / "nvidia-container-runtime-hook"
        hook.write_text("#!/bin/sh\nexit 0\n")
        hook.chmod(0o755)
        # Neither a bridge of its own nor rules for packets: it must not change the machine's network.
        quiet = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false")
        runc = shutil.which("runc", path=debian.PATH) or "runc"
        with open(self.folder / "dockerd.log", "ab") as log:
            self.process = subprocess.Popen(
                ["dockerd", "--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "exec")]
                + ["-H", self.host, "-p", str(self.folder / "docker.pid"), "--shutdown-timeout", "2", *quiet]
                + ["--add-runtime", f"nvidia={runc}", *words],
                env={**os.environ, "PATH": f"{hooks}{os.pathsep}{debian.PATH}"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(docker.errors.DockerException, OSError):
                self._client = None
                self.client.ping()
                return
            time.sleep(0.1)
        raise RuntimeError(f"dockerd did not start: {(self.folder / 'dockerd.log').read_text()[-2000:]}")

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def kill(self) -> None:
        """As a crash would: containers are left to themselves."""
        assert self.process
        self.process.kill()
        self.process.wait()
        # Its containerd dies with it; where nobody counts off the dead, the number in its file seems to live on.
        for name in ("docker.pid", "exec/containerd/containerd.pid"):
            (self.folder / name).unlink(missing_ok=True)

    def load_images(self) -> None:
        self.client.import_image_from_data(tools_tar(), repository=TOOLS)
        self.client.import_image_from_data(python_tar(), repository=PYTHON)

    def of_key(self, key: str) -> list[str]:
        """The ids of all containers of one key."""
        return [one["Id"] for one in self.client.containers(all=True, filters={"label": f"prefect-tao.key={key}"})]

    def clear(self) -> None:
        """Remove every container."""
        for one in self.client.containers(all=True):
            with suppress(docker.errors.APIError):
                self.client.remove_container(one["Id"], force=True, v=True)

    def remove(self) -> None:
        """Stop and leave nothing behind."""
        with suppress(Exception):
            self.clear()
            for network in self.client.networks(filters={"type": "custom"}):
                self.client.remove_network(network["Id"])
        self.stop()
        # An engine that was killed has left the mounts of its containers.
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([mount for mount in mounts if mount.startswith(f"{self.folder}/")]):
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def new_engine() -> Engine:
    """An engine that runs, with both images; skips the test where there can be none."""
    if os.geteuid() != 0:
        pytest.skip("a Docker engine of our own needs root: run as root")
    try:
        debian.ensure({"dockerd": "docker.io"})
    except debian.Missing as error:
        pytest.skip(str(error))
    # Not below pytest's folder: the paths of sockets have to be short.
    engine = Engine(Path(tempfile.mkdtemp(prefix="tao-docker-")))
    try:
        engine.start()
        engine.load_images()
    except BaseException:
        engine.remove()
        raise
    return engine
