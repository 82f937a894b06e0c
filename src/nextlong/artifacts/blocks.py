"""Blocks: SEQUENCES turned into rows with everything looked up that they refer to.

In:  record batches of SEQUENCES, and the files they refer to. Out: `Resolved` blocks,
to join, slice and pack: everything is looked up for a block at a time and each shard is
opened once, because opening a file costs more than reading the few values needed from
it.

`cuts_of` returns how many characters the first tokens of a chunk cover. A character
that a cut leaves incomplete is not covered, unless it is the only one. Ids of a
byte-level tokenizer represent bytes of the text; the covered characters are those that
begin in the kept bytes, except the last one if the next token continues it. A token may
lose bytes (if it strips blanks) but never adds any, so if as many characters begin in
all ids as the chunk has, the first byte of each character is present. Any other chunk
is tokenized again for its offsets, which are correct even if a normalizer changed the
text. Only then is the tokenizer loaded: at 128K tokens, loading it in each worker took
a third of the time of an Arrow export.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import AnyArray, Bools, Floats, Int8s, Int32s, Ints, Objects
from nextlong.artifacts import corpus_files
from nextlong.artifacts.continuation import offsets_within
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.artifacts.sequence_files import SequenceFiles, read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Sequences whose references are held at a time, about 100 bytes per span.
_SEQUENCES_HELD: Final = 4096


class Cuts(NamedTuple):
    """What the first 0, 1, … n tokens of a chunk of n tokens cover.

    Each array has shape (n + 1,). `chars` counts whole characters; `between` says
    whether the cut falls between two.
    """

    chars: Ints
    between: Bools


def cuts_of(
    ids: Int32s,
    *,
    chars: int,
    begins: bool,
    token_chars: AnyArray,
    text_of: Callable[[], str],
    tokenizer: Callable[[], Tokenizer],
) -> Cuts:
    """Return the possible cuts of a chunk with the given ids and `chars` characters.

    `begins` says whether it begins its document. `text_of` and `tokenizer` are called
    only for chunks that `token_chars` (TOKEN_CHARS) does not suffice for.
    """
    per_token = token_chars[ids]
    # (n + 1,) characters that begin in the first tokens.
    begun = np.append(0, np.cumsum(per_token["begun"], dtype=np.int64))
    if begun[-1] == chars and per_token["readable"].all():
        continues = np.append(per_token["goes_on"], False)
        return Cuts(chars=begun - continues, between=~continues)
    offsets = offsets_within(tokenizer(), text_of(), begins=begins)
    # (n + 1,) where the kept tokens stop, and where the first token behind them starts.
    # A character of several tokens has the same offsets in each: if it continues behind
    # the cut, it is not covered.
    stops = np.append(0, offsets[:, 1])
    starts = np.append(offsets[:, 0], chars)
    return Cuts(chars=np.minimum(stops, starts), between=stops <= starts)


# The first block is small, so that a caller that needs one sequence does not wait; each
# block is twice as long as the one before it, up to 16 MB of ids.
_FIRST_BLOCK_TOKENS = 1 << 17
_BLOCK_TOKENS = 1 << 22

# What to look up besides token ids: also the source of each sequence, the location of
# each span, or the text of each span.
Wanted = Literal["ids", "domains", "spans", "texts"]


def resolve(
    run: SequenceFiles, part: int, *, first: int = 0, take: int | None = None
) -> Iterator[Resolved]:
    """Yield sequences [first, take) of SEQUENCES file `part` in blocks.

    Small blocks come first. Without `take`, up to the end.
    """
    with pa.ipc.open_file(pa.memory_map(str(run.sequences[part]))) as reader:
        last = reader.num_record_batches if take is None else take
        batches: list[pa.RecordBatch] = []
        tokens = 0
        max_tokens = _FIRST_BLOCK_TOKENS
        for number in range(first, last):
            batches.append(reader.get_batch(number))
            token_ends = batches[-1].column("token_end").values
            tokens += token_ends[-1].as_py()
            if tokens >= max_tokens or number == last - 1:
                yield resolve_table(pa.Table.from_batches(batches), run)
                batches = []
                tokens = 0
                max_tokens = min(2 * max_tokens, _BLOCK_TOKENS)


def resolve_table(
    table: pa.Table, run: SequenceFiles, *, wanted: Wanted = "spans"
) -> Resolved:
    """Look up the sequences of a SEQUENCES table.

    Columns that are not `wanted` are -1 or empty.
    """
    lists = {name: table.column(name).combine_chunks() for name in schemas.SPAN_COLUMNS}
    spans = {name: column.values.to_numpy() for name, column in lists.items()}
    span_offsets = lists["role"].offsets.to_numpy().astype(np.int64)
    # (n,) each sequence ends where its last span does.
    token_counts = spans["token_end"][span_offsets[1:] - 1].astype(np.int64)
    token_offsets = np.concatenate([[0], np.cumsum(token_counts)])

    # (P,) where each span begins in input_ids, in which the sequences follow each
    # other.
    sequence_starts = np.repeat(token_offsets[:-1], np.diff(span_offsets))
    at = spans["token_start"] + sequence_starts
    lengths = (spans["token_end"] - spans["token_start"]).astype(np.int64)
    chunk_ids = spans["chunk_id"]
    is_chunk = chunk_ids != schemas.NO_CHUNK
    input_ids = np.empty(token_offsets[-1], np.int32)
    starts, stops = run.tokens.bounds(chunk_ids[is_chunk])
    run.tokens.copy_into(
        input_ids,
        chunk_ids=chunk_ids[is_chunk],
        starts=starts,
        at=at[is_chunk],
        lengths=lengths[is_chunk],
    )
    run.special.copy_into(input_ids, roles=spans["role"], starts=at, lengths=lengths)

    locations = _Locations.nowhere(len(chunk_ids))
    domains = [""] * table.num_rows
    if wanted == "domains":
        domains = domains_of(chunk_ids, spans["role"], span_offsets, run.corpus)
    elif wanted != "ids":
        locations.set(
            is_chunk,
            chunk_ids[is_chunk],
            run,
            starts=starts,
            stops=stops,
            kept=lengths[is_chunk],
        )
        leading = _leading_spans(chunk_ids, spans["role"], span_offsets)
        domains = locations.sources[leading].tolist()

    block = Resolved(
        sequence_ids=table.column("sequence_id").to_pylist(),
        methods=table.column("method").to_pylist(),
        domains=domains,
        token_offsets=token_offsets,
        input_ids=input_ids,
        document_offsets=np.arange(table.num_rows + 1),
        document_lengths=token_counts.astype(np.int32),
        span_offsets=span_offsets,
        chunk_ids=chunk_ids,
        doc_ids=locations.doc_ids,
        source_ids=locations.source_ids,
        metadata=locations.metadata,
        char_starts=locations.char_starts,
        char_ends=locations.char_ends,
        roles=spans["role"],
        groups=spans["group"],
        token_starts=spans["token_start"],
        token_ends=spans["token_end"],
        scores=spans["score"],
    )
    if wanted != "texts":
        return block
    texts = span_texts(block, run)
    return replace(block, texts=np.array(texts, object))


class _Locations(NamedTuple):
    """Where the text of each span comes from, shape (P,) each; as in `Resolved`."""

    doc_ids: Ints
    sources: Objects
    source_ids: Objects
    metadata: Objects
    char_starts: Ints
    char_ends: Ints

    @classmethod
    def nowhere(cls, num_spans: int) -> _Locations:
        """Return the locations of spans that are not looked up."""
        return cls(
            doc_ids=np.full(num_spans, -1, np.int64),
            sources=np.full(num_spans, "", object),
            source_ids=np.full(num_spans, "", object),
            metadata=np.full(num_spans, None, object),
            char_starts=np.full(num_spans, -1, np.int64),
            char_ends=np.full(num_spans, -1, np.int64),
        )

    def set(
        self,
        is_chunk: Bools,
        chunk_ids: Ints,
        run: SequenceFiles,
        *,
        starts: Ints,
        stops: Ints,
        kept: Ints,
    ) -> None:
        """Look up the spans of chunks, of which the first `kept` tokens are there.

        `starts` and `stops` bound all their tokens; all have shape (chunks,).
        """
        doc_rows, char_starts, char_ends = corpus_files.chunk_columns(
            chunk_ids, run.corpus.chunks, ("doc_row", "start", "end")
        )
        is_cut = kept < stops - starts
        if is_cut.any():
            covered = _covered_chars(
                chunk_ids[is_cut],
                run,
                bounds=(starts[is_cut], stops[is_cut]),
                chars=(char_starts[is_cut], char_ends[is_cut]),
                kept=kept[is_cut],
            )
            char_ends[is_cut] = char_starts[is_cut] + covered
        doc_ids = schemas.shard_of(chunk_ids) << schemas.SHARD_BITS | doc_rows
        sources, source_ids, metadata = corpus_files.document_columns(
            doc_ids, run.corpus.documents, ("source", "source_id", "metadata")
        )
        self.doc_ids[is_chunk] = doc_ids
        self.sources[is_chunk] = sources
        self.source_ids[is_chunk] = source_ids
        self.metadata[is_chunk] = metadata
        self.char_starts[is_chunk] = char_starts
        self.char_ends[is_chunk] = char_ends


def _covered_chars(
    chunk_ids: Ints,
    run: SequenceFiles,
    *,
    bounds: tuple[Ints, Ints],
    chars: tuple[Ints, Ints],
    kept: Ints,
) -> Ints:
    """Return how many characters the first `kept` tokens of each chunk cover.

    `bounds` are those of all its tokens, `chars` its first character and its end in the
    document; all have shape (chunks,).
    """
    starts, stops = bounds
    ids, offsets = run.tokens.ids(chunk_ids, starts=starts, stops=stops)
    token_chars = np.load(run.token_chars, mmap_mode="r")
    covered = []
    for number, chunk_id in enumerate(chunk_ids.tolist()):
        first_char = int(chars[0][number])
        end_char = int(chars[1][number])
        cuts = cuts_of(
            ids[offsets[number] : offsets[number + 1]],
            chars=end_char - first_char,
            begins=first_char == 0,
            token_chars=token_chars,
            text_of=partial(run.corpus.text, chunk_id),
            tokenizer=partial(read_tokenizer, run.tokenizer),
        )
        # A cut within the first character covers that character.
        kept_chars = int(cuts.chars[kept[number]])
        covered.append(max(1, kept_chars))
    return np.array(covered, np.int64)


def domains_of(
    chunk_ids: Ints, roles: Int8s, span_offsets: Ints, corpus: CorpusFiles
) -> list[str]:
    """Return the source of each sequence's meta-document or first document.

    The arguments are as in `Resolved`.
    """
    doc_ids = _leading_documents(chunk_ids, roles, span_offsets, corpus)
    (sources,) = corpus_files.document_columns(doc_ids, corpus.documents, ("source",))
    return list(sources)


def labels_of(
    index: AnyArray, origins: Sequence[SequenceFiles], *, column: str
) -> Objects:
    """Return a column of the meta-document or first document of each sequence, (n,).

    `index` is a SEQUENCE_INDEX. The column is `source` or one of the metadata, whose
    value is None in a document without it.
    """
    labels = np.empty(len(index), object)
    name = "source" if column == "source" else "metadata"
    for number, origin in enumerate(origins):
        positions = np.flatnonzero(index["run"] == number)
        # In parts of equal size, none without a sequence.
        parts = -(-len(positions) // _SEQUENCES_HELD)
        for part in np.array_split(positions, parts) if parts else ():
            table = origin.table(index[part])
            chunk_ids = table.column("chunk_id").combine_chunks()
            roles = table.column("role").combine_chunks()
            # Lists of the chunks of each sequence, end to end.
            doc_ids = _leading_documents(
                chunk_ids.values.to_numpy(),
                roles.values.to_numpy(),
                chunk_ids.offsets.to_numpy(),
                origin.corpus,
            )
            documents = origin.corpus.documents
            (values,) = corpus_files.document_columns(doc_ids, documents, (name,))
            if name == "metadata":
                objects = [json.loads(line) if line else {} for line in values]
                labels[part] = [metadata.get(column) for metadata in objects]
            else:
                labels[part] = values
    return labels


def _leading_documents(
    chunk_ids: Ints, roles: Int8s, span_offsets: Ints, corpus: CorpusFiles
) -> Ints:
    """Return the doc_id of each sequence's meta-document or first document, (n,)."""
    leading = _leading_spans(chunk_ids, roles, span_offsets)
    return corpus_files.documents_of(chunk_ids[leading], corpus.chunks)


