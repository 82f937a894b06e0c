"""Sequences: check that spans cover [0, T), are in order and complete, that no chunk repeats, and where chunks are cut.

In:  SEQUENCES, with columns of CHUNKS and TOKENS for each chunk. Out: one outcome per check. Each role has its own rules, so
that sequences of meta-chunks and negatives and those of whole documents are both checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

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
    Layout,
)
from nextlong.verify.outcome import CheckOutcome, chunk_name, document_name
from nextlong.verify.run_files import UNKNOWN, ResolvedSequence, StoredRun

_MOST_TRIMMED = (
    4  # maximum number of tokens that a cut gives up to fall between two characters
)


def check_sequences(run: StoredRun) -> list[CheckOutcome]:
    spans = CheckOutcome("spans tile the sequence", "spans")
    per_sequence = [
        (CheckOutcome("separators, bos, eos", "sequences"), _separator_problems),
        (CheckOutcome("chunks complete and in order", "sequences"), _order_problems),
        (CheckOutcome("no chunk twice", "sequences"), _repeat_problems),
    ]
    negatives = CheckOutcome("negatives of other documents", "negatives")
    between = CheckOutcome("negatives between meta-chunks", "gaps")
    wants_own = (
        run.negatives.origin == "meta-chunk"
    )  # whether negatives belong to the meta-document
    for sequence in run.sequences():
        spans.breach_each(_span_problems(run, sequence), checked=len(sequence.chunk))
        for outcome, problems in per_sequence:
            outcome.breach_each(problems(run, sequence), checked=1)
        is_negative, metas = (
            sequence.role == NEGATIVE,
            np.flatnonzero(sequence.role == META),
        )
        negatives.checked += int(is_negative.sum())
        is_own = np.isin(sequence.doc, sequence.doc[metas])
        for span in np.flatnonzero(is_negative & (is_own != wants_own)).tolist():
            negatives.breach(
                f"{sequence.where(span)} is {'not ' if wants_own else ''}part of the meta-document"
            )
        # (spans + 1,) tokens of negatives before each span; their differences at the meta-chunks are the gaps.
        tokens = np.append(0, np.cumsum(sequence.lengths * is_negative))
        gaps = np.diff(tokens[metas]).tolist() if run.is_exact else []
        between.checked += len(gaps)
        for span, gap in zip(metas[1:].tolist(), gaps, strict=False):
            if gap < run.min_gap_tokens:
                few = f"has {gap} tokens of negatives between it and the meta-chunk before"
                between.breach(
                    f"{sequence.where(span)} {few}, compose.min_gap_tokens is {run.min_gap_tokens}"
                )
    optional = [
        *([negatives] if negatives.checked else []),
        *([between] if run.is_exact else []),
    ]
    return [
        spans,
        *(outcome for outcome, _ in per_sequence),
        *optional,
        *_check_across(run),
    ]


def _span_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield spans that do not cover exactly [0, T), or do not match their chunk."""
    target = int(run.setting("compose", "target_tokens", 0)) + run.extra_tokens
    if not len(sequence.start) or sequence.end[-1] != target:
        reached = int(sequence.end[-1]) if len(sequence.end) else 0
        yield f"sequence {sequence.number} has {reached:,} tokens, compose.target_tokens is {target:,}"
    before = np.concatenate(
        [[0], sequence.end[:-1]]
    )  # (spans,) expected start of each span
    lengths, is_chunk = sequence.lengths, sequence.is_chunk
    for is_wrong, problem in (
        (
            (sequence.start != before) | (lengths < 1),
            "should begin at {before} and hold at least one token",
        ),
        (is_chunk & (sequence.doc == UNKNOWN), "names a chunk that does not exist"),
        (
            ~is_chunk & (sequence.chunk != NO_CHUNK),
            "names a chunk but its role has none",
        ),
        (
            is_chunk & (lengths > sequence.tokens),
            "is longer than its chunk, which has {tokens} tokens",
        ),
    ):
        for span in np.flatnonzero(is_wrong).tolist():
            yield f"{sequence.where(span)} {problem.format(before=before[span], tokens=sequence.tokens[span])}"
    if len(truncated := np.flatnonzero(sequence.is_truncated)) > 1:
        yield f"{sequence.where(int(truncated[0]))} and {len(truncated) - 1} more are cut; at most one chunk may be"


