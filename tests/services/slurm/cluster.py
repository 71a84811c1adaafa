"""The loopback SLURM cluster for people: `cluster.py up`, `cluster.py down`, `cluster.py status`."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from debian import Missing
from slurm_cluster import Cluster

NAME = Path("prefect-tao") / "slurm"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=("up", "down", "status"))
    parser.add_argument("--base", type=Path, default=default_base(), help="the folder of the cluster (%(default)s)")
    parser.add_argument("--no-accounting", action="store_true", help="up: without slurmdbd and its database")
    parser.add_argument("--purge", action="store_true", help="down: remove the folder too, with all results in it")
    options = parser.parse_args()
    try:
        if options.command == "up":
            return up(options.base, accounting=not options.no_accounting)
        return down(options.base, options.purge) if options.command == "down" else status(options.base)
    except (Missing, RuntimeError, ValueError) as error:
        print(f"the cluster cannot do this: {error}", file=sys.stderr)
        return 1


def default_base() -> Path:
    """The user's state folder; that of the system where the user's home is closed, since jobs run as another user."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    there = [folder for folder in (state, *state.parents) if folder.is_dir()]
    opened = all(folder.stat().st_mode & 0o001 for folder in there)
    return (state if opened else Path("/var/lib")) / NAME


def up(base: Path, accounting: bool) -> int:
    print(f"==> starting a SLURM cluster below {base} (the first time it installs Debian packages)", flush=True)
    try:
        cluster = Cluster.load(base)
    except FileNotFoundError:
        cluster = Cluster(base, accounting=accounting)
    cluster.start()
    print("==> it runs. What to export:\n")
    tell(cluster)
    return 0


def down(base: Path, purge: bool) -> int:
    try:
        cluster = Cluster.load(base)
    except FileNotFoundError:
        print(f"there is no cluster below {base}")
        return 0
    cluster.stop()
    print(f"==> the cluster below {base} is down")
    if purge:
        shutil.rmtree(base)
    return 0


def status(base: Path) -> int:
    """Exit code 0 when every daemon runs."""
    try:
        cluster = Cluster.load(base)
    except FileNotFoundError:
        print(f"there is no cluster below {base}")
        return 1
    running = cluster.daemons()
    for label, pid in running.items():
        print(f"{label:14} {pid or 'not running'}")
    if not all(running.values()):
        return 1
    print()
    tell(cluster)
    return 0


def tell(cluster: Cluster) -> None:
    for name, value in cluster.env.items():
        print(f"export {name}={shlex.quote(value)}")
    print("\nthen, to save it as a target:\n")
    print(".venv/bin/prefect-tao setup slurm --name loopback --from-env")
    print("\nto log in:\n")
    print(shlex.join(cluster.ssh_words()))


if __name__ == "__main__":
    sys.exit(main())
