"""Inputs that a tool of the image fetches: from Hugging Face and from NGC."""

from __future__ import annotations

import os
from abc import abstractmethod

from .atomic import part_of, rename_once
from .checkpoints import CHECKPOINTS
from .failures import RunnerError
from .retry import retry_phase
from .stores import Scheme, Source

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class ToolScheme(Scheme, Source):
    """Locations that a tool of the image fetches: only the job can look there, and nothing is kept there."""

    is_seen = keeps = False
    is_everywhere = True

    def connect(self, env: Mapping[str, str], say: Callable[[str], None], quick: bool = False) -> Source:
        return self

    @abstractmethod
    def command(self, location: str, folder: str) -> list[str]:
        """The command that fetches `location`, without its scheme, into `folder`. Raises RunnerError."""

    def program(self, location: str, *names: str, package: str = "") -> str:
        """The first of the image's programs `names`. Raises RunnerError when it has none."""
        from shutil import which

        for name in names:
            if which(name):
                return name
        needed = "the %s command%s" % (names[0], " (package %s)" % package if package else "")
        uri = "%s://%s" % (self.name, location)
        raise RunnerError("inputs", "%s needs %s in the image, and it has none" % (uri, needed))

    def fetch(
        self, uri: str, target: str, cache: str | None = None, shared: bool = False, names: Sequence[str] | None = None
    ) -> str:
        """Run the command into `target`; returns the one weights file in it, or the folder."""
        import subprocess

        if os.path.isdir(target):
            return _only_file(target)
        temporary = part_of(target)
        words = self.command(uri.partition("://")[2], temporary)
        os.makedirs(temporary)

        def once() -> None:
            done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                raise OSError(done.stdout.decode(errors="replace").strip()[-500:])

        retry_phase("inputs", "fetching %s" % uri, once)
        rename_once(temporary, target)
        return _only_file(target)


def _only_file(folder: str) -> str:
    """The one weights file in `folder` when there is exactly one, else the folder: what a spec key wants."""
    found = [
        os.path.join(base, name)
        for base, _, names in os.walk(folder)
        for name in names
        if name.endswith(CHECKPOINTS) and "/." not in base[len(folder) :]
    ]
    return found[0] if len(found) == 1 else folder
