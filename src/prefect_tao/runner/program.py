"""The program that runs inside the container, around the user's command.

It fetches inputs, writes the spec, runs the command as its own process group, carries outputs away while the command
runs and after it ended however it ended, and writes the exit marker last. One file, standard library only, Python 3.8
and newer: it must start in any image that has a python3, so modules that only some jobs need are imported late.
"""

from __future__ import annotations

import _thread
import errno
import json
import os
import signal
import sys
import time
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes time that every start would pay
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn

    Plan = Mapping[str, Any]

HERE = os.path.dirname(os.path.abspath(__file__))
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
CHECKPOINTS = (".pth", ".pt", ".ckpt", ".tlt", ".hdf5")
LOCAL_SCHEMES = ("file", "lustre", "slurm")
TOOL_SCHEMES = ("hf_model", "hf_dataset", "ngc")
RESUME_LEAF = "resume_training_checkpoint_path"
UNSET = (None, "", "???")
RUNNER_FAILED = 125  # what docker and timeout(1) use for "the wrapper failed, not the command"
TRANSFERS = 8
TRIES = 4
NOT_OURS = ("inputs", "ptm", "__pycache__")  # folders whose checkpoints no attempt of this job has written
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
LEFTOVER_SECONDS = 2
PATIENCE_SECONDS = 300  # for a store that does not answer when the command has ended and its outputs are to be kept
FINAL_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENOSPC, errno.EDQUOT)
ENDINGS = ("cancel", "preempt", "time_limit")


class RunnerError(Exception):
    """The runner could not do its own part; `phase` says which."""

    final = True  # whether trying again is of no use

    def __init__(self, phase: str, message: str) -> None:
        super().__init__(message)
        self.phase = phase


class NothingThere(RunnerError):
    """An input is not where it should be."""


class Stopped(BaseException):
    """A signal asked for the end before the command was started."""


def say(text: str) -> None:
    """A line in the job's log. Unbuffered, because signal handlers speak too; a full disk must not end the job."""
    try:
        os.write(1, ("[prefect-tao] %s\n" % text).encode("utf-8", "replace"))
    except OSError:
        pass


# -- pointers into nested specs: a.b[0].c ------------------------------------------------------------------------------


def parse_pointer(pointer: str) -> list[str | int]:
    """The steps of `a.b[0].c`: ["a", "b", 0, "c"]. Raises ValueError when it is not a pointer."""
    steps: list[str | int] = []
    for part in pointer.split("."):
        name, bracket, rest = part.partition("[")
        if name:
            steps.append(name)
        elif not bracket or not steps:
            raise ValueError("%r is not a pointer such as a.b[0].c" % pointer)
        while bracket:
            index, closing, rest = rest.partition("]")
            if not closing or not index.isdigit():
                raise ValueError("%r is not a pointer such as a.b[0].c" % pointer)
            steps.append(int(index))
            if rest and not rest.startswith("["):
                raise ValueError("%r is not a pointer such as a.b[0].c" % pointer)
            bracket, rest = rest[:1], rest[1:]
    return steps


def _steps(tree: Any, pointer: str) -> list[str | int]:
    """The steps of `pointer` in `tree`; an argument's name may hold points itself, so a key that is there wins."""
    name, bracket, rest = pointer.partition("[")
    if isinstance(tree, dict) and name in tree:
        return [name] + parse_pointer("x" + bracket + rest)[1:]
    return parse_pointer(pointer)


def get_pointer(tree: Any, pointer: str) -> Any:
    """The value at `pointer`, or None where the path ends early."""
    for step in _steps(tree, pointer):
        try:
            tree = tree[step]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def set_pointer(tree: Any, pointer: str, value: Any) -> None:
    """Put `value` at `pointer`, making maps on the way. Raises ValueError where the tree has another shape."""
    steps = _steps(tree, pointer)
    for step, following in zip(steps, steps[1:]):
        if isinstance(step, int):
            if not isinstance(tree, list) or step >= len(tree):
                raise ValueError("%s: there is no element %d" % (pointer, step))
        elif not isinstance(tree, dict):
            raise ValueError("%s: %r is not a map" % (pointer, step))
        elif tree.get(step) is None:
            tree[step] = [] if isinstance(following, int) else {}
        tree = tree[step]
    last = steps[-1]
    if isinstance(last, int):
        if not isinstance(tree, list) or last > len(tree):
            raise ValueError("%s: there is no element %d" % (pointer, last))
        tree[last : last + 1] = [value]
    elif isinstance(tree, dict):
        tree[last] = value
    else:
        raise ValueError("%s: its parent is not a map" % pointer)


