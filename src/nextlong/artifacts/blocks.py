"""Blocks: SEQUENCES turned into rows with everything looked up that they refer to.

In:  record batches of SEQUENCES, and the files they refer to. Out: `Resolved` blocks, to
join, slice and pack: everything is looked up for a block at a time and each shard is
opened once, because opening a file costs more than reading the few values needed from it.

`cuts_of` returns how many characters the first tokens of a chunk cover. A character that
a cut leaves incomplete is not covered, unless it is the only one. Ids of a byte-level
tokenizer represent bytes of the text; the covered characters are those that begin in the
kept bytes, except the last one if the next token continues it. A token may lose bytes (if
it strips blanks) but never adds any, so if as many characters begin in all ids as the
chunk has, the first byte of each character is present. Any other chunk is tokenized again
for its offsets, which are correct even if a normalizer changed the text. Only then is the
tokenizer loaded: at 128K tokens, loading it in each worker took a third of the time of an
Arrow export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.continuation import offsets_within
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.artifacts.sequence_files import SequenceFiles, read_tokenizer
from nextlong.schemas import Ints

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Cuts(NamedTuple):
    """What the first 0, 1, … n tokens of a chunk of n tokens cover, shape (n + 1,) each."""

    chars: Ints  # whole characters
    between: NDArray[np.bool_]  # whether the cut falls between two characters


def cuts_of(
    ids: NDArray[np.int32],
    *,
    chars: int,
    begins: bool,
    token_chars: NDArray[Any],
    text_of: Callable[[], str],
    tokenizer: Callable[[], Tokenizer],
) -> Cuts:
    """Return the possible cuts of a chunk with the given ids and `chars` characters; `begins`: whether it begins its document.

    `text_of` and `tokenizer` are called only for chunks that `token_chars` (TOKEN_CHARS) does not suffice for.
    """
    per_token = token_chars[ids]
    begun = np.concatenate([[0], np.cumsum(per_token["begun"], dtype=np.int64)])
    if begun[-1] == chars and per_token["readable"].all():
        continues = np.append(per_token["goes_on"], False)
        return Cuts(begun - continues, ~continues)
    offsets = offsets_within(tokenizer(), text_of(), begins=begins)
    stops, starts = np.append(0, offsets[:, 1]), np.append(offsets[:, 0], chars)
    # A character of several tokens has the same offsets in each: if it continues behind the cut, it is not covered.
    return Cuts(np.minimum(stops, starts), stops <= starts)


# Small, so that a caller that needs one sequence does not wait; each block is twice as long, up to 16 MB of ids.
_FIRST_BLOCK_TOKENS, _BLOCK_TOKENS = 1 << 17, 1 << 22


# What to look up besides token ids: also the source of each sequence, the location of each span, or the text of each span.
Wanted = Literal["ids", "domains", "spans", "texts"]


def resolve(
    run: SequenceFiles, part: int, *, first: int = 0, take: int | None = None
) -> Iterator[Resolved]:
    """Yield sequences [first, take) of SEQUENCES file `part` in blocks, small ones first; without `take`, up to the end."""
    with pa.ipc.open_file(pa.memory_map(str(run.sequences[part]))) as reader:
        last = reader.num_record_batches if take is None else take
        block: list[pa.RecordBatch] = []
        held, limit = 0, _FIRST_BLOCK_TOKENS
        for number in range(first, last):
            block.append(reader.get_batch(number))
            held += block[-1].column("token_end").values[-1].as_py()
            if held >= limit or number == last - 1:
                yield resolve_table(pa.Table.from_batches(block), run)
                block, held, limit = [], 0, min(2 * limit, _BLOCK_TOKENS)


def resolve_table(
    table: pa.Table, run: SequenceFiles, *, wanted: Wanted = "spans"
) -> Resolved:
    """Look up the sequences of a SEQUENCES table; columns that are not `wanted` are -1 or empty."""
    lists = {name: table.column(name).combine_chunks() for name in schemas.SPAN_COLUMNS}
    span_offsets = lists["role"].offsets.to_numpy().astype(np.int64)
    chunk_ids, roles, groups, starts, ends, scores = (
        lists[name].values.to_numpy()
        for name in ("chunk_id", "role", "group", "token_start", "token_end", "score")
    )
    token_offsets = np.concatenate(
        [[0], np.cumsum(ends[span_offsets[1:] - 1].astype(np.int64))]
    )
    at = starts + np.repeat(
        token_offsets[:-1], np.diff(span_offsets)
    )  # (P,) where each span begins in input_ids
    is_chunk = chunk_ids != schemas.NO_CHUNK
    input_ids = np.empty(token_offsets[-1], np.int32)
    lengths = (ends - starts).astype(np.int64)
    ids, kept = chunk_ids[is_chunk], lengths[is_chunk]
    chunk_starts, chunk_stops = run.tokens.bounds(ids)
    run.tokens.copy_into(
        input_ids, chunk_ids=ids, starts=chunk_starts, at=at[is_chunk], lengths=kept
    )
    run.special.copy_into(input_ids, roles=roles, starts=at, lengths=lengths)
    doc_ids, char_starts, char_ends = (
        np.full(len(chunk_ids), -1, np.int64) for _ in range(3)
    )
    sources, source_ids, metadata = (
        np.full(len(chunk_ids), blank, object) for blank in ("", "", None)
    )
    domains = [""] * table.num_rows
    if wanted == "domains":
        domains = domains_of(chunk_ids, roles, span_offsets, run.corpus)
    elif wanted != "ids":
        doc_rows, start, end = corpus_files.chunk_columns(
            ids, run.corpus.chunks, ("doc_row", "start", "end")
        )
        docs = schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows
        columns = corpus_files.document_columns(
            docs, run.corpus.documents, ("source", "source_id", "metadata")
        )
        cut = np.flatnonzero(kept < chunk_stops - chunk_starts)
        all_ids, offsets = run.tokens.ids(
            ids[cut], starts=chunk_starts[cut], stops=chunk_stops[cut]
        )
        token_chars = (
            np.load(run.token_chars, mmap_mode="r") if len(cut) else np.empty(0)
        )
        for number, chunk in enumerate(cut.tolist()):
            cuts = cuts_of(
                all_ids[offsets[number] : offsets[number + 1]],
                chars=int(end[chunk] - start[chunk]),
                begins=bool(start[chunk] == 0),
                token_chars=token_chars,
                text_of=partial(run.corpus.text, int(ids[chunk])),
                tokenizer=partial(read_tokenizer, run.tokenizer),
            )
            # A cut within the first character covers that character.
            end[chunk] = start[chunk] + max(1, int(cuts.chars[kept[chunk]]))
        doc_ids[is_chunk], char_starts[is_chunk], char_ends[is_chunk] = docs, start, end
        sources[is_chunk], source_ids[is_chunk], metadata[is_chunk] = columns
        domains = sources[_leading_spans(chunk_ids, roles, span_offsets)].tolist()
    sequence_ids, methods = (
        table.column(name).to_pylist() for name in ("sequence_id", "method")
    )
    documents = np.arange(table.num_rows + 1), np.diff(token_offsets).astype(np.int32)
    places = doc_ids, source_ids, metadata, char_starts, char_ends
    spans: tuple[Any, ...] = chunk_ids, *places, roles, groups, starts, ends, scores
    block = Resolved(
        sequence_ids,
        methods,
        domains,
        token_offsets,
        input_ids,
        *documents,
        span_offsets,
        *spans,
    )
    if wanted != "texts":
        return block
    return replace(block, texts=np.array(span_texts(block, run), object))


def domains_of(
    chunk_ids: Ints, roles: NDArray[np.int8], span_offsets: Ints, corpus: CorpusFiles
) -> list[str]:
    """Return the source of each sequence's meta-document or first document; arguments as in `Resolved`."""
    docs = corpus_files.documents_of(
        chunk_ids[_leading_spans(chunk_ids, roles, span_offsets)], corpus.chunks
    )
    return list(corpus_files.document_columns(docs, corpus.documents, ("source",))[0])


