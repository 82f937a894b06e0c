"""Insert tasks with known answers between the meta-chunks of sequences.

In:  a function that composes a sequence with some tokens left free, and the texts of
     its chunks.
Out: the spans of the sequence with its tasks, exactly T tokens; and a shard of text for
     each task of composing: DOCUMENTS, CHUNKS and TOKENS of the inserted texts.

A sequence is chosen by its keyed hash (`compose.tasks.share`). How many tokens its
tasks need may depend on its text, which depends on how many tokens are free: it is
composed until both agree, mostly twice. Readers find an inserted text by its chunk id
like any other text, in a shard after those of the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import xxhash

from nextlong import schemas
from nextlong.arrays import Ints, UInt32s
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.plugins import KNOWN_ANSWERS
from nextlong.rng import rng_for
from nextlong.sequences.fit import Dropped, TokenSpan
from nextlong.sequences.tasks.base import MIN_PIECES, KnownTask, Piece
from nextlong.sequences.tokenize import Engine, kept_encoder

# Compositions of a sequence until its tasks fit.
_MAX_COMPOSED: Final = 6

_Spans = list[TokenSpan]


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What is inserted into which share of the sequences, by which tokenizer."""

    kinds: tuple[str, ...]
    share: float
    seed: int
    tokenizer: Path
    engine: Engine
    separator: str  # its text


