"""Runner: fingerprints, what is kept and what runs again, errors half-way, manifests and folder names."""

import itertools
import json
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.counted import counts_of, total

from nextlong.engine import runner, store
from nextlong.engine.executor import Resources, SerialExecutor
from nextlong.engine.progress import Reporter
from nextlong.engine.step import Join, Step, TaskResult, Work
from nextlong.errors import CorpusError, RunError


class Number(TaskResult):
    number: int


class Closed(TaskResult):
    closed: int


def write_number(out, *, number, log):
    """Write one number; say so in the log, by which tests see what ran."""
    with log.open("a") as lines:
        lines.write(f"{out.parent.parent.name.split('-')[1]} {out.name[-1]}\n")
    out.with_suffix(".txt").write_text(str(number))
    return Number(number=number)


def add_up(out, *, paths, factor, log):
    return write_number(
        out, number=factor * sum(int(path.read_text()) for path in paths), log=log
    )


def refused(problem):
    """Return an error of the user."""
    return CorpusError(where="numbers", problem=problem, fix="correct them")


def fail(out, *, error):
    out.with_suffix(".txt").write_text("half")
    raise error


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def ran(log):
    """Return the tasks that ran since the last call, as `step task`."""
    lines = log.read_text().splitlines()
    log.write_text("")
    return lines


def numbers_step(log, *, count=3, first=1):
    def tasks(done):
        assert done == {}
        return [
            partial(write_number, number=first + place, log=log)
            for place in range(count)
        ]

    return Step("numbers", 1, {"count": count, "first": first}, (), tasks, Number)


def sum_step(log, numbers, *, name="sum", factor=1):
    def tasks(done):
        assert list(done) == ["numbers"]
        return [
            partial(add_up, paths=done["numbers"].files(".txt"), factor=factor, log=log)
        ]

    return Step(name, 1, {"factor": factor}, (numbers,), tasks)


def failing_step(error, *, failing=1, log=None, check=None):
    """Return a step of three tasks of which one fails."""

    def tasks(_):
        good = [partial(write_number, number=place, log=log) for place in range(3)]
        good[failing] = partial(fail, error=error)
        return good

    return Step("numbers", 1, {"count": 3, "first": 1}, (), tasks, check=check)


def run(steps, run_dir):
    return runner.run_steps(steps, run_dir=run_dir, executor=SerialExecutor())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# fingerprints


def test_fingerprint_is_pinned_because_a_new_one_would_throw_away_every_run():
    step = Step(
        "chunk",
        2,
        {"max_chars": 2048, "length": "slice"},
        (Step("ingest", 1, {}, (), tuple),),
        tuple,
    )
    assert [step.inputs[0].fingerprint, step.fingerprint] == [
        "7f6c60a6df64",
        "38e10b8a56ee",
    ]


def test_order_of_keys_does_not_matter_and_everything_else_does():
    top = Step("ingest", 1, {"a": 1}, (), tuple)
    other = Step("ingest", 1, {"a": 2}, (), tuple)
    base = Step("x", 1, {"p": 1, "q": [1, 2]}, (top, other), tuple).fingerprint
    assert (
        Step(
            "x",
            1,
            {"q": [1, 2], "p": 1},
            (top, other),
            list,
            resources=Resources(at_once=1),
        ).fingerprint
        == base
    )
    changed = [
        Step("y", 1, {"p": 1, "q": [1, 2]}, (top, other), tuple),
        Step("x", 2, {"p": 1, "q": [1, 2]}, (top, other), tuple),
        Step("x", 1, {"p": 2, "q": [1, 2]}, (top, other), tuple),
        Step("x", 1, {"p": 1, "q": [2, 1]}, (top, other), tuple),
        Step("x", 1, {"p": 1, "q": [1, 2]}, (other, top), tuple),
        Step("x", 1, {"p": 1, "q": [1, 2]}, (top,), tuple),
    ]
    assert len({base, *(step.fingerprint for step in changed)}) == 7


