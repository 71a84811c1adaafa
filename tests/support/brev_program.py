"""The `brev` command of the tests: all that the real one does before it asks its service, which is `BrevCloud` here.

A copy with the socket's address filled in lies on the PATH of a test. It starts in a few hundredths of a second.
"""

import json
import os
import socket
import stat
import sys

SOCKET = "@SOCKET@"
# These read what comes by a pipe to its end before they do anything.
READERS = ("create", "start", "stop", "delete", "exec")


def is_character_device(number: int) -> bool:
    """As the real one tells a terminal from a pipe: /dev/null is a character device too."""
    try:
        return stat.S_ISCHR(os.fstat(number).st_mode)
    except OSError:
        return False


def main() -> int:
    """Send everything to the service and print what it says."""
    words = sys.argv[1:]
    given = ""
    if words[:1] and words[0] in READERS and not is_character_device(0):
        given = sys.stdin.read()
    home = os.environ["HOME"]
    try:
        with open(f"{home}/.brev/credentials.json") as file:
            credentials = json.load(file)
    except (OSError, ValueError):
        credentials = {}
    asked = {
        "argv": words,
        "env": sorted(os.environ),
        "home": home,
        "api_key": os.environ.get("BREV_API_KEY", ""),
        "credentials": credentials,
        "stdin": given,
        "piped": not is_character_device(1),
        "session": os.getsid(0) == os.getpid(),
        "color": "NO_COLOR" not in os.environ,
    }
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(SOCKET)
        line.sendall(json.dumps(asked).encode() + b"\n")
        with line.makefile() as answers:
            told = json.loads(answers.readline() or "{}")
    if told.get("leaves"):  # as an ssh process that holds the streams open
        import subprocess

        left = subprocess.Popen(["sleep", "60"], start_new_session=True)
        sys.stderr.write(f"left {left.pid}\n")
    sys.stdout.write(told.get("out", ""))
    sys.stdout.flush()
    sys.stderr.write(told.get("err", "unexpected EOF\n" if not told else ""))
    return int(told.get("code", 1))


if __name__ == "__main__":
    sys.exit(main())
