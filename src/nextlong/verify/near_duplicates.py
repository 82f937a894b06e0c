"""Near-duplicates: find negatives that repeat their meta-document or another negative of their sequence.

In:  the texts of a sequence, and the run's table of weights. The rule is docs/decisions/0005-near-duplicates.md; `repeats.py` has
it. Every negative is compared with the whole meta-document and with every other negative, and there is no margin.

The weights are counted again, from the texts of all documents that the run says it counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.schemas import META, NEGATIVE, SHARD_BITS, Layout
from nextlong.verify.outcome import CheckOutcome, chunk_name
from nextlong.verify.repeats import LEAST_WORDS, ComparedTexts, Numbers, runs_within, words_of
from nextlong.verify.run_files import UNKNOWN, Ids, ResolvedSequence, RunFiles
from nextlong.verify.tokens import Tokenized, is_exact, texts_of_cuts

_CHECK = "near-duplicates among negatives"
_THRESHOLD = 0.8  # of a count where the recipe asked for none
_SLOTS = 1 << 22
_FULL_WEIGHT = 1024
_COMMON_LEAST = 16
_COMMON_SHARE = 1000
_ALL_COUNTED_CHARS = 48_000_000  # a corpus of no more than these is counted whole
_COUNTED_AT_ONCE = 1 << 20  # runs


class _SequenceWords(NamedTuple):
    """The words of chunks, by chunk id, and of whole meta-documents, by sequence number."""

    of_chunk: dict[int, Numbers]
    of_document: dict[int, Numbers]
    own_chunks: dict[int, Ids]

    def chunks(self, ids: Ids) -> list[Numbers]:
        """Return the words of each chunk."""
        return [self.of_chunk[chunk] for chunk in ids.tolist()]

    def document(self, sequence: ResolvedSequence) -> list[Numbers]:
        """Return the words of the whole meta-document, and of each of its chunks that has few."""
        chunks = self.chunks(self.own_chunks[sequence.number])
        return [self.of_document[sequence.number], *(words for words in chunks if len(words) < LEAST_WORDS)]


def check_near_duplicates(run: RunFiles, found: Iterable[CheckOutcome] | None = None) -> list[CheckOutcome]:
    """Compare every negative, or take what was `found` of all sequences: a breach where the recipe asked for none, else a count."""
    outcome = CheckOutcome(_CHECK, "negatives", not_needed=_not_meant(run))
    if outcome.not_needed:
        return [outcome]
    for part in [find_copies(run, range(sum(run.takes)))] if found is None else found:
        outcome.add(part)
    if run.setting("mine", "near_duplicates") is None:
        count = f"{outcome.breaches:,} found, stock passages included"
        note = f"{count}; mine.near_duplicates is not set, so they are only counted"
        return [CheckOutcome(_CHECK, "negatives", checked=outcome.checked, note=note)]
    return [outcome]


def find_copies(run: RunFiles, numbers: range) -> CheckOutcome:
    """Compare every negative of the sequences of some numbers, and count those that repeat something, as breaches."""
    outcome = CheckOutcome(_CHECK, "negatives")
    for block in () if _not_meant(run) else run.blocks(numbers):
        words = _words_of(run, block)
        cuts = texts_of_cuts(run, block) if is_exact(run) else {}
        for sequence in block:
            outcome.checked += int((sequence.role == NEGATIVE).sum())
            outcome.breach_each(dict(_copies(run, sequence, words, cuts)).values())
    return outcome


def _not_meant(run: RunFiles) -> str:
    """Say why sequences are not meant to be free of near-duplicates, "" if they are."""
    if run.layout == Layout.EXTENDED and not run.negatives.repeat_meta_chunk:
        return ""
    of = "repeated meta-chunks" if run.layout == Layout.EXTENDED else f"{run.layout} sequences"
    return f"{of} may contain near-duplicates"


def without_cause(run: RunFiles, passed_over: Mapping[int, Ids]) -> dict[int, Ids]:
    """Return which of the chunks that sequences, by number, passed over repeat neither meta-document nor negative of theirs.

    Nor does a negative of theirs repeat them.
    """
    unexplained = {}
    for block in run.blocks():
        wanted = [sequence for sequence in block if sequence.number in passed_over]
        if not wanted:
            continue
        chunks = [passed_over[sequence.number] for sequence in wanted]
        words = _words_of(run, wanted, *chunks)
        for sequence, candidate_chunks in zip(wanted, chunks, strict=True):
            document, negatives = words.document(sequence), _negatives(sequence)
            texts = [*document, *words.chunks(sequence.chunk[negatives]), *words.chunks(candidate_chunks)]
            placed, first = range(len(document), len(document) + len(negatives)), len(document) + len(negatives)
            others = range(first, len(texts))
            # In `texts`: the meta-document and its short chunks, the negatives, then the chunks that were passed over.
            compared = _texts(run, texts)
            repeats = compared.repeating(others, range(first))
            left = [text for text in others if text not in repeats]
            repeats |= {repeat.b for repeat in compared.repeated(placed, left)}
            unexplained[sequence.number] = candidate_chunks[[text not in repeats for text in others]]
    return unexplained


def _copies(
    run: RunFiles, sequence: ResolvedSequence, words: _SequenceWords, cuts: Mapping[int, Tokenized]
) -> Iterator[tuple[int, str]]:
    """Yield the spans of negatives that repeat the meta-document or another negative, and what each repeats.

    The one that is cut is judged by its whole chunk, and by what the sequence holds of it.
    """
    negatives, document = _negatives(sequence), words.document(sequence)
    cut = [span for span in negatives[sequence.is_truncated[negatives]].tolist() if int(sequence.chunk[span]) in cuts]
    visible = [cuts[int(sequence.chunk[span])].visible(int(sequence.end[span] - sequence.start[span])) for span in cut]
    spans = [*negatives.tolist(), *cut]
    texts = [*document, *words.chunks(sequence.chunk[negatives]), *words_of(visible)]
    first = len(document)
    for a, b, how in _texts(run, texts).repeated(range(first, len(texts)), range(len(texts))):
        span = spans[a - first]
        if b >= first and span == spans[b - first]:
            continue  # a chunk and its own beginning
        other = "the meta-document" if b < first else chunk_name(sequence.chunk[spans[b - first]])
        what = sequence.where(span) + (", as cut," if a - first >= len(negatives) else "")
        yield span, f"{what} {how} {other}"


def _texts(run: RunFiles, words: Sequence[Numbers]) -> ComparedTexts:
    is_asked = run.setting("mine", "near_duplicates") is not None
    threshold = float(run.setting("mine", "near_duplicates", _THRESHOLD))
    return ComparedTexts(words, weights=_weights(run) if is_asked else None, threshold=threshold)


def _negatives(sequence: ResolvedSequence) -> Ids:
    negatives: Ids = np.flatnonzero((sequence.role == NEGATIVE) & (sequence.doc != UNKNOWN))
    return negatives


def _words_of(run: RunFiles, block: Sequence[ResolvedSequence], *further: Ids) -> _SequenceWords:
    """Return the words of the negatives and meta-documents of some sequences, and of further chunks, each read once."""
    own_chunks: dict[int, Ids] = {}  # all chunks of the meta-document, whether the sequence has them or not
    for sequence in block:
        (metas,) = np.nonzero((sequence.role == META) & (sequence.doc != UNKNOWN))
        bounds = (sequence.doc_first[metas[0]], sequence.doc_stop[metas[0]]) if len(metas) else (0, 0)
        own_chunks[sequence.number] = np.arange(*map(int, bounds))
    negatives = (sequence.chunk[_negatives(sequence)] for sequence in block)
    of_documents = set(np.concatenate([*own_chunks.values()]).tolist())
    own_texts: dict[int, str] = {}
    of_chunk: dict[int, Numbers] = {}
    for shard, rows in run.by_shard(np.concatenate([*negatives, *own_chunks.values(), *further])):
        for part, texts in run.chunk_texts(shard, rows):
            names = (part | (shard << SHARD_BITS)).tolist()
            of_chunk.update(zip(names, words_of(texts), strict=True))
            own_texts.update((name, text) for name, text in zip(names, texts, strict=True) if name in of_documents)
    documents = ("".join(own_texts[chunk] for chunk in chunks.tolist()) for chunks in own_chunks.values())
    of_document = {number: words_of([text])[0] for number, text in zip(own_chunks, documents, strict=True)}
    return _SequenceWords(of_chunk, of_document, own_chunks)


# the table of weights


def _weights(run: RunFiles) -> NDArray[np.uint16]:
    (path,) = run.files("weights", ".weights.npy")
    weights: NDArray[np.uint16] = np.load(path, mmap_mode="r")
    return weights


def check_weights(run: RunFiles) -> list[CheckOutcome]:
    """Count again, from the texts, in how many of the counted documents the runs of each slot stand."""
    if "weights" not in run.steps:
        return []
    outcome = CheckOutcome("weights of runs counted again", "slots", checked=_SLOTS)
    (path,) = run.files("weights", ".counted.npy")
    counted, stored = np.load(path), _weights(run)
    if len(np.unique(counted)) != len(counted):
        outcome.breach("a document is counted twice")
    chars = documents = 0
    for shard in range(len(run.shards)):
        table = run.chunks(shard)
        chars += int((table["end"] - table["start"]).sum())
        documents += len(np.unique(table["doc_row"]))
    if chars <= _ALL_COUNTED_CHARS and documents != len(counted):  # a small corpus is counted whole
        outcome.breach(f"{len(counted):,} documents are counted of {documents:,} that have chunks")
    counts = np.zeros(_SLOTS, np.int64)
    for shard, rows in run.by_shard(counted):
        _count(run, shard, rows, counts)
    # A run of words in up to 1 of 1,000 documents (at least 16) has full weight; beyond, its weight falls as 1 / count.
    limit = max(_COMMON_LEAST * _COMMON_SHARE, len(counted))
    by_count = _FULL_WEIGHT * limit // (_COMMON_SHARE * np.maximum(np.arange(counts.max() + 1), 1))
    weights = np.clip(by_count, 1, _FULL_WEIGHT)[counts]
    if stored.shape != weights.shape:
        outcome.breach(f"the table of weights has the shape {stored.shape}, should have {weights.shape}")
        return [outcome]
    for slot in np.flatnonzero(stored != weights).tolist():
        outcome.breach(
            f"slot {slot} has the weight {stored[slot]}, its runs stand in {counts[slot]} documents: {weights[slot]}"
        )
    return [outcome]


def _count(run: RunFiles, shard: int, doc_rows: Ids, counts: NDArray[np.int64]) -> None:
    """Add one to the slot of each run, once a document, for some documents of a shard."""
    owners = run.chunks(shard)["doc_row"]
    rows = np.flatnonzero(np.isin(owners, doc_rows))
    pieces: list[NDArray[np.uint64]] = []
    for part, texts in run.chunk_texts(shard, rows):
        words = [text if len(text) >= LEAST_WORDS else text[:0] for text in words_of(texts)]
        numbers, chunk = runs_within(words)
        # Document and slot in one number, so that sorting makes a run that a document has twice count once.
        pieces.append(numbers % np.uint64(_SLOTS) | (owners[part][chunk].astype(np.uint64) << np.uint64(SHARD_BITS)))
        # No document is parted: a batch holds whole ones.
        if sum(map(len, pieces)) >= _COUNTED_AT_ONCE:
            _add(counts, pieces)
            pieces = []
    _add(counts, pieces)


def _add(counts: NDArray[np.int64], pieces: list[NDArray[np.uint64]]) -> None:
    if any(map(len, pieces)):
        ordered = np.sort(np.concatenate(pieces))  # half the time of np.unique
        slots = ordered[np.append(True, ordered[1:] != ordered[:-1])] % np.uint64(_SLOTS)
        np.add.at(counts, slots.astype(np.int64), 1)
