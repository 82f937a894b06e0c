"""Checks side by side: results by name, errors as they are, a killed process in words."""

import os
import subprocess
import sys
from functools import partial

import pytest

from nextlong.errors import RunError
from nextlong.verify.processes import side_by_side


def test_results_are_had_in_any_order():
    calls = {name: partial(int, name) for name in ("1", "2", "3")}
    with side_by_side(calls, processes=2) as result_of:
        assert [result_of(name) for name in ("3", "1", "2")] == [3, 1, 2]


def test_an_error_is_the_one_that_was_raised():
    with (
        pytest.raises(ValueError, match="invalid literal"),
        side_by_side({"one": partial(int, "one")}, processes=1) as result_of,
    ):
        result_of("one")


def test_a_killed_process_is_said_with_what_to_do():
    with (
        pytest.raises(RunError, match="--workers 1"),
        side_by_side({"killed": partial(os._exit, 1)}, processes=1) as result_of,
    ):
        result_of("killed")


def test_ctrl_c_reaches_no_process_from_its_start_on():
    code = """
import signal
from functools import partial
from nextlong.verify.processes import side_by_side
blocked = partial(signal.pthread_sigmask, signal.SIG_BLOCK, ())
with side_by_side({"blocked": blocked}, processes=1) as result_of:
    print(signal.SIGINT in result_of("blocked"), signal.SIGINT in blocked())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
