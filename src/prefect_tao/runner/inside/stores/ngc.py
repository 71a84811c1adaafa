"""ngc://: models of NVIDIA's registry, fetched with the ngc command."""

from __future__ import annotations

from ..tools import ToolScheme


class Ngc(ToolScheme):
    name, title = "ngc", "NGC"

    def command(self, location: str, folder: str) -> list[str]:
        return [self.program(location, "ngc"), "registry", "model", "download-version", location, "--dest", folder]


SCHEME = Ngc()
