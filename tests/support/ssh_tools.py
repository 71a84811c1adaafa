"""What the tests of ssh share: the folder of someone who is let in, lines of a configuration, and who carries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

from ssh_server import Sshd, make_key

from prefect_tao.platforms.ssh.connection import Connection

CARRIERS = ("paramiko", "program")
Reach = Callable[..., Connection]
MakeServer = Callable[..., Sshd]


def carrier_of(there: Connection) -> type:
    """What carries a connection that is open."""
    assert there._shared is not None
    return type(next(iter(there._shared._trunks)))


def folder_of(tmp_path: Path, *servers: Sshd, config: str = "") -> Path:
    """The ssh folder of someone who is let in by all of them and knows them all."""
    folder = tmp_path / f"ssh-{token_hex(4)}"
    folder.mkdir()
    make_key(folder / "id_ed25519")
    for server in servers:
        with open(server.folder / "authorized_keys", "a") as keys:
            keys.write((folder / "id_ed25519.pub").read_text())
    (folder / "known_hosts").write_text("".join(f"[127.0.0.1]:{one.port} {one.host_key}" for one in servers))
    (folder / "config").write_text(config)
    return folder


def host(name: str, server: Sshd, *more: str) -> str:
    """The lines by which a configuration knows a server."""
    return "\n  ".join([f"Host {name}", "HostName 127.0.0.1", f"Port {server.port}", *more]) + "\n"
