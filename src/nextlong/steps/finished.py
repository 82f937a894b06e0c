"""Finished: what a finished run holds, as the objects that reading it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong.engine.step import Done, Finished
from nextlong.recipe import Recipe
from nextlong.stages.arrange import read_index, read_references
from nextlong.stages.resolve import Corpus, SpecialIds
from nextlong.stages.rows import RowSource
from nextlong.stages.tokens import TokenStore


def token_store(done: Finished) -> TokenStore:
    """Return the tokens of a finished run."""
    tokens = done["tokens"]
    return TokenStore(
        rows=done["refer"].files(".rows.npy"), offsets=tokens.files(".offsets.npy"), ids=tokens.files(".ids.npy")
    )


def chunks_of(done: Finished) -> Done:
    """Return the step whose CHUNKS everything below reads: the cleaned ones, where there are any."""
    return done["clean"] if "clean" in done else done["chunk"]


def corpus(done: Finished) -> Corpus:
    """Return the text of a finished run."""
    return Corpus(tuple(done["ingest"].files(".documents.arrow")), tuple(chunks_of(done).files(".chunks.arrow")))


def special_ids(done: Finished) -> SpecialIds:
    """Return the ids that a finished run puts between chunks."""
    (counts,) = done["tokenizer"].counts
    bos, eos = ((counts[key],) if counts[key] is not None else () for key in ("bos_id", "eos_id"))
    return SpecialIds(joint=tuple(counts["joint_ids"]), bos=bos, eos=eos)


def sequences_per_part(recipe: Recipe, compose: Done) -> list[int]:
    """Return how many sequences of each SEQUENCES file belong to the data set: the first `compose.sequences` in draw order."""
    left = compose.total("sequences") if recipe.compose.sequences == "all" else recipe.compose.sequences
    take = []
    for there in (count for counts in compose.counts for count in counts["sequences_per_file"]):
        take.append(min(left, there))
        left -= take[-1]
    return take


def sequence_index(done: Finished, take: Sequence[int], *, run: int = 0) -> NDArray[Any]:
    """Return where each sequence of a data set lies (SEQUENCE_INDEX): the first `take[i]` of each SEQUENCES file."""
    return read_index(
        done["compose"].files(".sequences.arrow"),
        take=take,
        chunks=chunks_of(done).files(".chunks.arrow"),
        hashes=done["ingest"].files(".hashes.npy"),
        run=run,
    )


def sequence_references(done: Finished, take: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the chunk ids that each of these sequences names, and their offsets."""
    return read_references(done["compose"].files(".sequences.arrow"), take=take)


def row_source(done: Finished) -> RowSource:
    """Return what the rows of a finished run are read from."""
    return RowSource(tuple(done["compose"].files(".sequences.arrow")), token_store(done), special_ids(done))