def _leading_spans(
    chunk_ids: Ints, roles: NDArray[np.int8], span_offsets: Ints
) -> Ints:
    firsts = span_offsets[:-1]
    # (n,) the first meta-chunk or document of each sequence, or its first chunk.
    chunks = np.flatnonzero(chunk_ids != schemas.NO_CHUNK)
    leading = np.append(
        np.flatnonzero(np.isin(roles, (schemas.META, schemas.DOCUMENT))), len(roles)
    )
    nearest = leading[np.searchsorted(leading, firsts)]
    # Of a sequence that was cut before its first meta-chunk, the nearest one belongs to a later sequence.
    return np.where(
        nearest < span_offsets[1:], nearest, chunks[np.searchsorted(chunks, firsts)]
    )


@dataclass(frozen=True)
class Resolved:
    """A block of n looked-up rows with S tokens, P spans and D synthesized documents in total; offsets have shape (n + 1,).

    A row is one sequence, which is one synthesized document, or several packed sequences (`packed`).
    """

    sequence_ids: list[str]
    methods: list[str]
    domains: list[str]  # the source of each sequence's meta-document or first document
    token_offsets: Ints
    input_ids: NDArray[np.int32]  # (S,)
    document_offsets: Ints
    document_lengths: NDArray[np.int32]  # (D,) in tokens
    span_offsets: Ints
    chunk_ids: Ints  # (P,), as all fields below; -1 for separators and special tokens
    doc_ids: Ints
    source_ids: NDArray[np.object_]
    metadata: NDArray[
        np.object_
    ]  # of the document, as JSON; None if its source has no metadata columns
    char_starts: Ints
    char_ends: Ints
    roles: NDArray[np.int8]
    groups: NDArray[np.int32]
    token_starts: NDArray[np.int32]  # within its row
    token_ends: NDArray[np.int32]
    scores: NDArray[np.float32]
    texts: NDArray[np.object_] = field(
        default_factory=lambda: np.empty(0, object)
    )  # empty where they are not wanted

    def __len__(self) -> int:
        return len(self.sequence_ids)


