"""Clean: chunks → the chunks that share nothing with evaluation texts, as steps.

Every step below reads the cleaned chunks, so that what is contaminated is neither embedded nor found nor drawn. Rows are
numbered anew; what is left of a document has a hole where a chunk was.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import fsspec
import xxhash

from nextlong.engine.step import Finished, Step, Task
from nextlong.errors import CorpusError
from nextlong.recipe import Recipe
from nextlong.stages.decontaminate import clean_shard, contaminated_shard, evaluation_grams


def cleaning_steps(recipe: Recipe, ingest: Step, chunk: Step) -> list[Step]:
    """Return the steps between the chunks and the cleaned chunks; none if there is no evaluation file."""
    if not recipe.decontaminate.files:
        return []
    evalgrams = _evalgrams_step(recipe)
    contaminated = _contaminated_step(recipe.decontaminate.files, ingest, chunk, evalgrams)
    return [evalgrams, contaminated, _clean_step(chunk, contaminated)]


def _evalgrams_step(recipe: Recipe) -> Step:
    """Evaluation files → the runs of words to look for; the files' content is part of the fingerprint."""
    files, ngram = recipe.decontaminate.files, recipe.decontaminate.ngram

    def tasks(_: Finished) -> list[Task]:
        return [partial(evaluation_grams, files=files, ngram=ngram)]

    config = {"files": [[file, _content_hash(file)] for file in files], "ngram": ngram}
    return Step("evalgrams", 1, config, (), tasks)


def _content_hash(file: str) -> str:
    try:
        with fsspec.open(file, "rb") as stream:
            return str(xxhash.xxh3_128_hexdigest(stream.read()))
    except FileNotFoundError:
        raise CorpusError(f"decontaminate: {file} does not exist; correct the path or remove it") from None
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise CorpusError(f"decontaminate: {file} cannot be read: {reason}; mend it or remove it") from None


def _contaminated_step(files: Sequence[str], ingest: Step, chunk: Step, evalgrams: Step) -> Step:
    """CHUNKS → which of them share a run of words with an evaluation file."""

    def tasks(done: Finished) -> list[Task]:
        heads, grams = (done["evalgrams"].file(suffix) for suffix in (".heads.npy", ".grams.npy"))
        shards = zip(done["ingest"].files(".documents.arrow"), done["chunk"].files(".chunks.arrow"), strict=True)
        return [
            partial(contaminated_shard, documents=documents, chunks=chunks, heads=heads, grams=grams, files=files)
            for documents, chunks in shards
        ]

    return Step("contaminated", 1, {}, (ingest, chunk, evalgrams), tasks)


def _clean_step(chunk: Step, contaminated: Step) -> Step:
    """CHUNKS → CHUNKS without these."""

    def tasks(done: Finished) -> list[Task]:
        shards = zip(done["chunk"].files(".chunks.arrow"), done["contaminated"].files(".contaminated.npy"), strict=True)
        return [partial(clean_shard, chunks=chunks, contaminated=which) for chunks, which in shards]

    return Step("clean", 1, {}, (chunk, contaminated), tasks)
