"""A launch as the gates look at it: what was resolved, what a person supplied, and the one probe that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prefect_tao.catalog.lookup import find_platform
from prefect_tao.catalog.nouns import Catalog, ModelEntry, PlatformEntry
from prefect_tao.jobs.errors import InvalidInput, TaoError, Unreachable
from prefect_tao.jobs.finding import REACHABLE, Finding, Level
from prefect_tao.jobs.platform import Platform, Rendered
from prefect_tao.jobs.request import InputRule
from prefect_tao.jobs.waiting import saying
from prefect_tao.platforms import drivers
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.runner.entrypoint import input_locations

# Of a launch that is only looked at.
NO_KEY = "0" * 16
SKIPPED = "not checked: access checks were skipped"


class Probe(NamedTuple):
    """What the platform answered. `reached` says whether asking it more makes sense, `why` gives the reason if not.

    The remedy is for whatever could not be looked at; it is empty where the probe's own finding says all.
    """

    reached: bool
    findings: tuple[Finding, ...]
    why: str = "unreachable"
    remedy: str = "fix the connection first"

    def unchecked(self, subject: str, about: str, checked_from: str) -> Finding:
        """What a look that needs the connection says without it."""
        return Finding(
            level=Level.UNKNOWN,
            subject=subject,
            message=f"{about}: not checked: {self.why}",
            checked_from=checked_from,
            remedy=self.remedy,
            follows=True,
        )


class Location(NamedTuple):
    """Data that the job will read, and the names under which it was declared."""

    uri: str
    labels: tuple[str, ...]
    optional: bool = False

    @property
    def label(self) -> str:
        """The names in one word."""
        return ", ".join(self.labels)


@dataclass(frozen=True)
class Proofs:
    """What a person adds for the gates besides the launch itself.

    `image_confirmed` is true when a person accepted the default image or named one. `mount_proof` says by path prefix
    how a path is mounted into the job. `extra_paths` are looked at besides the declared inputs.
    """

    image_confirmed: bool = False
    mount_proof: Mapping[str, str] = field(default_factory=dict)
    json_required_fields: Mapping[str, Sequence[str]] = field(default_factory=dict)
    extra_paths: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Launch:
    """All that the gates need. Values of `credentials` never get into a finding.

    The fields of `Proofs` are here too. `will_be_asked` is true when a person gets to see the image once everything
    else is good. `skip_access` is for dry checks of a set-up: nothing outside is asked. `refusal` is why the driver
    could not be opened.
    """

    catalog: Catalog
    resolved: Resolved
    platform: Platform | None
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    image_confirmed: bool = False
    mount_proof: Mapping[str, str] = field(default_factory=dict)
    json_required_fields: Mapping[str, Sequence[str]] = field(default_factory=dict)
    extra_paths: Mapping[str, str] = field(default_factory=dict)
    skip_access: bool = False
    will_be_asked: bool = False
    refusal: TaoError | None = None
    key: str = NO_KEY
    _rendered: Rendered | None = field(default=None, init=False, repr=False)
    _probing: asyncio.Task[Probe] | None = field(default=None, init=False, repr=False)

    @property
    def platform_name(self) -> str:
        """The catalog's name of the platform, or what was written when it has none."""
        return find_platform(self.catalog, self.resolved.platform) or self.resolved.platform

    @property
    def entry(self) -> PlatformEntry | None:
        """The catalog's entry of the platform."""
        return self.catalog.platforms.get(self.platform_name)

    @property
    def model(self) -> ModelEntry | None:
        """The catalog's entry of the model; there is none for any other container."""
        return self.catalog.models.get(self.resolved.model)

    @property
    def checked_from(self) -> str:
        """The place that a look through the driver is from."""
        return self.platform.target if self.platform else self.platform_name

    @property
    def tree(self) -> dict[str, Any]:
        """The values that the job gets: those of its request, else of what was resolved so far."""
        request = self.resolved.request
        given = request and (request.specs if request.specs is not None else request.args)
        return given or self.resolved.spec

    def places(self) -> list[Location]:
        """What the job reads, each location once."""
        declared: dict[str, tuple[str, bool]] = {}
        if self.resolved.request:
            for key, (uri, rule) in input_locations(self.resolved.request).items():
                declared[key] = (uri, self._is_optional(key, rule))
        for label, uri in {**self.resolved.datasets, **self.extra_paths}.items():
            declared[label] = (uri, declared[label][1] if label in declared else False)
        declared |= self._bare_roots(declared)
        by_uri: dict[str, Location] = {}
        for label, (uri, optional) in declared.items():
            known = by_uri.get(uri, Location(uri, (), True))
            by_uri[uri] = Location(uri, (*known.labels, label), known.optional and optional)
        return list(by_uri.values())

    def _is_optional(self, key: str, rule: InputRule) -> bool:
        """Whether the input may be absent; one that a person gave by its key may not."""
        return rule.type == "local_glob" or (rule.optional and key not in self.resolved.direct)

    def _bare_roots(self, declared: Mapping[str, tuple[str, bool]]) -> dict[str, tuple[str, bool]]:
        """The roots that no required file vouches for; a person gave them, so they have to be there."""
        required = [uri for uri, optional in declared.values() if not optional]
        return {
            label: (root, False)
            for label, root in self.resolved.roots.items()
            if not any(is_below(uri, root) for uri in required)
        }

    def uris(self) -> list[str]:
        """Every location in the launch, results included."""
        return [place.uri for place in self.places()] + [text for text in texts(self.tree) if "://" in text]

    def rendered(self) -> Rendered:
        """What would be sent, drawn up once; that sends nothing. Raises InvalidInput where the driver cannot."""
        assert self.platform is not None  # noqa: S101 - the callers know
        assert self.resolved.request is not None  # noqa: S101
        if self._rendered is None:
            self._rendered = self.platform.render(self.resolved.request, self.key, 1)
        return self._rendered

    async def probe(self) -> Probe:
        """The platform's answer, asked for once however many gates want it."""
        if self._probing is None:
            self._probing = asyncio.create_task(self._probe())
        # Shielded, because one gate that is cancelled must not take the answer from the others.
        return await asyncio.shield(self._probing)

    async def _probe(self) -> Probe:
        name, where = self.platform_name, self.checked_from
        if name not in drivers():
            missing = f"the driver for {name} is not there yet"
            return Probe(False, (_failed(missing, f"choose one of {', '.join(drivers())}"),), missing, "")
        if self.refusal is not None:
            why = f"{name} cannot be opened"
            return Probe(False, tuple(error_findings(self.refusal, REACHABLE, where)), why, "")
        if self.platform is None:
            remedy = f"run prefect-tao setup {name}, then name the saved block: --target {name}/<block>"
            missing = f"there is no connection to {name}"
            return Probe(False, (_failed(missing, remedy),), missing, "")
        if self.skip_access:
            return Probe(False, (Finding(level=Level.WARN, subject=REACHABLE, message=SKIPPED),))
        try:
            async with saying(lambda: f"{where} has not answered the checks yet"):
                findings = tuple(await self.platform.probe(self.resolved.request))
        except TaoError as error:
            return Probe(False, tuple(error_findings(error, REACHABLE, where)))
        return Probe(not any(found.blocks and found.gate == REACHABLE for found in findings), findings)


def is_below(uri: str, root: str) -> bool:
    """Whether `uri` is `root` or something in it."""
    return uri == root or uri.startswith(f"{root.rstrip('/')}/")


def error_findings(error: TaoError, subject: str, checked_from: str = "here") -> list[Finding]:
    """What a typed error means for a gate: no answer is unknown, unless it will never come; everything else fails."""
    if isinstance(error, InvalidInput) and error.findings:
        return list(error.findings)
    level = Level.UNKNOWN if isinstance(error, Unreachable) and error.retryable else Level.FAIL
    return [Finding(level=level, subject=subject, message=error.cause, checked_from=checked_from, remedy=error.remedy)]


def _failed(message: str, remedy: str) -> Finding:
    return Finding(level=Level.FAIL, subject=REACHABLE, message=message, remedy=remedy)


def texts(value: Any) -> Iterator[str]:
    """Every text in a tree of values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from texts(inner)