def test_one_knob_makes_its_own_step_anew_and_those_below_only(log, run_dir):
    def route(*, first, factor):
        numbers = numbers_step(log, first=first)
        return [
            numbers,
            sum_step(log, numbers),
            sum_step(log, numbers, name="scaled", factor=factor),
        ]

    run(route(first=1, factor=10), run_dir)
    assert ran(log) == ["numbers 0", "numbers 1", "numbers 2", "sum 0", "scaled 0"]
    done = run(route(first=1, factor=20), run_dir)
    assert ran(log) == ["scaled 0"]
    assert done["scaled"].file(".txt").read_text() == "120"
    run(route(first=2, factor=20), run_dir)
    assert ran(log) == ["numbers 0", "numbers 1", "numbers 2", "sum 0", "scaled 0"]
    run(route(first=1, factor=10), run_dir)  # going back costs nothing
    assert ran(log) == []


# what a step leaves


def test_folders_are_numbered_in_route_order_and_one_made_on_another_route_is_reused(
    log, run_dir
):
    numbers = numbers_step(log)
    total, scaled = (
        sum_step(log, numbers),
        sum_step(log, numbers, name="scaled", factor=2),
    )
    run([numbers, total], run_dir)
    assert names(run_dir) == [
        f"01-numbers-{numbers.fingerprint}",
        f"02-sum-{total.fingerprint}",
    ]
    ran(log)
    done = run([numbers, scaled, total], run_dir)
    assert ran(log) == ["scaled 0"]
    assert done["sum"].folder.name == f"02-sum-{total.fingerprint}"
    assert done["scaled"].folder.name == f"02-scaled-{scaled.fingerprint}"


def test_manifest_says_what_was_made_from_what_with_which_versions(log, run_dir):
    numbers = numbers_step(log, count=2, first=5)
    total = sum_step(log, numbers, factor=3)
    done = run([numbers, total], run_dir)
    manifest = json.loads((done["sum"].folder / "manifest.json").read_text())
    assert manifest == done["sum"].manifest
    assert {
        key: manifest[key]
        for key in ("step", "version", "fingerprint", "config", "inputs", "bytes")
    } == {
        "step": "sum",
        "version": 1,
        "fingerprint": total.fingerprint,
        "config": {"factor": 3},
        "inputs": {"numbers": numbers.fingerprint},
        "bytes": 2,
    }
    (part,) = manifest["parts"]
    assert part["counts"] == {"number": 33}
    assert part["files"]["part-00000.txt"]["bytes"] == 2
    assert manifest["seconds"] >= part["seconds"] >= 0
    assert {
        "python",
        "nextlong",
        "numpy",
        "pyarrow",
        "faiss-cpu",
        "tokenizers",
    } <= manifest["versions"].keys()


def test_finished_step_gives_files_and_counts_in_task_order(log, run_dir):
    done = run([numbers_step(log, count=12)], run_dir)["numbers"]
    assert [int(path.read_text()) for path in done.files(".txt")] == list(range(1, 13))
    assert [counts["number"] for counts in counts_of(done)] == list(range(1, 13))
    assert total(done, "number") == 78
    assert done.stem().with_suffix(".txt") == done.files(".txt")[0]
    assert runner.open_done("numbers", done.folder) == done


def test_the_largest_tasks_begin_first_and_keep_their_numbers(log, run_dir):
    step = replace(numbers_step(log, count=4), sizes=(1, 9, 4, 9))
    done = run([step], run_dir)["numbers"]
    assert ran(log) == ["numbers 1", "numbers 3", "numbers 2", "numbers 0"]
    assert [path.read_text() for path in done.files(".txt")] == ["1", "2", "3", "4"]


def test_step_without_tasks_is_finished_at_once(log, run_dir):
    done = run([numbers_step(log, count=0)], run_dir)["numbers"]
    assert names(done.folder) == ["manifest.json"]
    assert (counts_of(done), done.files(".txt"), done.manifest["bytes"]) == ([], [], 0)


# resuming


