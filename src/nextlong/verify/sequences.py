"""Sequences: check spans, their order, separators, repeated chunks and cuts.

In:  SEQUENCES, with columns of CHUNKS and TOKENS for each chunk.
Out: one outcome per check.

Each role has its own rules, so that sequences of meta-chunks and negatives and those of
whole documents are both checked. A *problem* is the description of one breach;
`where(span)` begins most of them, with the place of a span in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from nextlong.arrays import Bools, Ints
from nextlong.schemas import (
    BOS,
    CONTEXT,
    DOCUMENT,
    EOS,
    META,
    NEGATIVE,
    NO_CHUNK,
    ROLES,
    SEPARATOR,
    TASK,
    Layout,
)
from nextlong.verify.outcome import CheckOutcome, chunk_name, document_name
from nextlong.verify.run_files import UNKNOWN, ResolvedSequence, StoredRun

# The most tokens that a cut gives up to fall between two characters.
_MAX_TRIMMED = 4
_ROLES_OF_LAYOUT = {
    Layout.EXTENDED: {META, NEGATIVE},
    Layout.SUPPORTED: {CONTEXT, NEGATIVE, DOCUMENT},
}
# The uses of a chunk are counted up to this number.
_MAX_USES = np.iinfo(np.uint16).max


def check_sequences(run: StoredRun) -> list[CheckOutcome]:
    """Check each sequence by itself, then ids and uses across all of them."""
    spans = CheckOutcome("spans tile the sequence", "spans")
    separators = CheckOutcome("separators, bos, eos", "sequences")
    order = CheckOutcome("chunks complete and in order", "sequences")
    repeats = CheckOutcome("no chunk twice", "sequences")
    negatives = CheckOutcome("negatives of other documents", "negatives")
    gaps = CheckOutcome("negatives between meta-chunks", "gaps")
    for sequence in run.sequences():
        spans.breach_each(_span_problems(run, sequence), checked=len(sequence.chunk))
        separators.breach_each(_separator_problems(run, sequence), checked=1)
        order.breach_each(_order_problems(run, sequence), checked=1)
        repeats.breach_each(_repeat_problems(run, sequence), checked=1)
        negatives.breach_each(
            _negative_problems(run, sequence),
            checked=int(np.count_nonzero(sequence.role == NEGATIVE)),
        )
        if run.is_exact:
            meta_chunks = int(np.count_nonzero(sequence.role == META))
            gaps.breach_each(
                _gap_problems(run, sequence), checked=max(0, meta_chunks - 1)
            )

    # Runs of other kinds have no negatives, or no gaps of a certain size.
    outcomes = [spans, separators, order, repeats]
    if negatives.checked:
        outcomes.append(negatives)
    if run.is_exact:
        outcomes.append(gaps)
    return outcomes + _check_across(run)


def _spans_where(is_wanted: Bools) -> list[int]:
    """Return the indices at which an array of shape (spans,) is true."""
    indices: list[int] = np.flatnonzero(is_wanted).tolist()
    return indices


def _span_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield spans that do not cover exactly [0, T), or do not match their chunk."""
    where = sequence.where
    # Exports of next tokens need one token more than the recipe asks for.
    target = int(run.setting("compose", "target_tokens", 0)) + run.extra_tokens
    has_spans = len(sequence.end) > 0
    tokens = int(sequence.end[-1]) if has_spans else 0
    if not has_spans or tokens != target:
        yield (
            f"sequence {sequence.number} has {tokens:,} tokens, "
            f"compose.target_tokens is {target:,}"
        )

    expected_starts = np.append(0, sequence.end[:-1])  # (spans,)
    is_misplaced = sequence.start != expected_starts
    is_empty = sequence.lengths < 1
    for span in _spans_where(is_misplaced | is_empty):
        yield (
            f"{where(span)} should begin at {expected_starts[span]} "
            "and hold at least one token"
        )

    is_chunk = sequence.is_chunk
    for span in _spans_where(is_chunk & (sequence.doc == UNKNOWN)):
        yield f"{where(span)} names a chunk that does not exist"
    for span in _spans_where(~is_chunk & (sequence.chunk != NO_CHUNK)):
        yield f"{where(span)} names a chunk but its role has none"
    for span in _spans_where(is_chunk & (sequence.lengths > sequence.tokens)):
        chunk_tokens = sequence.tokens[span]
        yield f"{where(span)} is longer than its chunk, which has {chunk_tokens} tokens"

    cut_spans = _spans_where(sequence.is_truncated)
    if len(cut_spans) > 1:
        first = where(cut_spans[0])
        others = len(cut_spans) - 1
        yield f"{first} and {others} more are cut; at most one chunk may be"


