"""Contexts: chunks of other documents that make a model more certain of a document.

In:  documents; VECTORS of all chunks, to search them; SHINGLES and WEIGHTS, to filter
     near-duplicates; a causal language model (the section `scorer`).
Out: for each of some documents, the chunks found for the tokens of which the model is
     uncertain, and by how much each of them lowers its entropy there.

EntropyLong (arXiv 2510.02330, §3) as public reading notes give it: *anchors* are the
tokens t of a document D with an entropy H above the mean of D plus α = 2 standard
deviations; the query of an anchor is the text of w = 16 tokens on both sides; a
sentence encoder finds K chunks C by cosine; the reduction of C at t is

    (H(t | D before t) - H(t | C, D before t)) / H(t | D before t)

Ours: K is not published and is 8. A chunk that repeats the document or another
candidate is replaced by the next one. One forward of (C, D) serves all anchors that
named C, and it ends at the last of them. A model reads D and C up to half of its
context each. Documents longer than half a sequence are not used, and
counted.

The notes do not say at which anchors C is judged: here at those that named it, and the
best one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import numpy as np
from pydantic import Field

from nextlong import recipe as recipes
from nextlong.arrays import AnyArray, Floats, Ints
from nextlong.artifacts import corpus_files
from nextlong.artifacts.corpus_files import CorpusFiles, corpus, ranges
from nextlong.artifacts.results import TokenizerResult
from nextlong.engine.step import (
    Artifacts,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
)
from nextlong.methods.base import Contexts
from nextlong.plugins import METHODS
from nextlong.recipe import Recipe, Section
from nextlong.recipe.keys import Positive, sequence_limit
from nextlong.retrieval.embed import (
    embed_step,
    encoder_step,
    loaded_encoder,
    prepared_encoder,
)
from nextlong.retrieval.encoders.base import Prepared
from nextlong.retrieval.index import index_files, index_steps
from nextlong.retrieval.indexes.base import IndexFiles, index_kind
from nextlong.retrieval.near_duplicates import rule, shingles
from nextlong.retrieval.near_duplicates.shingles import ShingleStore, WeightsFiles
from nextlong.retrieval.sample import DocumentsFiles
from nextlong.retrieval.surprisal import (
    Encoded,
    KnownScorer,
    SurprisalModel,
    known_scorer,
    load_scorer,
    scorer_identity,
    scorer_resources,
)

_WINDOW: Final = 16  # tokens of a query on both sides of its anchor
# Searched chunks, as a multiple of `candidates`: some are near-duplicates.
OVER_FETCHED: Final = 4
# Of the tokens of all sequences; what more it takes, other attempts score.
DOCUMENT_SHARE: Final = 0.2
# Anchors among the tokens of a document, for plans: 280 of 12,383 by SmolLM2-135M.
ANCHOR_SHARE: Final = 0.023
_DOCUMENTS_PER_TASK: Final = 16
_ROWS_AT_ONCE: Final = 64


class Screening(Section):
    """How contexts are found: keys of each method that needs contexts."""

    candidates: Positive = Field(
        8, description="chunks that are tried for each uncertain token"
    )
    deviations: Annotated[float, Field(ge=0)] = Field(
        2.0,
        description=(
            "standard deviations by which the entropy of an uncertain token exceeds "
            "the mean of its document (EntropyLong's)"
        ),
    )


class ContextsResult(TaskResult):
    """The scored documents, their anchors, and the pairs of chunk and document."""

    documents: int
    anchors: int
    candidates: int


class ContextsFiles(StepFiles):
    """The candidates of some documents, and how they change the model's entropy."""

    step = "contexts"
    contexts = ShardFiles(".contexts.npz")


# The steps of all attempts. Each one doubles the documents, so no corpus has more.
CONTEXTS_STEPS: Final = (
    ContextsFiles.step,
    *(f"{ContextsFiles.step}_{attempt}" for attempt in range(1, 64)),
)


class Candidate(NamedTuple):
    """A chunk, the anchors that named it, ascending, and its best cosine to these."""

    chunk: int
    anchors: Ints
    cosine: float


