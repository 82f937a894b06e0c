"""The phases of a run as progress shows them, each with the number that matters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nextlong.artifacts.results import ChunkResult, ComposeResult
from nextlong.engine.phases import Outcomes
from nextlong.engine.step import Artifact
from nextlong.export.arrange import RowsResult
from nextlong.methods.contexts import CONTEXTS_STEPS, ContextsResult
from nextlong.methods.keywords import KeywordsResult
from nextlong.methods.topics import TopicsResult
from nextlong.retrieval.embed import EmbedResult
from nextlong.retrieval.shortlist import MineResult
from nextlong.runs.statistics import measure
from nextlong.text import counted


def _chunked(done: Artifact) -> str:
    shards = done.results(ChunkResult)
    documents = sum(shard.documents for shard in shards)
    chunks = sum(shard.chunks for shard in shards)
    return f"{counted(documents, 'document')}, {counted(chunks, 'chunk')}"


def _embedded(done: Artifact) -> str:
    return counted(sum(part.chunks for part in done.results(EmbedResult)), "vector")


def _mined(done: Artifact) -> str:
    queries = sum(part.queries for part in done.results(MineResult))
    return f"negatives for {counted(queries, 'meta-chunk')}"


def _neighbours(done: Artifact) -> str:
    queries = sum(part.queries for part in done.results(MineResult))
    return f"neighbors of {counted(queries, 'document')}"


def _keywords(done: Artifact) -> str:
    documents = sum(shard.with_keywords for shard in done.results(KeywordsResult))
    return f"keywords of {counted(documents, 'document')}"


def _contexts(done: Artifact) -> str:
    parts = done.results(ContextsResult)
    anchors = counted(sum(part.anchors for part in parts), "uncertain token")
    documents = counted(sum(part.documents for part in parts), "document")
    return f"{anchors} of {documents}"


def _topics(done: Artifact) -> str:
    return counted(done.result(TopicsResult).topics, "topic")


def _composed(done: Artifact) -> str:
    # A few more than requested may be composed.
    sequences = sum(part.sequences for part in done.results(ComposeResult))
    return f"{counted(sequences, 'sequence')} composed"


def _arranged(done: Artifact) -> str:
    splits = done.result(RowsResult).splits
    return f"{counted(sum(split.rows for split in splits.values()), 'row')} written"


def _measured(done: Artifact) -> str:
    stats = measure.read({done.name: done})
    if stats is None or not stats.warnings:
        return "no data-quality warnings"
    return counted(len(stats.warnings), "data-quality warning")


PHASES: Final[Mapping[str, Outcomes]] = {
    "read": {"chunk": _chunked},
    "encode": {"embed": _embedded},
    "search": {
        "mine": _mined,
        "neighbours": _neighbours,
        "keywords": _keywords,
        "topics": _topics,
        **dict.fromkeys(CONTEXTS_STEPS, _contexts),
    },
    "compose": {"compose": _composed},
    "write": {"rows": _arranged},
    "measure": {measure.STATISTICS: _measured},
}
