"""Compose drafts into sequences of exactly T tokens.

In:  DRAFTS, the token counts of the chunks that they name, and the text of chunks that
     are cut.
Out: SEQUENCES: spans that tile [0, T), each the first tokens of a chunk, a separator,
     or a special token.

`fit.py` implements the rules. Here the text decides where a chunk is cut: between two
characters if possible nearby, after at least one character, and so that the remaining
text repeats neither the meta-document nor another negative
(docs/decisions/0005-near-duplicates.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import AnyArray, Ints
from nextlong.artifacts import corpus_files, results, sequence_files
from nextlong.artifacts.blocks import Cuts, cuts_of
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.artifacts.results import (
    ChunkResult,
    ComposeFiles,
    ComposeResult,
    DraftFiles,
    ReferencedChunksResult,
    TokenizerFiles,
    TokenizerResult,
)
from nextlong.engine.step import Artifacts, Step, Task
from nextlong.errors import RunError
from nextlong.plugins import KNOWN_ANSWERS
from nextlong.recipe.keys import MIN_GAP_CHUNKS, NEGATIVES, Compose
from nextlong.retrieval.near_duplicates import rule, shingles
from nextlong.retrieval.near_duplicates.shingles import WeightsFiles
from nextlong.rng import rng_for
from nextlong.sequences import fit
from nextlong.sequences.known_answers import TaskInserter, TaskSettings
from nextlong.sequences.shortfall import has_gaps, is_extended
from nextlong.sequences.tasks.base import KnownTask
from nextlong.sequences.tokenize import Engine
from nextlong.text import Json

_Pieces = list[fit.SizedChunk]
_BLOCK_PIECES = 200_000  # looked up together; about 60 MB
# Recorded for each reason and task.
_MAX_DROPPED_EXAMPLES = 100
_SHORT = (schemas.DropReason.TOO_FEW_NEGATIVES, schemas.DropReason.TOO_FEW_DOCUMENTS)
# What a draft may lack because its candidates ran out, of which it knows the cause.
_LACKS_NEGATIVES = (
    schemas.DropReason.NO_NEGATIVES,
    schemas.DropReason.TOO_FEW_NEGATIVES,
)


class _ComposeInputs(NamedTuple):
    """The files that composing reads.

    `near_duplicates`: (SHINGLES, WEIGHTS, threshold), None if they are not filtered.
    """

    tokens: sequence_files.TokenStore
    corpus: CorpusFiles
    token_chars: Path
    tokenizer: Path
    near_duplicates: tuple[shingles.ShingleStore, Path, float] | None = None


class _DroppedDrafts:
    """The dropped drafts: how many for each reason, and the first few of these."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        # (first chunk, chunks of the (meta-)documents, tokens) by reason
        self.examples: dict[str, list[tuple[int, int, int]]] = {}
        self.longest_tokens = 0  # of those that are too short

    def add(self, dropped: fit.Dropped, draft: pa.RecordBatch, pieces: _Pieces) -> None:
        """Count a draft of these pieces that was dropped."""
        self.counts[dropped.reason] += 1
        if self.counts[dropped.reason] <= _MAX_DROPPED_EXAMPLES:
            roles = draft.column("role").values.to_numpy()
            meta_chunks = int(np.count_nonzero(roles == schemas.META))
            example = (pieces[0].chunk, meta_chunks or len(pieces), dropped.tokens)
            self.examples.setdefault(dropped.reason, []).append(example)
        if dropped.reason in _SHORT:
            self.longest_tokens = max(self.longest_tokens, dropped.tokens)


