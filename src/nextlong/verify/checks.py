"""Checks: all of them, in the order of the route."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from nextlong.verify.artefacts import Artefacts
from nextlong.verify.besides import other_states
from nextlong.verify.corpus import check_corpus
from nextlong.verify.exports import check_exports
from nextlong.verify.files import check_files
from nextlong.verify.mixes import check_mixes
from nextlong.verify.near_copies import check_near_copies
from nextlong.verify.outcome import Outcome, in_words
from nextlong.verify.search import check_search
from nextlong.verify.sequences import check_sequences
from nextlong.verify.tokens import check_tokens
from nextlong.verify.vectors import check_vectors

# What reading a file that is missing, torn or of another shape raises.
_UNREADABLE = (OSError, ValueError, KeyError, IndexError, EOFError, pa.ArrowException)


def verify(
    run_dir: Path, *, sample: int = 100, seed: int = 0, starting: Callable[[str], None] = lambda _: None
) -> Iterator[Outcome]:
    """Yield the outcome of each check of a finished run.

    `sample` random meta-chunks are searched for again, as many random vectors encoded again. `starting` is told what is checked
    next. Raises RunError if there is no finished run. Artefacts that cannot be read are breaches, not errors.
    """
    run = Artefacts(run_dir)
    whole = run.path == run_dir.expanduser()  # the run directory, not one state of it
    starting("hashes")
    yield from check_files(run)
    checks: dict[str, Callable[[], list[Outcome]]] = {
        "documents and chunks": lambda: check_corpus(run),
        "tokens": lambda: check_tokens(run),
        "sequences": lambda: check_sequences(run),
        "vectors": lambda: check_vectors(run, sample=sample, seed=seed),
        "search": lambda: check_search(run, sample=sample, seed=seed),
        "near-copies": lambda: check_near_copies(run),
        "exports": lambda: check_exports(run),
        "mixes": lambda: check_mixes(run),
    }
    for name, check in checks.items():
        starting(name)
        yield from _guarded(name, check)
    for name, state in other_states(run) if whole else ():
        starting(f"exports of {name}")
        for outcome in _guarded("exports", partial(_check_other, state, run)):
            yield replace(outcome, check=f"{name}: {outcome.check}")


def _check_other(state: Artefacts, run: Artefacts) -> list[Outcome]:
    """Check another state's files that are not this run's too, and its exports; its sequences are for `verify RUN@NAME`."""
    return [*check_files(state, known={step.folder for step in run.steps.values()}), *check_exports(state)]


def _guarded(name: str, check: Callable[[], list[Outcome]]) -> list[Outcome]:
    try:
        return check()
    except _UNREADABLE as error:
        broken = Outcome(name, "files")
        broken.breach(f"could not be checked, the files are not as they should be: {in_words(error)}")
        return [broken]
