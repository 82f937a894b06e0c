"""Compose drafts into sequences of exactly T tokens.

In:  DRAFTS, the token counts of the chunks that they name, and the text of chunks that are cut.
Out: SEQUENCES: spans that tile [0, T), each the first tokens of a chunk, a separator, or a special token.

`fit.py` implements the rules. Here the text decides where a chunk is cut: between two characters if possible nearby, after
at least one character, and so that the remaining text repeats neither the meta-document nor another negative
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
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.artifacts import finished, lookup
from nextlong.artifacts.finished import (
    ChunkResult,
    ComposeResult,
    CorpusFiles,
    ReferencedChunksResult,
    TokenizerResult,
)
from nextlong.artifacts.resolve import Cuts, cuts_of
from nextlong.engine.step import Artifacts, Step, Task
from nextlong.errors import RunError
from nextlong.recipe.keys import MIN_GAP_CHUNKS, NEGATIVES, Compose
from nextlong.retrieval.near_duplicates import rule, shingles
from nextlong.rng import rng_for
from nextlong.sequences import fit
from nextlong.sequences.shortfall import has_gaps, is_extended
from nextlong.text import Json

_Pieces = list[fit.SizedChunk]
_PIECES_HELD = 200_000  # about 60 MB
_DROPPED_EXAMPLES = 100  # recorded for each reason and task: first chunk, chunks of the (meta-)documents, tokens
_SHORT = (schemas.DropReason.TOO_FEW_NEGATIVES, schemas.DropReason.TOO_FEW_DOCUMENTS)
# What a draft may lack because its candidates ran out, of which it knows the cause.
_LACKS_NEGATIVES = (
    schemas.DropReason.NO_NEGATIVES,
    schemas.DropReason.TOO_FEW_NEGATIVES,
)


class _ComposeInputs(NamedTuple):
    """The files that composing reads; `near_duplicates`: (SHINGLES, WEIGHTS, threshold), None if they are not filtered."""

    tokens: lookup.TokenStore
    corpus: CorpusFiles
    token_chars: Path
    tokenizer: Path
    near_duplicates: tuple[shingles.ShingleStore, Path, float] | None = None


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
) -> ComposeResult:
    """Compose the first `take[i]` drafts of each file, and count the dropped ones.

    Writes `{out}.sequences.arrow`, or `{out}.{i:05d}.sequences.arrow` for several files. With `max_uses`, a chunk is a negative
    of at most this many sequences, so one task must compose all files, in order.
    """
    uses, dropped = Counter[int](), Counter[str]()
    blocked: set[int] = set()  # chunks that were used `max_uses` times
    examples: dict[str, list[tuple[int, int, int]]] = {}
    kept, longest = list[int](), 0
    for number, (path, taken) in enumerate(zip(drafts, take, strict=True)):
        kept.append(0)
        file_out = f"{out}.{number:05d}" if len(drafts) > 1 else f"{out}"
        with (
            pa.OSFile(f"{file_out}.sequences.arrow", "wb") as sink,
            pa.ipc.new_file(sink, schemas.SEQUENCES) as writer,
        ):
            for draft, pieces in _drafts_and_pieces(
                path, taken, inputs.tokens, inputs.corpus.chunks
            ):
                spans = _compose_draft(
                    draft, pieces, inputs, rules, seed=seed, blocked=blocked
                )
                if isinstance(spans, fit.Dropped):
                    dropped[spans.reason] += 1
                    if dropped[spans.reason] <= _DROPPED_EXAMPLES:
                        metas = int(
                            (
                                draft.column("role").values.to_numpy() == schemas.META
                            ).sum()
                        )
                        example = (pieces[0].chunk, metas or len(pieces), spans.tokens)
                        examples.setdefault(spans.reason, []).append(example)
                    longest = max(
                        longest, spans.tokens if spans.reason in _SHORT else 0
                    )
                    continue
                if max_uses is not None:
                    negatives = {
                        span.chunk for span in spans if span.role == schemas.NEGATIVE
                    }
                    uses.update(negatives)
                    blocked.update(
                        chunk for chunk in negatives if uses[chunk] >= max_uses
                    )
                values = zip(
                    schemas.SPAN_COLUMNS, zip(*spans, strict=True), strict=True
                )
                same = {
                    name: draft.column(name)
                    for name in ("sequence_id", "key", "layout")
                }
                row = {
                    **same,
                    "method": [method],
                    **{name: [column] for name, column in values},
                }
                writer.write_batch(
                    pa.RecordBatch.from_pydict(row, schema=schemas.SEQUENCES)
                )
                kept[-1] += 1
    return ComposeResult(
        sequences=sum(kept),
        sequences_per_file=tuple(kept),
        dropped=dict(dropped),
        dropped_examples={
            reason: tuple(of_reason) for reason, of_reason in examples.items()
        },
        longest_dropped_tokens=longest,
        chunks_at_max_uses=len(blocked),
    )


def _compose_draft(
    draft: pa.RecordBatch,
    pieces: _Pieces,
    inputs: _ComposeInputs,
    rules: fit.Rules,
    *,
    seed: int,
    blocked: set[int],
) -> list[fit.TokenSpan] | fit.Dropped:
    starts = np.flatnonzero(
        draft.column("role").values.to_numpy() == schemas.META
    ).tolist()
    cutter = _TextCutter(
        inputs,
        [pieces[place].chunk for place in starts],
        separator_tokens=rules.separator_tokens,
    )
    if draft.column("layout")[0].as_py() != schemas.Layout.EXTENDED:
        return fit.concatenate_spans(
            pieces, draft.column("group").values.to_pylist(), rules, cutter=cutter
        )
    groups = [
        fit.Group(pieces[a], pieces[a + 1 : b])
        for a, b in pairwise([*starts, len(pieces)])
    ]
    near_duplicates: dict[int, list[int]] = {}
    for one_chunk, other in (
        draft.column("near_duplicates").values.to_numpy().reshape(-1, 2).tolist()
    ):
        near_duplicates.setdefault(one_chunk, []).append(other)
        near_duplicates.setdefault(other, []).append(one_chunk)
    rng = rng_for(seed, "position", draft.column("sequence_id")[0].as_py())
    spans = fit.compose_spans(
        groups,
        rules,
        rng=rng,
        blocked=blocked,
        near_duplicates=near_duplicates,
        cutter=cutter,
    )
    shortage = draft.column("shortage")[0].as_py()
    if isinstance(spans, fit.Dropped) and shortage and spans.reason in _LACKS_NEGATIVES:
        return replace(spans, reason=schemas.DropReason(shortage))
    return spans


def _drafts_and_pieces(
    drafts: Path, take: int, tokens: lookup.TokenStore, chunks: Sequence[Path]
) -> Iterator[tuple[pa.RecordBatch, _Pieces]]:
    """Yield the first `take` drafts, and their chunks with token counts and whether a separator follows.

    No separator follows a chunk that ends in a newline, or whose document continues in the next piece of the draft; whole
    documents continue except at passages that decontamination removed.
    """
    block: list[pa.RecordBatch] = []  # drafts whose chunks are looked up together
    ends = [0]  # of the drafts of the block, in pieces
    read = lookup.record_batches(drafts)
    for number in range(take):
        if (draft := next((draft for _, draft in read), None)) is None:
            raise RunError(
                f"{drafts} holds {number} of {take} drafts; delete its folder and run again to rebuild it"
            )
        block.append(draft)
        ends.append(ends[-1] + len(block[-1].column("chunk_id").values))
        if ends[-1] < _PIECES_HELD and number < take - 1:
            continue
        # (P,) each: the concatenated pieces of all drafts of the block.
        columns = (
            [one.column(name).values.to_numpy() for one in block]
            for name in ("chunk_id", "score", "role")
        )
        ids, scores, roles = map(np.concatenate, columns)
        separator, doc_row, start, end = lookup.chunk_columns(
            ids, chunks, ("separator", "doc_row", "start", "end")
        )
        continues = (roles[:-1] == schemas.DOCUMENT) & (ids[:-1] + 1 == ids[1:])
        continues &= (doc_row[:-1] == doc_row[1:]) & (end[:-1] == start[1:])
        closed = ~separator | np.append(continues, False)
        pieces = list(
            map(
                fit.SizedChunk,
                ids.tolist(),
                tokens.counts(ids).tolist(),
                closed.tolist(),
                scores.tolist(),
            )
        )
        yield from zip(
            block, [pieces[first:last] for first, last in pairwise(ends)], strict=True
        )
        block, ends = [], [0]


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
        tokenizer=partial(finished.read_tokenizer, inputs.tokenizer),
    )
    return _ChunkText(chunk, text, cuts)


class _TextCutter(fit.Cutter):
    """Cut the chunks of a sequence by their texts; `meta_chunks` are those of its meta-document, if it has one."""

    trimmed_tokens = 4  # a character has at most four bytes, hence byte-level tokens

    def __init__(
        self,
        inputs: _ComposeInputs,
        meta_chunks: Sequence[int],
        *,
        separator_tokens: int,
    ) -> None:
        """Read nothing yet, because most sequences need only the texts of one chunk and of their meta-document."""
        super().__init__(separator_tokens)
        self._inputs, self._meta_chunks = inputs, meta_chunks
        self._document: shingles.ComparedDocument | None = None
        # An `lru_cache` of the bound method would refer to this object, which would then keep
        # its inputs, with all their open files, until the garbage collector runs.
        self._looked_up: _ChunkText | None = None

    def negative(
        self,
        piece: fit.SizedChunk,
        budget: int,
        placed: Sequence[int],
        *,
        following: fit.Following = "nothing",
    ) -> fit.Cut | None:
        """Return the longest cut that fills the budget, with separators after it unless it ends in a newline.

        If nothing follows and no such cut exists, the budget is filled without a separator.
        """
        if piece.tokens < budget - self.separator_tokens:
            return None
        _, text, cuts = self._look_up(piece.chunk)
        possible = [fit.Cut(budget, closed=True)] if budget <= piece.tokens else []
        if self.separator_tokens:
            most = budget - self.separator_tokens
            shorter = range(most, most - self.trimmed_tokens - 1, -1)
            fitting = (
                tokens
                for tokens in shorter
                if 1 <= tokens < piece.tokens or tokens == piece.tokens == most
            )
            possible += [fit.Cut(tokens, closed=False) for tokens in fitting]
        for cut in possible:
            kept = int(cuts.chars[cut.tokens])
            if (
                kept
                and cuts.between[cut.tokens]
                and text[:kept].endswith("\n") == cut.closed
            ):
                break
        else:
            if budget > piece.tokens or not self.may_join(following):
                return None
            cut = fit.Cut(budget, closed=True)
            kept = int(cuts.chars[budget])
        return cut if kept and not self._repeats(text[:kept], placed) else None

    def end(self, piece: fit.SizedChunk, tokens: int) -> int:
        """Return the most tokens, of `tokens` or up to four fewer, that end between two characters; else `tokens`."""
        _, _, cuts = self._look_up(piece.chunk)
        fewest = (
            max(1, tokens - self.trimmed_tokens) if self.separator_tokens else tokens
        )
        return next(
            (
                n
                for n in range(tokens, fewest - 1, -1)
                if cuts.between[n] and cuts.chars[n]
            ),
            tokens,
        )

    def _look_up(self, chunk: int) -> _ChunkText:
        """Return the text of a chunk and its possible cuts; the last chunk is kept."""
        if self._looked_up is None or self._looked_up.chunk != chunk:
            self._looked_up = _read_chunk_text(chunk, self._inputs)
        return self._looked_up

    def _repeats(self, visible: str, placed: Sequence[int]) -> bool:
        """Return whether the remaining text of a chunk repeats the meta-document or a placed chunk."""
        if self._inputs.near_duplicates is None:
            return False
        store, weights, threshold = self._inputs.near_duplicates
        if self._document is None:
            (self._document,) = shingles.documents_of(
                [self._inputs.corpus.texts(np.array(self._meta_chunks)).tolist()]
            )
        own, others = shingles.shingles([visible]), store.of(np.array(placed, np.int64))
        # Only placed chunks that share a shingle with the text are compared: text 0 is the cut chunk, the others follow.
        owners = np.repeat(np.arange(len(placed)), np.diff(others.offsets))
        sharing = np.unique(owners[np.isin(others.hashes, own.hashes)]).tolist()
        pieces = [
            others.hashes[others.offsets[other] : others.offsets[other + 1]]
            for other in sharing
        ]
        offsets = np.cumsum([0, len(own.hashes), *map(len, pieces)])
        compared, slots = (
            shingles.Shingles(np.concatenate([own.hashes, *pieces]), offsets),
            lookup.opened(weights),
        )
        copies = rule.find_near_duplicates(
            compared, document=self._document, weights=slots, threshold=threshold
        )
        return bool(copies.of_document[0]) or bool((copies.pairs == 0).any())


def compose_step(
    compose: Compose,
    inputs: Sequence[Step],
    *,
    target_tokens: int,
    seed: int,
    near_duplicates: float | None,
) -> Step:
    """Return the step from DRAFTS and token counts to SEQUENCES.

    With shingles and weights among the `inputs`, cut negatives are compared with the meta-document and each other again.
    """
    max_uses = compose.max_uses if is_extended(compose) else None
    min_gap = compose.min_gap_tokens if has_gaps(compose) else None
    reuse: Literal["free", "never"] = (
        "free" if NEGATIVES[compose.negatives].origin == "meta-chunk" else "never"
    )
    choices: Json = {
        "target_tokens": target_tokens,
        "fit": compose.fit,
        "position": compose.position,
        "reuse": reuse,
    }
    config = choices | {
        "method": compose.method,
        "min_gap_tokens": min_gap,
        "seed": seed,
        "max_uses": max_uses,
    }

    def tasks(done: Artifacts) -> list[Task]:
        special = finished.special_ids(done)
        compared = None
        if "weights" in done and near_duplicates is not None and compose.fit == "exact":
            compared = (
                shingles.shingle_store(done),
                done["weights"].file(".weights.npy"),
                near_duplicates,
            )
        token_chars, tokenizer = (
            done["tokenizer"].file(f".{name}")
            for name in ("tokenchars.npy", "tokenizer.json")
        )
        inputs = _ComposeInputs(
            finished.token_store(done),
            finished.corpus(done),
            token_chars,
            tokenizer,
            compared,
        )
        min_gap_tokens = 0 if min_gap is None or min_gap == "auto" else min_gap
        if min_gap == "auto":  # half the tokens of a mean chunk of the corpus, by E
            shards = finished.chunks_of(done).results(ChunkResult)
            chars = sum(shard.chars for shard in shards) / max(
                1, sum(shard.chunks for shard in shards)
            )
            chunk_tokens = (
                chars / done["tokenizer"].result(TokenizerResult).chars_per_token
            )
            min_gap_tokens = max(1, math.ceil(MIN_GAP_CHUNKS * chunk_tokens))
        lengths: Json = {
            f"{name}_tokens": len(getattr(special, name))
            for name in ("separator", "bos", "eos")
        }
        rules = fit.Rules(**choices, min_gap_tokens=min_gap_tokens, **lengths)
        drafts = done["draft"].files(".drafts.arrow")
        takes = done["referenced_chunks"].result(ReferencedChunksResult).take
        task = partial(
            _compose_drafts,
            inputs=inputs,
            rules=rules,
            method=compose.method,
            seed=seed,
            max_uses=max_uses,
        )
        if max_uses is not None:
            return [partial(task, drafts=drafts, take=takes)]
        return [
            partial(task, drafts=[path], take=[take])
            for path, take in zip(drafts, takes, strict=True)
        ]

    return Step("compose", 8, config, tuple(inputs), tasks, ComposeResult)
