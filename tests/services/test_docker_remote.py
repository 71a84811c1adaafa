"""Engines elsewhere: over ssh and tcp with TLS, by context, and images from a registry that wants a login."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from docker_engine import PYTHON, TOOLS, Engine, free_port
from docker_images import image_archive
from docker_proxy import EngineProxy
from docker_registry import PASSWORD, Registry, registry
from docker_ssh import ALIAS, Sshd, new_sshd
from opened_platforms import docker_at

from prefect_tao.jobs.errors import InvalidInput, SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.docker.driver import DockerPlatform
from prefect_tao.platforms.docker.helper import HelperFiles
from prefect_tao.platforms.ssh.destination import Destination
from prefect_tao.storage.result_files import Results

__all__ = ["registry"]
pytestmark = pytest.mark.xdist_group("docker")


@pytest.fixture(scope="module")
def box(engine: Engine) -> Iterator[Sshd]:
    """A machine to log in to, straight to the engine."""
    running = new_sshd(engine.socket)
    yield running
    running.remove()


@pytest.fixture(autouse=True)
def empty(engine: Engine) -> Iterator[None]:
    yield
    engine.clear()


async def run_to_end(platform: DockerPlatform, command: str = "true", image: str = PYTHON) -> JobState:
    request = JobRequest.build(command=command, image=image)
    handle = await platform.submit(platform.render(request, token_hex(8), 1), {})
    async for _ in platform.follow(handle):
        pass
    return (await platform.observe([handle]))[handle].state


# -- ssh ---------------------------------------------------------------------------------------------------------------


async def test_paths_over_ssh_are_those_of_the_other_machine(box: Sshd, tmp_path: Path) -> None:
    (tmp_path / "data folder").mkdir()
    (tmp_path / "data folder" / "a.json").write_text("[1, 2]")
    (tmp_path / "data folder" / "lost").symlink_to("/no/such/place")
    platform = docker_at("remote-docker/box", host=f"ssh://{ALIAS}", ssh_path=str(box.ssh_folder))
    assert await platform.check_path(f"file://{tmp_path}/data folder")
    assert await platform.list_path(str(tmp_path)) == [f"{tmp_path}/data folder/"]
    assert await platform.list_path(f"{tmp_path}/data folder/a.json") == [f"{tmp_path}/data folder/a.json"]
    inside = [f"{tmp_path}/data folder/{name}" for name in ("a.json", "lost")]
    assert await platform.list_path(f"{tmp_path}/data folder") == inside
    known = platform.observer.host.names([f"{tmp_path}/data folder", f"{tmp_path}/none", str(tmp_path)])
    assert known == {f"{tmp_path}/data folder": ["a.json", "lost"], str(tmp_path): ["data folder"]}
    with pytest.raises(Unreachable, match="cannot be listed"):
        platform.observer.host.names([f"{tmp_path}/{'x' * 300}"])
    assert await platform.read_path(f"{tmp_path}/data folder/a.json", 3) == b"[1,"
    with pytest.raises(InvalidInput, match="is not a file"):
        await platform.read_path(str(tmp_path), 3)
    await platform.close()


@pytest.mark.parametrize("way", ["ssh", "tcp"])
async def test_links_out_of_the_results_on_another_machine_are_never_followed(
    engine: Engine, box: Sshd, tmp_path: Path, way: str
) -> None:
    """By ssh with the rights of the person there, and through containers even with those of root."""
    private = tmp_path / "private"
    private.mkdir()
    (private / ".env").write_text("a-secret-of-the-user")
    (tmp_path / "results").mkdir()
    there = {"host": f"ssh://{ALIAS}", "ssh_path": str(box.ssh_folder)} if way == "ssh" else {"host": engine.host}
    platform = docker_at("remote-docker/box", **there, network="none", results_root=str(tmp_path / "results"))
    if way == "tcp":
        platform.observer.host = HelperFiles(platform.engine)
    plant = f"ln -s {private}/.env file; ln -s {private} folder; ln -s ../../../private beside; ln -s a.pth latest.pth"
    request = JobRequest.build(command=f"cd $TAO_RESULTS_DIR && echo ok >a.pth && {plant}", image=PYTHON)
    handle = await platform.submit(platform.render(request, token_hex(8), 1), {})
    async for _ in platform.follow(handle):
        pass
    found = Results(platform, handle)
    found._is_here = False  # as on the machine of a person who has no such folder
    files = await found.files()
    assert [file.name for file in files] == ["results_dir/a.pth", "results_dir/latest.pth"]
    await found.download(files, tmp_path / "copies")
    assert [path.read_text() for path in (tmp_path / "copies").rglob("*.pth")] == ["ok\n"] * 2
    Path(files[0].uri).unlink()
    Path(files[0].uri).symlink_to(private / ".env")
    with pytest.raises(InvalidInput, match="leads out of the results"):
        await found.download(files, tmp_path / "again")
    await platform.close()


async def test_a_remote_probe_tells_what_is_there(box: Sshd, tmp_path: Path) -> None:
    platform = docker_at(
        "remote-docker/box",
        host=f"ssh://{box.user}@127.0.0.1:{box.port}",
        ssh_path=str(box.ssh_folder),
        results_root=str(tmp_path / "new" / "results"),
    )
    findings = await platform.probe(JobRequest.build(command="true", image=PYTHON))
    assert [finding.message for finding in findings if finding.blocks] == []
    assert {"reachable", "results", "image", "network"} <= {finding.subject for finding in findings}
    assert min((await platform.disk_free()).values()) > 0
    assert not (tmp_path / "new").exists()
    await platform.close()


async def test_one_login_serves_the_files_and_the_engine(box: Sshd, tmp_path: Path) -> None:
    before = box.logins
    platform = docker_at("remote-docker/box", host=f"ssh://{ALIAS}", ssh_path=str(box.ssh_folder))
    assert not await platform.jobs()
    assert await platform.check_path(str(tmp_path))
    with pytest.raises(InvalidInput, match="cannot be made"):
        platform.observer.host.make("/proc/none")
    assert box.logins == before + 1
    await platform.close()


async def test_what_is_wrong_with_a_login_is_told(box: Sshd, tmp_path: Path) -> None:
    stranger = tmp_path / "ssh"
    stranger.mkdir()
    (stranger / "config").write_text(f"Host {ALIAS}\n  HostName 127.0.0.1\n  Port {box.port}\n  IdentityFile none\n")
    (stranger / "known_hosts").write_text("")
    platform = docker_at("remote-docker/box", host=f"ssh://{ALIAS}", ssh_path=str(stranger))
    with pytest.raises(Unreachable, match="Host key verification failed") as told:
        await platform.probe()
    assert "ssh-keyscan" in told.value.remedy
    (stranger / "known_hosts").write_text((box.ssh_folder / "known_hosts").read_text())
    with pytest.raises(Unreachable, match="Permission denied") as told:
        await platform.probe()
    assert "ssh-copy-id" in told.value.remedy
    await platform.close()
    closed = docker_at("remote-docker/box", host=f"ssh://127.0.0.1:{free_port()}")
    with pytest.raises(Unreachable, match="Connection refused"):
        await closed.observe(await closed.jobs())
    await closed.close()


@pytest.mark.parametrize("url", ["ssh://", "ssh://-oProxyCommand=x", "ssh://host:port", "ssh://host/path"])
def test_a_login_that_names_no_host_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        Destination.parse(url)


# -- tcp and contexts --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_engine(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The same engine, restarted so that it listens on tcp with TLS too; its address and the client's folder."""
    certs, port = tmp_path_factory.mktemp("certs"), free_port()
    make_certificates(certs)
    engine.stop()
    engine.start(
        *("-H", f"tcp://127.0.0.1:{port}", "--tlsverify", f"--tlscacert={certs}/ca.pem"),
        *(f"--tlscert={certs}/cert.pem", f"--tlskey={certs}/key.pem"),
    )
    yield f"tcp://127.0.0.1:{port}", certs
    engine.stop()
    engine.start()


