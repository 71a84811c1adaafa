"""`prefect-tao platforms | models | image`: what the catalog knows, without Prefect and without touching anything."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_tao.cli.options import Json, SkillBank

if TYPE_CHECKING:
    from prefect_tao.catalog.nouns import Catalog, ModelEntry, PlatformEntry

PLATFORMS = """\b
Examples:
  prefect-tao platforms
  prefect-tao platforms slurm
"""
MODELS = """\b
Examples:
  prefect-tao models --scope automl
  prefect-tao models dino
"""
IMAGE = """\b
Example:
  prefect-tao image dino train
"""


def open_catalog(skill_bank: Path | None = None) -> Catalog:
    """The catalog, with a skill bank where one is named. Raises InvalidInput."""
    from prefect_tao.catalog.loading import BANK_VARIABLE
    from prefect_tao.preflight.resolve.resolving import open_catalog as opened

    if skill_bank:  # for all that this process does later, the flow among it
        os.environ[BANK_VARIABLE] = str(skill_bank.expanduser().absolute())
    return opened()


def named_model(catalog: Catalog, text: str, action: str = "train") -> str:
    """The one model that `text` names. Raises InvalidInput with the candidates or the nearest names."""
    from prefect_tao.catalog.lookup import find_model
    from prefect_tao.preflight.resolve.ask import Ask
    from prefect_tao.preflight.resolve.model_launch import choose

    names = find_model(catalog, text)
    return names[0] if len(names) == 1 else choose(catalog, Ask.of(model=text, action=action)).model[0]


def emit(value: Any) -> None:
    """JSON for programs."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def platforms(
    name: Annotated[str | None, typer.Argument(help="One platform, by name or alias.", show_default=False)] = None,
    skill_bank: SkillBank = None,
    json_: Json = False,
) -> None:
    """List the execution platforms, or what one of them needs."""
    from prefect_tao.preflight.resolve.resolving import named_platform

    catalog = open_catalog(skill_bank)
    if name is None:
        if json_:
            emit(
                {
                    "long_running_enabled": catalog.long_running_enabled,
                    "status_interval_minutes": catalog.status_interval_minutes,
                    "platforms": {key: entry.model_dump(mode="json") for key, entry in catalog.platforms.items()},
                }
            )
        else:
            _list_platforms(catalog)
        return
    found = named_platform(catalog, name)
    entry = catalog.platforms[found]
    if json_:
        emit({"name": found, **entry.model_dump(mode="json"), "credentials": _credentials(catalog, entry)})
    else:
        _show_platform(catalog, found, entry)


def _list_platforms(catalog: Catalog) -> None:
    from prefect_tao.platforms import has_driver

    for key, entry in catalog.platforms.items():
        also = f" (also {', '.join(entry.aliases)})" if entry.aliases else ""
        driver = "" if has_driver(key) else " [driver not there yet]"
        typer.echo(f"{key:15}{entry.title}{also}: {entry.description}{driver}")


def _credentials(catalog: Catalog, entry: PlatformEntry) -> dict[str, dict[str, str]]:
    names = [*entry.required, *(name for group in entry.groups for name in group.one_of)]
    names += [use.name for use in entry.optional]
    return {name: catalog.credentials[name].model_dump(mode="json") for name in names if name in catalog.credentials}


def _show_platform(catalog: Catalog, name: str, entry: PlatformEntry) -> None:
    def told(credential: str, extra: str = "") -> str:
        known = catalog.credentials.get(credential)
        return f"  {credential}{extra}: {known.description} How to get it: {known.how_to_get}" if known else credential

    lines = [f"{name}: {entry.title}", entry.description, "", "Required:"]
    lines += [told(credential) for credential in entry.required] or ["  nothing"]
    for group in entry.groups:
        lines += ["", f"One of ({group.preferred} preferred):", *(told(credential) for credential in group.one_of)]
    lines += ["", "Optional, only when the condition holds:"]
    lines += [told(use.name, f" ({use.only_when})" if use.only_when else "") for use in entry.optional] or ["  nothing"]
    lines += ["", "Defaults:", *(f"  {key} = {value}" for key, value in entry.defaults.items())]
    lines += ["", f"Data: {entry.storage.uri}", *(f"  for example {example}" for example in entry.path_examples)]
    typer.echo("\n".join(lines))


