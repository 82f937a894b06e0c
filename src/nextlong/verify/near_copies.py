"""Near-copies: does a negative repeat the meta-document, or another negative, instead of distracting from it?

In:  the texts of a sequence. A text's measure is the share of its words that stand in a run of three words that the other
text has too: about the share of words left unchanged, whether single words were changed or a whole passage. Runs that
stand in many documents of the corpus (licence notes, footers) weigh `limit / documents`.

The run's own filter has a measure of the same kind in another form (`similarity/near_copies.py`), so that texts close to the
threshold may fall on either side: a breach is what lies above it by a margin.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from nextlong.schemas import META, NEGATIVE, Layout
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.composed import UNKNOWN, Composed
from nextlong.verify.outcome import Outcome

_RUN_WORDS = 3
_LEAST_WORDS = 10  # fewer are a copy of the same words only
_LIKELIEST = 8  # negatives that a chunk which was passed over is compared with
_THRESHOLD = 0.8
_MARGIN = 0.05
_SUSPECT_SHARE = 0.25  # of distinct runs in common; a text with 80 % of its words in shared runs has at least 27 %
_COMMON_LEAST = 16
_COMMON_SHARE = 0.001
# Letters and digits; in scripts without blanks (Thai, Lao, Burmese, Khmer, Chinese, Japanese) each letter is a word.
_ALONE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"(?=[^\W_])[{_ALONE}]|[^\W_{_ALONE}]+")

Run = tuple[str, ...]


class Suspect(NamedTuple):
    """A negative that may be a near-copy, and which runs of its text the other text shares."""

    where: str
    of: str
    runs: list[Run]
    shared: NDArray[np.bool_]  # (runs,)


def check_near_copies(run: Artefacts) -> list[Outcome]:
    """Measure every negative; a breach where the recipe asked for none, else a count."""
    outcome = Outcome("near-copies among negatives", "negatives")
    setting = run.setting("mine", "near_copies")
    is_asked = setting not in (None, "off", "keep", False)
    if run.layout != Layout.EXTENDED or run.strategy == "self-repeat":
        of = "self-repeat" if run.layout == Layout.EXTENDED else f"{run.layout} sequences"
        outcome.skipped = f"{of}: not meant to be free of them"
        return [outcome]
    threshold = float(setting) if isinstance(setting, float | int) and not isinstance(setting, bool) else _THRESHOLD
    suspects: list[Suspect] = []
    for block in run.blocks():
        texts = run.texts_of(np.concatenate([_with_whole_document(sequence) for sequence in block]))
        for sequence in block:
            outcome.checked += int((sequence.role == NEGATIVE).sum())
            suspects += _suspects(sequence, texts, threshold + _MARGIN)
    weights = _weights(run, suspects) if is_asked else {}
    copies = [
        (found, share)
        for found in suspects
        if (share := _share(np.array([weights.get(own, 1.0) for own in found.runs]), found.shared))
        >= threshold + _MARGIN
    ]
    if is_asked:
        for found, share in copies:
            outcome.breach(f"{found.where} has {share:.0%} of its words in common with {found.of}")
    else:
        outcome.note = (
            f"{len(copies):,} found, stock passages included; mine.near_copies is not set, so they are only counted"
        )
    return [outcome]


def without_cause(run: Artefacts, passed_over: Mapping[int, NDArray[np.int64]]) -> dict[int, NDArray[np.int64]]:
    """Return which of the chunks that sequences, by number, passed over repeat neither meta-document nor negative of theirs.

    Half the threshold will do, for the filter weighs by rarity: a chunk that was passed over without cause shares next to
    nothing.
    """
    least = float(run.setting("mine", "near_copies", _THRESHOLD)) / 2
    found = {}
    for block in run.blocks():
        wanted = [sequence for sequence in block if sequence.number in passed_over]
        if not wanted:
            continue
        own = [_with_whole_document(sequence) for sequence in wanted]
        texts = run.texts_of(np.concatenate([*own, *(passed_over[sequence.number] for sequence in wanted)]))
        for sequence in wanted:
            chunks = passed_over[sequence.number]
            compared = _Texts.of(sequence, chunks, texts)
            repeats = [_repeats(place, compared, least) for place in range(len(chunks))]
            found[sequence.number] = chunks[~np.array(repeats, np.bool_)]
    return found


class _Texts(NamedTuple):
    """Word ids and runs of some chunks, then of a meta-document, then of its negatives."""

    ids: list[NDArray[np.uint64]]
    runs: list[NDArray[np.uint64]]
    common: NDArray[np.int32]
    document: int
    short: set[tuple[int, ...]]  # the word ids of the document's chunks and of the negatives that have few words

    @classmethod
    def of(cls, sequence: Composed, chunks: NDArray[np.int64], texts: dict[int, str]) -> _Texts:
        words: dict[str, int] = {}
        meta = int(np.flatnonzero(sequence.role == META)[0])
        own = [texts[chunk] for chunk in range(int(sequence.doc_first[meta]), int(sequence.doc_stop[meta]))]
        placed = sequence.chunk[(sequence.role == NEGATIVE) & (sequence.doc != UNKNOWN)].tolist()
        negatives = [texts[chunk] for chunk in placed]
        all_texts = [*(texts[chunk] for chunk in chunks.tolist()), "".join(own), *negatives]
        ids = [_word_ids(text, words) for text in all_texts]
        runs = [_run_hashes(each) for each in ids]
        short = {tuple(_word_ids(text, words).tolist()) for text in (*own, *negatives)}
        return cls(ids, runs, _common_runs([np.unique(each) for each in runs]), len(chunks), short)


def _repeats(place: int, texts: _Texts, least: float) -> bool:
    """Return whether a chunk repeats the document or a negative, or a negative it."""
    if len(texts.ids[place]) < _LEAST_WORDS:
        return tuple(texts.ids[place].tolist()) in texts.short
    sizes = np.array([max(1, len(own)) for own in texts.runs])
    shares = texts.common[place] / np.minimum(sizes, sizes[place])
    likeliest = texts.document + 1 + np.argsort(-shares[texts.document + 1 :], kind="stable")[:_LIKELIEST]
    pairs = [
        (place, texts.document),
        *((place, other) for other in likeliest),
        *((other, place) for other in likeliest),
    ]
    return any(_word_share(texts, own, other) >= least for own, other in pairs)


def _word_share(texts: _Texts, own: int, other: int) -> float:
    """Return the share of a text's words that stand in a run that the other has too, 0 for a text of a few words."""
    if len(texts.ids[own]) < _LEAST_WORDS:
        return 0.0
    shared = np.isin(texts.runs[own], texts.runs[other])
    return _share(np.ones(len(shared)), shared)


