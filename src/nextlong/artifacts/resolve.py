"""Resolve: turn references into token ids, character offsets and names.

In:  SEQUENCES (references), TOKENS, CHUNKS, DOCUMENTS.
Out: blocks of `Resolved` sequences: flat arrays over all of a block's tokens and spans, ready for any format.

Everything is looked up for a block at a time, each shard once: opening files costs more than what is read of them.

`cuts_of` and `kept_chars` tell how many characters the first tokens of a chunk cover; a character of which the cut leaves only
some bytes is not covered, unless it is the only one. Ids of a byte-level tokenizer stand for bytes of the text, and whole
characters are those that begin in the bytes kept, except the last one if the next token continues it. Bytes can be lost (a token
that takes the blanks around it) but none is added, so if as many characters begin in all ids as the chunk has, the first byte of
each is there. Any other chunk is tokenized again for its offsets, which stay right where a normalizer changed the text; only
then the tokenizer is loaded: at 128K tokens, loading it in each worker took a third of the time to export Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.lookup import iter_chunk_texts
from nextlong.artifacts.resolved import Resolved
from nextlong.artifacts.tokens import TokenStore

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Cuts(NamedTuple):
    """What the first 0, 1, … n tokens of a chunk of n tokens cover, shape (n + 1,) each."""

    chars: NDArray[np.int64]  # whole characters
    between: NDArray[np.bool_]  # the cut falls between two characters


def cuts_of(
    ids: NDArray[np.int32],
    *,
    chars: int,
    token_chars: NDArray[Any],
    text_of: Callable[[], str],
    tokenizer: Callable[[], Tokenizer],
) -> Cuts:
    """Return where a chunk of the given ids, `chars` characters long, may be cut.

    `text_of` and `tokenizer` are called only for chunks that `token_chars` (TOKEN_CHARS) does not tell of.
    """
    per_token = token_chars[ids]
    begun = np.concatenate([[0], np.cumsum(per_token["begun"], dtype=np.int64)])
    if begun[-1] == chars and per_token["readable"].all():
        goes_on = np.append(per_token["goes_on"], False)
        return Cuts(begun - goes_on, ~goes_on)
    offsets = np.array(tokenizer().encode(text_of(), add_special_tokens=False).offsets, np.int64).reshape(-1, 2)
    stops, starts = np.append(0, offsets[:, 1]), np.append(offsets[:, 0], chars)
    # A character of several tokens has the same offsets in each: if it goes on behind the cut, it is not covered.
    return Cuts(np.minimum(stops, starts), stops <= starts)


def kept_chars(
    ids: NDArray[np.int32],
    *,
    offsets: NDArray[np.int64],
    tokens: NDArray[np.int64],
    chars: NDArray[np.int64],
    token_chars: NDArray[Any],
    texts_of: Callable[[NDArray[np.int64]], Sequence[str]],
    tokenizer: Callable[[], Tokenizer],
) -> NDArray[np.int64]:
    """Return how many characters the first `tokens[i]` ids of chunk i cover, at least 1, shape (n,).

    All ids of chunk i, more than `tokens[i]`, are ids[offsets[i]:offsets[i + 1]]; `chars[i]` is its length. `texts_of` gives
    the texts of the chunks at some places.
    """
    kept = np.ones(len(tokens), np.int64)
    for place, (count, length) in enumerate(zip(tokens.tolist(), chars.tolist(), strict=True)):
        cuts = cuts_of(
            ids[offsets[place] : offsets[place + 1]],
            chars=length,
            token_chars=token_chars,
            text_of=lambda place=place: texts_of(np.array([place]))[0],  # type: ignore[misc]
            tokenizer=tokenizer,
        )
        # Tokens that hold a part of one character only are that character's: no span with tokens has an empty range.
        kept[place] = max(1, int(cuts.chars[count]))
    return kept


_FIRST_BLOCK_TOKENS = 1 << 17  # whoever wants one sequence does not wait for many; each block is twice as long, …
_BLOCK_TOKENS = 1 << 22  # … up to this: 16 MB of ids

# What to look up beside token ids: the source of each sequence too, or also where the text of each span lies.
Wanted = Literal["ids", "domains", "spans"]


@dataclass(frozen=True)
class CorpusFiles:
    """Where the text lies: DOCUMENTS and CHUNKS, one file a shard, in shard order."""

    documents: tuple[Path, ...]
    chunks: tuple[Path, ...]

    def texts(self, chunk_ids: NDArray[np.int64]) -> NDArray[np.object_]:
        """Return the text of each chunk, shape (n,)."""
        if not len(chunk_ids):
            return np.empty(0, object)

        def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[np.object_]]:
            texts = [
                text
                for batch in iter_chunk_texts(self.documents[shard], self.chunks[shard], rows)
                for text in batch.texts
            ]
            column = np.empty(len(texts), object)
            column[:] = texts
            return [column]

        return lookup.by_shard(chunk_ids, load)[0]


@dataclass(frozen=True)
class SpecialIds:
    """The token ids of what stands between chunks."""

    separator: tuple[int, ...] = ()
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()

    def by_role(self) -> dict[int, NDArray[np.int32]]:
        """Return the ids of each role that is no chunk."""
        named = {schemas.SEPARATOR: self.separator, schemas.BOS: self.bos, schemas.EOS: self.eos}
        return {role: np.array(ids, np.int32) for role, ids in named.items()}

    def copy_into(
        self, target: NDArray[Any], *, roles: NDArray[np.int8], at: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        """Write the first `lengths[j]` ids of each span's role to `target[at[j]:]`; spans of chunks are passed over."""
        for role, ids in self.by_role().items():
            spans = np.flatnonzero(roles == role)
            for number, token in enumerate(ids):
                target[at[spans[lengths[spans] > number]] + number] = token