def _compose_drafts(
    out: Path,
    *,
    drafts: Sequence[Path],
    take: Sequence[int],
    inputs: _ComposeInputs,
    rules: fit.Rules,
    method: str,
    seed: int,
    max_uses: int | None = None,
    inserter: TaskInserter | None = None,
) -> ComposeResult:
    """Compose the first `take[i]` drafts of each file, and count the dropped ones.

    Writes `{out}.sequences.arrow`, or `{out}.{i:05d}.sequences.arrow` for several
    files. With `max_uses`, a chunk is a negative of at most this many sequences, so one
    task must compose all files, in order. Tasks are inserted by the `inserter`, which
    writes its texts too.
    """
    uses = Counter[int]()
    blocked: set[int] = set()  # chunks that were used `max_uses` times
    dropped = _DroppedDrafts()
    kept: list[int] = []  # by file
    for index, (path, taken) in enumerate(zip(drafts, take, strict=True)):
        kept.append(0)
        file_out = f"{out}.{index:05d}" if len(drafts) > 1 else f"{out}"
        with (
            pa.OSFile(f"{file_out}.sequences.arrow", "wb") as sink,
            pa.ipc.new_file(sink, schemas.SEQUENCES) as writer,
        ):
            drafts_and_pieces = _drafts_and_pieces(
                path,
                taken,
                tokens=inputs.tokens,
                chunks=inputs.corpus.chunks,
            )
            for draft, pieces in drafts_and_pieces:
                compose = partial(
                    _compose_draft,
                    draft,
                    pieces,
                    inputs=inputs,
                    rules=rules,
                    seed=seed,
                    blocked=blocked,
                )
                if inserter is None:
                    spans = compose()
                else:
                    spans = inserter.compose(
                        draft.column("sequence_id")[0].as_py(),
                        compose,
                        tokens_of=inputs.tokens.counts,
                    )
                if isinstance(spans, fit.Dropped):
                    dropped.add(spans, draft, pieces)
                    continue
                if max_uses is not None:
                    negatives = _negatives_in(spans)
                    uses.update(negatives)
                    blocked |= {chunk for chunk in negatives if uses[chunk] >= max_uses}
                writer.write_batch(_sequence_row(draft, spans, method))
                kept[-1] += 1
    examples = {
        reason: tuple(reason_examples)
        for reason, reason_examples in dropped.examples.items()
    }
    without_room = 0
    if inserter is not None:
        inserter.write(out)
        without_room = inserter.without_room
    return ComposeResult(
        sequences=sum(kept),
        sequences_per_file=tuple(kept),
        dropped=dict(dropped.counts),
        dropped_examples=examples,
        longest_dropped_tokens=dropped.longest_tokens,
        chunks_at_max_uses=len(blocked),
        without_room=without_room,
    )


def _negatives_in(spans: list[fit.TokenSpan]) -> set[int]:
    return {span.chunk for span in spans if span.role == schemas.NEGATIVE}


def _sequence_row(
    draft: pa.RecordBatch,
    spans: list[fit.TokenSpan],
    method: str,
) -> pa.RecordBatch:
    """Return the row of SEQUENCES of a draft, composed into these spans."""
    row: Json = {name: draft.column(name) for name in ("sequence_id", "key", "layout")}
    row["method"] = [method]
    # A column of lists for each field of the spans.
    values = zip(*spans, strict=True)
    for name, span_values in zip(schemas.SPAN_COLUMNS, values, strict=True):
        row[name] = [span_values]
    return pa.RecordBatch.from_pydict(row, schema=schemas.SEQUENCES)


def _compose_draft(
    draft: pa.RecordBatch,
    pieces: _Pieces,
    free: int = 0,
    *,
    inputs: _ComposeInputs,
    rules: fit.Rules,
    seed: int,
    blocked: set[int],
) -> list[fit.TokenSpan] | fit.Dropped:
    """Return the spans of a draft, given the pieces that it lists.

    They leave `free` tokens of the sequence to tasks.
    """
    rules = replace(rules, target_tokens=rules.target_tokens - free)
    roles = draft.column("role").values.to_numpy()
    starts = np.flatnonzero(roles == schemas.META).tolist()  # of groups, in pieces
    meta_chunks = [pieces[start].chunk for start in starts]
    cutter = _TextCutter(inputs, meta_chunks, separator_tokens=rules.separator_tokens)
    if draft.column("layout")[0].as_py() != schemas.Layout.EXTENDED:
        documents = draft.column("group").values.to_pylist()
        return fit.concatenate_spans(
            pieces, roles.tolist(), documents, rules, cutter=cutter
        )

    groups = [
        fit.Group(pieces[start], pieces[start + 1 : stop])
        for start, stop in pairwise([*starts, len(pieces)])
    ]
    pairs = draft.column("near_duplicates").values.to_numpy()
    sequence_id = draft.column("sequence_id")[0].as_py()
    spans = fit.compose_spans(
        groups,
        rules,
        rng=rng_for(seed, "position", sequence_id),
        blocked=blocked,
        near_duplicates=_repeats_by_chunk(pairs.reshape(-1, 2)),
        cutter=cutter,
    )
    shortage = draft.column("shortage")[0].as_py()
    if isinstance(spans, fit.Dropped) and shortage and spans.reason in _LACKS_NEGATIVES:
        return replace(spans, reason=schemas.DropReason(shortage))
    return spans


