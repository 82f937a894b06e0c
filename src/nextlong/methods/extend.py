"""Extend: draft the negatives of meta-documents, counted in characters and with some to spare.

In:  META_DOCUMENTS and CANDIDATES; E, the measured characters per token; to filter near-duplicates, SHINGLES and WEIGHTS.
Out: DRAFTS, in the order of the sample: each meta-chunk followed by a prefix of its candidates.

A draft does not decide which candidate goes where; it has some to spare. Composing walks each prefix in order and skips what an
earlier meta-chunk has used, so that the negatives of a sequence are exactly the nearest that were still free.

The tokens of meta-documents are counted, because a document that does not fit T is not drafted. For candidates characters
suffice, so that of other documents only the chunks that drafts refer to are ever tokenized.

Near-duplicates teach nothing: they are false negatives, or the same negative again. Candidates that repeat the meta-document
are removed. Of two candidates that repeat each other, both stay: which of them composing places, if any, is known only in
tokens. Composing never places both, so the draft counts the second one as empty. Only the candidates that a draft is
likely to reach are compared: slightly more than it would take of unfiltered lists, and twice that of each list that runs short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.finished import CorpusFiles, corpus
from nextlong.artifacts.lookup import opened
from nextlong.artifacts.results import DraftResult, TokenizerResult
from nextlong.engine.step import Amounts, Artifacts, Estimate, Step, Task
from nextlong.errors import RecipeError
from nextlong.methods.base import method_of
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import SURE_SHARE, blocks, candidates_of, sequence_limit
from nextlong.recipe.keys import AUTO, EXACT, NEGATIVES, Compose, Mine
from nextlong.retrieval.embed import embed_step, encoder_step
from nextlong.retrieval.index import index_steps
from nextlong.retrieval.indexes.base import VectorShards
from nextlong.retrieval.mine import mine_steps
from nextlong.retrieval.near_duplicates import shingles as shingling
from nextlong.retrieval.near_duplicates.rule import find_near_duplicates
from nextlong.retrieval.near_duplicates.shingles import ComparedDocument, ShingleStore, Weights
from nextlong.retrieval.sample import meta_documents_step, query_ranges
from nextlong.retrieval.shortlist import shortlist_steps
from nextlong.rng import rng_for
from nextlong.schemas import DropReason, Layout
from nextlong.sequences.encode import Engine, kept_encoder
from nextlong.text import Json

_EXAMPLES, _EXAMPLES_EACH = 8, 2  # near-duplicates remembered by a task, and of one meta-document
_DROPPED_EXAMPLES = 100  # documents that became no draft
_EXAMINED = 1.125  # times the prefix that a draft of unfiltered lists takes …
_EXAMINED_MORE = 8  # … and these, so that short prefixes have some to spare too

_Ids = NDArray[np.int64]
_Paths = Sequence[Path]


def extension_steps(recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int) -> list[Step]:
    """Return the steps of Negative Document Extension."""
    compose, mine, seed, max_chars = recipe.compose, recipe.mine, recipe.seed, recipe.chunk.max_chars
    encoder = encoder_step(recipe.encoder, ingest, chunk, seed=seed)
    meta_documents = meta_documents_step(
        compose, ingest, chunk, attempt=attempt, seed=recipe.compose_seed, max_chars=max_chars
    )
    neighbours = {"neighbours": candidates_of(compose, mine, max_chars=max_chars)}
    index_name = recipe.search.index
    shortlisting: list[Step] = []
    if mine.shortlist is not None:  # which excludes what needs the vectors of chunks that are not on it
        why = ""
        if compose.sequences == "all":
            why = "embeds every chunk with compose.sequences=all, which extends every document; give compose.sequences a number"
        elif index_name not in (AUTO, EXACT):
            why = f"leaves most vectors empty, which search.index={index_name} would cluster badly; set search.index=exact"
        elif NEGATIVES[compose.negatives].origin == "corpus":
            why = f"does not embed the random chunks that compose.negatives={compose.negatives} takes; take other negatives"
        if why:
            raise RecipeError(f"mine.shortlist=bm25 {why}, or remove mine.shortlist")
        shortlisting = shortlist_steps(compose, mine, ingest, chunk, meta_documents, seed=seed)
    embed = embed_step(recipe.encoder, ingest, chunk, encoder, shortlisting[-1] if shortlisting else None)
    # Most vectors are zero with a shortlist, and an index of them would have poor clusters: the search is exact.
    index = [] if shortlisting else index_steps(recipe.search, embed, meta_documents, neighbours, seed=seed)
    mining = mine_steps(recipe.search, "mine", embed, meta_documents, shortlisting or index, neighbours)
    near_duplicate_steps = []
    if mine.near_duplicates_for(compose.negatives) is not None:
        shingled = shingling.shingles_step(ingest, chunk)
        near_duplicate_steps = [shingled, shingling.weights_step(ingest, chunk, shingled, seed=seed)]
    inputs = (ingest, chunk, embed, meta_documents, mining[-1], tokenizer, *near_duplicate_steps)
    draft = _draft_step(recipe, inputs, attempt=attempt)
    # Near-duplicates before vectors: their weights are one task, which then runs beside those that embed.
    return [meta_documents, *shortlisting, encoder, *near_duplicate_steps, embed, *index, *mining, draft]


def _draft_step(recipe: Recipe, inputs: Sequence[Step], *, attempt: int) -> Step:
    """CANDIDATES → DRAFTS of extended documents; with shingles and their weights among the inputs, without near-duplicates."""
    compose, mine, choice = recipe.compose, recipe.mine, NEGATIVES[recipe.compose.negatives]
    enough = sequence_limit(compose, attempt)
    is_reordered = choice.origin == "retrieved" and choice.order != "nearest"
    config: Json = {**method_of(recipe).promises(recipe.options)}
    config |= {"target_tokens": recipe.sequence_tokens, "draft_factor": compose.draft_factor, "fit": compose.fit}
    config |= {"negatives": compose.negatives, "reorder_top": mine.reorder_top if is_reordered else 0}
    config["near_duplicates"] = mine.near_duplicates_for(compose.negatives)
    config["max_similarity"] = None if choice.repeat_meta_chunk else mine.max_similarity
    seed = recipe.compose_seed if choice.order == "random" else 0
    config |= {"seed": seed, "max_chars": recipe.chunk.max_chars, "engine": recipe.tokenizer.engine, "enough": enough}

    def tasks(done: Artifacts) -> list[Task]:
        meta_documents, text = done["meta_documents"].file(".meta_documents.npy"), corpus(done)
        retrieved, measure = done["mine"].files(".candidates.arrow"), None
        if "weights" in done:
            measure = shingling.shingle_store(done), done["weights"].file(".weights.npy")
        chars_per_token = done["tokenizer"].result(TokenizerResult).chars_per_token
        # So many documents are drafted that `enough` are most likely shorter than T.
        chars = np.load(meta_documents)["chars"]
        drafted = _surely_enough(chars, enough=enough, sure_chars=SURE_SHARE * compose.target_tokens * chars_per_token)
        how = _Drafting(compose, mine, recipe.sequence_tokens, chars_per_token, recipe.chunk.max_chars, seed)
        tokenizer, vectors = done["tokenizer"].file(".tokenizer.json"), done["embed"].files(".vectors.npy")
        engine = recipe.tokenizer.engine
        draft = partial(
            _draft_block, text=text, vectors=vectors, tokenizer=(tokenizer, engine), measure=measure, how=how
        )
        return [
            partial(draft, rows=(meta_documents, first, min(last, drafted)), candidates=candidates)
            for (first, last), candidates in zip(query_ranges(meta_documents), retrieved, strict=True)
            if first < drafted
        ]

    def count_tasks(amounts: Amounts) -> float:
        return blocks(amounts.drafts, amounts.queries)

    size = 21  # bytes: id, role, group and score, and a share of the header
    estimate = Estimate(work="drafted_chunks", seconds=8e-5, disk="drafted_chunks", bytes=size, tasks=count_tasks)
    return Step("draft", 5, config, tuple(inputs), tasks, DraftResult, estimate=estimate)


class _Drafting(NamedTuple):
    """What the drafts of a run have in common."""

    compose: Compose
    mine: Mine
    target_tokens: int
    chars_per_token: float  # of the corpus
    max_chars: int  # of a chunk
    seed: int


def _surely_enough(chars: _Ids, *, enough: int | None, sure_chars: float) -> int:
    """Return how many documents, of so many characters each, to draft so that `enough` are most likely shorter than T."""
    sure = np.flatnonzero(chars <= sure_chars)
    return len(chars) if enough is None or len(sure) <= enough else int(sure[enough])


class _Candidates(NamedTuple):
    """The candidates of one meta-document; one array a meta-chunk, in the order in which drafts take them."""

    ids: list[NDArray[np.int64]]
    scores: list[NDArray[np.float32]]
    chars: list[NDArray[np.int64]]

    def emptied(self, masks: Sequence[NDArray[np.bool_]]) -> _Candidates:
        """Return the same with 0 characters for those, a mask for each meta-chunk, which will not serve."""
        return self._replace(chars=[np.where(mask, 0, chars) for mask, chars in zip(masks, self.chars, strict=True)])

    def picked(self, picks: Sequence[NDArray[Any]]) -> _Candidates:
        """Return those that `picks`, places or a mask for each meta-chunk, choose."""
        columns: list[list[NDArray[Any]]] = [self.ids, self.scores, self.chars]
        return _Candidates(*([own[pick] for own, pick in zip(column, picks, strict=True)] for column in columns))


class _Filtered(NamedTuple):
    """What is left of the candidates of one meta-document, and the prefixes drafted of it."""

    candidates: _Candidates
    prefixes: list[int]
    pairs: _Ids  # (n, 2) chunks in the prefixes that repeat each other
    near_duplicates: int = 0  # distinct chunks that were passed over
    by_passage: int = 0  # … of these, because of a shared 100-word passage alone
    # Some of these, each with the candidate that it repeats; None: the meta-document.
    examples: tuple[tuple[int, int | None], ...] = ()


def _draft_block(
    out: Path,
    *,
    rows: tuple[Path, int, int],
    candidates: Path,
    text: CorpusFiles,
    vectors: _Paths,
    tokenizer: tuple[Path, Engine],
    measure: tuple[ShingleStore, Path] | None,
    how: _Drafting,
) -> DraftResult:
    """Draft those of some `rows` of META_DOCUMENTS, [first, last), that fit; writes `{out}.drafts.arrow`.

    `measure`: SHINGLES and WEIGHTS to filter near-duplicates by.
    """
    # The n meta-documents of the block, sorted as sampled; `own_texts` (n,) has the texts of the chunks of each.
    metas = np.load(rows[0])[slice(*rows[1:])]  # (n,) META_DOCUMENTS
    texts = text.texts(lookup.ranges(metas["first_chunk"], metas["chunks"])).tolist()  # (chunks of all n,)
    bounds = np.concatenate([[0], np.cumsum(metas["chunks"])])  # (n + 1,)
    own_texts = [texts[start:stop] for start, stop in pairwise(bounds.tolist())]
    tokens = kept_encoder(*tokenizer).encode_batch(texts)[1] if texts else np.zeros(0, np.int64)
    own_tokens = np.add.reduceat(tokens, bounds[:-1]) if texts else tokens  # (n,)
    fits = own_tokens < how.target_tokens  # (n,); documents that do not fit are compared with nothing
    those = [own if fit else [] for own, fit in zip(own_texts, fits, strict=True)]
    compared = shingling.documents_of(those) if measure else []
    near_duplicates = by_passage = 0
    examples: list[tuple[int, int, int]] = []
    with pa.OSFile(f"{out}.drafts.arrow", "wb") as sink, pa.ipc.new_file(sink, schemas.DRAFTS) as writer:
        # CANDIDATES has a row for each meta-chunk, in the order of `metas`: also those of documents that do not fit are read.
        for place, retrieved in enumerate(_read_candidates(candidates, metas["chunks"], text.chunks)):
            if not fits[place]:
                continue
            meta = metas[place]
            # T in characters: T·E with the corpus's E, which under `fit="paper"` is the paper's constant. `fit="exact"` drafts at
            # the E of the meta-document where that is above the corpus's: its negatives are in its own language and style, so
            # where it takes fewer tokens than the mean, so do they.
            chars = int(meta["chars"])
            own_chars_per_token = chars / max(1, int(own_tokens[place])) if how.compose.fit == "exact" else 0.0
            target_chars = how.target_tokens * max(how.chars_per_token, own_chars_per_token)
            ordered = _ordered_candidates(meta, retrieved, how, target_chars, text.chunks, vectors)
            prefixes_of = partial(_draft_prefixes, how=how, target_chars=target_chars, document_chars=chars)
            if measure is None or how.mine.near_duplicates is None:
                drafted = _Filtered(ordered, prefixes_of(ordered), np.empty((0, 2), np.int64))
            else:
                rule = measure[0], opened(measure[1]), how.mine.near_duplicates
                drafted = _filter_near_duplicates(ordered, prefixes_of, compared[place], *rule)
            writer.write_batch(pa.RecordBatch.from_pylist([_draft_row(meta, drafted)], schema=schemas.DRAFTS))
            near_duplicates += drafted.near_duplicates
            by_passage += drafted.by_passage
            own = int(meta["first_chunk"]), int(meta["chunks"])
            examples += [(chunk, *(own if other is None else (other, 1))) for chunk, other in drafted.examples]
    columns = (metas["first_chunk"], metas["chunks"], own_tokens)
    too_long = tuple(zip(*(column[~fits][:_DROPPED_EXAMPLES].tolist() for column in columns), strict=True))
    return DraftResult(
        drafts=int(fits.sum()),
        dropped={DropReason.TOO_LONG: int((~fits).sum())},
        dropped_examples={DropReason.TOO_LONG: too_long},
        near_duplicates=None if measure is None else near_duplicates,
        repeated_passages=None if measure is None else by_passage,
        near_duplicate_examples=tuple(examples[:_EXAMPLES]),
    )


def _draft_prefixes(candidates: _Candidates, how: _Drafting, *, target_chars: float, document_chars: int) -> list[int]:
    """Return how long a prefix of each meta-chunk's candidates the draft takes: a document of S characters in p meta-chunks.

    `fit="paper"`: as long as it holds k = (Q − S) / (p·s) negatives that no earlier meta-chunk has taken, with Q = T·E·w (paper
    §3.1.2), rounded up, at least 1. `"exact"`: as long as it holds (Q − S) / p characters besides what earlier meta-chunks will
    presumably use, which is their first (T·E − S) / p. A candidate of 0 characters will not serve.
    """
    needed, drafted = target_chars - document_chars, target_chars * how.compose.draft_factor - document_chars
    meta_chunks, is_paper = len(candidates.ids), how.compose.fit == "paper"
    if is_paper:
        enough = used = max(1, math.ceil(drafted / (meta_chunks * how.max_chars)))
    else:
        enough, used = math.ceil(drafted / meta_chunks), math.ceil(needed / meta_chunks)
    # A chunk is a number in [0, d) among the d distinct candidates, so that those taken are a mask (d,).
    distinct, numbers = np.unique(np.concatenate(candidates.ids), return_inverse=True)
    firsts = np.cumsum([len(ids) for ids in candidates.ids])[:-1]
    is_taken = np.zeros(len(distinct), np.bool_)
    lengths = []
    for ids, chars in zip(np.split(numbers, firsts), candidates.chars, strict=True):
        free = ~is_taken[ids] & (chars > 0)
        filled = np.cumsum(free if is_paper else chars * free)
        lengths.append(min(len(ids), int(np.searchsorted(filled, enough)) + 1))
        is_taken[ids[: int(np.searchsorted(filled, used)) + 1]] = True
    return lengths


def _ordered_candidates(
    meta: NDArray[Any], retrieved: _Candidates, how: _Drafting, target_chars: float, chunks: _Paths, vectors: _Paths
) -> _Candidates:
    """Return the candidates of the meta-chunks of a META_DOCUMENTS row, in order; none scores above `mine.max_similarity`."""
    compose, mine, negatives = how.compose, how.mine, NEGATIVES[how.compose.negatives]
    rng = rng_for(how.seed, f"negatives.{compose.negatives}", int(meta["content_hash"]))
    own_chunks = np.arange(int(meta["chunks"])) + int(meta["first_chunk"])
    if negatives.repeat_meta_chunk:  # each is its own negative, often enough
        sizes = lookup.chunk_chars(own_chunks, chunks)
        chars = target_chars * compose.draft_factor / len(own_chunks)
        times = np.ceil(chars / np.maximum(sizes, 1)).astype(np.int64) + 1
        own, lengths = ([np.full(*pair) for pair in zip(times, values, strict=True)] for values in (own_chunks, sizes))
        return _Candidates(own, [np.ones(count, np.float32) for count in times], lengths)
    if negatives.origin == "corpus":  # as many random chunks of other documents as were retrieved, with true cosines
        shards = VectorShards(vectors)
        total = sum(shards.rows)
        drawn = _Candidates([], [], [])
        for query_D, like in zip(lookup.vectors(own_chunks, vectors), retrieved.ids, strict=True):
            ids = shards.ids_at(rng.permutation(total)[: len(like) + len(own_chunks)])
            ids = ids[~np.isin(ids, own_chunks)][: len(like)]
            drawn.ids.append(ids)
            drawn.scores.append((lookup.vectors(ids, vectors) @ query_D).astype(np.float32))
            drawn.chars.append(lookup.chunk_chars(ids, chunks))
        retrieved = drawn
    if mine.max_similarity is not None:
        retrieved = retrieved.picked([scores <= mine.max_similarity for scores in retrieved.scores])
    if negatives.are_nearest or negatives.origin == "corpus":
        return retrieved
    # The `mine.reorder_top` nearest in random order, or the farthest of these first (the paper's ablation, §4.4). The others
    # follow, nearest first, for sequences that need more.
    orders = []
    for ids in retrieved.ids:
        nearest, others = np.split(np.arange(len(ids)), [min(mine.reorder_top, len(ids))])
        orders.append(np.append(rng.permutation(nearest) if negatives.order == "random" else nearest[::-1], others))
    return retrieved.picked(orders)


def _read_candidates(candidates: Path, chunks_per_meta: _Ids, chunks: _Paths) -> Iterator[_Candidates]:
    """Yield the candidates of each meta-document of a block, with their lengths in characters."""
    with pa.ipc.open_file(pa.memory_map(str(candidates))) as reader:
        table = reader.read_all()
    neighbours, scores = (table.column(name).combine_chunks() for name in ("neighbour_ids", "scores"))
    offsets, ids, values = neighbours.offsets.to_numpy(), neighbours.values.to_numpy(), scores.values.to_numpy()
    chars = lookup.chunk_chars(ids, chunks) if len(ids) else ids
    query = 0
    for count in chunks_per_meta.tolist():
        pieces = [slice(offsets[q], offsets[q + 1]) for q in range(query, query + count)]
        yield _Candidates([ids[p] for p in pieces], [values[p] for p in pieces], [chars[p] for p in pieces])
        query += count


def _draft_row(meta: NDArray[Any], drafted: _Filtered) -> Json:
    """Return a DRAFTS row: each meta-chunk followed by the prefix of its candidates."""
    ids, scores = [], []
    for group, length in enumerate(drafted.prefixes):
        ids += [np.array([int(meta["first_chunk"]) + group]), drafted.candidates.ids[group][:length]]
        scores += [np.array([1.0], np.float32), drafted.candidates.scores[group][:length]]
    sizes = np.array(drafted.prefixes) + 1
    roles = np.full(sizes.sum(), schemas.NEGATIVE, np.int8)
    roles[np.cumsum(sizes) - sizes] = schemas.META
    return {
        "sequence_id": f"nextlong-{int(meta['content_hash']):016x}",
        "key": int(meta["content_hash"]),
        "layout": Layout.EXTENDED.value,
        "chunk_id": np.concatenate(ids),
        "role": roles,
        "group": np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        "score": np.concatenate(scores),
        "near_duplicates": drafted.pairs.ravel(),
    }


def _filter_near_duplicates(
    candidates: _Candidates,
    draft: Callable[[_Candidates], list[int]],
    document: ComparedDocument,
    shingles: ShingleStore,
    weights: Weights,
    threshold: float,
) -> _Filtered:
    """Return the candidates of a meta-document without its near-duplicates, which share `threshold` of their words."""
    # `chunks` (c,): the distinct candidate ids, ascending. A chunk is a number in [0, c) from here on, so that sets of chunks
    # are masks (c,). `numbers`: for each meta-chunk the numbers of its candidates, in the order in which they serve.
    chunks, inverse = np.unique(np.concatenate(candidates.ids), return_inverse=True)
    numbers = np.split(inverse, np.cumsum([len(ids) for ids in candidates.ids])[:-1])
    drafted = draft(candidates)
    examined = [math.ceil(length * _EXAMINED) + _EXAMINED_MORE for length in drafted]
    while True:
        # `walked` (w,): the distinct numbers to compare, in the order in which composing presumably walks, group by group: first
        # what a draft of unfiltered lists takes, then the others. Places in it are what `copies` speaks of.
        every = np.concatenate(
            [own[:length] for own, length in zip(numbers, drafted, strict=True)]
            + [own[length:most] for own, length, most in zip(numbers, drafted, examined, strict=True)]
        )
        walked = every[np.sort(np.unique(every, return_index=True)[1])]
        compared = shingles.of(chunks[walked])
        copies = find_near_duplicates(compared, document=document, weights=weights, threshold=threshold)
        repeats_document = np.bincount(walked[copies.of_document], minlength=len(chunks)) > 0
        keep = [~repeats_document[own] for own in numbers]
        kept, kept_numbers = candidates.picked(keep), [own[mask] for own, mask in zip(numbers, keep, strict=True)]
        is_repeat = np.bincount(walked[_repeats(copies.pairs)], minlength=len(chunks)) > 0
        prefixes = draft(kept.emptied([is_repeat[own] for own in kept_numbers]))
        known = [int(mask[:most].sum()) for mask, most in zip(keep, examined, strict=True)]
        runs_short = [length > count for length, count in zip(prefixes, known, strict=True)]
        if not any(runs_short):
            break
        examined = [2 * most if short else most for most, short in zip(examined, runs_short, strict=True)]
    drafted_numbers = [own[:length] for own, length in zip(kept_numbers, prefixes, strict=True)]
    is_reached = np.bincount(np.concatenate(drafted_numbers), minlength=len(chunks)) > 0
    pairs = chunks[walked[copies.pairs[is_reached[walked][copies.pairs].all(axis=1)]]]
    is_passed_over = is_repeat & is_reached
    for own, mask, length in zip(numbers, keep, prefixes, strict=True):
        # Candidates that would be in the prefix but repeat the meta-document.
        reach = np.flatnonzero(mask)[length - 1] if length else len(own)
        is_passed_over[own[:reach][~mask[:reach]]] = True
    passed_over = chunks[is_passed_over]
    of_document, of_each_other = chunks[walked[copies.of_document]], chunks[walked[copies.pairs]]
    examples: list[tuple[int, int | None]] = []
    for chunk in passed_over[:_EXAMPLES_EACH].tolist():
        earlier = of_each_other[of_each_other[:, 1] == chunk, 0]
        if chunk in of_document or len(earlier):
            examples.append((chunk, None if chunk in of_document else int(earlier[-1])))
    by_passage = int(is_passed_over[walked[copies.by_passage]].sum())
    return _Filtered(kept, prefixes, pairs, len(passed_over), by_passage, tuple(examples))


def _repeats(pairs: _Ids) -> _Ids:
    """Return, ascending, which candidates repeat one before them that repeats none itself; `pairs` (n, 2) of places, a < b."""
    earlier, later = pairs[np.argsort(pairs[:, 1], kind="stable")].T
    is_repeat = np.zeros(int(later.max(initial=-1)) + 1, np.bool_)
    firsts = np.flatnonzero(np.diff(later, prepend=-1))
    for first, last in pairwise([*firsts.tolist(), len(later)]):
        is_repeat[later[first]] = not is_repeat[earlier[first:last]].all()
    return np.flatnonzero(is_repeat)
