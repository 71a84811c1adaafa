"""A browser, and runs worth looking at: good, failed, refused, waiting for a person."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import debian
import pytest
from boxed import MODEL, PLATFORMS
from browser import Browser
from deployed import ROOT, begin
from prefect_tools import Api, wait_for

PICTURES = ROOT / "test-output" / "ui"
CALLS = """
import json, sys, prefect, prefect_tao
from prefect_tao.jobs.errors import TaoError
for name, (flow, parameters) in json.loads(sys.argv[1]).items():
    try:
        with prefect.tags("page-" + name):
            getattr(prefect_tao, flow)(**parameters)
    except TaoError as error:
        print(error)
"""
FAILING = (
    """python3 -c 'print("loading the model"); raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")'"""
)
SUBMIT = "[...document.querySelectorAll('button')].find(one => one.textContent.trim() === 'Submit')"
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "sweep": (
        "sweep",
        {"model": "tiny", "action": "train", "over": {"train.optim.lr": [0.1, 0.5]}, "overrides": {"num_epochs": 2}},
    ),
    "chain": (
        "chain",
        {"model": "tiny", "steps": [{"action": "train"}, {"action": "export"}], "overrides": {"num_epochs": 4}},
    ),
    "search": (
        "automl",
        {"model": "tiny", "action": "train", "overrides": {"num_epochs": 2}, "max_trials": 7, "max_concurrent": 2},
    ),
    "failed": ("run", {"command": FAILING}),
    "refused": ("run", {"model": "dino", "action": "train", "target": "lepton", "train_root": "/mnt/nowhere"}),
}


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A real browser; a test that fails leaves its last picture too."""
    try:
        debian.ensure({"chromium": "chromium"})
    except debian.Missing as missing:
        pytest.skip(str(missing))
    running = Browser(tmp_path_factory.mktemp("browser"), PICTURES)
    yield running
    running.stop()


@dataclass
class Look:
    """One of Prefect's two UIs, in the browser."""

    browser: Browser
    base: str
    version: str

    def open(self, path: str, *words: str) -> str:
        """Open a page and wait until it says these words; its text."""
        self.browser.open(f"{self.base}{'/v2' if self.version == 'v2' else ''}{path}")
        return self.browser.sees(*words)

    def follow(self, link: str, *words: str) -> str:
        """Go where the first link of this name points to; one UI would open another tab for it."""
        named = f"[...document.querySelectorAll('a')].find(one => one.textContent.trim() === {link!r})"
        self.browser.open(wait_for(lambda: self.browser.script(f"({named} || {{}}).href"), 20))
        return self.browser.sees(*words)

    def submit(self) -> None:
        """Start what the form says, and press once more where the page has not heard it, as a person would.

        The button itself is pressed, not the place where it stands: that moves while so long a page is drawn.
        """
        for _ in range(3):
            self.browser.script(f"{SUBMIT}.click()")
            with contextlib.suppress(AssertionError):
                wait_for(lambda: not self.browser.script("location.pathname").endswith("/run"), 20)
                return
        raise AssertionError(f"the form stays: {self.browser.text()[:3000]!r}; see {self.browser.picture('stays')}")

    def picture(self, name: str) -> None:
        self.browser.picture(f"{name}-{self.version}")


# The new UI, which Prefect does not show by default yet, takes as long again.
@pytest.fixture(params=["v1", pytest.param("v2", marks=pytest.mark.long)])
def look(request: pytest.FixtureRequest, server: Any, browser: Browser) -> Iterator[Look]:
    """Prefect's old UI, and its new one."""
    yield Look(browser, server.api.removesuffix("/api"), request.param)
    browser.open("about:blank")  # an open page keeps drawing and asking while other tests run


@pytest.fixture(scope="session")
def runs(server: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The ids of finished runs, by what they are."""
    folder = tmp_path_factory.mktemp("runs")
    env = {**server.env, "PREFECT_TAO_HOME": str(folder / "home")}
    words = [sys.executable, "-c", CALLS, json.dumps(RUNS)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    api = Api(server.api)
    found = {}
    for name in RUNS:
        (run,) = api.ask("POST", "/flow_runs/filter", {"flow_runs": {"tags": {"all_": [f"page-{name}"]}}})
        found[name] = str(run["id"])
    return found


@pytest.fixture(scope="session")
def paused(server: Any, standing: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that waits for a person to confirm its image."""
    api, catalog = Api(server.api), tmp_path_factory.mktemp("catalog")
    (catalog / "models").mkdir()
    (catalog / "platforms.yaml").write_text(PLATFORMS)
    (catalog / "models" / "boxed.yaml").write_text(MODEL)
    run = begin(api, "run/run", variables={"PREFECT_TAO_CATALOG": str(catalog)}, model="boxed", action="train")
    wait_for(lambda: api.state(run) == "PAUSED", 120)
    return run


def artifacts(api: Api, run: str) -> dict[str, dict[str, Any]]:
    """The artifacts of a run, by the word that their key begins with; the first of each kind."""
    body = {"flow_runs": {"id": {"any_": [run]}}, "sort": "UPDATED_DESC", "limit": 100}
    found = api.ask("POST", "/artifacts/filter", body)
    return {one["key"].partition("-")[0]: one for one in found if one["key"]}