def joined(blocks: Sequence[Resolved]) -> Resolved:
    columns: dict[str, Any] = {}
    for column in fields(Resolved):
        offsets_of = [getattr(block, column.name) for block in blocks]
        if column.name.endswith("_offsets"):
            firsts = np.cumsum([0, *(offsets[-1] for offsets in offsets_of)])
            moved = [
                offsets[1:] + first
                for offsets, first in zip(offsets_of, firsts, strict=False)
            ]
            columns[column.name] = np.concatenate([offsets_of[0][:1], *moved])
        else:
            is_list = isinstance(offsets_of[0], list)
            columns[column.name] = (
                list(chain(*offsets_of)) if is_list else np.concatenate(offsets_of)
            )
    return Resolved(**columns)


def sliced(block: Resolved, first: int, last: int) -> Resolved:
    """Return rows [first, last) of a block as views."""
    within = {}
    for name in ("token", "document", "span"):
        offsets = getattr(block, f"{name}_offsets")[first : last + 1]
        within[name] = slice(*offsets[[0, -1]].tolist())
        within[f"{name}_offsets"] = offsets - offsets[0]
    columns: dict[str, Any] = {}
    for column in fields(Resolved):
        values = getattr(block, column.name)
        if column.name in within:
            columns[column.name] = within[column.name]
        elif isinstance(values, list):
            columns[column.name] = values[first:last]
        else:
            part = {"input_ids": "token", "document_lengths": "document"}.get(
                column.name, "span"
            )
            columns[column.name] = values[within[part]]
    return Resolved(**columns)


def packed(block: Resolved, row_offsets: Ints) -> Resolved:
    """Pack the rows of a block into r rows: rows row_offsets[i] to row_offsets[i + 1] become row i; `row_offsets` is (r + 1,).

    Sequence ids are joined by a blank; distinct methods and domains by a plus sign.
    """
    groups = [slice(first, last) for first, last in pairwise(row_offsets.tolist())]
    token_offsets = block.token_offsets[row_offsets]
    moved = block.token_offsets[:-1] - np.repeat(
        token_offsets[:-1], np.diff(row_offsets)
    )
    moved_spans = np.repeat(moved, np.diff(block.span_offsets)).astype(np.int32)
    return replace(
        block,
        sequence_ids=[" ".join(block.sequence_ids[group]) for group in groups],
        methods=[joined_names(block.methods[group]) for group in groups],
        domains=[joined_names(block.domains[group]) for group in groups],
        token_offsets=token_offsets,
        document_offsets=block.document_offsets[row_offsets],
        span_offsets=block.span_offsets[row_offsets],
        token_starts=block.token_starts + moved_spans,
        token_ends=block.token_ends + moved_spans,
    )


def document_starts(
    lengths: NDArray[Any],
    *,
    roles: NDArray[Any],
    groups: NDArray[Any],
    starts: NDArray[Any],
) -> Ints:
    """Return the first token of each original document in concatenated sequences; an extended sequence is one document.

    `lengths` are those of the sequences; role, group and start of each span have shape (P,). A separator between two documents
    belongs to the first of them; a sequence may begin with a special token.
    """
    sequence_starts = np.cumsum(lengths, dtype=np.int64) - lengths
    whole = roles == schemas.DOCUMENT
    sequences = np.searchsorted(sequence_starts, starts[whole], side="right")
    return np.union1d(
        sequence_starts,
        starts[whole][1:][(np.diff(groups[whole]) != 0) & (np.diff(sequences) == 0)],
    )


def of_documents(block: Resolved) -> Resolved:
    """Return the rows with the original documents of concatenated sequences as their documents; extended ones are unchanged."""
    starts = (
        np.repeat(block.token_offsets[:-1], np.diff(block.span_offsets))
        + block.token_starts
    )
    starts = document_starts(
        block.document_lengths, roles=block.roles, groups=block.groups, starts=starts
    )
    return replace(
        block,
        document_offsets=np.searchsorted(starts, block.token_offsets),
        document_lengths=np.diff(starts, append=block.token_offsets[-1]).astype(
            np.int32
        ),
    )


def joined_names(names: Sequence[str]) -> str:
    """Join the distinct names of several sequences, for the row that holds them."""
    return "+".join(dict.fromkeys(names))


def span_texts(
    block: Resolved, run: SequenceFiles, places: slice | Ints = slice(None)
) -> list[str]:
    """Return the text of the spans at `places`: of a chunk up to its cut, of a separator, or of a special token."""
    chunk_ids = block.chunk_ids[places]
    is_chunk = chunk_ids != schemas.NO_CHUNK
    chunk_texts = iter(run.corpus.texts(chunk_ids[is_chunk]).tolist())
    sizes = (block.char_ends[places] - block.char_starts[places]).tolist()
    return [
        next(chunk_texts)[:size] if chunk else run.special_texts[role]
        for chunk, size, role in zip(
            is_chunk.tolist(), sizes, block.roles[places].tolist(), strict=True
        )
    ]
