"""Keywords: the keywords of each document's queries, a shard at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
from pydantic import Field

from nextlong.artefacts.chunks import read_chunks
from nextlong.methods.quest import quest
from nextlong.recipe import MayBePath, Named, Positive, Section
from nextlong.results import KeywordsResult

_KEYWORDS = pa.schema([("keywords", pa.list_(pa.string()))])


class Keywords(Section):
    """How keywords are read from documents: keys of the section of each method that needs them."""

    queries: Annotated[Named, MayBePath()] = Field(
        "extractive", description="a doc2query model (name or path), or the built-in extractive stand-in"
    )
    min_keyword_score: Annotated[float, Field(ge=0)] = Field(3.0, description="least RAKE score of a keyword")
    min_keyword_chars: Positive = Field(6, description="shorter keywords are uninformative")


def extract_keywords(out: Path, *, documents: Path, chunks: Path, options: Keywords) -> KeywordsResult:
    """Write `{out}.keywords.arrow`: for each document of a shard that has chunks the keywords that may stand for it."""
    wanted = np.unique(read_chunks(chunks)["doc_row"])
    model = None if options.queries == "extractive" else quest.doc2query(options.queries)
    first = with_keywords = 0
    source = ""
    with (
        pa.ipc.open_file(pa.memory_map(str(documents))) as reader,
        pa.OSFile(f"{out}.keywords.arrow", "wb") as sink,
        pa.ipc.new_file(sink, _KEYWORDS) as writer,
    ):
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            low, high = np.searchsorted(wanted, [first, first + batch.num_rows])
            source = batch.column("source")[0].as_py()  # a shard's documents are of one
            texts = batch.column("text").take(pa.array(wanted[low:high] - first)).to_pylist()
            first += batch.num_rows
            queries = [quest.extract_queries(text) for text in texts] if model is None else model.queries(texts)
            keywords = [
                quest.candidate_keywords(
                    text_queries,
                    min_keyword_score=options.min_keyword_score,
                    min_keyword_chars=options.min_keyword_chars,
                )
                for text_queries in queries
            ]
            with_keywords += sum(map(bool, keywords))
            writer.write_batch(pa.record_batch([pa.array(keywords, _KEYWORDS.field(0).type)], schema=_KEYWORDS))
    return KeywordsResult(
        documents=len(wanted),
        with_keywords=with_keywords,
        queries=quest.EXTRACTIVE if model is None else options.queries,
        source=source,
    )


def read_keywords(paths: Sequence[Path]) -> pa.ListArray:
    """Return the keywords of all documents, list<string> (n,)."""
    pieces = []
    for path in paths:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            pieces += [reader.get_batch(number).column("keywords") for number in range(reader.num_record_batches)]
    return pa.concat_arrays([pa.array([], _KEYWORDS.field(0).type), *pieces])