def _repeats_by_chunk(pairs: Ints) -> dict[int, list[int]]:
    """Return, for each chunk of pairs, (n, 2), the chunks with which it is paired.

    A draft over many small families of near-identical pages has tens of thousands of
    pairs, so they are grouped as arrays.
    """
    chunks = np.concatenate([pairs[:, 0], pairs[:, 1]])
    partners = np.concatenate([pairs[:, 1], pairs[:, 0]])
    order = np.argsort(chunks, kind="stable")
    distinct, firsts = np.unique(chunks[order], return_index=True)
    sorted_partners = partners[order].tolist()
    bounds = pairwise([*firsts.tolist(), len(sorted_partners)])
    return {
        chunk: sorted_partners[first:last]
        for chunk, (first, last) in zip(distinct.tolist(), bounds, strict=True)
    }


def _drafts_and_pieces(
    drafts: Path,
    take: int,
    *,
    tokens: sequence_files.TokenStore,
    chunks: Sequence[Path],
) -> Iterator[tuple[pa.RecordBatch, _Pieces]]:
    """Yield the first `take` drafts, each with its chunks as sized pieces.

    A block of drafts is looked up at a time.
    """
    block: list[pa.RecordBatch] = []
    ends = [0]  # of the drafts of the block, in pieces
    batches = corpus_files.record_batches(drafts)
    for index in range(take):
        _, draft = next(batches, (0, None))
        if draft is None:
            raise RunError(
                where=drafts,
                problem=f"it holds {index} of {take} drafts",
                fix="delete its folder and run again to rebuild it",
            )
        block.append(draft)
        ends.append(ends[-1] + len(draft.column("chunk_id").values))
        is_last = index == take - 1
        if ends[-1] < _BLOCK_PIECES and not is_last:
            continue
        pieces = _pieces_of(block, tokens, chunks)
        for finished_draft, (first, last) in zip(block, pairwise(ends), strict=True):
            yield finished_draft, pieces[first:last]
        block = []
        ends = [0]


def _pieces_of(
    block: list[pa.RecordBatch],
    tokens: sequence_files.TokenStore,
    chunks: Sequence[Path],
) -> _Pieces:
    """Return the chunks of some drafts, draft after draft, with their token counts.

    A piece is closed if no separator follows it: it ends in a newline, or its document
    continues in the next piece. Whole documents continue except at passages that
    decontamination removed.
    """
    # (P,) each: of the pieces of all drafts of the block.
    ids = _concatenated(block, "chunk_id")
    scores = _concatenated(block, "score")
    roles = _concatenated(block, "role")
    is_open, doc_row, start, end = corpus_files.chunk_columns(
        ids, chunks, ("separator", "doc_row", "start", "end")
    )
    # (P - 1,) whether the next piece continues the document; a negative never does.
    is_next_chunk = (roles[:-1] == schemas.DOCUMENT) & (ids[:-1] + 1 == ids[1:])
    is_adjacent = (doc_row[:-1] == doc_row[1:]) & (end[:-1] == start[1:])
    continues = np.append(is_next_chunk & is_adjacent, False)
    closed = ~is_open | continues
    # Lists of Python numbers, because `fit.py` handles one piece at a time.
    columns = (ids, tokens.counts(ids), closed, scores)
    fields = [column.tolist() for column in columns]
    return list(map(fit.SizedChunk, *fields))


def _concatenated(block: list[pa.RecordBatch], name: str) -> AnyArray:
    """Return the values of a column of lists, of all drafts of a block."""
    return np.concatenate([draft.column(name).values.to_numpy() for draft in block])


class _ChunkText(NamedTuple):
    """A chunk with its text, and the places where it may be cut."""

    chunk: int
    text: str
    cuts: Cuts


def _read_chunk_text(chunk: int, inputs: _ComposeInputs) -> _ChunkText:
    chunk_ids = np.array([chunk])
    text = inputs.corpus.text(chunk)
    starts, stops = inputs.tokens.bounds(chunk_ids)
    ids, _ = inputs.tokens.ids(chunk_ids, starts=starts, stops=stops)
    cuts = cuts_of(
        ids,
        chars=len(text),
        begins=bool(inputs.corpus.begins(chunk_ids)[0]),
        token_chars=np.load(inputs.token_chars, mmap_mode="r"),
        text_of=lambda: text,
        tokenizer=partial(sequence_files.read_tokenizer, inputs.tokenizer),
    )
    return _ChunkText(chunk, text, cuts)


