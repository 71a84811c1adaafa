"""The picture of a chain: every step once, columns by what waits for what, names that cannot break it."""

from __future__ import annotations

import base64
import re
from xml.etree import ElementTree

from prefect_tao.jobs.chain_outcome import StepOutcome
from prefect_tao.tasks.artifacts.stepgraph import graph_image
from prefect_tao.tasks.artifacts.summary import chain_markdown


def drawn(*steps: StepOutcome) -> ElementTree.Element:
    return ElementTree.fromstring(base64.b64decode(graph_image(steps).partition("base64,")[2]))


def step(name: str, *after: str) -> StepOutcome:
    return StepOutcome(name=name, target="slurm/polar", after=after)


def test_steps_stand_right_of_what_they_wait_for() -> None:
    picture = drawn(step("train"), step("evaluate", "train"), step("export", "train"), step("engine", "export"))
    boxes = [box for box in picture.iter() if box.tag.endswith("rect") and box.get("x")]
    places = [(int(str(box.get("x"))), int(str(box.get("y")))) for box in boxes]
    train, evaluate, export, engine = places
    assert train[0] < evaluate[0] == export[0] < engine[0]
    assert evaluate[1] < export[1]
    texts = [one.text for one in picture.iter() if one.tag.endswith("text")]
    assert texts[:2] == ["train", "slurm/polar"]


def test_a_name_with_signs_of_markup_is_only_a_name() -> None:
    texts = [one.text for one in drawn(step("a<b>&c")).iter() if one.tag.endswith("text")]
    assert texts[0] == "a<b>&c"


def test_the_page_of_a_chain_has_the_picture_and_a_row_per_step() -> None:
    page = chain_markdown([step("train"), step("export", "train")], {"train": "[log](x)"})
    assert re.search(r"!\[.*\]\(data:image/svg", page)
    assert "| **train** |" in page
    assert "| **export** |" in page