@dataclass(frozen=True, kw_only=True)
class _Retrieval:
    """What finds the chunks of queries, and tells near-duplicates."""

    encoder: recipes.Encoder
    prepared: Prepared
    index: IndexFiles
    shingles: ShingleStore
    weights: Path
    threshold: float | None

    def candidates(
        self,
        queries_QD: Floats,
        anchors: Ints,
        *,
        own: Ints,
        chunk_texts: Sequence[str],
        count: int,
    ) -> list[Candidate]:
        """Return the candidates of a document of the chunks `own`, of these texts."""
        exclude = np.tile([own[0], own[-1] + 1], (len(anchors), 1))
        index = index_kind(self.index.index).open(self.index)
        ids, cosines = index.search(queries_QD, OVER_FETCHED * count, exclude=exclude)
        repeats = self._repeats(ids, cosines, chunk_texts)
        is_new = [~np.isin(row, repeats) for row in ids]
        return nearest_candidates(
            [row[mask] for row, mask in zip(ids, is_new, strict=True)],
            [row[mask] for row, mask in zip(cosines, is_new, strict=True)],
            anchors,
            count=count,
        )

    def _repeats(
        self, ids: Sequence[Ints], cosines: Sequence[Floats], own: Sequence[str]
    ) -> Ints:
        """Return the chunks that repeat the document, or another chunk that is nearer.

        Without a threshold, only those with the same words do.
        """
        order = np.argsort(-np.concatenate(cosines), kind="stable")
        every = np.concatenate(ids)[order]
        _, firsts = np.unique(every, return_index=True)
        nearest_first = every[np.sort(firsts)]
        (document,) = shingles.documents_of([own])
        copies = rule.find_near_duplicates(
            self.shingles.of(nearest_first),
            document=document,
            weights=corpus_files.opened(self.weights),
            threshold=1.0 if self.threshold is None else self.threshold,
        )
        is_repeat = copies.of_document
        is_repeat[copies.pairs[:, 1]] = True
        return nearest_first[is_repeat]


def context_steps(
    recipe: Recipe,
    ingest: Step,
    chunk: Step,
    documents: Step,
    tokenizer: Step,
    *,
    attempt: int,
) -> tuple[list[Step], list[Step]]:
    """Return the steps that prepare the search, and those that find contexts.

    Each attempt adds a step for as many documents as all before it, so that none is
    scored twice.
    """
    options = recipe.options
    if not isinstance(options, Screening):
        base = "nextlong.methods.contexts.Screening"
        raise METHODS.broken(
            recipe.compose.method,
            f"needs contexts, but its Options do not derive from {base}, whose keys "
            "say how they are found",
        )
    encoder = encoder_step(recipe.encoder, ingest, chunk, seed=recipe.seed)
    embed = embed_step(recipe.encoder, ingest, chunk, encoder)
    found = {"neighbours": float(OVER_FETCHED * options.candidates)}
    index = index_steps(recipe.search, embed, documents, found, seed=recipe.seed)
    compared = shingles.shingles_step(ingest, chunk)
    weights = shingles.weights_step(ingest, chunk, compared, seed=recipe.seed)
    preparing = [encoder, embed, *index, compared, weights]
    inputs = (ingest, chunk, *preparing, documents, tokenizer)
    finding = [
        _contexts_step(recipe, options, inputs, attempt=number)
        for number in range(attempt + 1)
    ]
    return preparing, finding


def _contexts_step(
    recipe: Recipe, options: Screening, inputs: tuple[Step, ...], *, attempt: int
) -> Step:
    """Return the step that finds the contexts of the documents of one attempt."""
    limit = sequence_limit(recipe.compose, attempt)
    before = sequence_limit(recipe.compose, attempt - 1) if attempt else 0
    scorer = known_scorer(recipe.scorer)

    def tasks(done: Artifacts) -> list[Task]:
        path = DocumentsFiles.of(done).documents[0]
        chars_per_token = done["tokenizer"].result(TokenizerResult).chars_per_token
        sequence_chars = recipe.sequence_tokens * chars_per_token
        rows = np.load(path)
        order = _in_order(rows, max_chars=sequence_chars / 2)
        chars = rows["chars"][order]
        first = _count(chars, sequences=before, sequence_chars=sequence_chars)
        last = _count(chars, sequences=limit, sequence_chars=sequence_chars)
        find = partial(
            _find_contexts,
            are_all=last == len(order),
            too_long=_passed_over(rows, order, last=last),
            documents=path,
            text=corpus(done),
            retrieval=_Retrieval(
                encoder=recipe.encoder,
                prepared=prepared_encoder(recipe.encoder, done),
                index=index_files(done),
                shingles=shingles.shingle_store(done),
                weights=WeightsFiles.of(done).weights,
                threshold=recipe.mine.near_duplicates,
            ),
            scorer=scorer,
            options=options,
            separator=recipe.compose.separator,
        )
        # A task without documents says that there are no more.
        bounds = [*range(first, max(last, first + 1), _DOCUMENTS_PER_TASK), last]
        return [partial(find, chosen=order[a:b]) for a, b in pairwise(bounds)]

    return Step(
        name=CONTEXTS_STEPS[attempt],
        phase="search",
        version=2,
        config={
            "candidates": options.candidates,
            "deviations": options.deviations,
            "scorer": scorer_identity(recipe.scorer),
            "target_tokens": recipe.sequence_tokens,
            "sequences": [before, limit],
            "near_duplicates": recipe.mine.near_duplicates,
            "separator": recipe.compose.separator,
        },
        inputs=inputs,
        tasks=tasks,
        result=ContextsResult,
        resources=scorer_resources(),
    )