@dataclass
class TaskInserter:
    """Inserts tasks, and keeps their texts until they are written."""

    settings: TaskSettings
    corpus: CorpusFiles
    # The number of the shard that the texts will have.
    shard: int
    without_room: int = 0  # chosen sequences without tasks
    _texts: list[tuple[str, str]] = field(default_factory=list)  # with their kinds
    _ids: list[UInt32s] = field(default_factory=list)

    @cached_property
    def _tasks(self) -> list[KnownTask]:
        tasks = [KNOWN_ANSWERS.load(name, KnownTask) for name in self.settings.kinds]
        # Stable: tasks whose answers depend on the text come after all others.
        return sorted(tasks, key=lambda task: task.reads_text)

    def compose(
        self,
        sequence_id: str,
        compose: Callable[[int], _Spans | Dropped],
        *,
        tokens_of: Callable[[Ints], Ints],
    ) -> _Spans | Dropped:
        """Return the spans of a sequence, with tasks if it is chosen and has room.

        `compose` leaves some tokens free; `tokens_of` counts those of whole chunks.
        """
        plain = compose(0)
        draw = rng_for(self.settings.seed, "tasks", sequence_id)
        if isinstance(plain, Dropped) or draw.random() >= self.settings.share:
            return plain
        spans: _Spans | Dropped = plain
        free = 0
        for _ in range(_MAX_COMPOSED):
            if isinstance(spans, Dropped):
                break
            pieces = self._with_tasks(sequence_id, spans, tokens_of)
            inserted = [piece for piece in pieces if piece.kind]
            ids = self._encode([piece.text for piece in inserted])
            tokens = sum(map(len, ids))
            if tokens == free:
                if not inserted:
                    break
                return self._keep(spans, inserted, ids)
            free = tokens
            spans = compose(free)
        self.without_room += 1
        return plain

    def _with_tasks(
        self,
        sequence_id: str,
        spans: _Spans,
        tokens_of: Callable[[Ints], Ints],
    ) -> list[Piece]:
        """Return the pieces from the first meta-chunk to the last, with all tasks."""
        pieces = list(self._pieces(spans, tokens_of))
        if len(pieces) < MIN_PIECES:
            return pieces
        for task in self._tasks:
            rng = rng_for(self.settings.seed, f"tasks.{task.name}", sequence_id)
            # From the last place on, so that the earlier places stay true.
            for insertion in reversed(task.insert(pieces, rng)):
                place = insertion.place
                piece = Piece(pieces[place].span, insertion.text, task.name)
                pieces.insert(place, piece)
        return pieces

    def _pieces(
        self,
        spans: _Spans,
        tokens_of: Callable[[Ints], Ints],
    ) -> Iterator[Piece]:
        """Yield the whole chunks from the first meta-chunk to the last."""
        roles = np.array([span.role for span in spans])
        metas = np.flatnonzero(roles == schemas.META)
        chunks = np.flatnonzero(np.isin(roles, (schemas.META, schemas.NEGATIVE)))
        ids = np.array([spans[index].chunk for index in chunks.tolist()])
        lengths = [spans[index].end - spans[index].start for index in chunks.tolist()]
        is_whole = tokens_of(ids) == lengths
        is_within = (chunks >= metas[0]) & (chunks <= metas[-1])
        # Up to the first chunk that is cut: its text is not known here.
        first_cut = np.append(np.flatnonzero(is_within & ~is_whole), len(chunks))[0]
        chosen = np.flatnonzero(is_within[:first_cut])
        texts = self.corpus.texts(ids[chosen]).tolist()
        for index, text in zip(chunks[chosen].tolist(), texts, strict=True):
            has_separator = roles[index + 1 : index + 2].tolist() == [schemas.SEPARATOR]
            separator = self.settings.separator if has_separator else ""
            yield Piece(index, text + separator)

    def _encode(self, texts: list[str]) -> list[UInt32s]:
        encoder = kept_encoder(self.settings.tokenizer, self.settings.engine)
        ids, lengths = encoder.encode_chunks(texts, [True] * len(texts))
        return np.split(ids, np.cumsum(lengths)[:-1]) if texts else []

    def _keep(self, spans: _Spans, inserted: list[Piece], ids: list[UInt32s]) -> _Spans:
        """Return the spans with the inserted texts between them, and keep the texts."""
        first_row = len(self._texts)
        self._texts += [(piece.kind, piece.text) for piece in inserted]
        self._ids += ids
        rows = first_row + np.arange(len(inserted))
        chunk_ids = schemas.pack_ids(self.shard, rows).tolist()
        with_tasks: _Spans = []
        shift = 0
        number = 0
        for index, span in enumerate(spans):
            while number < len(inserted) and inserted[number].span == index:
                begin = span.start + shift
                shift += len(ids[number])
                with_tasks.append(
                    TokenSpan(
                        chunk=chunk_ids[number],
                        role=schemas.TASK,
                        group=spans[index - 1].group,
                        start=begin,
                        end=span.start + shift,
                        score=0.0,
                    )
                )
                number += 1
            moved = span._replace(start=span.start + shift, end=span.end + shift)
            with_tasks.append(moved)
        return with_tasks

    def write(self, out: Path) -> None:
        """Write the texts as a shard: `{out}.documents.arrow` and what belongs to it.

        A text is a document of one chunk; its source is "tasks", its id says its kind.
        """
        texts = [text for _, text in self._texts]
        hashes = [xxhash.xxh3_64_intdigest(text.encode()) for text in texts]
        names = [
            f"{kind}:{out.name}:{row}" for row, (kind, _) in enumerate(self._texts)
        ]
        rows = np.arange(len(texts))
        documents = {
            "text": texts,
            "content_hash": hashes,
            "source": [schemas.TASK_SOURCE] * len(texts),
            "source_id": names,
        }
        chunks = {
            "doc_row": rows.astype(np.int32),
            "start": np.zeros(len(texts), np.int64),
            "end": np.array([len(text) for text in texts], np.int64),
            "separator": np.zeros(len(texts), np.bool_),
        }
        _write_arrow(f"{out}.documents.arrow", documents, schemas.DOCUMENTS)
        _write_arrow(f"{out}.chunks.arrow", chunks, schemas.CHUNKS)
        np.save(f"{out}.hashes.npy", np.array(hashes, np.uint64))
        np.save(f"{out}.rows.npy", rows)
        lengths = [len(ids) for ids in self._ids]
        np.save(f"{out}.offsets.npy", np.append(0, np.cumsum(lengths, dtype=np.int64)))
        np.save(f"{out}.ids.npy", np.concatenate([np.empty(0, np.uint32), *self._ids]))


def _write_arrow(path: str, columns: dict[str, object], schema: pa.Schema) -> None:
    table = pa.Table.from_pydict(columns, schema)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(table)
