"""The house keeps its order: arrows point one way, the engine knows no Prefect, the wheel holds the tree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAPPED = ("flows", "tasks", "blocks", "deployments", "examples")
ENGINE = ("jobs", "storage", "launch", "runner", "platforms", "preflight", "catalog", "searching")
SHARED = {"ssh"}  # a folder that drivers share, and not a platform
FOLDERS = {path.parent.name for path in (ROOT / "src" / "prefect_tao" / "platforms").glob("*/__init__.py")}
SETTINGS = sorted(FOLDERS - SHARED)
LOWER = {
    "jobs": {"jobs", "runner.inside"},
    "storage": {"jobs", "runner.inside", "storage"},
    "runner": {"jobs", "storage", "runner"},
    "catalog": {"catalog"},
    "platforms": {"environment", "jobs", "storage", "runner", "catalog", "platforms"},
    "preflight": {"searching", "jobs", "launch.parameters", "storage", "runner", "catalog", "platforms", "preflight"},
    "launch.parameters": {"jobs", "launch.parameters"},
    "launch": {"environment", "jobs", "launch", "storage", "runner", "catalog", "platforms", "preflight"},
    "searching": {"jobs", "storage", "runner", "catalog", "searching"},
    "server": {"jobs", "settings", "server"},
    "blocks": {"blocks", "environment", "platforms.fields", *(f"platforms.{name}.settings" for name in SETTINGS)},
    "examples": {"examples"},
    "tasks": {*ENGINE, "environment", "blocks", "server", "tasks"},
    "flows": {*ENGINE, "settings", "blocks", "tasks", "flows"},
    "sdk": {*ENGINE, "settings", "tasks", "sdk"},
    "deployments": {*ENGINE, "blocks", "server", "tasks", "flows", "deployments"},
    "testing": {"jobs", "platforms", "testing"},
    "settings": set(),
    "environment": {"jobs"},
}
ROOF = ("cli", "__init__")
INSIDE = ROOT / "src" / "prefect_tao" / "runner" / "inside"


def sources() -> dict[str, Path]:
    """Every module of the package by its dotted name below `prefect_tao`."""
    found = {}
    for top in (ROOT / "src" / "prefect_tao", *(ROOT / name for name in MAPPED)):
        base = top if top.name == "prefect_tao" else top.parent
        for path in top.rglob("*.py"):
            found[".".join(path.relative_to(base).with_suffix("").parts)] = path
    return found


def imports(path: Path) -> list[str]:
    """All modules that a file imports, late imports included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or INSIDE in path.parents, f"{path}: imports are absolute here"
            found += [f"{_whole_name(node, path)}.{alias.name}" for alias in node.names]
    return found


def _whole_name(node: ast.ImportFrom, path: Path) -> str:
    """The module of an import by its absolute name."""
    above = path.relative_to(ROOT / "src").parts[: -node.level] if node.level else ()
    return ".".join((*above, *filter(None, [node.module])))


def test_arrows_point_one_way() -> None:
    wrong = []
    for module, path in sources().items():
        if module.split(".")[0] in ROOF:
            continue
        room = max((room for room in LOWER if f"{module}.".startswith(f"{room}.")), key=len)
        for name in imports(path):
            if name.startswith("prefect_tao."):
                below = name.removeprefix("prefect_tao.")
                if not any(below == allowed or below.startswith(allowed + ".") for allowed in LOWER[room]):
                    wrong.append(f"{module} -> {name}")
    assert not wrong


def test_what_travels_into_a_job_takes_nothing_from_outside_its_folder() -> None:
    """It has no package around it there. A test of the entrypoint sees to the imports that are absolute."""
    named = {
        _whole_name(node, path)
        for path in INSIDE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    }
    assert named
    assert not [name for name in named if not f"{name}.".startswith("prefect_tao.runner.inside.")]


def test_the_engine_never_names_prefect() -> None:
    named = [
        f"{module}: {name}"
        for module, path in sources().items()
        if module.split(".")[0] not in MAPPED
        for name in imports(path)
        if name == "prefect" or name.startswith("prefect.")
    ]
    assert not named


def test_only_the_roof_names_flows() -> None:
    named = {
        module
        for module, path in sources().items()
        if module.split(".")[0] not in ("flows", "deployments")
        for name in imports(path)
        if name.startswith("prefect_tao.flows")
    }
    assert named <= {"__init__", "cli.running"}


