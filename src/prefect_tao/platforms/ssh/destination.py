"""Where a login leads and with what, as a person has said it; what is left out comes from ssh's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from prefect_tao.jobs.errors import InvalidInput

KEY_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True)
class Destination:
    """`host` is a name, an address or an alias of ~/.ssh/config; `folder` replaces ~/.ssh.

    A jump host is tried with the same key file and known hosts, but only beside what the configuration says of it.
    `key_setting` is what a person sets to choose another key; it appears in remedies.
    """

    host: str
    user: str | None = None
    port: int | None = None
    key_path: str | None = None
    known_hosts: str | None = None
    folder: str | None = None
    passphrase: str | None = field(default=None, repr=False)
    is_jump: bool = False
    key_setting: str = field(default="IdentityFile in ~/.ssh/config", compare=False)

    @classmethod
    def parse(cls, url: str, folder: str | None = None) -> Destination:
        """ssh://user@host:port; user and port are ssh's own choice where left out. Raises InvalidInput."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidInput(f"{url} has no usable port", "write ssh://user@host:22") from None
        host = parts.netloc.rpartition("@")[2].partition(":")[0] if "[" not in parts.netloc else parts.hostname
        if not host or host.startswith("-") or (parts.username or "").startswith("-") or parts.path.strip("/"):
            raise InvalidInput(
                f"{url} does not name a host", "write ssh://user@host, or ssh:// and an alias of ~/.ssh/config"
            )
        return cls(host, parts.username, port, folder=folder)

    def jump(self, spec: str) -> Destination:
        """A jump host on the way to this one, as ProxyJump names it."""
        there = Destination.parse(spec if spec.startswith("ssh://") else f"ssh://{spec}")
        return replace(self, host=there.host, user=there.user, port=there.port, is_jump=True)

    @property
    def shown(self) -> str:
        """The destination as a person writes it after `ssh`."""
        port = f" -p {self.port}" if self.port not in (None, 22) else ""
        return f"{self.user}@{self.host}{port}" if self.user else f"{self.host}{port}"

    def options(self) -> list[str]:
        """The options by which the ssh program learns all this, except the passphrase."""
        words = []
        folder = Path(self.folder).expanduser() if self.folder else None
        if folder and (folder / "config").exists():
            words += ["-F", str(folder / "config")]
        if files := self.known_hosts_files():
            words += ["-o", "UserKnownHostsFile=" + " ".join(f'"{file}"' for file in files)]
        words += [part for key in self.keys() for part in ("-i", str(key))]
        if self.key_path and not self.is_jump:
            words += ["-o", "IdentitiesOnly=yes"]
        words += ["-l", self.user] if self.user else []
        return [*words, *(["-p", str(self.port)] if self.port else [])]

    def keys(self) -> list[Path]:
        """The private keys that were named, or that lie in the folder."""
        named = [Path(self.key_path).expanduser()] if self.key_path else []
        folder = Path(self.folder).expanduser() if self.folder else None
        return named + [folder / name for name in KEY_NAMES if folder and (folder / name).exists()]

    def known_hosts_files(self) -> list[str]:
        """The files of host keys that take the place of those in the configuration; none where none was named."""
        folder = Path(self.folder).expanduser() if self.folder else None
        files = [str(Path(self.known_hosts).expanduser())] if self.known_hosts else []
        if folder and (folder / "known_hosts").exists():
            files.append(str(folder / "known_hosts"))
        # A jump host may well be known to the person and not to the block.
        return [*files, "~/.ssh/known_hosts", "~/.ssh/known_hosts2"] if files and self.is_jump else files