def test_run_goes_on_at_the_first_missing_task(log, run_dir):
    with pytest.raises(CorpusError, match="task 2"):
        run([failing_step(refused("task 2"), failing=2, log=log)], run_dir)
    assert ran(log) == ["numbers 0", "numbers 1"]
    numbers = numbers_step(log)
    assert runner.find_done(numbers, run_dir) is None
    assert runner.begun_tasks(numbers, run_dir) == 2
    run([numbers], run_dir)
    assert ran(log) == ["numbers 2"]
    assert total(runner.find_done(numbers, run_dir), "number") == 0 + 1 + 3


def test_a_step_that_did_nothing_before_it_failed_leaves_no_folder(log, run_dir):
    with pytest.raises(CorpusError):
        run([failing_step(refused("no"), failing=0, log=log)], run_dir)
    assert names(run_dir) == []


def test_failed_task_leaves_nothing_half_written(log, run_dir):
    with pytest.raises(CorpusError):
        run([failing_step(refused("no"), log=log)], run_dir)
    (folder,) = run_dir.iterdir()
    assert names(folder) == [".part-00000.json", "part-00000.txt"]


def test_altered_file_of_an_unfinished_step_is_made_anew(log, run_dir):
    with pytest.raises(CorpusError):
        run([failing_step(refused("no"), failing=2, log=log)], run_dir)
    (folder,) = run_dir.iterdir()
    (folder / "part-00001.txt").write_text("9")
    ran(log)
    run([numbers_step(log)], run_dir)
    assert ran(log) == ["numbers 1", "numbers 2"]
    assert (folder / "part-00001.txt").read_text() == "2"


def test_leftovers_of_a_killed_run_are_removed(log, run_dir):
    numbers = numbers_step(log)
    folder = numbers.folder(run_dir, place=1)
    (folder / ".work-00001-dead").mkdir(parents=True)
    (folder / ".work-00001-dead" / "part-00001.txt").write_text("half")
    (folder / "part-00002.txt").write_text("moved before its marker was written")
    run([numbers], run_dir)
    assert ran(log) == ["numbers 0", "numbers 1", "numbers 2"]
    assert names(folder) == [
        "manifest.json",
        "part-00000.txt",
        "part-00001.txt",
        "part-00002.txt",
    ]
    assert (folder / "part-00002.txt").read_text() == "3"


def test_finished_step_whose_file_was_altered_is_refused(log, run_dir):
    done = run([numbers_step(log)], run_dir)["numbers"]
    (done.folder / "part-00001.txt").write_text("22")
    for refused in (
        lambda: run([numbers_step(log)], run_dir),
        lambda: runner.open_done("numbers", done.folder),
    ):
        with pytest.raises(RunError) as error:
            refused()
        assert error.value.where == str(done.folder / "part-00001.txt")
        assert str(done.folder) in error.value.fix


def test_deleting_the_folder_as_the_error_says_mends_the_run(log, run_dir):
    numbers = numbers_step(log)
    steps = [numbers, sum_step(log, numbers)]
    done = run(steps, run_dir)
    ran(log)
    for path in done["numbers"].folder.iterdir():
        path.unlink()
    run(steps, run_dir)
    assert ran(log) == ["numbers 0", "numbers 1", "numbers 2"]


# errors


def test_error_of_the_operating_system_in_a_task_becomes_one_that_names_the_step(
    run_dir,
):
    with pytest.raises(RunError, match=r"01-numbers-.*full"):
        run(
            [failing_step(OSError("1000 requested and 10 written"), failing=0)], run_dir
        )