def _separator_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield wrong separators, and misplaced bos and eos tokens.

    A separator is wrong if it is missing, superfluous, or of another length.
    """
    last = len(sequence.role) - 1
    for role, expected_span in ((BOS, 0), (EOS, last)):
        ids = run.special_ids[role]
        spans = _spans_where(sequence.role == role)
        expected_spans = [expected_span] if ids else []
        have_length = all(sequence.lengths[span] == len(ids) for span in spans)
        if spans != expected_spans or not have_length:
            yield (
                f"sequence {sequence.number} has {ROLES[role]} at spans {spans}, "
                f"the tokenizer's is {ids}"
            )

    # The last span before eos may be cut, because the budget of tokens ends there.
    final = last - 1 if run.special_ids[EOS] else last
    separator_tokens = len(run.special_ids[SEPARATOR])
    yield from _wrong_separators(sequence, separator_tokens, final)
    if separator_tokens:
        yield from _missing_separators(sequence, final)


def _wants_separator(sequence: ResolvedSequence) -> Bools:
    """Return which spans need a separator after them if they are not cut, (spans,).

    Those are the chunks that do not end in a newline, except where the next chunk of
    the sequence continues the document.
    """
    wants_separator = sequence.is_chunk & sequence.open_ended
    spans = np.flatnonzero(sequence.role == DOCUMENT)
    current = spans[:-1]
    following = spans[1:]
    is_same_document = sequence.doc[current] == sequence.doc[following]
    is_next_chunk = sequence.chunk[current] + 1 == sequence.chunk[following]
    is_adjacent = sequence.char_end[current] == sequence.char_start[following]
    wants_separator[current] &= ~(is_same_document & is_next_chunk & is_adjacent)
    return wants_separator


def _wrong_separators(
    sequence: ResolvedSequence,
    separator_tokens: int,
    final: int,
) -> Iterator[str]:
    """Yield the separators that should not be there, or have another length.

    One separator follows a chunk that wants one. After a cut chunk, separators in a row
    take the place of the tokens that the cut gave up to fall between two characters.
    The last separator of such a row may be partial, as may the one that ends the
    sequence.
    """
    where = sequence.where
    lengths = sequence.lengths
    is_separator = sequence.role == SEPARATOR
    ends_row = is_separator & np.append(~is_separator[1:], True)
    # (spans,) the span that each separator belongs to: the nearest one before it that
    # is no separator, -1 if there is none.
    indices = np.arange(len(is_separator))
    owners = np.maximum.accumulate(np.where(is_separator, -1, indices))
    has_owner = owners >= 0
    is_first = indices == owners + 1
    fills_cut = has_owner & sequence.is_truncated[owners]

    may_be_partial = (indices == final) | (fills_cut & ~is_first)
    is_partial = may_be_partial & ends_row & (lengths < separator_tokens)
    has_wrong_length = (lengths != separator_tokens) & ~is_partial

    is_wanted = has_owner & is_first & _wants_separator(sequence)[owners]
    # Meaningless without an owner, but such a separator is not wanted anyway.
    row_tokens = sequence.end - sequence.end[owners]
    is_too_long = row_tokens > separator_tokens + _MAX_TRIMMED
    for span in _spans_where(is_separator):
        if has_wrong_length[span]:
            yield f"{where(span)} should have {separator_tokens} tokens"
        if not fills_cut[span] and not is_wanted[span]:
            yield f"{where(span)} does not follow a chunk that needs one"
        elif ends_row[span] and is_too_long[span]:
            yield (
                f"{where(span)} is superfluous: "
                "a cut between characters needs fewer separators"
            )


def _missing_separators(sequence: ResolvedSequence, final: int) -> Iterator[str]:
    """Yield the first chunk that lacks its separator.

    The chunk in the span `final` needs none, because it may fill the sequence exactly.
    Whether a cut chunk needs one depends on its text, which `check_cuts` reads.
    """
    wants_separator = _wants_separator(sequence) & ~sequence.is_truncated
    is_followed = np.append(sequence.role[1:] == SEPARATOR, False)
    is_final = np.arange(len(sequence.role)) == final
    lacking = _spans_where(wants_separator & ~is_followed & ~is_final)
    if lacking:
        where = sequence.where(lacking[0])
        yield f"{where} does not end in a newline but no separator follows it"


def _order_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield missing or misplaced meta-chunks and groups, or chunks of documents."""
    name = f"sequence {sequence.number}"
    roles = set(np.unique(sequence.role[sequence.is_chunk]).tolist())
    expected = _ROLES_OF_LAYOUT.get(Layout(run.layout), {DOCUMENT})
    if run.task_share:
        expected = {*expected, TASK}
    # Each check relies on those before it, so only the first mistake is told.
    if not roles or not roles <= expected:
        yield (
            f"{name} has roles {sorted(roles)}, "
            f"{run.layout} sequences have {sorted(expected)}"
        )
    elif sequence.method != run.method:
        yield f"{name} has the method {sequence.method}, the recipe has {run.method}"
    elif sequence.layout != run.layout:
        yield f"{name} is {sequence.layout}, those of the run are {run.layout}"
    elif run.layout == Layout.EXTENDED:
        yield from _meta_problems(run, sequence)
    elif run.layout == Layout.SUPPORTED:
        yield from _supported_problems(sequence)
    elif run.layout == Layout.INTERLEAVED:
        yield from _interleaved_problems(sequence)
    else:
        yield from _concatenated_problems(sequence)


