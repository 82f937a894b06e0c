"""Phases: what a terminal and a log show of a run; times are matched, never compared."""

import io
import re

import pytest
from rich.console import Console

from nextlong.engine import phases
from nextlong.engine.executor import SerialExecutor
from nextlong.engine.phases import PhaseBars, PhaseLines, phases_for
from nextlong.engine.runner import run_steps
from nextlong.engine.step import Step, TaskResult


class Counted(TaskResult):
    items: int


def write(items):
    def task(out):
        out.with_name(f"{out.name}.txt").write_text("x")
        return Counted(items=items)

    return task


def fails(_):
    raise ZeroDivisionError


def step(name, phase, *inputs, tasks=(1,), task=write):
    return Step(
        name=name,
        phase=phase,
        version=1,
        config={},
        inputs=inputs,
        tasks=lambda _: [task(items) for items in tasks],
        result=Counted,
    )


def items_of(name):
    return {
        name: lambda done: (
            f"{sum(part.items for part in done.results(Counted))} of {name}"
        )
    }


OUTCOMES = {"read": items_of("chunk"), "search": items_of("mine")}


def route():
    """Two phases, of which the second begins first, and a step without a phase."""
    early = step("weights", "search")
    ingest = step("ingest", "read", early)
    chunk = step("chunk", "read", ingest, tasks=(2, 3))
    mine = step("mine", "search", chunk, tasks=(4, 5))
    return [early, ingest, chunk, mine, step("extra", "", mine)]


def told(folder, *, terminal, steps=None, executor=SerialExecutor):
    sink = io.StringIO()
    console = Console(file=sink, force_terminal=terminal, width=100, color_system=None)
    with executor() as opened:
        run_steps(
            route() if steps is None else steps,
            run_dir=folder,
            executor=opened,
            reporter=phases_for(console, OUTCOMES),
        )
    return sink.getvalue()


def test_a_log_has_one_line_a_phase_in_their_order(tmp_path):
    lines = told(tmp_path, terminal=False).splitlines()
    took = r"done in \d+\.\d s"
    for line, pattern in zip(
        lines,
        [f"read: {took}; 5 of chunk", f"search: {took}; 9 of mine", f"extra: {took}"],
        strict=True,
    ):
        assert re.fullmatch(pattern, line)


def test_a_phase_is_reused_if_all_its_steps_are(tmp_path):
    steps = route()
    first = told(tmp_path, terminal=False, steps=steps[:3]).splitlines()
    assert re.fullmatch(r"search: done in \d+\.\d s", first[1])
    lines = told(tmp_path, terminal=False, steps=steps).splitlines()
    assert lines[0] == "read: reused; 5 of chunk"
    assert lines[1].startswith("search: done in ")
    again = told(tmp_path, terminal=False, steps=steps).splitlines()
    assert again == [
        "read: reused; 5 of chunk",
        "search: reused; 9 of mine",
        "extra: reused",
    ]


def test_a_terminal_shows_a_bar_and_leaves_one_line_a_phase(tmp_path):
    text = told(tmp_path, terminal=True)
    assert re.search(r"read +━", text)
    left = re.findall(r"✓ (\w+) +\d+\.\d s *(.*?) *$", text, re.MULTILINE)
    assert left == [("read", "5 of chunk"), ("search", "9 of mine"), ("extra", "")]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_phase_that_fails_is_not_told_as_done(tmp_path, terminal):
    failing = step("chunk", "read", step("ingest", "read"), task=lambda _: fails)
    sink = io.StringIO()
    console = Console(file=sink, force_terminal=terminal, width=100, color_system=None)
    reporter = phases_for(console, OUTCOMES)
    with SerialExecutor() as executor, pytest.raises(ZeroDivisionError):
        run_steps(
            [*failing.inputs, failing],
            run_dir=tmp_path,
            executor=executor,
            reporter=reporter,
        )
    assert "done in" not in sink.getvalue()
    assert "✓" not in sink.getvalue()
    if terminal:
        # The cursor, hidden while bars are shown, is back.
        assert sink.getvalue().rindex("\x1b[?25h") > sink.getvalue().rindex("\x1b[?25l")


def test_what_an_earlier_run_had_done_is_told(tmp_path):
    sink = io.StringIO()
    reporter = PhaseLines(Console(file=sink, width=100), OUTCOMES)
    chunk = step("chunk", "read")
    with reporter.route([chunk]), reporter.step("chunk", done=2, total=3) as advance:
        advance(0.0)
    assert sink.getvalue() == "read: chunk: 2 of 3 tasks were finished before\n"


def test_a_bar_counts_the_tasks_of_all_steps_of_its_phase(tmp_path):
    phase = phases._Phase("read")
    for name in ("ingest", "chunk", "late"):
        phase.announce(name)
    assert phase.tasks == 3
    with phase.running("ingest", done=1, total=4):
        assert (phase.finished_tasks, phase.tasks) == (1, 6)
    phase.finish("ingest")
    # Reused.
    phase.finish("chunk")
    assert (phase.unfinished, phase.tasks) == ({"late"}, 5)


def test_a_phase_that_runs_again_is_told_again(tmp_path):
    sink = io.StringIO()
    reporter = PhaseBars(
        Console(file=sink, force_terminal=True, width=100, color_system=None), {}
    )
    for number in range(2):
        drafted = step(f"draft{number}", "compose")
        with SerialExecutor() as executor:
            run_steps([drafted], run_dir=tmp_path, executor=executor, reporter=reporter)
    assert len(re.findall("✓ compose", sink.getvalue())) == 2


def test_the_number_of_an_earlier_variant_is_not_told(tmp_path):
    sink = io.StringIO()
    reporter = PhaseLines(Console(file=sink, width=100), OUTCOMES)
    for name in ("mine", "keywords"):
        steps = [step(name, "search")]
        with SerialExecutor() as executor:
            run_steps(steps, run_dir=tmp_path, executor=executor, reporter=reporter)
    first, second = sink.getvalue().splitlines()
    assert first.endswith("1 of mine")
    assert "mine" not in second