def _in_order(rows: AnyArray, *, max_chars: float) -> Ints:
    """Return the positions of documents in the order of their keys.

    Without those longer than `max_chars`.
    """
    order = np.argsort(rows["key"], kind="stable")
    return order[rows["chars"][order] <= max_chars]


def _passed_over(rows: AnyArray, order: Ints, *, last: int) -> int:
    """Return how many too long documents stood before the first `last` of `order`."""
    if last == len(order):
        return len(rows) - len(order)
    before = np.count_nonzero(rows["key"] < rows["key"][order[last]])
    return int(before) - last


def _count(chars: Ints, *, sequences: int | None, sequence_chars: float) -> int:
    """Return how many documents are scored for so many sequences; None: all."""
    if sequences is None:
        return len(chars)
    needed = DOCUMENT_SHARE * sequences * sequence_chars
    count = int(np.searchsorted(np.cumsum(chars), needed))
    return min(len(chars), count + 1) if sequences else 0


def _find_contexts(
    out: Path,
    *,
    chosen: Ints,
    are_all: bool,
    too_long: int,
    documents: Path,
    text: CorpusFiles,
    retrieval: _Retrieval,
    scorer: KnownScorer,
    options: Screening,
    separator: str,
) -> ContextsResult:
    """Write `{out}.contexts.npz`: the candidates of the `chosen` documents."""
    model = load_scorer(scorer)
    encoder = loaded_encoder(retrieval.encoder, retrieval.prepared)
    rows = np.load(documents, mmap_mode="r")
    anchors = 0
    candidates: list[Candidate] = []
    reductions: list[float] = []
    counts: list[int] = []
    for row in rows[chosen]:
        own = ranges(row["first_chunk"][None], row["chunks"][None])
        chunk_texts = text.texts(own).tolist()
        document = read_document(model, "".join(chunk_texts), options)
        anchors += len(document.anchors)
        found: list[Candidate] = []
        if len(document.anchors):
            found = retrieval.candidates(
                encoder.encode(document.queries()),
                document.anchors,
                own=own,
                chunk_texts=chunk_texts,
                count=options.candidates,
            )
        texts = text.texts(_chunks_of(found)).tolist()
        # As they will stand before the document.
        closed = [part if part.endswith("\n") else part + separator for part in texts]
        reductions += measure_reductions(model, document, found, closed)
        candidates += found
        counts.append(len(found))
    np.savez(
        f"{out}.contexts.npz",
        documents=chosen,
        counts=np.array(counts, np.int64),
        chunks=_chunks_of(candidates),
        cosines=np.array([found.cosine for found in candidates], np.float32),
        reductions=np.array(reductions, np.float32),
        are_all=are_all,
        too_long=too_long,
    )
    return ContextsResult(
        documents=len(chosen), anchors=anchors, candidates=len(candidates)
    )


def _chunks_of(candidates: Sequence[Candidate]) -> Ints:
    return np.array([candidate.chunk for candidate in candidates], np.int64)


# ---- the method ----


@dataclass(frozen=True)
class ReadDocument:
    """A document as the model reads it alone: its entropies, and its anchors."""

    text: str
    encoded: Encoded  # (n,) as much as the model reads
    entropy: Floats  # (n,)
    anchors: Ints  # ascending

    def queries(self) -> list[str]:
        """Return the text around each anchor."""
        firsts = np.maximum(self.anchors - _WINDOW, 0)
        lasts = np.minimum(self.anchors + _WINDOW, len(self.encoded.ids) - 1)
        starts = self.encoded.offsets[firsts, 0].tolist()
        stops = self.encoded.offsets[lasts, 1].tolist()
        return [self.text[a:b] for a, b in zip(starts, stops, strict=True)]