def models(
    name: Annotated[str | None, typer.Argument(help="One model, by name, alias, arch or hub id.")] = None,
    scope: Annotated[str, typer.Option(help="all, or automl for those that AutoML can search.")] = "all",
    skill_bank: SkillBank = None,
    json_: Json = False,
) -> None:
    """List the models, or what one of them can do."""
    from prefect_tao.jobs.errors import InvalidInput

    if scope not in ("all", "automl"):
        raise InvalidInput(f"--scope {scope!r} is not known", "use all or automl")
    catalog = open_catalog(skill_bank)
    if name is not None:
        found = named_model(catalog, name)
        entry = catalog.models[found]
        if json_:
            emit({"name": found, **entry.model_dump(mode="json")})
        else:
            _show_model(found, entry)
        return
    chosen = {key: entry for key, entry in sorted(catalog.models.items()) if scope == "all" or entry.automl.runnable}
    if json_:
        emit({key: _model_row(entry) for key, entry in chosen.items()})
        return
    for key, entry in chosen.items():
        automl = ", AutoML" if entry.automl.runnable else ""
        typer.echo(f"{key:32}{entry.title} ({entry.arch}): {', '.join(entry.actions)}{automl}")


def _model_row(entry: ModelEntry) -> dict[str, Any]:
    return {
        "title": entry.title,
        "arch": entry.arch,
        "aliases": entry.aliases,
        "actions": list(entry.actions),
        "automl_enabled": entry.automl.enabled,
        "automl_runnable": entry.automl.runnable,
        "metric": entry.automl.metric,
        "direction": entry.automl.direction,
    }


def _show_model(name: str, entry: ModelEntry) -> None:
    lines = [
        f"{name}: {entry.title}, arch {entry.arch}",
        f"Also called: {', '.join(entry.aliases) or '-'}",
        "",
        "Actions:",
    ]
    for action, facts in entry.actions.items():
        lines += [f"  {action:18}{facts.command.splitlines()[0]}"]
    needed = sorted({rule.source for facts in entry.actions.values() for rule in facts.datasets.values()})
    lines += ["", f"Dataset roots it knows: {', '.join(needed) or '-'}", "Short words for --set:"]
    lines += [f"  {word} = {key}" for word, key in entry.shorthand.items()] or ["  none"]
    if entry.automl.runnable:
        lines += [
            "",
            f"AutoML: {entry.automl.metric} ({entry.automl.direction}), {len(entry.automl.parameters)} parameters",
        ]
    typer.echo("\n".join(lines))


def image(
    model: Annotated[str, typer.Argument(help="Model, by name, alias, arch or hub id.", show_default=False)],
    action: Annotated[str, typer.Argument(help="Action, such as train or gen_trt_engine.")] = "train",
    skill_bank: SkillBank = None,
    json_: Json = False,
) -> None:
    """Show the container image of a model's action, and where it comes from."""
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.preflight.resolve.ask import Ask
    from prefect_tao.preflight.resolve.image_choice import choose_image
    from prefect_tao.preflight.resolve.model_launch import choose

    catalog = open_catalog(skill_bank)
    chosen = choose(catalog, Ask.of(model=model, action=action))
    choice = choose_image(catalog, chosen.model, chosen.action, None, needed=False)
    if choice.findings:
        raise InvalidInput.of(choice.findings)
    if json_:
        emit({"model": chosen.model[0], "action": action, "image": choice.image, "source": choice.source})
    else:
        shown = choice.image or "no image is declared; where containers run, name one with --image"
        typer.echo(f"{chosen.model[0]} {action}: {shown} (from {choice.source})")