class Truncation(NamedTuple):
    """What says how much of its text a cut chunk keeps: TOKEN_CHARS, and the tokenizer for chunks that these do not tell of."""

    token_chars: Path
    tokenizer: Callable[[], Tokenizer]


def resolve(
    sequences: Path,
    *,
    first: int = 0,
    take: int | None,
    corpus: CorpusFiles,
    tokens: TokenStore,
    special: SpecialIds,
    truncation: Truncation,
) -> Iterator[Resolved]:
    """Yield the sequences [first, take) of a SEQUENCES file in blocks, of one sequence first and of four million tokens later."""
    with pa.ipc.open_file(pa.memory_map(str(sequences))) as reader:
        last = reader.num_record_batches if take is None else take
        block: list[pa.RecordBatch] = []
        held, limit = 0, _FIRST_BLOCK_TOKENS
        for number in range(first, last):
            block.append(reader.get_batch(number))
            held += block[-1].column("token_end").values[-1].as_py()
            if held >= limit or number == last - 1:
                yield resolve_table(pa.Table.from_batches(block), corpus, tokens, special, truncation)
                block, held, limit = [], 0, min(2 * limit, _BLOCK_TOKENS)


def resolve_table(
    table: pa.Table,
    corpus: CorpusFiles,
    tokens: TokenStore,
    special: SpecialIds,
    truncation: Truncation,
    *,
    wanted: Wanted = "spans",
) -> Resolved:
    """Look up the sequences of a table of SEQUENCES; what is not `wanted` is -1 or empty."""
    lists = {name: table.column(name).combine_chunks() for name in schemas.SPAN_COLUMNS}
    span_offsets = lists["role"].offsets.to_numpy().astype(np.int64)
    chunk_ids, roles, groups, starts, ends, scores = (
        lists[name].values.to_numpy() for name in ("chunk_id", "role", "group", "token_start", "token_end", "score")
    )
    token_offsets = np.concatenate([[0], np.cumsum(ends[span_offsets[1:] - 1].astype(np.int64))])
    at = starts + np.repeat(token_offsets[:-1], np.diff(span_offsets))  # (P,) where each span begins in input_ids
    is_chunk = chunk_ids != schemas.NO_CHUNK
    input_ids = np.empty(token_offsets[-1], np.int32)
    chunk_starts, chunk_stops = tokens.bounds(chunk_ids[is_chunk])
    lengths = (ends - starts).astype(np.int64)
    tokens.copy_into(
        input_ids, chunk_ids=chunk_ids[is_chunk], starts=chunk_starts, at=at[is_chunk], lengths=lengths[is_chunk]
    )
    special.copy_into(input_ids, roles=roles, at=at, lengths=lengths)
    places = _Places(*(np.full(len(chunk_ids), *blank) for blank in _BLANKS))
    domains = [""] * table.num_rows
    if wanted == "domains":
        domains = domains_of(chunk_ids, roles, span_offsets, corpus)
    elif wanted == "spans":
        ids, kept = chunk_ids[is_chunk], lengths[is_chunk]
        doc_rows, start, end = lookup.chunk_columns(ids, corpus.chunks, ("doc_row", "start", "end"))
        docs = schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows
        sources, source_ids = lookup.document_columns(docs, corpus.documents, ("source", "source_id"))
        beside = lookup.document_metadata(docs, corpus.documents)
        cut = np.flatnonzero(kept < chunk_stops - chunk_starts)
        if len(cut):
            all_ids, offsets = tokens.ids(ids[cut], starts=chunk_starts[cut], stops=chunk_stops[cut])
            end[cut] = start[cut] + kept_chars(
                all_ids,
                offsets=offsets,
                tokens=kept[cut],
                chars=(end - start)[cut],
                token_chars=np.load(truncation.token_chars, mmap_mode="r"),
                texts_of=lambda those: corpus.texts(ids[cut[those]]).tolist(),
                tokenizer=truncation.tokenizer,
            )
        for column, chunk_places in zip(places, (docs, sources, source_ids, beside, start, end), strict=True):
            column[is_chunk] = chunk_places
        domains = places.sources[_leading_spans(chunk_ids, roles, span_offsets)].tolist()
    return Resolved(
        table.column("sequence_id").to_pylist(),
        table.column("method").to_pylist(),
        domains,
        token_offsets,
        input_ids,
        np.arange(table.num_rows + 1),
        np.diff(token_offsets).astype(np.int32),
        span_offsets,
        chunk_ids,
        places.doc_ids,
        places.source_ids,
        places.metadata,
        places.char_starts,
        places.char_ends,
        roles,
        groups,
        starts,
        ends,
        scores,
    )