@pytest.mark.parametrize(
    "error", [MemoryError(), pa.ArrowMemoryError("malloc of size 99 failed")]
)
def test_a_task_that_gets_no_memory_is_named_with_the_cure(log, run_dir, error):
    with pytest.raises(RunError) as caught:
        run([failing_step(error, log=log)], run_dir)
    assert caught.value.where.startswith("numbers task 1 ")
    assert "/part-00001." in caught.value.where
    assert "workers=1" in caught.value.fix
    assert ran(log) == ["numbers 0"]
    run([numbers_step(log, first=0)], run_dir)


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_changes_nothing(log, run_dir, tmp_path, monkeypatch, jump):
    """Each look at the clock is a day before or after the last; files get such times, too."""
    numbers = numbers_step(log)
    other = tmp_path / "other"
    other.mkdir()
    run([numbers, sum_step(log, numbers)], other)
    now = itertools.count(time.time(), jump)
    monkeypatch.setattr(time, "time", lambda: next(now))
    (one,) = run([numbers], run_dir).values()
    for path in one.folder.iterdir():
        os.utime(path, (next(now), next(now)))
    done = run([numbers, sum_step(log, numbers)], run_dir)
    assert [
        part["files"]["part-00000.txt"]["xxh3"]
        for part in done["sum"].manifest["parts"]
    ] == [
        part["files"]["part-00000.txt"]["xxh3"]
        for part in store.read_json(next(other.glob("*-sum-*/manifest.json")))["parts"]
    ]
    assert all(step.manifest["seconds"] >= 0 for step in done.values())


def test_bug_in_a_task_stays_what_it_is(run_dir):
    with pytest.raises(ZeroDivisionError):
        run([failing_step(ZeroDivisionError(), failing=0)], run_dir)


def test_check_refuses_a_finished_step_every_time_and_keeps_its_work(log, run_dir):
    def too_few(done):
        if total(done, "number") < 100:
            raise CorpusError(
                where="sum", value=total(done, "number"), problem="is low", fix="add"
            )

    numbers = numbers_step(log)
    checked = Step(
        numbers.name, numbers.version, numbers.config, (), numbers.tasks, check=too_few
    )
    for _ in range(2):
        with pytest.raises(CorpusError, match="^sum=6 is low; add$"):
            run([checked, sum_step(log, checked)], run_dir)
    assert ran(log) == ["numbers 0", "numbers 1", "numbers 2"]
    assert len(names(run_dir)) == 1


def test_run_killed_after_its_last_task_only_writes_the_manifest(log, run_dir):
    class KilledAtTheEnd(Reporter):
        @contextmanager
        def step(self, label, *, done, total):
            count = itertools.count(done + 1)

            def advance(_):
                if next(count) == total:
                    raise KeyboardInterrupt

            yield advance

    numbers = numbers_step(log)
    with pytest.raises(KeyboardInterrupt):
        runner.run_steps(
            [numbers],
            run_dir=run_dir,
            executor=SerialExecutor(),
            reporter=KilledAtTheEnd(),
        )
    assert len(ran(log)) == 3
    assert runner.find_done(numbers, run_dir) is None
    done = run([numbers], run_dir)["numbers"]
    assert ran(log) == []
    assert names(done.folder) == [
        "manifest.json",
        "part-00000.txt",
        "part-00001.txt",
        "part-00002.txt",
    ]


def test_damaged_manifest_names_itself_and_deleting_it_mends_the_run(log, run_dir):
    manifest = run([numbers_step(log)], run_dir)["numbers"].folder / store.MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:100])
    with pytest.raises(RunError) as error:
        run([numbers_step(log)], run_dir)
    assert error.value.where == str(manifest)
    manifest.unlink()
    assert total(run([numbers_step(log)], run_dir)["numbers"], "number") == 6


def close_numbers(out, *, results, log):
    (out.parent / "index.json").write_text(
        json.dumps([result.number for result in results])
    )
    with log.open("a") as lines:
        lines.write(f"closed {out.name}\n")
    return Closed(closed=len(results))


def closed_step(log, count=3, closing=close_numbers):
    def work(done):
        tasks = numbers_step(log, count=count).tasks(done)
        return Work(
            tasks,
            [
                Join(
                    range(count),
                    lambda results: partial(closing, results=results, log=log),
                )
            ],
        )

    return Step("closed", 1, {}, (), work, Number)


def test_a_closing_task_runs_once_all_others_are_done(log, run_dir):
    (done,) = runner.run_steps(
        [closed_step(log)], run_dir=run_dir, executor=SerialExecutor()
    ).values()
    assert ran(log) == ["closed 0", "closed 1", "closed 2", "closed part-00003"]
    assert json.loads((done.folder / "index.json").read_text()) == [1, 2, 3]
    assert counts_of(done) == [{"number": 1}, {"number": 2}, {"number": 3}]
    runner.run_steps([closed_step(log)], run_dir=run_dir, executor=SerialExecutor())
    assert ran(log) == []