def _meta_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield missing, misplaced or cut chunks of the meta-document, and wrong groups."""
    where = sequence.where
    meta_spans = _spans_where(sequence.role == META)
    if not meta_spans:
        if run.is_exact:
            yield f"sequence {sequence.number} has no meta-chunk"
        return

    # The chunks of the meta-document are [first, stop); each has a group of its own,
    # with its negatives.
    first = int(sequence.doc_first[meta_spans[0]])
    stop = int(sequence.doc_stop[meta_spans[0]])
    for ordinal, span in enumerate(meta_spans):
        chunk = first + ordinal
        group = sequence.group[span]
        if sequence.chunk[span] != chunk or group != ordinal:
            expected = chunk_name(chunk)
            yield f"{where(span)} of group {group} is in the place of {expected}"
            return
        if run.is_exact and sequence.is_truncated[span]:
            yield f"{where(span)} is cut, of {sequence.tokens[span]} tokens"

    if run.is_exact:
        negative_spans = _spans_where(sequence.role == NEGATIVE)
        for span in negative_spans[:-1]:
            if sequence.is_truncated[span]:
                yield f"{where(span)} is cut, but is not the last negative"
        if len(meta_spans) != stop - first:
            yield (
                f"sequence {sequence.number} has {len(meta_spans)} "
                f"of the {stop - first} chunks of its meta-document"
            )
    yield from _group_problems(run, sequence, meta_chunks=len(meta_spans))


def _group_problems(
    run: StoredRun,
    sequence: ResolvedSequence,
    *,
    meta_chunks: int,
) -> Iterator[str]:
    """Yield groups out of order, and meta-chunks elsewhere than `compose.position`."""
    # (chunks,) each; separators have the group of the chunk before them.
    # Tasks have the group of the chunk before them, wherever that is in its group.
    is_in_order = sequence.is_chunk & (sequence.role != TASK)
    chunk_spans = np.flatnonzero(is_in_order)
    groups = sequence.group[chunk_spans]
    # Under fit=paper, the sequence may end before the meta-chunk of its last group.
    max_group = meta_chunks - 1 if run.is_exact else meta_chunks
    is_ascending = np.all(np.diff(groups) >= 0)
    if not is_ascending or groups[0] != 0 or groups[-1] > max_group:
        yield (
            f"sequence {sequence.number} has groups {groups[0]} … {groups[-1]} "
            f"out of order, for {meta_chunks} meta-chunks"
        )
        return

    # The first or the last chunk of each group, by index among the chunks.
    changes = np.flatnonzero(np.diff(groups))
    position = run.setting("compose", "position", "head")
    if position == "head":
        edges = np.append(0, changes + 1)
    elif position == "tail":
        edges = np.append(changes, len(groups) - 1)
    else:
        # A random position may be any.
        return
    for span in chunk_spans[edges[:meta_chunks]].tolist():
        if sequence.role[span] != META:
            where = sequence.where(span)
            yield f"{where} is at the {position} of its group but is not a meta-chunk"


def _concatenated_problems(sequence: ResolvedSequence) -> Iterator[str]:
    """Yield misplaced chunks of concatenated documents; each document is a group."""
    where = sequence.where
    spans = _spans_where(sequence.is_chunk)
    first_spans: list[int] = []  # of each document
    previous: int | None = None
    for span in spans:
        if previous is not None and sequence.group[span] == sequence.group[previous]:
            is_first = False
            expected = int(sequence.chunk[previous]) + 1
        else:
            is_first = True
            expected = int(sequence.doc_first[span])
        if sequence.chunk[span] != expected:
            yield f"{where(span)} is in the place of {chunk_name(expected)}"
        if is_first:
            first_spans.append(span)
            yield from _beginning_problems(sequence, previous, span)
        if sequence.is_truncated[span] and span != spans[-1]:
            yield f"{where(span)} is cut before the end of the sequence"
        previous = span

    times_begun = Counter(sequence.doc[first_spans].tolist())
    for document, times in times_begun.items():
        if times > 1:
            name = document_name(document)
            yield f"sequence {sequence.number} holds document {name} twice"


def _beginning_problems(
    sequence: ResolvedSequence,
    previous: int | None,
    span: int,
) -> Iterator[str]:
    """Yield what is wrong where a document begins at `span`.

    `previous` is the last span of the document before it; None for the first document.
    """
    group = int(sequence.group[span])
    if previous is None:
        if group != 0:
            yield f"{sequence.where(span)} has group {group} after none"
        return
    group_before = int(sequence.group[previous])
    if group != group_before + 1:
        yield f"{sequence.where(span)} has group {group} after {group_before}"
    if sequence.chunk[previous] + 1 != sequence.doc_stop[previous]:
        yield f"{sequence.where(previous)} is not the last chunk of its document"


def _supported_problems(sequence: ResolvedSequence) -> Iterator[str]:
    """Yield misplaced contexts and chunks of documents; each document is a group.

    The end of the sequence may cut the last group, even before its document.
    """
    spans = np.flatnonzero(sequence.is_chunk)
    groups = sequence.group[spans]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    if groups[starts].tolist() != list(range(len(starts))):
        yield f"sequence {sequence.number} has groups out of order"
        return
    *complete, last = np.split(spans, starts[1:])
    for own in complete:
        if not np.any(sequence.role[own] == DOCUMENT):
            yield f"{_group_of(sequence, own)} has no document"
        yield from _unit_problems(sequence, own)
        last_chunk = int(own[-1])
        if sequence.chunk[last_chunk] + 1 != sequence.doc_stop[last_chunk]:
            yield f"{sequence.where(last_chunk)} is not the last chunk of its document"
    yield from _unit_problems(sequence, last)
    for span in _spans_where(sequence.is_truncated):
        if span != spans[-1]:
            yield f"{sequence.where(span)} is cut before the end of the sequence"


def _unit_problems(sequence: ResolvedSequence, own: Ints) -> Iterator[str]:
    """Yield what is wrong with a document and the chunks before it, the spans `own`."""
    is_document = sequence.role[own] == DOCUMENT
    before = own[~is_document]
    document = own[is_document]
    if sequence.role[own[0]] != CONTEXT:
        yield f"{_group_of(sequence, own)} does not begin with a context"
    if not len(document):
        return
    if len(before) and before[-1] > document[0]:
        yield f"{sequence.where(int(before[-1]))} is not before its document"
    expected = sequence.doc_first[document[0]] + np.arange(len(document))
    if not np.array_equal(sequence.chunk[document], expected):
        yield f"{_group_of(sequence, own)} is not the chunks of its document in order"
    is_own = sequence.doc[before] == sequence.doc[document[0]]
    for span in before[is_own].tolist():
        yield f"{sequence.where(span)} is a chunk of the document behind it"


def _group_of(sequence: ResolvedSequence, spans: Ints) -> str:
    return f"sequence {sequence.number} group {sequence.group[spans[0]]}"


def _interleaved_problems(sequence: ResolvedSequence) -> Iterator[str]:
    """Yield misplaced chunks of interleaved parts of documents.

    Documents are numbered in the order of their first parts. All parts of a document
    have its number as their group.
    """
    where = sequence.where
    next_chunks: dict[int, int] = {}  # by document: the chunk that must come next
    numbers: dict[int, int] = {}  # by document
    spans = _spans_where(sequence.is_chunk)
    for span in spans:
        document = int(sequence.doc[span])
        chunk = int(sequence.chunk[span])
        first_chunk = int(sequence.doc_first[span])
        expected = next_chunks.get(document, first_chunk)
        if chunk != expected:
            yield f"{where(span)} is in the place of {chunk_name(expected)}"

        group = int(sequence.group[span])
        # A document that was not seen before has the next number.
        number = numbers.setdefault(document, len(numbers))
        if group != number:
            yield f"{where(span)} has group {group}, its document is number {number}"
        if sequence.is_truncated[span] and span != spans[-1]:
            yield f"{where(span)} is cut before the end of the sequence"
        next_chunks[document] = chunk + 1


def _repeat_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield repeated chunks, except negatives that must repeat their meta-chunk."""
    must_differ = sequence.is_chunk
    if run.negatives.origin == "meta-chunk":
        must_differ = must_differ & (sequence.role != NEGATIVE)
    chunks, counts = np.unique(sequence.chunk[must_differ], return_counts=True)
    for chunk in chunks[counts > 1].tolist():
        spans = _spans_where(must_differ & (sequence.chunk == chunk))
        yield f"sequence {sequence.number} holds {chunk_name(chunk)} at spans {spans}"


