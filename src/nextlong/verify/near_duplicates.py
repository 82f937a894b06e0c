"""Near-duplicates: find negatives that repeat their meta-document or another negative of their sequence.

In:  the texts of each sequence, and the run's table of word weights, which is counted again. Out: one outcome per check. Every
negative is compared with the whole meta-document and with every other negative. This is a second implementation of the rule in
docs/decisions/0005-near-duplicates.md, and shares no code with `nextlong.retrieval`. A word is a 64-bit number, equal for equal
words regardless of case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nextlong.schemas import META, NEGATIVE, SHARD_BITS, Layout
from nextlong.verify.outcome import CheckOutcome, chunk_name
from nextlong.verify.run_files import Ids, ResolvedSequence, StoredRun
from nextlong.verify.sequences import texts_of_cuts

_Numbers = NDArray[np.uint64]

_LEAST_WORDS: Final = 10  # shorter texts are compared as a whole
_PASSAGE_WORDS: Final = 100
_FULL_WEIGHT: Final = 1024
_SLOTS: Final = 1 << 22  # of the table of weights
_ALL_COUNTED_CHARS: Final = (
    48_000_000  # words are counted in all documents of a corpus up to this size
)
_RUN_WORDS: Final = 3
_BASE: Final = 0xD1342543DE82EF95
# Thai and Lao, Burmese, Khmer, kana, Han are written without blanks, so each letter counts as a word.
_ALONE: Final = (
    "0E00-0EFF 1000-109F 1780-17FF 3040-30FF 3400-9FFF F900-FAFF 20000-3FFFF"
)
_CODES: Final = 1 << 18  # no higher code point is a letter
_BATCH_CHARS: Final = 1 << 16


def check_near_duplicates(
    run: StoredRun, found: list[CheckOutcome] | None = None
) -> list[CheckOutcome]:
    """Compare every negative, or merge outcomes `found` in parts; without mine.near_duplicates they are only counted."""
    outcome, *others = found or [find_copies(run, range(sum(run.takes)))]
    for part in others:
        outcome.breach_each(part.examples, checked=part.checked)
        outcome.breaches += part.breaches - len(part.examples)
    if run.setting("mine", "near_duplicates") is None and not outcome.not_needed:
        count = f"{outcome.breaches:,} found, stock passages included"
        outcome.note = f"{count}; only counted, because mine.near_duplicates is null"
        outcome.breaches, outcome.examples = 0, []
    return [outcome]


def find_copies(run: StoredRun, numbers: range) -> CheckOutcome:
    """Compare every negative of the sequences with some numbers; those that repeat something are breaches."""
    outcome = CheckOutcome("near-duplicates among negatives", "negatives")
    if run.layout != Layout.EXTENDED:
        outcome.not_needed = f"{run.layout} sequences may contain near-duplicates"
    elif run.negatives.origin == "meta-chunk":
        outcome.not_needed = "repeated meta-chunks may contain near-duplicates"
    for block in () if outcome.not_needed else run.blocks(numbers):
        of_chunk, of_document = _words_of(run, block)
        cuts = texts_of_cuts(run, block) if run.is_exact else {}
        for sequence in block:
            spans, document = (
                sequence.known(NEGATIVE).tolist(),
                of_document[sequence.number],
            )
            outcome.checked += int((sequence.role == NEGATIVE).sum())
            negatives = [of_chunk[int(sequence.chunk[span])] for span in spans]
            # A cut negative is compared both as a whole chunk and as cut.
            cut = [
                span
                for span in spans
                if sequence.is_truncated[span] and int(sequence.chunk[span]) in cuts
            ]
            for span in cut:
                negatives += _words_in(
                    [
                        cuts[int(sequence.chunk[span])].visible(
                            int(sequence.lengths[span])
                        )
                    ]
                )
            # The meta-document and its short chunks, then one text per span.
            texts, first, whole = [*document, *negatives], len(document), len(spans)
            spans += cut
            problems: dict[int, str] = {}  # by span
            for a, b, how in _repeats(texts, first, **_rule_of(run)):
                span = spans[a - first]
                if b >= first and span == spans[b - first]:
                    continue  # a chunk and its own beginning
                other = (
                    "the meta-document"
                    if b < first
                    else chunk_name(sequence.chunk[spans[b - first]])
                )
                what = sequence.where(span) + (
                    ", as cut," if a - first >= whole else ""
                )
                problems[span] = f"{what} {how} {other}"
            outcome.breach_each(problems.values())
    return outcome


def without_cause(run: StoredRun, passed_over: Mapping[int, Ids]) -> dict[int, Ids]:
    """Return those unused chunks, by sequence number, that are not near-duplicates of anything in their sequence."""
    unexplained = {}
    for block in run.blocks():
        wanted = [sequence for sequence in block if sequence.number in passed_over]
        of_chunk, of_document = _words_of(
            run, wanted, *(passed_over[sequence.number] for sequence in wanted)
        )
        for sequence in wanted:
            placed, candidates = (
                sequence.chunk[sequence.known(NEGATIVE)],
                passed_over[sequence.number],
            )
            words = [
                of_chunk[chunk] for chunk in (*placed.tolist(), *candidates.tolist())
            ]
            # The meta-document and its short chunks, the negatives, then the unused chunks.
            texts = [*of_document[sequence.number], *words]
            first = len(texts) - len(candidates)
            pairs = (
                (a, b)
                for a, b, _ in _repeats(texts, first - len(placed), **_rule_of(run))
            )
            # The unused chunk of each pair, whichever repeats the other.
            repeating = {max(a, b) for a, b in pairs if (a >= first) != (b >= first)}
            unexplained[sequence.number] = candidates[
                [text not in repeating for text in range(first, len(texts))]
            ]
    return unexplained


def _rule_of(run: StoredRun) -> dict[str, Any]:
    is_set = run.setting("mine", "near_duplicates") is not None
    weights = (
        np.load(run.files("weights", ".weights.npy")[0], mmap_mode="r")
        if is_set
        else None
    )
    threshold = float(
        run.setting("mine", "near_duplicates", 0.8)
    )  # 0.8 where they are only counted
    return {"weights": weights, "threshold": threshold}


def _words_of(
    run: StoredRun, block: Sequence[ResolvedSequence], *further: Ids
) -> tuple[dict[int, _Numbers], dict[int, list[_Numbers]]]:
    """Return the words of each negative and further chunk, and of each sequence's meta-document and its short chunks."""
    # All chunks of the meta-document, also those that the sequence lacks.
    metas = [(sequence, sequence.known(META)[:1]) for sequence in block]
    own_chunks = {
        of.number: np.arange(of.doc_first[meta].sum(), of.doc_stop[meta].sum())
        for of, meta in metas
    }
    negatives = (sequence.chunk[sequence.known(NEGATIVE)] for sequence in block)
    texts = run.texts_of(
        np.concatenate(
            [np.empty(0, np.int64), *negatives, *own_chunks.values(), *further]
        )
    )
    of_chunk = dict(zip(texts, _words_in([*texts.values()]), strict=True))
    of_document = {}
    for number, chunks in own_chunks.items():
        short = [
            of_chunk[chunk]
            for chunk in chunks.tolist()
            if len(of_chunk[chunk]) < _LEAST_WORDS
        ]
        of_document[number] = [
            *_words_in(["".join(texts[chunk] for chunk in chunks.tolist())]),
            *short,
        ]
    return of_chunk, of_document


