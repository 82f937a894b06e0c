"""Estimates: how the time, disk and memory of each step grow, by the step's name.

In:  a recipe. Out: the `Estimate` of each step of its route. A step that a plug-in
brings has none here: it takes what it took in the trial, per chunk.

A rate that is declared here is core-seconds, measured once. The trial on the user's own
files replaces it wherever it runs long enough to tell.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from nextlong.corpus import deduplicate
from nextlong.corpus.select import HELD_DOCUMENTS
from nextlong.engine.step import Step
from nextlong.export import steps as export_steps
from nextlong.export.arrange import SPLITS
from nextlong.export.formats.base import format_of
from nextlong.methods.base import DocumentMethod, Need, method_of
from nextlong.methods.contexts import Screening
from nextlong.methods.keywords import Keywords
from nextlong.methods.partition import count_parts
from nextlong.methods.topics import HITS, Topics
from nextlong.reading.compression import COMPRESSIONS
from nextlong.reading.files import open_binary
from nextlong.recipe import Recipe
from nextlong.recipe.keys import TOKENIZER_BYTES, TYPICAL_CHARS_PER_TOKEN, blocks
from nextlong.report.plan import search_estimates as search
from nextlong.report.plan.amounts import TRIED, Amounts, Estimate
from nextlong.retrieval.near_duplicates.shingles import SAMPLED_CHARS
from nextlong.schemas import Layout
from nextlong.sequences.tokenize import CHARS_PER_TASK
from nextlong.sequences.tokenizer import MEASURED_CHUNKS, TRAINING_CHARS, local_path
from nextlong.sequences.verify_dependence import COMPOSED

_COMPRESSED_SHARE: Final = 0.3  # of JSON, by gzip or zstd

# What counts for a step of a plug-in: as much per chunk as in the trial.
_UNDECLARED: Final = Estimate(work="chunks", seconds=0.0, disk="chunks")


def estimates_of(recipe: Recipe, steps: Iterable[Step]) -> dict[str, Estimate]:
    """Return the estimate of each step of the recipe's route, by name."""
    exporting = _exporting(recipe)
    estimates: dict[str, Estimate] = {}
    for step in steps:
        if step.name in exporting:
            estimates[step.name] = exporting[step.name]
        elif step.name in _BY_RECIPE:
            estimates[step.name] = _BY_RECIPE[step.name](recipe)
        else:
            estimates[step.name] = _FIXED.get(step.name, _UNDECLARED)
    return estimates


# ---- the corpus ----


def _eval_ngrams(recipe: Recipe) -> Estimate:
    text_bytes = _evaluation_bytes(recipe)
    return Estimate(
        work=text_bytes,
        seconds=1e-7,
        disk=text_bytes,
        bytes=0.8,
        memory=4 * text_bytes,
        rate="",
    )


def _decontaminate(recipe: Recipe) -> Estimate:
    return Estimate(
        work="kept_chars",
        seconds=5e-8,
        disk="chunks",
        # A row of CHUNKS, and whether the chunk was removed.
        bytes=22,
        tasks="shards",
        memory=_evaluation_bytes(recipe),
    )


def _evaluation_bytes(recipe: Recipe) -> float:
    """Return the bytes of the evaluation files, decompressed."""
    text_bytes = 0.0
    for file in recipe.decontaminate.files:
        with open_binary(file) as stream:
            # Only its size is needed; the route reads the file.
            size = stream.seek(0, io.SEEK_END)
        is_compressed = PurePosixPath(file).suffix in COMPRESSIONS
        text_bytes += size / (_COMPRESSED_SHARE if is_compressed else 1)
    return text_bytes


def _bands(recipe: Recipe) -> int:
    width = deduplicate.band_width(recipe.ingest.dedup_threshold)
    return deduplicate.PERMUTATIONS // width


def _minhash(recipe: Recipe) -> Estimate:
    return Estimate(
        work="kept_chars",
        seconds=5e-8,
        disk="documents",
        # 128 values of 4 bytes, and for each band a hash and a row.
        bytes=512 + 12 * _bands(recipe),
        tasks="shards",
    )


def _similar_pairs(recipe: Recipe) -> Estimate:
    bands = _bands(recipe)

    def passes(amounts: Amounts) -> int:
        return deduplicate.passes_for(round(amounts.documents))

    return Estimate(
        work="documents",
        seconds=2e-5,
        disk="documents",
        bytes=16.0,
        # Documents that exceed the memory of a task are compared in several passes.
        tasks=lambda amounts: bands * passes(amounts),
        memory=lambda amounts: 60 * amounts.documents / passes(amounts),
    )