def _with_whole_document(sequence: Composed) -> NDArray[np.int64]:
    metas = sequence.role == META
    own = [np.arange(a, b) for a, b in zip(sequence.doc_first[metas][:1], sequence.doc_stop[metas][:1], strict=True)]
    return np.concatenate([sequence.chunk[sequence.is_chunk & (sequence.doc != UNKNOWN)], *own])


def _suspects(sequence: Composed, texts: dict[int, str], least: float) -> Iterator[Suspect]:
    """Yield negatives that share `least` of their words with the meta-document or another negative, stock included."""
    spans = np.flatnonzero((sequence.role == NEGATIVE) & (sequence.doc != UNKNOWN)).tolist()
    metas = np.flatnonzero((sequence.role == META) & (sequence.doc != UNKNOWN)).tolist()
    if not spans or not metas:
        return
    whole = range(int(sequence.doc_first[metas[0]]), int(sequence.doc_stop[metas[0]]))
    words: dict[str, int] = {}
    document = _word_ids("".join(texts[chunk] for chunk in whole), words)
    own_ids = [document, *(_word_ids(texts[int(sequence.chunk[span])], words) for span in spans)]
    hashes = [_run_hashes(ids) for ids in own_ids]
    distinct = [np.unique(own) for own in hashes]
    common = _common_runs(distinct)
    names = list(words)
    for own in range(1, len(own_ids)):
        if len(own_ids[own]) < _LEAST_WORDS:
            continue
        common[own, own] = 0
        others = np.flatnonzero(common[own] >= max(1.0, _SUSPECT_SHARE * len(distinct[own])))
        for other in others[np.argsort(-common[own, others], kind="stable")].tolist():
            shared = _held(hashes[own], distinct[other])
            if _share(np.ones(len(shared)), shared) >= least:
                ids = own_ids[own].tolist()
                runs = [tuple(names[word] for word in ids[at : at + _RUN_WORDS]) for at in range(len(shared))]
                of = "the meta-document" if other == 0 else f"chunk {sequence.chunk[spans[other - 1]]}"
                yield Suspect(sequence.where(spans[own - 1]), of, runs, shared)
                break