def test_a_step_killed_before_it_was_closed_is_closed_by_the_next_run(log, run_dir):
    step = closed_step(log)
    broken = closed_step(
        log, closing=lambda out, results, log: fail(out, error=refused("stop"))
    )
    with pytest.raises(CorpusError, match="stop"):
        runner.run_steps([broken], run_dir=run_dir, executor=SerialExecutor())
    assert ran(log) == ["closed 0", "closed 1", "closed 2"]
    (done,) = runner.run_steps(
        [step], run_dir=run_dir, executor=SerialExecutor()
    ).values()
    assert ran(log) == ["closed part-00003"]
    assert (done.folder / "index.json").exists()


def test_a_lost_file_of_a_closed_step_is_made_again_without_closing_it_twice(
    log, run_dir
):
    class KilledAtTheEnd(Reporter):
        @contextmanager
        def step(self, label, *, done, total):
            yield lambda _: None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run_steps(
            [closed_step(log)],
            run_dir=run_dir,
            executor=SerialExecutor(),
            reporter=KilledAtTheEnd(),
        )
    assert ran(log) == ["closed 0", "closed 1", "closed 2", "closed part-00003"]
    (lost,) = run_dir.glob("*-closed-*/part-00001.txt")
    lost.unlink()
    (done,) = run([closed_step(log)], run_dir).values()
    assert ran(log) == ["closed 1"]
    assert counts_of(done) == [{"number": 1}, {"number": 2}, {"number": 3}]


def join_numbers(out, *, members, log):
    """Add up what the files of the members hold, by their files."""
    folder = out.parent.parent
    return add_up(
        out,
        paths=[folder / f"part-{member:05d}.txt" for member in members],
        factor=1,
        log=log,
    )


def joined_step(log, groups=((0, 2), (1,), ())):
    """Three numbers, 1 to 3, and a join for each group, whose files replace those of its members."""

    def work(done):
        tasks = numbers_step(log).tasks(done)
        return Work(
            tasks,
            [
                Join(
                    group,
                    lambda _, group=group: partial(
                        join_numbers, members=group, log=log
                    ),
                    replaces=True,
                )
                for group in groups
            ],
        )

    return Step("joined", 1, {}, (), work, Number)


def test_joined_files_replace_those_of_their_members_as_soon_as_these_are_done(
    log, run_dir
):
    (done,) = runner.run_steps(
        [joined_step(log)], run_dir=run_dir, executor=SerialExecutor()
    ).values()
    assert ran(log) == [
        "joined 5",
        "joined 0",
        "joined 1",
        "joined 4",
        "joined 2",
        "joined 3",
    ]
    assert counts_of(done) == [{"number": 4}, {"number": 2}, {"number": 0}]
    assert [path.read_text() for path in done.files(".txt")] == ["4", "2", "0"]
    assert sorted(names(done.folder)) == [
        "manifest.json",
        "part-00003.txt",
        "part-00004.txt",
        "part-00005.txt",
    ]
    runner.run_steps([joined_step(log)], run_dir=run_dir, executor=SerialExecutor())
    assert ran(log) == []


@pytest.mark.parametrize("killed_at", range(1, 24))
def test_a_step_killed_while_it_joins_ends_with_the_same_files(
    log, run_dir, monkeypatch, killed_at
):
    changes = itertools.count(1)

    def counted(change):
        def counting(*arguments, **options):
            if next(changes) == killed_at:
                raise KeyboardInterrupt
            return change(*arguments, **options)

        return counting

    with monkeypatch.context() as killing:
        for name in ("unlink", "replace", "rmdir"):
            killing.setattr(Path, name, counted(getattr(Path, name)))
        with suppress(KeyboardInterrupt):
            runner.run_steps(
                [joined_step(log)], run_dir=run_dir, executor=SerialExecutor()
            )
    (done,) = runner.run_steps(
        [joined_step(log)], run_dir=run_dir, executor=SerialExecutor()
    ).values()
    assert [path.read_text() for path in done.files(".txt")] == ["4", "2", "0"]
    assert sorted(names(done.folder)) == [
        "manifest.json",
        "part-00003.txt",
        "part-00004.txt",
        "part-00005.txt",
    ]


