"""Two small images made of this machine's own files: one with bash and core tools, one with python3 besides."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

TOOLS = [
    "bash",
    "true",
    "false",
    "cat",
    "echo",
    "ls",
    "sleep",
    "env",
    "id",
    "mkdir",
    "rm",
    "touch",
    "date",
    "df",
    "head",
    "tail",
    "wc",
    "printenv",
    "uname",
    "kill",
    "hostname",
    "stat",
    "seq",
    "mktemp",
    "sha256sum",
    "grep",
    "setsid",
    "dd",
    "tr",
    "chmod",
    "sort",
    "cut",
    "ln",
    "readlink",
]
PASSWD = "root:x:0:0:root:/root:/bin/bash\nworker:x:4321:4321::/home/worker:/bin/bash\n"
HEAVY = {"test", "tests", "site-packages", "dist-packages", "idlelib", "tkinter", "ensurepip", "lib2to3", "turtledemo"}


def tools_tar() -> bytes:
    """bash and core tools, with the libraries they need."""
    return _tar(_tools())


def python_tar() -> bytes:
    """The same and the interpreter that runs the tests, as python3."""
    interpreter = Path(sys.executable).resolve()
    library = Path(os.__file__).parent
    modules = [path for path in sorted(library.rglob("*")) if path.is_file() and not _is_heavy(path, library)]
    binaries = [interpreter, *(path for path in modules if path.suffix == ".so")]
    files = {**_tools(), str(interpreter): interpreter}
    files |= {str(path): path for path in (*modules, *_libraries(binaries))}
    return _tar(files, {"/bin/python3": str(interpreter)})


def image_archive(tag: str, architecture: str, files: dict[str, bytes]) -> bytes:
    """An image of one layer as `docker load` takes it, built for `architecture` by its own account."""
    layer = _plain_tar(files)
    layers = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    config = {"architecture": architecture, "os": "linux", "config": {}, "rootfs": layers}
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    parts = {"manifest.json": json.dumps(manifest).encode(), "config.json": json.dumps(config).encode()}
    return _plain_tar({**parts, "layer.tar": layer})


def _plain_tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            _add(tar, name, tarfile.REGTYPE, 0o755, data)
    return out.getvalue()


def _is_heavy(path: Path, library: Path) -> bool:
    parts = path.relative_to(library).parts
    return bool(HEAVY & set(parts)) or parts[0].startswith("config-") or ".opt-" in path.name


@cache
def _tools() -> dict[str, Path]:
    found = [Path(path) for tool in TOOLS if (path := shutil.which(tool, path="/usr/bin:/bin"))]
    files = {f"/bin/{path.name}": path for path in found}
    return {**files, **{str(path): path for path in _libraries(found)}}


def _libraries(binaries: Iterable[Path]) -> list[Path]:
    words = ["ldd", *map(str, binaries)]
    told = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    return sorted({Path(word) for word in told.split() if word.startswith("/") and ".so" in word and ":" not in word})


def _tar(files: dict[str, Path], links: dict[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in ("tmp", "etc", "proc", "sys", "dev", "root", "usr", "bin", "home", "home/worker"):
            _add(tar, folder, tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755)
        for name, text in (("etc/passwd", PASSWD), ("etc/group", "root:x:0:\nworker:x:4321:\n")):
            _add(tar, name, tarfile.REGTYPE, 0o644, text.encode())
        for name, target in {"/bin/sh": "bash", "/usr/bin": "../bin", **(links or {})}.items():
            _add(tar, name.lstrip("/"), tarfile.SYMTYPE, 0o777, link=target)
        for name, path in files.items():
            facts = path.stat()
            # With its time, because a compiled module counts only beside a source of the very second.
            _add(
                tar, name.lstrip("/"), tarfile.REGTYPE, facts.st_mode & 0o777 | 0o444, path.read_bytes(), facts.st_mtime
            )
    return out.getvalue()


def _add(
    tar: tarfile.TarFile, name: str, kind: bytes, mode: int, data: bytes = b"", mtime: float = 0, link: str = ""
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size, entry.linkname, entry.mtime = kind, mode, len(data), link, int(mtime)
    tar.addfile(entry, io.BytesIO(data) if data else None)
