"""Plan's costs: what each step will take, from the size of the corpus and the speed of this machine.

In:  a recipe, what `sample.py` measured, and what earlier runs in the run directory took (`earlier.py`). Out: a `Cost` a step.
Times assume that all workers are as fast as one core was on the sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nextlong import pipeline
from nextlong.embed.base import kind_of
from nextlong.engine.step import Step
from nextlong.export import steps as export_steps
from nextlong.export.formats.base import format_of
from nextlong.methods.base import DocumentMethod, Need, NeighbourSearch, method_of
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import document_chars, fetch_of
from nextlong.report.plan.sample import Corpus, Rates
from nextlong.schemas import Layout
from nextlong.search import choose

_WORKER_MB = 130  # a worker with its libraries, measured (bench/README.md)
_TOKENIZER_MB = 150  # a tokenizer and its cache
_MB = 1_000_000
_FIT_MB_PER_CHUNK = 0.012  # its rows of the term matrix, twice
_SEARCH_BLOCK_ROWS = 32_768  # vectors and scores that a miner holds as float32
_FILE_BYTES = 1_500  # schema, footer and headers of a shard's files; only small corpora notice
_DOCUMENT_BYTES = 40  # hash (twice), length and id, which do not compress
_CHUNK_BYTES = 21  # CHUNKS: 4 + 8 + 8 bytes and a bit
_META_BYTES = 40  # METAS: five numbers of 8 bytes
_CANDIDATE_BYTES = 12  # id and score
_DRAFTED_BYTES = 21  # DRAFTS: id, role, group and score of a chunk, and its share of the header
_SPAN_BYTES = 30  # SEQUENCES: the same with two places and a joint now and then
_TOKEN_BYTES = 4
_ROW_S, _ROW_BYTES = 2e-5, 36  # of where a sequence lies
_OFFSET_BYTES = 8
_LENGTH_BYTES = 4
_TERM_BYTES = 12  # a term in JSON
_TERM_GROWTH = 0.6  # Heaps' law: distinct terms grow as text ** 0.6
_TOKENIZER_FILE_BYTES = 5e6  # of 32,000 to 128,000 entries
_TOKENIZER_ENTRY_BYTES = 45  # of a trained one: the entry and its merge
_COUNT_LINES_S = 3e-10  # a byte, read and searched
_SELECT_S, _METAS_S, _DRAFT_S, _REFER_S, _SPAN_S = (
    2e-7,
    2e-8,
    1e-7,
    1e-8,
    1e-5,
)  # a document, chunk, candidate, chunk, span
_SHINGLE_S, _COUNT_S, _COMPARE_S = 2e-8, 6e-9, 5e-8  # a character read and shingled, of the sample, of a drafted chunk
_SHINGLE_BYTES, _WEIGHTS_BYTES = 0.66, 8.4e6  # a character, all weights
_SAMPLED_CHARS = 48e6  # as similarity/shingles.py has it
# Multiples of what it takes to hash the words: of a text matched or signed, of a byte of an evaluation file (measured).
_MATCH_WORDS, _SIGN_WORDS, _EVALUATION_WORDS = 1.6, 1.6, 3.5
_WORD_TABLES_S = 0.2  # once a worker
_SIGNATURE_BYTES, _NEARDUP_S = 512, 2e-5  # a document
_EVALUATION_SHARE = 0.8  # runs to look for, per byte of an evaluation file
_TOKENIZER_S = 3.0  # to load one, or train on its sample
_EXPORT_BYTES_PER_S = 100e6  # of one core
_DRAWN_SHARE, _NAMED_SHARE = (
    1.25,
    1.0625,
)  # a quarter more documents are drawn than asked for, a sixteenth more drafts named
_UNKNOWN = "not known"

_TUNED_QUERIES = 256  # searched for exactly, to measure an index against


@dataclass(frozen=True)
class Cost:
    """What a step will take on so many lanes; seconds None: unknown, for the reason given."""

    seconds: float | None
    disk_bytes: float
    memory_mb: float
    why_unknown: str = _UNKNOWN
    lanes: int = 1


@dataclass(frozen=True)
class Work:
    """What a step has to do: units that take `seconds` of one core in all (None: unknown) on so many lanes."""

    seconds: float | None
    disk_bytes: float
    units: float = 0.0
    lanes: int = 1
    extra_mb: float = 0.0
    why_unknown: str = _UNKNOWN


def estimate(
    recipe: Recipe, corpus: Corpus, rates: Rates, *, shards: int = 1, earlier: Mapping[str, float] | None = None
) -> dict[str, Cost]:
    """Return what each step of any route will take; `earlier` (seconds per unit of one lane, by step) beats the sample."""
    base = _WORKER_MB * (pipeline.worker_count(recipe) + 1)
    costs = {}
    for name, work in _works(recipe, corpus, rates, shards).items():
        seconds = work.seconds
        if earlier and name in earlier and work.units:
            seconds = earlier[name] * work.units
        spent = None if seconds is None else seconds / work.lanes
        costs[name] = Cost(spent, work.disk_bytes, base + work.extra_mb, work.why_unknown, work.lanes)
    return costs


def waves(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield the steps that can run side by side: those that wait for none of the steps that are left."""
    waiting = list(steps)
    while waiting:
        names = {step.name for step in waiting}
        ready = [step for step in waiting if names.isdisjoint(before.name for before in step.inputs)]
        yield ready
        waiting = [step for step in waiting if step not in ready]


