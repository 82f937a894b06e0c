"""Near-copies: is a candidate the meta-document's own text again, or that of a negative already taken?

In:  texts; and, from the corpus, how many documents hold each shingle.
Out: one bool a candidate.

A text becomes its runs of three words, hashed. Its similarity to another text is the share of its words that stand in a
shared run, so 0.8 means that about 80 % of the words are unchanged, whether single words were changed or a whole passage.
With three words this never misses a copy with one word in twenty changed (at worst each change hides two neighbours: 15 %),
and it tells half a copy from a copy, which the c^(1/n) of Mash (Ondov et al. 2016) does not: that takes every change
for a single word. Runs that stand in many documents (licence notes, page footers) weigh little: `limit / documents`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.rng import keyed_hash, threshold_for

U64 = NDArray[np.uint64]
Offsets = NDArray[np.int64]

SHINGLE_WORDS: Final = 3
SAMPLED_CHARS: Final = 48_000_000  # of text that rarity is measured on: about two shingles a slot
_SLOTS: Final = 1 << 22
_COMMON_SHARE: Final = 0.001  # a shingle in more of the documents than this is stock, and weighs less
_COMMON_LEAST: Final = 16  # … but never one in as few as these, which versions of one page may share
_LEAST_WEIGHT: Final = 2.0**-10  # above 0, so that a chunk of nothing but stock is a copy of the same stock

_PIECE_CHARS: Final = 1 << 17  # hashed at a time; its arrays stay in cache
_BASE: Final = 0xD1342543DE82EF95  # odd, hence invertible modulo 2^64
_BASE_INVERSE: Final = pow(_BASE, -1, 1 << 64)
# Scripts written without blanks: each letter counts as a word.
_SOLO_RANGES: Final = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF),
                       (0xF900, 0xFAFF), (0x20000, 0x3FFFF))  # fmt: skip


class Words(NamedTuple):
    """The words of a text, lower-cased runs of letters and digits: hash and place (characters) of each, shape (w,)."""

    hashes: U64
    starts: Offsets
    ends: Offsets


def hash_words(text: str) -> Words:
    """Return the words of a text; equal words have equal hashes, on any machine."""
    pieces, start = [], 0
    while start < len(text):
        end = start + _PIECE_CHARS
        if end < len(text):
            end = max(text.rfind("\n", start, end), text.rfind(" ", start, end)) + 1 or end
        pieces.append(_hash_piece(text[start:end], start))
        start = end
    if not pieces:
        return Words(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
    return Words(*map(np.concatenate, zip(*pieces, strict=True)))


def _hash_piece(text: str, offset: int) -> tuple[U64, Offsets, Offsets]:
    """Hash words as polynomials modulo 2^64, all at once: differences of prefix sums, shifted back to power 0."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    letters = _letters().take(codes)
    starts, ends = _word_bounds(codes, letters != 0)
    up, down = _powers()
    letters *= up[: len(letters)]
    sums = np.zeros(len(letters) + 1, np.uint64)
    np.cumsum(letters, out=sums[1:])
    return _mix((sums[ends] - sums[starts]) * down[starts]), starts + offset, ends + offset


def _word_bounds(codes: NDArray[np.uint32], is_letter: NDArray[np.bool_]) -> tuple[Offsets, Offsets]:
    inside = np.zeros(len(codes) + 2, np.bool_)
    inside[1:-1] = is_letter
    if not len(codes) or codes.max() < _SOLO_RANGES[0][0]:
        edges = np.flatnonzero(inside[1:] != inside[:-1])
        return edges[::2], edges[1::2]
    solo = np.zeros_like(inside)
    for first, last in _SOLO_RANGES:
        solo[1:-1] |= (codes >= first) & (codes <= last)
    breaks = solo[1:] | solo[:-1]
    starts = np.flatnonzero(inside[1:] & (~inside[:-1] | breaks))
    ends = np.flatnonzero(inside[:-1] & (~inside[1:] | breaks))
    return starts, ends


@lru_cache(maxsize=1)
def _letters() -> U64:
    """Return a random number for each code point, the same for both cases of a letter; 0 for what parts words."""
    folded = np.zeros(sys.maxunicode + 1, np.uint64)
    for code in range(sys.maxunicode + 1):
        if chr(code).isalnum():
            lower = chr(code).lower()
            folded[code] = ord(lower) if len(lower) == 1 else code
    return np.where(folded > 0, _mix(folded * np.uint64(_BASE)), np.uint64(0))


