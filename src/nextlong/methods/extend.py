"""Extend: draft the negatives of meta-documents, counted in characters and with some to spare.

In:  META_DOCUMENTS and CANDIDATES of a block of meta-documents; E, the measured characters per token; where near-duplicates
     are filtered out, SHINGLES and WEIGHTS.
Out: DRAFTS, in the order of the sample: each meta-chunk followed by a prefix of its candidates.

The tokens of meta-documents are counted, because a document that does not fit T is not drafted. For candidates characters
suffice, so that of other documents only the chunks that drafts refer to are ever tokenized.

Near-duplicates teach nothing: they are false negatives, or the same negative again. Candidates that repeat the meta-document
are removed. Of two candidates that repeat each other, both stay: which of them composing places, if any, is known only in
tokens. Composing never places both, so the draft counts the second one as empty. Only the candidates that a draft is
likely to reach are compared: slightly more than it would take of unfiltered lists, and twice that of each list that runs short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts.finished import CorpusFiles, chunks_of
from nextlong.artifacts.lookup import opened
from nextlong.artifacts.results import DraftResult, TokenizerResult
from nextlong.engine.step import Artifacts, Estimate, Step, Task
from nextlong.errors import RecipeError
from nextlong.methods.base import method_of, promises
from nextlong.methods.nextlong import (
    Candidates,
    draft_prefixes,
    negatives_per_meta_chunk,
    ordered_candidates,
    read_candidates,
)
from nextlong.recipe import Compose, Recipe
from nextlong.recipe.amounts import SURE_SHARE, blocks, candidates_of, sequence_limit
from nextlong.recipe.keys import AUTO, EXACT, NEGATIVES
from nextlong.retrieval.embed import embed_step, encoder_step
from nextlong.retrieval.index import index_steps
from nextlong.retrieval.mine import mine_steps
from nextlong.retrieval.near_duplicates.rule import find_near_duplicates
from nextlong.retrieval.near_duplicates.shingles import (
    ComparedDocument,
    ShingleStore,
    Weights,
    documents_of,
    shingle_store,
    shingles_step,
    weights_step,
)
from nextlong.retrieval.sample import chunk_ids_of, meta_documents_step, query_ranges
from nextlong.retrieval.shortlist import shortlist_steps
from nextlong.rng import rng_for
from nextlong.schemas import DropReason, Layout
from nextlong.sequences.encode import kept_encoder
from nextlong.text import Json

_EXAMPLES, _EXAMPLES_EACH = 8, 2  # near-duplicates remembered by a task, and of one meta-document
_DROPPED_EXAMPLES = 100  # documents that became no draft
_EXAMINED = 1.125  # times the prefix that a draft of unfiltered lists takes …
_EXAMINED_MORE = 8  # … and these, so that short prefixes have some to spare too

Ids = NDArray[np.int64]


def extension_steps(recipe: Recipe, ingest: Step, chunk: Step, tokenizer: Step, *, attempt: int) -> list[Step]:
    """Return the steps of Negative Document Extension."""
    encoder = encoder_step(recipe, ingest, chunk)
    meta_documents = meta_documents_step(recipe, ingest, chunk, attempt=attempt)
    neighbours = {"neighbours": candidates_of(recipe)}
    if is_short := recipe.mine.shortlist is not None:
        _check_shortlist(recipe.compose, recipe.search.index)
    shortlisting = shortlist_steps(recipe, ingest, chunk, meta_documents) if is_short else []
    embed = embed_step(recipe, ingest, chunk, encoder, shortlisting[-1] if is_short else None)
    # Most vectors are zero with a shortlist, and an index of them would have poor clusters: the search is exact.
    index = [] if is_short else index_steps(recipe, embed, meta_documents, neighbours)
    mining = mine_steps(recipe, "mine", embed, meta_documents, index, neighbours, shortlist=shortlisting)
    near_duplicate_steps = []
    if recipe.mine.near_duplicates_for(recipe.compose.negatives) is not None:
        shingled = shingles_step(ingest, chunk)
        near_duplicate_steps = [shingled, weights_step(recipe, ingest, chunk, shingled)]
    inputs = (ingest, chunk, embed, meta_documents, mining[-1], tokenizer, *near_duplicate_steps)
    draft = _draft_step(recipe, inputs, attempt=attempt)
    # Near-duplicates before vectors: their weights are one task, which then runs beside those that embed.
    return [meta_documents, *shortlisting, encoder, *near_duplicate_steps, embed, *index, *mining, draft]


def _check_shortlist(compose: Compose, index: str) -> None:
    """Raise RecipeError for what needs the vectors of chunks that are not on a shortlist."""
    if compose.sequences == "all":
        why = "embeds every chunk with compose.sequences=all, which extends every document; give compose.sequences a number"
    elif index not in (AUTO, EXACT):
        why = f"leaves most vectors empty, which search.index={index} would cluster badly; set search.index=exact"
    elif NEGATIVES[compose.negatives].origin == "corpus":
        why = f"does not embed the random chunks that compose.negatives={compose.negatives} takes; take other negatives"
    else:
        return
    raise RecipeError(f"mine.shortlist=bm25 {why}, or remove mine.shortlist")


def _draft_step(recipe: Recipe, inputs: Sequence[Step], *, attempt: int) -> Step:
    """CANDIDATES → DRAFTS of extended documents; with shingles and their weights among the inputs, without near-duplicates."""
    compose, choice = recipe.compose, NEGATIVES[recipe.compose.negatives]
    config: Json = {
        "target_tokens": recipe.sequence_tokens,
        "draft_factor": compose.draft_factor,
        "fit": compose.fit,
        "negatives": compose.negatives,
        "reorder_top": recipe.mine.reorder_top if choice.are_reordered else 0,
        "near_duplicates": recipe.mine.near_duplicates_for(compose.negatives),
        "max_similarity": None if choice.repeat_meta_chunk else recipe.mine.max_similarity,
        "seed": recipe.compose_seed if choice.are_random else 0,
        "max_chars": recipe.chunk.max_chars,
    }
    enough = sequence_limit(recipe.compose, attempt)

    def tasks(done: Artifacts) -> list[Task]:
        meta_documents = done["meta_documents"].file(".meta_documents.npy")
        ranges = zip(query_ranges(meta_documents), done["mine"].files(".candidates.arrow"), strict=True)
        chars_per_token = done["tokenizer"].result(TokenizerResult).chars_per_token
        rules = _DraftRules(chars_per_token=chars_per_token, **config)
        sure_chars = SURE_SHARE * recipe.compose.target_tokens * chars_per_token
        drafted = _surely_enough(np.load(meta_documents)["chars"], enough=enough, sure_chars=sure_chars)
        measure = (shingle_store(done), done["weights"].file(".weights.npy")) if "weights" in done else None
        return [
            partial(
                _draft_block,
                meta_documents=meta_documents,
                first=first,
                last=min(last, drafted),
                candidates=candidates,
                documents=done["ingest"].files(".documents.arrow"),
                tokenizer=done["tokenizer"].file(".tokenizer.json"),
                engine=recipe.tokenizer.engine,
                chunks=chunks_of(done).files(".chunks.arrow"),
                vectors=done["embed"].files(".vectors.npy"),
                measure=measure,
                rules=rules,
            )
            for (first, last), candidates in ranges
            if first < drafted
        ]

    whole = {
        **promises(method_of(recipe), recipe.options),
        **config,
        "engine": recipe.tokenizer.engine,
        "enough": enough,
    }
    estimate = Estimate(
        work="drafted_chunks",
        seconds=8e-5,
        disk="drafted_chunks",
        bytes=21,  # id, role, group and score, and a share of the header
        tasks=lambda amounts: blocks(amounts.drafts, amounts.queries),
    )
    return Step("draft", 5, whole, tuple(inputs), tasks, DraftResult, estimate=estimate)


def _surely_enough(chars: NDArray[np.int64], *, enough: int | None, sure_chars: float) -> int:
    """Return how many documents, of so many characters each, to draft so that `enough` are most likely shorter than T."""
    sure = np.flatnonzero(chars <= sure_chars)
    return len(chars) if enough is None or len(sure) <= enough else int(sure[enough])


@dataclass(frozen=True, kw_only=True)
class _DraftRules:
    """How candidates become drafts: the recipe's choices and E."""

    target_tokens: int
    chars_per_token: float
    draft_factor: float
    fit: Literal["exact", "paper"]
    max_chars: int
    negatives: str
    reorder_top: int
    near_duplicates: float | None
    max_similarity: float | None
    seed: int