def _separator_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield missing, superfluous or overlong separators, and misplaced bos and eos tokens."""
    special, lengths = run.special_ids, sequence.lengths
    last = len(lengths) - 1
    for role, place in ((BOS, 0), (EOS, last)):
        spans = np.flatnonzero(sequence.role == role).tolist()
        if spans != ([place] if special[role] else []) or any(
            lengths[span] != len(special[role]) for span in spans
        ):
            yield f"sequence {sequence.number} has {ROLES[role]} at spans {spans}, the tokenizer's is {special[role]}"
    end = last - bool(special[EOS])  # the span that is cut if the sequence is full
    # (spans,) whether an uncut chunk needs a separator: it does not end in a newline, and the next chunk of the sequence, apart
    # from separators, does not continue its document.
    wants_separator = sequence.is_chunk & sequence.open_ended
    chunks = np.flatnonzero(sequence.role == DOCUMENT)
    current, following = chunks[:-1], chunks[1:]
    is_same_document = sequence.doc[current] == sequence.doc[following]
    continues = is_same_document & (
        sequence.chunk[current] + 1 == sequence.chunk[following]
    )
    wants_separator[current] &= ~(
        continues & (sequence.char_end[current] == sequence.char_start[following])
    )
    is_separator, is_truncated = sequence.role == SEPARATOR, sequence.is_truncated
    for span in np.flatnonzero(is_separator).tolist():
        owner = (
            int(np.flatnonzero(~is_separator[:span])[-1])
            if (~is_separator[:span]).any()
            else None
        )
        last_separator = span == last or not is_separator[span + 1]
        is_filling = (
            owner is not None and is_truncated[owner]
        )  # separators fill up a cut between characters
        follows_separator = span > 0 and is_separator[span - 1]
        partial = (
            last_separator
            and lengths[span] < len(special[SEPARATOR])
            and (span == end or (is_filling and follows_separator))
        )
        if lengths[span] != len(special[SEPARATOR]) and not partial:
            yield f"{sequence.where(span)} should have {len(special[SEPARATOR])} tokens"
        if owner is None or not (
            is_filling or (wants_separator[owner] and span == owner + 1)
        ):
            yield f"{sequence.where(span)} does not follow a chunk that needs one"
        elif (
            last_separator
            and sequence.end[span] - sequence.end[owner]
            > len(special[SEPARATOR]) + _MOST_TRIMMED
        ):
            yield f"{sequence.where(span)} is superfluous: a cut between characters needs fewer separators"
    if special[SEPARATOR]:
        followed = np.append(sequence.role[1:] == SEPARATOR, False)
        missing = np.flatnonzero(wants_separator & ~is_truncated & ~followed)
        # The chunk at the end of the sequence may fill it exactly. Whether a cut chunk needs
        # a separator depends on its text, which `check_cuts` reads.
        missing = missing[missing != end]
        if len(missing):
            yield f"{sequence.where(int(missing[0]))} does not end in a newline but no separator follows it"


def _order_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield missing or misplaced meta-chunks and groups, or chunks of documents."""
    roles = set(np.unique(sequence.role[sequence.is_chunk]).tolist())
    expected = {META, NEGATIVE} if run.layout == Layout.EXTENDED else {DOCUMENT}
    if not roles or not roles <= expected:
        yield f"sequence {sequence.number} has roles {sorted(roles)}, {run.layout} sequences have {sorted(expected)}"
    elif sequence.method != run.method:
        yield f"sequence {sequence.number} has the method {sequence.method}, the recipe has {run.method}"
    elif sequence.layout != run.layout:
        yield f"sequence {sequence.number} is {sequence.layout}, those of the run are {run.layout}"
    elif run.layout == Layout.EXTENDED:
        yield from _meta_problems(run, sequence)
    else:
        yield from _document_problems(sequence)


def _meta_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    is_exact, is_truncated = run.is_exact, sequence.is_truncated
    meta_spans, negatives = (
        np.flatnonzero(sequence.role == role) for role in (META, NEGATIVE)
    )
    if not len(meta_spans):
        if is_exact:
            yield f"sequence {sequence.number} has no meta-chunk"
        return
    first, stop = (
        int(sequence.doc_first[meta_spans[0]]),
        int(sequence.doc_stop[meta_spans[0]]),
    )
    for place, span in enumerate(meta_spans.tolist()):
        if sequence.chunk[span] != first + place or sequence.group[span] != place:
            yield f"{sequence.where(span)} of group {sequence.group[span]} is in the place of {chunk_name(first + place)}"
            return
        if is_exact and is_truncated[span]:
            yield f"{sequence.where(span)} is cut, of {sequence.tokens[span]} tokens"
    for span in (
        negatives[:-1][is_truncated[negatives[:-1]]].tolist() if is_exact else ()
    ):
        yield f"{sequence.where(span)} is cut, but is not the last negative"
    if is_exact and len(meta_spans) != stop - first:
        yield f"sequence {sequence.number} has {len(meta_spans)} of the {stop - first} chunks of its meta-document"
    chunk_spans = np.flatnonzero(sequence.is_chunk)
    groups = sequence.group[chunk_spans]
    if (
        np.any(np.diff(groups) < 0)
        or groups[0] != 0
        or groups[-1] >= len(meta_spans) + (not is_exact)
    ):
        yield f"sequence {sequence.number} has groups {groups[0]} … {groups[-1]} out of order, for {len(meta_spans)} meta-chunks"
        return
    position = run.setting("compose", "position", "head")
    if position in ("head", "tail"):
        # The first or the last chunk of each group, as places among the chunks of the sequence.
        edges = np.flatnonzero(np.diff(groups))
        places = (
            np.append(0, edges + 1)
            if position == "head"
            else np.append(edges, len(groups) - 1)
        )
        for span in chunk_spans[places[: len(meta_spans)]].tolist():
            if sequence.role[span] != META:
                yield f"{sequence.where(span)} is at the {position} of its group but is not a meta-chunk"