def total(waves: Iterable[Sequence[Cost]], *, workers: int) -> Cost:
    """Return what all steps take, of which those of a wave run side by side."""
    waves = [wave for wave in waves if wave]
    costs = [cost for wave in waves for cost in wave]
    unknown = [cost.why_unknown for cost in costs if cost.seconds is None]
    seconds = sum(
        max(max(cost.seconds or 0 for cost in wave), sum((cost.seconds or 0) * cost.lanes for cost in wave) / workers)
        for wave in waves
    )
    base = min(cost.memory_mb for cost in costs)
    memory_mb = max(base + sum(cost.memory_mb - base for cost in wave) for wave in waves)
    disk_bytes = sum(cost.disk_bytes for cost in costs)
    return Cost(None, disk_bytes, memory_mb, unknown[0]) if unknown else Cost(seconds, disk_bytes, memory_mb)


def _works(recipe: Recipe, corpus: Corpus, rates: Rates, shards: int) -> dict[str, Work]:
    drafts = _plan_drafts(recipe, corpus, rates)
    return {
        **_corpus_works(recipe, corpus, rates, shards),
        **_clean_works(recipe, corpus, rates, shards),
        **_search_works(recipe, corpus, rates, drafts.queries),
        **_sequence_works(recipe, corpus, rates, shards, drafts),
    }


@dataclass(frozen=True)
class _Drafts:
    """How many sequences there will be, how many are drafted, from how many meta-chunks, and the chunks named."""

    sequences: float
    drafted: float
    queries: float
    drafted_chunks: float
    named_chunks: float


def _plan_drafts(recipe: Recipe, corpus: Corpus, rates: Rates) -> _Drafts:
    compose = recipe.compose
    sequence_chars = recipe.sequence_tokens * rates.chars_per_token
    method = method_of(recipe)
    is_extended = method.layout == Layout.EXTENDED
    a_document = corpus.kept_chars / max(1.0, corpus.kept_documents) / sequence_chars
    if is_extended:
        most, factor = corpus.eligible, compose.draft_factor
    elif Need.DOCUMENT_NEIGHBOURS in method.needs and method.repeats_documents(recipe.options):
        most, factor = corpus.kept_documents, 1 + a_document
    else:  # each document stands in one sequence, or in few
        most, factor = corpus.kept_chars / sequence_chars, 1 + a_document
    asked = most if compose.sequences == "all" else float(compose.sequences)
    sequences = min(asked, most)
    drawn = min(most, asked * _DRAWN_SHARE + 8)
    if is_extended:
        queries = drawn * corpus.meta_chunks / max(1.0, corpus.eligible)
    else:
        queries = min(_search_of(recipe).queries or math.inf, corpus.kept_documents)
    chunk_chars = corpus.kept_chars / max(1.0, corpus.chunks)
    a_draft = min(corpus.chunks, sequence_chars * factor / max(1.0, chunk_chars))
    named_drafts = min(drawn, asked * _NAMED_SHARE + 4)
    # Drafts share chunks: so many different ones if each were drawn from all.
    named = corpus.chunks * -math.expm1(-named_drafts * a_draft / max(1.0, corpus.chunks))
    return _Drafts(sequences, drawn, queries, drawn * a_draft, named)


def _search_of(recipe: Recipe) -> NeighbourSearch:
    """Return which documents' neighbours the method looks for at first, and how many."""
    method = method_of(recipe)
    if isinstance(method, DocumentMethod) and Need.DOCUMENT_NEIGHBOURS in method.needs:
        return method.search(recipe, recipe.options, attempt=0)
    return NeighbourSearch()