def _leading_spans(chunk_ids: Ints, roles: Int8s, span_offsets: Ints) -> Ints:
    """Return the first meta-chunk or document of each sequence, (n,).

    A sequence without either has its first chunk instead.
    """
    firsts = span_offsets[:-1]
    chunks = np.flatnonzero(chunk_ids != schemas.NO_CHUNK)
    is_leading = np.isin(roles, (schemas.META, schemas.DOCUMENT))
    # The number of spans stands behind them, for sequences behind the last leading one.
    leading = np.append(np.flatnonzero(is_leading), len(roles))
    nearest = leading[np.searchsorted(leading, firsts)]
    nearest_chunk = chunks[np.searchsorted(chunks, firsts)]
    # Of a sequence that was cut before its first meta-chunk, the nearest one belongs to
    # a later sequence.
    return np.where(nearest < span_offsets[1:], nearest, nearest_chunk)


def _no_texts() -> Objects:
    return np.empty(0, object)


@dataclass(frozen=True)
class Resolved:
    """A block of n looked-up rows with S tokens, P spans and D synthesized documents.

    A row is one sequence, which is one synthesized document, or several packed
    sequences (`packed`). Offsets have shape (n + 1,).

    `domains` are the sources of each sequence's meta-document or first document.
    `input_ids` has shape (S,), `document_lengths`, in tokens, (D,). From `chunk_ids`
    on, all have shape (P,); `chunk_ids` is -1 for separators and special tokens;
    `metadata` is that of the document, as JSON, None if its source has no metadata
    columns; `token_starts` and `token_ends` count from the start of the row. `texts` is
    empty where they are not wanted.
    """

    sequence_ids: list[str]
    methods: list[str]
    domains: list[str]
    token_offsets: Ints
    input_ids: Int32s
    document_offsets: Ints
    document_lengths: Int32s
    span_offsets: Ints
    chunk_ids: Ints
    doc_ids: Ints
    source_ids: Objects
    metadata: Objects
    char_starts: Ints
    char_ends: Ints
    roles: Int8s
    groups: Int32s
    token_starts: Int32s
    token_ends: Int32s
    scores: Floats
    texts: Objects = field(default_factory=_no_texts)

    def __len__(self) -> int:
        return len(self.sequence_ids)