def _negative_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield negatives that are chunks of the meta-document.

    Where negatives repeat meta-chunks, yield those that are not.
    """
    is_negative = sequence.role == NEGATIVE
    meta_documents = sequence.doc[sequence.role == META]
    is_own = np.isin(sequence.doc, meta_documents)
    if run.negatives.origin == "meta-chunk":
        for span in _spans_where(is_negative & ~is_own):
            yield f"{sequence.where(span)} is not part of the meta-document"
    else:
        for span in _spans_where(is_negative & is_own):
            yield f"{sequence.where(span)} is part of the meta-document"


def _gap_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield meta-chunks with too few tokens of negatives before them."""
    is_negative = sequence.role == NEGATIVE
    meta_spans = np.flatnonzero(sequence.role == META)
    # (spans + 1,) the tokens of negatives before each span, and in all. Their
    # difference from one meta-chunk to the next is the gap between the two.
    negative_tokens = sequence.lengths * is_negative
    tokens_before = np.append(0, np.cumsum(negative_tokens))
    gaps = np.diff(tokens_before[meta_spans])  # (meta-chunks - 1,)
    for index in _spans_where(gaps < run.min_gap_tokens):
        where = sequence.where(int(meta_spans[index + 1]))
        yield (
            f"{where} has {gaps[index]} tokens of negatives "
            "between it and the meta-chunk before, "
            f"compose.min_gap_tokens is {run.min_gap_tokens}"
        )


