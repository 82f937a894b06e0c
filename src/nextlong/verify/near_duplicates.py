"""Near-duplicates: find negatives that repeat their meta-document or another negative.

In:  the texts of each sequence, and the run's table of word weights, which is counted
     again.
Out: one outcome per check.

Every negative is compared with the whole meta-document and with every other negative.
This is a second implementation of the rule in docs/decisions/0005-near-duplicates.md,
and shares no code with `nextlong.retrieval`. A word is a 64-bit number, equal for equal
words regardless of case; a run is three successive words of a text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate, groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nextlong.arrays import AnyArray, Bools, Hashes
from nextlong.schemas import DOCUMENT, META, NEGATIVE, SHARD_BITS, Layout
from nextlong.verify.outcome import CheckOutcome, chunk_name
from nextlong.verify.run_files import Ids, ResolvedSequence, StoredRun
from nextlong.verify.sequences import Tokenized, texts_of_cuts

_Numbers = Hashes

_NO_ROLE: Final = -1
_MIN_WORDS: Final = 10  # shorter texts are compared as a whole
_PASSAGE_WORDS: Final = 100
_FULL_WEIGHT: Final = 1024
_SLOTS: Final = 1 << 22  # of the table of weights
# Words are counted in all documents of a corpus up to this size.
_ALL_COUNTED_CHARS: Final = 48_000_000
_RUN_WORDS: Final = 3
_BASE: Final = 0xD1342543DE82EF95
# Thai and Lao, Burmese, Khmer, kana, Han are written without blanks, so each letter
# counts as a word.
_ALONE: Final = (
    "0E00-0EFF 1000-109F 1780-17FF 3040-30FF 3400-9FFF F900-FAFF 20000-3FFFF"
)
_CODES: Final = 1 << 18  # no higher code point is a letter
_BATCH_CHARS: Final = 1 << 16


def check_near_duplicates(
    run: StoredRun, found: list[CheckOutcome] | None = None
) -> list[CheckOutcome]:
    """Compare every negative, or merge outcomes `found` in parts of the sequences.

    Without mine.near_duplicates they are only counted.
    """
    outcome, *others = found or [find_copies(run, range(run.sequence_count))]
    for part in others:
        outcome.breach_each(part.examples, checked=part.checked)
        outcome.breaches += part.breaches - len(part.examples)
    if run.setting("mine", "near_duplicates") is None and not outcome.not_needed:
        count = f"{outcome.breaches:,} found, stock passages included"
        outcome.note = f"{count}; only counted, because mine.near_duplicates is null"
        outcome.breaches = 0
        outcome.examples = []
    return [outcome]


def find_copies(run: StoredRun, numbers: range) -> CheckOutcome:
    """Compare every negative of the sequences with some numbers.

    Those that repeat something are breaches.
    """
    outcome = CheckOutcome("near-duplicates among negatives", "negatives")
    if run.layout not in (Layout.EXTENDED, Layout.SUPPORTED):
        outcome.not_needed = f"{run.layout} sequences may contain near-duplicates"
    elif run.negatives.origin == "meta-chunk":
        outcome.not_needed = "repeated meta-chunks may contain near-duplicates"
    if outcome.not_needed:
        return outcome
    rule = _rule_of(run)
    for block in _by_document(run, numbers):
        words_of_chunk, words_of_document = _words_of(run, block)
        cuts = texts_of_cuts(run, block) if run.is_exact else {}
        for sequence in block:
            document = words_of_document[sequence.number]
            problems = _copies_in(
                sequence,
                document=document,
                words_of_chunk=words_of_chunk,
                cuts=cuts,
                rule=rule,
            )
            negatives = int(np.count_nonzero(sequence.role == NEGATIVE))
            outcome.breach_each(problems, checked=negatives)
    return outcome


def _by_document(run: StoredRun, numbers: range) -> Iterator[list[ResolvedSequence]]:
    """Yield blocks of sequences with one meta-document each.

    Of a supported sequence, each document in turn is the meta-document, and the chunks
    before it are the negatives; the other spans have no role.
    """
    for block in run.blocks(numbers):
        if run.layout == Layout.EXTENDED:
            yield list(block)
            continue
        groups = max(int(sequence.group.max()) for sequence in block) + 1
        for group in range(groups):
            yield [_with_roles_of(sequence, group) for sequence in block]


def _with_roles_of(sequence: ResolvedSequence, group: int) -> ResolvedSequence:
    roles = np.where(sequence.role == DOCUMENT, META, NEGATIVE)
    is_own = sequence.is_chunk & (sequence.group == group)
    return replace(sequence, role=np.where(is_own, roles, _NO_ROLE).astype(np.int8))


def _copies_in(
    sequence: ResolvedSequence,
    *,
    document: list[_Numbers],
    words_of_chunk: Mapping[int, _Numbers],
    cuts: Mapping[int, Tokenized],
    rule: dict[str, Any],
) -> list[str]:
    """Return for each negative that repeats something the last thing that it repeats.

    `document` has the words of the meta-document and of its short chunks,
    `words_of_chunk` those of each negative; see `_words_of`.
    """
    spans: list[int] = sequence.known(NEGATIVE).tolist()
    negatives = [words_of_chunk[int(sequence.chunk[span])] for span in spans]
    # A cut negative is compared both as a whole chunk and as cut.
    cut_spans = []
    for span in spans:
        chunk = int(sequence.chunk[span])
        if sequence.is_truncated[span] and chunk in cuts:
            visible = cuts[chunk].visible(int(sequence.lengths[span]))
            negatives += _words_in([visible])
            cut_spans.append(span)

    # The texts of the document, then one per entry of `text_spans`.
    texts = [*document, *negatives]
    text_spans = spans + cut_spans
    first = len(document)
    first_cut = first + len(spans)
    problems: dict[int, str] = {}  # by span
    for a, b, how in _repeats(texts, first, **rule):
        span = text_spans[a - first]
        other = "the meta-document"
        if b >= first:
            other_span = text_spans[b - first]
            if other_span == span:  # a chunk and its own beginning
                continue
            other = chunk_name(sequence.chunk[other_span])
        as_cut = ", as cut," if a >= first_cut else ""
        problems[span] = f"{sequence.where(span)}{as_cut} {how} {other}"
    return list(problems.values())


def without_cause(run: StoredRun, passed_over: Mapping[int, Ids]) -> dict[int, Ids]:
    """Return those unused chunks, by sequence number, that had no reason to be unused.

    They are not near-duplicates of anything in their sequence.
    """
    unexplained: dict[int, Ids] = {}
    if not passed_over:
        return unexplained
    rule = _rule_of(run)
    for block in run.blocks():
        wanted = [sequence for sequence in block if sequence.number in passed_over]
        unused = [passed_over[sequence.number] for sequence in wanted]
        words_of_chunk, words_of_document = _words_of(run, wanted, *unused)
        for sequence, candidates in zip(wanted, unused, strict=True):
            placed = sequence.chunk[sequence.known(NEGATIVE)]
            # The meta-document and its short chunks, the negatives, the unused chunks.
            texts = list(words_of_document[sequence.number])
            first_placed = len(texts)
            texts += [words_of_chunk[chunk] for chunk in placed.tolist()]
            first_unused = len(texts)
            texts += [words_of_chunk[chunk] for chunk in candidates.tolist()]
            is_repeating = np.zeros(len(texts), np.bool_)
            for a, b, _ in _repeats(texts, first_placed, **rule):
                # Whichever repeats the other: one that is unused, one that is not.
                if (a >= first_unused) != (b >= first_unused):
                    is_repeating[max(a, b)] = True
            is_unexplained = ~is_repeating[first_unused:]
            unexplained[sequence.number] = candidates[is_unexplained]
    return unexplained


def _rule_of(run: StoredRun) -> dict[str, Any]:
    """Return the arguments of `_repeats`; without mine.near_duplicates all words weigh.

    The threshold is then 0.8, because near-duplicates are counted all the same.
    """
    threshold = run.setting("mine", "near_duplicates")
    if threshold is None:
        return {"weights": None, "threshold": 0.8}
    path = run.files("weights", ".weights.npy")[0]
    weights = np.load(path, mmap_mode="r")
    return {"weights": weights, "threshold": float(threshold)}


def _words_of(
    run: StoredRun,
    block: Sequence[ResolvedSequence],
    *further: Ids,
) -> tuple[dict[int, _Numbers], dict[int, list[_Numbers]]]:
    """Return the words of chunks, and of documents by the number of their sequence.

    The chunks are the negatives, the meta-documents' chunks and some `further` ones.
    For each sequence there are the words of its whole meta-document, and then those of
    each short chunk of it.
    """
    # All chunks of the meta-document, also those that the sequence lacks.
    own_chunks: dict[int, Ids] = {}
    negatives = [np.empty(0, np.int64)]
    for sequence in block:
        meta = sequence.known(META)[:1]  # its first meta-chunk, if it has any
        first = sequence.doc_first[meta].sum()
        stop = sequence.doc_stop[meta].sum()
        own_chunks[sequence.number] = np.arange(first, stop)
        negatives.append(sequence.chunk[sequence.known(NEGATIVE)])
    wanted = np.concatenate([*negatives, *own_chunks.values(), *further])
    texts = run.texts_of(wanted)
    words = _words_in(list(texts.values()))
    words_of_chunk = dict(zip(texts, words, strict=True))

    words_of_document: dict[int, list[_Numbers]] = {}
    for number, chunks in own_chunks.items():
        whole = "".join(texts[chunk] for chunk in chunks.tolist())
        chunk_words = [words_of_chunk[chunk] for chunk in chunks.tolist()]
        short = [words for words in chunk_words if len(words) < _MIN_WORDS]
        words_of_document[number] = [*_words_in([whole]), *short]
    return words_of_chunk, words_of_document


def check_weights(run: StoredRun) -> list[CheckOutcome]:
    """Count again in how many of the counted documents the runs of each slot occur."""
    if "weights" not in run.steps:
        return []
    outcome = CheckOutcome("word weights counted again", "slots", checked=_SLOTS)
    counted = np.load(run.files("weights", ".counted.npy")[0])
    stored = np.load(run.files("weights", ".weights.npy")[0])
    if len(np.unique(counted)) != len(counted):
        outcome.breach("a document is counted twice")

    chars = 0
    documents = 0
    for shard in range(len(run.shards)):
        table = run.chunks(shard)
        chars += int((table["end"] - table["start"]).sum())
        documents += len(np.unique(table["doc_row"]))
    if chars <= _ALL_COUNTED_CHARS and documents != len(counted):
        few = f"{len(counted):,} documents are counted"
        outcome.breach(f"{few} of {documents:,} that have chunks")

    counts = _documents_by_slot(run, counted)
    weights = _weights_of(counts, documents=len(counted))
    if stored.shape != weights.shape:
        shape = f"has the shape {stored.shape}, should have {weights.shape}"
        outcome.breach(f"the table of weights {shape}")
        return [outcome]
    for slot in np.flatnonzero(stored != weights).tolist():
        documents_of_slot = f"its word runs are in {counts[slot]} documents"
        outcome.breach(
            f"slot {slot} has the weight {stored[slot]}, "
            f"{documents_of_slot}, which gives {weights[slot]}"
        )
    return [outcome]


def _documents_by_slot(run: StoredRun, documents: Ids) -> Ids:
    """Return in how many of the documents a run of each slot occurs, shape (slots,)."""
    counts = np.zeros(_SLOTS, np.int64)
    for shard, doc_rows in run.by_shard(documents):
        is_counted = np.isin(run.chunks(shard)["doc_row"], doc_rows)
        batches = run.chunk_texts(shard, np.flatnonzero(is_counted))
        for _, owners, texts, _ in batches:
            runs, chunk_of_run = _runs_of(_words_in(texts))
            # Document and slot as one number, so that a run that a document has twice
            # counts once. A batch has whole documents.
            document = owners[chunk_of_run].astype(np.uint64)
            keys = np.sort(document << np.uint64(SHARD_BITS) | runs % _SLOTS)
            slots = keys[_begins(keys)] % _SLOTS
            np.add.at(counts, slots, 1)
    return counts


def _weights_of(counts: Ids, *, documents: int) -> Ids:
    """Return the weight of each slot, of how many documents have a run of it.

    A run in at most 1 of 1,000 documents (or 16 documents) has full weight; above that,
    its weight is ∝ 1 / count.
    """
    limit = max(16 * 1000, documents)
    every_count = np.maximum(np.arange(counts.max() + 1), 1)
    by_count = _FULL_WEIGHT * limit // (1000 * every_count)
    weights: Ids = np.clip(by_count, 1, _FULL_WEIGHT)[counts]
    return weights


@dataclass(frozen=True)
class _Runs:
    """The runs of n texts that are not short, and the texts that share them."""

    text_count: int
    numbers: _Numbers  # (r,) text after text
    text_of: Ids  # (r,)
    bounds: Ids  # (n + 1,) text t has the runs bounds[t]:bounds[t + 1]
    group_of: Ids  # (r,) equal for equal runs
    firsts: Ids  # (g + 1,) group g is in the texts holders[firsts[g]:firsts[g + 1]]
    holders: Ids  # each text of a group once, group after group

    @classmethod
    def of(cls, words: Sequence[_Numbers]) -> _Runs:
        """Return the runs of texts, given by their words."""
        numbers, text_of = _runs_of(words)
        # A stable order, so that the texts of equal runs ascend and equal ones adjoin.
        order = np.argsort(numbers, kind="stable")
        begins_group = _begins(numbers[order])
        begins_holder = begins_group | _begins(text_of[order])
        group_of = np.empty(len(numbers), np.int64)
        group_of[order] = np.cumsum(begins_group) - 1
        holders = text_of[order][begins_holder]
        firsts = np.flatnonzero(begins_group[begins_holder])
        return cls(
            text_count=len(words),
            numbers=numbers,
            text_of=text_of,
            bounds=np.searchsorted(text_of, np.arange(len(words) + 1)),
            group_of=group_of,
            firsts=np.append(firsts, len(holders)),
            holders=holders,
        )

    @cached_property
    def is_shared(self) -> Bools:
        """Whether another text has the run, too; (r,)."""
        return np.diff(self.firsts)[self.group_of] > 1

    def texts_with_runs_of(self, text: int) -> Bools:
        """Return which texts have each run of a text, shape (its runs, n).

        Only runs that another text has are looked up.
        """
        own = slice(self.bounds[text], self.bounds[text + 1])
        rows = np.flatnonzero(self.is_shared[own])
        groups = self.group_of[own][rows]
        firsts = self.firsts[groups]
        sizes = self.firsts[groups + 1] - firsts
        # The indices into `holders` of all rows: from firsts[i] on, sizes[i] of them.
        starts = np.cumsum(sizes) - sizes
        indices = np.arange(sizes.sum()) + np.repeat(firsts - starts, sizes)
        has_run = np.zeros((own.stop - own.start, self.text_count), np.bool_)
        has_run[np.repeat(rows, sizes), self.holders[indices]] = True
        return has_run


def _repeats(
    words: Sequence[_Numbers],
    first: int,
    *,
    weights: NDArray[np.uint16] | None,
    threshold: float,
) -> Iterator[tuple[int, int, str]]:
    """Yield (a, b, how) for each text a from `first` on that repeats another text b.

    Without `weights`, all words are equal.
    """
    runs = _Runs.of(words)
    for texts in _equal_texts(words, runs):
        for a in texts:
            is_short = len(words[a]) < _MIN_WORDS
            how = "has the same 100 words in a row as"
            if is_short:
                how = "is the same as"
            for b in texts:
                if a >= first and a != b:
                    yield a, b, how
    yield from _repeats_by_weight(runs, first, weights=weights, threshold=threshold)


def _equal_texts(words: Sequence[_Numbers], runs: _Runs) -> list[list[int]]:
    """Return the sets of texts that are short and equal, or have an equal passage."""
    # Texts by the words of a short text, or of a passage.
    holders: defaultdict[bytes, set[int]] = defaultdict(set)
    for text, numbers in enumerate(words):
        if 0 < len(numbers) < _MIN_WORDS:
            holders[numbers.tobytes()].add(text)

    # A passage of 100 words in two texts consists of 98 consecutive shared runs.
    length = _PASSAGE_WORDS - _RUN_WORDS + 1
    unshared_before = np.append(0, np.cumsum(~runs.is_shared))  # (r + 1,)
    begins = np.arange(max(0, len(runs.numbers) - length + 1))
    is_all_shared = unshared_before[begins + length] == unshared_before[begins]
    is_one_text = runs.text_of[begins + length - 1] == runs.text_of[begins]
    begins = begins[is_all_shared & is_one_text]
    texts_of_begins = runs.text_of[begins]
    first_words = begins - runs.bounds[texts_of_begins]
    for text, word in zip(texts_of_begins.tolist(), first_words.tolist(), strict=True):
        passage = words[text][word : word + _PASSAGE_WORDS]
        holders[passage.tobytes()].add(text)

    sets = {frozenset(texts) for texts in holders.values() if len(texts) > 1}
    return sorted(sorted(texts) for texts in sets)


def _repeats_by_weight(
    runs: _Runs,
    first: int,
    *,
    weights: NDArray[np.uint16] | None,
    threshold: float,
) -> Iterator[tuple[int, int, str]]:
    """Yield (a, b, how) where text b has the share `threshold` of a's words, by weight.

    A word has the weight of the rarest of its three runs, and is shared if any of them
    is. Arrays of words have shape (r,): the word is in that run and the two after it.
    """
    if weights is None:
        run_weights = np.full(len(runs.numbers), _FULL_WEIGHT)
    else:
        run_weights = weights[runs.numbers % len(weights)].astype(np.int64)
    third_run_text = np.append(runs.text_of[2:], [-1, -1])[: len(runs.numbers)]
    has_three_runs = runs.text_of == third_run_text
    word_weights = np.where(has_three_runs, _of_three(run_weights, np.maximum), 0)
    shared_with_any = word_weights * _of_three(runs.is_shared, np.logical_or)

    # Only texts that share enough with all others together can repeat one of them.
    whole = _sums_by_text(runs, word_weights)  # (n,)
    max_shared = _sums_by_text(runs, shared_with_any)
    millionths = round(threshold * 1_000_000)
    may_repeat = (whole > 0) & (max_shared * 1_000_000 >= millionths * whole)
    for a in np.flatnonzero(may_repeat).tolist():
        if a < first:
            continue
        own_weights = word_weights[runs.bounds[a] : runs.bounds[a + 1]]
        is_shared = _of_three(runs.texts_with_runs_of(a), np.logical_or)
        shared = own_weights @ is_shared  # (n,)
        is_repeated = shared * 1_000_000 >= millionths * whole[a]
        for b in np.flatnonzero(is_repeated).tolist():
            if a != b:
                share = f"{shared[b] / whole[a]:.0%} of its words, by weight,"
                yield a, b, f"has {share} in common with"


def _sums_by_text(runs: _Runs, values: AnyArray) -> Ids:
    """Return the sum of the values, shape (r,), of each text, shape (n,)."""
    sums = np.bincount(runs.text_of, weights=values, minlength=runs.text_count)
    return sums.astype(np.int64)


def _begins(ordered: AnyArray) -> Bools:
    """Return whether each element differs from the one before it, shape (n,).

    The first counts as different.
    """
    return np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]


def _of_three(values: AnyArray, combine: np.ufunc) -> AnyArray:
    """Combine the values of each run and the two runs after it.

    The last two values have no two runs after them.
    """
    combined = values.copy()
    for step in range(1, _RUN_WORDS):
        combined[:-step] = combine(combined[:-step], values[step:])
    return combined


def _runs_of(words: Sequence[_Numbers]) -> tuple[_Numbers, Ids]:
    """Return the runs of all texts that are not short, and the text of each run."""
    long = [text if len(text) >= _MIN_WORDS else text[:0] for text in words]
    text_of_word = np.repeat(np.arange(len(long)), [len(text) for text in long])
    joined = np.concatenate([np.empty(0, np.uint64), *long])
    text_of_run = text_of_word[: -_RUN_WORDS + 1]  # of the run that begins at a word
    is_within_text = text_of_word[_RUN_WORDS - 1 :] == text_of_run
    numbers = np.zeros(len(is_within_text), np.uint64)
    for step in range(_RUN_WORDS):
        numbers = numbers * np.uint64(_BASE) + joined[step : step + len(numbers)]
    numbers = _mixed(numbers ^ np.uint64(_RUN_WORDS))
    return numbers[is_within_text], text_of_run[is_within_text]


def _words_in(texts: Sequence[str]) -> list[_Numbers]:
    """Return the numbers of the words of each text, in reading order."""
    ends = accumulate(len(text) for text in texts)
    batches = groupby(
        zip(texts, ends, strict=True),
        lambda text_and_end: text_and_end[1] // _BATCH_CHARS,
    )
    numbers: list[_Numbers] = []
    for _, batch in batches:
        numbers += _words_in_batch([text for text, _ in batch])
    return numbers


def _words_in_batch(texts: list[str]) -> list[_Numbers]:
    """Return the numbers of the words of some texts, which are examined as one."""
    joined = "\n".join(texts).encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(joined, np.uint32)  # (c,) the code point of each character
    letters, kinds = _letters()
    kind_of_char = kinds.take(codes, mode="clip")
    # A word begins at a letter after another kind of character, and at every letter
    # that is a word by itself.
    begins = kind_of_char > 0
    begins[1:] &= (kind_of_char[:-1] != 1) | (kind_of_char[1:] > 1)
    firsts = np.flatnonzero(begins)
    if not len(firsts):
        return [np.empty(0, np.uint64)] * len(texts)

    # A word's number is Σ letter · B^index, mixed; characters between words add 0 to
    # the word before.
    first = firsts[0]
    word_starts = np.repeat(firsts, np.diff(firsts, append=len(codes)))
    index_in_word = np.arange(first, len(codes)) - word_starts
    powers = np.full(index_in_word.max() + 1, _BASE, np.uint64)
    powers[0] = 1
    powers = np.multiply.accumulate(powers)
    terms = letters.take(codes[first:], mode="clip") * powers[index_in_word]
    numbers = _mixed(np.add.reduceat(terms, firsts - first))

    text_starts = np.cumsum([len(text) + 1 for text in texts[:-1]])
    return np.split(numbers, np.searchsorted(firsts, text_starts))


@cache
def _letters() -> tuple[_Numbers, NDArray[np.uint8]]:
    """Return by code point the number of a letter (0 for others), and its kind.

    The kind is 0 for no letter, 1 for a letter, 2 for a letter that is a whole word.
    """
    codes = np.arange(_CODES, dtype=np.uint32)
    is_letter = np.char.isalnum(codes.view("U1"))
    lower = codes.astype(np.uint64)
    for code in np.flatnonzero(is_letter).tolist():
        small = chr(code).lower()
        if len(small) == 1:
            lower[code] = ord(small)
    kinds = is_letter.astype(np.uint8)
    for block in _ALONE.split():
        first, last = block.split("-")
        kinds[int(first, 16) : int(last, 16) + 1] *= 2
    return _mixed(lower * np.uint64(_BASE)) * is_letter, kinds


def _mixed(numbers: _Numbers) -> _Numbers:
    """Mix numbers with the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
