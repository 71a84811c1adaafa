"""People are told of failures, and what is not ours to mend is left alone, by real automations of a real server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from deployed import begin, switched_on
from prefect_tools import Api, wait_for

pytestmark = [pytest.mark.xdist_group("deployments"), pytest.mark.timeout(300)]
TELL = "tao: tell of failures"


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Somebody who listens for notifications: the address, and what came."""
    told: list[dict[str, Any]] = []

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            """Nothing: the test looks at what came."""

    listening = HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}/alerts", told
    listening.shutdown()
    listening.server_close()


# -- telling -----------------------------------------------------------------------------------------------------------


def test_a_failed_run_is_told_with_its_cause_and_remedy(
    server: Any, api: Api, standing: Path, received: tuple[str, list[dict[str, Any]]]
) -> None:
    address, told = received
    assert TELL in alert(server, address)
    with switched_on(api, TELL):
        begin(api, "run/run", command="echo 'CUDA out of memory'; exit 1")
        wait_for(lambda: told, 120)
    assert told[0]["subject"].endswith(": Failed")
    assert "do not fit into the GPU's memory" in told[0]["body"]
    assert "what to do: Lower the batch size" in told[0]["body"]


def alert(server: Any, address: str) -> list[str]:
    """Save the block that notifications go to, and make the automations as deploying does."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock as Webhook
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from prefect_tao.deployments.automations import create_automations

    async def make() -> list[str]:
        block = Webhook(name="alerts", url=address, json_data={"subject": "{{subject}}", "body": "{{body}}"})
        await block.save("tao-alerts", overwrite=True)
        return await create_automations()

    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        return asyncio.run(make())


@pytest.mark.long
def test_the_block_for_notifications_is_found_among_many_and_told_from_one_that_cannot_notify(
    server: Any, api: Api, deployed: str
) -> None:
    from prefect.blocks.notifications import CustomWebhookNotificationBlock as Webhook
    from prefect.blocks.system import Secret
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from prefect_tao.deployments.automations import alerts_block

    async def crowd() -> Any:
        await Secret(value="x").save("tao-alerts", overwrite=True)
        await Webhook(name="alerts", url="http://127.0.0.1:9/nobody").save("tao-alerts", overwrite=True)
        named = api.ask("POST", "/block_documents/filter", {"block_documents": {"name": {"any_": ["tao-alerts"]}}})
        (secret,) = [one for one in named if one["block_type_name"] == "Secret"]
        same = {key: secret[key] for key in ("block_type_id", "block_schema_id", "data")}
        for number in range(200):
            api.ask("POST", "/block_documents/", {**same, "name": f"a-{number}"})
        return await alerts_block()

    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        found = asyncio.run(crowd())
    assert found is not None
    assert found.block_type_name == "Custom Webhook"


# -- what is left alone ------------------------------------------------------------------------------------------------


def test_a_run_that_keeps_crashing_is_left_to_a_person_and_that_of_somebody_else_alone(
    api: Api, standing: Path
) -> None:
    crashed = begin(api, "run/run", "nobody", command="true")  # in a queue that has no worker
    for state in ("PENDING", "RUNNING", "CRASHED"):
        api.set_state(crashed, state)
    flow = api.ask("POST", "/flows/", {"name": "run"})["id"]
    foreign = api.ask("POST", "/flow_runs/", {"flow_id": flow, "state": {"type": "CANCELLING"}})["id"]
    stuck = begin(api, "run/run", "nobody", command="true", target="process/deleted-since")
    for state in ("PENDING", "RUNNING", "CANCELLING"):
        api.set_state(stuck, state)
    told = {
        begin(api, "recover/recover", flow_run_id=crashed, most_attempts=1): "it has crashed 1 times",
        begin(api, "recover/recover", flow_run_id=stuck, most_attempts=1): "it was cancelled 1 times in vain",
        begin(api, "recover/recover", flow_run_id=foreign): "it is no run of prefect-tao",
    }
    for care, words in told.items():
        wait_for(lambda care=care: api.state(care) == "COMPLETED", 120)
        assert any(words in line for line in api.logs(care))
    assert [api.state(crashed), api.state(foreign)] == ["CRASHED", "CANCELLING"]
    api.ask("DELETE", f"/flow_runs/{stuck}")


def test_what_no_automation_has_seen_to_is_found_without_being_named(api: Api, standing: Path) -> None:
    """Also behind a run that cannot be helped, because the block of its target was deleted."""
    crashed, fresh = (begin(api, "run/run", "nobody", command="true") for _ in range(2))
    stuck = begin(api, "run/run", "nobody", command="true", target="process/deleted-since")
    for state in ("PENDING", "RUNNING", "CRASHED"):
        api.set_state(crashed, state)
    for state in ("PENDING", "RUNNING", "CANCELLING"):
        api.set_state(stuck, state)
    patient = begin(api, "recover/recover")
    wait_for(lambda: api.state(patient) == "COMPLETED", 120)
    assert api.state(crashed) == "CRASHED"
    care = begin(api, "recover/recover", patience_minutes=0)
    wait_for(lambda: api.state(care) == "FAILED", 120)
    assert "there is no saved block for the target process/deleted-since" in api.run(care)["state"]["message"]
    api.ask("DELETE", f"/flow_runs/{stuck}")
    lines = api.logs(care)
    helped, not_helped = ([line for line in lines if run in line and ": " in line] for run in (crashed, stuck))
    assert "scheduled again" in helped[0]
    assert lines.index(not_helped[0]) < lines.index(helped[0])
    assert not any(fresh in line for line in lines)
    assert [api.state(crashed), api.state(fresh)] == ["SCHEDULED", "SCHEDULED"]
