"""Asks a person at a terminal for what a launch still needs, in the order in which it is decided."""

from __future__ import annotations

from typing import Any

import typer


def ask_for_missing(given: dict[str, Any], roots: dict[str, list[str] | None], confirmed: bool) -> dict[str, Any]:
    """`given` with the answers: image, then dataset roots. What is answered with nothing is left to the gates."""
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.preflight.ask import Ask
    from prefect_tao.preflight.images import choose_image
    from prefect_tao.preflight.resolve import choose

    catalog = open_catalog()
    chosen = choose(catalog, Ask(model=given["model"], action=given["action"], target=given["target"]))
    platform = chosen.platform[1]
    found = choose_image(catalog, chosen.model, chosen.action, given["image"], platform.containers)
    if platform.containers and found.image and not given["image"] and not confirmed:
        typer.echo(f"Container image for {chosen.model[0]} {chosen.action[0]}: {found.image}", err=True)
        answer = typer.prompt("Enter to use it, or another image", default="", show_default=False, err=True)
        given, confirmed = ({**given, "image": answer.strip()}, True) if answer.strip() else (given, True)
    needed = {rule.source for rule in chosen.action[1].datasets.values() if not rule.optional}
    for source in sorted(needed & roots.keys()):
        if not roots[source] and not given.get("direct"):
            example = platform.path_examples[0] if platform.path_examples else "/data/train"
            typer.echo(f"Root of the {source} data, for example {example};", err=True)
            answer = typer.prompt("or nothing if --set names its keys", default="", show_default=False, err=True)
            roots[source] = [answer.strip()] if answer.strip() else None
    return {**given, "confirm_image": confirmed}
