"""Draft: say which chunks may stand in each sequence, counted in characters and generous.

In:  META_DOCUMENTS and CANDIDATES of a block of meta-documents; E, the measured characters per token.
Out: DRAFTS, in draw order.

The tokens of the drawn documents themselves are counted, for what does not fit T is not drafted; of candidates characters
will do, so that of other documents only the chunks that drafts name are ever tokenized.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artefacts.flat_npy import opened
from nextlong.artefacts.resolve import Corpus
from nextlong.methods.nextlong import rules as nextlong_rules
from nextlong.methods.nextlong.candidates import Candidates, ordered_candidates, read_candidates
from nextlong.methods.nextlong.filter import Filtered, filter_near_copies
from nextlong.recipe.negatives import NEGATIVES
from nextlong.results import DraftResult
from nextlong.rng import rng_for
from nextlong.schemas import DropReason, Layout
from nextlong.search.draw import chunk_ids_of
from nextlong.similarity.shingles import Document, ShingleStore, Weights, documents_of
from nextlong.tokens.encode import kept_encoder

_EXAMPLES = 8  # of near-copies that a task remembers
_DROPPED_EXAMPLES = 100  # of documents that became no draft


class NearCopyInputs(NamedTuple):
    """What near-copies are measured with, of a meta-document."""

    document: Document
    shingles: ShingleStore
    weights: Weights


@dataclass(frozen=True, kw_only=True)
class DraftRules:
    """How candidates become drafts: the recipe's choices and E."""

    target_tokens: int
    chars_per_token: float
    draft_factor: float
    fit: Literal["exact", "paper"]
    max_chars: int
    negatives: str
    pool: int
    near_copies: float | None
    max_similarity: float | None
    seed: int

    def target_chars(self, meta: NDArray[Any], own_tokens: int) -> float:
        """Return T in characters: T·E with the corpus's E, which under `fit="paper"` is the paper's constant.

        `fit="exact"` drafts at the E of the meta-document where that is above the corpus's: its negatives are in its own
        language and style, so where it takes fewer tokens than the mean, so do they.
        """
        if self.fit == "paper":
            return self.target_tokens * self.chars_per_token
        return self.target_tokens * max(self.chars_per_token, float(meta["chars"]) / max(1, own_tokens))

    def prefixes(self, meta: NDArray[Any], target_chars: float, candidates: Candidates) -> list[int]:
        """Return how much of each list the draft takes."""
        return nextlong_rules.draft(
            candidates.ids,
            candidates.chars,
            fit=self.fit,
            needed_chars=target_chars - float(meta["chars"]),
            drafted_chars=target_chars * self.draft_factor - float(meta["chars"]),
            negatives=nextlong_rules.negatives_per_meta_chunk(
                target_tokens=self.target_tokens,
                chars_per_token=target_chars / self.target_tokens,
                draft_factor=self.draft_factor,
                document_chars=int(meta["chars"]),
                meta_chunks=int(meta["chunks"]),
                max_chars=self.max_chars,
            ),
        )


def draft_block(
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
    rules: DraftRules,
) -> DraftResult:
    """Draft the meta-documents [first, last); writes `{out}.drafts.arrow` and counts those that cannot fit.

    `measure`, SHINGLES and WEIGHTS, is needed if the rules say how near a near-copy is; the near-copies are counted too.
    """
    drawn = np.load(meta_documents)[first:last]
    texts = _texts(drawn, Corpus(tuple(documents), tuple(chunks)))
    own_tokens = np.array(_count_tokens(drawn, texts, tokenizer, engine), np.int64)
    fits = own_tokens < rules.target_tokens
    neighbourhoods = (
        retrieved
        for retrieved, is_in in zip(read_candidates(candidates, drawn["chunks"], chunks), fits, strict=True)
        if is_in
    )
    near_copy_inputs: list[NearCopyInputs | None] = [None] * len(drawn)
    if measure is not None:
        store, weights = measure[0], opened(measure[1])
        near_copy_inputs = [NearCopyInputs(document, store, weights) for document in _documents(drawn, texts, fits)]
    near_copies = by_passage = 0
    examples: list[tuple[int, int, int]] = []
    with pa.OSFile(f"{out}.drafts.arrow", "wb") as sink, pa.ipc.new_file(sink, schemas.DRAFTS) as writer:
        for place, retrieved in zip(np.flatnonzero(fits).tolist(), neighbourhoods, strict=True):
            meta = drawn[place]
            own, inputs = int(own_tokens[place]), near_copy_inputs[place]
            drafted = _draft(meta, own, retrieved, chunks, vectors, inputs, rules)
            writer.write_batch(pa.RecordBatch.from_pylist([_draft_row(meta, drafted)], schema=schemas.DRAFTS))
            near_copies += drafted.near_copies
            by_passage += drafted.by_passage
            examples += _examples(meta, drafted)[: _EXAMPLES - len(examples)]
    too_long = tuple(
        (int(meta["first_chunk"]), int(meta["chunks"]), int(tokens))
        for meta, tokens in zip(drawn[~fits][:_DROPPED_EXAMPLES], own_tokens[~fits].tolist(), strict=False)
    )
    return DraftResult(
        drafts=int(fits.sum()),
        dropped={DropReason.TOO_LONG: int((~fits).sum())},
        dropped_examples={DropReason.TOO_LONG: too_long},
        near_copies=None if measure is None else near_copies,
        repeated_passages=None if measure is None else by_passage,
        near_copy_examples=tuple(examples),
    )