class Filtered(NamedTuple):
    """What is left of the candidates of one meta-document, and the prefixes drafted of it."""

    candidates: Candidates
    prefixes: list[int]
    pairs: Ids  # (n, 2) chunks in the prefixes that repeat each other
    near_duplicates: int = 0  # distinct chunks that were passed over
    by_passage: int = 0  # … of these, because of a shared 100-word passage alone
    # Some of these, each with the candidate that it repeats; None: the meta-document.
    examples: tuple[tuple[int, int | None], ...] = ()


def _draft_block(
    out: Path,
    *,
    meta_documents: Path,
    first: int,
    last: int,
    candidates: Path,
    documents: Sequence[Path],
    chunks: Sequence[Path],
    vectors: Sequence[Path],
    tokenizer: Path,
    engine: Literal["auto", "reference"] = "auto",
    measure: tuple[ShingleStore, Path] | None,
    rules: _DraftRules,
) -> DraftResult:
    """Draft the meta-documents [first, last); writes `{out}.drafts.arrow` and counts those that cannot fit.

    `measure`, SHINGLES and WEIGHTS, is needed if `rules.near_duplicates` is set; near-duplicates are counted too.
    """
    # The n meta-documents of the block, sorted as sampled. Flat arrays over their chunks hold one document after the other;
    # those of document i are [bounds[i], bounds[i + 1]).
    metas = np.load(meta_documents)[first:last]  # (n,) META_DOCUMENTS
    bounds = np.concatenate([[0], np.cumsum(metas["chunks"])])  # (n + 1,)
    own_tokens, fits, compared = np.zeros(0, np.int64), np.zeros(0, np.bool_), []  # (n,) tokens; whether they fit T
    if len(metas):
        texts = CorpusFiles(tuple(documents), tuple(chunks)).texts(chunk_ids_of(metas)).tolist()  # (chunks of all n,)
        own_tokens = np.add.reduceat(kept_encoder(tokenizer, engine).encode_batch(texts)[1], bounds[:-1])
        fits = own_tokens < rules.target_tokens
        if measure is not None:  # documents that do not fit are compared with nothing
            own_texts = [texts[a:b] if fit else [] for (a, b), fit in zip(pairwise(bounds.tolist()), fits, strict=True)]
            compared = documents_of(own_texts)
    near_duplicates = by_passage = 0
    examples: list[tuple[int, int, int]] = []
    with pa.OSFile(f"{out}.drafts.arrow", "wb") as sink, pa.ipc.new_file(sink, schemas.DRAFTS) as writer:
        # CANDIDATES has a row for each meta-chunk, in the order of `metas`: also those of documents that do not fit are read.
        for place, retrieved in enumerate(read_candidates(candidates, metas["chunks"], chunks)):
            if not fits[place]:
                continue
            meta = metas[place]
            target_chars = _target_chars(rules, meta, int(own_tokens[place]))
            ordered = ordered_candidates(
                meta,
                retrieved,
                negatives=NEGATIVES[rules.negatives],
                reorder_top=rules.reorder_top,
                max_similarity=rules.max_similarity,
                drafted_chars=target_chars * rules.draft_factor,
                chunks=chunks,
                vectors=vectors,
                rng=rng_for(rules.seed, f"negatives.{rules.negatives}", int(meta["content_hash"])),
            )
            prefixes_of = partial(_prefixes, rules, meta, target_chars)
            if measure is None or rules.near_duplicates is None:
                drafted = Filtered(ordered, prefixes_of(ordered), np.empty((0, 2), np.int64))
            else:
                drafted = _filter_near_duplicates(
                    ordered,
                    prefixes_of,
                    document=compared[place],
                    shingles=measure[0],
                    weights=opened(measure[1]),
                    threshold=rules.near_duplicates,
                )
            writer.write_batch(pa.RecordBatch.from_pylist([_draft_row(meta, drafted)], schema=schemas.DRAFTS))
            near_duplicates += drafted.near_duplicates
            by_passage += drafted.by_passage
            own = int(meta["first_chunk"]), int(meta["chunks"])
            examples += [(chunk, *(own if other is None else (other, 1))) for chunk, other in drafted.examples]
    too_long = tuple(
        (int(meta["first_chunk"]), int(meta["chunks"]), int(tokens))
        for meta, tokens in zip(metas[~fits][:_DROPPED_EXAMPLES], own_tokens[~fits].tolist(), strict=False)
    )
    return DraftResult(
        drafts=int(fits.sum()),
        dropped={DropReason.TOO_LONG: int((~fits).sum())},
        dropped_examples={DropReason.TOO_LONG: too_long},
        near_duplicates=None if measure is None else near_duplicates,
        repeated_passages=None if measure is None else by_passage,
        near_duplicate_examples=tuple(examples[:_EXAMPLES]),
    )


