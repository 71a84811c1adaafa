"""The API of one cluster: found as kubectl finds it, asked with plain objects, and answers told apart from silence."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from prefect_tao.jobs.errors import MissingDependency, Unreachable
from prefect_tao.platforms.doubt import is_doubt
from prefect_tao.platforms.kubernetes.settings import KubernetesSettings

TIMEOUT = 30.0
# A server that has just started may deny what it allows a moment later.
SECOND_ANSWER = 5.0
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, INVALID = 401, 403, 404, 409, 422
JSON, MERGE = "application/json", "application/merge-patch+json"
POD_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path
Manifest = Mapping[str, Any]
Query = Mapping[str, str] | None


class ApiRefused(Exception):
    """A definite answer of the API server that is not what was asked for."""

    def __init__(self, status: int, reason: str, said: str) -> None:
        super().__init__(said)
        self.status, self.reason, self.said = status, reason, said


@dataclass
class ClusterApi:
    """Asks one cluster. `ask` and its like raise ApiRefused for a definite answer, and Unreachable for none."""

    settings: KubernetesSettings
    kubeconfig_text: str = ""
    saved_context: str = ""  # of that text
    second_answer: float = SECOND_ANSWER
    asked: int = 0
    _connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = field(default_factory=WeakKeyDictionary)
    _retired: WeakKeyDictionary[asyncio.AbstractEventLoop, list[Any]] = field(default_factory=WeakKeyDictionary)
    _opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = field(default_factory=WeakKeyDictionary)

    @property
    def namespace(self) -> str:
        """Where jobs are."""
        return self.settings.namespace

    def path(self, plural: str, name: str = "", sub: str = "") -> str:
        """Where the API has our objects of a kind, or one of them."""
        root = "/apis/batch/v1" if plural == "jobs" else "/api/v1"
        return "/".join(filter(None, (f"{root}/namespaces/{self.namespace}/{plural}", name, sub)))

    # -- asking --------------------------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: Any = None, query: Query = None, kind: str = JSON) -> Any:
        """The answer as an object. A refusal of rights counts when it is repeated."""
        data = await self.text(method, path, body, query, kind)
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not found.keys() & {"kind", "gitVersion"}:  # a login in between, for example
            raise _no_answer(f"what answers {method} {path} is no Kubernetes API")
        return found

    async def text(self, method: str, path: str, body: Any = None, query: Query = None, kind: str = JSON) -> bytes:
        """The answer as it came."""
        try:
            return await self._once(method, path, body, query, kind)
        except ApiRefused as error:
            is_rule = error.status == FORBIDDEN and "cannot" not in error.said  # quota and admission mean what they say
            if error.status not in (UNAUTHORIZED, FORBIDDEN) or is_rule:
                raise
            is_login = error.status == UNAUTHORIZED
        if self.second_answer:
            await asyncio.sleep(self.second_answer)
        if is_login:  # one that has run out is renewed when the kubeconfig is read again
            self._retire()
        return await self._once(method, path, body, query, kind)

    async def find(self, plural: str, name: str) -> Manifest | None:
        """One object; None when there is none."""
        try:
            found: Manifest = await self.ask("GET", self.path(plural, name))
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return found

    async def listed(self, plural: str, labels: str = "", fields: str = "") -> list[Manifest]:
        """All objects of a kind with these labels and fields."""
        query = {"labelSelector": labels, "fieldSelector": fields}
        found = await self.ask("GET", self.path(plural), query={name: text for name, text in query.items() if text})
        if "items" not in found:
            raise _no_answer(f"what was asked for a list of {plural} gave none")
        return list(found["items"] or ())

    async def delete(self, plural: str, name: str, uid: str = "", **options: Any) -> None:
        """Ask for an object's end, with a uid only of that very one; one that is gone or another's is left alone."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options}
        body |= {"preconditions": {"uid": uid}} if uid else {}
        try:
            await self.ask("DELETE", self.path(plural, name), body)
        except ApiRefused as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    async def may(self, verb: str, group: str, plural: str, everywhere: bool = False) -> bool:
        """Whether we may do that in the namespace, or everywhere, by the cluster's own word."""
        resource, _, sub = plural.partition("/")
        asked = {"verb": verb, "group": group, "resource": resource}
        asked |= {} if everywhere else {"namespace": self.namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**asked, **({"subresource": sub} if sub else {})}},
        }
        answer = await self.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    async def _once(self, method: str, path: str, body: Any, query: Query, kind: str) -> bytes:
        import aiohttp

        connection = await self._connection()
        headers = {"Accept": JSON, "Content-Type": kind}
        self.asked += 1
        try:
            token = await connection.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
            headers |= {"Authorization": token} if token else {}
            answer = await connection.rest.request(
                method,
                connection.configuration.host + path,
                query_params=list((query or {}).items()),
                headers=headers,
                body=body,
                _preload_content=False,
                _request_timeout=TIMEOUT,
            )
            data = bytes(await answer.read())
        except aiohttp.ClientConnectorCertificateError as error:
            remedy = "check certificate-authority in the kubeconfig"
            raise Unreachable(f"{connection.configuration.host} cannot be trusted: {error}", remedy, False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            said = str(error) or type(error).__name__
            remedy = "check the address in the kubeconfig, and the network from here; jobs go on meanwhile"
            raise Unreachable(f"{connection.configuration.host} does not answer: {said}", remedy) from error
        if answer.status < 300:
            return data
        raise _refusal(connection.configuration.host, answer.status, data)

    # -- connecting ----------------------------------------------------------------------------------------------------

    async def _connection(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with self._opening.setdefault(loop, asyncio.Lock()):
            if loop not in self._connections:
                self._connections[loop] = await self._connect()
            found: _Connection = self._connections[loop]
            return found

    async def _connect(self) -> _Connection:
        try:
            await asyncio.to_thread(__import__, "kubernetes_asyncio.config")  # it takes a second or two
        except ImportError as error:
            raise MissingDependency(
                "the package kubernetes_asyncio is not installed", "pip install 'prefect-tao[kubernetes]'"
            ) from error
        from kubernetes_asyncio import config
        from kubernetes_asyncio.client.configuration import Configuration
        from kubernetes_asyncio.client.rest import RESTClientObject

        found = type.__call__(Configuration)  # as that package itself does it, else all clusters share one
        # From 3.13 on Python wants more of certificates than kubectl does, and than those of many clusters hold.
        found.disable_strict_ssl_verification = True
        where, context = self._kubeconfig(), self.settings.context
        try:
            if self.kubeconfig_text:
                given, context = json.loads(self.kubeconfig_text), context or self.saved_context or None
                await config.load_kube_config_from_dict(given, context=context, client_configuration=found)
            elif where:
                await config.load_kube_config(where, context=context, client_configuration=found, persist_config=False)
            else:
                config.load_incluster_config(client_configuration=found)  # type: ignore[no-untyped-call]
            return _Connection(found, RESTClientObject(found))
        except (config.ConfigException, OSError, ValueError, KeyError, TypeError) as error:
            named = f"the kubeconfig {where}" if where else "the kubeconfig of the block"
            raise Unreachable(
                f"{named} does not lead to a cluster: {error}", "kubectl config get-contexts shows what is there", False
            ) from error

    def _kubeconfig(self) -> str:
        """The file that leads to the cluster; empty inside a Pod with an account of its own. Raises Unreachable."""
        given = self.settings.kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        paths = [str(Path(part).expanduser()) for part in given.split(os.pathsep) if part]
        if there := [path for path in paths if Path(path).is_file()]:
            return os.pathsep.join(there)
        is_inside = "KUBERNETES_SERVICE_HOST" in os.environ and Path(POD_TOKEN).exists()
        if self.kubeconfig_text or (is_inside and not self.settings.kubeconfig):
            return ""
        raise Unreachable(
            f"there is no kubeconfig at {paths[0]}, and this is not a Pod with an account of its own",
            "connect to the cluster as its owner says (aws eks update-kubeconfig, gcloud container clusters "
            "get-credentials, ...), or set KUBECONFIG to the file",
            retryable=False,
        )

    def _retire(self) -> None:
        """Connect anew for the next question; others may still wait for answers over the old connection."""
        loop = asyncio.get_running_loop()
        if connection := self._connections.pop(loop, None):
            self._retired.setdefault(loop, []).append(connection)

    async def close(self) -> None:
        """Let go of the connections of this event loop."""
        self._retire()
        for connection in self._retired.pop(asyncio.get_running_loop(), []):
            await connection.rest.close()


@dataclass
class _Connection:
    configuration: Any
    rest: Any


def _refusal(host: str, status: int, data: bytes) -> Exception:
    """What an answer that is no success means: a definite word, or doubt."""
    try:
        told = json.loads(data)
        said, reason = str(told["message"]), str(told.get("reason") or "")
    except (ValueError, KeyError, TypeError):
        if (
            status == NOT_FOUND
        ):  # nothing is gone because a server in between, or one that has just started, lacks a path
            return _no_answer(f"{host} answered {status}: {_shown(data)}")
        said, reason = _shown(data), ""
    if is_doubt(status):
        return Unreachable(f"the API server at {host} answered {status}: {said}", "try again in a while; jobs go on")
    return ApiRefused(status, reason, said)


def _no_answer(what: str) -> Unreachable:
    """An answer that is not the API server's own word, and so tells nothing."""
    remedy = "check the address in the kubeconfig: a proxy or a login page may be in between; jobs go on meanwhile"
    return Unreachable(what, remedy)


def _shown(data: bytes) -> str:
    return " ".join(data.decode(errors="replace").split())[:300]