def _examples(meta: NDArray[Any], drafted: Filtered) -> list[tuple[int, int, int]]:
    """Return chunks that were passed over, each with the first chunk and the number of chunks of what it repeats."""
    document = int(meta["first_chunk"]), int(meta["chunks"])
    return [(chunk, *(document if repeated is None else (repeated, 1))) for chunk, repeated in drafted.examples]


def _draft(
    meta: NDArray[Any],
    own_tokens: int,
    retrieved: Candidates,
    chunks: Sequence[Path],
    vectors: Sequence[Path],
    near_copy_inputs: NearCopyInputs | None,
    rules: DraftRules,
) -> Filtered:
    """Return the candidates of a meta-document, and the prefixes drafted of it."""
    target_chars = rules.target_chars(meta, own_tokens)
    candidates = ordered_candidates(
        meta,
        retrieved,
        negatives=NEGATIVES[rules.negatives],
        pool=rules.pool,
        max_similarity=rules.max_similarity,
        drafted_chars=target_chars * rules.draft_factor,
        chunks=chunks,
        vectors=vectors,
        rng=rng_for(rules.seed, f"negatives.{rules.negatives}", int(meta["content_hash"])),
    )
    draft = partial(rules.prefixes, meta, target_chars)
    if near_copy_inputs is None or rules.near_copies is None:
        return Filtered(candidates, draft(candidates), np.empty((0, 2), np.int64))
    return filter_near_copies(
        candidates,
        draft,
        document=near_copy_inputs.document,
        shingles=near_copy_inputs.shingles,
        weights=near_copy_inputs.weights,
        threshold=rules.near_copies,
    )


def _texts(drawn: NDArray[Any], corpus: Corpus) -> list[str]:
    """Return the text of every chunk of the drawn documents."""
    return corpus.texts(chunk_ids_of(drawn)).tolist() if len(drawn) else []


def _documents(drawn: NDArray[Any], texts: Sequence[str], fits: NDArray[np.bool_]) -> list[Document]:
    """Return the drawn documents as candidates are compared with them, empty where they do not fit."""
    bounds = pairwise([0, *np.cumsum(drawn["chunks"]).tolist()])
    return documents_of([texts[slice(*span)] if is_in else [] for span, is_in in zip(bounds, fits, strict=True)])


def _count_tokens(
    drawn: NDArray[Any], texts: Sequence[str], tokenizer: Path, engine: Literal["auto", "reference"]
) -> list[int]:
    """Return how many tokens each drawn document has; `texts` are those of all their chunks."""
    if not len(drawn):
        return []
    counts = kept_encoder(tokenizer, engine).encode_batch(texts)[1]
    of_document: list[int] = np.add.reduceat(counts, np.cumsum(drawn["chunks"]) - drawn["chunks"]).tolist()
    return of_document


def _draft_row(meta: NDArray[Any], drafted: Filtered) -> schemas.DraftRow:
    """Return a DRAFTS row: each meta-chunk followed by the prefix of its candidates."""
    neighbours = drafted.candidates
    ids, roles, groups, scores = [], [], [], []
    for group, length in enumerate(drafted.prefixes):
        ids += [np.array([int(meta["first_chunk"]) + group]), neighbours.ids[group][:length]]
        scores += [np.array([1.0], np.float32), neighbours.scores[group][:length]]
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
        "near_copies": drafted.pairs.ravel(),
    }
