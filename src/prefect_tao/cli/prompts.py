"""Asks a person at a terminal for what a launch still needs, in the order in which it is decided.

What is answered with nothing stays open, and the gates list it. Off a terminal nothing is asked.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

import typer

from prefect_tao.cli.options import HERE, Given
from prefect_tao.platforms import drivers

if TYPE_CHECKING:
    from prefect_tao.catalog.nouns import Catalog
    from prefect_tao.preflight.checks.credentials import Need
    from prefect_tao.preflight.resolve.ask import Resolved
    from prefect_tao.preflight.resolve.model_launch import Chosen

T = TypeVar("T")
INTERRUPTED, NO_INPUT = 130, 2


@dataclass(frozen=True)
class Answers:
    """A launch of an action as far as a person has described it; with `launches` it is not only planned."""

    given: Given
    launches: bool = False

    def but(self, **changes: Any) -> Answers:
        """The same with other parameters."""
        return replace(self, given={**self.given, **changes})

    @property
    def target(self) -> str:
        """Where; this machine when nothing was named."""
        return str(self.given.get("target", HERE))


def complete(catalog: Catalog, given: Given, launches: bool = False) -> Given:
    """`given` with a target, and on a terminal with all other answers. Raises InvalidInput for unknown names."""
    wanted = Answers(given, launches)
    if not at_terminal() or not (given.get("model") and given.get("action")):
        return {"target": wanted.target, **given}
    _choose(catalog, wanted)  # a misspelt name is told before the first question
    with prompts("Nothing was launched."):
        for step in (_platform, _automl, _image, _datasets, _compute, _credentials):
            wanted = step(catalog, wanted)
    return wanted.given


# -- the questions, in their order -------------------------------------------------------------------------------------


def _platform(catalog: Catalog, wanted: Answers) -> Answers:
    """Where, and whether to stay and watch; who names the target in advance is asked neither."""
    if "target" in wanted.given:
        return wanted
    say("Where should it run?")
    ready = drivers()
    for name, entry in sorted(catalog.platforms.items(), key=lambda one: (one[0] != HERE, one[0] not in ready)):
        missing = "" if name in ready else " (it can be planned, but not launched yet)"
        say(f"  {name:15}{entry.title}: {entry.description}{missing}")
    target = ask("platform, or <platform>/<name> of a saved block", lambda text: _target(catalog, text), HERE)
    return _monitoring(wanted.but(target=target))


def _monitoring(wanted: Answers) -> Answers:
    if not wanted.launches or not wanted.given.get("long_running_enabled", True):
        return wanted
    if not ask("stay attached and show progress until the job ends", _yes, "yes"):
        return wanted.but(long_running_enabled=False)
    usual = wanted.given.get("status_interval_minutes", 5.0)
    return wanted.but(status_interval_minutes=ask("minutes between updates", _minutes, f"{usual:g}"))


def _automl(catalog: Catalog, wanted: Answers) -> Answers:
    """Whether a training that becomes a search is to be one, and how many trials it may run; asked before all else."""
    from prefect_tao.preflight.plans.search_limits import TRIALS
    from prefect_tao.preflight.resolve.policy import has_budget, is_search

    if "automl_policy" in wanted.given or has_budget(wanted.given) or not is_search(catalog, wanted.given):
        return wanted
    what = f"{wanted.given['action']} of {wanted.given['model']}"
    say(f"{what} goes through an AutoML search: many trials, of which the best is kept.")
    if not ask("search; no is for one plain training", _yes, "yes"):
        return wanted.but(automl_policy="off")
    return wanted.but(max_trials=ask("trials at most", lambda text: _count(text, 1), str(TRIALS)))


def _image(catalog: Catalog, wanted: Answers) -> Answers:
    from prefect_tao.preflight.resolve.image_choice import choose_image

    chosen, given = _choose(catalog, wanted), wanted.given
    if given.get("image") is not None or given.get("confirm_image") or not chosen.platform[1].containers:
        return wanted
    found = choose_image(catalog, chosen.model, chosen.action, None, needed=True).image
    if found:
        say(f"Container image for {chosen.model[0]} {chosen.action[0]}: {found}")
        answer = ask("Enter to use it, or another image", _reference)
    else:
        answer = ask(f"container image for {chosen.model[0]} {chosen.action[0]}; the catalog names none", _reference)
    return wanted.but(image=answer or None, confirm_image=bool(answer or found))


def _datasets(catalog: Catalog, wanted: Answers) -> Answers:
    """Each kind of data that has no place yet, until it has one or is left open."""
    left_open: set[str] = set()
    while sources := [source for source in _missing_data(catalog, wanted) if source not in left_open]:
        answered = _dataset(catalog, wanted, sources[0])
        if answered is wanted:
            left_open.add(sources[0])
        wanted = answered
    return wanted


def _dataset(catalog: Catalog, wanted: Answers, source: str) -> Answers:
    from prefect_tao.preflight.resolve.datasets import example_root

    chosen = _choose(catalog, wanted)
    root = example_root(chosen.platform[1], chosen.model[0], source)
    tried = _resolved(catalog, wanted.but(**{f"{source}_root": [root]})).datasets
    before = _resolved(catalog, wanted).datasets
    pairs = [f"{key}={value}" for key, value in tried.items() if key not in before]
    say(f"The {source} data of {chosen.model[0]} {chosen.action[0]} on {chosen.platform[0]}:")
    say("\n       ".join([f"  A) a root, such as {root}, which gives", *pairs]))
    say(f"  B) exact keys as KEY=path pairs separated by blanks, such as\n       {' '.join(pairs)}")
    answer = ask(f"{source} data (Enter leaves it open)", _data)
    if answer.sets:
        return wanted.but(overrides={**wanted.given.get("overrides", {}), **answer.sets})
    return wanted.but(**{f"{source}_root": answer.roots}) if answer.roots else wanted


def _compute(catalog: Catalog, wanted: Answers) -> Answers:
    """GPUs and nodes, where neither a person, nor the spec, nor a default that suits the model tells them."""
    from prefect_tao.preflight.resolve.compute import least_gpus

    chosen = _choose(catalog, wanted)
    (name, model), platform = chosen.model, chosen.platform[1]
    least, usual = least_gpus(model, chosen.action[0]), platform.defaults.get("num_gpus")
    gpus, nodes = _written_counts(catalog, wanted)
    if gpus is None and (usual is None or usual < least):
        meant = f" ({name} is meant for {least} or more)" if least else ""
        gpus = ask(f"GPUs per node{meant}", _gpus, str(max(least, usual or 0)))
        wanted = wanted.but(gpus=gpus)
    if nodes is None and platform.multi_node and "num_nodes" not in platform.defaults:
        wanted = wanted.but(nodes=ask("nodes", lambda text: _count(text, 1), "1"))
    return wanted


def _credentials(catalog: Catalog, wanted: Answers) -> Answers:
    """Tell what is missing. Only the secrets of this launch can be typed, unseen, and only this process gets them."""
    connection, own = _missing_credentials(catalog, wanted)
    for need in [*connection, *own]:
        say(f"{need.preferred} is missing: {need.why}. {need.description}".rstrip())
        if need.how_to_get:
            say(f"  how to get it: {need.how_to_get}")
    if connection:
        platform = _choose(catalog, wanted).platform[0]
        say(f"`prefect-tao setup {platform}` asks for what the connection needs, and saves it.")
    for need in own:
        if value := ask(f"{need.preferred} (not shown; Enter leaves it open)", str, hidden=True):
            os.environ[need.preferred] = value
    return wanted


# -- what is known so far ----------------------------------------------------------------------------------------------


def _choose(catalog: Catalog, wanted: Answers) -> Chosen:
    from prefect_tao.preflight.resolve.ask import Ask
    from prefect_tao.preflight.resolve.model_launch import choose

    return choose(catalog, Ask.of(model=wanted.given["model"], action=wanted.given["action"], target=wanted.target))


def _resolved(catalog: Catalog, wanted: Answers) -> Resolved:
    from prefect_tao.cli.examining import resolved_from

    return resolved_from(catalog, wanted.given)


def _missing_data(catalog: Catalog, wanted: Answers) -> list[str]:
    """The kinds of data that have no place, as long as another answer can give them one."""
    from prefect_tao.catalog.nouns import Source
    from prefect_tao.preflight.resolve.ask import ROOT

    missing = [finding.subject for finding in _resolved(catalog, wanted).findings if finding.blocks]
    open_sources = (source for source in get_args(Source) if not wanted.given.get(f"{source}{ROOT}"))
    return [source for source in open_sources if f"dataset {source}" in missing]


def _written_counts(catalog: Catalog, wanted: Answers) -> tuple[int | None, int | None]:
    """GPUs and nodes as options or the person's own spec tell them."""
    from prefect_tao.preflight.resolve.given import read_given
    from prefect_tao.preflight.resolve.specs import count_key
    from prefect_tao.preflight.resolve.translating import ask_from

    (_, model), (name, action) = (chosen := _choose(catalog, wanted)).model, chosen.action
    given = read_given(ask_from(wanted.given), model, action)
    gpus, nodes = (given.get(count_key(name, key, action)) for key in (model.gpu_key, model.node_key))
    return wanted.given.get("gpus", gpus), wanted.given.get("nodes", nodes)