@lru_cache(maxsize=1)
def _powers() -> tuple[U64, U64]:
    """Return the powers 0, 1, 2 … of the base and of its inverse, modulo 2^64."""
    up, down = np.full((2, _PIECE_CHARS), np.uint64(_BASE))
    down[:] = _BASE_INVERSE
    up[0] = down[0] = 1
    return np.multiply.accumulate(up), np.multiply.accumulate(down)


def _mix(values: U64) -> U64:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def ngrams(word_hashes: U64, n: int) -> U64:
    """Return the hash of every run of n words, shape (w − n + 1,), by place of its first; shape (0,) if there is none."""
    runs = max(len(word_hashes) - n + 1, 0)
    rolled = word_hashes[:runs].copy()
    for step in range(1, n):
        rolled *= np.uint64(_BASE)
        rolled += word_hashes[step : step + runs]
    return _mix(rolled ^ np.uint64(n))


def bounds_of(words: Words, texts: Sequence[str]) -> Offsets:
    """Return where the words of each of m texts begin, and all end, shape (m + 1,); `words` are those of "\\n".join(texts)."""
    ends_of_texts = np.cumsum([len(text) + 1 for text in texts], dtype=np.int64)
    return np.concatenate([[0], np.searchsorted(words.starts, ends_of_texts)])


def runs_on(bounds: Offsets, n: int) -> NDArray[np.bool_]:
    """Return for each word whether n words from it on belong to the same text, shape (w,)."""
    left = np.repeat(bounds[1:], np.diff(bounds)) - np.arange(bounds[-1])
    runs: NDArray[np.bool_] = left >= n
    return runs


class Shingles(NamedTuple):
    """The shingles of m texts, in reading order; those of text i are hashes[offsets[i]:offsets[i + 1]].

    A text of fewer than five words is too short to have a share of its words changed: it is one shingle (repeated, so
    that no text has fewer than three), equal to that of the same words and to nothing else.
    """

    hashes: U64
    offsets: Offsets  # (m + 1,)


def shingles(texts: Sequence[str]) -> Shingles:
    """Return the shingles of texts."""
    words = hash_words("\n".join(texts))
    bounds = bounds_of(words, texts)
    counts = np.diff(bounds)
    is_long = counts >= 2 * SHINGLE_WORDS - 1
    sizes = np.where(is_long, counts - SHINGLE_WORDS + 1, np.where(counts > 0, SHINGLE_WORDS, 0))
    of_long = np.repeat(is_long, sizes)
    hashes = np.empty(len(of_long), np.uint64)
    runs = runs_on(bounds, SHINGLE_WORDS) & np.repeat(is_long, counts)
    hashes[of_long] = ngrams(words.hashes, SHINGLE_WORDS)[runs[: max(len(runs) - SHINGLE_WORDS + 1, 0)]]
    short = [
        ~ngrams(words.hashes[bounds[text] : bounds[text + 1]], int(counts[text]))
        for text in np.flatnonzero((counts > 0) & ~is_long)
    ]
    hashes[~of_long] = np.repeat(np.concatenate(short), SHINGLE_WORDS) if short else 0
    return Shingles(hashes, np.concatenate([[0], np.cumsum(sizes)]))


def similarities(candidates: Shingles, *, document: Shingles, weights: NDArray[np.float16]) -> NDArray[np.float64]:
    """Return for each of m candidates the share of its words, by weight, that stand in a shared run, shape (m,) in [0, 1].

    `document` holds one text or several (its chunks); `weights` is what `weigh_shingles` wrote.
    """
    return _shares(
        _held(candidates.hashes, np.sort(document.hashes)), _word_weights(candidates, weights), candidates.offsets
    )


def copies_of(
    candidates: Shingles, *, document: Shingles, weights: NDArray[np.float16], threshold: float
) -> NDArray[np.bool_]:
    """Return which of m candidates are near-copies of a document, or of a part of it, shape (m,)."""
    is_copy: NDArray[np.bool_] = similarities(candidates, document=document, weights=weights) >= threshold
    return is_copy