def walk(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of `tree` as (pointer, value)."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from walk(value, "%s.%s" % (prefix, key) if prefix else key)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from walk(value, "%s[%d]" % (prefix, index))
    else:
        yield prefix, tree


# -- config files ------------------------------------------------------------------------------------------------------


def quote(text: str) -> str:
    """A double-quoted string that YAML 1.1, TOML 1.0 and JSON all read back as `text`."""
    if text.isascii() and text.isprintable():
        return json.dumps(text)
    return "".join(
        char
        if " " <= char <= "~" or ("\xa0" <= char <= "\ud7ff" and char not in "\u2028\u2029")
        else "\\u%04x" % ord(char)
        if ord(char) < 0x10000 and not "\ue000" <= char <= "\ufffd"
        else char
        for char in json.dumps(text, ensure_ascii=False)
    )


def scalar(value: Any) -> str:
    """A value that is neither map nor list, as YAML and TOML both write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = float.__repr__(value)
        mantissa, letter, exponent = text.partition("e")
        # YAML 1.1 readers take 1e-05 for text; with a point in it, every reader sees the number.
        return mantissa + ".0e" + exponent if letter and "." not in mantissa else text
    return str(value) if isinstance(value, int) else quote(value)


def to_yaml(value: Any, depth: int = 0) -> str:
    """`value` as block-style YAML."""
    pad = "  " * depth
    if isinstance(value, dict) and value:
        return "".join("%s%s:%s" % (pad, quote(key), _yaml_child(inner, depth)) for key, inner in value.items())
    if isinstance(value, list) and value:
        return "".join("%s-%s" % (pad, _yaml_child(inner, depth)) for inner in value)
    return "%s%s\n" % (pad, _yaml_leaf(value))


def _yaml_child(value: Any, depth: int) -> str:
    if isinstance(value, (dict, list)) and value:
        return "\n" + to_yaml(value, depth + 1)
    return " %s\n" % _yaml_leaf(value)


def _yaml_leaf(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, (dict, list)):
        return "{}" if isinstance(value, dict) else "[]"
    return scalar(value)


def to_toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """`table` as TOML: its own values first, then its tables. A null has no form in TOML and is left out."""
    lines, below = [], []
    for key, value in table.items():
        name = key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else quote(key)
        inner = path + (name,)
        if isinstance(value, dict):
            below.append("\n[%s]\n%s" % (".".join(inner), to_toml(value, inner)))
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            below.extend("\n[[%s]]\n%s" % (".".join(inner), to_toml(item, inner)) for item in value)
        elif value is not None:
            lines.append("%s = %s\n" % (name, _toml_value(value)))
    return "".join(lines + below)


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return "[%s]" % ", ".join(_toml_value(item) for item in value if item is not None)
    if isinstance(value, dict):
        pairs = ("%s = %s" % (quote(key), _toml_value(item)) for key, item in value.items() if item is not None)
        return "{%s}" % ", ".join(pairs)
    return scalar(value)


def config_text(spec: Mapping[str, Any], config_format: str) -> str:
    """The spec file's text."""
    if config_format == "json":
        return json.dumps(spec, indent=2, ensure_ascii=False) + "\n"
    return to_toml(spec) if config_format == "toml" else to_yaml(spec)


# -- small file matters ------------------------------------------------------------------------------------------------


def part_of(path: str) -> str:
    """A temporary name beside `path` for this writer alone: process numbers are alike in all containers."""
    return "%s.%s.part" % (path, os.urandom(4).hex())


def write_whole(path: str, write: Callable[[str], None]) -> None:
    """Let `write(temporary name)` make a file and give it its name when it is whole; a part is never left behind."""
    temporary = part_of(path)
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


def write_atomic(path: str, data: bytes) -> None:
    """Write a whole file or nothing."""

    def write(temporary: str) -> None:
        with open(temporary, "wb") as file:
            file.write(data)

    write_whole(path, write)


def safe_name(text: str) -> str:
    """`text` as one folder name."""
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in text).strip(".") or "_"


def is_archive(path: str) -> bool:
    return path.lower().endswith(ARCHIVES)


def stem(path: str) -> str:
    """The file name of an archive without its ending: images.tar.gz is unpacked as images."""
    name = os.path.basename(path)
    for ending in sorted(ARCHIVES, key=len, reverse=True):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def unpack(archive: str, folder: str) -> str:
    """Unpack a tar or zip file; a member that would leave `folder`, and every link or device, is refused."""
    import shutil

    if os.path.isdir(folder):
        return folder
    temporary = part_of(folder)
    os.makedirs(temporary)
    try:
        _unpack_zip(archive, temporary) if archive.lower().endswith(".zip") else _unpack_tar(archive, temporary)
        # An archive of one folder with the archive's own name unpacks to that folder, not to a folder in a folder.
        inner = os.path.join(temporary, os.path.basename(folder))
        alone = os.listdir(temporary) == [os.path.basename(folder)] and os.path.isdir(inner)
        _rename_once(inner if alone else temporary, folder)
    except RunnerError:
        raise
    except Exception as error:  # tarfile, zipfile, zlib and lzma each have errors of their own
        raise RunnerError("inputs", "cannot unpack %s: %s" % (archive, error))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _unpack_zip(archive: str, folder: str) -> None:
    import zipfile

    with zipfile.ZipFile(archive) as source:
        for info in source.infolist():
            if (info.external_attr >> 16) & 0o170000 == 0o120000:
                raise RunnerError("inputs", "%s holds a link (%s); links are refused" % (archive, info.filename))
            _refuse_outside(archive, folder, info.filename)
        source.extractall(folder)


def _unpack_tar(archive: str, folder: str) -> None:
    import tarfile

    with tarfile.open(archive) as source:
        source.extraction_filter = lambda member, _: member  # the checks below stand for Python's own
        for member in source:
            if not (member.isfile() or member.isdir()):
                raise RunnerError("inputs", "%s holds a link or device (%s); refused" % (archive, member.name))
            _refuse_outside(archive, folder, member.name)
            member.mode = (member.mode or 0o644) & 0o777 | 0o600 | (0o100 if member.isdir() else 0)
            member.uid = member.gid = -1  # whoever packed it, it is ours
            member.uname = member.gname = ""
            source.extract(member, folder)
        while source.fileobj and source.fileobj.read(1 << 20):
            pass  # only at its very end does a compressed stream tell whether it is whole


def _refuse_outside(archive: str, folder: str, member: str) -> None:
    target = os.path.realpath(os.path.join(folder, member))
    if target != os.path.realpath(folder) and not target.startswith(os.path.realpath(folder) + os.sep):
        raise RunnerError("inputs", "%s holds %r, which would leave its folder; refused" % (archive, member))


def _rename_once(source: str, target: str) -> None:
    """Rename, or accept that another rank was quicker with the same content."""
    try:
        os.rename(source, target)
    except OSError:
        if not os.path.exists(target):
            raise


