"""The seven gates tell all that is wrong in one go, side by side, and touch nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from gate_tools import Elsewhere, catalog, launch, level_of, only, resolved, tree
from opened_platforms import process_at, process_settings

from prefect_tao.jobs.errors import InvalidInput, Unreachable, refusal
from prefect_tao.jobs.finding import (
    COMPUTE,
    IMAGE,
    NO_GATE,
    PLATFORM,
    REACHABLE,
    Finding,
    Level,
    blocking,
    causes,
    exit_code,
    gates_worst_first,
)
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.platforms.registry import registered
from prefect_tao.preflight.checked_launch import Launch
from prefect_tao.preflight.checks.host_versions import disk_finding, host_findings, host_minimum
from prefect_tao.preflight.checks.visibility import mount_proof
from prefect_tao.preflight.gates import GATES, run_gate, run_gates

SILENT = Unreachable("the login host did not answer", "check the network")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    """A platform over a network, with a driver."""
    for name in ("slurm", "kubernetes"):
        monkeypatch.setitem(registered(), name, registered()["process"])
    return Elsewhere(tmp_path / "jobs")


def all_of(gates: dict[str, list[Finding]]) -> list[Finding]:
    return [finding for findings in gates.values() for finding in findings]


# -- together ----------------------------------------------------------------------------------------------------------


async def test_a_good_launch_passes_all_seven_in_order_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.json").write_text('[{"video_fps": 30}]')
    before = tree(tmp_path)
    ask = resolved(gpus=0, datasets={"data.annotation": str(tmp_path / "data" / "a.json")})
    driver = process_at(tmp_path / "jobs")
    gates = await run_gates(launch(ask=ask, driver=driver, credentials={"HF_TOKEN": "t"}))
    names = ["platform", "platform_credentials", "model_credentials", "image", "reachable", "datasets", "compute"]
    assert list(gates) == list(GATES) == names
    assert all(gates.values())
    assert not blocking(all_of(gates))
    assert level_of(gates["datasets"], "annotation data.annotation") is Level.OK
    assert tree(tmp_path) == before


async def test_a_bad_launch_is_told_in_one_go_and_leaves_nothing(tmp_path: Path) -> None:
    before = tree(tmp_path)
    ask = resolved(
        datasets={"data": str(tmp_path / "missing")},
        request=JobRequest.build(command="true", resources={"nodes": 2, "gpus": 99}),
    )
    gates = await run_gates(launch(ask=ask, driver=process_at(tmp_path / "jobs")))
    failed = {name for name, findings in gates.items() if blocking(findings)}
    assert failed == {"model_credentials", "datasets", "compute"}
    assert all(found.remedy for found in blocking(all_of(gates)))
    assert tree(tmp_path) == before


async def test_gates_run_side_by_side_and_share_one_probe(slurm: Elsewhere) -> None:
    class Waits(Elsewhere):
        """Answers the probe only when another gate is at work, and all further questions only when all are asked."""

        drawn, all_asked = asyncio.Event(), asyncio.Barrier(4)

        def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
            self.drawn.set()
            return super().render(request, key, attempt)

        async def probe(self, request: JobRequest | None = None) -> list[Finding]:
            await self.drawn.wait()
            return await super().probe(request)

        async def check_path(self, uri: str) -> bool:
            await super().check_path(uri)
            await self.all_asked.wait()
            return True

        async def host_versions(self) -> dict[str, str]:
            await self.all_asked.wait()
            return {"driver": "580", "cuda": "13.0", "container_toolkit": "1.19.0"}

        async def disk_free(self) -> dict[str, int]:
            await self.all_asked.wait()
            return {"/lustre": 2**40}

    driver = Waits(slurm.root)
    ask = resolved("slurm", {"a": "/lustre/a", "b": "/lustre/b"})
    gates = await asyncio.wait_for(run_gates(launch("slurm", driver, ask=ask)), 20)
    assert not blocking([*gates["datasets"], *gates["compute"]])
    assert driver.asked[:2] == ["probe", "answered"]
    assert sorted(driver.asked[2:]) == ["/lustre/a", "/lustre/b"]


async def test_gates_that_need_no_connection_do_not_wait_for_it(slurm: Elsewhere) -> None:
    slurm.may_answer.clear()
    shared = launch("slurm", slurm, image_confirmed=True)
    waiting = [asyncio.create_task(run_gate(name, shared)) for name in ("reachable", "datasets", "compute")]
    await slurm.begun.wait()
    for name in ("platform", "platform_credentials", "model_credentials", "image"):
        assert await asyncio.wait_for(run_gate(name, shared), 20)
    assert not waiting[0].done()
    slurm.may_answer.set()
    await asyncio.gather(*waiting)
    assert slurm.asked.count("probe") == 1


async def test_a_gate_that_is_cancelled_leaves_the_probe_to_the_others(slurm: Elsewhere) -> None:
    shared = launch("slurm", slurm)
    first = asyncio.create_task(run_gate("reachable", shared))
    slurm.may_answer.clear()
    await slurm.begun.wait()
    first.cancel()
    await asyncio.wait([first])
    slurm.may_answer.set()
    assert first.cancelled()
    assert not blocking(await run_gate("compute", shared))
    assert slurm.asked.count("probe") == 1


async def test_what_the_resolution_found_goes_to_the_gate_that_it_concerns() -> None:
    subjects = {"slurm": PLATFORM, "latest": IMAGE, "gpus": COMPUTE, "train.num_epochs": NO_GATE}
    found = tuple(
        Finding(gate=gate, level=Level.FAIL, subject=subject, message=f"bad {subject}")
        for subject, gate in subjects.items()
    )
    gates = await run_gates(launch(ask=resolved(findings=found)))
    for subject, gate in subjects.items():
        owners = [name for name, findings in gates.items() if f"bad {subject}" in [said.message for said in findings]]
        assert owners == [gate or "datasets"]


async def test_every_finding_bears_the_name_of_its_gate_and_the_worst_come_first(slurm: Elsewhere) -> None:
    slurm.there = {"/lustre/a"}
    ask = resolved("slurm", {"a": "/lustre/a", "b": "/lustre/missing"})
    gates = await run_gates(launch("slurm", slurm, ask=ask))
    assert all(found.gate == name for name, findings in gates.items() for found in findings)
    levels = [found.level for found in gates["datasets"]]
    assert (levels[0], levels[-1]) == (Level.FAIL, Level.OK)
    (first, *_), *_ = gates_worst_first(gates)
    assert blocking(gates[first])


def test_a_gate_is_declared_in_one_place() -> None:
    assert [name for name, gate in GATES.items() if gate.needs_prefect] == ["model_credentials"]
    assert [name for name, gate in GATES.items() if gate.names_image] == ["reachable", "compute"]


# -- platform and image ------------------------------------------------------------------------------------------------


async def test_an_alias_is_a_platform_and_a_typo_is_not() -> None:
    assert not blocking(await run_gate("platform", launch("k8s")))
    [found] = await run_gate("platform", launch("kubernets"))
    assert found.level is Level.FAIL
    assert "did you mean kubernetes" in found.remedy


async def test_a_typo_in_the_platform_is_no_traceback_in_any_gate() -> None:
    gates = await run_gates(launch(ask=resolved("kubernets", {"a": "/data"})))
    assert level_of(gates["datasets"], "input a") is Level.UNKNOWN
    assert blocking(gates["platform_credentials"])


async def test_the_image_passes_only_when_a_person_confirmed_it() -> None:
    [found] = await run_gate("image", launch("slurm"))
    assert found.level is Level.FAIL
    assert "registry.example/tao:1 (from model.image)" in found.message
    assert "--confirm-image" in found.remedy
    assert "confirm_image=True" in found.remedy
    assert not blocking(await run_gate("image", launch("slurm", image_confirmed=True)))


async def test_an_image_that_a_person_will_be_asked_about_is_put_off() -> None:
    [found] = await run_gate("image", launch("slurm", will_be_asked=True))
    assert found.level is Level.DEFERRED
    [found] = await run_gate("image", launch("slurm", will_be_asked=True, image_confirmed=True))
    assert found.level is Level.OK


async def test_no_image_fails_where_containers_run_and_nowhere_else() -> None:
    assert blocking(await run_gate("image", launch(ask=resolved("slurm", image=None), image_confirmed=True)))
    assert not blocking(await run_gate("image", launch(ask=resolved("process", image=None))))


# -- reachable ---------------------------------------------------------------------------------------------------------


async def test_a_command_without_an_image_passes_where_the_block_allows_bare_jobs(slurm: Elsewhere) -> None:
    ask = resolved("slurm").model_copy(update={"image": None})
    assert (await run_gate("image", launch("slurm", slurm, ask=ask)))[0].level is Level.FAIL
    slurm.runs_bare = True
    assert not blocking(await run_gate("image", launch("slurm", slurm, ask=ask)))


@pytest.fixture
def driverless(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(registered(), "brev", replace(registered()["brev"], driver=None))
    return "brev"


async def test_a_platform_without_a_driver_says_exactly_that(driverless: str) -> None:
    name = driverless
    [found] = await run_gate("reachable", launch(name))
    assert found.level is Level.FAIL
    assert found.message == f"the driver for {name} is not there yet"


async def test_without_a_driver_the_other_gates_say_so_in_a_sentence_and_advise_nothing(driverless: str) -> None:
    name = driverless
    ask = resolved(name, {"a": "s3://bucket/a"}, gpus=8)
    gates = await run_gates(launch(name, ask=ask, json_required_fields={"a": ["id"]}))
    told = f"not checked: the driver for {name} is not there yet"
    [compute] = blocking(gates["compute"])
    assert (compute.message, compute.remedy) == (f"compute: {told}", "")
    assert not any("fix the connection" in found.remedy for found in all_of(gates))


async def test_a_driver_without_a_connection_fails(slurm: Elsewhere) -> None:
    [found] = await run_gate("reachable", launch("slurm"))
    assert found.level is Level.FAIL
    assert "setup slurm" in found.remedy


async def test_a_driver_that_cannot_be_opened_is_one_finding_among_the_others(slurm: Elsewhere) -> None:
    refusal = InvalidInput("a login node is missing", "run prefect-tao setup slurm")
    gates = await run_gates(launch("slurm", ask=resolved("slurm", {"a": "/lustre/a"}), refusal=refusal))
    [found] = gates["reachable"]
    assert (found.level, found.message, found.remedy) == (Level.FAIL, refusal.cause, refusal.remedy)
    assert "not checked: slurm cannot be opened" in only(gates["datasets"], "input a").message
    assert blocking(gates["platform_credentials"])


async def test_what_needs_the_connection_is_not_checked_without_it(slurm: Elsewhere) -> None:
    slurm.answer = SILENT
    ask = resolved("slurm", {"a": "/lustre/a"})
    gates = await run_gates(launch("slurm", slurm, ask=ask, json_required_fields={"a": ["id"]}))
    for check in ("input a", "annotation a"):
        found = only(gates["datasets"], check)
        assert found.level is Level.UNKNOWN
        assert "not checked: unreachable" in found.message
    assert "compute: not checked: unreachable" in [found.message for found in blocking(gates["compute"])]
    assert slurm.asked == ["probe"]


async def test_a_login_that_fails_has_the_one_remedy_and_what_the_driver_advises(slurm: Elsewhere) -> None:
    slurm.answer = SILENT
    [found] = await run_gate("reachable", launch("slurm", slurm))
    assert found.level is Level.UNKNOWN
    assert found.message == SILENT.cause
    assert found.remedy.startswith("give SSH_KEY_PATH")
    assert found.remedy.endswith(SILENT.remedy)


async def test_a_second_factor_is_not_answered_with_how_to_make_a_key(slurm: Elsewhere) -> None:
    slurm.answer = Unreachable("me@login: the host wants two-factor authentication", "use ControlMaster", False)
    [found] = await run_gate("reachable", launch("slurm", slurm))
    assert (found.level, found.remedy) == (Level.FAIL, "use ControlMaster")


async def test_where_the_host_keys_are_is_no_secret(slurm: Elsewhere) -> None:
    slurm.answer = Unreachable("there is no file /home/me/known", "make /home/me/known")
    [found] = await run_gate("reachable", launch("slurm", slurm, credentials={"SLURM_KNOWN_HOSTS": "/home/me/known"}))
    assert "/home/me/known" in found.message


async def test_a_platform_that_answers_with_a_failure_is_still_asked_for_paths(slurm: Elsewhere) -> None:
    slurm.answer = [Finding(level=Level.FAIL, subject="results", message="results cannot be written")]
    gates = await run_gates(launch("slurm", slurm, ask=resolved("slurm", {"a": "/lustre/a"})))
    assert blocking(gates["reachable"])
    assert "does not exist on slurm/test" in only(gates["datasets"], "input a").message


async def test_a_blocking_finding_about_the_connection_counts_as_unreachable(slurm: Elsewhere) -> None:
    slurm.answer = [Finding(gate=REACHABLE, level=Level.FAIL, subject="host", message="refused")]
    gates = await run_gates(launch("slurm", slurm, ask=resolved("slurm", {"a": "/lustre/a"})))
    assert level_of(gates["datasets"], "input a") is Level.UNKNOWN


async def _blocked(slurm: Elsewhere) -> list[Finding]:
    """What the gates that need the connection have against a launch."""
    asked = launch("slurm", slurm, ask=resolved("slurm", {"a": "/lustre/a"}))
    return [found for gate in ("reachable", "datasets", "compute") for found in blocking(await run_gate(gate, asked))]


async def test_what_only_follows_from_another_fault_is_not_counted_as_a_problem(slurm: Elsewhere) -> None:
    slurm.answer = Unreachable("Permission denied: the login was refused", "add the key", retryable=False)
    found = await _blocked(slurm)
    assert len(found) == 3
    (cause,) = causes(found)
    assert cause.level is Level.FAIL
    assert "login was refused" in cause.message
    assert str(refusal(found)).startswith("Permission denied")
    assert exit_code(found) == 2


async def test_a_platform_that_does_not_answer_is_unknown_and_not_bad_input(slurm: Elsewhere) -> None:
    slurm.answer = SILENT
    found = await _blocked(slurm)
    assert {finding.level for finding in found} == {Level.UNKNOWN}
    assert isinstance(refusal(found), Unreachable)
    assert exit_code(found) == 1


async def test_skipped_access_asks_nobody_and_warns(slurm: Elsewhere) -> None:
    ask = resolved("slurm", {"a": "/lustre/a", "b": "s3://bucket/b"})
    gates = await run_gates(launch("slurm", slurm, ask=ask, skip_access=True, json_required_fields={"a": ["id"]}))
    assert slurm.asked == []
    for name in ("reachable", "datasets", "compute"):
        assert not blocking(gates[name])
        assert [found for found in gates[name] if found.level is Level.WARN]
    assert blocking(gates["platform_credentials"])


# -- datasets ----------------------------------------------------------------------------------------------------------


async def test_an_optional_file_that_is_there_is_named_with_the_way_to_use_it(tmp_path: Path) -> None:
    (tmp_path / "list.txt").touch()
    files = {"data.list": f"{tmp_path}/list.txt", "data.more": f"{tmp_path}/more.txt"}
    driver = process_at(tmp_path / "jobs")
    findings = await run_gate("datasets", launch(ask=resolved(optional_datasets=files), driver=driver))
    [found] = [one for one in findings if one.level is Level.WARN]
    assert f"{tmp_path}/list.txt: is there, and is not used" in found.message
    assert found.remedy == f"use it with --set data.list={tmp_path}/list.txt"


async def test_a_field_that_only_some_images_need_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"id": 1}]')
    (tmp_path / "b.json").write_text('[{"id": 1, "video_fps": 30}]')
    known = catalog().model_dump()
    fields = {"data.a": ["video_fps"], "data.b": ["video_fps"], "data.absent": ["video_fps"]}
    known["models"]["reasoner"]["actions"]["train"]["json_advised_fields"] = fields
    data = {f"data.{name}": f"{tmp_path}/{name}.json" for name in "ab"}
    asked = launch(ask=resolved(datasets=data), driver=process_at(tmp_path / "jobs"))
    asked.catalog = type(asked.catalog).model_validate(known)
    findings = await run_gate("datasets", asked)
    assert not blocking(findings)
    [found] = [one for one in findings if one.level is Level.WARN]
    assert "record 1 lacks video_fps" in found.message
    assert "--json-required-field data.a=video_fps" in found.remedy


async def look(asked: Launch) -> Finding:
    [found] = await run_gate("datasets", asked)
    return found


@pytest.mark.parametrize(
    ("platform", "path"),
    [
        ("kubernetes", "file:///data/train"),
        ("kubernetes", "data/train"),
        ("kubernetes", "~/data"),
        ("kubernetes", "lustre:///data"),
        ("slurm", "file:///data/train"),
        ("slurm", "data/train"),
    ],
)
async def test_a_path_of_this_machine_is_refused_elsewhere_with_examples(
    slurm: Elsewhere, platform: str, path: str
) -> None:
    slurm.there = {path}
    found = await look(launch(platform, slurm, ask=resolved(platform, {"a": path}), mount_proof={"/data": "nfs"}))
    assert found.level is Level.FAIL
    assert catalog().platforms[platform].path_examples[0] in found.remedy


@pytest.mark.parametrize("path", ["/lustre/train", "lustre:///lustre/train"])
async def test_a_path_of_shared_storage_is_looked_for_there(slurm: Elsewhere, path: str) -> None:
    ask = resolved("slurm", {"a": path})
    assert (await look(launch("slurm", slurm, ask=ask))).level is Level.FAIL
    slurm.there = {path}
    found = await look(launch("slurm", slurm, ask=ask))
    assert found.level is Level.OK
    assert found.checked_from == "slurm/test"


async def test_another_name_that_is_there_is_the_remedy(slurm: Elsewhere) -> None:
    slurm.there = {"/lustre/videos.tar.gz"}
    names = {"media": ("/lustre/clips.tar.gz", "/lustre/videos.tar.gz")}
    ask = resolved("slurm", {"media": "/lustre/images.tar.gz"}, alternatives=names)
    found = await look(launch("slurm", slurm, ask=ask))
    assert found.level is Level.FAIL
    assert "--set media=/lustre/videos.tar.gz" in found.remedy


async def test_a_mounted_path_needs_proof(slurm: Elsewhere) -> None:
    ask = resolved("kubernetes", {"a": "/mnt/data/train"})
    found = await look(launch("kubernetes", ask=ask))
    assert found.level is Level.FAIL
    assert "--mount-proof /mnt/data/train=" in found.remedy
    assert (await look(launch("kubernetes", slurm, ask=ask))).level is Level.FAIL
    proven = await look(launch("kubernetes", ask=ask, mount_proof={"/mnt/data": "claim train-data"}))
    assert proven.level is Level.OK
    assert proven.evidence == "claim train-data"
    slurm.there = {"/mnt/data/train"}
    assert (await look(launch("kubernetes", slurm, ask=ask))).level is Level.OK


def test_a_proof_covers_what_is_below_its_path_only() -> None:
    proofs = {"/mnt/data": "claim", "/mnt/data/private": "secret claim", "/empty": " ", "": "all"}
    assert mount_proof(proofs, "/mnt/data/private/x") == "secret claim"
    assert mount_proof(proofs, "/mnt/data") == "claim"
    for path in ("/mnt/database", "/mnt", "/mnt/data/../other", "/empty/x", "elsewhere"):
        assert mount_proof(proofs, path) == ""


async def test_models_that_the_job_fetches_are_a_warning_and_other_schemes_fail() -> None:
    for uri, level in (("hf_model://o/m", Level.WARN), ("ngc://o/m", Level.WARN), ("gopher://x", Level.FAIL)):
        assert (await look(launch("kubernetes", ask=resolved("kubernetes", {"a": uri})))).level is level


async def test_one_location_under_two_names_is_looked_at_once(slurm: Elsewhere) -> None:
    slurm.there = {"/lustre/a"}
    ask = resolved("slurm", {"train": "/lustre/a", "val": "/lustre/a"})
    found = await look(launch("slurm", slurm, ask=ask, extra_paths={"mine": "/lustre/a"}))
    assert found.subject == "input train, val, mine"
    assert slurm.asked.count("/lustre/a") == 1


async def test_an_optional_input_may_be_absent(tmp_path: Path) -> None:
    request = JobRequest.build(
        command="true", specs={"resume": str(tmp_path / "none")}, inputs={"resume": {"optional": True}}
    )
    driver = process_at(tmp_path / "jobs")
    assert (await look(launch(driver=driver, ask=resolved(request=request)))).level is Level.WARN


async def test_a_relative_path_is_looked_for_where_the_command_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").touch()
    driver, inputs = process_at(tmp_path / "jobs"), {"x": "data.csv"}

    async def found(**fields: str) -> Finding:
        request = JobRequest.build(command="true", inputs=inputs, **fields)
        return await look(launch(driver=driver, ask=resolved(request=request, model="")))

    assert (await found(workdir=str(tmp_path))).level is Level.OK
    elsewhere = await found(workdir=str(tmp_path / "jobs"))
    assert elsewhere.level is Level.FAIL
    assert f"{tmp_path / 'jobs' / 'data.csv'} does not exist" in elsewhere.message
    assert (await found()).level is Level.OK  # a process begins where it is launched


async def test_what_a_person_gave_has_to_be_there(tmp_path: Path) -> None:
    where = str(tmp_path / "none")
    request = JobRequest.build(command="true", specs={"resume": where}, inputs={"resume": {"optional": True}})
    driver = process_at(tmp_path / "jobs")
    by_key = await look(launch(driver=driver, ask=resolved(request=request, direct=("resume",))))
    assert by_key.level is Level.FAIL
    request = JobRequest.build(command="true", specs={"a": f"{where}/a.csv"}, inputs={"a": {"optional": True}})
    by_root = resolved(request=request, roots={"--train-root": where})
    findings = await run_gate("datasets", launch(driver=driver, ask=by_root))
    assert level_of(findings, "input --train-root") is Level.FAIL
    assert level_of(findings, "input a") is Level.WARN


async def test_a_root_without_anything_that_is_taken_from_it_fails(tmp_path: Path) -> None:
    root, driver = tmp_path / "data", process_at(tmp_path / "jobs")
    root.mkdir()
    specs = {"a": f"{root}/a.csv", "b": f"{root}/b.csv"}
    request = JobRequest.build(command="true", specs=specs, inputs={key: {"optional": True} for key in "ab"})
    ask = resolved(request=request, roots={"--train-root": str(root)})
    found = only(await run_gate("datasets", launch(driver=driver, ask=ask)), "dataset --train-root")
    assert found.level is Level.FAIL
    assert "a.csv, b.csv" in found.message
    (root / "b.csv").touch()
    assert not blocking(await run_gate("datasets", launch(driver=driver, ask=ask)))


async def test_a_root_is_not_asked_about_where_a_required_file_below_it_is(slurm: Elsewhere) -> None:
    slurm.there = {"/lustre/t/a.csv"}
    ask = resolved("slurm", {"a": "/lustre/t/a.csv"}, roots={"--train-root": "/lustre/t"})
    assert (await look(launch("slurm", slurm, ask=ask))).level is Level.OK
    assert "/lustre/t" not in slurm.asked


async def test_a_driver_that_reads_files_samples_annotations_there(slurm: Elsewhere) -> None:
    class Reads(Elsewhere):
        async def read_path(self, uri: str, limit: int) -> bytes:
            return b'{"id": 1}\n{"no": 2}\n'

    ask = resolved("slurm", {"data.annotation": "/lustre/a.jsonl"})
    wanted = {"data.annotation": ["id"]}
    there = await run_gate("datasets", launch("slurm", Reads(slurm.root), ask=ask, json_required_fields=wanted))
    assert "line 2 lacks video_fps, id" in only(there, "annotation data.annotation").message
    blind = await run_gate("datasets", launch("slurm", slurm, ask=ask, json_required_fields=wanted))
    assert level_of(blind, "annotation data.annotation") is Level.UNKNOWN


# -- compute and host --------------------------------------------------------------------------------------------------


async def test_fewer_gpus_than_the_model_wants_is_a_warning(slurm: Elsewhere) -> None:
    findings = await run_gate("compute", launch("slurm", slurm, ask=resolved("slurm", gpus=2)))
    assert level_of(findings, "gpus") is Level.WARN
    enough = await run_gate("compute", launch("slurm", slurm, ask=resolved("slurm", gpus=8)))
    assert not [found for found in enough if found.subject == "gpus"]
    assert not blocking(enough)


async def test_a_shape_that_the_driver_cannot_write_down_fails(slurm: Elsewhere) -> None:
    class Narrow(Elsewhere):
        def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
            raise InvalidInput("one node only", "use --nodes 1")

    findings = await run_gate("compute", launch("slurm", Narrow(slurm.root)))
    assert "one node only" in [found.message for found in blocking(findings)]


async def test_an_unresolved_launch_has_no_known_shape() -> None:
    ask = resolved().model_copy(update={"request": None})
    assert blocking(await run_gate("compute", launch(ask=ask)))


async def test_a_driver_that_reports_its_host_is_compared_with_the_minimum(slurm: Elsewhere) -> None:
    class Reports(Elsewhere):
        async def host_versions(self) -> dict[str, str]:
            return {"driver": "570.86", "cuda": "12.8", "container_toolkit": "1.19.0-1"}

    findings = await run_gate("compute", launch("slurm", Reports(slurm.root)))
    assert level_of(findings, "host driver") is Level.FAIL
    assert level_of(findings, "host cuda") is Level.OK  # the model is content with 12.4
    assert level_of(findings, "host container_toolkit") is Level.OK


async def test_versions_matter_only_for_gpus_and_the_toolkit_only_for_containers(tmp_path: Path) -> None:
    class Reports(ProcessPlatform):
        async def host_versions(self) -> dict[str, str]:
            return {"driver": "580", "cuda": "13.0"}

    driver = Reports("process", process_settings(tmp_path / "jobs", gpu_ids=list(map(str, range(8)))))
    with_gpus = await run_gate("compute", launch(ask=resolved(gpus=8), driver=driver))
    assert {found.subject for found in with_gpus if found.subject.startswith("host")} == {"host driver", "host cuda"}
    without = await run_gate("compute", launch(ask=resolved(gpus=0), driver=driver))
    assert not [found for found in without if found.subject.startswith("host")]


async def test_the_space_for_results_is_told_and_compared_with_what_the_model_wants(tmp_path: Path) -> None:
    driver = process_at(tmp_path / "jobs", results_root=tmp_path / "results")
    asked = launch(ask=resolved(gpus=0), driver=driver)
    told = only(await run_gate("compute", asked), "disk")
    assert str(tmp_path / "results") in told.message
    greedy = catalog().model_dump()
    greedy["models"]["reasoner"]["hardware"]["disk_gb"] = 1e9
    asked.catalog = type(asked.catalog).model_validate(greedy)
    assert level_of(await run_gate("compute", asked), "disk") is Level.FAIL
    asked.resolved = resolved(gpus=0, action="evaluate")  # the space is that of a training's checkpoints
    assert level_of(await run_gate("compute", asked), "disk") is not Level.FAIL
    assert not (tmp_path / "results").exists()


def test_an_old_host_gets_the_command_to_approve() -> None:
    minimum = host_minimum(catalog(), "any")
    found = host_findings({"driver": "580", "cuda": "CUDA 13", "container_toolkit": "1.9.4"}, minimum, "gpu-host")
    assert [finding.level for finding in found] == [Level.OK, Level.OK, Level.FAIL]
    assert "sudo apt-get install -y nvidia-container-toolkit" in found[2].remedy
    assert found[2].checked_from == "gpu-host"
    assert "nvidia-driver-580" in host_findings({"driver": "535"}, {"driver": "580"})[0].remedy


def test_a_version_that_is_not_reported_is_unknown() -> None:
    assert [found.level for found in host_findings({"cuda": "n/a"}, {"driver": "580", "cuda": "13.0"})] == [
        Level.UNKNOWN,
        Level.UNKNOWN,
    ]


def test_disk_space_is_told_in_gibibytes() -> None:
    assert disk_finding(5 * 1024**3, 4, "/results").level is Level.OK
    assert disk_finding(1024**2, 0, "/results").level is Level.WARN
    found = disk_finding(3 * 1024**3, 4, "/results")
    assert found.level is Level.FAIL
    assert "3.0 GiB free at /results, and 4.0 GiB are needed" in found.message