DRIVER_FILES = {"settings", "render", "client", "observe", "submit", "probes", "driver"}
LONGEST_FUNCTION = 60
PAGE = ROOT / "docs" / "architecture.md"


def recurring(names: Iterable[str]) -> set[str]:
    return {name for name, times in Counter(names).items() if times > 1}


def test_a_file_name_stands_for_one_thing() -> None:
    names = [module.split(".")[-1] for module in sources()]
    assert recurring(names) <= DRIVER_FILES | {"__init__", "__main__"}


def test_a_class_name_stands_for_one_thing() -> None:
    trees = [ast.parse(path.read_text()) for path in sources().values()]
    names = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert not recurring(names)


def test_functions_are_short() -> None:
    long = [
        f"{module}: {node.name}"
        for module, path in sources().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert not long


def test_the_page_shows_the_rooms_and_their_arrows() -> None:
    rows = re.findall(r"^\| `([a-z.]+)` \| [^|]+ \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [room for room, _ in rows] == list(LOWER)
    for room, uses in rows:
        shown = set(re.findall(r"`([a-z.]+)`", uses)) - ({"settings"} if room == "blocks" else set())
        really = {name for name in LOWER[room] if not name.endswith(".settings")} - {room}
        assert shown == really, room


def test_the_files_that_the_page_names_are_there() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+(?:\.py)?)`", PAGE.read_text())
    assert named
    there = [name for name in named if any((top / name).exists() for top in (ROOT, ROOT / "src" / "prefect_tao"))]
    assert there == named


def test_only_tests_use_what_ships_for_tests() -> None:
    named = {
        module
        for module, path in sources().items()
        if module.split(".")[0] != "testing"
        for name in imports(path)
        if name.startswith("prefect_tao.testing")
    }
    assert not named


def test_importing_the_engine_imports_neither_prefect_nor_a_platform_sdk() -> None:
    modules = [
        f"prefect_tao.{module.removesuffix('.__init__')}"
        for module in sources()
        if module.split(".")[0] in (*ENGINE, "sdk", "server", "settings", "environment", "cli")
        and module.split(".")[0] != "searching"  # Optuna's own room, which the others enter only when they search
        and not module.endswith(("__main__", "starter"))
    ]
    heavy = ("prefect", "paramiko", "docker", "boto3", "kubernetes_asyncio", "leptonai", "optuna")
    code = f"import sys, {', '.join(modules)}\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_list_is_the_tree() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {
        ".".join(("prefect_tao", *module.split(".")[:-1]))
        for module in sources()
        if module.split(".")[-1] == "__init__"
    }
    assert set(listed) == there


PLAIN = ("pydantic", "typing", "__future__", "collections", "inspect", "prefect_tao.platforms.fields")


def test_blocks_need_prefect_pydantic_and_the_settings_of_platforms_only() -> None:
    allowed = (*PLAIN, "prefect.", "prefect_tao.blocks", "prefect_tao.environment", "prefect_tao.platforms")
    wrong = [
        name
        for module, path in sources().items()
        if module.startswith("blocks")
        for name in imports(path)
        if not name.startswith(allowed)
    ]
    assert not wrong


def test_the_settings_of_a_platform_need_pydantic_only() -> None:
    declarations = {
        module: path
        for module, path in sources().items()
        if module == "platforms.fields" or (module.startswith("platforms.") and module.endswith(".settings"))
    }
    assert set(declarations) == {"platforms.fields", *(f"platforms.{name}.settings" for name in SETTINGS)}
    assert not [
        f"{module}: {name}"
        for module, path in declarations.items()
        for name in imports(path)
        if not name.startswith(PLAIN)
    ]


def test_nothing_committed_names_a_registry_host_or_stores_a_secret_reference() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    hosts = ("pypi" + ".org", "python" + "hosted.org", "deb.debian" + ".org", "registry.npmjs" + ".org")
    for name in files:
        text = (ROOT / name).read_text(errors="replace") if (ROOT / name).is_file() else ""
        assert not [host for host in hosts if host in text], name
    assert "prefect.blocks" not in (ROOT / "prefect.yaml").read_text()


@pytest.mark.xdist_group("alone")
def test_tests_that_share_a_service_stay_on_one_worker(request: pytest.FixtureRequest) -> None:
    # xdist tells groups by the end of the test's id; where that gets lost, every worker starts services of its own.
    grouped = bool(getattr(request.config.option, "loadgroup", False))
    assert request.node.nodeid.endswith("@alone") == grouped
