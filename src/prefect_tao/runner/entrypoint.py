"""Builds what a container is given to run: the runner program, and the plan that says what to do.

Pure: nothing is read or written but the files of this package's own program.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.request import InputRule, JobRequest, OutputRule, check_values, invalid_fields
from prefect_tao.runner import inside
from prefect_tao.runner.inside.pointers import UNSET, get_pointer, parse_pointer, walk
from prefect_tao.runner.inside.schemes import is_local, is_location
from prefect_tao.runner.terse import terse
from prefect_tao.storage.known_schemes import scheme_for, travelling

Mode = Literal["config", "args", "passthrough"]
Rule = TypeVar("Rule", InputRule, OutputRule)
CONFIG_FORMATS = ("yaml", "toml", "json")
PLAN_FILE = "plan.json"
PROGRAM_FILE = "runner.py"
PACKAGE = "inside"
# An isolated Python does not look beside the file that it runs.
_START = f"""import os, sys; sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from {PACKAGE}.main import main; main()
""".encode()


@dataclass(frozen=True)
class Entrypoint:
    """The plan of one job. Platforms that can place files use `files`; the others run `script()`."""

    mode: Mode
    plan: Mapping[str, Any]

    @property
    def files(self) -> dict[str, bytes]:
        """The program and its plan, to be run as `python3 runner.py plan.json` in the folder they are placed in."""
        return {**program_files(), PROGRAM_FILE: _START, PLAN_FILE: json.dumps(self.plan).encode()}

    def __getitem__(self, name: str) -> EntrypointCommand:
        """`["command"]` is the script, as the TAO SDK gives it; a job that is created with it runs this very plan."""
        if name != "command":
            raise KeyError(name)
        return EntrypointCommand(self)

    def script(self) -> str:
        """One shell text that holds program and plan; a plan of any size fits, because it is a here-document."""
        return (
            "command -v python3 >/dev/null || { echo '[prefect-tao] the image has no python3, which the job needs'; "
            "exit 127; }\n"
            "d=$(mktemp -d) && "
            f"python3 -S -c '{_UNPACK}' \"$d\" <<'TAO_EOF' && "
            f'exec python3 -S -B "$d/{PROGRAM_FILE}" "$d/{PLAN_FILE}"\n'
            f"{_packed({**_terse_files(), PLAN_FILE: json.dumps(self.plan).encode()})}\nTAO_EOF\n"
        )


class EntrypointCommand(str):
    """The script of an entrypoint, which knows what it was made from."""

    entrypoint: Entrypoint

    def __new__(cls, entrypoint: Entrypoint) -> EntrypointCommand:
        made = super().__new__(cls, entrypoint.script())
        made.entrypoint = entrypoint
        return made


# What `_packed` has made becomes files again; a file's folder is made with it.
_UNPACK = """import base64,os,sys,zlib
t=zlib.decompress(base64.b85decode(sys.stdin.read().strip())).split(b"\\0")
for n,c in zip(t[::2],t[1::2]):
 p=os.path.join(sys.argv[1],n.decode())
 d=os.path.dirname(p)
 os.path.isdir(d) or os.makedirs(d)
 open(p,"wb").write(c)"""


def program_files() -> dict[str, bytes]:
    """The files of the in-container program: {path beside the plan: content}, registered storage schemes among them."""
    return {**_own_files(), **{f"{PACKAGE}/{name}": source for name, source in travelling().items()}}


@cache
def _own_files() -> dict[str, bytes]:
    """As they stand in this package."""
    folder = Path(inside.__file__).parent
    found = {f"{PACKAGE}/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*.py")}
    # What is loaded together stands together, which also makes it smaller where it is packed.
    names = sorted(found, key=lambda name: (not is_for_every_job(name), name))
    return {name: found[name].read_bytes() for name in names}


def is_for_every_job(name: str) -> bool:
    """Whether any job may load this file of the program; what lies deeper is for jobs with storage."""
    return name.startswith(f"{PACKAGE}/") and name.count("/") == 1


def embedded_program() -> str:
    """The program alone as the text that a script embeds."""
    return _packed(_terse_files())


def _packed(files: Mapping[str, bytes]) -> str:
    """Files as one line of text; compressed together, because they are alike, and in the shortest letters there are."""
    whole = b"\0".join(part for name, data in files.items() for part in (name.encode(), data))
    return base64.b85encode(zlib.compress(whole, 9)).decode()


def _terse_files() -> dict[str, bytes]:
    """The program without what only people read, and what starts it."""
    return {**{name: _terse(data) for name, data in program_files().items()}, PROGRAM_FILE: _START}


_terse = cache(terse)


def build_entrypoint(
    command: str,
    *,
    specs: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | Sequence[str] | None = None,
    config_format: str = "yaml",
    upload_excludes: Sequence[str] = (),
    flags: Sequence[str] = (),
    workdir: str | None = None,
    time_limit: float | None = None,
    sync_interval: float = 60.0,
    grace: float = 20.0,
) -> Entrypoint:
    """The entrypoint for `command`; its mode follows from what is given.

    | given   | mode        | what happens                                                     |
    |---------|-------------|------------------------------------------------------------------|
    | specs   | config      | the spec is written to a file, `{config_path}` in the command names it |
    | args    | args        | `--key value` and `--flag` are appended, without a shell in between |
    | neither | passthrough | the command runs as it is                                        |
    | both    |             | InvalidInput                                                     |

    Raises InvalidInput for anything that could not run.
    """
    mode = _mode(command, specs, args)
    tree = _plain(dict(specs if specs is not None else args or {}))
    if flags and mode != "args":
        raise InvalidInput(f"flags were given ({', '.join(flags)}) without args", "write them into the command")
    if config_format not in CONFIG_FORMATS:
        raise InvalidInput(f"config_format is {config_format!r}", f"use one of {', '.join(CONFIG_FORMATS)}")
    plan = {
        "mode": mode,
        "command": command,
        "specs": tree if mode == "config" else {},
        "args": tree if mode == "args" else {},
        "flags": list(flags),
        "inputs": _inputs(mode, dict(inputs or {}), tree),
        "outputs": _outputs(mode, outputs),
        "config_format": config_format,
        "upload_excludes": list(upload_excludes),
        "workdir": workdir,
        "time_limit": time_limit,
        "sync_interval": sync_interval,
        "grace": grace,
    }
    if mode == "args":
        _check_args(tree, plan["outputs"])
    elif mode == "config":
        _check_spec(tree, config_format, plan["outputs"])
    for key in plan["outputs"] if mode != "passthrough" else ():
        _check_destination(key, get_pointer(tree, key))
    return Entrypoint(mode, plan)


def entrypoint_for(request: JobRequest, **overrides: Any) -> Entrypoint:
    """The entrypoint of a request."""
    return build_entrypoint(
        request.command,
        specs=request.specs,
        args=request.args,
        inputs=request.inputs,
        outputs=request.outputs,
        config_format=request.config_format,
        upload_excludes=request.upload_excludes,
        flags=request.flags,
        workdir=request.workdir,
        time_limit=request.resources.time_limit,
        **overrides,
    )


def input_locations(request: JobRequest) -> dict[str, tuple[str, InputRule]]:
    """Where each declared input is, by the place that names it: what has to be visible to the job before it starts."""
    tree = request.specs if request.specs is not None else request.args or {}
    found: dict[str, tuple[str, InputRule]] = {}
    for key, rule in request.inputs.items():
        if isinstance(rule, str):
            found[key] = (rule, InputRule())
            continue
        value = get_pointer(tree, key)
        for index, uri in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(uri, str) and uri not in UNSET and (rule.type != "list" or is_location(uri)):
                found[f"{key}[{index}]" if isinstance(value, list) else key] = (uri, rule)
    return found


def _mode(command: str, specs: object, args: object) -> Mode:
    if not command.strip():
        raise InvalidInput("the command is empty", "say what to run, for example python train.py")
    if "\0" in command:
        raise InvalidInput("the command holds a NUL character", "remove it; programs cannot take one")
    if specs is not None and args is not None:
        raise InvalidInput("both specs and args were given", "give specs for a config file, or args for arguments")
    if specs is not None:
        return "config"
    return "args" if args is not None else "passthrough"


def _inputs(mode: Mode, inputs: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, rule in inputs.items():
        if mode == "passthrough":
            if not isinstance(rule, str):
                raise InvalidInput(
                    f"input {key}: a plain command takes {{path in the container: location}}",
                    f"write inputs={{'/data/train': 's3://bucket/train'}} instead of a rule for {key}",
                )
            plain[key] = rule
            continue
        if isinstance(rule, str):
            raise InvalidInput(
                f"input {key}: with specs or args the location is the value at {key}, and the input is a rule",
                f"put {rule} into the spec at {key} and declare inputs={{'{key}': {{'type': 'file'}}}}",
            )
        _check_pointer(key)
        if mode == "args" and key not in tree:
            raise InvalidInput(f"input {key} is declared, but there is no argument {key}", "add it to args")
        plain[key] = _rule(InputRule, key, rule).model_dump(exclude_none=True)
    return plain


def _outputs(mode: Mode, outputs: Mapping[str, Any] | Sequence[str] | None) -> Any:
    if mode == "passthrough":
        if isinstance(outputs, Mapping) and outputs:
            raise InvalidInput("a plain command takes outputs as a list of paths", "write outputs=['/results']")
        if outputs and not all(outputs):
            raise InvalidInput("an output without a path was given", "name the folder that the command writes")
        return list(outputs or ())
    if outputs and not isinstance(outputs, Mapping):
        raise InvalidInput(
            "with specs or args, outputs are keys of the spec", "write outputs={'results_dir': {'type': 'folder'}}"
        )
    plain = {}
    for key, rule in dict(outputs or {}).items():  # type: ignore[arg-type]
        _check_pointer(key)
        plain[key] = _rule(OutputRule, key, rule).model_dump()
    return plain


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """The values as JSON has them: tuples become lists, and nothing is shared with the caller."""
    try:
        check_values(values)
        plain: dict[str, Any] = json.loads(json.dumps(values, ensure_ascii=False).encode())
    except ValueError as error:
        raise InvalidInput(str(error), "correct the value and launch again") from None
    return plain


def _rule(kind: type[Rule], key: str, given: Any) -> Rule:
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{key}: {given!r} is not a rule", f"write for example {{'{key}': {{'type': 'file'}}}}")
    try:
        return kind(**given)
    except ValidationError as error:
        problem = invalid_fields(error)
        raise InvalidInput(f"{key}: {problem.cause}", problem.remedy, problem.findings) from None


def _check_args(args: dict[str, Any], outputs: Mapping[str, Any]) -> None:
    for key in outputs:
        args.setdefault(key, None)  # the runner gives it its value
    for key, value in args.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, (dict, list)):
                raise InvalidInput(
                    f"the argument {key} is nested", "arguments are text, numbers, true/false or a flat list of them"
                )
            if isinstance(item, str) and "\0" in item:
                raise InvalidInput(f"the argument {key} holds a NUL character", "remove it; programs cannot take one")


def _check_destination(key: str, value: Any) -> None:
    if value is None or (isinstance(value, str) and is_local(value)):
        return
    scheme = scheme_for(value) if isinstance(value, str) else None
    if scheme is None or not scheme.keeps:
        raise InvalidInput(
            f"output {key}: results cannot be kept at {value!r}", "give s3://bucket/folder, a path, or nothing at all"
        )


def _check_pointer(key: str) -> None:
    try:
        parse_pointer(key)
    except ValueError as error:
        raise InvalidInput(
            str(error), "pointers into a spec look like dataset.train_data_sources[0].image_dir"
        ) from None


def _check_spec(spec: dict[str, Any], config_format: str, outputs: Mapping[str, Any]) -> None:
    for key in _dotted_keys(spec):
        raise InvalidInput(
            f"the spec has the flat key {key!r}",
            f"specs are nested maps: write {_nested_example(key)}; dotted keys are only pointers (--set {key}=...)",
        )
    if config_format == "toml":
        for pointer, value in walk(spec):
            if value is None and pointer not in outputs:
                raise InvalidInput(f"{pointer} is null, which TOML cannot hold", "remove the key or give it a value")


def _dotted_keys(tree: Any) -> list[str]:
    if isinstance(tree, Mapping):
        own = [key for key in tree if "." in key and not key.startswith(".")]
        return own or [found for value in tree.values() for found in _dotted_keys(value)]
    if isinstance(tree, list):
        return [found for value in tree for found in _dotted_keys(value)]
    return []


def _nested_example(key: str) -> str:
    parts = key.split(".")
    return "{" + ": {".join(parts) + ": ..." + "}" * len(parts)
