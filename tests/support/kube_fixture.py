"""One stand-in cluster for the whole session; each test finds it empty."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from kube_cluster import KubeCluster


@pytest.fixture(scope="session")
def kube_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    """The cluster itself."""
    if os.geteuid():
        pytest.skip("Pods of the stand-in need root for files and processes of their own: run the tests as root")
    with KubeCluster(tmp_path_factory.mktemp("kube")) as cluster:
        yield cluster


@pytest.fixture
def kube(kube_session: KubeCluster) -> Iterator[KubeCluster]:
    """The cluster, empty and in good health."""
    yield kube_session
    kube_session.clear()
