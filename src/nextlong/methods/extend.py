"""Draft extended documents: choose the negatives of meta-documents, counted in characters, with some to spare.

In:  META_DOCUMENTS and CANDIDATES; E, the measured characters per token; to filter near-duplicates, SHINGLES and WEIGHTS.
Out: DRAFTS, in sampled order: each meta-chunk followed by a prefix of its candidates (paper §3.1.2).

A draft does not decide where a candidate is placed. Composing walks each prefix in order and skips candidates that an
earlier meta-chunk has used, so the negatives of a sequence are exactly the nearest unused ones.

The tokens of meta-documents are counted, because a document that does not fit T is dropped. Candidates are counted in
characters, so only the chunks that drafts refer to are ever tokenized.

Near-duplicates teach nothing: they are false negatives, or the same negative again. Candidates that repeat the
meta-document are removed. Of two candidates that repeat each other both are kept, because only composing, which counts
tokens, knows which one is placed, if any. It never places both, so the draft counts the second one as empty. Only
candidates that a draft probably reaches are compared: slightly more than it would take of unfiltered lists, and twice as
many of a list that runs short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.corpus_files import CorpusFiles, corpus
from nextlong.artifacts.results import DraftResult, TokenizerFiles, TokenizerResult
from nextlong.engine.step import Artifacts, Step, Task
from nextlong.errors import RecipeError
from nextlong.methods.base import method_of
from nextlong.recipe import Recipe, keys
from nextlong.recipe.keys import (
    AUTO,
    EXACT,
    NEGATIVES,
    Compose,
    Mine,
    queries_of_task,
    sequence_limit,
)
from nextlong.retrieval.embed import EmbedFiles, embed_step, encoder_step
from nextlong.retrieval.index import index_steps
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.retrieval.mine import MineFiles, mine_steps
from nextlong.retrieval.near_duplicates import shingles as shingling
from nextlong.retrieval.near_duplicates.known import KnownPairs, kept_pairs
from nextlong.retrieval.near_duplicates.rule import (
    compare,
    find_near_duplicates,
    pair_up,
)
from nextlong.retrieval.near_duplicates.shingles import (
    ComparedDocument,
    ShingleStore,
    Weights,
    WeightsFiles,
)
from nextlong.retrieval.sample import (
    LongDocuments,
    MetaDocumentsFiles,
    meta_documents_step,
    query_ranges,
)
from nextlong.retrieval.shortlist import shortlist_steps
from nextlong.rng import rng_for
from nextlong.sequences.tokenize import Engine, kept_encoder
from nextlong.text import Json

_EXAMPLES, _EXAMPLES_EACH = (
    8,
    2,
)  # near-duplicates recorded by a task, and for one meta-document
_DROPPED_EXAMPLES = 100  # documents without a draft, recorded by a task
_CHUNKS_AT_ONCE = 64  # of a long document, whose tokens are counted at a time
_EXAMINED = 1.125  # candidates compared, as a multiple of the prefix that a draft of unfiltered lists takes …
_EXAMINED_MORE = 8  # … plus these, so that short prefixes have some to spare as well

# If most candidates may be near-duplicates, so many are sampled to estimate how many are
# not, which takes half as long as an ordinary draft of 128K tokens.
_SAMPLED_CANDIDATES = 256
# A draft is given up if its candidates probably hold less than this share of what it
# needs. The estimate is a lower bound, so the margin is large.
_HOPELESS_SHARE = 0.5
# It is also given up if less than this share of its candidates are no near-duplicates and
# the draft would take them all, because all copies would be compared to find them.
_FEW_USABLE = 0.1

_Ids = NDArray[np.int64]
_Paths = Sequence[Path]


def extension_steps(
    recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int
) -> list[Step]:
    """Return the steps of Negative Document Extension."""
    compose, mine, seed, max_chars = (
        recipe.compose,
        recipe.mine,
        recipe.seed,
        recipe.chunk.max_chars,
    )
    encoder = encoder_step(recipe.encoder, ingest, chunk, seed=seed)
    meta_documents = meta_documents_step(
        compose,
        ingest,
        chunk,
        attempt=attempt,
        seed=recipe.compose_seed,
        max_chars=max_chars,
        long_documents=_long_documents(recipe, tokenizer),
    )
    # Once the mean chunk is known, `pipeline.sized` replaces `auto` by a number for it.
    candidates = keys.candidates_of(compose, mine, chunk_chars=max_chars)
    neighbours = {"neighbours": candidates}
    index_name = recipe.search.index
    shortlisting: list[Step] = []
    if (
        mine.shortlist is not None
    ):  # only shortlisted chunks have vectors, which excludes some options
        why = ""
        if compose.sequences == "all":
            why = "embeds every chunk with compose.sequences=all, which extends every document; set compose.sequences to a number"
        elif index_name not in (AUTO, EXACT):
            why = f"leaves most vectors empty, which search.index={index_name} would cluster badly; set search.index=exact"
        elif NEGATIVES[compose.negatives].origin == "corpus":
            why = f"does not embed the random chunks of compose.negatives={compose.negatives}; use other negatives"
        if why:
            raise RecipeError(f"mine.shortlist=bm25 {why}, or remove mine.shortlist")
        shortlisting = shortlist_steps(
            compose, mine, ingest, chunk, meta_documents, seed=seed
        )
    embed = embed_step(
        recipe.encoder,
        ingest,
        chunk,
        encoder,
        shortlisting[-1] if shortlisting else None,
    )
    # With a shortlist most vectors are zero and an index would have poor clusters, so the search is exact.
    index = (
        []
        if shortlisting
        else index_steps(recipe.search, embed, meta_documents, neighbours, seed=seed)
    )
    mining = mine_steps(
        recipe.search, "mine", embed, meta_documents, shortlisting or index, neighbours
    )
    near_duplicate_steps = []
    if mine.near_duplicates_for(compose.negatives) is not None:
        shingled = shingling.shingles_step(ingest, chunk)
        near_duplicate_steps = [
            shingled,
            shingling.weights_step(ingest, chunk, shingled, seed=seed),
        ]
    inputs = (
        ingest,
        chunk,
        embed,
        meta_documents,
        mining[-1],
        tokenizer,
        *near_duplicate_steps,
    )
    draft = _draft_step(recipe, inputs, attempt=attempt, candidates=candidates)
    # Near-duplicates come before vectors: their weights are a single task, which then runs beside those that embed.
    return [
        meta_documents,
        *shortlisting,
        encoder,
        *near_duplicate_steps,
        embed,
        *index,
        *mining,
        draft,
    ]


def _long_documents(recipe: Recipe, tokenizer: Step) -> LongDocuments | None:
    """Return how documents longer than a sequence are found; None if there are none."""
    if recipe.checked_chars is None:
        return None
    tokens = keys.longest_tokens(recipe.sequence_tokens)

    def is_longer(done: Artifacts) -> Callable[[int, int], bool]:
        encoder = TokenizerFiles.of(done).tokenizer, recipe.tokenizer.engine
        return partial(_has_tokens, tokens=tokens, text=corpus(done), tokenizer=encoder)

    return LongDocuments(tokenizer, recipe.checked_chars, tokens, is_longer)


def _has_tokens(
    first_chunk: int,
    chunks: int,
    *,
    tokens: int,
    text: CorpusFiles,
    tokenizer: tuple[Path, Engine],
) -> bool:
    """Return whether a document has at least so many tokens.

    Its chunks are encoded in order until they do, so that a book of millions of tokens
    takes no longer than one sequence. The number of characters decides nothing, because a
    token may be one letter or a hundred blanks.
    """
    encoder = kept_encoder(*tokenizer)
    counted = 0
    for first in range(0, chunks, _CHUNKS_AT_ONCE):
        last = min(chunks, first + _CHUNKS_AT_ONCE)
        texts = text.texts(first_chunk + np.arange(first, last)).tolist()
        begins = [place == 0 for place in range(first, last)]
        counted += int(encoder.encode_chunks(texts, begins)[1].sum())
        if counted >= tokens:
            return True
    return False


def _draft_step(
    recipe: Recipe, inputs: Sequence[Step], *, attempt: int, candidates: int
) -> Step:
    """Return the step from CANDIDATES, so many for each meta-chunk, to DRAFTS.

    It filters near-duplicates if shingles and weights are among the inputs.
    """
    compose, mine, choice = (
        recipe.compose,
        recipe.mine,
        NEGATIVES[recipe.compose.negatives],
    )
    enough = sequence_limit(compose, attempt)
    is_reordered = choice.origin == "retrieved" and choice.order != "nearest"
    config: Json = {**method_of(recipe).promises(recipe.options)}
    config |= {
        "target_tokens": recipe.sequence_tokens,
        "draft_factor": compose.draft_factor,
        "fit": compose.fit,
    }
    config |= {
        "negatives": compose.negatives,
        "reorder_top": mine.reorder_top if is_reordered else 0,
    }
    config["near_duplicates"] = mine.near_duplicates_for(compose.negatives)
    config["max_similarity"] = (
        None if choice.origin == "meta-chunk" else mine.max_similarity
    )
    seed = recipe.compose_seed if choice.order == "random" else 0
    config |= {
        "seed": seed,
        "max_chars": recipe.chunk.max_chars,
        "engine": recipe.tokenizer.engine,
        "enough": enough,
    }

    def tasks(done: Artifacts) -> list[Task]:
        meta_documents, text = (
            MetaDocumentsFiles.of(done).meta_documents,
            corpus(done),
        )
        retrieved, filters = MineFiles.of(done).candidates, None
        if "weights" in done:
            filters = (
                shingling.shingle_store(done),
                WeightsFiles.of(done).weights,
            )
        chars_per_token = done["tokenizer"].result(TokenizerResult).chars_per_token
        # Draft so many documents that `enough` of them are most likely shorter than T.
        chars = np.load(meta_documents)["chars"]
        drafted = _surely_enough(
            chars,
            enough=enough,
            sure_chars=keys.SURE_SHARE * compose.target_tokens * chars_per_token,
        )
        rules = _Drafting(
            compose,
            mine,
            recipe.sequence_tokens,
            chars_per_token,
            recipe.chunk.max_chars,
            candidates,
            seed,
        )
        tokenizer = TokenizerFiles.of(done).tokenizer, recipe.tokenizer.engine
        vectors = EmbedFiles.of(done).vectors
        draft = partial(
            _draft_block,
            text=text,
            vectors=vectors,
            tokenizer=tokenizer,
            filters=filters,
            rules=rules,
        )
        ranges = query_ranges(meta_documents, max_queries=queries_of_task(candidates))
        return [
            partial(
                draft, rows=(meta_documents, first, min(last, drafted)), candidates=path
            )
            for (first, last), path in zip(ranges, retrieved, strict=True)
            if first < drafted
        ]

    return Step("draft", 7, config, tuple(inputs), tasks, DraftResult)


class _Drafting(NamedTuple):
    """The settings that all drafts of a run share."""

    compose: Compose
    mine: Mine
    target_tokens: int
    chars_per_token: float  # of the corpus
    max_chars: int  # of a chunk
    candidates: int  # searched for, for each meta-chunk
    seed: int


def _surely_enough(chars: _Ids, *, enough: int | None, sure_chars: float) -> int:
    """Return the number of documents, with these numbers of characters, of which `enough` are most likely shorter than T."""
    sure = np.flatnonzero(chars <= sure_chars)
    return len(chars) if enough is None or len(sure) <= enough else int(sure[enough])


class _Candidates(NamedTuple):
    """The candidates of a meta-document: one array for each meta-chunk, in the order in which drafts take them."""

    ids: list[NDArray[np.int64]]
    scores: list[NDArray[np.float32]]
    chars: list[NDArray[np.int64]]

    def picked(self, picks: Sequence[NDArray[Any]]) -> _Candidates:
        """Return the candidates that `picks`, places or a mask for each meta-chunk, select."""
        columns: list[list[NDArray[Any]]] = [self.ids, self.scores, self.chars]
        return _Candidates(
            *(
                [own[pick] for own, pick in zip(column, picks, strict=True)]
                for column in columns
            )
        )


class _Prefixes(NamedTuple):
    """The prefixes of the candidates that a draft takes, one for each meta-chunk."""

    lengths: list[int]
    ran_out: list[bool]  # whether the candidates ended before the prefix was full


class _Filtered(NamedTuple):
    """The filtered candidates of a meta-document, and the prefixes that its draft takes."""

    candidates: _Candidates
    prefixes: _Prefixes
    pairs: _Ids  # (n, 2) chunks in the prefixes that repeat each other
    negatives: int = 0  # distinct chunks in the prefixes that repeat no earlier one
    near_duplicates: int = 0  # distinct chunks filtered out
    by_passage: int = 0  # … only because of a shared 100-word passage
    # Examples of filtered chunks, each with the candidate that it repeats (None: the meta-document).
    examples: tuple[tuple[int, int | None], ...] = ()


def _draft_block(
    out: Path,
    *,
    rows: tuple[Path, int, int],
    candidates: Path,
    text: CorpusFiles,
    vectors: _Paths,
    tokenizer: tuple[Path, Engine],
    filters: tuple[ShingleStore, Path] | None,
    rules: _Drafting,
) -> DraftResult:
    """Write `{out}.drafts.arrow`: drafts of the META_DOCUMENTS `rows` that fit T; `filters`: SHINGLES and WEIGHTS."""
    # The n meta-documents of the block in sampled order; `own_texts`, (n,), has the chunk texts of each.
    metas = np.load(rows[0])[slice(*rows[1:])]  # (n,) META_DOCUMENTS
    own_chunks = corpus_files.ranges(metas["first_chunk"], metas["chunks"])
    texts = text.texts(own_chunks).tolist()  # (chunks of all n,)
    begins = text.begins(own_chunks).tolist()
    bounds = np.concatenate([[0], np.cumsum(metas["chunks"])])  # (n + 1,)
    own_texts = [texts[start:stop] for start, stop in pairwise(bounds.tolist())]
    tokens = (
        kept_encoder(*tokenizer).encode_chunks(texts, begins)[1]
        if texts
        else np.zeros(0, np.int64)
    )
    own_tokens = np.add.reduceat(tokens, bounds[:-1]) if texts else tokens  # (n,)
    fits = (
        own_tokens < rules.target_tokens
    )  # (n,); documents that do not fit are not compared with candidates
    fitting_texts = [
        own if fit else [] for own, fit in zip(own_texts, fits, strict=True)
    ]
    compared = shingling.documents_of(fitting_texts) if filters else []
    near_duplicates = by_passage = 0
    are_copies = np.zeros(len(metas), np.bool_)  # (n,) given up for their candidates
    examples: list[tuple[int, int, int]] = []
    with (
        pa.OSFile(f"{out}.drafts.arrow", "wb") as sink,
        pa.ipc.new_file(sink, schemas.DRAFTS) as writer,
    ):
        # CANDIDATES has a row for each meta-chunk, in the order of `metas`, including documents that do not fit.
        for place, retrieved in enumerate(
            _read_candidates(candidates, metas["chunks"], text.chunks)
        ):
            if not fits[place]:
                continue
            meta = metas[place]
            # T in characters is T·E. `fit="paper"` uses the corpus's E, as the paper does. `fit="exact"` uses the E of the
            # meta-document if that is larger: its negatives are in its own language and style, so they have as few tokens
            # per character.
            chars = int(meta["chars"])
            own_chars_per_token = (
                chars / max(1, int(own_tokens[place]))
                if rules.compose.fit == "exact"
                else 0.0
            )
            target_chars = rules.target_tokens * max(
                rules.chars_per_token, own_chars_per_token
            )
            ordered = _ordered_candidates(
                meta, retrieved, rules, target_chars, text.chunks, vectors
            )
            prefixes_of = partial(
                _draft_prefixes,
                rules=rules,
                target_chars=target_chars,
                document_chars=chars,
            )
            if filters is None or rules.mine.near_duplicates is None:
                drafted = _Filtered(
                    ordered, prefixes_of(ordered), np.empty((0, 2), np.int64)
                )
            else:
                rule = (
                    filters[0],
                    corpus_files.opened(filters[1]),
                    rules.mine.near_duplicates,
                )
                known_pairs = kept_pairs(corpus_files.file_version(filters[1]), rule[2])
                found = _filter_near_duplicates(
                    ordered,
                    prefixes_of,
                    compared[place],
                    *rule,
                    known_pairs=known_pairs,
                    needed_chars=target_chars - chars,
                    drafted_chars=target_chars * rules.compose.draft_factor - chars,
                )
                if found is None:
                    are_copies[place] = True
                    continue
                drafted = found
            shortage = _shortage(retrieved, drafted, rules)
            row = _draft_row(meta, drafted, shortage=shortage)
            writer.write_batch(pa.RecordBatch.from_pylist([row], schema=schemas.DRAFTS))
            near_duplicates += drafted.near_duplicates
            by_passage += drafted.by_passage
            own = int(meta["first_chunk"]), int(meta["chunks"])
            examples += [
                (chunk, *(own if other is None else (other, 1)))
                for chunk, other in drafted.examples
            ]
    dropped, dropped_examples = {}, {}
    for reason, is_dropped in (
        (schemas.DropReason.TOO_LONG, ~fits),
        (schemas.DropReason.NEAR_DUPLICATES, are_copies),
    ):
        columns = (metas["first_chunk"], metas["chunks"], own_tokens)
        named = (column[is_dropped][:_DROPPED_EXAMPLES].tolist() for column in columns)
        dropped[reason] = int(is_dropped.sum())
        dropped_examples[reason] = tuple(zip(*named, strict=True))
    return DraftResult(
        drafts=int((fits & ~are_copies).sum()),
        dropped=dropped,
        dropped_examples=dropped_examples,
        near_duplicates=None if filters is None else near_duplicates,
        repeated_passages=None if filters is None else by_passage,
        near_duplicate_examples=tuple(examples[:_EXAMPLES]),
    )


def _draft_prefixes(
    candidates: _Candidates,
    rules: _Drafting,
    *,
    target_chars: float,
    document_chars: int,
) -> _Prefixes:
    """Return the prefixes of the candidates that the draft takes.

    For a document of S characters in p meta-chunks, under `fit="paper"`: so long that it holds k = (Q − S) / (p·s) negatives
    that no earlier meta-chunk has taken, with Q = T·E·w (paper §3.1.2), rounded up, at least 1. Under `"exact"`: so long that
    it holds (Q − S) / p characters beyond those that earlier meta-chunks will probably use, their first (T·E − S) / p.
    Candidates of 0 characters are not counted.
    """
    needed, drafted = (
        target_chars - document_chars,
        target_chars * rules.compose.draft_factor - document_chars,
    )
    meta_chunks, is_paper = len(candidates.ids), rules.compose.fit == "paper"
    if is_paper:
        enough = used = max(1, math.ceil(drafted / (meta_chunks * rules.max_chars)))
    else:
        enough, used = math.ceil(drafted / meta_chunks), math.ceil(needed / meta_chunks)
    # Number the d distinct candidates, so that the set of taken chunks is a mask, (d,).
    distinct, numbers = np.unique(np.concatenate(candidates.ids), return_inverse=True)
    firsts = np.cumsum([len(ids) for ids in candidates.ids])[:-1]
    is_taken = np.zeros(len(distinct), np.bool_)
    lengths, ran_out = [], []
    for ids, chars in zip(np.split(numbers, firsts), candidates.chars, strict=True):
        free = ~is_taken[ids] & (chars > 0)
        filled = np.cumsum(free if is_paper else chars * free)
        full_length = int(np.searchsorted(filled, enough)) + 1
        lengths.append(min(len(ids), full_length))
        ran_out.append(full_length > len(ids))
        is_taken[ids[: int(np.searchsorted(filled, used)) + 1]] = True
    return _Prefixes(lengths, ran_out)


def _shortage(
    retrieved: _Candidates, drafted: _Filtered, rules: _Drafting
) -> schemas.DropReason | None:
    """Return why the candidates of a draft ran out.

    None if they did not, or if the corpus has no more.
    """
    if not any(drafted.prefixes.ran_out):
        return None
    found_all = [len(ids) == rules.candidates for ids in retrieved.ids]
    could_find_more = np.logical_and(drafted.prefixes.ran_out, found_all)
    # Also where most candidates are copies: there may be others behind them. If hardly
    # any are left among more candidates, the draft is given up.
    if could_find_more.any():
        return schemas.DropReason.TOO_FEW_CANDIDATES
    if drafted.near_duplicates > drafted.negatives:
        return schemas.DropReason.NEAR_DUPLICATES
    return None


def _ordered_candidates(
    meta: NDArray[Any],
    retrieved: _Candidates,
    rules: _Drafting,
    target_chars: float,
    chunks: _Paths,
    vectors: _Paths,
) -> _Candidates:
    """Return the candidates of each meta-chunk in the order of `compose.negatives`, none above `mine.max_similarity`."""
    compose, mine, negatives = (
        rules.compose,
        rules.mine,
        NEGATIVES[rules.compose.negatives],
    )
    rng = rng_for(
        rules.seed, f"negatives.{compose.negatives}", int(meta["content_hash"])
    )
    own_chunks = np.arange(int(meta["chunks"])) + int(meta["first_chunk"])
    if (
        negatives.origin == "meta-chunk"
    ):  # repeat each meta-chunk as its own negative, as often as the draft needs
        sizes = corpus_files.chunk_chars(own_chunks, chunks)
        chars = target_chars * compose.draft_factor / len(own_chunks)
        times = np.ceil(chars / np.maximum(sizes, 1)).astype(np.int64) + 1
        own, lengths = (
            [np.full(*pair) for pair in zip(times, values, strict=True)]
            for values in (own_chunks, sizes)
        )
        return _Candidates(
            own, [np.ones(count, np.float32) for count in times], lengths
        )
    if (
        negatives.origin == "corpus"
    ):  # as many random chunks of other documents as were retrieved, with their cosines
        shards = VectorShards(vectors)
        total = sum(shards.rows)
        drawn = _Candidates([], [], [])
        for query_D, like in zip(
            corpus_files.vectors(own_chunks, vectors), retrieved.ids, strict=True
        ):
            ids = shards.ids_at(rng.permutation(total)[: len(like) + len(own_chunks)])
            ids = ids[~np.isin(ids, own_chunks)][: len(like)]
            drawn.ids.append(ids)
            drawn.scores.append(
                (corpus_files.vectors(ids, vectors) @ query_D).astype(np.float32)
            )
            drawn.chars.append(corpus_files.chunk_chars(ids, chunks))
        retrieved = drawn
    if mine.max_similarity is not None:
        retrieved = retrieved.picked(
            [scores <= mine.max_similarity for scores in retrieved.scores]
        )
    if negatives.order == "nearest" or negatives.origin == "corpus":
        return retrieved
    # The `mine.reorder_top` nearest in random order, or the farthest of these first (the paper's ablation, §4.4). The others
    # follow, nearest first, for sequences that need more.
    orders = []
    for ids in retrieved.ids:
        nearest, others = np.split(
            np.arange(len(ids)), [min(mine.reorder_top, len(ids))]
        )
        orders.append(
            np.append(
                rng.permutation(nearest)
                if negatives.order == "random"
                else nearest[::-1],
                others,
            )
        )
    return retrieved.picked(orders)


def _read_candidates(
    candidates: Path, chunks_per_meta: _Ids, chunks: _Paths
) -> Iterator[_Candidates]:
    """Yield the candidates of each meta-document of a block, with their lengths in characters."""
    with pa.ipc.open_file(pa.memory_map(str(candidates))) as reader:
        table = reader.read_all()
    neighbours, scores = (
        table.column(name).combine_chunks() for name in ("neighbour_ids", "scores")
    )
    offsets, ids, values = (
        neighbours.offsets.to_numpy(),
        neighbours.values.to_numpy(),
        scores.values.to_numpy(),
    )
    chars = corpus_files.chunk_chars(ids, chunks) if len(ids) else ids
    query = 0
    for count in chunks_per_meta.tolist():
        pieces = [
            slice(offsets[q], offsets[q + 1]) for q in range(query, query + count)
        ]
        yield _Candidates(
            [ids[p] for p in pieces],
            [values[p] for p in pieces],
            [chars[p] for p in pieces],
        )
        query += count


def _draft_row(
    meta: NDArray[Any], drafted: _Filtered, *, shortage: schemas.DropReason | None
) -> Json:
    """Return a DRAFTS row: each meta-chunk followed by the prefix of its candidates."""
    ids, scores = [], []
    for group, length in enumerate(drafted.prefixes.lengths):
        ids += [
            np.array([int(meta["first_chunk"]) + group]),
            drafted.candidates.ids[group][:length],
        ]
        scores += [
            np.array([1.0], np.float32),
            drafted.candidates.scores[group][:length],
        ]
    sizes = np.array(drafted.prefixes.lengths) + 1
    roles = np.full(sizes.sum(), schemas.NEGATIVE, np.int8)
    roles[np.cumsum(sizes) - sizes] = schemas.META
    return {
        "sequence_id": f"nextlong-{int(meta['content_hash']):016x}",
        "key": int(meta["content_hash"]),
        "layout": schemas.Layout.EXTENDED.value,
        "chunk_id": np.concatenate(ids),
        "role": roles,
        "group": np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        "score": np.concatenate(scores),
        "near_duplicates": drafted.pairs.ravel(),
        "shortage": shortage or "",
    }


def _filter_near_duplicates(
    candidates: _Candidates,
    draft: Callable[[_Candidates], _Prefixes],
    document: ComparedDocument,
    shingles: ShingleStore,
    weights: Weights,
    threshold: float,
    *,
    known_pairs: KnownPairs,
    needed_chars: float = 0.0,
    drafted_chars: float = 0.0,
) -> _Filtered | None:
    """Filter near-duplicates out of the candidates of a meta-document.

    These share `threshold` of their words. A sequence needs `needed_chars` characters of
    the others, of which a draft takes `drafted_chars`, some to spare. Return None if they
    probably hold far fewer, or if hardly any are left and they do not fill the draft.
    """
    # `chunks`, (c,): the distinct candidate ids, ascending. Below, a chunk is its number in [0, c), so that sets of chunks
    # are masks, (c,). `numbers`: for each meta-chunk the numbers of its candidates, in order.
    chunks, inverse = np.unique(np.concatenate(candidates.ids), return_inverse=True)
    numbers = np.split(inverse, np.cumsum([len(ids) for ids in candidates.ids])[:-1])
    rule: _Rule = {"document": document, "weights": weights, "threshold": threshold}
    is_checked = False  # whether the candidates suffice
    drafted = draft(candidates).lengths
    examined = [math.ceil(length * _EXAMINED) + _EXAMINED_MORE for length in drafted]
    while True:
        # `walked`, (w,): the distinct numbers to compare, in the order in which composing probably walks, group by group:
        # first the prefixes of a draft of unfiltered lists, then the others. `copies` refers to places in this array.
        every = np.concatenate(
            [own[:length] for own, length in zip(numbers, drafted, strict=True)]
            + [
                own[length:most]
                for own, length, most in zip(numbers, drafted, examined, strict=True)
            ]
        )
        walked = every[np.sort(np.unique(every, return_index=True)[1])]
        if not is_checked:
            compared = compare(shingles.of(chunks[walked]), **rule)
            is_suspicious = 2 * compared.count_suspected() > len(walked)
        if is_suspicious and not is_checked:
            usable = _estimate_usable(chunks, shingles, rule)
            usable_chars = usable * np.concatenate(candidates.chars).mean()
            is_hopeless = usable_chars < _HOPELESS_SHARE * needed_chars
            are_copies = usable < _FEW_USABLE * len(chunks)
            if is_hopeless or (are_copies and usable_chars < drafted_chars):
                return None
            is_checked = True
            # Such a draft looks several times as far as others, step by step.
            known_pairs.learn(chunks, shingles, weights, threshold)
            judged = known_pairs.against(document)
        if is_checked:
            copies = judged.find(chunks[walked])
        else:
            copies = pair_up(compared)
        repeats_document = (
            np.bincount(walked[copies.of_document], minlength=len(chunks)) > 0
        )
        keep = [~repeats_document[own] for own in numbers]
        kept, kept_numbers = (
            candidates.picked(keep),
            [own[mask] for own, mask in zip(numbers, keep, strict=True)],
        )
        is_repeat = (
            np.bincount(walked[_repeats(copies.pairs)], minlength=len(chunks)) > 0
        )
        # Repeats will not be used, so they count as no characters.
        chars = [
            np.where(is_repeat[own], 0, of_own)
            for own, of_own in zip(kept_numbers, kept.chars, strict=True)
        ]
        prefixes = draft(kept._replace(chars=chars))
        known = [
            int(mask[:most].sum()) for mask, most in zip(keep, examined, strict=True)
        ]
        runs_short = [
            length > count
            for length, count in zip(prefixes.lengths, known, strict=True)
        ]
        if not any(runs_short):
            break
        examined = [
            2 * most if short else most
            for most, short in zip(examined, runs_short, strict=True)
        ]
    drafted_numbers = [
        own[:length] for own, length in zip(kept_numbers, prefixes.lengths, strict=True)
    ]
    is_reached = np.bincount(np.concatenate(drafted_numbers), minlength=len(chunks)) > 0
    pairs = chunks[walked[copies.pairs[is_reached[walked][copies.pairs].all(axis=1)]]]
    is_passed_over = is_repeat & is_reached
    for own, mask, length in zip(numbers, keep, prefixes.lengths, strict=True):
        # Candidates that would be in the prefix if they did not repeat the meta-document.
        reach = np.flatnonzero(mask)[length - 1] if length else len(own)
        is_passed_over[own[:reach][~mask[:reach]]] = True
    passed_over = chunks[is_passed_over]
    of_document, of_each_other = (
        chunks[walked[copies.of_document]],
        chunks[walked[copies.pairs]],
    )
    examples: list[tuple[int, int | None]] = []
    for chunk in passed_over[:_EXAMPLES_EACH].tolist():
        earlier = of_each_other[of_each_other[:, 1] == chunk, 0]
        if chunk in of_document or len(earlier):
            examples.append((chunk, None if chunk in of_document else int(earlier[-1])))
    by_passage = int(is_passed_over[walked[copies.by_passage]].sum())
    return _Filtered(
        candidates=kept,
        prefixes=prefixes,
        pairs=pairs,
        negatives=int((is_reached & ~is_repeat).sum()),
        near_duplicates=len(passed_over),
        by_passage=by_passage,
        examples=tuple(examples),
    )


class _Rule(TypedDict):
    """What `compare` needs beside the texts."""

    document: ComparedDocument
    weights: Weights
    threshold: float


def _estimate_usable(chunks: _Ids, shingles: ShingleStore, rule: _Rule) -> float:
    """Return about how many of the chunks repeat neither the document nor each other.

    A chunk and those that repeat it are one family. The families of a sample are counted.
    How many more there are follows from those with one or two members in the sample
    (the Chao1 estimator of the number of species), and is at most as many as if those
    with one member had no other. Copies of a few pages give a few large families, which
    are found without comparing all of their members.
    """
    count = min(_SAMPLED_CANDIDATES, len(chunks))
    rng = rng_for(0, "near_duplicates", len(chunks))
    sampled = np.sort(rng.permutation(len(chunks))[:count])
    copies = find_near_duplicates(shingles.of(chunks[sampled]), **rule)
    is_repeat = np.zeros(count, np.bool_)
    is_repeat[_repeats(copies.pairs)] = True
    first, later = copies.pairs.T
    is_first = is_repeat[later] & ~is_repeat[first]
    family_of = np.arange(count)
    family_of[later[is_first]] = first[is_first]
    is_free = ~copies.of_document
    members = np.unique(family_of[is_free], return_counts=True)[1]
    if count == len(chunks):
        return float(len(members))
    singles = int((members == 1).sum())
    pairs = int((members == 2).sum())
    by_pairs = len(members) + singles * (singles - 1) / (2 * (pairs + 1))
    by_singles = len(members) - singles + singles * len(chunks) / count
    return min(by_pairs, by_singles)


def _repeats(pairs: _Ids) -> _Ids:
    """Return, ascending, the candidates that repeat an earlier one that is no repeat itself; `pairs`, (n, 2), a < b."""
    earlier, later = pairs.T
    count = int(later.max(initial=-1)) + 1
    is_repeat = np.zeros(count, np.bool_)
    # Candidates without an undecided earlier one are no repeats, those paired with them
    # are, and so on: two rounds for families whose members all repeat each other.
    is_decided = np.zeros(count, np.bool_)
    while len(later):
        is_first = ~is_decided
        is_first[later] = False
        is_repeat[later[is_first[earlier]]] = True
        is_decided |= is_first | is_repeat
        is_open = ~(is_decided[later] | is_repeat[earlier])
        earlier = earlier[is_open]
        later = later[is_open]
    return np.flatnonzero(is_repeat)
