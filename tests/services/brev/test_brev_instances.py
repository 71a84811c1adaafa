"""Instances are made once, waited for, and given back for certain, whatever the brev command says or does not say."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import debian
import pytest
from brev_cloud import OFFERS, BrevCloud, BrevInstance, offer
from opened_platforms import KEYS, brev_at
from runner_tools import Bucket
from s3_server import S3Server

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, SubmitFailed, TaoError, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.request import JobRequest, Resources
from prefect_tao.platforms.brev import instances
from prefect_tao.platforms.brev import leftovers as left
from prefect_tao.platforms.brev.client import BrevAnswer, BrevCommand, TypeOffer
from prefect_tao.platforms.brev.driver import BrevPlatform
from prefect_tao.platforms.brev.instances import InstanceKeeper, suitable
from prefect_tao.platforms.brev.observe import called_off
from prefect_tao.platforms.brev.rental_notes import Rental, RentalNotes, RentedEnd
from prefect_tao.platforms.brev.settings import BrevSettings
from prefect_tao.platforms.files import BucketFiles
from prefect_tao.testing.contract import until

NAME = "tao-0badcafe-0123456789abcdef-1"
TYPES = ["g5.xlarge"]
pytestmark = pytest.mark.xdist_group("brev")


def command(**settings: Any) -> BrevCommand:
    return BrevCommand(BrevSettings(owner="me", **settings))


def keeper(usable: bool = True, **settings: Any) -> InstanceKeeper:
    """A keeper for instances of which nothing but the list counts: they have no Docker here."""
    made = InstanceKeeper(command(**settings), BrevSettings(owner="me", **settings), pause=0.05)
    if usable:
        made._unusable = lambda machine: ""  # type: ignore[method-assign]
    return made


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["dict", "list"])
def test_every_shape_of_the_list_is_read(cloud: BrevCloud, shape: str) -> None:
    cloud.shape = shape
    assert command().instances() == {}
    cloud.add("box")
    assert command().instances()["box"].status == "RUNNING"


@pytest.mark.parametrize("said", ["", "{}", '{"message": "away"}', '"text"', "7", "[3]", '{"workspaces": "none"}'])
def test_what_is_no_list_never_passes_for_an_account_without_instances(cloud: BrevCloud, said: str) -> None:
    cloud.add("box")
    cloud.faults["ls"] = deque([f"says {said}"])
    with pytest.raises(Unreachable, match="no list that can be read"):
        command().instances()


def test_a_process_that_the_command_leaves_behind_holds_nobody_up(cloud: BrevCloud) -> None:
    brev = command()
    assert brev.version
    cloud.faults["refresh"] = deque(["leaves"])
    said = brev.run("refresh", seconds=20)
    os.kill(int(said.err.split("left ")[1]), signal.SIGKILL)
    assert (said.code, "has been refreshed" in said.out) == (0, True)


def test_a_number_in_a_name_is_no_refusal_of_the_login() -> None:
    taken = "Error: workspace 'tao-0badc401-4010000000000401-1' already exists"
    assert command().unanswered("create", BrevAnswer(1, "", taken)).retryable
    for said in ("x/api/me 401 Unauthorized {}", "your API key has expired", "the session is expired"):
        assert not command().unanswered("ls", BrevAnswer(1, "", said)).retryable


def test_the_command_gets_no_input_and_a_session_of_its_own_and_no_colour(cloud: BrevCloud) -> None:
    reader, writer = os.pipe()  # held open: a command that inherits it would wait for ever
    saved = os.dup(0)
    os.dup2(reader, 0)
    try:
        assert command().run("delete", "nothing").code == 1
    finally:
        os.dup2(saved, 0)
        for number in (reader, writer, saved):
            os.close(number)
    assert all(call["session"] and not call["color"] for call in cloud.calls)


def test_the_stand_in_blocks_on_an_open_pipe_as_the_real_one_does(cloud: BrevCloud) -> None:
    with subprocess.Popen(["brev", "delete", "x"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        child.kill()


def test_the_stand_in_refuses_unknown_flags_and_commands(cloud: BrevCloud) -> None:
    assert "unknown flag: --cloud-cred-id" in command().run("create", NAME, "--cloud-cred-id", "x").err
    assert 'unknown command "rent"' in command().run("rent").err
    assert cloud.paid == []


def test_the_stand_in_runs_a_failing_command_twice_and_hides_its_code_as_exec_does(
    cloud: BrevCloud, tmp_path: Path
) -> None:
    cloud.add("box")
    brev = command()
    brev.refresh()
    said = brev.run("exec", "box", f"echo ran >> {tmp_path}/runs; exit 7")
    assert (said.code, (tmp_path / "runs").read_text()) == (1, "ran\nran\n")
    assert brev.run("exec", "box", "echo hello").out == "hello\nbox\n"


def test_the_stand_in_keeps_a_login_and_asks_for_one(cloud: BrevCloud) -> None:
    brev = command()
    Path(os.environ["HOME"], ".brev/credentials.json").unlink()
    assert "would you like to log in" in brev.run("ls", "--json").out
    assert brev.run("login", "--api-key", "bak-good", "--org-id", "org-1").out == "API key saved for org org-1\n"
    assert brev.run("ls", "--json").code == 0
    assert brev.run("login", "--api-key", "wrong").code == 1


def test_a_command_that_hangs_is_ended_and_is_doubt(cloud: BrevCloud) -> None:
    brev = command()
    assert brev.version
    cloud.faults["ls"] = deque(["slow"])
    with pytest.raises(Unreachable, match="did not answer within"):
        brev.run("ls", "--json", seconds=0.3)


def test_no_command_and_an_old_one_say_what_to_do(cloud: BrevCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.version = "0.6.316"
    with pytest.raises(MissingDependency, match=r"too old \(v0.6.316\)"):
        command().instances()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingDependency, match="no brev command"):
        command().instances()


def test_a_missing_login_is_said_with_both_ways_out(cloud: BrevCloud) -> None:
    Path(os.environ["HOME"], ".brev/credentials.json").unlink()
    with pytest.raises(Unreachable, match="not logged in") as caught:
        command().instances()
    assert not caught.value.retryable
    assert "brev login" in caught.value.remedy
    assert "BREV_API_TOKEN" in caught.value.remedy


@pytest.mark.parametrize(("version", "is_in_file"), [("0.6.335", False), ("0.6.327", True)])
def test_a_token_never_stands_on_a_command_line_and_leaves_the_own_login_alone(
    cloud: BrevCloud, monkeypatch: pytest.MonkeyPatch, version: str, is_in_file: bool
) -> None:
    before = Path(os.environ["HOME"], ".brev/credentials.json").read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cloud.folder / "cache"))
    cloud.version = version
    brev = command(org_id="org-2")
    brev.token = "bak-good"
    assert brev.instances() == {}
    brev.refresh()
    assert not any("bak-good" in word for call in cloud.calls for word in call["argv"])
    kept = [path for path in (cloud.folder / "cache").rglob("credentials.json") if b"bak-good" in path.read_bytes()]
    assert bool(kept) is is_in_file
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    assert brev.home.stat().st_mode & 0o077 == 0
    assert Path(os.environ["HOME"], ".brev/credentials.json").read_bytes() == before


def test_a_token_of_the_console_and_one_that_can_be_renewed_both_work(
    cloud: BrevCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cloud.folder / "cache"))
    for token in ("eyJ0.Z29vZA.x", "session:device"):
        brev = command()
        brev.token = token
        assert brev.instances() == {}
        kept = Path(brev.home, ".brev/credentials.json")
        before = kept.read_bytes()
        assert brev.instances() == {}
        assert kept.read_bytes() == before  # what the command has renewed stays as it left it
    assert b"minted" in before
    brev.token = "eyJ0.b2xk.x"
    with pytest.raises(Unreachable, match="wrong or has expired"):
        brev.instances()


def test_an_expired_token_is_told_apart_from_silence(cloud: BrevCloud) -> None:
    brev = command()
    brev.token = "bak-expired"
    with pytest.raises(Unreachable, match="wrong or has expired") as caught:
        brev.instances()
    assert not caught.value.retryable
    assert "new key" in caught.value.remedy


# -- what is rented ----------------------------------------------------------------------------------------------------


def offers() -> list[TypeOffer]:
    return [TypeOffer(one["type"], one["gpu_name"], one["gpu_count"], one["price_per_hour"], 500) for one in OFFERS]


def test_the_cheapest_type_with_so_many_gpus_comes_first() -> None:
    def types(gpus: int, **settings: Any) -> list[str]:
        return [one.type for one in suitable(offers(), BrevSettings(owner="me", **settings), gpus)]

    assert types(1)[:2] == ["massedcompute_L40S", "g5.xlarge"]
    assert types(2) == ["g5.12xlarge"]
    assert types(1, gpu_name="a100") == ["a2-highgpu-1g:nvidia-tesla-a100:1"]
    assert types(1, instance_types=["g5.12xlarge", "g5.xlarge"]) == ["g5.12xlarge", "g5.xlarge"]
    assert types(1, max_price_per_hour=1.15) == ["massedcompute_L40S"]


def test_a_gpu_is_the_one_that_is_named_and_a_launch_without_types_tries_the_cheapest_few() -> None:
    def types(*gpus: str, **settings: Any) -> list[str]:
        rows = [offer(f"{gpu}-{price}", gpu, 1, price) for price, gpu in enumerate(gpus, start=1)]
        found = [TypeOffer(one["type"], one["gpu_name"], 1, one["price_per_hour"], 500) for one in rows]
        return [one.type for one in suitable(found, BrevSettings(owner="me", **settings), 1)]

    assert types("A100", "A10G", gpu_name="A10") == ["A10G-2"]
    assert types("L40S", "L40", "L4", gpu_name="l40") == ["L40-2"]
    assert types("RTX4090", "A100", gpu_name="4090") == ["RTX4090-1"]
    assert types(*["H100"] * 20) == [f"H100-{price}" for price in range(1, 9)]


@pytest.mark.parametrize(
    ("settings", "gpus", "said"),
    [
        ({"instance_types": ["g5.xlarg"]}, 1, "did you mean g5.xlarge"),
        ({"gpu_name": "H100"}, 1, "choose one of A100, A10G, L40S"),
        ({"instance_types": ["g5.xlarge"]}, 4, "at most 1"),
        ({"max_price_per_hour": 0.5}, 1, "the cheapest type that fits costs $1.1"),
        ({"min_disk_gb": 9000}, 1, "9000 GB"),
    ],
)
def test_what_cannot_be_rented_says_what_can(settings: dict[str, Any], gpus: int, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        suitable(offers(), BrevSettings(owner="me", **settings), gpus)
    assert said in str(caught.value)


# -- made once ---------------------------------------------------------------------------------------------------------


async def test_an_instance_is_made_of_explicit_types_and_never_waited_for_by_the_command(cloud: BrevCloud) -> None:
    await keeper().ready(NAME, TYPES)
    (made,) = [call["argv"] for call in cloud.calls if call["argv"][0] == "create"]
    assert made[1] == NAME
    assert {"--detached", "--jupyter=false", "--type", "g5.xlarge", "--min-disk"} <= set(made)
    assert cloud.paid == [NAME]
    await keeper().gone(NAME)
    assert cloud.find(NAME) is None


@pytest.mark.parametrize("fault", ["lost", "away"])
async def test_a_lost_answer_makes_one_instance(cloud: BrevCloud, fault: str) -> None:
    cloud.faults["create"] = deque([fault])
    await keeper().ready(NAME, TYPES)
    assert (cloud.made, cloud.paid) == (1, [NAME])


async def test_a_type_that_is_refused_does_not_hide_that_the_next_one_may_have_been_made(cloud: BrevCloud) -> None:
    cloud.full, cloud.lag = {"g5.xlarge"}, 2
    cloud.add("somebody-s")
    cloud.faults["create"] = deque(["lost"])
    await keeper().ready(NAME, ["g5.xlarge", "massedcompute_L40S"])
    assert (cloud.made, cloud.paid) == (1, ["somebody-s", NAME])


async def test_two_launchers_share_one_instance(cloud: BrevCloud) -> None:
    await asyncio.gather(*(keeper().ready(NAME, TYPES) for _ in range(3)))
    assert (cloud.made, cloud.paid) == (1, [NAME])


async def test_a_name_that_is_being_deleted_is_waited_for(cloud: BrevCloud) -> None:
    cloud.add(NAME)
    command().run("delete", NAME)
    await keeper().ready(NAME, TYPES)
    assert (cloud.made, cloud.paid) == (1, [NAME])


async def test_an_instance_that_fails_to_start_is_made_again_and_in_the_end_given_back(cloud: BrevCloud) -> None:
    cloud.faults["boot"] = deque(["fails"])
    await keeper().ready(NAME, TYPES)
    assert (cloud.made, cloud.paid) == (2, [NAME])
    await keeper().gone(NAME)
    cloud.faults["boot"] = deque(["fails"] * instances.MOST_TRIES)
    with pytest.raises(SubmitFailed, match="failed to start 3 times, and is deleted"):
        await keeper().ready(NAME, TYPES)
    assert cloud.paid == []


async def test_a_type_without_capacity_leaves_nothing_and_the_next_one_is_taken(cloud: BrevCloud) -> None:
    cloud.full.add("g5.xlarge")
    with pytest.raises(SubmitFailed, match="no capacity"):
        await keeper().ready(NAME, TYPES)
    assert cloud.paid == []
    await keeper().ready(NAME, ["g5.xlarge", "massedcompute_L40S"])
    found = cloud.find(NAME)
    assert found
    assert found.type == "massedcompute_L40S"


async def test_one_that_never_gets_usable_is_given_back(cloud: BrevCloud) -> None:
    with pytest.raises(SubmitFailed, match=r"not ready within .*Docker engine cannot be used.*deleted"):
        await keeper(usable=False, ready_minutes=0.03).ready(NAME, TYPES)
    assert cloud.paid == []


async def test_a_person_s_own_is_started_when_stopped_and_never_made(cloud: BrevCloud) -> None:
    cloud.add("box", doing="stop")
    await keeper().ready("box", None)
    found = cloud.find("box")
    assert found
    assert found.status == "RUNNING"
    with pytest.raises(InvalidInput, match="there is no instance bax"):
        await keeper().ready("bax", None)
    assert (cloud.made, cloud.paid) == (0, ["box"])


async def test_what_a_gpu_hour_costs_is_the_instance_s_price_shared_by_the_gpus_of_the_job(
    cloud: BrevCloud, tmp_path: Path
) -> None:
    def job(gpus: int) -> JobRequest:
        return JobRequest(command="train", resources=Resources(gpus=gpus))

    rented = brev_at(results_root=str(tmp_path))
    assert await brev_at(results_root=str(tmp_path), instance_types=TYPES).gpu_hour_price(job(1)) == 1.2
    assert await rented.gpu_hour_price(job(4)) == 6.8 / 4
    assert await rented.gpu_hour_price(job(3)) == 6.8 / 3  # all of the instance is paid for
    assert await rented.gpu_hour_price(job(0)) is None
    cloud.add("box", doing="stop")
    assert await brev_at(instance="box").gpu_hour_price(job(1)) == 1.2
    assert await brev_at(instance="bax").gpu_hour_price(job(1)) is None


async def test_the_price_of_a_person_s_own_instance_is_held_against_the_limit(cloud: BrevCloud) -> None:
    cloud.add("box", doing="stop")
    findings = {one.subject: one for one in await brev_at(instance="box").probe()}
    assert findings["instance"].message == "instance: box is STOPPED; the launch starts it"
    assert findings["price"].message == "price: $1.20 an hour (g5.xlarge), as long as the instance runs"
    limited = {one.subject: one for one in await brev_at(instance="box", max_price_per_hour=1.0).probe()}
    assert limited["price"].blocks
    assert any(one.blocks and "there is no bax" in one.message for one in await brev_at(instance="bax").probe())


async def test_giving_back_is_verified_and_says_so_when_it_is_not(cloud: BrevCloud) -> None:
    cloud.add(NAME)
    cloud.faults["delete"] = deque(["lost", "away"])
    await keeper().gone(NAME)
    assert cloud.find(NAME) is None
    cloud.add(NAME)
    cloud.is_away = True
    with pytest.raises(Unreachable, match="may still cost money") as caught:
        await keeper().gone(NAME, seconds=0.2)
    assert f"brev delete {NAME}" in caught.value.remedy
    assert cloud.paid == [NAME]


def rented_at(folder: Path, **settings: Any) -> BrevPlatform:
    """Jobs with an instance of their own, and results on this machine."""
    return brev_at(results_root=str(folder), instance_types=TYPES, **settings)


async def launching(platform: BrevPlatform, key: str = "0" * 16) -> None:
    await platform.submit(platform.render(JobRequest.build(command="true", image="any"), key, 1), {})


@pytest.mark.parametrize(("boot", "fault"), [(1000.0, "late"), (0.1, "")])
async def test_a_launch_that_is_cancelled_leaves_no_instance(
    cloud: BrevCloud, tmp_path: Path, boot: float, fault: str
) -> None:
    """While the command makes it, and while it runs and takes no container yet."""
    cloud.boot = boot
    cloud.faults["create"] = deque([fault])
    task = asyncio.create_task(launching(rented_at(tmp_path)))

    async def begun() -> bool:
        wanted = "create" if fault else "refresh"
        return any(call["argv"][0] == wanted for call in cloud.calls)

    await until(begun, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (cloud.made, cloud.paid) == (1, [])


async def test_a_login_that_expires_meanwhile_is_said_with_what_may_be_left(
    cloud: BrevCloud, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.boot = 1000
    task = asyncio.create_task(launching(rented_at(tmp_path)))

    async def made() -> bool:
        return bool(cloud.paid)

    await until(made, 30)
    Path(os.environ["HOME"], ".brev/credentials.json").unlink()
    with pytest.raises(Unreachable, match="not logged in"):
        await task
    assert "may still be there" in caplog.text
    assert f"brev delete {cloud.paid[0]}" in caplog.text


async def test_a_stopped_instance_that_costs_too_much_is_not_started(cloud: BrevCloud) -> None:
    cloud.add("box", doing="stop")
    with pytest.raises(InvalidInput, match=r"box costs \$1.2 an hour"):
        await launching(brev_at(instance="box", max_price_per_hour=1.0))
    assert not [call for call in cloud.calls if call["argv"][0] == "start"]


# -- what is left ------------------------------------------------------------------------------------------------------


async def judged(platform: BrevPlatform) -> tuple[bool, str]:
    """What the sweep says of the only instance."""
    (one,) = await left.leftovers(platform)
    return one.may_go, one.why


async def test_a_launch_of_another_block_or_machine_is_given_as_much_time_as_one_of_ours(
    cloud: BrevCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = rented_at(tmp_path)
    name = instances.name_of(JobName("0" * 16, 1), platform.options)
    cloud.instances.append(BrevInstance(name, "g5.xlarge", boot=1000))
    may_go, why = await judged(platform)
    assert (may_go, why) == (False, "a launch may go on; 45 minutes more")
    monkeypatch.setattr(left, "PULL_SECONDS", -3600.0)
    (one,) = await left.leftovers(rented_at(tmp_path))
    assert one.may_go
    # While a person thinks about it, a launch goes on after all.
    monkeypatch.setattr(left, "PULL_SECONDS", 1800.0)
    with pytest.raises(Unreachable, match="in use: a launch may go on"):
        await left.give_back(platform, one)
    assert cloud.paid == [name]
    monkeypatch.setattr(left, "PULL_SECONDS", -3600.0)
    await left.give_back(platform, one)
    assert cloud.paid == []


async def test_an_instance_that_never_answers_goes_when_no_job_can_have_begun_on_it(
    cloud: BrevCloud, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(s3_server.endpoint)
    platform = brev_at(s3_bucket_name=bucket.name, s3_endpoint_url=bucket.env["AWS_ENDPOINT_URL"])
    handle = platform._handle("0" * 16, 1)
    name = platform.instance_of(handle)
    cloud.add(name)  # it runs, and has no Docker
    monkeypatch.setattr(left, "PULL_SECONDS", -3600.0)
    may_go, why = await judged(platform)
    assert (may_go, f"to let go of it: brev delete {name}" in why) == (False, True)
    for native_id, expected in (("c1", False), ("", True)):
        RentalNotes(platform._bucket).rent(handle, Rental(instance=name, price=1.2, native_id=native_id))
        assert (await judged(brev_at(**platform.options.model_dump())))[0] is expected
    (one,) = await left.leftovers(later := brev_at(**platform.options.model_dump()))
    await left.give_back(later, one)
    assert cloud.paid == []


def test_an_end_that_a_job_has_written_itself_leads_to_no_other_results(s3_server: S3Server) -> None:
    bucket = Bucket(s3_server.endpoint)
    notes = RentalNotes(BucketFiles({**KEYS, "S3_ENDPOINT_URL": bucket.env["AWS_ENDPOINT_URL"]}))
    handle = JobHandle(target="brev", key="0" * 16, attempt=1, site="here", results=bucket.uri(f"results/{'0' * 16}"))
    forged = handle.model_copy(update={"results": "s3://private/keys", "target": "slurm/other", "native_id": "c1"})
    written = RentedEnd(handle=forged, end=called_off()).model_dump_json().encode()
    bucket.put(f"results/{handle.key}/attempts/1.end.json", written)
    kept = notes.end(handle)
    assert kept
    assert (kept.handle, kept.handle.results, kept.handle.native_id) == (handle, handle.results, "c1")


# -- bad input ---------------------------------------------------------------------------------------------------------


def logged_out(cloud: BrevCloud, patch: pytest.MonkeyPatch) -> None:
    Path(os.environ["HOME"], ".brev/credentials.json").unlink()


def without_command(cloud: BrevCloud, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("PATH", debian.PATH)


def old_command(cloud: BrevCloud, patch: pytest.MonkeyPatch) -> None:
    cloud.version = "0.6.300"


def expired(cloud: BrevCloud, patch: pytest.MonkeyPatch) -> None:
    patch.setitem(KEYS, "BREV_API_TOKEN", "bak-expired")
    patch.setenv("XDG_CACHE_HOME", str(cloud.folder / "cache"))


def no_offers(cloud: BrevCloud, patch: pytest.MonkeyPatch) -> None:
    cloud.faults["search"] = deque(["says []"])


def full(cloud: BrevCloud, patch: pytest.MonkeyPatch) -> None:
    cloud.full = {one["type"] for one in OFFERS}


def over_quota(cloud: BrevCloud, patch: pytest.MonkeyPatch) -> None:
    cloud.refusal = "Error: quota exceeded for organization acme"


def nothing(cloud: BrevCloud, patch: pytest.MonkeyPatch) -> None:
    pass


@pytest.mark.parametrize(
    ("spoil", "settings", "words", "remedy"),
    [
        (logged_out, {}, "not logged in", "brev login"),
        (expired, {}, "wrong or has expired", "new key"),
        (without_command, {}, "no brev command", "install it"),
        (old_command, {}, "too old", "update it"),
        (nothing, {"instance_types": ["g5.xlarg"]}, "no instance type 'g5.xlarg'", "did you mean g5.xlarge"),
        (nothing, {"gpus": 16}, "at most 4", "ask for fewer"),
        (nothing, {"max_price_per_hour": 0.1}, "allows \\$0.1 an hour", "raise the block's limit"),
        (no_offers, {"instance_types": []}, "no instance type at all", "try again later"),
        (full, {}, "no capacity", "list other instance types"),
        (over_quota, {}, "quota exceeded", "try again later"),
    ],
)
async def test_a_launch_that_cannot_work_says_what_to_do_and_leaves_nothing_that_costs_money(
    cloud: BrevCloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Any,
    settings: Any,
    words: str,
    remedy: str,
) -> None:
    spoil(cloud, monkeypatch)
    platform = brev_at(results_root=str(tmp_path), **settings)
    with pytest.raises(TaoError, match=words) as told:
        await launch(platform, JobRequest.build(command="true", image="any"), "0" * 16, {})
    assert remedy in told.value.remedy
    assert (cloud.made, cloud.paid) == (0, [])


@pytest.fixture
def leftover(cloud: BrevCloud, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """An instance that failed to start and whose launcher is gone, beside one of somebody else."""
    bucket = Bucket(s3_server.endpoint)
    around = {"S3_BUCKET_NAME": bucket.name, "S3_ENDPOINT_URL": bucket.env["AWS_ENDPOINT_URL"], "BREV_OWNER": "me"}
    for name, value in {**around, **KEYS}.items():
        monkeypatch.setenv(name, value)
    mine, other = (f"{instances.prefix(BrevSettings(owner=owner))}{'0' * 16}-1" for owner in ("me", "you"))
    for name in (mine, other):
        cloud.add(name, fails=True)
    return mine


def prefect_tao(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prefect_tao.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=90, check=False)


def test_the_command_shows_what_can_go_asks_and_gives_it_back(cloud: BrevCloud, leftover: str) -> None:
    jobs = prefect_tao("jobs", "--target", "brev")
    assert f"tao-{'0' * 16}-1" in jobs.stdout
    shown = prefect_tao("brev", "sweep")
    assert f"{leftover}  FAILURE  can go: it failed to start, and no job was started on it" in shown.stdout
    assert "1 instance can be deleted: add --yes" in shown.stderr
    assert (shown.returncode, len(cloud.paid)) == (0, 2)
    done = prefect_tao("brev", "sweep", "--yes", "--json")
    (row,) = json.loads(done.stdout)
    assert (row["instance"], row["may_go"], row["deleted"]) == (leftover, True, True)
    assert leftover not in cloud.paid
    assert len(cloud.paid) == 1
    cloud.is_away = True
    failed = prefect_tao("brev", "sweep")
    assert failed.returncode == 1
    assert "brev ls failed" in failed.stderr
    wrong = prefect_tao("brev", "sweep", "--target", "process")
    assert wrong.returncode == 2
    assert "process rents no instances" in wrong.stderr


async def test_the_scheduled_flow_deletes_what_no_launch_needs_and_nothing_of_others(
    cloud: BrevCloud, leftover: str
) -> None:
    from prefect.logging import disable_run_logger

    from prefect_tao.flows.returning import return_instances

    with disable_run_logger():
        assert await return_instances.fn("brev") == [leftover]
    assert len(cloud.paid) == 1


@pytest.mark.long
async def test_a_hundred_lost_answers_make_a_hundred_instances_and_no_more(cloud: BrevCloud) -> None:
    for number in range(100):
        name = f"tao-0badcafe-{number:016x}-1"
        for verb in ("create", "ls", "delete"):
            cloud.faults[verb] = deque(["lost", "away"][(number + len(verb)) % 2 :])
        await keeper().ready(name, TYPES)
        assert (cloud.made, cloud.paid) == (number + 1, [name])
        await keeper().gone(name)
        assert cloud.paid == []