def _target_chars(rules: _DraftRules, meta: NDArray[Any], own_tokens: int) -> float:
    """Return T in characters: T·E with the corpus's E, which under `fit="paper"` is the paper's constant.

    `fit="exact"` drafts at the E of the meta-document where that is above the corpus's: its negatives are in its own
    language and style, so where it takes fewer tokens than the mean, so do they.
    """
    if rules.fit == "paper":
        return rules.target_tokens * rules.chars_per_token
    return rules.target_tokens * max(rules.chars_per_token, float(meta["chars"]) / max(1, own_tokens))


def _prefixes(rules: _DraftRules, meta: NDArray[Any], target_chars: float, candidates: Candidates) -> list[int]:
    """Return how much of each list of candidates the draft takes."""
    return draft_prefixes(
        candidates.ids,
        candidates.chars,
        fit=rules.fit,
        needed_chars=target_chars - float(meta["chars"]),
        drafted_chars=target_chars * rules.draft_factor - float(meta["chars"]),
        negatives=negatives_per_meta_chunk(
            target_tokens=rules.target_tokens,
            chars_per_token=target_chars / rules.target_tokens,
            draft_factor=rules.draft_factor,
            document_chars=int(meta["chars"]),
            meta_chunks=int(meta["chunks"]),
            max_chars=rules.max_chars,
        ),
    )