def test_a_finished_step_can_be_built_on_by_its_manifest_alone(log, run_dir):
    numbers = numbers_step(log)
    planned = runner.run_steps(
        [numbers, sum_step(log, numbers)], run_dir=run_dir, executor=SerialExecutor()
    )
    ran(log)
    known = Step.of(planned["numbers"])
    finished = {"numbers": planned["numbers"]}
    again = runner.run_steps(
        [sum_step(log, known)],
        run_dir=run_dir,
        executor=SerialExecutor(),
        known=finished,
    )
    assert ran(log) == []
    assert again["sum"].folder == planned["sum"].folder


# steps side by side


class Together(SerialExecutor):
    """Takes what it is given, and notes the order in which it is given and in which it ends."""

    def __init__(self):
        super().__init__()
        self.given = []

    def has_room(self, resources):
        return True

    def submit(self, key, call, *arguments, resources, label):
        self.given.append(label)
        super().submit(key, call, *arguments, resources=resources, label=label)

    def ended(self):
        self.given.append("|")
        self._next.reverse()
        yield from super().ended()
        self._next.reverse()


def test_a_step_starts_when_its_own_inputs_are_done(log, run_dir):
    numbers = numbers_step(log, count=1)
    sums = [
        sum_step(log, numbers, name=name, factor=factor)
        for name, factor in (("once", 1), ("twice", 2))
    ]
    closing = closed_step(log, count=2)
    executor = Together()
    done = runner.run_steps(
        [numbers, *sums, closing], run_dir=run_dir, executor=executor
    )
    assert " ".join(executor.given) == (
        "numbers task 0 closed task 0 closed task 1 | once task 0 twice task 0 | | closed task 2 | | |"
    )
    assert {name: total(step, "number") for name, step in done.items()} == {
        "numbers": 1,
        "closed": 3,
        "once": 1,
        "twice": 2,
    }
    assert sorted(names(run_dir), key=lambda name: name[:2]) == [
        f"0{place}-{step.name}-{step.fingerprint}"
        for place, step in enumerate([numbers, *sums, closing], start=1)
    ]


def test_no_more_tasks_of_a_step_at_once_than_its_resources_say(log, run_dir):
    narrow = Step(
        "narrow", 1, {}, (), numbers_step(log).tasks, resources=Resources(at_once=1)
    )
    beside = Step("beside", 1, {}, (), numbers_step(log, count=2).tasks)
    executor = Together()
    runner.run_steps([narrow, beside], run_dir=run_dir, executor=executor)
    assert " ".join(executor.given) == (
        "narrow task 0 beside task 0 beside task 1 | narrow task 1 | | | narrow task 2 |"
    )


def test_what_is_done_beside_a_step_that_fails_is_kept(log, run_dir):
    beside = Step("beside", 1, {}, (), numbers_step(log).tasks)
    with pytest.raises(CorpusError, match="stop"):
        run([beside, failing_step(refused("stop"), log=log)], run_dir)
    assert ran(log) == ["beside 0", "beside 1", "beside 2", "numbers 0"]
    run([beside, numbers_step(log)], run_dir)
    assert ran(log) == ["numbers 1", "numbers 2"]


def test_workers_start_anew_between_steps_and_never_within_one(run_dir, log):
    noted = []

    class Noting(SerialExecutor):
        def release_memory(self):
            noted.append(ran(log))

    numbers = numbers_step(log)
    runner.run_steps(
        [numbers, sum_step(log, numbers)], run_dir=run_dir, executor=Noting()
    )
    assert noted == [["numbers 0", "numbers 1", "numbers 2"], ["sum 0"]]