def joined(blocks: Sequence[Resolved]) -> Resolved:
    """Return the rows of several blocks as one block."""
    columns: dict[str, Any] = {}
    for column in fields(Resolved):
        values = [getattr(block, column.name) for block in blocks]
        if column.name.endswith("_offsets"):
            columns[column.name] = _joined_offsets(values)
        elif isinstance(values[0], list):
            columns[column.name] = list(chain(*values))
        else:
            columns[column.name] = np.concatenate(values)
    return Resolved(**columns)


def _joined_offsets(offsets_of_blocks: Sequence[Ints]) -> Ints:
    """Return the offsets of several blocks, each moved behind the blocks before it."""
    moved = [offsets_of_blocks[0][:1]]
    first = 0
    for offsets in offsets_of_blocks:
        moved.append(offsets[1:] + first)
        first += offsets[-1]
    return np.concatenate(moved)


def sliced(block: Resolved, first: int, last: int) -> Resolved:
    """Return rows [first, last) of a block as views."""
    columns: dict[str, Any] = {}
    within: dict[str, slice] = {}
    for name in ("token", "document", "span"):
        offsets = getattr(block, f"{name}_offsets")[first : last + 1]
        within[name] = slice(int(offsets[0]), int(offsets[-1]))
        columns[f"{name}_offsets"] = offsets - offsets[0]
    columns["input_ids"] = block.input_ids[within["token"]]
    columns["document_lengths"] = block.document_lengths[within["document"]]
    for column in fields(Resolved):
        values = getattr(block, column.name)
        if column.name in columns:
            continue
        if isinstance(values, list):
            columns[column.name] = values[first:last]
        else:
            columns[column.name] = values[within["span"]]
    return Resolved(**columns)


