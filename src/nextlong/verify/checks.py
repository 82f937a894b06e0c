"""Checks: run all checks in the order of the route, in one process or in several.

In:  a run directory.
Out: the outcome of each check, as soon as it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from nextlong.engine.executor import Resources
from nextlong.engine.local import LocalExecutor
from nextlong.errors import RunError
from nextlong.export.formats.base import UNREADABLE
from nextlong.verify.corpus import check_corpus, check_tokens
from nextlong.verify.exports import check_exports
from nextlong.verify.files import check_files, check_mixes, other_variants
from nextlong.verify.known_answers import check_known_answers
from nextlong.verify.near_duplicates import (
    check_near_duplicates,
    check_weights,
    find_copies,
)
from nextlong.verify.outcome import CheckOutcome, in_words
from nextlong.verify.run_files import StoredRun
from nextlong.verify.search import check_search, check_vectors
from nextlong.verify.sequences import check_cuts, check_sequences

# Of a run's files; one process checks that much in about three seconds.
_WORTH_PROCESSES_BYTES = 64_000_000

_COPIES: Final = "near-duplicates"
# In the order of the route.
CHECKS: Final[dict[str, Callable[[StoredRun], list[CheckOutcome]]]] = {
    "documents and chunks": check_corpus,
    "tokens": check_tokens,
    "sequences": check_sequences,
    "cuts": check_cuts,
    "known answers": check_known_answers,
    "vectors": check_vectors,
    "search": check_search,
    _COPIES: check_near_duplicates,
    "weights": check_weights,
    "exports": check_exports,
    "mixes": check_mixes,
}


def verify(
    run_dir: Path,
    *,
    sample: int = 100,
    seed: int = 0,
    workers: int = 1,
    starting: Callable[[str], None] = lambda _: None,
) -> Iterator[CheckOutcome]:
    """Yield the outcome of each check of a finished run.

    `sample` random meta-chunks are searched again, and as many random vectors encoded
    again. If it is EVERYTHING, the reference tokenizer also tokenizes every chunk, of
    which it samples those of a large run otherwise. Checks of a large run use up to
    `workers` processes. `starting` receives the name of the next check. Raises RunError
    if there is no finished run. Unreadable files are breaches, not errors.
    """
    run = StoredRun(run_dir, sample=sample, seed=seed)
    if workers > 1 and _stored_bytes(run) > _WORTH_PROCESSES_BYTES:
        yield from _side_by_side(run, run_dir, workers=workers, starting=starting)
    else:
        starting("hashes")
        yield from check_files(run)
        for name, check in CHECKS.items():
            starting(name)
            yield from _guarded(run, name, check)

    # Not for one variant: `verify RUN@NAME` checks that one alone.
    if run.path != run_dir.expanduser():
        return
    known = {step.folder for step in run.steps.values()}

    def check_own_files(variant: StoredRun) -> list[CheckOutcome]:
        """Check files that this run does not share, and exports, but no sequences."""
        return [*check_files(variant, known=known), *check_exports(variant)]

    for name, variant in other_variants(run):
        starting(f"exports of {name}")
        for outcome in _guarded(variant, "exports", check_own_files):
            yield replace(outcome, check=f"{name}: {outcome.check}")


def _stored_bytes(run: StoredRun) -> int:
    total = 0
    for step in run.steps.values():
        for path in step.folder.glob("*"):
            if path.is_file():
                total += path.stat().st_size
    return total


def _guarded(
    run: StoredRun,
    name: str,
    check: Callable[[StoredRun], list[CheckOutcome]],
) -> list[CheckOutcome]:
    """Run a check and insert the names of chunks; unreadable files are a breach."""
    try:
        return run.name_marks(check(run))
    except UNREADABLE as error:
        broken = CheckOutcome(name, "files")
        reason = "a file is missing or damaged"
        broken.breach(f"could not be checked because {reason}: {in_words(error)}")
        return [broken]


def _side_by_side(
    run: StoredRun,
    run_dir: Path,
    *,
    workers: int,
    starting: Callable[[str], None],
) -> Iterator[CheckOutcome]:
    """Yield the outcomes of all checks, which run in several processes."""
    tasks = _tasks(run, workers)
    # Processes start fast, because they are forked from a server that has imported
    # these modules.
    preload = [__name__, "tokenizers", "fastokens"]
    with LocalExecutor(workers, preload=preload) as processes:
        for key, (name, numbers) in enumerate(tasks):
            processes.submit(
                key,
                _check,
                run_dir,
                run.sample,
                run.seed,
                name,
                numbers,
                resources=Resources(),
                label=name,
            )
        # Files are hashed in this process while the others check.
        starting("hashes")
        yield from check_files(run)
        ended: dict[int, list[CheckOutcome]] = {}
        for name in CHECKS:
            starting(name)
            keys = [
                key for key, (task_name, _) in enumerate(tasks) if task_name == name
            ]
            while not ended.keys() >= set(keys):
                ended |= _ended(processes)
            found: list[CheckOutcome] = []
            for key in keys:
                found += ended.pop(key)
            if name == _COPIES:
                # What `_guarded` returns instead of an outcome.
                broken = [outcome for outcome in found if outcome.unit == "files"]
                found = broken[:1] or check_near_duplicates(run, found)
            yield from found


def _ended(processes: LocalExecutor) -> dict[int, list[CheckOutcome]]:
    """Return the outcomes of tasks that have ended since, by key. Waits for one."""
    try:
        return dict(processes.ended())
    except RunError:
        raise RunError(
            where="verify",
            problem="a worker process was killed, most likely because memory ran out",
            fix="verify again with --workers 1",
        ) from None


def _tasks(run: StoredRun, workers: int) -> list[tuple[str, range]]:
    """Return the checks, those that take longest first.

    Near-duplicates are compared within a sequence, so several processes can share the
    sequences: their tasks have ranges of numbers of sequences.
    """
    longest = ("tokens", _COPIES, "exports", "search")
    tasks = []
    for name in dict.fromkeys((*longest, *CHECKS)):
        if name == _COPIES:
            total = run.sequence_count
            bounds = [total * part // workers for part in range(workers + 1)]
            tasks += [(name, range(first, stop)) for first, stop in pairwise(bounds)]
        else:
            tasks.append((name, range(0)))
    return tasks


_opened = lru_cache(maxsize=1)(StoredRun)  # per process: its checks share look-ups


def _check(
    run_dir: Path,
    sample: int,
    seed: int,
    name: str,
    numbers: range,
) -> list[CheckOutcome]:
    """Run a check in a worker process.

    Of near-duplicates, only for the sequences with these numbers.
    """
    run = _opened(run_dir, sample=sample, seed=seed)
    if name == _COPIES:
        return _guarded(run, name, lambda run: [find_copies(run, numbers)])
    return _guarded(run, name, CHECKS[name])
