"""Sequences: check that spans tile [0, T), are in order and complete, that no chunk occurs twice, and where chunks are cut.

In:  SEQUENCES with what CHUNKS and TOKENS say of each chunk. Checks go by role, so that a sequence of meta-chunks and
negatives and one of whole documents are each held to its own rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nextlong.schemas import (
    BOS,
    DOCUMENT,
    EOS,
    META,
    NEGATIVE,
    NO_CHUNK,
    ROLES,
    SEPARATOR,
    SHARD_BITS,
    Layout,
)
from nextlong.verify.outcome import CheckOutcome, chunk_name, document_name
from nextlong.verify.run_files import UNKNOWN, ResolvedSequence, StoredRun

_MOST_TRIMMED = 4  # tokens that a cut gives up to fall between two characters


def check_sequences(run: StoredRun) -> list[CheckOutcome]:
    """Check every sequence by itself, and all of them together."""
    spans, separators = (
        CheckOutcome("spans tile the sequence", "spans"),
        CheckOutcome("separators, bos, eos", "sequences"),
    )
    order = CheckOutcome("chunks complete and in order", "sequences")
    repeats = CheckOutcome("no chunk twice", "sequences")
    negatives_outcome = CheckOutcome("negatives of other documents", "negatives")
    between = CheckOutcome("negatives between meta-chunks", "gaps")
    # What only shows across sequences is gathered while each is looked at once.
    across = _Across(run)
    for block in run.blocks():
        for sequence in block:
            spans.checked += len(sequence.chunk)
            for outcome in (separators, order, repeats):
                outcome.checked += 1
            negatives_outcome.checked += int((sequence.role == NEGATIVE).sum())
            spans.breach_each(_span_problems(run, sequence))
            separators.breach_each(_separator_problems(run, sequence))
            order.breach_each(_order_problems(run, sequence))
            repeats.breach_each(_repeat_problems(run, sequence))
            # Negatives are of other documents; where they repeat their meta-chunk, of the meta-document.
            is_own = np.isin(sequence.doc, sequence.doc[sequence.role == META])
            wants_own = run.negatives.repeat_meta_chunk
            for span in np.flatnonzero((sequence.role == NEGATIVE) & (is_own != wants_own)).tolist():
                negatives_outcome.breach(f"{sequence.where(span)} is {'not ' if wants_own else ''}of the meta-document")
            for span, tokens in _gaps(sequence) if run.is_exact else ():
                between.checked += 1
                if tokens < run.min_gap_tokens:
                    between.breach(
                        f"{sequence.where(span)} has {tokens} tokens of negatives between it and the meta-chunk before, "
                        f"compose.min_gap_tokens is {run.min_gap_tokens}"
                    )
            across.add(sequence)
        across.check_keys(block)
    outcomes = [spans, separators, order, repeats, *across.outcomes()]
    if negatives_outcome.checked:
        outcomes.insert(4, negatives_outcome)
    if run.is_exact:
        outcomes.insert(5, between)
    return outcomes


def _span_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield where spans do not tile exactly [0, T), or hold what their chunk does not have."""
    target = int(run.setting("compose", "target_tokens", 0))
    target += run.extra_tokens
    if not len(sequence.start) or sequence.end[-1] != target:
        reached = int(sequence.end[-1]) if len(sequence.end) else 0
        yield f"sequence {sequence.number} has {reached:,} tokens, compose.target_tokens is {target:,}"
    before = np.concatenate([[0], sequence.end[:-1]])  # (spans,) where each span should start
    for span in np.flatnonzero((sequence.start != before) | (sequence.end <= sequence.start)).tolist():
        yield f"{sequence.where(span)} should begin at {before[span]} and hold at least one token"
    for span in np.flatnonzero(sequence.is_chunk & (sequence.doc == UNKNOWN)).tolist():
        yield f"{sequence.where(span)} names a chunk that does not exist"
    for span in np.flatnonzero(~sequence.is_chunk & (sequence.chunk != NO_CHUNK)).tolist():
        yield f"{sequence.where(span)} names a chunk but its role has none"
    too_long = sequence.is_chunk & (sequence.end - sequence.start > sequence.tokens)
    for span in np.flatnonzero(too_long).tolist():
        yield f"{sequence.where(span)} is longer than its chunk, which has {sequence.tokens[span]} tokens"
    if len(truncated := np.flatnonzero(sequence.is_truncated)) > 1:
        yield f"{sequence.where(int(truncated[0]))} and {len(truncated) - 1} more are cut; at most one chunk may be"