def packed(block: Resolved, row_offsets: Ints) -> Resolved:
    """Pack the rows of a block into r rows.

    Rows row_offsets[i] to row_offsets[i + 1] become row i; `row_offsets` is (r + 1,).
    Sequence ids are joined by a blank; distinct methods and domains by a plus sign.
    """
    groups = [slice(first, last) for first, last in pairwise(row_offsets.tolist())]
    token_offsets = block.token_offsets[row_offsets]
    # (n,) where each sequence begins in its row; (P,) the same for its spans.
    row_starts = np.repeat(token_offsets[:-1], np.diff(row_offsets))
    moved = block.token_offsets[:-1] - row_starts
    moved_spans = np.repeat(moved, np.diff(block.span_offsets))
    moved_spans = moved_spans.astype(np.int32)
    sequence_ids = [" ".join(block.sequence_ids[group]) for group in groups]
    methods = [joined_names(block.methods[group]) for group in groups]
    domains = [joined_names(block.domains[group]) for group in groups]
    return replace(
        block,
        sequence_ids=sequence_ids,
        methods=methods,
        domains=domains,
        token_offsets=token_offsets,
        document_offsets=block.document_offsets[row_offsets],
        span_offsets=block.span_offsets[row_offsets],
        token_starts=block.token_starts + moved_spans,
        token_ends=block.token_ends + moved_spans,
    )


