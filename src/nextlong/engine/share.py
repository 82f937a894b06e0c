"""Share: some tasks of one step, for array jobs of a scheduler that meet in the run directory.

Every job runs its share of the tasks and leaves their files and markers; an ordinary run confirms them, does what is
missing, and writes the manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nextlong.engine import store
from nextlong.engine.executor import Executor
from nextlong.engine.progress import Quiet, Reporter
from nextlong.engine.runner import find_done, folder_for, run_task
from nextlong.engine.shared import Shared, unlink_unfinished
from nextlong.engine.step import Done, Step
from nextlong.errors import RunError


def run_share(
    steps: Sequence[Step],
    name: str,
    *,
    share: tuple[int, int],
    run_dir: Path,
    executor: Executor,
    reporter: Reporter | None = None,
    shared: Shared | None = None,
) -> tuple[int, int]:
    """Run the tasks k, k + n, k + 2n … of the step `name`, counted from 1, for a share (k, n); return how many, of how many.

    Raises RunError if there is no such step, or one of its inputs is not done, or another run makes it in the store.
    """
    place, step = _step_of(steps, name)
    if shared is None or not shared.holds(step):
        unlink_unfinished(step, run_dir)
        return _run_tasks(place, step, share, run_dir, executor, reporter)
    for number, earlier in enumerate(steps, start=1):
        if earlier is step or earlier.name in before(steps, name):
            shared.link(earlier, number)
    held = shared.claim(step, mode="together")
    if isinstance(held, str):
        raise RunError(f"{name} is being made in {shared.store} by {held}; wait for it, then run the recipe")
    with held:
        return _run_tasks(place, step, share, run_dir, executor, reporter)


def _run_tasks(
    place: int, step: Step, share: tuple[int, int], run_dir: Path, executor: Executor, reporter: Reporter | None
) -> tuple[int, int]:
    name = step.name
    inputs = {before.name: _done(before, run_dir, needed_by=name) for before in step.inputs}
    if find_done(step, run_dir) is not None:
        return 0, 0
    work = step.work(inputs)
    tasks = work.tasks
    folder = folder_for(step, run_dir, place)
    mine = range(share[0] - 1, len(tasks), share[1])
    with store.explained(run_dir):
        confirmed = store.confirmed_parts(folder, among=mine)
    missing = [index for index in mine if index not in confirmed]
    resources = step.needs(work, executor.capacity)
    waiting, running = list(missing), 0
    with store.explained(run_dir):
        folder.mkdir(parents=True, exist_ok=True)
        with (reporter or Quiet()).step(name, done=len(mine) - len(missing), total=len(mine)) as advance:
            while waiting or running:
                while waiting and running < (resources.at_once or len(mine)) and executor.has_room(resources):
                    index = waiting.pop(0)
                    label = f"{name} task {index}"
                    executor.submit(0, run_task, tasks[index], folder, index, resources=resources, label=label)
                    running += 1
                for _, part in executor.ended():
                    running -= 1
                    advance(part["seconds"])
    return len(missing), len(tasks)


def before(steps: Sequence[Step], name: str) -> set[str]:
    """Return the names of the steps that the step `name` needs. Raises RunError if there is no such step."""
    needed: set[str] = set()

    def add(step: Step) -> None:
        for one in step.inputs:
            if one.name not in needed:
                needed.add(one.name)
                add(one)

    add(_step_of(steps, name)[1])
    return needed


def _step_of(steps: Sequence[Step], name: str) -> tuple[int, Step]:
    for place, step in enumerate(steps, start=1):
        if step.name == name:
            return place, step
    raise RunError(
        f"--only-step {name} is not a step of this recipe; name one of {', '.join(step.name for step in steps)}"
    )


def _done(step: Step, run_dir: Path, *, needed_by: str) -> Done:
    there = find_done(step, run_dir)
    if there is None:
        raise RunError(
            f"{needed_by} needs the step {step.name}, which {run_dir} does not hold yet; say `nextlong run RECIPE --before "
            f"{needed_by}` first, with the same settings"
        )
    return there