class _Places(NamedTuple):
    """Where the text of P spans lies, shape (P,) each; -1 and "" for separators and special tokens."""

    doc_ids: NDArray[np.int64]
    sources: NDArray[np.object_]
    source_ids: NDArray[np.object_]
    metadata: NDArray[np.object_]
    char_starts: NDArray[np.int64]
    char_ends: NDArray[np.int64]


_BLANKS = ((-1, np.int64), ("", object), ("", object), (None, object), (-1, np.int64), (-1, np.int64))


def domains_of(
    chunk_ids: NDArray[np.int64], roles: NDArray[np.int8], span_offsets: NDArray[np.int64], corpus: CorpusFiles
) -> list[str]:
    """Return the source of each sequence's meta-document, or of its first document; arguments as in `Resolved`."""
    ids = chunk_ids[_leading_spans(chunk_ids, roles, span_offsets)]
    (doc_rows,) = lookup.chunk_columns(ids, corpus.chunks, ("doc_row",))
    docs = schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows
    sources: list[str] = lookup.document_columns(docs, corpus.documents, ("source",))[0].tolist()
    return sources


def _leading_spans(
    chunk_ids: NDArray[np.int64], roles: NDArray[np.int8], span_offsets: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the span of each sequence that names its domain."""
    firsts = span_offsets[:-1]
    # (n,) of each sequence the first meta-chunk or document, else its first chunk.
    chunks = np.flatnonzero(chunk_ids != schemas.NO_CHUNK)
    leading = np.flatnonzero(np.isin(roles, (schemas.META, schemas.DOCUMENT)))
    leaders = chunks[np.searchsorted(chunks, firsts)]  # of a sequence that was cut before its first meta-chunk
    if len(leading):
        nearest_leading = leading[np.minimum(np.searchsorted(leading, firsts), len(leading) - 1)]
        leaders = np.where((nearest_leading >= firsts) & (nearest_leading < span_offsets[1:]), nearest_leading, leaders)
    return leaders
