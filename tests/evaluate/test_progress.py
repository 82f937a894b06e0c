"""Progress of an evaluation: on a terminal a score takes the place of the moving line, whole."""

import io

import pytest
from rich.console import Console

from nextlong.evaluate.progress import Progress


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_score_erases_the_moving_line_on_a_terminal_alone(is_terminal):
    sink = io.StringIO()
    console = Console(file=sink, force_terminal=is_terminal, width=100, color_system=None, _environ={"TERM": "xterm"})
    progress = Progress(console)
    progress.begin(1)
    progress.start("vt", 8192, 4, done=0)
    progress.advance(4)
    progress.done(50.0, samples=4, refused=0)
    _, erased, last = sink.getvalue().rpartition("\x1b[2K")
    assert bool(erased) is is_terminal
    assert "vt" in last
    assert "left" not in last