def _separator_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield separators that are missing, too many or too long, and bos and eos out of place."""
    special = run.special_ids
    lengths = sequence.end - sequence.start
    last = len(lengths) - 1
    for role, place in ((BOS, 0), (EOS, last)):
        spans = np.flatnonzero(sequence.role == role).tolist()
        if spans != ([place] if special[role] else []) or any(lengths[span] != len(special[role]) for span in spans):
            yield f"sequence {sequence.number} has {ROLES[role]} at spans {spans}, the tokenizer's is {special[role]}"
    end = last - bool(special[EOS])  # the span that is cut where the sequence is full
    # (spans,) whether the document of a chunk goes on with the next chunk of the sequence, separators left aside
    goes_on = np.zeros(len(sequence.role), np.bool_)
    chunks = np.flatnonzero(sequence.role == DOCUMENT)
    here, after = chunks[:-1], chunks[1:]
    goes_on[here] = (
        (sequence.chunk[here] + 1 == sequence.chunk[after])
        & (sequence.doc[here] == sequence.doc[after])
        & (sequence.char_end[here] == sequence.char_start[after])
    )
    # (spans,) whether a chunk, when whole, takes a separator: it ends without a newline, and its document does not go on
    wants_separator = sequence.is_chunk & sequence.open_ended & ~goes_on
    is_separator, is_truncated = sequence.role == SEPARATOR, sequence.is_truncated
    for span in np.flatnonzero(is_separator).tolist():
        owner = int(np.flatnonzero(~is_separator[:span])[-1]) if (~is_separator[:span]).any() else None
        last_separator = span == last or not is_separator[span + 1]
        is_filling = owner is not None and is_truncated[owner]  # separators fill what a cut between characters leaves
        partial = last_separator and lengths[span] < len(special[SEPARATOR]) and (span == end or is_filling)
        if lengths[span] != len(special[SEPARATOR]) and not partial:
            yield f"{sequence.where(span)} should have {len(special[SEPARATOR])} tokens"
        if owner is None or not (is_filling or (wants_separator[owner] and span == owner + 1)):
            yield f"{sequence.where(span)} does not follow a chunk that needs one"
        elif last_separator and sequence.end[span] - sequence.end[owner] > len(special[SEPARATOR]) + _MOST_TRIMMED:
            yield f"{sequence.where(span)} is one of more separators than a cut between characters needs"
    if special[SEPARATOR]:
        followed = np.append(sequence.role[1:] == SEPARATOR, False)
        missing = np.flatnonzero(wants_separator & ~is_truncated & ~followed)
        missing = missing[missing != end]
        # The last negative may just fill the budget and have no separator: it counts as the one that is cut.
        if len(missing) > (0 if is_truncated.any() else 1):
            yield f"{sequence.where(int(missing[0]))} does not end in a newline but no separator follows it"


def _order_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield what is missing or out of order: meta-chunks and their groups, or the documents' chunks."""
    roles = set(np.unique(sequence.role[sequence.is_chunk]).tolist())
    expected = {META, NEGATIVE} if run.layout == Layout.EXTENDED else {DOCUMENT}
    if not roles or not roles <= expected:
        yield f"sequence {sequence.number} has roles {sorted(roles)}, {run.layout} ones have {sorted(expected)}"
    elif sequence.method != run.method:
        yield f"sequence {sequence.number} says its method is {sequence.method}, the recipe's is {run.method}"
    elif sequence.layout != run.layout:
        yield f"sequence {sequence.number} says it is {sequence.layout}, the run's are {run.layout}"
    elif run.layout == Layout.EXTENDED:
        yield from _meta_problems(run, sequence)
    elif run.layout == Layout.INTERLEAVED:
        yield from _part_problems(sequence)
    else:
        yield from _document_problems(sequence)


