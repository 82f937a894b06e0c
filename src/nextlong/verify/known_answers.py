"""Known answers: recompute every answer of inserted tasks from the text before it.

In:  the texts of a sequence, as a reader sees them. Out: one outcome.

A task's own `solve` reads the finished text alone: it knows neither where a task was
inserted nor what composing recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nextlong.plugins import KNOWN_ANSWERS
from nextlong.rng import rng_for
from nextlong.schemas import NO_CHUNK, SEPARATOR, TASK
from nextlong.verify.outcome import CheckOutcome
from nextlong.verify.run_files import ResolvedSequence, StoredRun


def check_known_answers(run: StoredRun) -> list[CheckOutcome]:
    """Solve all tasks again, and check which sequences have some."""
    if not run.task_share:
        return []
    outcome = CheckOutcome("answers recomputed", "answers")
    seed = run.setting("compose", "seed", run.recipe.get("seed", 0))
    without = 0
    for sequence in run.sequences():
        has_tasks = bool((sequence.role == TASK).any())
        is_chosen = rng_for(seed, "tasks", sequence.id).random() < run.task_share
        without += is_chosen and not has_tasks
        if has_tasks and not is_chosen:
            outcome.breach(f"sequence {sequence.number} has tasks but was not chosen")
        if has_tasks:
            outcome.breach_each(_wrong_answers(run, sequence, outcome))
    if without:
        outcome.note = f"{without:,} chosen sequences have no room for tasks"
    return [outcome]


def _wrong_answers(
    run: StoredRun, sequence: ResolvedSequence, outcome: CheckOutcome
) -> Iterator[str]:
    """Yield wrong answers, and kinds of tasks that ask nothing; count the answers."""
    texts = run.texts_of(sequence.chunk[sequence.chunk != NO_CHUNK])
    names = run.names_of(sequence.doc[sequence.role == TASK], "source_id")
    separator = str(run.setting("compose", "separator", ""))
    answers_by_kind: dict[str, int] = {}
    before = ""
    for span, role in enumerate(sequence.role.tolist()):
        text = texts.get(int(sequence.chunk[span]), "")
        if role == SEPARATOR:
            text = separator
        if role == TASK:
            kind = names[int(sequence.doc[span])].partition(":")[0]
            task: Any = KNOWN_ANSWERS.load(kind, object)
            answers = task.solve(before, text)
            number = answers_by_kind.get(kind, 0) + len(answers)
            answers_by_kind[kind] = number
            outcome.checked += len(answers)
            for given, recomputed in answers:
                if given != recomputed:
                    where = sequence.where(span)
                    yield f"{where} says {given!r}, the text {recomputed!r}"
        before += text
    for kind, number in answers_by_kind.items():
        if not number:
            yield f"sequence {sequence.number} has a task {kind} without a question"
