"""Verify dependence: keep the sequences whose later meta-chunks need the earlier ones.

In:  SEQUENCES as composed, and a causal language model (the section `scorer`).
Out: SEQUENCES whose mean gain is above `compose.verify_dependence`, and DEPENDENCE, the
     numbers of every meta-chunk of every composed sequence.

`dependence.py` has the measure; here are the texts that it needs, which `stats` and
experiments use as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import Int8s, Ints
from nextlong.artifacts.blocks import Resolved, resolve, sliced, span_texts
from nextlong.artifacts.corpus_files import CorpusFiles, count_chunks, documents_of
from nextlong.artifacts.results import ComposeFiles, ComposeResult
from nextlong.artifacts.sequence_files import SequenceFiles
from nextlong.engine.step import Artifacts, ShardFiles, Step, StepFiles, Task
from nextlong.errors import CorpusError, RecipeError
from nextlong.recipe.keys import Compose, Scorer
from nextlong.retrieval.surprisal import (
    KnownScorer,
    SurprisalModel,
    known_scorer,
    load_scorer,
    scorer_identity,
    scorer_resources,
)
from nextlong.rng import rng_for
from nextlong.sequences.dependence import (
    Dependence,
    SequenceText,
    dependence,
    mean_gain,
    score_meta_chunks,
)
from nextlong.sequences.shortfall import is_extended

# The step that composes where another one filters its sequences.
COMPOSED: Final = "composed"
# Sequences whose rows are scored together, in batches of like length.
_AT_ONCE: Final = 16
# Unrelated text, as a multiple of the characters that it replaces: its tokens may be
# longer.
_UNRELATED: Final = 1.5
# Chunks tried until one is of another document.
_MAX_TRIES: Final = 10_000
_MAX_DROPPED_EXAMPLES: Final = 100

# One row per composed sequence; the lists have one value per later meta-chunk. The gain
# is NaN where no token shows a dependence.
DEPENDENCE: Final = pa.schema(
    [
        pa.field("sequence_id", pa.string(), nullable=False),
        pa.field("is_kept", pa.bool_(), nullable=False),
        pa.field("tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("gain", pa.list_(pa.float32()), nullable=False),
        pa.field("gap", pa.list_(pa.int32()), nullable=False),
    ]
)


class DependenceFiles(StepFiles):
    """DEPENDENCE of every SEQUENCES file, of a run that verifies it."""

    step = "compose"
    dependence = ShardFiles(".dependence.arrow")


def check_dependence(compose: Compose) -> None:
    """Raise RecipeError if dependence is to be verified where no method shows any."""
    min_gain = compose.verify_dependence
    if min_gain is not None and not is_extended(compose):
        raise RecipeError(
            where="compose.verify_dependence",
            value=f"{min_gain:g}",
            problem=f"needs meta-chunks, and method {compose.method} has none",
            fix="remove it, or use compose.method=nextlong",
        )


def verify_dependence_step(
    compose: Compose, scorer: Scorer, composed: Step, inputs: Sequence[Step]
) -> Step:
    """Return the step that filters the sequences of the step `composed`.

    Raises RecipeError if the recipe names no model.
    """
    min_gain = compose.verify_dependence
    assert min_gain is not None

    known = known_scorer(scorer)

    def tasks(done: Artifacts) -> list[Task]:
        results = done[COMPOSED].results(ComposeResult)
        counts = [count for result in results for count in result.sequences_per_file]
        files = SequenceFiles.of({**done, ComposeFiles.step: done[COMPOSED]}, counts)
        # One task may have composed all files; then the first one counts what it
        # dropped.
        before = results if len(results) == len(counts) else results[:1]
        filtering: list[Task] = []
        for part in range(len(counts)):
            filtering.append(
                partial(
                    _filter_part,
                    part=part,
                    files=files,
                    scorer=known,
                    min_gain=min_gain,
                    before=before[part] if part < len(before) else None,
                )
            )
        return filtering

    return Step(
        name=ComposeFiles.step,
        phase="compose",
        version=1,
        config={"min_gain": min_gain, "scorer": scorer_identity(scorer)},
        inputs=(*inputs, composed),
        tasks=tasks,
        result=ComposeResult,
        resources=scorer_resources(),
    )


def _filter_part(
    out: Path,
    *,
    part: int,
    files: SequenceFiles,
    scorer: KnownScorer,
    min_gain: float,
    before: ComposeResult | None,
) -> ComposeResult:
    """Write the kept sequences of a SEQUENCES file, and DEPENDENCE of all.

    The result also counts what was dropped `before`, when these were composed.
    """
    model = load_scorer(scorer)
    kept = 0
    examples: list[tuple[int, int, int]] = []
    dropped = 0
    with (
        pa.ipc.open_file(pa.memory_map(str(files.sequences[part]))) as reader,
        pa.OSFile(f"{out}.sequences.arrow", "wb") as sequences_sink,
        pa.OSFile(f"{out}.dependence.arrow", "wb") as dependence_sink,
        pa.ipc.new_file(sequences_sink, schemas.SEQUENCES) as sequences,
        pa.ipc.new_file(dependence_sink, DEPENDENCE) as measured,
    ):
        for number, found in enumerate(_of_part(model, files, part)):
            batch = reader.get_batch(number)
            is_kept = mean_gain(found) > min_gain
            measured.write_batch(_dependence_row(batch, found, is_kept=is_kept))
            if is_kept:
                sequences.write_batch(batch)
                kept += 1
                continue
            dropped += 1
            if dropped <= _MAX_DROPPED_EXAMPLES:
                examples.append(_example(batch))
    result = ComposeResult(
        sequences=kept,
        sequences_per_file=(kept,),
        dropped={schemas.DropReason.NO_DEPENDENCE: dropped} if dropped else {},
        dropped_examples={schemas.DropReason.NO_DEPENDENCE: tuple(examples)},
        longest_dropped_tokens=0,
    )
    return result if before is None else _with_earlier(result, before)


def _with_earlier(result: ComposeResult, before: ComposeResult) -> ComposeResult:
    """Return a result that also counts what was dropped before."""
    return result.model_copy(
        update={
            "dropped": {**before.dropped, **result.dropped},
            "dropped_examples": {**before.dropped_examples, **result.dropped_examples},
            "longest_dropped_tokens": before.longest_dropped_tokens,
            "chunks_at_max_uses": before.chunks_at_max_uses,
        }
    )


def _example(sequence: pa.RecordBatch) -> tuple[int, int, int]:
    """Return the first chunk of a sequence, its meta-chunks and its tokens."""
    chunks = sequence.column("chunk_id").values.to_numpy()
    roles = sequence.column("role").values.to_numpy()
    metas = chunks[roles == schemas.META]
    tokens = sequence.column("token_end").values[-1].as_py()
    return int(metas[0]), len(metas), int(tokens)


def _dependence_row(
    sequence: pa.RecordBatch, found: Sequence[Dependence], *, is_kept: bool
) -> pa.RecordBatch:
    row: dict[str, Any] = {
        "sequence_id": sequence.column("sequence_id"),
        "is_kept": [is_kept],
    }
    for name in Dependence._fields:
        row[name] = [[getattr(chunk, name) for chunk in found]]
    return pa.RecordBatch.from_pydict(row, schema=DEPENDENCE)


def _of_part(
    model: SurprisalModel, files: SequenceFiles, part: int
) -> Iterator[list[Dependence]]:
    """Yield the dependence of each sequence of a SEQUENCES file, in order."""
    for block in resolve(files, part, take=files.take[part]):
        yield from dependence_of_block(model, block, files)


def dependence_of_block(
    model: SurprisalModel, block: Resolved, files: SequenceFiles
) -> Iterator[list[Dependence]]:
    """Yield the dependence of each sequence of a block, of each later meta-chunk."""
    for first in range(0, len(block), _AT_ONCE):
        part = sliced(block, first, min(len(block), first + _AT_ONCE))
        texts = [sequence_text(part, number, files) for number in range(len(part))]
        for chunks in score_meta_chunks(model, texts):
            yield [dependence(chunk) for chunk in chunks]


def sequence_text(block: Resolved, number: int, files: SequenceFiles) -> SequenceText:
    """Return the text of a sequence of a block, and text that is unrelated to it."""
    spans = np.arange(block.span_offsets[number], block.span_offsets[number + 1])
    roles = block.roles[spans]
    # Special tokens are those of another tokenizer than the model's.
    is_text = (roles != schemas.BOS) & (roles != schemas.EOS)
    spans = spans[is_text]
    roles = block.roles[spans]
    is_replaced = np.isin(roles, (schemas.META, schemas.CONTEXT, schemas.DOCUMENT))
    chars = block.char_ends[spans] - block.char_starts[spans]
    unrelated = Unrelated(files.corpus).text(
        set(block.doc_ids[spans].tolist()),
        chars=_UNRELATED * int(chars[is_replaced].sum()),
        key=block.sequence_ids[number],
    )
    texts = span_texts(block, files, spans)
    if np.any(roles == schemas.META):
        return SequenceText(texts=texts, roles=roles.tolist(), unrelated=unrelated)
    texts, parts = _document_parts(texts, roles, block.doc_ids[spans])
    return SequenceText(
        texts=texts, roles=parts, unrelated=unrelated, excluded=unrelated
    )


def _document_parts(
    texts: Sequence[str], roles: Int8s, documents: Ints
) -> tuple[list[str], list[int]]:
    """Return the texts of spans with successive chunks of a document as one text.

    They have the role of a meta-chunk. A separator between the chunks is part of it.
    """
    joined: list[str] = []
    joined_roles: list[int] = []
    before = schemas.NO_CHUNK  # the document that the last text is of
    for text, role, document in zip(texts, roles, documents, strict=True):
        is_separator = role == schemas.SEPARATOR and before != schemas.NO_CHUNK
        is_document = role == schemas.DOCUMENT
        if is_separator or (is_document and document == before):
            joined[-1] += text
            continue
        joined.append(text)
        joined_roles.append(schemas.META if is_document else int(role))
        before = int(document) if is_document else schemas.NO_CHUNK
    return joined, joined_roles


@dataclass(frozen=True)
class Unrelated:
    """Random text of a corpus, by key."""

    corpus: CorpusFiles

    def text(self, used: set[int], *, chars: float, key: str) -> str:
        """Return random chunks of documents that are not `used`, of so many characters.

        Fewer if the corpus has hardly any other document; raises CorpusError if it has
        none.
        """
        pieces: list[str] = []
        length = 0
        for chunk in self._random_chunks(key):
            (document,) = documents_of(np.array([chunk]), self.corpus.chunks).tolist()
            if document in used:
                continue
            pieces.append(self.corpus.text(chunk))
            length += len(pieces[-1])
            if length >= chars:
                break
        if not pieces:
            raise CorpusError(
                where=f"sequence {key}",
                problem="it has text of all documents, so none is left to replace what "
                "its meta-chunks may depend on",
                fix="add documents, or lower compose.target_tokens",
            )
        return "\n".join(pieces)

    def _random_chunks(self, key: str) -> Iterator[int]:
        rng = rng_for(0, "dependence.unrelated", key)
        counts = np.array([count_chunks(path) for path in self.corpus.chunks])
        shares = counts / counts.sum()
        for _ in range(_MAX_TRIES):
            shard = int(rng.choice(len(counts), p=shares))
            rows = rng.integers(counts[shard], size=1)
            yield int(schemas.pack_ids(shard, rows)[0])
