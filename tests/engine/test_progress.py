"""Progress: what a terminal and a log show; times are matched, never compared."""

import io
import re

import pytest
from rich.console import Console

from nextlong.engine.progress import Bars, Lines, Quiet, reporter_for


def console_to(sink, *, terminal):
    return Console(file=sink, force_terminal=terminal, width=100, color_system=None)


def told(reporter_class, *, done, total, terminal, kept=()):
    sink = io.StringIO()
    reporter = reporter_class(console_to(sink, terminal=terminal))
    for label in kept:
        reporter.kept(label)
    with reporter.step("embed", done=done, total=total) as advance:
        for _ in range(total - done):
            advance()
    return sink.getvalue()


def test_log_gets_one_line_a_step():
    text = told(Lines, done=0, total=3, terminal=False, kept=["ingest"])
    assert re.fullmatch(r"ingest: kept\nembed: done in \d+\.\d s\n", text)


def test_log_says_what_an_earlier_run_had_done():
    text = told(Lines, done=2, total=3, terminal=False)
    assert re.fullmatch(r"embed: 2 of 3 tasks were done already\nembed: done in \d+\.\d s\n", text)


def test_log_tells_progress_and_time_left_of_a_long_step(monkeypatch):
    monkeypatch.setattr("nextlong.engine.progress._LINE_EVERY_S", 0.0)
    lines = told(Lines, done=1, total=4, terminal=False).splitlines()
    assert [re.sub(r"about [\d,]+ s left", "about N s left", line) for line in lines[:-1]] == [
        "embed: 1 of 4 tasks were done already",
        "embed: 2 of 4 tasks, about N s left",
        "embed: 3 of 4 tasks, about N s left",
    ]


def test_terminal_shows_a_bar_and_leaves_one_line_a_step():
    text = told(Bars, done=1, total=3, terminal=True, kept=["ingest"])
    assert re.match(r"✓ ingest +kept\n", text)
    assert "1/3" in text
    assert re.search(r"✓ embed +\d+\.\d s\n$", text)


@pytest.mark.parametrize("reporter_class", [Lines, Bars])
def test_step_that_fails_is_not_told_as_done(reporter_class):
    sink = io.StringIO()
    reporter = reporter_class(console_to(sink, terminal=reporter_class is Bars))
    with pytest.raises(ZeroDivisionError), reporter.step("embed", done=0, total=2):
        _ = 1 / 0
    assert "done in" not in sink.getvalue()
    assert "✓" not in sink.getvalue()


@pytest.mark.parametrize("reporter_class", [Lines, Bars])
def test_what_is_told_is_a_plain_line(reporter_class):
    sink = io.StringIO()
    reporter_class(console_to(sink, terminal=reporter_class is Bars)).tell("compose: 3 of 4 [sequences]" + " more" * 30)
    assert sink.getvalue() == "compose: 3 of 4 [sequences]" + " more" * 30 + "\n"


def test_terminal_gets_bars_and_a_file_gets_lines():
    assert isinstance(reporter_for(console_to(io.StringIO(), terminal=True)), Bars)
    assert isinstance(reporter_for(console_to(io.StringIO(), terminal=False)), Lines)


def test_quiet_says_nothing(capsys):
    quiet = Quiet()
    quiet.kept("ingest")
    quiet.tell("too few")
    with quiet.step("embed", done=0, total=1) as advance:
        advance()
    assert capsys.readouterr() == ("", "")


def test_terminal_shows_the_bars_of_steps_side_by_side():
    sink = io.StringIO()
    bars = Bars(console_to(sink, terminal=True))
    with bars.step("encoder", done=0, total=1) as advance_encoder:
        with bars.step("shingles", done=0, total=4) as advance:
            for _ in range(4):
                advance()
        advance_encoder()
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", sink.getvalue())
    assert re.search(r"encoder +[━ ]+ *0/1.*\n +shingles +[━ ]+ *\d/4", text)
    assert re.findall(r"✓ (\w+) +\d+\.\d s\n", text) == ["shingles", "encoder"]