def _check_across(run: StoredRun) -> list[CheckOutcome]:
    """Check properties across sequences: ids, and uses of documents and chunks.

    Memory: one byte per document, two bytes per chunk, and the ids of the sequences.
    """
    keys = CheckOutcome("sequence ids and keys", "sequences")
    documents = CheckOutcome("documents in one sequence only", "sequences")
    # The draft step declares whether it may use a document in several sequences. Then
    # two of them may consist of the same documents, and have the same id.
    repeats_documents = run.steps["draft"].manifest["config"]["repeats_documents"]
    if repeats_documents:
        reason = f"method {run.method} may use a document in several sequences"
        documents.not_needed = reason

    # By shard: whether a sequence is made of each document, and the uses of each chunk
    # as a negative.
    is_taken: list[Bools] = []
    uses: list[NDArray[np.uint16]] = []
    for shard in range(len(run.text_shards)):
        is_taken.append(np.zeros(len(run.content_hashes(shard)), np.bool_))
        uses.append(np.zeros(len(run.chunks(shard)["start"]), np.uint16))
    ids: set[str] = set()
    for sequence in run.sequences():
        if not repeats_documents:
            problems = _documents_taken_twice(run, sequence, is_taken)
            documents.breach_each(problems, checked=1)
            if sequence.id in ids:
                keys.breach(
                    f"sequence {sequence.number} has the id {sequence.id} "
                    "of an earlier sequence"
                )
            ids.add(sequence.id)
        keys.breach_each(_key_problems(run, sequence), checked=1)

        # A chunk counts once per sequence. The counts stop at _MAX_USES instead of
        # starting again at 0.
        negatives = sequence.chunk[sequence.known(NEGATIVE)]
        for shard, rows in run.by_shard(negatives):
            uses[shard][rows] = np.minimum(uses[shard][rows], _MAX_USES - 1) + 1

    outcomes = [keys, documents]
    outcome_of_uses = _check_uses(run, uses)
    if outcome_of_uses.checked:
        outcomes.append(outcome_of_uses)
    return outcomes


