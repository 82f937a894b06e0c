"""Progress: what a terminal and a log show; times are matched, never compared."""

import io
import re
import threading
import time

import pytest
from rich.console import Console

from nextlong.engine.progress import Lines, Reporter, _Bars, reporter_for


def console_to(sink, *, terminal):
    return Console(file=sink, force_terminal=terminal, width=100, color_system=None)


def told(reporter_class, *, done, total, terminal, kept=()):
    sink = io.StringIO()
    reporter = reporter_class(console_to(sink, terminal=terminal))
    if kept:
        reporter.kept(kept)
    with reporter.step("embed", done=done, total=total) as advance:
        for _ in range(total - done):
            advance(0.0)
    return sink.getvalue()


def test_log_gets_one_line_a_step():
    text = told(Lines, done=0, total=3, terminal=False, kept=["ingest", "select"])
    assert re.fullmatch(r"reused: ingest, select\nembed: done in \d+\.\d s\n", text)


def test_log_says_what_an_earlier_run_had_done():
    text = told(Lines, done=2, total=3, terminal=False)
    assert re.fullmatch(
        r"embed: 2 of 3 tasks were finished before\nembed: done in \d+\.\d s\n", text
    )


@pytest.mark.parametrize(
    ("reporter_class", "line"),
    [(Lines, r"embed \(encode\): done"), (_Bars, r"✓ embed .* encode\n")],
)
def test_a_step_is_told_with_its_title(reporter_class, line):
    sink = io.StringIO()
    reporter = reporter_class(
        console_to(sink, terminal=reporter_class is _Bars), {"embed": "encode"}
    )
    with reporter.step("embed", done=0, total=1):
        pass
    assert re.search(line, sink.getvalue())


PATIENCE_S = 60


class Heard(io.StringIO):
    """A sink that can be waited for."""

    def wait_for(self, pattern):
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.getvalue(), re.MULTILINE):
            assert time.monotonic() < deadline, "waited a minute in vain"
            time.sleep(0.001)


@pytest.mark.parametrize("total", [1, 4])
def test_log_tells_time_spent_and_left_of_a_long_step(monkeypatch, total):
    monkeypatch.setattr("nextlong.engine.progress._LINE_EVERY_S", 0.001)
    sink = Heard()
    with Lines(console_to(sink, terminal=False)).step(
        "embed", done=0, total=total
    ) as advance:
        sink.wait_for(rf"^embed: 0 of {total} tasks in \d+ s$")
        for at in range(1, total):
            advance(0.0)
            sink.wait_for(rf"^embed: {at} of {total} tasks in \d+ s, about \d+ s left$")
        advance(0.0)
    assert re.search(r"^embed: done in \d+\.\d s\n\Z", sink.getvalue(), re.MULTILINE)


def test_log_is_silent_once_a_step_has_failed(monkeypatch):
    monkeypatch.setattr("nextlong.engine.progress._LINE_EVERY_S", 0.001)
    sink = Heard()
    threads = threading.active_count()
    step = Lines(console_to(sink, terminal=False)).step("embed", done=0, total=1)
    with pytest.raises(ZeroDivisionError), step:
        _ = sink.wait_for("^embed: 0 of 1") or 1 / 0
    assert threading.active_count() == threads


def test_terminal_shows_the_time_spent_on_a_single_task():
    sink = Heard()
    with _Bars(console_to(sink, terminal=True)).step(
        "encoder", done=0, total=1
    ) as advance:
        sink.wait_for(r"encoder .*\d:\d\d:\d\d")
        advance(0.0)
    assert "left" not in sink.getvalue()
    assert "-:--:--" not in sink.getvalue()
    assert re.search(r"✓ encoder +\d+\.\d s *\n$", sink.getvalue())


def test_a_bar_advances_with_each_task():
    sink = Heard()
    with _Bars(console_to(sink, terminal=True)).step(
        "embed", done=1, total=4
    ) as advance:
        for finished in (2, 3, 4):
            advance(0.0)
            sink.wait_for(rf"embed .*\b{finished}/4\b")


def test_terminal_shows_a_bar_and_leaves_one_line_a_step():
    text = told(_Bars, done=1, total=3, terminal=True, kept=["ingest", "select"])
    assert re.match(r"✓ reused: ingest, select\n", text)
    assert "1/3" in text
    assert re.search(r"✓ embed +\d+\.\d s *\n$", text)


@pytest.mark.parametrize("reporter_class", [Lines, _Bars])
def test_step_that_fails_is_not_told_as_done(reporter_class):
    sink = io.StringIO()
    reporter = reporter_class(console_to(sink, terminal=reporter_class is _Bars))
    with pytest.raises(ZeroDivisionError), reporter.step("embed", done=0, total=2):
        _ = 1 / 0
    assert "done in" not in sink.getvalue()
    assert "✓" not in sink.getvalue()


@pytest.mark.parametrize("reporter_class", [Lines, _Bars])
def test_what_is_told_is_plain_and_wrapped_on_a_terminal_alone(reporter_class):
    sink = io.StringIO()
    reporter_class(console_to(sink, terminal=reporter_class is _Bars)).tell(
        "compose: 3 of 4 [sequences]" + " more" * 30
    )
    lines = sink.getvalue().splitlines()
    assert (
        " ".join(line.removeprefix("  ") for line in lines)
        == "compose: 3 of 4 [sequences]" + " more" * 30
    )
    assert [len(line) > 100 for line in lines] == (
        [False, False] if reporter_class is _Bars else [True]
    )


def test_a_terminal_is_told_line_by_line():
    sink = io.StringIO()
    _Bars(console_to(sink, terminal=True)).tell("a\nb")
    assert sink.getvalue() == "a\nb\n"


def test_terminal_gets_bars_and_a_file_gets_lines():
    assert isinstance(reporter_for(console_to(io.StringIO(), terminal=True)), _Bars)
    assert isinstance(reporter_for(console_to(io.StringIO(), terminal=False)), Lines)


def test_quiet_says_nothing(capsys):
    quiet = Reporter()
    quiet.kept(["ingest"])
    quiet.tell("too few")
    with quiet.step("embed", done=0, total=1) as advance:
        advance(0.0)
    assert capsys.readouterr() == ("", "")


def test_terminal_shows_the_bars_of_steps_side_by_side():
    sink = io.StringIO()
    bars = _Bars(console_to(sink, terminal=True))
    with bars.step("encoder", done=0, total=1) as advance_encoder:
        with bars.step("shingles", done=0, total=4) as advance:
            for _ in range(4):
                advance(0.0)
        advance_encoder(0.0)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", sink.getvalue())
    assert re.search(r"encoder +━+ +\d:\d\d:\d\d *\n +shingles +[━ ]+ *\d/4", text)
    assert re.findall(r"✓ (\w+) +\d+\.\d s *\n", text) == ["shingles", "encoder"]
