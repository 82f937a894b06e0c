"""Checks: all of them in the order of the route, in one process or side by side in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

from nextlong.engine import interrupts
from nextlong.errors import RunError
from nextlong.schemas import ROW_MASK, SHARD_BITS
from nextlong.verify.corpus import check_corpus
from nextlong.verify.exports import check_exports
from nextlong.verify.files import check_files, check_mixes, other_variants
from nextlong.verify.near_duplicates import check_near_duplicates, check_weights, find_copies
from nextlong.verify.outcome import MARK, CheckOutcome, in_words
from nextlong.verify.run_files import RunFiles
from nextlong.verify.search import check_search
from nextlong.verify.sequences import check_sequences
from nextlong.verify.tokens import check_cuts, check_tokens
from nextlong.verify.vectors import check_vectors

# What reading a file that is missing, torn or of another shape raises.
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, EOFError, pa.ArrowException)
_WORTH_PROCESSES_BYTES = 64_000_000  # of a run's files: checked one after the other in some three seconds

_COPIES = "near-duplicates"


def _checks(sample: int, seed: int) -> dict[str, Callable[[RunFiles], list[CheckOutcome]]]:
    """Return the checks of a run by name, in the order of the route."""
    return {
        "documents and chunks": check_corpus,
        "tokens": partial(check_tokens, sample=sample, seed=seed),
        "sequences": check_sequences,
        "cuts": check_cuts,
        "vectors": partial(check_vectors, sample=sample, seed=seed),
        "search": partial(check_search, sample=sample, seed=seed),
        _COPIES: check_near_duplicates,
        "weights": check_weights,
        "exports": check_exports,
        "mixes": check_mixes,
    }


# The checks that one process makes beside the others; those that take longest, or most memory, are first.
_TOGETHER = (
    ("tokens", "sequences", "cuts", "exports"),  # which read the tokenizer
    (_COPIES,),  # a part of the sequences for each process
    ("search",),
    ("documents and chunks",),
    ("weights",),
    ("vectors", "mixes"),
)

_Outcomes = dict[str, list[CheckOutcome]]  # of checks, by their names
ResultT = TypeVar("ResultT")


def verify(
    run_dir: Path,
    *,
    sample: int = 100,
    seed: int = 0,
    workers: int = 1,
    starting: Callable[[str], None] = lambda _: None,
) -> Iterator[CheckOutcome]:
    """Yield the outcome of each check of a finished run.

    `sample` random meta-chunks are searched for again, as many random vectors encoded again; if it is EVERYTHING, every chunk is
    tokenized by the reference tokenizer, too, of which a large run's are otherwise sampled. Checks run side by side in up to
    `workers` processes if the run is large enough to be worth starting them. `starting` is told what comes next. Raises
    RunError if there is no finished run. RunFiles that cannot be read are breaches, not errors.
    """
    run = RunFiles(run_dir)
    whole = run.path == run_dir.expanduser()  # the run directory, not one variant of it
    stored = (path for step in run.steps.values() for path in step.folder.glob("*") if path.is_file())
    if workers > 1 and sum(path.stat().st_size for path in stored) > _WORTH_PROCESSES_BYTES:
        yield from _side_by_side(run, run_dir, sample=sample, seed=seed, workers=workers, starting=starting)
    else:
        starting("hashes")
        yield from check_files(run)
        for name, check in _checks(sample, seed).items():
            starting(name)
            yield from _guarded(run, name, partial(check, run))
    for name, variant in other_variants(run) if whole else ():
        starting(f"exports of {name}")
        for outcome in _guarded(variant, "exports", partial(_check_other, variant, run)):
            yield replace(outcome, check=f"{name}: {outcome.check}")


def _side_by_side(
    run: RunFiles, run_dir: Path, *, sample: int, seed: int, workers: int, starting: Callable[[str], None]
) -> Iterator[CheckOutcome]:
    """Yield the outcomes of all checks in their order."""
    # Near-duplicates are compared within a sequence, so each process can take a part of the sequences.
    count = sum(run.takes)
    parts = [range(count * part // workers, count * (part + 1) // workers) for part in range(workers)]
    calls: dict[str, Callable[[], _Outcomes]] = {}
    for names in _TOGETHER:
        if names == (_COPIES,):
            calls |= {str(part): partial(_find_copies, run_dir, part) for part in parts}
        else:
            calls |= {names[0]: partial(_check, run_dir, names, sample=sample, seed=seed)}
    call_of = {name: names[0] for names in _TOGETHER for name in names}
    # Files are hashed in this process while the others check.
    with side_by_side(calls, processes=workers) as outcomes_of:
        starting("hashes")
        yield from check_files(run)
        for name in _checks(sample, seed):
            starting(name)
            if name != _COPIES:
                yield from outcomes_of(call_of[name])[name]
            else:
                found = (outcome for part in parts for outcome in outcomes_of(str(part))[name])
                yield from _guarded(run, name, partial(check_near_duplicates, run, found))


def _check(run_dir: Path, names: Sequence[str], *, sample: int, seed: int) -> _Outcomes:
    """Return the outcomes of some checks, in a process of their own."""
    run, checks = RunFiles(run_dir), _checks(sample, seed)
    return {name: _guarded(run, name, partial(checks[name], run)) for name in names}


def _find_copies(run_dir: Path, numbers: range) -> _Outcomes:
    return {_COPIES: [find_copies(RunFiles(run_dir), numbers)]}


def _check_other(variant: RunFiles, run: RunFiles) -> list[CheckOutcome]:
    """Check another variant's files that are not this run's too, and its exports; its sequences are for `verify RUN@NAME`."""
    return [*check_files(variant, known={step.folder for step in run.steps.values()}), *check_exports(variant)]


def _guarded(run: RunFiles, name: str, check: Callable[[], list[CheckOutcome]]) -> list[CheckOutcome]:
    try:
        return with_names(run, check())
    except _UNREADABLE as error:
        broken = CheckOutcome(name, "files")
        broken.breach(f"could not be checked, the files are not as they should be: {in_words(error)}")
        return [broken]


def with_names(run: RunFiles, outcomes: Iterable[CheckOutcome]) -> list[CheckOutcome]:
    """Replace the marks of chunks and documents in the examples of outcomes by names, in place.

    Only the few examples that are kept cost a look-up, however many breaches are counted.
    """
    named = list(outcomes)
    marks = {match.groups() for outcome in named for example in outcome.examples for match in MARK.finditer(example)}
    name_of = {mark: _name(run, *mark) for mark in marks}
    for outcome in named:
        outcome.examples = [MARK.sub(lambda match: name_of[match.groups()], example) for example in outcome.examples]
    return named


def _name(run: RunFiles, kind: str, digits: str) -> str:
    """Return `doc-17 · chunk 3` or `doc-17`; of an id that the run does not have, its shard and row."""
    number = int(digits)
    if number < 0:
        return f"no {kind}"
    shard, row = number >> SHARD_BITS, number & ROW_MASK
    try:
        if kind == "document":
            return run.names_of(np.array([number]), "source_id")[number]
        doc_rows = run.chunks(shard)["doc_row"]
        doc = int(doc_rows[row]) | shard << SHARD_BITS
        ordinal = row - int(np.searchsorted(doc_rows, doc_rows[row])) + 1
        return f"{run.names_of(np.array([doc]), 'source_id')[doc]} · chunk {ordinal}"
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        return f"unknown {kind} (shard {shard}, row {row:,})"


@contextmanager
def side_by_side(calls: Mapping[str, Callable[[], ResultT]], *, processes: int) -> Iterator[Callable[[str], ResultT]]:
    """Start all calls in processes of this machine; yield a function that waits for the call of a name and returns its result."""
    # Forked from a server that has imported what all of them need, they start at once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "tokenizers", "fastokens"])
    pool = ProcessPoolExecutor(min(processes, len(calls)), mp_context=context, initializer=_prepare_process)
    try:
        with interrupts.held_back():
            started = {name: pool.submit(call) for name, call in calls.items()}
        yield lambda name: started[name].result()
    except BrokenProcessPool:
        raise RunError(
            "a process that checked was killed, most likely because memory ran out; verify again with --workers 1"
        ) from None
    except BaseException:
        for process in list(pool._processes.values()):
            process.terminate()  # a check may have minutes to go
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare_process() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threadpool_limits(1)