def _draft_row(meta: NDArray[Any], drafted: Filtered) -> schemas.DraftRow:
    """Return a DRAFTS row: each meta-chunk followed by the prefix of its candidates."""
    ids, roles, groups, scores = [], [], [], []
    for group, length in enumerate(drafted.prefixes):
        ids += [np.array([int(meta["first_chunk"]) + group]), drafted.candidates.ids[group][:length]]
        scores += [np.array([1.0], np.float32), drafted.candidates.scores[group][:length]]
        roles += [np.array([schemas.META], np.int8), np.full(length, schemas.NEGATIVE, np.int8)]
        groups.append(np.full(length + 1, group, np.int32))
    return {
        "sequence_id": f"nextlong-{int(meta['content_hash']):016x}",
        "key": int(meta["content_hash"]),
        "layout": Layout.EXTENDED.value,
        "chunk_id": np.concatenate(ids),
        "role": np.concatenate(roles),
        "group": np.concatenate(groups),
        "score": np.concatenate(scores),
        "near_duplicates": drafted.pairs.ravel(),
    }


def _filter_near_duplicates(
    candidates: Candidates,
    draft: Callable[[Candidates], list[int]],
    *,
    document: ComparedDocument,
    shingles: ShingleStore,
    weights: Weights,
    threshold: float,
) -> Filtered:
    """Return the candidates of a meta-document without its near-duplicates, which share `threshold` of their words."""
    # `chunks` (c,): the distinct candidate ids, ascending. A chunk is a number in [0, c) from here on, so that sets of chunks
    # are masks (c,). `numbers`: for each meta-chunk the numbers of its candidates, in the order in which they serve.
    chunks, inverse = np.unique(np.concatenate(candidates.ids), return_inverse=True)
    numbers = np.split(inverse, np.cumsum([len(ids) for ids in candidates.ids])[:-1])
    drafted = draft(candidates)
    examined = [math.ceil(length * _EXAMINED) + _EXAMINED_MORE for length in drafted]
    while True:
        walked = _walked(numbers, drafted, examined)  # (w,) numbers; places in it are what `copies` speaks of
        copies = find_near_duplicates(
            shingles.of(chunks[walked]), document=document, weights=weights, threshold=threshold
        )
        repeats_document = _mask(walked[copies.of_document], count=len(chunks))
        keep = [~repeats_document[own] for own in numbers]
        kept, kept_numbers = candidates.picked(keep), [own[mask] for own, mask in zip(numbers, keep, strict=True)]
        is_repeat = _mask(walked[_repeats(copies.pairs)], count=len(chunks))
        prefixes = draft(kept.emptied([is_repeat[own] for own in kept_numbers]))
        known = [int(mask[:most].sum()) for mask, most in zip(keep, examined, strict=True)]
        runs_short = [length > count for length, count in zip(prefixes, known, strict=True)]
        if not any(runs_short):
            break
        examined = [2 * most if short else most for most, short in zip(examined, runs_short, strict=True)]
    drafted_numbers = [own[:length] for own, length in zip(kept_numbers, prefixes, strict=True)]
    is_reached = _mask(np.concatenate(drafted_numbers), count=len(chunks))
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
    return Filtered(kept, prefixes, pairs, len(passed_over), by_passage, tuple(examples))