def check_weights(run: StoredRun) -> list[CheckOutcome]:
    """Count again, from the texts, in how many of the counted documents the word runs of each slot occur."""
    if "weights" not in run.steps:
        return []
    outcome = CheckOutcome("word weights counted again", "slots", checked=_SLOTS)
    counted, stored = (
        np.load(run.files("weights", suffix)[0])
        for suffix in (".counted.npy", ".weights.npy")
    )
    if len(np.unique(counted)) != len(counted):
        outcome.breach("a document is counted twice")
    tables = [run.chunks(shard) for shard in range(len(run.shards))]
    chars = sum(int((table["end"] - table["start"]).sum()) for table in tables)
    documents = sum(len(np.unique(table["doc_row"])) for table in tables)
    if chars <= _ALL_COUNTED_CHARS and documents != len(counted):
        outcome.breach(
            f"{len(counted):,} documents are counted of {documents:,} that have chunks"
        )
    counts = np.zeros(_SLOTS, np.int64)
    for shard, doc_rows in run.by_shard(counted):
        for _, owners, texts, _ in run.chunk_texts(
            shard, np.flatnonzero(np.isin(tables[shard]["doc_row"], doc_rows))
        ):
            runs, chunk = _runs_of(_words_in(texts))
            # Document and slot as one number: a run that a document has twice counts once. A batch has whole documents.
            of_documents = np.sort(
                owners[chunk].astype(np.uint64) << np.uint64(SHARD_BITS) | runs % _SLOTS
            )
            np.add.at(counts, of_documents[_begins(of_documents)] % _SLOTS, 1)
    # A run of words in at most 1 of 1,000 documents (or 16 documents) has full weight; above that, its weight is ∝ 1 / count.
    limit = max(16 * 1000, len(counted))
    by_count = (
        _FULL_WEIGHT * limit // (1000 * np.maximum(np.arange(counts.max() + 1), 1))
    )
    weights = np.clip(by_count, 1, _FULL_WEIGHT)[counts]
    if stored.shape != weights.shape:
        outcome.breach(
            f"the table of weights has the shape {stored.shape}, should have {weights.shape}"
        )
        return [outcome]
    for slot in np.flatnonzero(stored != weights).tolist():
        true = f"its word runs are in {counts[slot]} documents, which gives {weights[slot]}"
        outcome.breach(f"slot {slot} has the weight {stored[slot]}, {true}")
    return [outcome]


