"""Runs in the environment of nvidia-tao-automl: its bayesian proposes, and whoever started this says the value.

One JSON line each way: first the space, then a proposal out and its loss in (null: it failed), until stdin ends.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from typing import Any

TRIALS = 30


def schema_of(space: dict[str, dict[str, Any]]) -> dict[str, Any]:
    properties = {name: {**axis, "automl_enabled": True} for name, axis in space.items()}
    return {"default": {name: axis["default"] for name, axis in space.items()}, "properties": properties}


def main() -> None:
    from tao_automl import AutoML

    logging.disable(logging.CRITICAL)
    first = json.loads(sys.stdin.readline())
    schema = schema_of(first["space"])
    with tempfile.TemporaryDirectory() as folder:
        settings = {"algorithm": "bayesian", "metric": "loss", "automl_max_recommendations": TRIALS}
        search = AutoML(
            folder,
            "bench",
            dict(schema["default"]),
            {**settings, "session_id": f"seed-{first['seed']}"},
            automl_hyperparameters=list(first["space"]),
            search_schema=schema,
        )
        for _ in range(TRIALS):
            proposal = search.next_recommendation()[0]
            sys.stdout.write(json.dumps(proposal.specs) + "\n")
            sys.stdout.flush()
            value = json.loads(sys.stdin.readline())
            if value is None:
                search.report_result(proposal.id, 0.0, status="failure")
            else:
                search.report_result(proposal.id, value)


if __name__ == "__main__":
    main()