def make_certificates(folder: Path) -> None:
    """One authority, and one certificate that serves both ends."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    made = {}
    for file, subject, public, is_ca in (("ca", "test ca", ca_key, True), ("cert", "127.0.0.1", key, False)):
        builder = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("test ca"))
            .public_key(public.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
        )
        made[file] = builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    made["key"] = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for file, data in made.items():
        (folder / f"{file}.pem").write_bytes(data)


async def test_an_engine_over_tcp_with_tls_runs_jobs_and_shows_its_paths(
    tls_engine: tuple[str, Path], tmp_path: Path
) -> None:
    url, certs = tls_engine
    (tmp_path / "model.pth").write_text("weights")
    (tmp_path / "lost").symlink_to("/no/such/place")
    platform = docker_at(
        "remote-docker/tls", host=url, cert_path=str(certs), network="none", results_root=str(tmp_path)
    )
    assert not [finding for finding in await platform.probe() if finding.blocks]
    assert await run_to_end(platform, "echo kept > $TAO_RESULTS_DIR/x") is JobState.COMPLETE
    assert await platform.check_path(str(tmp_path))
    assert not await platform.check_path(f"{tmp_path}/none")
    assert {f"{tmp_path}/model.pth", f"{tmp_path}/lost"} < set(await platform.list_path(str(tmp_path)))
    assert await platform.read_path(f"{tmp_path}/model.pth", 4) == b"weig"
    with pytest.raises(InvalidInput):
        await platform.list_path(f"{tmp_path}/none")
    await platform.close()


async def test_an_engine_without_any_image_can_be_looked_at(tmp_path: Path) -> None:
    """The first launch on a new engine: whether its key was launched before must be known all the same."""
    engine, key = Engine(Path(tempfile.mkdtemp(prefix="tao-docker-"))), token_hex(8)
    (tmp_path / key / "attempts").mkdir(parents=True)
    port, fresh = free_port(), token_hex(8)
    try:
        engine.start("-H", f"tcp://127.0.0.1:{port}", "--tls=false")
        platform = docker_at("remote-docker/new", host=f"tcp://127.0.0.1:{port}", results_root=str(tmp_path))
        record = {
            "native_id": "0" * 64,
            "ended": 1.0,
            "ended_by": "none",
            "exit_code": 0,
            "site": await platform.site(),
        }
        (tmp_path / key / "attempts" / "2.json").write_text(json.dumps(record))
        attempts = await platform.find([key, fresh])
        assert ([(one.attempt, one.native_id) for one in attempts[key]], attempts[fresh]) == ([(2, "0" * 64)], [])
        assert (await platform.observe(attempts[key]))[attempts[key][0]].state is JobState.COMPLETE
        assert await platform.check_path(f"{tmp_path}/{key}/attempts/2.json")
        volumes = docker_at("remote-docker/new", host=f"tcp://127.0.0.1:{port}")
        assert await volumes.find([key]) == {key: []}
        assert engine.client.images() == engine.client.containers(all=True) == []
        assert not engine.client.volumes()["Volumes"]
        await platform.close()
        await volumes.close()
    finally:
        engine.remove()


async def test_a_context_of_the_docker_command_is_understood(
    tls_engine: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, certs = tls_engine
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    given = f"host={url},ca={certs}/ca.pem,cert={certs}/cert.pem,key={certs}/key.pem"
    subprocess.run(["docker", "context", "create", "lab", "--docker", given], check=True, capture_output=True)
    assert (tmp_path / "contexts/meta" / hashlib.sha256(b"lab").hexdigest() / "meta.json").exists()
    platform = docker_at("remote-docker/lab", context="lab")
    assert not [finding for finding in await platform.probe() if finding.blocks]
    await platform.close()
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "lab"}))
    assert docker_at("remote-docker").engine.endpoint.url == url
    with pytest.raises(InvalidInput, match="no docker context 'other'"):
        docker_at("remote-docker", context="other")


async def test_a_tls_folder_that_lacks_a_file_is_bad_input(tmp_path: Path) -> None:
    platform = docker_at("remote-docker", host="tcp://127.0.0.1:1", cert_path=str(tmp_path))
    with pytest.raises(InvalidInput, match=r"has no ca\.pem"):
        await platform.probe()


# -- registries --------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerPlatform]:
    """A platform of somebody who has no login anywhere."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    platform = docker_at("local-docker/test", host=engine.host, network="none")
    yield platform
    platform.engine.close()