def _repeats(
    words: Sequence[_Numbers],
    first: int,
    *,
    weights: NDArray[np.uint16] | None,
    threshold: float,
) -> Iterator[tuple[int, int, str]]:
    """Yield (a, b, how) for each text a from `first` on that repeats another text b; without `weights`, all words are equal."""
    holders: defaultdict[bytes, set[int]] = defaultdict(
        set
    )  # texts by the words of a short text, or of a passage
    for text, numbers in enumerate(words):
        if 0 < len(numbers) < _LEAST_WORDS:
            holders[numbers.tobytes()].add(text)
    # For the r runs of all texts: their text, and their group, which is the same for equal runs. A pair is a group and a text.
    runs, text_of = _runs_of(words)
    order = np.argsort(runs, kind="stable")
    is_new, is_pair = (
        _begins(runs[order]),
        _begins(runs[order]) | _begins(text_of[order]),
    )
    group, pair_texts = np.empty(len(runs), np.int64), text_of[order][is_pair]
    group[order] = np.cumsum(is_new) - 1
    # Group g is in the texts pair_texts[firsts[g]:firsts[g + 1]].
    firsts = np.append(np.flatnonzero(is_new[is_pair]), len(pair_texts))
    is_shared = np.diff(firsts)[group] > 1  # (r,) whether another text has the run, too
    bounds = np.searchsorted(
        text_of, np.arange(len(words) + 1)
    )  # text t has the runs bounds[t]:bounds[t + 1]

    # A passage of 100 words in two texts consists of 98 consecutive shared runs.
    length = _PASSAGE_WORDS - _RUN_WORDS + 1
    unmet = np.append(0, np.cumsum(~is_shared))
    begins = np.arange(max(0, len(runs) - length + 1))
    begins = begins[
        (unmet[begins + length] == unmet[begins])
        & (text_of[begins + length - 1] == text_of[begins])
    ]
    for run, text in zip(begins.tolist(), text_of[begins].tolist(), strict=True):
        word = run - bounds[text]
        holders[words[text][word : word + _PASSAGE_WORDS].tobytes()].add(text)
    for texts in sorted(
        map(sorted, {frozenset(texts) for texts in holders.values() if len(texts) > 1})
    ):
        for a in texts:
            how = (
                "is the same as"
                if len(words[a]) < _LEAST_WORDS
                else "has the same 100 words in a row as"
            )
            yield from ((a, b, how) for b in texts if a >= first and a != b)

    # A word has the weight of the rarest of its three runs, and is shared if any of them is; (r,) by the first of the three.
    rarity = (
        np.full(len(runs), _FULL_WEIGHT)
        if weights is None
        else weights[runs % len(weights)].astype(np.int64)
    )
    has_three = text_of == np.append(text_of[2:], [-1, -1])[: len(runs)]
    weight = np.where(has_three, _of_three(rarity, np.maximum), 0)
    shared_at_most = weight * _of_three(is_shared, np.logical_or)
    whole, most = (
        np.bincount(text_of, one, len(words)).astype(np.int64)
        for one in (weight, shared_at_most)
    )
    millionths = round(threshold * 1_000_000)
    for a in np.flatnonzero(
        (whole > 0) & (most * 1_000_000 >= millionths * whole)
    ).tolist():
        if a < first:
            continue
        own = slice(bounds[a], bounds[a + 1])
        holds = np.zeros(
            (bounds[a + 1] - bounds[a], len(words)), np.bool_
        )  # texts with each run of `a`
        rows = np.flatnonzero(is_shared[own])
        sizes = np.diff(firsts)[group[own][rows]]
        places = np.arange(sizes.sum()) + np.repeat(
            firsts[group[own][rows]] - np.cumsum(sizes) + sizes, sizes
        )
        holds[np.repeat(rows, sizes), pair_texts[places]] = True
        shared = weight[own] @ _of_three(holds, np.logical_or)  # (n,)
        for b in np.flatnonzero(shared * 1_000_000 >= millionths * whole[a]).tolist():
            if a != b:
                yield (
                    a,
                    b,
                    f"has {shared[b] / whole[a]:.0%} of its words, by weight, in common with",
                )