def run_parallel(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run callables side by side; the first failure is raised after all have ended. A signal does not wait for them."""
    if not tasks:
        return []
    from concurrent.futures import ThreadPoolExecutor, wait

    pool = ThreadPoolExecutor(TRANSFERS)
    futures = [pool.submit(task) for task in tasks]
    try:
        wait(futures)
    finally:
        for future in futures:
            future.cancel()
        pool.shutdown(wait=False)
    return [future.result() for future in futures]


def patiently(phase: str, what: str, action: Callable[[], Any]) -> Any:
    """Try `action` a few times with growing pauses: hubs and shared file systems hiccup."""
    for attempt in range(1, TRIES + 1):
        try:
            return action()
        except RunnerError:
            raise
        except Exception as error:
            if attempt == TRIES or (isinstance(error, OSError) and error.errno in FINAL_ERRORS):
                raise RunnerError(phase, "%s failed: %s" % (what, error))
            time.sleep(0.5 * 2**attempt)


# -- object storage ----------------------------------------------------------------------------------------------------


EMBEDDED = ""  # the storage module, packed, where this file travels alone

_storage: Any = None
_storage_lock = _thread.allocate_lock()
_store: Any = None
_store_lock = _thread.allocate_lock()


def storage() -> Any:
    """The module that speaks S3: packed into this file, or beside it. Jobs without S3 do not load it."""
    global _storage
    with _storage_lock:
        if _storage is None:
            from importlib import import_module

            if EMBEDDED:
                import base64
                import zlib

                _storage = type(sys)("storage")
                exec(zlib.decompress(base64.b64decode(EMBEDDED)), _storage.__dict__)
            else:
                if not __package__ and HERE not in sys.path:  # an isolated Python does not look beside its program
                    sys.path.insert(0, HERE)
                _storage = import_module("%s.storage" % __package__ if __package__ else "storage")
    return _storage


def store() -> Any:
    """The one store of this run; boto3 clients must not be made side by side."""
    global _store
    with _store_lock:
        if _store is None:
            _store = storage().connect(os.environ, say)
    return _store


def with_store(phase: str, work: Callable[[Any, Any], Any]) -> Any:
    """Do `work(module, store)`; what goes wrong there is a failure of `phase`."""
    try:
        return work(storage(), store())
    except storage().StorageError as error:
        problem = NothingThere if isinstance(error, storage().Missing) else RunnerError
        failure = problem(phase, str(error))
        failure.final = error.final
        raise failure


def fetch_s3(uri: str, target: str, names: Sequence[str] | None = None) -> None:
    """Download the object or the folder of objects at `uri` to `target`, of a folder only `names` where they are given.

    With TAO_CACHE_DIR, a folder that jobs share, the files are links into it.
    """
    cache = os.environ.get("TAO_CACHE_DIR")
    cache = os.path.abspath(cache) if cache else None
    shared = "NODE_RANK" in os.environ  # the nodes of one job may work in one folder
    with_store("inputs", lambda module, store: module.fetch(store, uri, target, cache, shared, names))


# -- inputs ------------------------------------------------------------------------------------------------------------


def tool_command(uri: str, folder: str) -> list[str]:
    """The command that fetches an hf_model://, hf_dataset:// or ngc:// location into `folder` with the image's tool."""
    from shutil import which

    scheme, _, rest = uri.partition("://")
    if scheme == "ngc":
        if not which("ngc"):
            raise RunnerError("inputs", "%s needs the ngc command in the image, and it has none" % uri)
        return ["ngc", "registry", "model", "download-version", rest, "--dest", folder]
    program = which("hf") or which("huggingface-cli")
    if not program:
        raise RunnerError(
            "inputs", "%s needs the hf command (package huggingface_hub) in the image, and it has none" % uri
        )
    repository, _, revision = rest.partition("@")
    parts = repository.strip("/").split("/")
    words = [program, "download", "/".join(parts[:2]), *(["/".join(parts[2:])] if parts[2:] else [])]
    words += ["--repo-type", "model" if scheme == "hf_model" else "dataset", "--local-dir", folder]
    return words + (["--revision", revision] if revision else [])


def fetch_with_tool(uri: str, target: str) -> str:
    """Fetch `uri` with its tool; returns the one weights file in it, or the folder."""
    import subprocess

    if os.path.isdir(target):
        return _only_file(target)
    temporary = part_of(target)
    command = tool_command(uri, temporary)
    os.makedirs(temporary)

    def once() -> None:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            raise OSError(done.stdout.decode(errors="replace").strip()[-500:])

    patiently("inputs", "fetching %s" % uri, once)
    _rename_once(temporary, target)
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


def localize(uri: str, rule: Mapping[str, Any], folder: str) -> str:
    """The local path of one input, fetched into `folder` where it has to be."""
    kind, optional = rule.get("type"), rule.get("optional")
    scheme, marker, rest = uri.partition("://")
    if not marker or scheme in LOCAL_SCHEMES:
        path = "/" + rest.lstrip("/") if marker else uri
        if not os.path.exists(path) and kind != "local_glob" and not optional:
            raise RunnerError("inputs", "the input %s does not exist where the job runs" % path)
        if os.path.isdir(path):
            return path
    else:
        path = rule.get("container_path") or os.path.join(folder, safe_name(os.path.basename(uri.rstrip("/"))))
        path = os.path.abspath(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if scheme == "s3":
            try:
                fetch_s3(uri, path)
            except NothingThere:
                if not optional:
                    raise
        elif scheme in TOOL_SCHEMES:
            path = fetch_with_tool(uri, path)
        else:
            raise RunnerError(
                "inputs", "%s: inputs can be paths, file://, s3://, hf_model://, hf_dataset://, ngc://" % uri
            )
    if kind == "file" or not is_archive(path) or not os.path.isfile(path):
        return path
    os.makedirs(folder, exist_ok=True)
    unpacked = unpack(path, os.path.join(folder, stem(path)))
    return os.path.dirname(unpacked) if rule.get("extract_to_parent") else unpacked


def selected(tree: Any, key: str, rule: Mapping[str, Any], folder: str) -> str:
    """Fetch only the media files that an annotation names; where that cannot be told, all of them."""
    choice = rule["selective"]
    root, annotation = get_pointer(tree, key), get_pointer(tree, choice["annotation"])
    if not root.startswith("s3://") or is_archive(root) or not isinstance(annotation, str) or annotation in UNSET:
        return localize(root, rule, folder)
    local = localize(annotation, {"type": "file"}, os.path.join(folder, "annotation"))
    base, wanted = (
        root.rstrip("/") + "/",
        os.path.abspath(rule.get("container_path") or os.path.join(folder, "selected")),
    )
    found = references(local, choice.get("format") or "", choice.get("keys") or ("file_name", "video"))
    names = sorted({name[len(base) :] if name.startswith(base) else name for name in found})
    if not names:
        raise RunnerError("inputs", "%s names no media; check `keys` of the selective input %s" % (annotation, key))
    os.makedirs(wanted, exist_ok=True)
    for name in names:
        _refuse_outside(annotation, wanted, name)
    fetch_s3(root, wanted, names)
    return wanted


def references(path: str, form: str, keys: Sequence[str]) -> set[str]:
    """The files that an annotation names under one of `keys`."""
    form = form if form and not path.endswith(".jsonl") else path.rpartition(".")[2]
    try:
        if form == "parquet":
            return _table_references(path, keys)
        with open(path, encoding="utf-8-sig", newline="") as file:
            if form == "csv":
                import csv

                records: Any = list(csv.DictReader(file))
            elif form == "jsonl":
                records = [json.loads(line) for line in file if line.strip()]
            else:
                records = json.load(file)
    except ValueError as error:
        raise RunnerError("inputs", "the annotation %s is not %s: %s" % (path, form, error))
    return {value for spot, value in walk(records) if value and _leaf(spot) in keys and isinstance(value, str)}


def _table_references(path: str, keys: Sequence[str]) -> set[str]:
    from importlib import import_module

    try:
        table = import_module("pandas").read_parquet(path)
    except ImportError:
        raise RunnerError("inputs", "%s needs pandas in the image, and it has none; use a JSON annotation" % path)
    return {str(name) for key in keys if key in table for name in table[key].dropna()}


def _leaf(pointer: str) -> str:
    return pointer.rpartition(".")[2].partition("[")[0]


def fetch_inputs(plan: Plan, tree: Any, work: str) -> None:
    """Make every declared input a local path, all at once, and write the paths into `tree`."""
    if plan["mode"] == "passthrough":
        run_parallel([partial(place, uri, path) for path, uri in plan["inputs"].items()])
        return
    pending: dict[str, Callable[[], str]] = {}
    for key, rule in plan["inputs"].items():
        pending.update(_declared(tree, key, rule, os.path.join(work, "inputs", safe_name(key))))
    for spot, value in walk(tree):
        if isinstance(value, str) and value.partition("://")[0] in TOOL_SCHEMES and spot not in pending:
            pending[spot] = partial(localize, value, {}, os.path.join(work, "ptm", safe_name(spot)))
    for spot, path in zip(pending, run_parallel(list(pending.values()))):
        set_pointer(tree, spot, path)


def _declared(tree: Any, key: str, rule: dict[str, Any], folder: str) -> dict[str, Callable[[], str]]:
    """What has to be done for one declared input: {pointer: how to get its local path}."""
    value = get_pointer(tree, key)
    if isinstance(value, str) and value not in UNSET:
        if rule.get("selective"):
            return {key: partial(selected, tree, key, rule, folder)}
        return {key: partial(localize, value, rule, folder)}
    found: dict[str, Callable[[], str]] = {}
    for index, uri in enumerate(value if isinstance(value, list) else ()):
        if isinstance(uri, str) and uri not in UNSET:
            # Each element has a folder of its own: two of them may have one basename.
            inside = os.path.join(rule.get("container_path") or folder, str(index))
            found["%s[%d]" % (key, index)] = partial(localize, uri, dict(rule, container_path=None), inside)
    return found


def place(uri: str, path: str) -> None:
    """Make the input `uri` visible at the fixed `path` that a plain command expects."""
    path = os.path.abspath(path)
    local = os.path.abspath(localize(uri, {"container_path": path, "type": "file"}, os.path.dirname(path)))
    if os.path.realpath(local) == os.path.realpath(path):
        return
    if os.path.islink(path):
        os.unlink(path)  # from an earlier attempt
    elif os.path.isdir(path) and not os.listdir(path):
        os.rmdir(path)
    elif os.path.exists(path):
        raise RunnerError("inputs", "%s cannot be put at %s: there is something else; refused" % (uri, path))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(local, path)


# -- outputs -----------------------------------------------------------------------------------------------------------


class Unsettled(RunnerError):
    """A file was written to while it was being carried; it waits for the next round."""


class Sync:
    """Carries files from where the command writes them to where they are kept; only what changed since last time."""

    def __init__(self, excludes: Sequence[str], skip: Sequence[str] = ()) -> None:
        self.excludes = [pattern[2:] if pattern.startswith("./") else pattern.lstrip("/") for pattern in excludes]
        self.skip = skip  # folders that are kept already, or that are the runner's own
        self.routes: list[tuple[str, str]] = []  # local path, destination
        self.done: dict[tuple[str, str], tuple[int, int]] = {}
        self.seen: dict[tuple[str, str], tuple[int, int]] = {}
        self.end_rounds: Callable[[], None] = lambda: None

    def add(self, local: str, destination: str) -> None:
        self.routes.append((local, destination))

    def _files(self, local: str) -> Iterator[tuple[str, str]]:
        if os.path.isfile(local):
            yield local, os.path.basename(local)
        for base, below, names in os.walk(local):
            inside = os.path.relpath(base, local)
            inside = "" if inside == "." else inside + "/"
            below[:] = [
                name
                for name in below
                if os.path.join(base, name) not in self.skip and not self._excluded(inside + name, folder=True)
            ]
            for name in names:
                if not self._excluded(inside + name):
                    yield os.path.join(base, name), inside + name

    def _excluded(self, relative: str, folder: bool = False) -> bool:
        """Whether a pattern names it, by its path or its own name; patterns for folders end with a slash."""
        from fnmatch import fnmatchcase

        for pattern in self.excludes:
            if pattern.endswith("/") == folder:
                pattern = pattern.rstrip("/")
                if fnmatchcase(relative, pattern) or fnmatchcase(os.path.basename(relative), pattern):
                    return True
        return False

    def once(self, interval: float = 0.0) -> None:
        """Carry what changed. While the command runs, every `interval` seconds, only what it is not writing to."""
        import stat

        changed: list[Any] = []
        for local, destination in self.routes:
            single = os.path.isfile(local)
            for path, relative in self._files(local):
                try:
                    facts = os.stat(path)
                except OSError:
                    continue
                key, mark = (path, destination), (facts.st_size, facts.st_mtime_ns)
                if self.done.get(key) == mark or not stat.S_ISREG(facts.st_mode):
                    continue
                steady = bool(interval) and self._is_settled(key, mark, interval)
                if interval and not steady and not self._is_growing(key):
                    continue
                target = destination if single else destination.rstrip("/") + "/" + relative
                done = partial(self.done.__setitem__, key, mark)
                changed.append((facts.st_size, target.startswith("s3://"), (path, target, steady, done)))
        # Small ones first, so that a checkpoint that does not fit leaves logs and states their room.
        changed.sort(key=lambda file: file[0])
        try:
            run_parallel([partial(copy_whole, *file) for _, to_s3, file in changed if not to_s3])
        finally:
            upload([file for _, to_s3, file in changed if to_s3])

    def _is_settled(self, key: tuple[str, str], mark: tuple[int, int], interval: float) -> bool:
        """Whether the file is as it was at the last look, or has not been touched for as long."""
        before, self.seen[key] = self.seen.get(key), mark
        if before is None:
            return time.time() - mark[1] / 1e9 > max(interval, 2.0)
        return before == mark

    def _is_growing(self, key: tuple[str, str]) -> bool:
        """Whether half of the file is of use: logs are read while they grow, a checkpoint only when it is whole."""
        try:
            with open(key[0], "rb") as file:
                return "tfevents" in os.path.basename(key[0]) or b"\0" not in file.read(1024)
        except OSError:
            return False

    def start(self, interval: float) -> None:
        """Carry outputs every `interval` seconds while the command runs."""
        if not self.routes or not interval:
            return
        import threading

        stop = threading.Event()

        def loop() -> None:
            while not stop.wait(interval):
                try:
                    self.once(interval)
                except Exception as error:
                    say("outputs not saved this time, next try in %g s: %s" % (interval, error))

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()

        def end() -> None:
            stop.set()
            thread.join()

        self.end_rounds = end

    def finish(self, is_hurried: Callable[[], bool]) -> None:
        """The last round, after the command ended. A store that does not answer now may do so in a minute."""
        self.end_rounds()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.once()
            except RunnerError as error:
                if error.final or is_hurried() or time.monotonic() > deadline:
                    raise
                say("outputs not saved yet, trying on: %s" % error)


def upload(files: Sequence[Any]) -> None:
    """Put files into s3, as the storage module takes them."""
    if files:
        with_store("outputs", lambda module, store: module.send(store, files))


def copy_whole(path: str, target: str, steady: bool, done: Callable[[], None]) -> None:
    """Copy a file under a temporary name and call `done`; one that should be steady and is not is left alone."""

    def write(temporary: str) -> None:
        before = os.stat(path)
        copy_file(path, temporary)
        after = os.stat(path)
        if steady and (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise Unsettled("outputs", path)

    def action() -> None:
        if os.path.exists(path):  # else the command has removed it meanwhile
            os.makedirs(os.path.dirname(target), exist_ok=True)
            write_whole(target, write)

    try:
        patiently("outputs", "saving %s to %s" % (path, target), action)
        done()
    except Unsettled:
        pass


def copy_file(source: str, target: str) -> None:
    """Copy content, and mode and times where the file system takes them."""
    import shutil

    shutil.copyfile(source, target)
    try:
        shutil.copystat(source, target)
    except OSError:
        pass


def is_below(path: str, folder: str) -> bool:
    return (path.rstrip("/") + "/").startswith(folder.rstrip("/") + "/")


class Where:
    """Where this job's results are kept (`base`), what that is (`kind`: mount, s3 or ephemeral), and where we work."""

    def __init__(self, key: str) -> None:
        root, bucket = os.environ.get("TAO_RESULTS_ROOT"), os.environ.get("S3_BUCKET_NAME")
        if root:
            self.kind, self.base = "mount", os.path.join(os.path.abspath(root), key)
        elif bucket:
            self.kind, self.base = "s3", "s3://%s/results/%s" % (bucket, key)
        else:
            self.kind, self.base = "ephemeral", os.path.join("/results", key)
        self.work = self._work_folder(key)
        if self.kind == "ephemeral":
            self.base = self.work

    def _work_folder(self, key: str) -> str:
        """Where specs and fetched inputs go: what the platform names, else beside the results, else the own disk."""
        beside = None if self.kind == "s3" else self.base
        for folder in (os.environ.get("TAO_WORK_DIR"), beside, os.path.join("/results", key)):
            try:
                if folder:
                    os.makedirs(folder, exist_ok=True)
                    return os.path.abspath(folder)
            except OSError:
                continue
        import tempfile

        return tempfile.mkdtemp(prefix="tao-")

    def not_outputs(self) -> list[str]:
        """The folders that are no output of the command even where they lie in one: kept already, or the runner's."""
        if self.kind == "mount":
            return [self.base]
        return [os.path.join(self.work, name) for name in ("inputs", "ptm", "resume", "outputs", "attempts")]


def choose_outputs(plan: Plan, tree: Any, where: Where, sync: Sync) -> dict[str, str]:
    """Decide for each output where the command writes it and where it is kept; returns {key: kept where}."""
    if plan["mode"] == "passthrough":
        return _plain_outputs(plan["outputs"], where, sync)
    kept: dict[str, str] = {}
    names: set[str] = set()
    for key, rule in plan["outputs"].items():
        is_file = rule.get("type") == "file"
        local, kept[key] = _output(key, own_name(key, names), get_pointer(tree, key), is_file, where)
        os.makedirs(os.path.dirname(local) if is_file else local, exist_ok=True)
        if local != kept[key]:
            sync.add(local, kept[key])
        set_pointer(tree, key, local)
    return kept


def own_name(text: str, taken: set[str]) -> str:
    """`text` as a folder name that no other output has; the same in every attempt."""
    name = safe_name(text)
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _plain_outputs(paths: Sequence[str], where: Where, sync: Sync) -> dict[str, str]:
    kept: dict[str, str] = {}
    names: set[str] = set()
    for path in dict.fromkeys(map(os.path.abspath, paths)):
        # Two outputs with one basename must not meet: the second and later ones carry their whole path.
        name = os.path.basename(path)
        name = own_name(name if safe_name(name) not in names else path.strip("/"), names)
        if where.kind == "ephemeral" or (where.kind == "mount" and is_below(path, os.path.dirname(where.base))):
            kept[name] = path
        else:
            kept[name] = "%s/%s" % (where.base, name)
            sync.add(path, kept[name])
    return kept


def _output(key: str, name: str, value: Any, is_file: bool, where: Where) -> tuple[str, str]:
    """Where the command writes one output, and where it is kept."""
    value = "" if value in UNSET else value
    scheme, marker, rest = value.partition("://")
    if marker and scheme in LOCAL_SCHEMES:
        value = "/" + rest.lstrip("/")
    own = os.path.join(where.work, "outputs", name)
    if scheme == "s3" and marker:
        return os.path.join(own, os.path.basename(value.rstrip("/"))) if is_file else own, value
    below = _leaf(key) if is_file else ""
    if os.path.isabs(value):
        # With s3 alone, a path in the container would end with the container.
        kept = "/".join((where.base, name, os.path.basename(value) if is_file else "")).rstrip("/")
        return value, kept if where.kind == "s3" else value
    # A relative value says the name below the output's own folder; leaving that folder is refused.
    if value and os.path.normpath(value) != ".":
        below = os.path.normpath(value)
        _refuse_outside("output %s" % key, own, below)
    kept = "/".join(filter(None, (where.base, name, below)))
    return os.path.join(own, below).rstrip("/") if where.kind == "s3" else kept, kept


def results_folder(kept: dict[str, str], where: Where, sync: Sync) -> str:
    """The folder that TAO_RESULTS_DIR names: there whatever the outputs are, and kept like them."""
    if "results_dir" in kept:
        destination = kept["results_dir"]
        return next((local for local, carried_to in sync.routes if carried_to == destination), destination)
    folder = os.path.join(os.path.join(where.work, "outputs") if where.kind == "s3" else where.base, "results_dir")
    os.makedirs(folder, exist_ok=True)
    if where.kind == "s3":
        sync.add(folder, where.base + "/results_dir")
    if not kept:
        kept["results_dir"] = where.base + "/results_dir"
    return folder


# -- resume ------------------------------------------------------------------------------------------------------------


def checkpoint_rank(name: str, modified: Any) -> tuple[Any, ...]:
    """Newest training position first: by epoch and step in the name, else by time."""
    import re

    found = [int(number) for number in re.findall(r"(?:epoch|step|iter|iteration)[_=-]?(\d+)", name.lower())]
    return (1, tuple(found), modified) if found else (0, (), modified)


def valid_checkpoint(path: str) -> bool:
    """Whether a checkpoint file is whole, as far as its format tells: a job may have died while it wrote it."""
    import zipfile

    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError:
        return False
    if head[:2] == b"PK":  # torch.save and numpy write zip files: their directory stands at the very end
        try:
            with zipfile.ZipFile(path) as archive:
                return bool(archive.namelist())
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
            return False
    if head[:8] == b"\x89HDF\r\n\x1a\n" and len(head) == 64:  # the header of HDF5 says how long the file is
        start = {0: 40, 1: 44}.get(head[8], 28)
        return size >= int.from_bytes(head[start : start + 8], "little")
    return size >= 64


def newest_checkpoint(folders: Sequence[str]) -> str | None:
    """The newest whole checkpoint in the job's own output folders, or None."""
    found = []
    for folder in folders:
        for base, names_below, names in os.walk(folder):
            names_below[:] = [name for name in names_below if name not in NOT_OURS]
            found += [os.path.join(base, name) for name in names if name.endswith(CHECKPOINTS)]
    found = [path for path in found if os.path.isfile(path)]  # a link may point at what is gone
    # A "latest" link or copy has no position in its name; it comes after those that have one.
    for path in sorted(found, key=lambda p: checkpoint_rank(os.path.basename(p), os.path.getmtime(p)), reverse=True):
        if valid_checkpoint(path):
            return path
        say("checkpoint %s is not whole, looking at the one before" % path)
    return None


def _listed(destination: str, module: Any, store: Any) -> Any:
    return module.find(store, destination.rstrip("/") + "/")


def restore_checkpoint(destinations: Sequence[str], work: str) -> str | None:
    """Fetch the newest whole checkpoint of an earlier attempt from s3, where this container's disk is new."""
    found = []
    for destination in destinations:
        try:
            items = with_store("inputs", partial(_listed, destination))
        except NothingThere:
            continue
        for below, item in items.items():
            if below.endswith(CHECKPOINTS) and not set(below.split("/")) & set(NOT_OURS):
                uri = "%s/%s" % (destination.rstrip("/"), below)
                found.append((checkpoint_rank(os.path.basename(below), item.modified), uri))
    for _, uri in sorted(found, reverse=True)[:5]:
        target = os.path.join(work, "resume", safe_name(os.path.dirname(uri)), os.path.basename(uri))
        fetch_s3(uri, target)
        if valid_checkpoint(target):
            return target
        say("checkpoint %s is not whole, looking at the one before" % uri)
    return None


def resume(tree: Any, kept: Mapping[str, str], where: Where, again: bool) -> None:
    """Point empty resume keys at the newest checkpoint of this job's earlier attempts; never at a pretrained one."""
    if os.environ.get("TAO_AUTO_RESUME", "1") == "0":
        return
    # What lies in a folder that others may use too is ours only when we have been there; never in all jobs' root.
    places = [
        place for place in kept.values() if is_below(place, where.base) or (again and not is_below(where.base, place))
    ]
    found = newest_checkpoint([place for place in places if os.path.isdir(place)])
    if not found and again:
        found = restore_checkpoint([place for place in places if place.startswith("s3://")], where.work)
    if found:
        say("resuming from %s" % found)
        os.environ["TAO_RESUME_CHECKPOINT"] = found
        for pointer, value in list(walk(tree)):
            if _leaf(pointer) == RESUME_LEAF and value in UNSET:
                set_pointer(tree, pointer, found)


# -- the attempt's record, which is also the exit marker ---------------------------------------------------------------


class Record:
    """`attempts/<n>.json`: written at the start, and once more as the very last act. Its end is the exit marker."""

    ROOM = 8192  # taken at the start for what the end adds, so that a full disk cannot swallow the exit marker

    def __init__(self, where: Where) -> None:
        rank = int(os.environ.get("NODE_RANK") or 0)
        attempt = int(os.environ.get("TAO_ATTEMPT") or 1)
        name = "attempts/%d.json" % attempt if rank == 0 else "attempts/%d.rank%d.json" % (attempt, rank)
        self.remote = "%s/%s" % (where.base, name) if where.kind == "s3" else None
        self.path = os.path.join(where.work if where.kind == "s3" else where.base, name)
        self.rank = rank
        self.phase = "inputs"
        self.facts: dict[str, Any] = {
            "name": os.environ.get("TAO_JOB_NAME", ""),
            "key": os.environ.get("TAO_JOB_ID", ""),
            "attempt": attempt,
            "native_id": os.environ.get("TAO_NATIVE_ID", ""),
            "restarts": int(os.environ.get("TAO_RESTARTS") or 0),
            "rank": rank,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "started": time.time(),
        }

    def is_repeated(self) -> bool:
        """Whether the job has run before: an earlier attempt, or this one, started anew by its platform."""
        if self.facts["attempt"] > 1 or self.facts["restarts"]:
            return True
        if not self.remote:
            return os.path.exists(self.path)
        try:
            with_store("inputs", lambda module, store: module.find(store, self.remote))
        except NothingThere:
            return False
        except RunnerError as error:
            say("%s; taken for the first start" % error)
            return False
        return True

    def write(self, **facts: Any) -> None:
        self.facts.update(facts)
        data = json.dumps(self.facts, ensure_ascii=False).encode("utf-8", "replace")
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            write_atomic(self.path, data.ljust(len(data) + self.ROOM))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not os.path.exists(self.path):
                raise
            with open(self.path, "r+b", buffering=0) as file:
                file.write(data.ljust(os.path.getsize(self.path)))
        if self.remote:
            upload([(self.path, self.remote, False, lambda: None)])

    def end(self, code: int, ended_by: str, error: str) -> None:
        try:
            facts = {"exit_code": code, "ended_by": ended_by, "phase": self.phase, "error": error[:1000]}
            self.write(ended=time.time(), **facts)
        except (OSError, RunnerError) as problem:
            say("the exit marker could not be written: %s" % problem)


# -- the command -------------------------------------------------------------------------------------------------------


def stop_reason() -> str:
    """Why we are being stopped: whoever cancels says so in a file first; a bare signal means we must make room."""
    try:
        with open(os.environ["TAO_STOP_FILE"], encoding="utf-8") as file:
            said = file.read().strip()
    except (KeyError, OSError):
        return "preempt"
    return said if said in ENDINGS else "cancel"


class Command:
    """The user's command as its own process group, with the signals that reach us passed on to all of it."""

    def __init__(self, time_limit: float | None, grace: float) -> None:
        self.pid = 0  # until it is started
        self.ended_by = "none"
        self.time_limit = time_limit
        self.grace = grace
        self.kill_at: float | None = None
        self.stopping = False
        self.warned = False
        self.is_hurried = False  # somebody wants us to end
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop(stop_reason()))
        signal.signal(signal.SIGUSR1, lambda *_: self._near_the_wall())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, lambda *_: self._alarm())

    def listen(self) -> None:
        """Let signals in, which have waited so far; the time limit begins."""
        signal.setitimer(signal.ITIMER_REAL, self.time_limit or 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def stop(self, reason: str) -> None:
        """Ask the command to end, once; raises Stopped when it has not been started yet."""
        self.is_hurried = True
        if self.stopping:
            return
        self.stopping = True
        self.ended_by = "time_limit" if self.warned and reason == "preempt" else reason
        if not self.pid:
            raise Stopped
        say("stopping the command (%s)" % self.ended_by)
        self.kill_at = time.monotonic() + self.grace
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        signal.setitimer(signal.ITIMER_REAL, max(self.grace, 0.001))

    def _near_the_wall(self) -> None:
        self.warned = True
        say("the time limit is near")

    def _alarm(self) -> None:
        if not self.stopping:
            self.stop("time_limit")
        elif self.pid:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass

    def run(self, argv: list[str], keep_fds: Sequence[int] = ()) -> int:
        """Run to the end; returns the exit code, 128+n where signal n ended it."""
        for descriptor in keep_fds:
            os.set_inheritable(descriptor, True)
        defaults = STOPS + (signal.SIGUSR1, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
            self.pid = os.posix_spawn(argv[0], argv, os.environ, setpgroup=0, setsigdef=defaults, setsigmask=[])
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        # The leader stays a zombie for now: as long as it does, nothing else can have the group's number.
        ended: Any = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.stopping = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._end_leftovers()
        return int(ended.si_status) + (0 if ended.si_code == os.CLD_EXITED else 128)

    def _end_leftovers(self) -> None:
        """What the command left in its group must not go on unwatched. Asked to stop, it has the whole grace."""
        deadline = self.kill_at
        if deadline is None:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + LEFTOVER_SECONDS
        os.waitpid(self.pid, 0)
        while self._lives() and time.monotonic() < deadline + LEFTOVER_SECONDS:
            if time.monotonic() >= deadline:
                self._signal(signal.SIGKILL)
            time.sleep(0.02)

    def _lives(self) -> bool:
        """Whether anything of the group still runs; the dead whom nobody has counted off yet do not."""
        try:
            os.killpg(self.pid, 0)
        except OSError:
            return False
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/stat" % entry, "rb") as file:
                    state, _, group = file.read().rpartition(b")")[2].split()[:3]
            except OSError:
                continue
            if int(group) == self.pid and state not in (b"Z", b"X"):
                return True
        return False


def shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def plain_path(path: str) -> str:
    """`path`, or a link to it that a shell needs no quotes for: nobody knows how the command quotes it."""
    if all(char.isalnum() or char in "/._-+=:@%," for char in path):
        return path
    import tempfile

    link = os.path.join(tempfile.mkdtemp(prefix="tao-"), os.path.basename(path))
    os.symlink(path, link)
    return link


def option(name: str) -> str:
    """An option as its command wants it, given as verbose, --verbose or -v."""
    return name if name.startswith("-") else "--" + name


def command_line(plan: Plan, tree: Any, work: str) -> list[str]:
    """The command as an argument list; argument values reach it as they are, without passing through a shell."""
    command = plan["command"]
    if plan["mode"] == "config":
        path = os.path.join(work, "spec.%s" % plan["config_format"])
        write_atomic(path, config_text(tree, plan["config_format"]).encode())
        return [shell(), "-c", command.replace("{config_path}", plain_path(path))]
    if plan["mode"] == "passthrough":
        return [shell(), "-c", command]
    words = []
    for key, value in tree.items():
        if value is None or value is False:
            continue
        words.append(option(key))
        if value is not True:
            words += [str(item) for item in value] if isinstance(value, list) else [str(value)]
    words += [option(flag) for flag in plan["flags"]]
    return [shell(), "-c", command.rstrip() + ' "$@"', "tao"] + words


# -- start to end ------------------------------------------------------------------------------------------------------


def take_secrets() -> None:
    """Read the secrets file into the environment and remove it, unless whoever made it keeps it for a requeue."""
    path = os.environ.pop("TAO_SECRETS_FILE", None)
    keep = os.environ.pop("TAO_SECRETS_KEEP", "0") == "1"
    if path and (keep or os.path.exists(path)):  # what is kept is there; without it the command would run unarmed
        with open(path, encoding="utf-8") as file:
            secrets = json.load(file)
        os.environ.update({name: str(value) for name, value in secrets.items()})
        if not keep:
            os.unlink(path)
    for ours, theirs in (
        ("ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
        ("SECRET_KEY", "AWS_SECRET_ACCESS_KEY"),
        ("S3_ENDPOINT_URL", "AWS_ENDPOINT_URL"),
        ("CLOUD_REGION", "AWS_REGION"),
        ("NGC_KEY", "NGC_CLI_API_KEY"),
    ):
        if os.environ.get(ours):
            os.environ.setdefault(theirs, os.environ[ours])


def prepare(plan: Plan, where: Where, record: Record, sync: Sync) -> list[str]:
    """All that comes before the command: outputs, inputs, resume, spec. Returns the command's argument list."""
    again = record.is_repeated()
    record.write()
    tree = plan["specs"] if plan["mode"] == "config" else plan["args"]
    if plan.get("workdir"):
        os.chdir(plan["workdir"])
    kept = choose_outputs(plan, tree, where, sync)
    os.environ["TAO_RESULTS_DIR"] = results_folder(kept, where, sync)
    if where.kind == "mount":
        os.environ.setdefault("TAO_API_RESULTS_DIR", os.path.dirname(where.base))
    if record.rank:
        del sync.routes[:]  # every node sees the same outputs; one of them carries them
    if any(destination.startswith("s3://") for _, destination in sync.routes):
        with_store("inputs", lambda *_: None)  # says now, not after hours, that the image cannot reach s3
    fetch_inputs(plan, tree, where.work)
    resume(tree, kept, where, again)
    record.phase = "spec"
    argv = command_line(plan, tree, where.work)
    record.write(outputs=kept)
    return argv


def described(error: Exception) -> str:
    """What went wrong, for people: our own errors and the system's speak for themselves."""
    known = isinstance(error, (RunnerError, OSError, ValueError))
    return str(error) if known else "%s: %s" % (type(error).__name__, error)


def run(plan: Plan, keep_fds: Sequence[int] = ()) -> int:
    """Everything from the plan to the exit code."""
    command = Command(plan.get("time_limit"), plan.get("grace", 20))
    no_secrets = None
    try:
        take_secrets()  # they may say where the results go
    except Exception as error:
        no_secrets = RunnerError("inputs", "the secrets file could not be read and removed: %s" % described(error))
    where = Where(os.environ.setdefault("TAO_JOB_ID", "job-" + os.urandom(4).hex()))
    if where.kind == "ephemeral":
        say("WARNING: no TAO_RESULTS_ROOT, no S3_BUCKET_NAME: results stay in %s and end with it" % where.base)
    record = Record(where)
    sync = Sync(plan["upload_excludes"], where.not_outputs())
    code, problem = RUNNER_FAILED, ""
    try:
        try:
            command.listen()
            if no_secrets:
                raise no_secrets
            argv = prepare(plan, where, record, sync)
            sync.start(plan.get("sync_interval", 60))
            record.phase = "command"
            code = command.run(argv, keep_fds)
        except Exception as error:
            record.phase, problem = getattr(error, "phase", record.phase), described(error)
        finally:
            command.stopping = True  # from here on no signal keeps us from carrying away what is there
    except Stopped:
        code, problem = 128 + signal.SIGTERM, "stopped before the command was started"
    if problem:
        say("ERROR in %s: %s" % (record.phase, problem))
    try:
        sync.finish(lambda: command.is_hurried)
    except Exception as error:
        say("ERROR: outputs were not all saved: %s" % described(error))
        if code == 0:
            code, record.phase, problem = RUNNER_FAILED, "outputs", described(error)
    record.end(code, command.ended_by, problem)
    return code


def main(argv: Sequence[str] | None = None, keep_fds: Sequence[int] = ()) -> NoReturn:
    """Run the plan in the file that the first argument names; leaves with the command's own exit code."""
    path = (argv or sys.argv[1:])[0]
    with open(path, encoding="utf-8") as file:
        plan = json.load(file)
    code = run(plan, keep_fds)
    os._exit(code)  # transfer threads of a stopped run must not hold up the end


if __name__ == "__main__":
    main()
