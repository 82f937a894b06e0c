"""Choose: which sequences of which runs make each row.

In:  opened runs; how they are split, mixed and packed.
Out: `Rows` to read from, and what was left out of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nextlong import errors
from nextlong.artefacts import finished
from nextlong.artefacts.rows import Rows
from nextlong.export.rows import Arrangement, SharedChunks, arranged, packed
from nextlong.runs.opened import Run, check_mix

Split = Literal["train", "validation"]
RunLike = str | Path | Run


@dataclass(frozen=True)
class Choice:
    """The rows; the share of a packed row that is filled; train sequences left out for a chunk that validation has."""

    rows: Rows
    fill: float
    left_out: int


def choose(
    run: RunLike | Sequence[RunLike],
    *,
    mix: Sequence[float] | None,
    by: Literal["sequences", "tokens"],
    split: Split | None,
    validation: float | None,
    shared_chunks: SharedChunks,
    split_seed: int,
    pack: int | None,
) -> Choice:
    """Split, then mix, then pack the sequences of one or several runs; each sequence stands in at most one row."""
    runs = [one if isinstance(one, Run) else Run(one) for one in ([run] if isinstance(run, str | Path | Run) else run)]
    _check(
        runs,
        mix=mix,
        by=by,
        split=split,
        validation=validation,
        shared_chunks=shared_chunks,
        split_seed=split_seed,
    )
    arrangement = Arrangement(
        mix=None if mix is None else tuple(mix),
        by=by,
        validation=validation or 0.0,
        shared_chunks=shared_chunks,
        pack=pack,
        seed=split_seed,
    )
    references = [finished.references(one.steps, one.sequences_per_part) for one in runs]
    splits, left_out = arranged(references, arrangement)
    index, offsets = packed(splits[split or "train"], row_tokens=pack)
    if not len(index):
        shared = f", {left_out} share a chunk with validation" if left_out else ""
        raise errors.CorpusError(
            f"no sequence is left: split={split!r} with validation={validation} of {sum(map(len, runs))} sequences "
            f"keeps none{shared}; change the share, or make more sequences"
        )
    fill = 1.0 if pack is None else float(index["length"].sum() / ((len(offsets) - 1) * pack))
    return Choice(Rows([finished.row_source(one.steps) for one in runs], index=index, offsets=offsets), fill, left_out)


def _check(
    runs: Sequence[Run],
    *,
    mix: Sequence[float] | None,
    by: str,
    split: str | None,
    validation: float | None,
    shared_chunks: str,
    split_seed: int,
) -> None:
    known = {
        "by": (by, ("sequences", "tokens")),
        "split": (split, (None, "train", "validation")),
        "shared_chunks": (shared_chunks, ("keep", "leave-out")),
    }
    for name, (value, allowed) in known.items():
        check_word(name, value, allowed)
    if (split is None) != (validation is None):
        missing, given = ("validation", f"split={split!r}") if split else ("split", f"validation={validation}")
        cure = (
            "validation=0.01 holds out one in a hundred"
            if split
            else 'split="train" or split="validation" says which side'
        )
        raise errors.RecipeError(f"{given} without {missing}; {cure}")
    if split is None and (shared_chunks != "keep" or split_seed):
        given = f"shared_chunks={shared_chunks!r}" if shared_chunks != "keep" else f"split_seed={split_seed}"
        raise errors.RecipeError(
            f'{given} without a split; split="train" with validation=0.01 makes one, or leave it out'
        )
    if validation is not None and not 0 < validation < 1:
        raise errors.RecipeError(f"validation={validation} is not a share; give a number between 0 and 1, such as 0.01")
    check_mix(runs, mix, by=by)


def check_word(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise RecipeError unless the value is one of the allowed ones."""
    if value not in allowed:
        raise errors.RecipeError(f"{name}={value!r} is not known; it must be one of {', '.join(map(repr, allowed))}")