def image_findings(findings: list, level: Level) -> list[str]:  # type: ignore[type-arg]
    return [finding.message for finding in findings if finding.subject == "image" and finding.level is level]


async def test_a_private_image_is_told_to_be_pullable_only_with_a_login(
    plain: DockerPlatform, engine: Engine, registry: Registry
) -> None:
    image = registry.push(engine, "team/private:1")
    request = JobRequest.build(command="true", image=image)
    (refused,) = [finding for finding in await plain.probe(request) if finding.subject == "image"]
    assert refused.level is Level.FAIL
    assert f"docker login {registry.address}" in refused.remedy
    plain.take_credentials(registry.login)
    assert image_findings(await plain.probe(request), Level.OK) == [f"image: {image} can be pulled"]
    assert image not in [tag for one in engine.client.images() for tag in one["RepoTags"] or []]


async def test_a_missing_image_is_pulled_with_the_login_that_was_supplied(
    plain: DockerPlatform, engine: Engine, registry: Registry
) -> None:
    image = registry.push(engine, "team/private:2")
    with pytest.raises(SubmitFailed, match="could not be pulled") as told:
        await run_to_end(plain, image=image)
    assert "docker login" in told.value.remedy
    plain.take_credentials(registry.login)
    assert await run_to_end(plain, image=image) is JobState.ERROR  # it has no python3, but it ran
    assert PASSWORD not in json.dumps(
        [engine.client.inspect_container(one) for one in engine.client.containers(all=True)]
    )


