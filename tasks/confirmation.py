"""Neither an image nor a search begins silently: given, confirmed in advance, or in a form while the run waits."""

from typing import Literal
from uuid import UUID

from prefect import get_client, pause_flow_run
from prefect.input import RunInput
from prefect.runtime import deployment, flow_run
from pydantic import Field

from prefect_tao.jobs.errors import JobCanceled
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.image_choice import is_image_reference
from prefect_tao.preflight.resolve.resolving import with_image

WAIT_SECONDS = 3600
LOOK_SECONDS = 3  # a person who has answered is watching


class ImageChoice(RunInput):
    """The form that a person sees when a run waits for its image to be confirmed."""

    decision: Literal["launch", "abort"] = Field(description="launch with the image below, or abort the run")
    image: str = Field(description="the image to run; change it to pin another build")


class SearchChoice(RunInput):
    """The form that a person sees when a training would become a search, and what that may spend is not said."""

    decision: Literal["search", "plain", "abort"] = Field(
        description="search with at most so many trials, run one plain training, or abort the run"
    )
    max_trials: int = Field(20, ge=1, description="how many trials a search may run")


async def confirm_search(what: str, review: str) -> int | None:
    """How many trials a person allows; None for one plain training. Raises JobCanceled when the person aborts."""
    told = f"**{what}** goes through an AutoML search:\n\n~~~~\n{review}\n~~~~"
    form = SearchChoice.with_initial_data(description=told, max_trials=20)
    choice: SearchChoice = await pause_flow_run(form, WAIT_SECONDS, LOOK_SECONDS)  # type: ignore
    if choice.decision == "abort":
        raise JobCanceled(f"{what}: a person aborted the launch instead of confirming the search")
    return choice.max_trials if choice.decision == "search" else None


async def is_interactive() -> bool:
    """Whether a person started this run in the UI and can answer: it has a deployment and no schedule made it."""
    if not flow_run.id or not deployment.id:
        return False
    async with get_client() as client:
        return not (await client.read_flow_run(UUID(flow_run.id))).auto_scheduled


async def confirm_image(resolved: Resolved) -> Resolved:
    """The launch with the image that a person has said yes to. Raises JobCanceled when the person aborts."""
    chosen = await ask_for_image(f"{resolved.model} {resolved.action}", str(resolved.image))
    return resolved if chosen == resolved.image else with_image(resolved, chosen)


async def ask_for_image(what: str, image: str) -> str:
    """Pause until a person has confirmed or replaced the image. Raises JobCanceled when the person aborts."""
    told = f"**{what}** would run in this container image:\n\n`{image}`"
    while True:
        form = ImageChoice.with_initial_data(description=told, image=image)
        # Prefect's types describe the call from sync code; in an async flow it is awaited.
        choice: ImageChoice = await pause_flow_run(form, WAIT_SECONDS, LOOK_SECONDS)  # type: ignore
        if choice.decision == "abort":
            raise JobCanceled(f"{what}: a person aborted the launch instead of confirming the image")
        if is_image_reference(choice.image.strip()):
            return str(choice.image.strip())
        told = f"`{choice.image}` is not an image reference.\n\n**{what}** needs one such as `{image}`."
