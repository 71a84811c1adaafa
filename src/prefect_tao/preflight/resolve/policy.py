"""Whether a training goes through AutoML. The choice is shown, never made silently."""

from __future__ import annotations

from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.finding import COMPUTE, Finding, Level
from prefect_tao.launch.parameters.declared import AutoMLPolicy
from prefect_tao.preflight.resolve.ask import Resolved


def automl_finding(catalog: Catalog, resolved: Resolved, policy: AutoMLPolicy) -> Finding | None:
    """What the policy means for this launch; None where AutoML has no say."""
    model = catalog.models.get(resolved.model)
    if model is None or resolved.action != "train" or not model.automl.enabled:
        return None
    if policy == "off":
        message = "automl_policy is off: this is one plain training"
        return Finding(level=Level.OK, gate=COMPUTE, subject="automl", message=message)
    if not model.automl.runnable:
        reason = model.automl.blocked_reason or "its search space is not packaged"
        return Finding(
            level=Level.WARN,
            gate=COMPUTE,
            subject="automl",
            message=f"AutoML is enabled for {resolved.model} but not runnable ({reason}): this is one plain training",
        )
    return Finding(
        level=Level.FAIL,
        gate=COMPUTE,
        subject="automl",
        message=f"train of the AutoML-enabled model {resolved.model} needs automl_policy=off until the search exists",
        remedy="add --automl-policy off (automl_policy='off') to run one plain training",
    )
