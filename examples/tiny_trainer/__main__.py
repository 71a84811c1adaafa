"""The command line: `python -m prefect_tao.examples.tiny_trainer train -e spec.yaml`."""

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from prefect_tao.examples.tiny_trainer.spec import TrainerError, read_spec
from prefect_tao.examples.tiny_trainer.trainer_actions import ACTIONS, run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tiny", description="Train, evaluate or export a very small model.")
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("-e", "--experiment_spec", type=Path, required=True, metavar="SPEC", help="YAML or JSON file")
    options = parser.parse_args(arguments)
    failed = _attempt(options.action, options.experiment_spec)
    print(f"Execution status: {'FAIL' if failed else 'PASS'}", flush=True)
    return int(failed)


def _attempt(action: str, spec: Path) -> bool:
    """Runs the action and explains what went wrong, if anything did."""
    try:
        run(action, read_spec(spec))
    except (TrainerError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return True
    except Exception:
        traceback.print_exc()
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
