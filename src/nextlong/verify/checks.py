"""Checks: run all checks in the order of the route, in one process or in several.

In:  a run directory. Out: the outcome of each check, as soon as it is known.
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
from nextlong.verify.near_duplicates import (
    check_near_duplicates,
    check_weights,
    find_copies,
)
from nextlong.verify.outcome import CheckOutcome, in_words
from nextlong.verify.run_files import StoredRun
from nextlong.verify.search import check_search, check_vectors
from nextlong.verify.sequences import check_cuts, check_sequences

_WORTH_PROCESSES_BYTES = (
    64_000_000  # of a run's files; one process checks that much in about three seconds
)

_COPIES: Final = "near-duplicates"
# In the order of the route.
CHECKS: Final[dict[str, Callable[[StoredRun], list[CheckOutcome]]]] = {
    "documents and chunks": check_corpus,
    "tokens": check_tokens,
    "sequences": check_sequences,
    "cuts": check_cuts,
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

    `sample` random meta-chunks are searched again, and as many random vectors encoded again. If it is EVERYTHING, the reference
    tokenizer also tokenizes every chunk, of which it samples those of a large run otherwise. Checks of a large run use up to
    `workers` processes. `starting` receives the name of the next check. Raises RunError if there is no finished run. Unreadable
    files are breaches, not errors.
    """
    run = StoredRun(run_dir, sample=sample, seed=seed)
    stored = (
        path
        for step in run.steps.values()
        for path in step.folder.glob("*")
        if path.is_file()
    )
    if (
        workers > 1
        and sum(path.stat().st_size for path in stored) > _WORTH_PROCESSES_BYTES
    ):
        yield from _side_by_side(run, run_dir, workers=workers, starting=starting)
    else:
        starting("hashes")
        yield from check_files(run)
        for name, check in CHECKS.items():
            starting(name)
            yield from _guarded(run, name, check)
    known = {step.folder for step in run.steps.values()}
    for name, variant in (
        other_variants(run) if run.path == run_dir.expanduser() else ()
    ):  # not for one variant
        starting(f"exports of {name}")
        # Files that this run does not share, and exports; `verify RUN@NAME` checks the sequences.
        for outcome in _guarded(
            variant,
            "exports",
            lambda of: [*check_files(of, known=known), *check_exports(of)],
        ):
            yield replace(outcome, check=f"{name}: {outcome.check}")


def _guarded(
    run: StoredRun, name: str, check: Callable[[StoredRun], list[CheckOutcome]]
) -> list[CheckOutcome]:
    """Run a check and insert the names of chunks; unreadable files are a breach."""
    try:
        return run.name_marks(check(run))
    except UNREADABLE as error:
        broken = CheckOutcome(name, "files")
        broken.breach(
            f"could not be checked because a file is missing or damaged: {in_words(error)}"
        )
        return [broken]


def _side_by_side(
    run: StoredRun, run_dir: Path, *, workers: int, starting: Callable[[str], None]
) -> Iterator[CheckOutcome]:
    # Near-duplicates are compared within a sequence, so several processes can share the sequences.
    bounds = [sum(run.takes) * part // workers for part in range(workers + 1)]
    parts = {_COPIES: [range(*pair) for pair in pairwise(bounds)]}
    longest = ("tokens", _COPIES, "exports", "search")  # start first
    tasks = [
        (name, part)
        for name in dict.fromkeys((*longest, *CHECKS))
        for part in parts.get(name, [range(0)])
    ]
    ended: dict[int, list[CheckOutcome]] = {}
    # Processes start fast, because they are forked from a server that has imported these modules.
    with LocalExecutor(
        workers, preload=[__name__, "tokenizers", "fastokens"]
    ) as processes:
        for key, (name, part) in enumerate(tasks):
            processes.submit(
                key,
                _check,
                run_dir,
                run.sample,
                run.seed,
                name,
                part,
                resources=Resources(),
                label=name,
            )
        # Files are hashed in this process while the others check.
        starting("hashes")
        yield from check_files(run)
        for name in CHECKS:
            starting(name)
            keys = [key for key, (of, _) in enumerate(tasks) if of == name]
            while not ended.keys() >= set(keys):
                try:
                    ended |= processes.ended()
                except RunError:
                    cause = "a worker process was killed, most likely because memory ran out"
                    raise RunError(f"{cause}; verify again with --workers 1") from None
            found = [outcome for key in keys for outcome in ended.pop(key)]
            if name == _COPIES:
                broken = [
                    outcome for outcome in found if outcome.unit == "files"
                ]  # from `_guarded`
                found = broken[:1] or check_near_duplicates(run, found)
            yield from found


_opened = lru_cache(maxsize=1)(StoredRun)  # per process: its checks share look-ups


def _check(
    run_dir: Path, sample: int, seed: int, name: str, numbers: range
) -> list[CheckOutcome]:
    """Run a check in a worker process; of near-duplicates, only for the sequences with these numbers."""
    check = (
        (lambda run: [find_copies(run, numbers)]) if name == _COPIES else CHECKS[name]
    )
    return _guarded(_opened(run_dir, sample=sample, seed=seed), name, check)