def _select_reads(amounts: Amounts) -> float:
    # Each pass reads all hashes; lengths are read once.
    passes = max(1.0, amounts.documents / HELD_DOCUMENTS)
    return amounts.documents * (16 * passes + 8)


# ---- near-duplicates, keywords and drafts ----


def _weights_work(amounts: Amounts) -> float:
    # Reading the sampled text, and about 20 ns for each chunk of all shards, to find
    # the sampled documents.
    return min(amounts.kept_chars, SAMPLED_CHARS) + 3 * amounts.chunks


def _weights_reads(amounts: Amounts) -> float:
    # The shingles of the sample, the tables of all chunks, and the content hashes of
    # all documents.
    return SAMPLED_CHARS + 24 * amounts.chunks + 8 * amounts.documents


def _keywords(recipe: Recipe) -> Estimate:
    options = recipe.options
    # A model that writes queries is not tried: the trial extracts them.
    is_model = isinstance(options, Keywords) and options.queries != "extractive"
    return Estimate(
        work="kept_chars",
        seconds=5e-8,
        disk="kept_documents",
        bytes=80,
        tasks="shards",
        # Its speed is not measured, so the time of the step is unknown.
        rate="queries" if is_model else TRIED,
    )


def _topics(recipe: Recipe) -> Estimate:
    options = recipe.options
    assert isinstance(options, Topics)
    origin = options.origin
    if origin == "file":
        return Estimate(work=1, seconds=0.0, rate="")
    return Estimate(
        work=lambda amounts: min(amounts.chunks, options.sampled_chunks),
        seconds=1e-3,
        disk=options.topic_count,
        bytes=60,
        # A server is not asked for its speed, as a model that writes queries is not.
        rate="queries" if origin == "server" else TRIED,
    )


def _topic_hits(recipe: Recipe) -> Estimate:
    options = recipe.options
    assert isinstance(options, Topics)
    hits = options.topic_count * options.hits
    return Estimate(
        work="kept_documents",
        seconds=5e-5,
        disk=lambda amounts: min(
            hits * amounts.shards, options.topic_count * amounts.kept_documents
        ),
        bytes=HITS.itemsize,
        tasks="shards",
        rate="",
    )


def _contexts(recipe: Recipe) -> Estimate:
    options = recipe.options
    assert isinstance(options, Screening)

    def scored_tokens(amounts: Amounts) -> float:
        # Each candidate of an anchor, with the document behind it.
        document_chars = amounts.kept_chars / max(1.0, amounts.kept_documents)
        row_chars = amounts.chunk_chars + document_chars
        rows = amounts.queries * options.candidates
        return rows * row_chars / TYPICAL_CHARS_PER_TOKEN

    return Estimate(
        work=scored_tokens,
        # Of 135 million parameters on one core in float32.
        seconds=3e-3,
        disk=lambda amounts: amounts.queries * options.candidates,
        bytes=16,
        tasks=lambda amounts: amounts.drafts,
        rate="scorer",
    )


def _draft(recipe: Recipe) -> Estimate:
    method = method_of(recipe)
    if isinstance(method, DocumentMethod):
        return _draft_documents(recipe, method)
    if method.layout == Layout.EXTENDED:
        return Estimate(
            work="drafted_chunks",
            seconds=8e-5,
            disk="drafted_chunks",
            bytes=_DRAFTED_CHUNK_BYTES,
            tasks=_blocks,
        )
    return _UNDECLARED


def _draft_documents(recipe: Recipe, method: DocumentMethod[Any]) -> Estimate:
    partition_size = recipe.documents.partition_size
    # Measured bytes per document: its row; with keywords, also ten hashes, flags and
    # the arrays that sample one.
    document_bytes = 150 if Need.KEYWORDS in method.needs else 65

    def parts(amounts: Amounts) -> int:
        return count_parts(partition_size, amounts.all_neighbours)

    def memory(amounts: Amounts) -> float:
        # Also the lengths of chunks, and the neighbours as read and as a graph.
        of_all_parts = 10 * amounts.chunks + 60 * amounts.all_neighbours
        return document_bytes * amounts.kept_documents + of_all_parts / parts(amounts)

    return Estimate(
        work=lambda amounts: amounts.chunks + amounts.drafted_chunks,
        seconds=6e-7,
        disk="drafted_chunks",
        bytes=_DRAFTED_CHUNK_BYTES,
        tasks=parts,
        memory=memory,
    )