def _document_problems(sequence: ResolvedSequence) -> Iterator[str]:
    """Yield misplaced chunks of concatenated documents, or of interleaved parts of documents."""
    spans, is_truncated = (
        np.flatnonzero(sequence.is_chunk).tolist(),
        sequence.is_truncated,
    )
    is_interleaved = sequence.layout == Layout.INTERLEAVED
    # By document: the chunk with which its next part must begin, its number in the sequence, and how many groups begin with it.
    reached, group_of, begun = dict[int, int](), dict[int, int](), Counter[int]()
    previous = group_before = -1
    for at, span in enumerate(spans):
        doc, chunk, group = (
            int(sequence.doc[span]),
            int(sequence.chunk[span]),
            int(sequence.group[span]),
        )
        begins = at == 0 or group != group_before
        if is_interleaved:
            expected = reached.get(doc, int(sequence.doc_first[span]))
        else:
            expected = int(
                sequence.doc_first[span] if begins else sequence.chunk[previous] + 1
            )
        if chunk != expected:
            yield f"{sequence.where(span)} is in the place of {chunk_name(expected)}"
        if is_interleaved and group != group_of.setdefault(doc, len(group_of)):
            yield f"{sequence.where(span)} has group {group}, its document is number {group_of[doc]}"
        if begins and not is_interleaved:
            begun[doc] += 1
            if group != group_before + 1:
                yield f"{sequence.where(span)} has group {group} after {group_before if at else 'none'}"
            if at and sequence.chunk[previous] + 1 != sequence.doc_stop[previous]:
                yield f"{sequence.where(previous)} is not the last chunk of its document"
        if is_truncated[span] and at != len(spans) - 1:
            yield f"{sequence.where(span)} is cut before the end of the sequence"
        reached[doc], previous, group_before = chunk + 1, span, group
    for doc in (doc for doc, times in begun.items() if times > 1):
        yield f"sequence {sequence.number} holds document {document_name(doc)} twice"


def _repeat_problems(run: StoredRun, sequence: ResolvedSequence) -> Iterator[str]:
    """Yield repeated chunks; only negatives that repeat their meta-chunk are allowed."""
    checked = sequence.is_chunk & (
        (sequence.role != NEGATIVE) | (run.negatives.origin != "meta-chunk")
    )
    chunks, counts = np.unique(sequence.chunk[checked], return_counts=True)
    for chunk in chunks[counts > 1].tolist():
        spans = np.flatnonzero(checked & (sequence.chunk == chunk)).tolist()
        yield f"sequence {sequence.number} holds {chunk_name(chunk)} at spans {spans}"