def copies_among(
    candidates: Shingles, *, weights: NDArray[np.float16], threshold: float, taken: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """Return which of m candidates are near-copies of one before them that is none itself, shape (m,).

    `taken` says which of them count at all (default: all); the others are neither copies nor originals.
    """
    owners = np.repeat(np.arange(len(candidates.offsets) - 1), np.diff(candidates.offsets))
    weight = _word_weights(candidates, weights)
    groups = _Groups.of(candidates.hashes, owners, taken)
    # Nothing shares more with one candidate before it than with all of them together: only these few need a closer look.
    suspects = np.flatnonzero(_shares(groups.first_owner < owners, weight, candidates.offsets) >= threshold)
    is_copy = np.zeros(len(candidates.offsets) - 1, np.bool_)
    eligible = np.ones(len(is_copy), np.bool_) if taken is None else taken.copy()
    for own in suspects.tolist():
        if eligible[own] and _copies_one(own, candidates, groups, weight, threshold, eligible):
            is_copy[own] = True
            eligible[own] = False
    return is_copy


class _Groups(NamedTuple):
    """The places of equal hashes; a group is order[starts[g]:stops[g]], in reading order."""

    order: Offsets
    starts: Offsets  # of each place's group, shape (s,); empty where nothing else has the hash
    stops: Offsets
    owners: Offsets
    first_owner: Offsets  # (s,) the first candidate with this hash

    @classmethod
    def of(cls, hashes: U64, owners: Offsets, taken: NDArray[np.bool_] | None) -> _Groups:
        # Most hashes stand alone; a small table of counts finds nearly all of those without sorting.
        slots = (hashes & np.uint64((1 << 20) - 1)).astype(np.int64)
        shared = np.bincount(slots, minlength=1 << 20)[slots] > 1
        if taken is not None:
            shared &= taken[owners]
        places = np.flatnonzero(shared)
        order = places[np.argsort(hashes[places], kind="stable")]
        heads = np.flatnonzero(np.diff(hashes[order], prepend=~hashes[order[:1]]) != 0)
        sizes = np.diff(heads, append=len(order))
        starts = np.zeros(len(hashes), np.int64)
        stops, first_owner = starts.copy(), owners.copy()
        starts[order] = np.repeat(heads, sizes)
        stops[order] = np.repeat(heads + sizes, sizes)
        first_owner[order] = np.repeat(owners[order[heads]], sizes)
        return cls(order, starts, stops, owners, first_owner)


def _copies_one(
    own: int,
    candidates: Shingles,
    groups: _Groups,
    weight: NDArray[np.float64],
    threshold: float,
    eligible: NDArray[np.bool_],
) -> bool:
    """Return whether candidate `own` is a near-copy of an eligible one before it."""
    first, last = candidates.offsets[own : own + 2]
    own_weight, alone = weight[first:last], np.array([0, last - first])
    owners_before = groups.first_owner[first:last]
    likeliest = int(np.bincount(owners_before[owners_before < own]).argmax())
    if eligible[likeliest] and _shares(owners_before == likeliest, own_weight, alone)[0] >= threshold:
        return True
    sizes = groups.stops[first:last] - groups.starts[first:last]
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    others = groups.owners[groups.order[np.repeat(groups.starts[first:last], sizes) + within]]
    places = np.repeat(np.arange(last - first), sizes)
    before = (others < own) & eligible[others]
    matched = np.zeros((own, last - first), np.bool_)
    matched[others[before], places[before]] = True
    return bool((_shares(matched, own_weight, alone) >= threshold).any())


def _held(hashes: U64, sorted_hashes: U64) -> NDArray[np.bool_]:
    """Return which hashes are among the sorted ones, shape of `hashes`."""
    low_bits = np.uint64((1 << 18) - 1)
    seen = np.zeros(1 << 18, np.bool_)
    seen[sorted_hashes & low_bits] = True
    held: NDArray[np.bool_] = seen[hashes & low_bits]  # no miss, few false: only these are searched for
    if len(sorted_hashes):
        places = np.minimum(np.searchsorted(sorted_hashes, hashes[held]), len(sorted_hashes) - 1)
        held[held] = sorted_hashes[places] == hashes[held]
    return held


def _word_weights(texts: Shingles, weights: NDArray[np.float16]) -> NDArray[np.float64]:
    """Return for each shingle the weight of its last word, that of the rarest shingle it stands in, shape (s,).

    The first and last two words of a text stand in fewer than three shingles and do not count: 0 for the last two shingles.
    """
    rarity = weights[texts.hashes & np.uint64(len(weights) - 1)].astype(np.float64)
    heaviest: NDArray[np.float64] = rarity.copy()
    ends = texts.offsets[1:][np.diff(texts.offsets) > 0]
    for step in range(1, SHINGLE_WORDS):
        np.maximum(heaviest[:-step], rarity[step:], out=heaviest[:-step])
    for step in range(1, SHINGLE_WORDS):
        heaviest[ends - step] = 0.0
    return heaviest


def _shares(matched: NDArray[np.bool_], word_weights: NDArray[np.float64], offsets: Offsets) -> NDArray[np.float64]:
    """Return the share, by weight, of each of m texts' words that stand in a matched shingle; 0 for a text without words.

    `matched` has shape (s,), giving (m,), or (r, s) for r other texts, giving (r, m). Weights are multiples of 2^-24, so sums
    of them are exact and no order of adding changes them.
    """
    covered = matched.copy()
    for step in range(1, SHINGLE_WORDS):
        covered[..., :-step] |= matched[..., step:]
    whole, shared = _sums(word_weights, offsets), _sums(word_weights * covered, offsets)
    shares: NDArray[np.float64] = np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
    return shares


def _sums(values: NDArray[np.float64], offsets: Offsets) -> NDArray[np.float64]:
    """Return the sums of values[..., offsets[i]:offsets[i + 1]]."""
    running = np.zeros((*values.shape[:-1], values.shape[-1] + 1))
    np.cumsum(values, axis=-1, out=running[..., 1:])
    return np.diff(running[..., offsets], axis=-1)


def count_shingles(out: Path, *, documents: Path, keep: Path, share: float, seed: int) -> dict[str, Any]:
    """Count in how many of a shard's sampled documents each shingle stands; writes `{out}.stock.npy`.

    `share` of the kept documents are sampled, by hash of their content: min(1, SAMPLED_CHARS / characters of the corpus).
    The file holds rows (slot, documents), uint32: shingles are counted in 2^22 slots by their lowest bits.
    """
    counts = np.zeros(_SLOTS, np.uint32)
    sampled = 0
    for texts in _sampled_texts(documents, keep, share, seed):
        add_counts(counts, texts)
        sampled += len(texts)
    slots = np.flatnonzero(counts).astype(np.uint32)
    np.save(f"{out}.stock.npy", np.stack([slots, counts[slots]], axis=1))
    return {"sampled": sampled}


def add_counts(counts: NDArray[Any], texts: Sequence[str]) -> None:
    """Add to `counts`, integers (2^k,), in place: one to the slot of each shingle of each text, once a text."""
    found = shingles(texts)
    slots = (found.hashes & np.uint64(len(counts) - 1)).astype(np.uint32)
    for first, last in pairwise(found.offsets.tolist()):
        own = np.sort(slots[first:last])
        counts[own[np.flatnonzero(np.diff(own, prepend=~own[:1]))]] += 1


def _sampled_texts(documents: Path, keep: Path, share: float, seed: int) -> Iterator[list[str]]:
    kept = np.load(keep)
    first = 0
    with pa.ipc.open_file(pa.memory_map(str(documents))) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            keys = keyed_hash(batch.column("content_hash").to_numpy(), seed=seed, stage="shingles")
            chosen = kept[first : first + batch.num_rows] & (keys <= threshold_for(share))
            if chosen.any():
                yield batch.column("text").take(pa.array(np.flatnonzero(chosen))).to_pylist()
            first += batch.num_rows


def weigh_shingles(out: Path, *, counted: Sequence[Path], sampled: int) -> dict[str, Any]:
    """Turn the counts of all shards, `sampled` documents together, into weights; writes `{out}.weights.npy`, float16 (2^22,)."""
    counts = np.zeros(_SLOTS, np.int64)
    for path in counted:
        slots, documents = np.load(path).T
        counts[slots] += documents
    weights = weights_from(counts, sampled)
    np.save(f"{out}.weights.npy", weights)
    return {"common_slots": int((weights < 1).sum()), "sampled": sampled}


def weights_from(counts: NDArray[Any], sampled: int) -> NDArray[np.float16]:
    """Return the weights of shingles by slot, (2^k,) in (0, 1], of which `counts` of `sampled` documents hold one."""
    limit = max(_COMMON_LEAST, sampled * _COMMON_SHARE)
    weights: NDArray[np.float16] = np.clip(limit / np.maximum(counts, 1), _LEAST_WEIGHT, 1.0).astype(np.float16)
    return weights
