"""What is known of one parameter of a launch besides its type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Group = Literal["what", "where", "data", "resources", "monitoring", "advanced"]
# How words on the command line become the value, where that does not follow from the type.
Form = Literal["spec", "points", "folder", "unset", "tried", "inputs", "outputs", "ranges"]


@dataclass(frozen=True)
class Parameter:
    """What is known of a parameter besides its type. `name` and `type` are filled in from its declaration.

    `option` is its spelling on the command line where that is not its name, None where there is none; `typed` is the
    help there, where what is typed is not what the flow takes, and `word` one that could be typed. `only` says that it
    is for commands, or for actions.
    """

    group: Group
    help: str
    default: Any = None
    option: str | None = ""
    metavar: str | None = None
    form: Form | None = None
    typed: str = ""
    only: Literal["command", "action"] | None = None
    example: Any = None
    word: str = ""
    name: str = ""
    type: Any = None

    @property
    def spelling(self) -> str | None:
        """Its option on the command line."""
        return f"--{self.name.replace('_', '-')}" if self.option == "" else self.option