def read_document(model: SurprisalModel, text: str, options: Screening) -> ReadDocument:
    """Score a document alone, and find its anchors."""
    (encoded,) = model.encode([text])
    limit = _half_context(model)
    encoded = Encoded(encoded.ids[:limit], encoded.offsets[:limit])
    entropy = np.empty(0, np.float32)
    anchors = np.empty(0, np.int64)
    # The first token of most models is not predicted, so one alone has no entropy.
    if len(encoded.ids) > 1:
        (scores,) = model.score([encoded.ids], first=[0])
        entropy = scores.entropy
        mean = np.nanmean(entropy, dtype=np.float64)
        deviation = np.nanstd(entropy, dtype=np.float64)
        anchors = np.flatnonzero(entropy > mean + options.deviations * deviation)
    return ReadDocument(text, encoded, entropy, anchors)


def measure_reductions(
    model: SurprisalModel,
    document: ReadDocument,
    candidates: Sequence[Candidate],
    texts: Sequence[str],
) -> list[float]:
    """Return by how much each candidate lowers the entropy, at the best of its anchors.

    `texts` are those of the candidates. Negative: it raises the entropy at all of them.
    """
    limit = _half_context(model)
    own = document.encoded.ids
    reductions = []
    for first in range(0, len(candidates), _ROWS_AT_ONCE):
        part = candidates[first : first + _ROWS_AT_ONCE]
        contexts = model.encode(texts[first : first + _ROWS_AT_ONCE])
        rows = []
        anchors = []  # in the row of each candidate
        for candidate, context in zip(part, contexts, strict=True):
            ids = context.ids[:limit]
            rows.append(np.concatenate([ids, own[: candidate.anchors[-1] + 1]]))
            anchors.append(len(ids) + candidate.anchors)
        scored = model.score(rows, first=[int(places[0]) for places in anchors])
        for candidate, places, scores in zip(part, anchors, scored, strict=True):
            alone = document.entropy[candidate.anchors]
            reduction = (alone - scores.entropy[places]) / alone
            reductions.append(float(reduction.max()))
    return reductions


def _half_context(model: SurprisalModel) -> int | None:
    """Return the most tokens of a document, and of a candidate before it."""
    # One place is left for the token that some tokenizers put before a text.
    return None if model.context is None else (model.context - 1) // 2


def nearest_candidates(
    found: Sequence[Ints], cosines: Sequence[Floats], anchors: Ints, *, count: int
) -> list[Candidate]:
    """Return the `count` nearest chunks of each anchor, each chunk once.

    `found` are the chunks of each anchor, nearest first.
    """
    named: dict[int, list[int]] = {}
    best: dict[int, float] = {}
    for anchor, ids, scores in zip(anchors.tolist(), found, cosines, strict=True):
        nearest = zip(ids[:count].tolist(), scores[:count].tolist(), strict=True)
        for chunk, cosine in nearest:
            named.setdefault(chunk, []).append(anchor)
            best[chunk] = max(best.get(chunk, cosine), cosine)
    return [
        Candidate(chunk, np.array(of_chunk, np.int64), best[chunk])
        for chunk, of_chunk in named.items()
    ]


def read_contexts(paths: Sequence[Path], rows: AnyArray) -> Contexts:
    """Return the candidates of all scored documents; `rows` are all documents."""
    arrays: dict[str, list[AnyArray]] = {}
    for path in paths:
        with np.load(path) as shard:
            for name in shard.files:
                arrays.setdefault(name, []).append(np.atleast_1d(shard[name]))
    joined = {name: np.concatenate(parts) for name, parts in arrays.items()}
    owners = np.searchsorted(rows["first_chunk"], joined["chunks"], side="right") - 1
    return Contexts(
        documents=joined["documents"],
        offsets=np.append(0, np.cumsum(joined["counts"])),
        owners=owners,
        numbers=joined["chunks"] - rows["first_chunk"][owners],
        cosines=joined["cosines"],
        reductions=joined["reductions"],
        are_all=bool(joined["are_all"].any()),
        # Those of the last attempt include those of all before it.
        too_long=int(joined["too_long"].max()),
    )