def _begins(ordered: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each element differs from the previous one, shape (n,); the first counts as different."""
    return np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]


def _of_three(values: NDArray[Any], combine: np.ufunc) -> NDArray[Any]:
    """Combine the values of each run and the two runs after it; the last two values are unchanged."""
    combined = values.copy()
    for step in range(1, _RUN_WORDS):
        combined[:-step] = combine(combined[:-step], values[step:])
    return combined


def _runs_of(words: Sequence[_Numbers]) -> tuple[_Numbers, Ids]:
    """Return the three-word runs of all texts that are not short, concatenated, and the text of each run."""
    long = [text if len(text) >= _LEAST_WORDS else text[:0] for text in words]
    text_of_word = np.repeat(np.arange(len(long)), [*map(len, long)])
    joined = np.concatenate([np.empty(0, np.uint64), *long])
    is_within = text_of_word[_RUN_WORDS - 1 :] == text_of_word[: -_RUN_WORDS + 1]
    numbers = np.zeros(len(is_within), np.uint64)
    for step in range(_RUN_WORDS):
        numbers = numbers * np.uint64(_BASE) + joined[step : step + len(numbers)]
    return _mixed(numbers ^ np.uint64(_RUN_WORDS))[is_within], text_of_word[
        : len(is_within)
    ][is_within]


def _words_in(texts: Sequence[str]) -> list[_Numbers]:
    """Return the numbers of the words of each text, in reading order."""
    numbers: list[_Numbers] = []
    ends = accumulate(map(len, texts))
    for _, batch in groupby(
        zip(texts, ends, strict=True), lambda text_end: text_end[1] // _BATCH_CHARS
    ):
        some = [text for text, _ in batch]
        codes = np.frombuffer(
            "\n".join(some).encode("utf-32-le", "surrogatepass"), np.uint32
        )
        letter_of, kind_of = _letters()
        kinds = kind_of.take(codes, mode="clip")
        begins = kinds > 0
        begins[1:] &= (kinds[:-1] != 1) | (kinds[1:] > 1)
        firsts = np.flatnonzero(begins)
        if not len(firsts):
            numbers += [np.empty(0, np.uint64)] * len(some)
            continue
        # A word's number is Σ letter · B^place, mixed; characters between words add 0 to the word before.
        place = np.arange(firsts[0], len(codes)) - np.repeat(
            firsts, np.diff(firsts, append=len(codes))
        )
        powers = np.full(place.max() + 1, _BASE, np.uint64)
        powers[0] = 1
        terms = (
            letter_of.take(codes[firsts[0] :], mode="clip")
            * np.multiply.accumulate(powers)[place]
        )
        cuts = np.searchsorted(firsts, np.cumsum([len(text) + 1 for text in some[:-1]]))
        numbers += np.split(_mixed(np.add.reduceat(terms, firsts - firsts[0])), cuts)
    return numbers


@cache
def _letters() -> tuple[_Numbers, NDArray[np.uint8]]:
    """Return by code point the number of a letter (0 for others), and its kind: 0 no letter, 1 a letter, 2 a whole word."""
    codes = np.arange(_CODES, dtype=np.uint32)
    is_letter = np.char.isalnum(codes.view("U1"))
    lower = codes.astype(np.uint64)
    for code in np.flatnonzero(is_letter).tolist():
        if len(small := chr(code).lower()) == 1:
            lower[code] = ord(small)
    kinds = is_letter.astype(np.uint8)
    for first, last in (block.split("-") for block in _ALONE.split()):
        kinds[int(first, 16) : int(last, 16) + 1] *= 2
    return _mixed(lower * np.uint64(_BASE)) * is_letter, kinds


def _mixed(numbers: _Numbers) -> _Numbers:
    """Mix numbers with the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
