"""Choose: which sequences of which runs make each row.

In:  opened runs; how they are split, mixed and packed.
Out: `Rows` to read from, and what was left out of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nextlong import errors
from nextlong.opened import Run
from nextlong.stages import arrange
from nextlong.stages.rows import Rows
from nextlong.steps import finished

Split = Literal["train", "validation"]
SharedChunks = Literal["keep", "leave-out"]
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
    _check(runs, by=by, split=split, validation=validation, shared_chunks=shared_chunks)
    indexes = [
        finished.sequence_index(one.steps, one.sequences_per_part, run=number) for number, one in enumerate(runs)
    ]
    left_out = 0
    if split is not None and validation is not None:
        indexes, left_out = _side(runs, indexes, split, validation, shared_chunks, split_seed)
    if len(runs) > 1 or mix is not None:
        # Without proportions everything is used, evenly interleaved.
        indexes = [arrange.mix(indexes, weights=[len(index) for index in indexes] if mix is None else mix, by=by)]
    (index,) = indexes
    if not len(index):
        raise errors.CorpusError(
            f"no sequence is left: split={split!r} with validation={validation} of {sum(map(len, runs))} sequences "
            "keeps none; change the share, or make more sequences"
        )
    offsets, fill = np.arange(len(index) + 1), 1.0
    if pack is not None:
        packed = arrange.pack(index["length"], row_tokens=pack)
        index, offsets, fill = index[packed.order], packed.offsets, packed.fill
    return Choice(Rows([finished.row_source(one.steps) for one in runs], index=index, offsets=offsets), fill, left_out)


def _side(
    runs: Sequence[Run],
    indexes: Sequence[NDArray[Any]],
    split: Split,
    validation: float,
    shared_chunks: SharedChunks,
    seed: int,
) -> tuple[list[NDArray[Any]], int]:
    """Return each run's sequences on one side of the split, and how many of all were left out."""
    index, left_out = np.concatenate(indexes), 0
    if shared_chunks == "keep":
        sides = arrange.split(index, validation=validation, seed=seed)
    else:
        found = [finished.sequence_references(one.steps, one.sequences_per_part) for one in runs]
        lengths = np.concatenate([np.diff(offsets) for _, offsets in found])
        *both, left_out = arrange.split_strictly(
            index,
            validation=validation,
            seed=seed,
            chunk_ids=np.concatenate([ids for ids, _ in found]),
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            corpora=[finished.chunks_of(one.steps).manifest["fingerprint"] for one in runs],
        )
        sides = both[0], both[1]
    own = sides[0 if split == "train" else 1]
    return [own[own["run"] == number] for number in range(len(runs))], left_out


def _check(runs: Sequence[Run], *, by: str, split: str | None, validation: float | None, shared_chunks: str) -> None:
    if not runs:
        raise errors.RecipeError("SequenceDataset got no run; name at least one run directory")
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
    tokenizers = {_tokenizer_hash(one): one.path for one in runs}
    if len(tokenizers) > 1:
        first, second, *_ = tokenizers.values()
        raise errors.RecipeError(
            f"{first} and {second} were made with different tokenizers, so their ids cannot be mixed; "
            "run one of them again with --set tokenizer.source=…"
        )


def check_word(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise RecipeError unless the value is one of the allowed ones."""
    if value not in allowed:
        raise errors.RecipeError(f"{name}={value!r} is not known; it must be one of {', '.join(map(repr, allowed))}")


def _tokenizer_hash(run: Run) -> str:
    path = run.steps["tokenizer"].file(".tokenizer.json")
    return str(run.steps["tokenizer"].manifest["parts"][0]["files"][path.name]["xxh3"])
