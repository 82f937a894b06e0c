"""Dependence: how much a model needs the earlier meta-chunks to predict a later one.

In:  the texts of sequences, and a causal language model.
Out: for each later meta-chunk, the losses of its tokens as the sequence stands and with
     the earlier meta-chunks replaced by unrelated text of equal length.

Let x be a sequence up to the end of its meta-chunk m_j, and x̃ the same tokens with
those of m_1 … m_(j-1) replaced by as many tokens of unrelated documents; all negatives
stay. D_j are the tokens of m_j that are part of a word that stands in m_1 … m_(j-1) and
in no negative before m_j. The dependence of m_j is the mean gain over D_j, in nats:

    gain_j = 1/|D_j| · Σ_(t in D_j) [ loss(t | x̃ before t) - loss(t | x before t) ]

The mean over all tokens would mislead. Hard negatives are about the topic of the
document, so they help to predict it: they lower the loss, and most tokens need the
earlier meta-chunks less. By that mean, random negatives look better than hard ones
(docs/results.md has the numbers). Only words that nothing but the earlier meta-chunks
tells show whether a model must look past the negatives. Even there hard negatives give
hints, so gains compare sequences of one setting, not settings.

In a sequence without meta-chunks, its documents, or the parts of interleaved ones, take
their place. Contexts that were chosen for a document are replaced like earlier ones,
but are not scored. Instead of the words of negatives, those of the unrelated text are
excluded: words such as "the" stand in all documents.

This measure is ours; no paper describes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, NamedTuple

import numpy as np

from nextlong import schemas
from nextlong.arrays import Floats, Hashes, Int8s, Ints
from nextlong.retrieval.near_duplicates.shingles import hash_words
from nextlong.retrieval.surprisal import Encoded, SurprisalModel

_Ids = Ints
_Words = Hashes

# What is replaced by unrelated text before a scored meta-chunk.
_REPLACED: Final = (schemas.META, schemas.CONTEXT)


class Kind(IntEnum):
    """Where the word of a token stands before its meta-chunk."""

    NO_WORD = 0  # the token has no letter or digit
    OWN = 1  # only in the earlier meta-chunks
    NEGATIVES = 2  # only in the negatives, or in what is excluded
    BOTH = 3
    NEITHER = 4


@dataclass(frozen=True, kw_only=True)
class SequenceText:
    """The texts of the spans of a sequence, in order, and their roles.

    `unrelated` is text of other documents that replaces meta-chunks and contexts; if it
    is shorter than these, it is repeated. The words of `excluded` show no dependence.
    """

    texts: Sequence[str]
    roles: Sequence[int]
    unrelated: str
    excluded: str = ""


class ScoredMetaChunk(NamedTuple):
    """The n tokens of a later meta-chunk."""

    words: _Words  # (n,) the hash of the word of each token; 0 for none
    kinds: Int8s  # (n,) of `Kind`
    loss: Floats  # (n,) as the sequence stands
    replaced_loss: Floats  # (n,) with the earlier meta-chunks replaced
    gap: int  # tokens between the end of what was replaced before and this one


class Dependence(NamedTuple):
    """The dependence of a later meta-chunk; the gain is NaN if no token shows it."""

    tokens: int  # of words that only the earlier meta-chunks have
    gain: float  # mean over these tokens, in nats
    gap: int  # tokens between the end of the meta-chunk before and this one


def dependence(chunk: ScoredMetaChunk) -> Dependence:
    """Return the dependence of a scored meta-chunk, by the formula of this module."""
    shows_dependence = chunk.kinds == Kind.OWN
    gains = (chunk.replaced_loss - chunk.loss)[shows_dependence]
    gain = float(gains.mean(dtype=np.float64)) if len(gains) else float("nan")
    return Dependence(len(gains), gain, chunk.gap)


def mean_gain(chunks: Sequence[Dependence]) -> float:
    """Return the mean gain over the tokens of all meta-chunks of a sequence.

    NaN if no token shows a dependence.
    """
    tokens = sum(chunk.tokens for chunk in chunks)
    if not tokens:
        return float("nan")
    total = sum(chunk.gain * chunk.tokens for chunk in chunks if chunk.tokens)
    return total / tokens


def score_meta_chunks(
    model: SurprisalModel,
    sequences: Sequence[SequenceText],
    *,
    which: Literal["all", "last"] = "all",
) -> list[list[ScoredMetaChunk]]:
    """Return the scored meta-chunks of each sequence: all but the first, or the last.

    One row of tokens per sequence serves all its meta-chunks as they stand; each needs
    a row of its own with the earlier ones replaced.

    Raises:
        RecipeError: a sequence is longer than the model's context.
    """
    plans = [_plan(model, sequence, which) for sequence in sequences]
    rows: list[_Ids] = []
    firsts: list[int] = []
    for plan in plans:
        rows += plan.rows
        firsts += plan.firsts
    losses = [scores.loss for scores in model.score(rows, first=firsts)]
    results = []
    done = 0
    for plan in plans:
        results.append(plan.scored(losses[done : done + len(plan.rows)]))
        done += len(plan.rows)
    return results


class _Target(NamedTuple):
    """A meta-chunk to score: its tokens [start, stop) of the row, and their words."""

    start: int
    stop: int
    gap: int
    words: _Words
    kinds: Int8s


@dataclass(frozen=True)
class _Plan:
    """The rows to score for a sequence: as it stands, then one for each target."""

    targets: list[_Target]
    rows: list[_Ids]
    firsts: list[int]  # index of the first scored token of each row

    def scored(self, losses: Sequence[Floats]) -> list[ScoredMetaChunk]:
        """Return the targets with their losses, given those of the rows."""
        scored = []
        for index, target in enumerate(self.targets):
            own = slice(target.start, target.stop)
            scored.append(
                ScoredMetaChunk(
                    words=target.words,
                    kinds=target.kinds,
                    loss=losses[0][own],
                    replaced_loss=losses[1 + index][own],
                    gap=target.gap,
                )
            )
        return scored


def _plan(
    model: SurprisalModel, sequence: SequenceText, which: Literal["all", "last"]
) -> _Plan:
    roles = np.array(sequence.roles)
    places = np.flatnonzero(np.isin(roles, _REPLACED))
    # All but the first, which nothing before it can help to predict.
    scored_metas = places[1:][roles[places[1:]] == schemas.META]
    if which == "last":
        scored_metas = scored_metas[-1:]
    if not len(scored_metas):
        return _Plan([], [], [])
    # What follows the last meta-chunk predicts nothing of it.
    texts = sequence.texts[: scored_metas[-1] + 1]
    *pieces, unrelated = model.encode([*texts, sequence.unrelated])
    bounds = np.cumsum([0, *(len(piece.ids) for piece in pieces)])

    replaced = [piece.ids for piece in pieces]
    used = 0
    for place in places[places < scored_metas[-1]]:
        tokens = len(pieces[place].ids)
        indices = np.arange(used, used + tokens)
        replaced[place] = np.take(unrelated.ids, indices, mode="wrap")
        used += tokens

    targets = []
    rows = [np.concatenate([piece.ids for piece in pieces])]
    firsts = [int(bounds[scored_metas[0]])]
    place_before = dict(zip(places[1:], places[:-1], strict=True))
    excluded = hash_words(sequence.excluded).hashes
    for meta in scored_metas:
        before = [*replaced[:meta], pieces[meta].ids]
        rows.append(np.concatenate(before))
        firsts.append(int(bounds[meta]))
        words = words_of_tokens(texts[meta], pieces[meta])
        targets.append(
            _Target(
                start=int(bounds[meta]),
                stop=int(bounds[meta + 1]),
                gap=int(bounds[meta] - bounds[place_before[meta] + 1]),
                words=words,
                kinds=_kinds(words, texts[:meta], sequence.roles, excluded),
            )
        )
    return _Plan(targets, rows, firsts)


def words_of_tokens(text: str, encoded: Encoded) -> _Words:
    """Return the hash of the word that each token is part of, (n,); 0 for none.

    A token that spans two words counts as part of the first.
    """
    words = hash_words(text)
    starts, stops = encoded.offsets.T
    # The first word that ends behind the start of a token, if it begins before its end.
    indices = np.searchsorted(words.ends, starts, side="right")
    padded_starts = np.append(words.starts, len(text) + 1)
    padded_hashes = np.append(words.hashes, np.uint64(0))
    has_word = padded_starts[indices] < stops
    return np.where(has_word, padded_hashes[indices], np.uint64(0))


def _kinds(
    words: _Words, texts_before: Sequence[str], roles: Sequence[int], excluded: _Words
) -> Int8s:
    """Return the kind of each word of a meta-chunk, (n,), given what precedes it."""
    own: list[_Words] = []
    negative = [excluded]
    for text, role in zip(texts_before, roles, strict=False):
        if role in _REPLACED:
            own.append(hash_words(text).hashes)
        elif role == schemas.NEGATIVE:
            negative.append(hash_words(text).hashes)
    is_own = np.isin(words, np.concatenate(own))
    is_in_negatives = np.isin(words, np.concatenate(negative))
    kinds = np.full(len(words), Kind.NEITHER, np.int8)
    kinds[is_own & is_in_negatives] = Kind.BOTH
    kinds[is_own & ~is_in_negatives] = Kind.OWN
    kinds[~is_own & is_in_negatives] = Kind.NEGATIVES
    kinds[words == 0] = Kind.NO_WORD
    return kinds
