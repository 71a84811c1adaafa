"""Programs that stand before the real ones on the login node's PATH and do what a bad day does."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

TIMED_OUT = "{program}: error: Batch job submission failed: Socket timed out on send/recv operation"

# The sshd process of this connection runs as the user, so that a command may end its own connection.
CUT = r"""
cut() {
    local pid=$PPID
    while [ "$pid" -gt 1 ]; do
        case $(cat "/proc/$pid/comm" 2>/dev/null) in sshd*) kill -9 "$pid"; exit 1 ;; esac
        pid=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | awk '{print $2}')
        [ -n "$pid" ] || break
    done
    exec sleep 600
}
"""


class Shims:
    """The shims of one cluster; without any, the folder is empty and costs nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, program: str, mode: str, times: int | None, real: str) -> None:
        """Let the next `times` calls of `program` (all of them when None) do what `mode` says."""
        self.remove(program)
        tokens = self._tokens(program)
        tokens.mkdir(mode=0o777)
        tokens.chmod(0o777)
        for number in range(times or 0):
            (tokens / str(number)).touch()
        calls = self._calls(program)
        calls.touch()
        calls.chmod(0o666)
        draft = self.folder / f".{program}.draft"
        draft.write_text(self._script(program, mode, times is not None, real))
        draft.chmod(0o755)
        draft.rename(self.folder / program)

    def remove(self, program: str) -> None:
        (self.folder / program).unlink(missing_ok=True)
        shutil.rmtree(self._tokens(program), ignore_errors=True)
        self._calls(program).unlink(missing_ok=True)

    def remove_all(self) -> None:
        for path in self.folder.iterdir():
            if not path.name.startswith("."):
                self.remove(path.name)

    def calls(self, program: str) -> list[str]:
        """The arguments of every call since the shim was added, one line each."""
        try:
            return self._calls(program).read_text().splitlines()
        except FileNotFoundError:
            return []

    def _tokens(self, program: str) -> Path:
        return self.folder / f".{program}.tokens"

    def _calls(self, program: str) -> Path:
        return self.folder / f".{program}.calls"

    def _script(self, program: str, mode: str, counted: bool, real: str) -> str:
        take = f'for token in {self._tokens(program)}/*; do rm "$token" 2>/dev/null && mine=1 && break; done\n'
        return (
            "#!/bin/bash\n"
            f"real={shlex.quote(real)}\n"
            # Folded into one line, so that a line is a call.
            f'words=$*; printf "%s\\n" "${{words//$\'\\n\'/ }}" >>{self._calls(program)}\n'
            + (f'mine=; {take}[ -n "$mine" ] || exec "$real" "$@"\n' if counted else "")
            + CUT
            + _act(program, mode)
        )


def _act(program: str, mode: str) -> str:
    """The shell lines of a mode. Raises ValueError for a word that is none."""
    word, _, rest = mode.partition(":")
    run = '"$real" "$@" >/dev/null 2>&1\n'
    timed_out = f"echo {shlex.quote(TIMED_OUT.format(program=program))} >&2; exit 1\n"
    match word:
        case "pass":
            return 'exec "$real" "$@"\n'
        case "lost-reply":
            return f"{run}cut\n"
        case "cut-before":
            return "cut\n"
        case "hang-after":
            return f"{run}exec sleep 600\n"
        case "hang-before":
            return "exec sleep 600\n"
        case "timeout-after":
            return run + timed_out
        case "timeout-before":
            return timed_out
        case "slow":
            return f'sleep {float(rest)}\nexec "$real" "$@"\n'
        case "fail-late":
            seconds, _, rest = rest.partition(":")
            text, _, code = rest.rpartition(":")
            return f"{run}sleep {float(seconds)}; echo {shlex.quote(text)} >&2; exit {int(code)}\n"
        case "fail":
            text, _, code = rest.rpartition(":")
            return f"echo {shlex.quote(text)} >&2; exit {int(code)}\n"
    raise ValueError(
        f"{mode!r} is no mode of a shim: pass, lost-reply, cut-before, hang-after, hang-before, "
        "timeout-after, timeout-before, slow:<seconds>, fail:<text>:<code>, fail-late:<seconds>:<text>:<code>"
    )