def _missing_credentials(catalog: Catalog, wanted: Answers) -> tuple[list[Need], list[Need]]:
    """What the connection lacks, which a saved block would hold, and what this launch lacks besides."""
    from prefect_tao.environment import variables
    from prefect_tao.jobs.target import Target
    from prefect_tao.preflight.checked_launch import Launch
    from prefect_tao.preflight.checks.credentials import missing, model_needs, platform_needs
    from prefect_tao.preflight.checks.visibility import uses_bucket
    from prefect_tao.runner.inside.schemes import bucket_uri
    from prefect_tao.storage.known_schemes import opening

    resolved, supplied = _resolved(catalog, wanted), variables()
    launch = Launch(catalog, resolved, None, supplied)
    named = (*resolved.credentials, *(resolved.request.secrets if resolved.request else ()))
    own = missing(model_needs(catalog, resolved.model, named), supplied)
    if Target.parse(wanted.target).block:  # a saved block has its own; only the gates can look into it
        return [], own
    bucket = [bucket_uri("")] if uses_bucket(catalog.platforms[resolved.platform], supplied) else []
    uris = [*launch.uris(), *bucket]
    needs = missing(platform_needs(catalog, resolved.platform, uris), supplied)
    keys = {name for scheme in opening(uris) for name in scheme.keys}
    storage = [need for need in needs if need.preferred in keys]
    return [need for need in needs if need not in storage], [*own, *(need for need in storage if need not in own)]


