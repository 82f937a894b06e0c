"""Expected: what the rows of any export should hold, made again from SEQUENCES, TOKENS, CHUNKS and DOCUMENTS.

In:  a block of sequences, chunks looked up. Out: a `Row` for each row, that is these sequences one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextlong.schemas import DOCUMENT, META, NO_CHUNK, ROLES, SHARD_BITS
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.composed import Composed
from nextlong.verify.cuts import Tokenized
from nextlong.verify.export_readers import SPAN_KEYS, Row, Spans

IGNORED = -100  # a label that no trainer learns: nothing foretells the first token of a document


class Expected:
    """What the rows of a block should hold; `spans` and `text` are made only if asked for."""

    def __init__(self, run: Artefacts, block: Sequence[Composed], *, parts: Iterable[str] = ("spans", "text")) -> None:
        """Look up what the block refers to."""
        self._run = run
        self._parts = frozenset(parts)
        chunks, docs = (np.concatenate([getattr(sequence, name) for sequence in block]) for name in ("chunk", "doc"))
        self._source_ids = run.names_of(docs, "source_id") if "spans" in self._parts else {}
        self._kept = run.names_of(docs, "kept") if "spans" in self._parts else {}
        self._sources = run.names_of(docs, "source")
        truncated = np.concatenate([sequence.chunk[sequence.is_truncated] for sequence in block])
        self._texts = run.texts_of(
            chunks if "text" in self._parts else truncated if "spans" in self._parts else truncated[:0]
        )
        self._special_texts = {
            role: run.tokenizer.decode(ids, skip_special_tokens=False) for role, ids in run.special_ids.items()
        }
        self._stored_ids: dict[int, NDArray[np.uint32]] = {}  # by shard
        self._first: dict[int, int] = {}  # of each chunk's ids
        for shard, rows in run.by_shard(chunks):
            named, offsets, self._stored_ids[shard] = run.token_shard(shard)
            firsts = offsets[np.searchsorted(named, rows)]
            self._first.update(zip((rows | (shard << SHARD_BITS)).tolist(), firsts.tolist(), strict=True))

    def row(self, sequences: Sequence[Composed], *, boundaries: str) -> Row:
        """Return the row that holds these sequences, with everything that any format says."""
        ids = [self.input_ids(sequence) for sequence in sequences]
        firsts = [0, *accumulate(len(sequence_ids) for sequence_ids in ids)]
        joined = np.concatenate(ids)
        bounds = firsts
        if boundaries == "document":
            bounds = [
                first + start
                for sequence, first in zip(sequences, firsts, strict=False)
                for start in (0, *_later_documents(sequence))
            ] + firsts[-1:]
        lengths = [last - first for first, last in pairwise(bounds)]
        labels = joined.copy()
        labels[bounds[:-1]] = IGNORED
        names = {
            "sequence_id": " ".join(sequence.id for sequence in sequences),
            "method": "+".join(dict.fromkeys(sequence.method for sequence in sequences)),
            "domain": "+".join(dict.fromkeys(self.domain(sequence) for sequence in sequences)),
            "length": len(joined),
            "seq_lengths": lengths,
            "indices": [list(pair) for pair in pairwise(bounds)],
        }
        spans = [self.spans(sequence, first) for sequence, first in zip(sequences, firsts, strict=False)]
        return Row(
            names,
            joined,
            np.ones(len(joined), np.int8),
            labels,
            "".join(map(self.text, sequences)) if "text" in self._parts else None,
            {key: [value for sequence_spans in spans for value in sequence_spans[key]] for key in SPAN_KEYS}
            if "spans" in self._parts
            else None,
        )

    def domain(self, sequence: Composed) -> str:
        """Return the source of the meta-document or first document, or of the first chunk if the cut left neither."""
        chunks = np.flatnonzero(sequence.is_chunk)
        leading = np.flatnonzero(np.isin(sequence.role, (META, DOCUMENT)))
        first = leading[0] if len(leading) else chunks[0]
        return self._sources.get(int(sequence.doc[first]), "")

    def input_ids(self, sequence: Composed) -> NDArray[np.int32]:
        """Return the ids of a sequence, shape (T,)."""
        pieces: list[Any] = []
        columns = (column.tolist() for column in (sequence.chunk, sequence.role, sequence.end - sequence.start))
        for chunk, role, length in zip(*columns, strict=True):
            if chunk == NO_CHUNK:
                pieces.append(self._run.special_ids[role][:length])
                continue
            start = self._first[chunk]
            pieces.append(self._stored_ids[chunk >> SHARD_BITS][start : start + length])
        return np.concatenate(pieces).astype(np.int32)

    def char_ends(self, sequence: Composed) -> list[int]:
        """Return where in its document each span ends."""
        ends: list[int] = sequence.char_end.tolist()
        for span in np.flatnonzero(sequence.is_truncated).tolist():
            tokenized = Tokenized(self._run, self._texts[int(sequence.chunk[span])])
            visible = tokenized.visible(int(sequence.end[span] - sequence.start[span]))
            ends[span] = int(sequence.char_start[span]) + len(visible)
        return ends

    def spans(self, sequence: Composed, first: int) -> Spans:
        """Return the spans, as columns with the names of the exports, of a sequence that stands at token `first` of its row."""
        if "spans" not in self._parts:
            return {}
        return {
            "chunk_id": sequence.chunk.tolist(),
            "doc_id": sequence.doc.tolist(),
            "source_id": [self._source_ids.get(doc, "") for doc in sequence.doc.tolist()],
            "kept": [self._kept.get(doc) for doc in sequence.doc.tolist()],
            "char_start": sequence.char_start.tolist(),
            "char_end": self.char_ends(sequence),
            "role": [ROLES[role] for role in sequence.role.tolist()],
            "token_start": (sequence.start + first).tolist(),
            "token_end": (sequence.end + first).tolist(),
            "score": sequence.score.tolist(),
        }

    def text(self, sequence: Composed) -> str:
        """Return the text of a sequence, cut from the documents."""
        sizes = np.array(self.char_ends(sequence)) - sequence.char_start
        pieces = []
        for chunk, role, size in zip(sequence.chunk.tolist(), sequence.role.tolist(), sizes.tolist(), strict=True):
            pieces.append(self._special_texts[role] if chunk == NO_CHUNK else self._texts[chunk][:size])
        return "".join(pieces)


def _later_documents(sequence: Composed) -> list[int]:
    """Return the token at which each document of a concatenation begins, but the first."""
    begun, starts = None, []
    for role, group, start in zip(
        sequence.role.tolist(), sequence.group.tolist(), sequence.start.tolist(), strict=True
    ):
        if role == DOCUMENT:
            if begun is not None and group != begun:
                starts.append(start)
            begun = group
    return starts
