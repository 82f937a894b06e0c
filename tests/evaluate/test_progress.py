"""Progress: one moving line on a terminal, else a line per minute; the time left."""

import io

import pytest
from rich.console import Console

from nextlong.evaluate.progress import TaskProgress


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_score_erases_the_moving_line_on_a_terminal_alone(is_terminal):
    sink = io.StringIO()
    console = Console(
        file=sink,
        force_terminal=is_terminal,
        width=100,
        color_system=None,
        _environ={"TERM": "xterm"},
    )
    progress = TaskProgress(console)
    progress.tokens = [4 * 8192]
    progress.start("vt", 8192, 4, done=0)
    progress.advance(4)
    progress.done("50.00")
    _, erased, last = sink.getvalue().rpartition("\x1b[2K")
    assert bool(erased) is is_terminal
    assert "vt" in last
    assert "left" not in last


@pytest.fixture
def told(monkeypatch):
    """Return what gives the lines told without a terminal, the clock put forward before each step."""
    now = [0.0]
    monkeypatch.setattr("nextlong.evaluate.progress.time.monotonic", lambda: now[0])

    def tell(*, begin, steps):
        sink = io.StringIO()
        progress = TaskProgress(Console(file=sink, width=120))
        progress.tokens = begin
        for seconds, step in steps:
            now[0] += seconds
            step(progress)
        return sink.getvalue().splitlines()

    return tell


def test_without_a_terminal_a_long_task_tells_once_a_minute_what_is_left(told):
    lines = told(
        begin=[10 * 1000, 0, 10 * 3000],
        steps=[
            (0, lambda progress: progress.start("vt", 1000, 10, done=0)),
            (50, lambda progress: progress.advance(1)),
            (50, lambda progress: progress.advance(1)),
            (50, lambda progress: progress.advance(1)),
            (350, lambda progress: progress.advance(7)),
            (0, lambda progress: progress.done("50.00")),
        ],
    )
    # 50 s a sample of 1,000 tokens; behind it are 30,000 tokens more, at 0.05 s each.
    assert [line.split("1,000", 1)[1].strip() for line in lines] == [
        "2/10  0:06:40 left, about 0:31:40 for all",
        "10/10  0:00:00 left, about 0:25:00 for all",
        "50.00",
    ]
    assert lines[0].startswith("[1/3] vt")


def test_the_time_that_loading_the_model_took_is_no_part_of_the_pace(told):
    lines = told(
        begin=[2 * 1000, 2 * 1000],
        steps=[
            (600, lambda progress: progress.start("vt", 1000, 2, done=0)),
            (100, lambda progress: progress.advance(1)),
        ],
    )
    assert lines[-1].endswith("1/2  0:01:40 left, about 0:05:00 for all")


def test_what_an_earlier_run_answered_and_tasks_without_a_length_are_no_pace(told):
    lines = told(
        begin=[0, 10 * 1000],
        steps=[
            (0, lambda progress: progress.start("dependency", None, 4, done=2)),
            (70, lambda progress: progress.advance(1)),
        ],
    )
    assert [line.strip() for line in lines] == [
        "[1/2] dependency         resumes after 2 of 4 samples",
        "[1/2] dependency         3/4  0:01:10 left",
    ]


def test_what_is_left_of_a_task_gone_on_with_is_read_at_its_own_length(told):
    lines = told(
        begin=[1 * 1000, 1 * 1000],  # of ten samples each, nine answered before
        steps=[
            (0, lambda progress: progress.start("vt", 1000, 10, done=9)),
            (100, lambda progress: progress.advance(1)),
        ],
    )
    assert lines[-1].endswith("10/10  0:00:00 left, about 0:01:40 for all")
