"""Tables of plain text: whole in a pipe, in blocks on a terminal that is too narrow."""

import io

import pytest
from rich.console import Console

from nextlong.report import tables

HEADINGS = ["", "first", "second", "a\nb"]
ROWS = [["[x] mean", "1.0", "22,222", "–"], ["most", "3", "4", "5"]]


def shown(headings, rows, *, width=None):
    """Return the lines as a terminal `width` cells wide gets them, or a pipe."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=width or 80,
        force_terminal=width is not None,
        color_system=None,
    )
    tables.show_in_blocks(headings, rows, console, names=1)
    return file.getvalue().splitlines()


def test_a_pipe_gets_one_line_a_row_without_blanks_at_its_end():
    assert shown(HEADINGS, ROWS) == [
        "                         a",
        "          first  second  b",
        "[x] mean    1.0  22,222  –",
        "most          3       4  5",
    ]


@pytest.mark.parametrize("width", [26, 200])
def test_a_terminal_wide_enough_gets_the_same(width):
    assert [line.rstrip() for line in shown(HEADINGS, ROWS, width=width)] == shown(
        HEADINGS, ROWS
    )


def test_on_a_narrow_terminal_the_names_stand_in_every_block():
    assert [line.rstrip() for line in shown(HEADINGS, ROWS, width=25)] == [
        "          first  second",
        "[x] mean    1.0  22,222",
        "most          3       4",
        "",
        "          a",
        "          b",
        "[x] mean  –",
        "most      5",
    ]


def test_a_long_heading_goes_on_below_and_numbers_stay_whole():
    heading = "a/run/directory/with-a-long-name"
    top, below, row = shown(["", heading], [["tokens", "1"]], width=60)
    assert (top.split(), below.split()) == ([heading[:24]], [heading[24:]])
    assert row.split() == ["tokens", "1"]


def test_a_table_of_names_alone_is_shown():
    assert shown(["name"], [["x"]]) == ["name", "x"]


@pytest.mark.parametrize(
    ("cells", "text"), [(9, "a/long/id"), (8, "…long/id"), (2, "…d"), (1, "…")]
)
def test_the_end_of_an_id_stays(cells, text):
    assert tables.tail("a/long/id", cells) == text


@pytest.mark.parametrize(
    ("width", "lines"),
    [(12, ["error: a b c", "  d e f"]), (None, ["error: a b c d e f"])],
    ids=["terminal", "pipe"],
)
def test_a_message_goes_on_indented_on_a_terminal_and_whole_in_a_pipe(width, lines):
    file = io.StringIO()
    console = Console(
        file=file,
        width=width or 12,
        force_terminal=width is not None,
        color_system=None,
    )
    tables.say("a b c d e f", console, label="error: ")
    assert file.getvalue().splitlines() == lines


def test_nothing_that_turns_the_writing_direction_is_printed(capsys):
    hostile = "a\u202ab\u202bc\u202cd\u202de\u202ef\u2066g\u2067h\u2068i\u2069j \u05d0"
    console = Console()
    tables.show_facts([("warning", hostile)], console)
    tables.say(hostile, console)
    assert capsys.readouterr().out == "warning: abcdefghij \u05d0\nabcdefghij \u05d0\n"
