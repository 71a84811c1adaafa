"""What the runner takes from the depths of Python is the same as what people import, on any Python."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from runner_tools import old_python

from prefect_tao.runner.inside import fast_imports

VALUES: list[Any] = [
    {},
    {"a": None, "b": [True, False], "c": {"d": [1, -2, 1e300, 0.1, 10**30]}},
    {"text": 'it\'s "two" words\n\t\\ \x00 é漢🙂', "": "", "lone": "\ud800"},
    {"large": ["x" * 100] * 10000},
    {"odd": [float("inf"), float("-inf")]},
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_json_is_written_and_read_as_by_the_standard_library(value: Any) -> None:
    text = fast_imports.dumps(value)
    assert text == json.dumps(value, ensure_ascii=False)
    assert fast_imports.loads(text) == value
    assert fast_imports.loads(json.dumps(value)) == value


@pytest.mark.parametrize("text", ["", "{", '{"a": 1', '{"a": ', "nothing", '"\x01"'])
def test_a_text_that_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="line 1 column"):
        fast_imports.loads(text)


def test_signals_and_partial_are_those_of_the_standard_library() -> None:
    assert fast_imports.partial is functools.partial
    assert (fast_imports.signal.SIGTERM, fast_imports.signal.SIG_IGN) == (signal.SIGTERM, signal.SIG_IGN)


def test_an_old_python_and_one_without_its_depths_agree() -> None:
    """The second stands for a Python that is not CPython."""
    code = f"import sys; sys.path.insert(0, {fast_imports.__file__.rpartition('/')[0]!r}); import fast_imports; "
    code += "print(fast_imports.dumps(fast_imports.loads(sys.argv[1])))"
    hidden = "import sys; sys.modules['_json'] = None; "
    for python, prelude in ((old_python() or sys.executable, ""), (sys.executable, hidden)):
        for value in VALUES[:2]:
            told = subprocess.run(
                [python, "-S", "-c", prelude + code, json.dumps(value)], capture_output=True, check=True
            )
            assert told.stdout.decode().strip() == json.dumps(value)
