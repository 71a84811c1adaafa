"""What Brev offers to a launch, found out without renting anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import COMPUTE, NO_GATE, Finding, GateName, Level
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.brev.client import BrevCommand, RentedMachine, TypeOffer
from prefect_tao.platforms.brev.instances import suitable
from prefect_tao.platforms.brev.render import is_carried
from prefect_tao.platforms.container_jobs import wanted_gpus
from prefect_tao.platforms.docker.settings import DockerSettings
from prefect_tao.platforms.files import LocalFiles

MOST_TYPES = 3


def findings(
    command: BrevCommand, target: str, request: JobRequest | None, containers: DockerSettings
) -> list[Finding]:
    """The login works, and there is what the request asks for. Raises Unreachable, MissingDependency."""
    settings, found = command.settings, list[Finding]()

    def say(level: Level, subject: str, message: str, remedy: str = "", gate: GateName = NO_GATE) -> None:
        text = f"{subject}: {message}"
        found.append(Finding(level=level, subject=subject, message=text, checked_from=target, remedy=remedy, gate=gate))

    machines = command.instances()
    version = ".".join(map(str, command.version))
    say(Level.OK, "reachable", f"brev {version} is logged in and lists {len(machines)} instances")
    if settings.instance:
        _own_instance(say, command, machines.get(settings.instance))
        return found
    gpus = wanted_gpus(request, containers) if request else settings.gpus
    try:
        types = suitable(command.offers(), settings, gpus)
    except InvalidInput as error:
        say(Level.FAIL, "instance types", error.cause, error.remedy, COMPUTE)
        return found
    shown = ", ".join(one.type for one in types[:MOST_TYPES])
    say(Level.OK, "instance types", f"{shown} would be tried in this order", gate=COMPUTE)
    _price(say, types)
    if is_carried(settings):
        _results_here(say, str(settings.results_root))
    return found


Say = Callable[..., Any]


def _own_instance(say: Say, command: BrevCommand, machine: RentedMachine | None) -> None:
    if machine is None:
        name = command.settings.instance
        say(Level.FAIL, "instance", f"there is no {name}", "brev ls lists yours; correct the block, or leave it out")
        return
    starts = "; the launch starts it" if machine.status == "STOPPED" else ""
    level = Level.FAIL if machine.status in ("FAILURE", "DELETING") else Level.OK
    remedy = "name another one in the block" if level is Level.FAIL else ""
    say(level, "instance", f"{machine.name} is {machine.status}{starts}", remedy)
    own = [one for one in command.offers() if one.type == machine.type]
    most = command.settings.max_price_per_hour
    if most is not None and own and own[0].price > most:
        message = f"${own[0].price:.2f} an hour ({machine.type}), and the block allows ${most:g}"
        say(Level.FAIL, "price", message, "raise the block's limit, or name another instance", COMPUTE)
    elif own and own[0].price:
        say(Level.OK, "price", f"${own[0].price:.2f} an hour ({machine.type}), as long as the instance runs")


def _results_here(say: Say, folder: str) -> None:
    if LocalFiles().writable(folder):
        say(Level.OK, "results", f"they are copied to {folder} here before the instance is deleted")
        return
    say(Level.FAIL, "results", f"{folder} here cannot be written", "name a folder of yours, or a bucket")


def _price(say: Say, types: list[TypeOffer]) -> None:
    first, most = types[0], max(one.price for one in types)
    if not first.price:
        say(Level.WARN, "price", f"Brev names none for {first.type}", "look it up with: brev search", COMPUTE)
        return
    up_to = f", up to ${most:.2f} where others have to be taken" if most > first.price else ""
    say(Level.OK, "price", f"${first.price:.2f} an hour ({first.type}){up_to}; the instance is deleted after the job")