def document_starts(
    lengths: AnyArray,
    *,
    roles: AnyArray,
    groups: AnyArray,
    starts: AnyArray,
) -> Ints:
    """Return the first token of each original document in concatenated sequences.

    An extended sequence is one document. `lengths` are those of the sequences; role,
    group and start of each span have shape (P,). A separator between two documents
    belongs to the first of them; a sequence may begin with a special token.
    """
    sequence_starts = np.cumsum(lengths, dtype=np.int64) - lengths
    # A document begins with its contexts, if it has some.
    is_document = np.isin(roles, (schemas.DOCUMENT, schemas.CONTEXT))
    starts = starts[is_document]
    sequences = np.searchsorted(sequence_starts, starts, side="right")
    # A new group inside a sequence begins a document. The first one begins with its
    # sequence, also behind a special token.
    begins_group = np.diff(groups[is_document]) != 0
    is_same_sequence = np.diff(sequences) == 0
    return np.union1d(sequence_starts, starts[1:][begins_group & is_same_sequence])


def of_documents(block: Resolved) -> Resolved:
    """Return the rows with the original documents as their documents.

    Those of concatenated sequences; extended sequences are unchanged.
    """
    # (P,) where the row of each span begins in the block.
    row_starts = np.repeat(block.token_offsets[:-1], np.diff(block.span_offsets))
    starts = document_starts(
        block.document_lengths,
        roles=block.roles,
        groups=block.groups,
        starts=row_starts + block.token_starts,
    )
    lengths = np.diff(starts, append=block.token_offsets[-1])
    return replace(
        block,
        document_offsets=np.searchsorted(starts, block.token_offsets),
        document_lengths=lengths.astype(np.int32),
    )


def joined_names(names: Sequence[str]) -> str:
    """Join the distinct names of several sequences, for the row that holds them."""
    return "+".join(dict.fromkeys(names))


def span_texts(
    block: Resolved, run: SequenceFiles, spans: slice | Ints = slice(None)
) -> list[str]:
    """Return the text of some spans of a block.

    That of a chunk up to its cut, of a separator, or of a special token.
    """
    chunk_ids = block.chunk_ids[spans]
    is_chunk = chunk_ids != schemas.NO_CHUNK
    chunk_texts = iter(run.corpus.texts(chunk_ids[is_chunk]).tolist())
    chars = (block.char_ends[spans] - block.char_starts[spans]).tolist()
    roles = block.roles[spans].tolist()
    texts = []
    for holds_chunk, size, role in zip(is_chunk.tolist(), chars, roles, strict=True):
        if holds_chunk:
            texts.append(next(chunk_texts)[:size])
        else:
            texts.append(run.special_texts[role])
    return texts