def _word_ids(text: str, words: dict[str, int]) -> NDArray[np.uint64]:
    return np.array([words.setdefault(word, len(words)) for word in _WORD.findall(text.lower())], np.uint64)


def _run_hashes(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return one number a run of words, equal for equal runs; 2^64 is enough that unequal ones differ."""
    count = max(0, len(ids) - _RUN_WORDS + 1)
    mixed = np.zeros(count, np.uint64)
    for step in range(_RUN_WORDS):
        mixed = (mixed ^ ids[step : step + count]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _held(hashes: NDArray[np.uint64], others: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which hashes are among the others, which are sorted and not empty."""
    places = np.minimum(np.searchsorted(others, hashes), len(others) - 1)
    held: NDArray[np.bool_] = others[places] == hashes
    return held


def _common_runs(distinct: list[NDArray[np.uint64]]) -> NDArray[np.int32]:
    """Return how many distinct runs each two texts have in common, shape (n, n)."""
    _, columns = np.unique(np.concatenate(distinct), return_inverse=True)
    rows = np.repeat(np.arange(len(distinct)), [len(own) for own in distinct])
    shape = (len(distinct), int(columns.max()) + 1 if len(columns) else 1)
    presence = sp.csr_matrix((np.ones(len(rows), np.int32), (rows, columns)), shape)
    product: NDArray[np.int32] = (presence @ presence.T).toarray()
    return product


def _weights(run: Artefacts, suspects: list[Suspect]) -> dict[Run, float]:
    """Return the weight of each shared run that stands in many documents; others have 1."""
    wanted = {own for found in suspects for own, shared in zip(found.runs, found.shared, strict=True) if shared}
    if not wanted:
        return {}
    vocabulary = {word for own in wanted for word in own}
    counts: Counter[Run] = Counter()
    documents = 0
    for shard in range(len(run.shards)):
        for _, batch in run.documents(shard, "text"):
            documents += batch.num_rows
            for text in batch.column("text").to_pylist():
                counts.update(_runs_among(text, vocabulary, wanted))
    limit = max(_COMMON_LEAST, _COMMON_SHARE * documents)
    return {own: limit / count for own, count in counts.items() if count > limit}


def _runs_among(text: str, vocabulary: set[str], wanted: set[Run]) -> set[Run]:
    words = _WORD.findall(text.lower())
    known = [word in vocabulary for word in words]
    found = set()
    streak = 0
    for at, is_known in enumerate(known):
        streak = streak + 1 if is_known else 0
        if streak >= _RUN_WORDS and (own := tuple(words[at - _RUN_WORDS + 1 : at + 1])) in wanted:
            found.add(own)
    return found


def _share(weights: NDArray[np.float64], shared: NDArray[np.bool_]) -> float:
    """Return the share of the words, by weight, that stand in a shared run; `weights` and `shared` have one entry a run.

    A word weighs what the rarest run does that it stands in; those at the edges stand in fewer runs and do not count.
    """
    heaviest = np.zeros(len(weights) + _RUN_WORDS - 1)
    covered = np.zeros(len(heaviest), np.bool_)
    for step in range(_RUN_WORDS):
        place = slice(step, step + len(weights))
        heaviest[place] = np.maximum(heaviest[place], weights)
        covered[place] |= shared
    inner = slice(_RUN_WORDS - 1, len(weights))
    return float(heaviest[inner][covered[inner]].sum() / heaviest[inner].sum())