async def test_a_tag_that_does_not_exist_is_told_as_such(plain: DockerPlatform, registry: Registry) -> None:
    plain.take_credentials(registry.login)
    image = f"{registry.address}/team/private:nope"
    (told,) = [finding for finding in await plain.probe(JobRequest.build(command="x", image=image)) if finding.blocks]
    assert told.remedy == "correct the image's name or tag"
    with pytest.raises(SubmitFailed) as refused:
        await run_to_end(plain, image=image)
    assert refused.value.remedy == "correct the image's name or tag"


async def test_an_image_for_another_processor_is_refused_beforehand(plain: DockerPlatform, engine: Engine) -> None:
    assert list(engine.client.load_image(image_archive("tao-test:other", "s390x", {"file": b"x"})))
    (told,) = image_findings(await plain.probe(JobRequest.build(command="true", image="tao-test:other")), Level.FAIL)
    assert "is built for s390x" in told
    engine.client.remove_image("tao-test:other")


async def test_always_pulling_is_obeyed(engine: Engine, registry: Registry, tmp_path: Path) -> None:
    image = registry.push(engine, "team/private:3")
    with EngineProxy(engine.socket, engine.folder / "proxy.sock") as proxy:
        platform = docker_at("local-docker/test", host=proxy.host, network="none", pull_policy="always")
        platform.take_credentials(registry.login)
        for times in (1, 2):
            await run_to_end(platform, image=image)
            assert len(proxy.matching("POST", "^/images/create")) == times
        await platform.close()


async def test_never_pulling_is_obeyed(engine: Engine) -> None:
    platform = docker_at("local-docker/test", host=engine.host, pull_policy="never")
    image = "127.0.0.1:1/team/none:1"
    findings = await platform.probe(JobRequest.build(command="true", image=image))
    assert image_findings(findings, Level.FAIL) == [f"image: {image} is not there, and the block says never to pull"]
    with pytest.raises(SubmitFailed, match="the pull policy is never"):
        await run_to_end(platform, image=image)
    assert image_findings(await platform.probe(JobRequest.build(command="true", image=TOOLS)), Level.OK)
    await platform.close()