def _meta_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    is_exact = run.is_exact
    meta_spans = np.flatnonzero(sequence.role == META)
    if not len(meta_spans):
        if is_exact:
            yield f"sequence {sequence.number} has no meta-chunk"
        return
    first, stop = int(sequence.doc_first[meta_spans[0]]), int(sequence.doc_stop[meta_spans[0]])
    for place, span in enumerate(meta_spans.tolist()):
        if sequence.chunk[span] != first + place or sequence.group[span] != place:
            yield f"{sequence.where(span)} of group {sequence.group[span]} is in the place of {chunk_name(first + place)}"
            return
        if is_exact and sequence.is_truncated[span]:
            yield f"{sequence.where(span)} is cut, of {sequence.tokens[span]} tokens"
    negatives = np.flatnonzero(sequence.role == NEGATIVE)
    for span in negatives[:-1][sequence.is_truncated[negatives[:-1]]].tolist() if is_exact else ():
        yield f"{sequence.where(span)} is cut, but is not the last negative"
    if is_exact and len(meta_spans) != stop - first:
        yield f"sequence {sequence.number} has {len(meta_spans)} of the {stop - first} chunks of its meta-document"
    groups = sequence.group[sequence.is_chunk]
    if np.any(np.diff(groups) < 0) or groups[0] != 0 or groups[-1] >= len(meta_spans) + (not is_exact):
        yield f"sequence {sequence.number} has groups {groups[0]} … {groups[-1]} out of order, for {len(meta_spans)} meta-chunks"
        return
    position = run.setting("compose", "position", "head")
    if position in ("head", "tail"):
        # The first or the last chunk of each group, as places among the chunks of the sequence.
        edges = np.flatnonzero(np.diff(groups))
        places = np.append(0, edges + 1) if position == "head" else np.append(edges, len(groups) - 1)
        chunk_spans = np.flatnonzero(sequence.is_chunk)
        for place in places[: len(meta_spans)].tolist():
            if sequence.role[chunk_spans[place]] != META:
                yield f"{sequence.where(int(chunk_spans[place]))} is at the {position} of its group but is not a meta-chunk"


def _gaps(sequence: ResolvedSequence) -> list[tuple[int, int]]:
    """Return the span of each meta-chunk but the first, and the tokens of negatives between it and the one before."""
    metas = np.flatnonzero(sequence.role == META)
    # (spans + 1,) tokens of negatives before each span; their differences at the meta-chunks are the gaps.
    tokens = np.append(0, np.cumsum((sequence.end - sequence.start) * (sequence.role == NEGATIVE)))
    return list(zip(metas[1:].tolist(), np.diff(tokens[metas]).tolist(), strict=True))


def _document_problems(sequence: ResolvedSequence) -> Iterator[str]:
    spans = np.flatnonzero(sequence.is_chunk)
    groups, docs, chunks = sequence.group[spans], sequence.doc[spans], sequence.chunk[spans]
    for at, span in enumerate(spans.tolist()):
        begins = at == 0 or groups[at] != groups[at - 1]
        expected = sequence.doc_first[span] if begins else chunks[at - 1] + 1
        if chunks[at] != expected:
            yield f"{sequence.where(span)} is in the place of {chunk_name(expected)}"
        if begins and groups[at] != (groups[at - 1] + 1 if at else 0):
            yield f"{sequence.where(span)} has group {groups[at]} after {groups[at - 1] if at else 'none'}"
        if begins and at and chunks[at - 1] + 1 != sequence.doc_stop[spans[at - 1]]:
            yield f"{sequence.where(int(spans[at - 1]))} is not the last chunk of its document"
        if sequence.is_truncated[span] and at != len(spans) - 1:
            yield f"{sequence.where(span)} is cut before the end of the sequence"
    starts = docs[np.flatnonzero(np.diff(groups, prepend=-1))]  # the document of each group
    values, counts = np.unique(starts, return_counts=True)
    for doc in values[counts > 1].tolist():
        yield f"sequence {sequence.number} holds document {document_name(doc)} twice"


