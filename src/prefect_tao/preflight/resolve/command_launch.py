"""A launch that needs no catalog entry: any command, in any container."""

from __future__ import annotations

from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.request import JobRequest
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.compute import command_shape
from prefect_tao.preflight.resolve.image_choice import given_image


def plain_launch(request: JobRequest, platform: str, catalog: Catalog) -> Resolved:
    """The request as the gates look at it; a person who names the image has confirmed it.

    What it does not say of its shape is what the platform gives by default, as for an action of the catalog.
    Raises InvalidInput for what is not an image reference, without asking an engine.
    """
    if request.image is not None and (wrong := given_image(request.image).findings):
        raise InvalidInput.of(wrong)
    shape = command_shape((platform, catalog.platforms[platform]), request.resources)
    request = request.model_copy(update={"resources": shape.resources})
    return Resolved(
        model=request.model or "",
        action=request.action or "",
        platform=platform,
        image=request.image,
        image_source="the launch",
        request=request,
        spec=request.specs or {},
        findings=shape.findings,
    )