class _TextCutter(fit.Cutter):
    """Cut the chunks of a sequence by their texts.

    `meta_chunks` are those of its meta-document, if it has one.
    """

    trimmed_tokens = 4  # a character has at most four bytes, hence byte-level tokens

    def __init__(
        self,
        inputs: _ComposeInputs,
        meta_chunks: Sequence[int],
        *,
        separator_tokens: int,
    ) -> None:
        """Read nothing yet: most sequences need one text and their meta-document's."""
        super().__init__(separator_tokens)
        self._inputs = inputs
        self._meta_chunks = meta_chunks
        self._document: shingles.ComparedDocument | None = None
        # An `lru_cache` of the bound method would refer to this object, which would
        # then keep its inputs, with all their open files, until the garbage collector
        # runs.
        self._looked_up: _ChunkText | None = None

    def negative(
        self,
        piece: fit.SizedChunk,
        budget: int,
        placed: Sequence[int],
        *,
        following: fit.Following = "nothing",
    ) -> fit.Cut | None:
        """Return the longest cut that fills the budget, with separators after it.

        A cut that ends in a newline has no separators after it. If nothing follows and
        no such cut exists, the budget is filled without a separator.
        """
        if piece.tokens < budget - self.separator_tokens:
            return None
        _, text, cuts = self._look_up(piece.chunk)
        for cut in self._possible_cuts(piece, budget):
            chars = int(cuts.chars[cut.tokens])
            ends_in_newline = text.endswith("\n", 0, chars)
            if chars and cuts.between[cut.tokens] and ends_in_newline == cut.closed:
                break
        else:
            if budget > piece.tokens or not self.may_join(following):
                return None
            cut = fit.Cut(budget, closed=True)
            chars = int(cuts.chars[budget])
        if not chars or self._repeats(text[:chars], placed):
            return None
        return cut

    def _possible_cuts(self, piece: fit.SizedChunk, budget: int) -> list[fit.Cut]:
        """Return the cuts that may fill a budget, longest first, whatever the text."""
        possible = []
        if budget <= piece.tokens:
            possible.append(fit.Cut(budget, closed=True))
        if not self.separator_tokens:
            return possible
        with_separator = budget - self.separator_tokens
        for tokens in range(
            with_separator, with_separator - self.trimmed_tokens - 1, -1
        ):
            is_whole = tokens == piece.tokens == with_separator
            if 1 <= tokens < piece.tokens or is_whole:
                possible.append(fit.Cut(tokens, closed=False))
        return possible

    def end(self, piece: fit.SizedChunk, tokens: int) -> int:
        """Return the most tokens, of `tokens` or a few fewer, that end a character.

        Up to four fewer are tried, as separators fill the rest; if none does, `tokens`.
        """
        _, _, cuts = self._look_up(piece.chunk)
        min_tokens = tokens
        if self.separator_tokens:
            min_tokens = max(1, tokens - self.trimmed_tokens)
        for kept in range(tokens, min_tokens - 1, -1):
            if cuts.between[kept] and cuts.chars[kept]:
                return kept
        return tokens

    def _look_up(self, chunk: int) -> _ChunkText:
        """Return the text of a chunk and its possible cuts; the last chunk is kept."""
        if self._looked_up is None or self._looked_up.chunk != chunk:
            self._looked_up = _read_chunk_text(chunk, self._inputs)
        return self._looked_up

    def _repeats(self, visible: str, placed: Sequence[int]) -> bool:
        """Return whether what a cut leaves repeats the document or a placed chunk."""
        if self._inputs.near_duplicates is None:
            return False
        store, weights, threshold = self._inputs.near_duplicates
        if self._document is None:
            texts = self._inputs.corpus.texts(np.array(self._meta_chunks))
            (self._document,) = shingles.documents_of([texts.tolist()])
        own = shingles.shingles([visible])
        others = store.of(np.array(placed, np.int64))

        # Only placed chunks that share a shingle with the text are compared: text 0 is
        # the cut chunk, the others follow.
        owners = np.repeat(np.arange(len(placed)), np.diff(others.offsets))
        shared = shingles.positions_of(own.hashes, others.hashes)
        texts_hashes = [own.hashes]
        for other in np.unique(owners[shared]).tolist():
            first, last = others.offsets[other : other + 2]
            texts_hashes.append(others.hashes[first:last])
        offsets = np.cumsum([0, *map(len, texts_hashes)])
        copies = rule.find_near_duplicates(
            shingles.Shingles(np.concatenate(texts_hashes), offsets),
            document=self._document,
            weights=corpus_files.opened(weights),
            threshold=threshold,
        )
        repeats_document = bool(copies.of_document[0])
        repeats_other = bool((copies.pairs == 0).any())
        return repeats_document or repeats_other


