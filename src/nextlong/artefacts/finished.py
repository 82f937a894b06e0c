"""Finished: what a finished run holds, as the objects that reading it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from nextlong import schemas
from nextlong.artefacts.resolve import Corpus, SpecialIds
from nextlong.artefacts.rows import RowSource
from nextlong.artefacts.sequences import References
from nextlong.artefacts.tokens import TokenStore
from nextlong.engine.step import Done, Finished
from nextlong.recipe import Recipe
from nextlong.results import ComposeResult, TokenizerResult


def token_store(done: Finished) -> TokenStore:
    """Return the tokens of a finished run."""
    tokens, text = done["tokens"], corpus(done)
    return TokenStore(
        rows=done["named_chunks"].files(".rows.npy"),
        offsets=tokens.files(".offsets.npy"),
        ids=tokens.files(".ids.npy"),
        documents=text.documents,
        chunks=text.chunks,
    )


def chunks_of(done: Finished) -> Done:
    """Return the step whose CHUNKS everything below reads: the cleaned ones, where there are any."""
    return done["clean"] if "clean" in done else done["chunk"]


def corpus(done: Finished) -> Corpus:
    """Return the text of a finished run."""
    return Corpus(tuple(done["ingest"].files(".documents.arrow")), tuple(chunks_of(done).files(".chunks.arrow")))


def special_ids(done: Finished) -> SpecialIds:
    """Return the ids that a finished run puts between chunks."""
    tokenizer = done["tokenizer"].result(TokenizerResult)
    bos, eos = ((special,) if special is not None else () for special in (tokenizer.bos_id, tokenizer.eos_id))
    return SpecialIds(joint=tokenizer.joint_ids, bos=bos, eos=eos)


def special_texts(done: Finished) -> dict[int, str]:
    """Return what stands between chunks of a finished run as text, by role."""
    joint, bos, eos = done["tokenizer"].result(TokenizerResult).special_texts
    return {schemas.JOINT: joint, schemas.BOS: bos, schemas.EOS: eos}


def sequences_per_part(recipe: Recipe, compose: Done) -> list[int]:
    """Return how many sequences of each SEQUENCES file belong to the data set: the first `compose.sequences` in draw order."""
    composed = [count for part in compose.results(ComposeResult) for count in part.sequences_per_file]
    left = sum(composed) if recipe.compose.sequences == "all" else recipe.compose.sequences
    take = []
    for there in composed:
        take.append(min(left, there))
        left -= take[-1]
    return take


def sequence_files(done: Finished) -> list[Path]:
    """Return the SEQUENCES files of a finished run. Raises RunError if they are of a version that had other columns."""
    files = done["compose"].files(".sequences.arrow")
    for path in files[:1]:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            if lacking := set(schemas.SEQUENCES.names).difference(reader.schema.names):
                raise done["compose"].of_earlier_version(f"column {min(lacking)}")
    return files


def references(done: Finished, take: Sequence[int]) -> References:
    """Return where the sequences of a data set lie: the first `take[i]` of each SEQUENCES file."""
    return References(
        sequences=tuple(sequence_files(done)),
        take=tuple(take),
        chunks=tuple(chunks_of(done).files(".chunks.arrow")),
        hashes=tuple(done["ingest"].files(".hashes.npy")),
        corpus=chunks_of(done).manifest["fingerprint"],
    )


def row_source(done: Finished) -> RowSource:
    """Return what the rows of a finished run are read from."""
    return RowSource(tuple(sequence_files(done)), token_store(done), special_ids(done))