def _blocks(amounts: Amounts) -> float:
    return blocks(amounts.drafts, amounts.queries, neighbours=amounts.neighbours)


# An id, a role, a group and a score, and a share of the header.
_DRAFTED_CHUNK_BYTES: Final = 21


# ---- sequences and exports ----


def _tokenizer(recipe: Recipe) -> Estimate:
    source = recipe.tokenizer.source
    file_bytes = 5e6
    if source is None:
        return Estimate(
            work=lambda amounts: min(amounts.kept_chars, TRAINING_CHARS),
            seconds=5e-8,
            disk=1,
            bytes=file_bytes,
            memory=TOKENIZER_BYTES,
        )
    path = local_path(source)
    if path.is_file():
        file_bytes = path.stat().st_size

    def measured_chars(amounts: Amounts) -> float:
        return min(amounts.kept_chars, MEASURED_CHUNKS * amounts.chunk_chars)

    return Estimate(
        work=measured_chars,
        seconds=5e-8,
        disk=1,
        bytes=file_bytes,
        memory=TOKENIZER_BYTES,
        rate="tokenizer",
    )


def _compose(recipe: Recipe) -> Estimate:
    # With max_uses, the negatives that a sequence may use depend on the sequences
    # before it, so that one task composes all.
    is_one_task = recipe.compose.max_uses is not None
    # A sequence with tasks is composed about three times, and its text is read.
    times = 1 + 4 * recipe.compose.tasks.share
    return Estimate(
        work=lambda amounts: times * amounts.drafted_chunks,
        seconds=1e-5,
        disk="drafted_chunks",
        bytes=30,
        tasks=1 if is_one_task else _blocks,
    )


def _verify_dependence(recipe: Recipe) -> Estimate:
    if recipe.compose.verify_dependence is None:
        return _compose(recipe)

    def scored_tokens(amounts: Amounts) -> float:
        # A row up to the last of p meta-chunks, (p - 1)/p of a sequence, and one for
        # each later meta-chunk, half a sequence on average.
        meta_chunks = max(1.0, amounts.meta_chunks / max(1.0, amounts.eligible))
        rows = (meta_chunks - 1) * (1 / meta_chunks + 1 / 2)
        return rows * amounts.tokens

    return Estimate(
        work=scored_tokens,
        # Of 135 million parameters on one core in float32.
        seconds=3e-3,
        disk="drafted_chunks",
        bytes=30,
        tasks=_blocks,
        rate="scorer",
    )


def _exporting(recipe: Recipe) -> dict[str, Estimate]:
    """Return the estimate of each step that writes a split in a format."""
    export = recipe.export
    estimates = {}
    for split in export_steps.splits_of(export):
        is_validation = split == SPLITS[-1]
        share = export.validation if is_validation else 1 - export.validation
        for name in export.formats:
            step_name = export_steps.step_name(name, split)
            estimates[step_name] = _format(recipe, name, share)
    return estimates


def _format(recipe: Recipe, name: str, share: float) -> Estimate:
    export_format = format_of(name)
    bytes_per_token = export_format.bytes_per_token(
        recipe.export.compression, TYPICAL_CHARS_PER_TOKEN
    )

    def tokens(amounts: Amounts) -> float:
        return share * amounts.tokens

    def shards(amounts: Amounts) -> float:
        # Of formats without a rule of their own.
        megabytes = tokens(amounts) * export_steps.ID_BYTES / 1e6
        wanted = min(export_steps.MIN_SHARDS, megabytes / export_steps.MIN_SHARD_MB)
        return max(1.0, wanted, megabytes / export_steps.MAX_SHARD_MB)

    return Estimate(
        work=tokens,
        seconds=4e-8,
        disk=tokens,
        bytes=bytes_per_token,
        tasks=shards,
    )


# The estimates that depend on the recipe, by step.
_BY_RECIPE: Final[Mapping[str, Callable[[Recipe], Estimate]]] = {
    "eval_ngrams": _eval_ngrams,
    "decontaminate": _decontaminate,
    "minhash": _minhash,
    "similar_pairs": _similar_pairs,
    "encoder": search.preparation,
    "embed": search.embedding,
    "clusters": search.clusters,
    "partition": search.partition,
    "keywords": _keywords,
    "topics": _topics,
    "topic_hits": _topic_hits,
    "draft": _draft,
    "tokenizer": _tokenizer,
    "contexts": _contexts,
    COMPOSED: _compose,
    "compose": _verify_dependence,
}