def _clean_works(recipe: Recipe, corpus: Corpus, rates: Rates, shards: int) -> dict[str, Work]:
    """Return the steps that leave documents and chunks out."""
    workers = pipeline.worker_count(recipe)
    lanes = min(workers, shards)
    hashed_s = corpus.kept_chars * rates.words_s_per_char
    tables_s = _WORD_TABLES_S * lanes
    chunk_bytes = corpus.chunks * _CHUNK_BYTES
    return {
        "minhash": Work(hashed_s * _SIGN_WORDS + tables_s, corpus.documents * _SIGNATURE_BYTES, lanes=lanes),
        "near_duplicates": Work(corpus.documents * _NEARDUP_S, corpus.documents),
        "eval_ngrams": Work(
            corpus.evaluation_bytes * rates.words_s_per_char * _EVALUATION_WORDS + _WORD_TABLES_S,
            corpus.evaluation_bytes * _EVALUATION_SHARE,
        ),
        "contaminated": Work(hashed_s * _MATCH_WORDS + tables_s, corpus.chunks, lanes=lanes),
        "clean": Work(corpus.chunks * _REFER_S, chunk_bytes, lanes=lanes),
    }


def _corpus_works(recipe: Recipe, corpus: Corpus, rates: Rates, shards: int) -> dict[str, Work]:
    workers = pipeline.worker_count(recipe)
    lanes = min(workers, shards)
    capacity = pipeline.capacity_here(recipe)
    resources = kind_of(recipe.encoder).resources(recipe.encoder, capacity)
    tasks = workers if recipe.encoder.kind == "sentence-transformers" else shards  # a shard is many slices
    encoding = min(resources.at_once or (capacity.gpus if resources.gpus else workers), tasks)
    fitted = min(corpus.chunks, recipe.encoder.lsa.fit_chunks) if recipe.encoder.kind == "lsa" else 0.0
    growth = max(1.0, fitted / max(1, rates.fit_measured_chunks)) ** _TERM_GROWTH
    terms = min(recipe.encoder.lsa.max_terms, rates.fit_terms * growth)
    encode_s = None if rates.encode_s_per_chunk is None else corpus.chunks * rates.encode_s_per_chunk
    ingested = corpus.text_bytes * corpus.stored_share + corpus.documents * _DOCUMENT_BYTES + shards * _FILE_BYTES
    return {
        "line_counts": Work(corpus.text_bytes * _COUNT_LINES_S, 0.0, lanes=lanes),
        "ingest": Work(corpus.text_bytes * rates.read_s_per_byte, ingested, corpus.text_bytes, lanes),
        "select": Work(corpus.documents * _SELECT_S, corpus.documents),
        "chunk": Work(
            corpus.kept_chars * rates.chunk_s_per_char, corpus.chunks * _CHUNK_BYTES, corpus.kept_chars, lanes
        ),
        "encoder": Work(
            max(0.0, rates.fit_base_s + fitted * rates.fit_s_per_chunk) if fitted else 0.0,
            terms * (_TOKEN_BYTES * (rates.dimensions + 1) + _TERM_BYTES),
            fitted,
            extra_mb=fitted * _FIT_MB_PER_CHUNK,
        ),
        "embed": Work(
            encode_s, corpus.chunks * rates.dimensions * 2, corpus.chunks, encoding, why_unknown=rates.encode_unknown
        ),
        "document_vectors": Work(
            corpus.chunks * _METAS_S, corpus.kept_documents * (rates.dimensions * 2 + 16), lanes=lanes
        ),
        "lengths": Work(
            corpus.kept_chars * rates.tokenize_s_per_char,
            corpus.chunks * _LENGTH_BYTES,
            corpus.kept_chars,
            lanes,
            lanes * _TOKENIZER_MB,
        ),
        "documents": Work(corpus.chunks * _METAS_S, corpus.kept_documents * _META_BYTES),
        "keywords": Work(None, corpus.kept_documents * _META_BYTES, lanes=lanes),
    }


def _search_works(recipe: Recipe, corpus: Corpus, rates: Rates, queries: float) -> dict[str, Work]:
    workers = pipeline.worker_count(recipe)
    block_mb = workers * _SEARCH_BLOCK_ROWS * rates.dimensions * 4 / _MB
    mined = queries * min(fetch_of(recipe), corpus.chunks) * _CANDIDATE_BYTES
    near = _search_of(recipe).fetch
    if near is None:
        mean_chars = corpus.kept_chars / max(1.0, corpus.kept_documents)
        near = math.ceil(4 * document_chars(recipe, rates.chars_per_token) / max(1.0, mean_chars))
    is_chunks = Need.CHUNK_NEIGHBOURS in method_of(recipe).needs
    load = choose.Load(
        vectors=round(corpus.chunks if is_chunks else corpus.kept_documents),
        queries=round(queries),
        dimensions=rates.dimensions,
        k=min(fetch_of(recipe), round(corpus.chunks)) if is_chunks else near,
        memory_bytes=choose.memory_bytes(),
        has_gpu=choose.has_gpu(recipe.search),
    )
    looked_into, building = _index_works(recipe, load, workers)
    return {
        "meta_documents": Work(corpus.chunks * _METAS_S, queries * _META_BYTES),
        **building,
        "mine": Work(
            queries * corpus.chunks * rates.search_s_per_pair * looked_into,
            mined,
            mined * corpus.chunks,
            workers,
            block_mb,
        ),
        "neighbours": Work(
            queries * corpus.kept_documents * rates.search_s_per_pair * looked_into,
            queries * min(near, corpus.kept_documents) * _CANDIDATE_BYTES,
            lanes=workers,
            extra_mb=block_mb,
        ),
    }