def _mask(numbers: Ids, *, count: int) -> NDArray[np.bool_]:
    mask = np.zeros(count, np.bool_)
    mask[numbers] = True
    return mask


def _walked(numbers: Sequence[Ids], drafted: Sequence[int], examined: Sequence[int]) -> Ids:
    """Return the distinct candidates to compare, in the order in which composing presumably walks.

    Group by group, in their order: first what a draft of unfiltered lists takes, then the others.
    """
    parts = [own[:length] for own, length in zip(numbers, drafted, strict=True)]
    parts += [own[length:most] for own, length, most in zip(numbers, drafted, examined, strict=True)]
    every = np.concatenate(parts)
    walked: Ids = every[np.sort(np.unique(every, return_index=True)[1])]
    return walked


def _repeats(pairs: Ids) -> Ids:
    """Return, ascending, which candidates repeat one before them that repeats none itself; `pairs` (n, 2) of places, a < b."""
    earlier, later = pairs[np.argsort(pairs[:, 1], kind="stable")].T
    is_repeat = np.zeros(int(later.max(initial=-1)) + 1, np.bool_)
    firsts = np.flatnonzero(np.diff(later, prepend=-1))
    for first, last in pairwise([*firsts.tolist(), len(later)]):
        is_repeat[later[first]] = not is_repeat[earlier[first:last]].all()
    return np.flatnonzero(is_repeat)