# -- what an answer means; ValueError tells why it cannot be taken -----------------------------------------------------


class _Data(NamedTuple):
    """Where data is: below roots, or by exact keys."""

    roots: list[str]
    sets: dict[str, Any]


def _target(catalog: Catalog, text: str) -> str:
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.jobs.target import Target
    from prefect_tao.preflight.resolve.resolving import named_platform

    try:
        target = Target.parse(text)
        return str(target._replace(platform=named_platform(catalog, target.platform)))
    except InvalidInput as error:
        raise ValueError(f"{error.cause}; {error.remedy}") from None


def _yes(text: str) -> bool:
    word = text.lower()
    if word not in ("y", "yes", "n", "no"):
        raise ValueError("answer yes or no")
    return word.startswith("y")


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise ValueError(f"{text!r} is no number of minutes; 5 is usual, 1 for a short try")
    return minutes


def _gpus(text: str) -> int:
    from prefect_tao.jobs.request import ALL_GPUS

    return ALL_GPUS if text == str(ALL_GPUS) else _count(text, 0)


def _count(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{text!r}: expected a whole number of {least} or more")
    return int(text)


def _reference(text: str) -> str:
    from prefect_tao.preflight.resolve.image_choice import GOOD_REFERENCE, is_image_reference

    if text and not is_image_reference(text):
        raise ValueError(f"{text!r} is not an image reference; one looks like {GOOD_REFERENCE.split()[1]}")
    return text


def _data(text: str) -> _Data:
    from prefect_tao.cli.parsing import pairs, parse_value

    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError("a quotation mark is not closed") from None
    keyed = [word for word in words if _is_pair(word)]
    if keyed and len(keyed) < len(words):
        raise ValueError("give either roots or KEY=path pairs, not both; quote a path that has blanks")
    return _Data([] if keyed else words, {key: parse_value(value) for key, value in pairs(keyed, "--set").items()})


def _is_pair(word: str) -> bool:
    """Whether a key stands before the first equals sign; a location has a slash or a colon there."""
    key, equals, value = word.partition("=")
    return bool(key and equals and value) and not set(key) & set("/:~ ")


# -- the terminal ------------------------------------------------------------------------------------------------------


def at_terminal() -> bool:
    """Whether a person can see a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def say(text: str) -> None:
    """Human words go to standard error, so that standard output stays for results."""
    typer.echo(text, err=True)


def ask(text: str, accept: Callable[[str], T], default: str = "", hidden: bool = False) -> T:
    """The answer as `accept` takes it; asked again as long as that raises ValueError. Enter means `default`."""
    question = f"{text} [{default}]: " if default else f"{text}: "
    while True:
        try:
            return accept(_line(question, hidden).strip() or default)
        except ValueError as error:
            say(f"  {error}")


def _line(question: str, hidden: bool) -> str:
    if hidden:
        from getpass import getpass

        return getpass(question, stream=sys.stderr)
    with _woken_by_signals() as woken:
        sys.stderr.write(question)
        sys.stderr.flush()
        select.select([sys.stdin, woken], [], [])
    return input()


@contextmanager
def _woken_by_signals() -> Iterator[int]:
    """A descriptor to wait for beside the terminal: it can be read once a signal came.

    Without it a Ctrl-C that comes between the question and the system call that reads the answer is noticed only after
    the next line: Python looks for signals around its own steps, not between the last of them and the read.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


@contextmanager
def prompts(last_word: str) -> Iterator[None]:
    """Questions inside: Ctrl-C ends the program with 130, the end of the input with 2, both with the last word."""
    try:
        yield
    except (KeyboardInterrupt, EOFError) as error:
        say(f"\n{last_word}")
        raise typer.Exit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else NO_INPUT) from None