# Of a step that keeps documents within quantiles of their scores.
_QUANTILES: Final = Estimate(
    work="documents",
    seconds=1e-7,
    disk="documents",
    bytes=1.0,
    memory=lambda amounts: 24 * amounts.documents,
    reads=lambda amounts: 9 * amounts.documents,
)

# The other estimates, by step.
_FIXED: Final[Mapping[str, Estimate]] = {
    "line_counts": Estimate(
        work="text_bytes",
        seconds=3e-10,
        tasks="shards",
        rate="",
    ),
    "ingest": Estimate(
        work="text_bytes",
        seconds=6e-9,
        disk="text_bytes",
        bytes=0.4,
        tasks="shards",
    ),
    "select": Estimate(
        work="documents",
        seconds=2e-7,
        disk="documents",
        bytes=1.0,
        reads=_select_reads,
    ),
    "near_duplicates": Estimate(
        work="documents",
        # 0.8e-6 measured on 4 million documents, a fifth of them similar to another.
        seconds=1e-6,
        disk="documents",
        bytes=1.0,
        memory=lambda amounts: 40 * amounts.documents,
        # A trial takes as long as loading SciPy: of 10^9 chunks, 129 hours were
        # announced.
        rate="",
    ),
    "gzip_scores": Estimate(
        work="long_chars",
        seconds=5e-8,
        disk="documents",
        bytes=8.0,
        tasks="shards",
    ),
    "gzip": _QUANTILES,
    "long_filter_scores": Estimate(
        # The whole document, and its end with a short context.
        work=lambda amounts: 1.1 * amounts.long_chars / TYPICAL_CHARS_PER_TOKEN,
        # Of 135 million parameters on one core in float32.
        seconds=3e-3,
        disk="documents",
        bytes=8.0,
        tasks="shards",
        rate="scorer",
    ),
    "long_filter": _QUANTILES,
    "chunk": Estimate(
        work="kept_chars",
        seconds=3e-9,
        disk="chunks",
        # A row of CHUNKS has 4 + 8 + 8 bytes and one bit.
        bytes=21,
        tasks="shards",
    ),
    # The step reads three hashes and two bools of each document.
    "filter_report": Estimate(
        work="documents",
        seconds=1e-7,
        memory=lambda amounts: 8 * amounts.documents,
        reads=lambda amounts: 26 * amounts.documents,
    ),
    "meta_documents": Estimate(
        work="chunks",
        seconds=6e-8,
        disk="drafts",
        bytes=40,
    ),
    "documents": Estimate(
        work="chunks",
        seconds=6e-8,
        disk="kept_documents",
        bytes=48,
        memory=lambda amounts: 100 * amounts.kept_documents,
    ),
    **search.ESTIMATES,
    "shingles": Estimate(
        work="kept_chars",
        seconds=2e-8,
        disk="kept_chars",
        bytes=0.66,
        tasks="shards",
    ),
    "topic_words": Estimate(
        work="kept_chars",
        seconds=1.5e-8,
        disk="kept_documents",
        # About twenty words of topics in a document, of eight bytes each.
        bytes=160,
        tasks="shards",
    ),
    "weights": Estimate(
        work=_weights_work,
        seconds=6e-9,
        disk=1,
        bytes=8.4e6,
        reads=_weights_reads,
    ),
    "lengths": Estimate(
        work="kept_chars",
        seconds=1.3e-8,
        disk="kept_chars",
        bytes=0.9,
        tasks="shards",
        memory=TOKENIZER_BYTES,
        rate="tokens",
    ),
    "referenced_chunks": Estimate(
        # 0.03 ms per draft of 400 chunks, 0.1 ms per shard. A trial could not measure
        # this, because it is mostly start-up time.
        work=lambda amounts: amounts.drafted_chunks + amounts.chunks / 40,
        seconds=8e-8,
        disk="referenced_chunks",
        bytes=8,
        memory="chunks",
        rate="",
    ),
    "tokens": Estimate(
        work="referenced_chars",
        seconds=1.3e-8,
        disk="referenced_chars",
        bytes=0.9,
        tasks=lambda amounts: max(1.0, amounts.referenced_chars / CHARS_PER_TASK),
        memory=TOKENIZER_BYTES,
        rate="tokens",
    ),
    "rows": Estimate(
        work="sequences",
        seconds=2e-5,
        disk="sequences",
        bytes=36,
    ),
}