def _index_works(recipe: Recipe, load: choose.Load, workers: int) -> tuple[float, dict[str, Work]]:
    """Return which share of the vectors a query meets, and what it takes to build the index that makes it so."""
    index = choose.choose(load)[0] if recipe.search.index == "auto" else recipe.search.index
    if index == "exact":
        return 1.0, {name: Work(0.0, 0.0) for name in ("index", "lists", "tune")}
    train, fill = choose.build_seconds(load)
    code_bytes = load.dimensions * (2 if index.endswith("Flat") else 1)
    tuned = choose.seconds(replace(load, queries=_TUNED_QUERIES, has_gpu=False))[0]
    return choose.looked_into(load), {
        "index": Work(train, 4.0 * load.dimensions * load.vectors**0.5),
        "lists": Work(fill, load.vectors * (code_bytes + 8), lanes=workers),
        "tune": Work(tuned, 0.0),
    }


def _sequence_works(recipe: Recipe, corpus: Corpus, rates: Rates, shards: int, drafts: _Drafts) -> dict[str, Work]:
    workers = pipeline.worker_count(recipe)
    chunk_chars = corpus.kept_chars / max(1.0, corpus.chunks)
    tokens = drafts.sequences * recipe.sequence_tokens
    spans = tokens * rates.chars_per_token / max(1.0, chunk_chars)
    named_chars = drafts.named_chunks * chunk_chars
    token_bytes = named_chars / rates.chars_per_token * _TOKEN_BYTES + drafts.named_chunks * _OFFSET_BYTES
    tokenizer_bytes = (recipe.tokenizer.train or 0) * _TOKENIZER_ENTRY_BYTES or _TOKENIZER_FILE_BYTES
    drafted = max(drafts.drafted_chunks, drafts.queries * fetch_of(recipe))
    is_screened = recipe.mine.screened(recipe.compose.negatives) is not None
    compared_chars = drafts.drafted_chunks * chunk_chars if is_screened else 0.0
    shingle_bytes = corpus.kept_chars * _SHINGLE_BYTES + corpus.chunks * _OFFSET_BYTES
    sampled_chars = min(corpus.kept_chars, _SAMPLED_CHARS)
    works = {
        "tokenizer": Work(_TOKENIZER_S, tokenizer_bytes, extra_mb=_TOKENIZER_MB),
        "shingles": Work(corpus.kept_chars * _SHINGLE_S, shingle_bytes, lanes=min(workers, shards)),
        "weights": Work(sampled_chars * _COUNT_S, _WEIGHTS_BYTES),
        "draft": Work(
            drafted * _DRAFT_S + compared_chars * _COMPARE_S, drafts.drafted_chunks * _DRAFTED_BYTES, lanes=workers
        ),
        "named_chunks": Work(corpus.chunks * _REFER_S, drafts.named_chunks * _OFFSET_BYTES),
        "tokens": Work(
            named_chars * rates.tokenize_s_per_char,
            token_bytes,
            named_chars,
            min(workers, shards),
            workers * _TOKENIZER_MB,
        ),
        "compose": Work(spans * _SPAN_S, spans * _SPAN_BYTES, spans * _SPAN_BYTES, workers),
    }
    works["rows"] = Work(drafts.sequences * _ROW_S, drafts.sequences * _ROW_BYTES)
    shares = {"train": 1 - recipe.export.validation, "validation": recipe.export.validation}
    for name in recipe.export.formats:
        per_token = format_of(name).bytes_per_token(recipe.export.compression, rates.chars_per_token)
        for split in export_steps.splits_of(recipe):
            size = tokens * shares[split] * per_token
            step = export_steps.step_name(name, split)
            works[step] = Work(size / _EXPORT_BYTES_PER_S, size, size, workers, workers * _TOKENIZER_MB)
    return works
