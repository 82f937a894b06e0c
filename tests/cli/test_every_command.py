"""All commands alike: JSON where it is asked for, plain text where no terminal is, and 80 columns where one is."""

import json
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len
from tests.support.every_command import (
    NEEDS_EXTRA,
    SERVES,
    commands,
    documented,
    every_command,
    parsers_of,
    paths_left_out,
)
from tests.support.larger_cases import thorough

from nextlong.cli import main

NAMES = (
    "demo", "init", "init --preset", "plan", "run", "run --before", "run --only-step",
    "list", "gc", "peek", "peek NUMBER", "stats", "compare", "report", "sweep", "refresh",
    "export", "train", "train --dry-run", "evaluate", "evaluate --dry-run", "verify", "doctor",
)  # fmt: skip
EVERY = [
    pytest.param(name, marks=pytest.mark.heavy) if name in NEEDS_EXTRA else name
    for name in NAMES
]
# Three tests go through every command. Without a terminal, these are left to CI: they
# take most of the time.
SLOW = ("demo", "plan", "run --before", "compare", "sweep", "export", "verify")
QUICK = [name for name in EVERY if name not in SLOW] + thorough(*SLOW)
DOCUMENTED = {  # the heading of the page that names a command's keys
    "demo": "run",
    "train --dry-run": "train",
    "refresh": "run",
    **{name: name for name in ("init", "evaluate", "completion", "sweep", "report")},
}
COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d(?:;\d+)*m")
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def asked(tmp_path_factory, few_run, few_recipe):
    """The arguments of every command."""
    with pytest.MonkeyPatch.context() as patch:
        arguments = every_command(
            tmp_path_factory.mktemp("every"), few_run, few_recipe, patch
        )
        assert main.main(arguments["train"]) == 0  # whose recipe its dry run reads
        yield arguments


@pytest.fixture
def printed(asked, capfd):
    """A function that runs a command and returns what it printed on both streams."""

    def call(name, *more):
        capfd.readouterr()
        assert main.main([*asked[name], *more]) == 0
        return capfd.readouterr()

    return call


def test_no_command_is_forgotten(asked):
    assert set(asked) == {*NAMES, SERVES, "completion"}
    assert {name.split()[0] for name in asked} == set(commands())
    assert [
        parser.prog
        for command in commands().values()
        for parser in parsers_of(command)
        if "--json" not in parser.format_help()
    ] == []


@pytest.mark.parametrize("name", [*EVERY, "completion"])
def test_json_is_one_value_with_the_keys_that_the_page_names_and_nothing_else(
    printed, name
):
    told = json.loads(printed(name, "--json").out)
    assert told
    if name in DOCUMENTED:
        for one in told if isinstance(told, list) else [told]:
            assert list(one) == documented(DOCUMENTED[name])


@pytest.mark.parametrize("name", QUICK)
def test_without_a_terminal_there_are_no_colours(printed, name):
    out, err = printed(name)
    assert "\x1b" not in out + err
    assert (out + err).strip()
    assert [line for line in out.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("name", EVERY)
def test_a_terminal_of_80_columns_is_wide_enough_and_no_colour_is_heard(
    printed, monkeypatch, name
):
    for key, value in {
        "FORCE_COLOR": "1",
        "NO_COLOR": "1",
        "COLUMNS": "80",
        "TERM": "xterm-256color",
    }.items():
        monkeypatch.setenv(key, value)
    out, err = printed(name)
    assert not COLOURS.search(out + err)
    lines = CODES.sub("", out + err).splitlines()
    assert [line for line in lines if cell_len(paths_left_out(line)) > 80] == []
    assert [
        line
        for line in lines
        if re.search(r"\b1 (chunk|document|sequence|row|step|task|token)s\b", line)
    ] == []


def test_a_terminal_has_its_errors_within_80_columns(capfd, monkeypatch):
    for key, value in {
        "FORCE_COLOR": "1",
        "COLUMNS": "80",
        "TERM": "xterm-256color",
    }.items():
        monkeypatch.setenv(key, value)
    assert main.main(["plan"]) == 2
    err = capfd.readouterr().err
    assert COLOURS.search(err)
    assert max(map(cell_len, CODES.sub("", err).splitlines())) <= 80


@pytest.mark.browser
def test_the_viewer_says_its_address_as_json(asked):
    command = [sys.executable, "-m", "nextlong", *asked[SERVES], "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            told = json.loads(process.stdout.readline())
        finally:
            process.terminate()
    assert told["address"].startswith("http://127.0.0.1:")