def _documents_taken_twice(
    run: StoredRun,
    sequence: ResolvedSequence,
    is_taken: list[Bools],
) -> Iterator[str]:
    """Yield documents of an earlier sequence, and mark those of this one as taken.

    At most one document of each shard is named. Only the documents that a sequence is
    made of count, not those of its negatives.
    """
    role = META if run.layout == Layout.EXTENDED else DOCUMENT
    for shard, rows in run.by_shard(sequence.doc[sequence.role == role]):
        taken_rows = rows[is_taken[shard][rows]]
        if len(taken_rows):
            name = document_name(taken_rows[0], shard)
            yield (
                f"sequence {sequence.number}: document {name} "
                "is already in an earlier sequence"
            )
        is_taken[shard][rows] = True


def _key_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield a key that is not the hash of its document, or an id without the key."""
    name = f"sequence {sequence.number}"
    key = f"{sequence.key:016x}"
    # The key is the content hash of the meta-document or first document. The sequence
    # may have neither, if the meta-document was cut off.
    key_documents = sequence.doc[sequence.key_spans][:1]
    for shard, rows in run.by_shard(key_documents):
        expected = int(run.content_hashes(shard)[rows[0]])
        if sequence.key != expected:
            yield f"{name} has key {key}, its document is {expected:016x}"
    is_extended = sequence.layout == Layout.EXTENDED
    if is_extended and sequence.id != f"{sequence.method}-{key}":
        yield f"{name} has the id {sequence.id}, but its key is {key}"


def _check_uses(run: StoredRun, uses: list[NDArray[np.uint16]]) -> CheckOutcome:
    """Check that no chunk is a negative in more than `compose.max_uses` sequences.

    `uses` has, for each shard, the uses of its chunks, shape (chunks,).
    """
    outcome = CheckOutcome("uses of a negative", "chunks")
    highest = [int(shard_uses.max(initial=0)) for shard_uses in uses]
    outcome.note = f"most: {max(highest, default=0)}"
    max_uses = run.setting("compose", "max_uses")
    if max_uses is not None:
        outcome.note += f", compose.max_uses={max_uses}"
    for shard, shard_uses in enumerate(uses):
        outcome.checked += int(np.count_nonzero(shard_uses))
        if not max_uses:
            continue
        for row in np.flatnonzero(shard_uses > max_uses).tolist():
            name = chunk_name(row, shard)
            outcome.breach(f"{name} is a negative in {shard_uses[row]} sequences")
    return outcome


class Tokenized:
    """The text of a chunk, addressed by its tokens."""

    def __init__(self, run: StoredRun, chunk: int, text: str) -> None:
        self.text = text
        self._offsets = run.reference.offsets(text, begins=run.begins(chunk))

    def first(self, tokens: int) -> tuple[int, bool]:
        """Return how many whole characters the first tokens have.

        With it, whether the tokens end between two characters: the last of them may be
        one of several tokens that make up a character.
        """
        first_offsets = self._offsets[:tokens]
        rest_offsets = self._offsets[tokens:]
        first_stop = max((stop for _, stop in first_offsets), default=0)
        rest_start = min(start for start, _ in rest_offsets)
        # Tokens that share a character all have its offsets, so they overlap.
        is_between = first_stop <= rest_start
        return min(first_stop, rest_start), is_between

    def visible(self, tokens: int) -> str:
        """Return the text of the first tokens: at least one character."""
        chars, _ = self.first(tokens)
        return self.text[: max(1, chars)]


def texts_of_cuts(
    run: StoredRun, block: Iterable[ResolvedSequence]
) -> dict[int, Tokenized]:
    """Return the chunks that a block of sequences cuts, by chunk id."""
    cut_chunks = [np.empty(0, np.int64)]
    cut_chunks += [sequence.chunk[sequence.is_truncated] for sequence in block]
    texts = run.texts_of(np.concatenate(cut_chunks))
    return {chunk: Tokenized(run, chunk, text) for chunk, text in texts.items()}


def check_cuts(run: StoredRun) -> list[CheckOutcome]:
    """Check where chunks are cut, by their text."""
    outcome = CheckOutcome("cuts between characters", "cuts")
    for block in run.blocks():
        texts = texts_of_cuts(run, block)
        for sequence in block:
            outcome.breach_each(
                _cut_problems(run, sequence, texts),
                checked=int(sequence.is_truncated.sum()),
            )
    return [outcome]


def _cut_problems(
    run: StoredRun,
    sequence: ResolvedSequence,
    texts: dict[int, Tokenized],
) -> Iterator[str]:
    """Yield what is wrong with the cut chunks of a sequence, by their texts."""
    has_text = np.isin(sequence.chunk, list(texts))
    for span in _spans_where(sequence.is_truncated & has_text):
        where = sequence.where(span)
        tokenized = texts[int(sequence.chunk[span])]
        for predicate in _predicates_of_cut(run, sequence, span, tokenized):
            yield f"{where} {predicate}"


def _predicates_of_cut(
    run: StoredRun,
    sequence: ResolvedSequence,
    span: int,
    tokenized: Tokenized,
) -> Iterator[str]:
    """Yield what is wrong with one cut, as predicates of its span.

    It leaves no whole character; it ends in a newline but a separator follows; it ends
    within a line but none follows; or it splits a character although a slightly shorter
    cut would not.
    """
    separator_tokens = len(run.special_ids[SEPARATOR])
    next_role = sequence.role[span + 1] if span + 1 < len(sequence.role) else None
    is_before_separator = next_role == SEPARATOR
    is_before_chunk = next_role in (META, NEGATIVE, DOCUMENT, TASK, CONTEXT)
    # Under fit=exact, the cut negative fills what is left of the token budget.
    fills_budget = run.is_exact and sequence.role[span] == NEGATIVE

    tokens = int(sequence.lengths[span])
    chars, is_between = tokenized.first(tokens)
    ends_in_newline = tokenized.text[:chars].endswith("\n")
    ends_line = ends_in_newline and is_between
    if fills_budget and not chars:
        yield "holds a part of a character only"
    if fills_budget and is_before_separator and ends_in_newline:
        yield "ends in a newline but a separator follows it"
    if separator_tokens and is_before_chunk and not ends_line:
        yield "is cut within a line, but no separator follows it"

    if separator_tokens and not is_between:
        # A shorter negative must leave space for a separator, if it has none yet.
        max_tokens = tokens - 1
        if fills_budget and not is_before_separator:
            max_tokens = tokens - separator_tokens
        shorter = _cut_between_characters(
            tokenized, max_tokens=max_tokens, may_end_line=not fills_budget
        )
        if shorter is not None:
            yield f"ends within a character; {tokens - shorter} tokens fewer would not"


def _cut_between_characters(
    tokenized: Tokenized,
    *,
    max_tokens: int,
    may_end_line: bool,
) -> int | None:
    """Return the tokens of the longest cut between characters.

    Cuts of `max_tokens` tokens and a few less are tried; None if none of them will do.
    """
    min_tokens = max(1, max_tokens - _MAX_TRIMMED + 1)
    for tokens in range(max_tokens, min_tokens - 1, -1):
        chars, is_between = tokenized.first(tokens)
        ends_line = tokenized.text[:chars].endswith("\n")
        if is_between and chars and (may_end_line or not ends_line):
            return tokens
    return None
