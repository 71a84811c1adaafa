"""hf_model://: models of Hugging Face, fetched with the hf command."""

from __future__ import annotations

from ..tools import ToolScheme


class HuggingFace(ToolScheme):
    name, title, kind = "hf_model", "Hugging Face", "model"

    def command(self, location: str, folder: str) -> list[str]:
        program = self.program(location, "hf", "huggingface-cli", package="huggingface_hub")
        repository, _, revision = location.partition("@")
        parts = repository.strip("/").split("/")
        words = [program, "download", "/".join(parts[:2]), *(["/".join(parts[2:])] if parts[2:] else [])]
        words += ["--repo-type", self.kind, "--local-dir", folder]
        return words + (["--revision", revision] if revision else [])


SCHEME = HuggingFace()