def _part_problems(sequence: ResolvedSequence) -> Iterator[str]:
    """Yield parts of a document that do not go on where the one before ended, whatever stands between them."""
    spans = np.flatnonzero(sequence.is_chunk)
    reached: dict[int, int] = {}  # by document: the chunk that its next part must begin with
    group_of: dict[int, int] = {}  # by document: its number in the sequence
    for at, span in enumerate(spans.tolist()):
        doc, chunk, group = int(sequence.doc[span]), int(sequence.chunk[span]), int(sequence.group[span])
        expected = reached.get(doc, int(sequence.doc_first[span]))
        if chunk != expected:
            yield f"{sequence.where(span)} is in the place of {chunk_name(expected)}"
        if group != group_of.setdefault(doc, len(group_of)):
            yield f"{sequence.where(span)} has group {group}, its document is number {group_of[doc]}"
        if sequence.is_truncated[span] and at != len(spans) - 1:
            yield f"{sequence.where(span)} is cut before the end of the sequence"
        reached[doc] = chunk + 1


def _repeat_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield chunks that stand twice; negatives may where they repeat their meta-chunk."""
    looked_at = sequence.is_chunk & ((sequence.role != NEGATIVE) | (not run.negatives.repeat_meta_chunk))
    chunks, counts = np.unique(sequence.chunk[looked_at], return_counts=True)
    for chunk in chunks[counts > 1].tolist():
        at = np.flatnonzero(looked_at & (sequence.chunk == chunk)).tolist()
        yield f"sequence {sequence.number} holds {chunk_name(chunk)} at spans {at}"


class _Across:
    """What all sequences share. Memory: one byte a document, two bytes a chunk, and the ids of the sequences."""

    def __init__(self, run: StoredRun) -> None:
        self._run = run
        self._documents = CheckOutcome("documents in one sequence only", "sequences")
        self._keys = CheckOutcome("sequence ids and keys", "sequences")
        self._uses = CheckOutcome("uses of a negative", "chunks")
        self._limit = run.setting("compose", "max_uses")
        self._ids: set[str] = set()
        sizes = [len(run.chunks(shard)["start"]) for shard in range(len(run.shards))]
        self._used = [np.zeros(size, np.uint16) for size in sizes]  # of each shard, by chunk row: uses as a negative
        self._taken = [  # of each shard, by document row: whether a sequence is made of it
            np.zeros(len(np.load(path, mmap_mode="r")), np.bool_) for path in run.files("ingest", ".hashes.npy")
        ]
        if run.repeats_documents:
            self._documents.not_needed = f"method {run.method} may use a document in several sequences"

    def add(self, sequence: ResolvedSequence) -> None:
        """Count the documents that this sequence is made of, and its negatives."""
        made_of = META if self._run.layout == Layout.EXTENDED else DOCUMENT
        if not self._run.repeats_documents:
            self._documents.checked += 1
            for shard, rows in self._run.by_shard(sequence.doc[sequence.role == made_of]):
                again = rows[self._taken[shard][rows]]
                if len(again):
                    name = document_name(shard << SHARD_BITS | int(again[0]))
                    self._documents.breach(
                        f"sequence {sequence.number}: document {name} is already in an earlier sequence"
                    )
                self._taken[shard][rows] = True
        known = (sequence.role == NEGATIVE) & (sequence.doc != UNKNOWN)
        for shard, rows in self._run.by_shard(sequence.chunk[known]):
            self._used[shard][rows] += self._used[shard][rows] < np.iinfo(np.uint16).max

    def check_keys(self, block: list[ResolvedSequence]) -> None:
        """Compare keys with the content hash of the meta-document or first document."""
        self._keys.checked += len(block)
        leading = {sequence.number: np.flatnonzero(np.isin(sequence.role, (META, DOCUMENT))) for sequence in block}
        firsts = {
            sequence.number: int(sequence.doc[spans[0]]) for sequence in block if len(spans := leading[sequence.number])
        }
        hashes = self._run.hashes_of(np.array(list(firsts.values()), np.int64))
        for sequence in block:
            if sequence.id in self._ids and not self._run.repeats_documents:
                self._keys.breach(f"sequence {sequence.number} has the id {sequence.id} of an earlier sequence")
            self._ids.add(sequence.id)
            expected = hashes.get(firsts.get(sequence.number, UNKNOWN))
            if (
                expected is not None and sequence.key != expected
            ):  # where T cut the meta-chunks off, only the key is left
                self._keys.breach(
                    f"sequence {sequence.number} has key {sequence.key:016x}, its document is {expected:016x}"
                )
            if sequence.layout == Layout.EXTENDED and sequence.id != f"{sequence.method}-{sequence.key:016x}":
                self._keys.breach(
                    f"sequence {sequence.number} has the id {sequence.id}, but its key is {sequence.key:016x}"
                )

    def outcomes(self) -> list[CheckOutcome]:
        """Return what was found, with the largest number of uses as a note."""
        self._uses.checked = sum(int(np.count_nonzero(used)) for used in self._used)
        most = max((int(used.max()) for used in self._used if len(used)), default=0)
        self._uses.note = f"most: {most}" + ("" if self._limit is None else f", compose.max_uses={self._limit}")
        for shard, used in enumerate(self._used):
            for row in np.flatnonzero(used > (self._limit or np.inf)).tolist():
                self._uses.breach(f"{chunk_name(shard << SHARD_BITS | row)} is a negative in {used[row]} sequences")
        outcomes = [self._keys, self._documents]
        return [*outcomes, self._uses] if self._uses.checked else outcomes


class _Beginning(NamedTuple):
    """The beginning of a chunk, of so many tokens: the whole characters, and whether the next token begins another one."""

    chars: int
    is_between: bool


class Tokenized:
    """The text of a chunk, by its tokens."""

    def __init__(self, run: StoredRun, text: str) -> None:
        """Encode the text anew."""
        self.text = text
        self._offsets: Sequence[tuple[int, int]] = run.tokenizer.encode(text, add_special_tokens=False).offsets

    def first(self, tokens: int) -> _Beginning:
        """Return what the first tokens, not all, cover. A character that goes on behind the cut is not whole."""
        stop = max((end for _, end in self._offsets[:tokens]), default=0)
        start = min(start for start, _ in self._offsets[tokens:])
        return _Beginning(min(stop, start), stop <= start)

    def visible(self, tokens: int) -> str:
        """Return the text that spans tell of: at least a character."""
        return self.text[: max(1, self.first(tokens).chars)]


def texts_of_cuts(run: StoredRun, block: Iterable[ResolvedSequence]) -> dict[int, Tokenized]:
    """Return the chunks that the sequences of a block hold only the beginning of."""
    cut = np.concatenate([np.empty(0, np.int64), *(sequence.chunk[sequence.is_truncated] for sequence in block)])
    return {chunk: Tokenized(run, text) for chunk, text in run.texts_of(cut).items()}


def check_cuts(run: StoredRun) -> list[CheckOutcome]:
    """Check every cut."""
    outcome = CheckOutcome("cuts between characters", "cuts")
    for block in run.blocks():
        texts = texts_of_cuts(run, block)
        for sequence in block:
            outcome.checked += int(sequence.is_truncated.sum())
            outcome.breach_each(_cut_problems(run, sequence, texts))
    return [outcome]


def _cut_problems(run: StoredRun, sequence: ResolvedSequence, texts: dict[int, Tokenized]) -> Iterator[str]:
    """Yield cuts that part a character though one near would not, or leave none, and separators behind a newline."""
    separator_tokens = len(run.special_ids[SEPARATOR])
    for span in np.flatnonzero(sequence.is_truncated).tolist():
        if int(sequence.chunk[span]) not in texts:
            continue
        tokenized, tokens = texts[int(sequence.chunk[span])], int(sequence.end[span] - sequence.start[span])
        chars, is_between = tokenized.first(tokens)
        fills_budget = run.is_exact and sequence.role[span] == NEGATIVE
        if fills_budget and not chars:
            yield f"{sequence.where(span)} holds a part of a character only"
        is_joined = span + 1 < len(sequence.role) and sequence.role[span + 1] == SEPARATOR
        if fills_budget and is_joined and tokenized.text[:chars].endswith("\n"):
            yield f"{sequence.where(span)} ends in a newline but a separator follows it"
        if is_between or not separator_tokens:
            continue
        # A negative that is followed by no separator gives up the room of one, too.
        most = tokens - (separator_tokens if fills_budget and not is_joined else 1)
        for fewer in range(most, max(0, most - _MOST_TRIMMED), -1):
            before = tokenized.first(fewer)
            is_fit = before.chars and not (fills_budget and tokenized.text[: before.chars].endswith("\n"))
            if before.is_between and is_fit:
                yield f"{sequence.where(span)} ends within a character; {tokens - fewer} tokens fewer would not"
                break
