"""A launch that needs no catalog entry: any command, in any container."""

from __future__ import annotations

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.request import JobRequest
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.image_choice import given_image


def plain_launch(request: JobRequest, platform: str) -> Resolved:
    """The request as the gates look at it; a person who names the image has confirmed it.

    Raises InvalidInput for what is not an image reference, without asking an engine.
    """
    if request.image is not None and (wrong := given_image(request.image).findings):
        raise InvalidInput.of(wrong)
    return Resolved(
        model=request.model or "",
        action=request.action or "",
        platform=platform,
        image=request.image,
        image_source="given with the launch",
        request=request,
        spec=request.specs or {},
    )