def _check_across(run: StoredRun) -> list[CheckOutcome]:
    """Check properties across sequences. Memory: one byte per document, two bytes per chunk, and the ids of the sequences."""
    keys = CheckOutcome("sequence ids and keys", "sequences")
    documents = CheckOutcome("documents in one sequence only", "sequences")
    uses = CheckOutcome("uses of a negative", "chunks")
    # By shard: uses of each chunk as a negative, and whether a sequence is made of each document.
    used = [
        np.zeros(len(run.chunks(shard)["start"]), np.uint16)
        for shard in range(len(run.shards))
    ]
    in_use = [
        np.zeros(len(run.content_hashes(shard)), np.bool_)
        for shard in range(len(run.shards))
    ]
    ids: set[str] = set()
    made_of = META if run.layout == Layout.EXTENDED else DOCUMENT
    repeats_documents = run.steps["draft"].manifest["config"][
        "repeats_documents"
    ]  # as the step that drafted promised
    if repeats_documents:
        documents.not_needed = (
            f"method {run.method} may use a document in several sequences"
        )
    for sequence in run.sequences():
        where = f"sequence {sequence.number}"
        documents.checked += not repeats_documents
        for shard, rows in (
            ()
            if repeats_documents
            else run.by_shard(sequence.doc[sequence.role == made_of])
        ):
            for row in rows[in_use[shard][rows]][:1].tolist():
                documents.breach(
                    f"{where}: document {document_name(row, shard)} is already in an earlier sequence"
                )
            in_use[shard][rows] = True
        for shard, rows in run.by_shard(sequence.chunk[sequence.known(NEGATIVE)]):
            used[shard][rows] += used[shard][rows] < np.iinfo(np.uint16).max
        keys.checked += 1
        if sequence.id in ids and not repeats_documents:
            keys.breach(f"{where} has the id {sequence.id} of an earlier sequence")
        ids.add(sequence.id)
        # The key is the content hash of the meta-document or first document, which may be cut off.
        for shard, rows in run.by_shard(sequence.doc[sequence.key_spans][:1]):
            expected = int(run.content_hashes(shard)[rows[0]])
            if sequence.key != expected:
                keys.breach(
                    f"{where} has key {sequence.key:016x}, its document is {expected:016x}"
                )
        if (
            sequence.layout == Layout.EXTENDED
            and sequence.id != f"{sequence.method}-{sequence.key:016x}"
        ):
            keys.breach(
                f"{where} has the id {sequence.id}, but its key is {sequence.key:016x}"
            )
    limit = run.setting("compose", "max_uses")
    most = max((int(of_shard.max(initial=0)) for of_shard in used), default=0)
    uses.note = f"most: {most}" + (
        "" if limit is None else f", compose.max_uses={limit}"
    )
    for shard, of_shard in enumerate(used):
        uses.checked += int(np.count_nonzero(of_shard))
        for row in np.flatnonzero(of_shard > (limit or np.inf)).tolist():
            uses.breach(
                f"{chunk_name(row, shard)} is a negative in {of_shard[row]} sequences"
            )
    return [keys, documents, uses] if uses.checked else [keys, documents]


class Tokenized:
    """The text of a chunk, addressed by its tokens."""

    def __init__(self, run: StoredRun, chunk: int, text: str) -> None:
        self.text = text
        self._offsets = run.reference.offsets(text, begins=run.begins(chunk))

    def first(self, tokens: int) -> tuple[int, bool]:
        """Return the number of characters that the first tokens cover, and whether the next token begins another character."""
        stop = max((end for _, end in self._offsets[:tokens]), default=0)
        start = min(start for start, _ in self._offsets[tokens:])
        return min(stop, start), stop <= start

    def visible(self, tokens: int) -> str:
        """Return the text of a span with the first tokens: at least one character."""
        return self.text[: max(1, self.first(tokens)[0])]


def texts_of_cuts(
    run: StoredRun, block: Iterable[ResolvedSequence]
) -> dict[int, Tokenized]:
    """Return the truncated chunks of a block of sequences."""
    cut = np.concatenate(
        [
            np.empty(0, np.int64),
            *(sequence.chunk[sequence.is_truncated] for sequence in block),
        ]
    )
    return {
        chunk: Tokenized(run, chunk, text) for chunk, text in run.texts_of(cut).items()
    }


def check_cuts(run: StoredRun) -> list[CheckOutcome]:
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
    run: StoredRun, sequence: ResolvedSequence, texts: dict[int, Tokenized]
) -> Iterator[str]:
    """Yield cuts within a character that could be avoided, cuts without a character, separators after a newline, and cuts that
    join the next chunk within a line.
    """
    separator_tokens = len(run.special_ids[SEPARATOR])
    for span in np.flatnonzero(
        sequence.is_truncated & np.isin(sequence.chunk, [*texts])
    ).tolist():
        tokenized, tokens = (
            texts[int(sequence.chunk[span])],
            int(sequence.lengths[span]),
        )
        chars, is_between = tokenized.first(tokens)
        fills_budget = run.is_exact and sequence.role[span] == NEGATIVE
        if fills_budget and not chars:
            yield f"{sequence.where(span)} holds a part of a character only"
        following = sequence.role[span + 1 : span + 2].tolist()
        has_separator = following == [SEPARATOR]
        is_before_chunk = bool(following) and following[0] in (META, NEGATIVE, DOCUMENT)
        ends_in_newline = tokenized.text[:chars].endswith("\n")
        if fills_budget and has_separator and ends_in_newline:
            yield f"{sequence.where(span)} ends in a newline but a separator follows it"
        ends_line = ends_in_newline and is_between
        if separator_tokens and is_before_chunk and not ends_line:
            yield f"{sequence.where(span)} is cut within a line, but no separator follows it"
        if is_between or not separator_tokens:
            continue
        # A negative without a separator also gives up the space for one.
        most = tokens - (separator_tokens if fills_budget and not has_separator else 1)
        for fewer in range(most, max(0, most - _MOST_TRIMMED), -1):
            chars, is_between = tokenized.first(fewer)
            if (
                is_between
                and chars
                and not (fills_budget and tokenized.text[:chars].endswith("\n"))
            ):
                yield f"{sequence.where(span)} ends within a character; {tokens - fewer} tokens fewer would not"
                break