def compose_step(
    compose: Compose,
    inputs: Sequence[Step],
    *,
    name: str = ComposeFiles.step,
    target_tokens: int,
    seed: int,
    near_duplicates: float | None,
    engine: Engine,
) -> Step:
    """Return the step from DRAFTS and token counts to SEQUENCES.

    With shingles and weights among the `inputs`, cut negatives are compared with the
    meta-document and each other again.
    """
    max_uses = compose.max_uses if is_extended(compose) else None
    min_gap = compose.min_gap_tokens if has_gaps(compose) else None
    repeats_meta_chunks = NEGATIVES[compose.negatives].origin == "meta-chunk"
    choices: Json = {
        "target_tokens": target_tokens,
        "fit": compose.fit,
        "position": compose.position,
        "reuse": "free" if repeats_meta_chunks else "never",
    }
    config = choices | {
        "method": compose.method,
        "min_gap_tokens": min_gap,
        "seed": seed,
        "max_uses": max_uses,
    }
    if compose.tasks.share > 0:
        config["tasks"] = {
            "share": compose.tasks.share,
            "kinds": {
                name: KNOWN_ANSWERS.load(name, KnownTask).version
                for name in compose.tasks.names
            },
        }

    def tasks(done: Artifacts) -> list[Task]:
        compared = None
        if "weights" in done and near_duplicates is not None and compose.fit == "exact":
            weights = WeightsFiles.of(done).weights
            compared = (shingles.shingle_store(done), weights, near_duplicates)
        inputs = _ComposeInputs(
            tokens=sequence_files.token_store(done),
            corpus=corpus_files.corpus(done),
            token_chars=TokenizerFiles.of(done).token_chars,
            tokenizer=TokenizerFiles.of(done).tokenizer,
            near_duplicates=compared,
        )
        special = sequence_files.special_ids(done)
        rules = fit.Rules(
            **choices,
            min_gap_tokens=_min_gap_tokens(done, min_gap),
            separator_tokens=len(special.separator),
            bos_tokens=len(special.bos),
            eos_tokens=len(special.eos),
        )
        task = partial(
            _compose_drafts,
            inputs=inputs,
            rules=rules,
            method=compose.method,
            seed=seed,
            max_uses=max_uses,
        )
        drafts = DraftFiles.of(done).drafts
        takes = done["referenced_chunks"].result(ReferencedChunksResult).take
        composing = [partial(task, drafts=drafts, take=takes)]
        if max_uses is None:
            composing = [
                partial(task, drafts=[path], take=[take])
                for path, take in zip(drafts, takes, strict=True)
            ]
        if compose.tasks.share == 0:
            return list(composing)
        settings = TaskSettings(
            kinds=compose.tasks.names,
            share=compose.tasks.share,
            seed=seed,
            tokenizer=inputs.tokenizer,
            engine=engine,
            separator=done["tokenizer"].result(TokenizerResult).special_texts[0],
        )
        first_shard = len(inputs.corpus.documents)
        with_tasks: list[Task] = []
        for shard, part in enumerate(composing, start=first_shard):
            inserter = TaskInserter(settings, inputs.corpus, shard)
            with_tasks.append(partial(part, inserter=inserter))
        return with_tasks

    return Step(
        name=name,
        phase="compose",
        version=8,
        config=config,
        inputs=tuple(inputs),
        tasks=tasks,
        result=ComposeResult,
    )


def _min_gap_tokens(done: Artifacts, min_gap: int | str | None) -> int:
    """Return the tokens of `compose.min_gap_tokens`; None: gaps may be empty.

    "auto" is half the tokens of a mean chunk of the corpus, estimated by E.
    """
    if min_gap is None:
        return 0
    if min_gap != "auto":
        return int(min_gap)
    shards = results.chunks_of(done).results(ChunkResult)
    chars = sum(shard.chars for shard in shards)
    chunks = sum(shard.chunks for shard in shards)
    chunk_chars = chars / max(1, chunks)
    chars_per_token = done["tokenizer"].result(TokenizerResult).chars_per_token
    chunk_tokens = chunk_chars / chars_per_token
    return max(1, math.ceil(MIN_GAP_CHUNKS * chunk_tokens))
