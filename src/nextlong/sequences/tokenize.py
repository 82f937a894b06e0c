"""Tokenize the chunks that drafts refer to, each once.

In:  DRAFTS; DOCUMENTS and CHUNKS of all shards; a tokenizer.json; TOKENS of earlier variants, from which rows are copied.
Out: TOKENS of each shard: flat ids (uint32) and offsets (int64, one more than rows), both memory-mappable `.npy`; the ids of
     the i-th requested row are ids[offsets[i]:offsets[i + 1]]. No special tokens are added; their names in texts are text.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from nextlong import schemas
from nextlong.artifacts.finished import ChunkResult, ReferencedChunksResult, chunks_of, corpus
from nextlong.artifacts.lookup import count_chunks, iter_chunk_texts, read_chunks, record_batches, write_header
from nextlong.engine.runner import open_done
from nextlong.engine.step import Artifact, Artifacts, Estimate, Step, Task, TaskResult
from nextlong.errors import RunError
from nextlong.recipe.amounts import TOKENIZER_BYTES
from nextlong.sequences.encode import Engine, kept_encoder

_Known = tuple[Path, Path, Path]  # the rows, offsets and ids that an earlier variant has of a shard

_COPIED_ROWS = 4096  # rows copied at a time
# A worker keeps fastokens from task to task, and loading it takes as long as encoding 200 MB. For less text than that,
# several workers that were idle still finish sooner than one.
_CHARS_OF_A_TASK: Final = 40_000_000


class _TokensResult(TaskResult):
    """Chunks encoded or copied from an earlier variant; `mismatches`: chunks whose ids differ from the reference's."""

    chunks: int
    tokens: int
    chars: int
    copied_chunks: int
    mismatches: int


def referenced_chunks_step(chunk: Step, draft: Step, *, limit: int | None) -> Step:
    """Return the step that lists the chunks of the first `limit` DRAFTS (None: all)."""

    def tasks(done: Artifacts) -> list[Task]:
        drafts, chunks = done["draft"].files(".drafts.arrow"), chunks_of(done).files(".chunks.arrow")
        return [partial(_list_referenced_chunks, drafts=drafts, chunks=chunks, limit=limit)]

    estimate = Estimate(
        # 0.03 ms a draft of 400 chunks, 0.1 ms a shard; a trial could not measure this, because it is mostly start-up time.
        work=lambda amounts: amounts.drafted_chunks + amounts.chunks / 40,
        seconds=8e-8,
        disk="referenced_chunks",
        bytes=8,
        memory="chunks",
        rate="",
    )
    inputs = (chunk, draft)
    return Step("referenced_chunks", 1, {"limit": limit}, inputs, tasks, ReferencedChunksResult, estimate=estimate)


def _list_referenced_chunks(
    out: Path, *, drafts: Sequence[Path], chunks: Sequence[Path], limit: int | None
) -> ReferencedChunksResult:
    """Choose the first `limit` drafts and list their chunks; write `{out}.{shard}.rows.npy`, sorted, for each shard."""
    starts = np.cumsum([0, *map(count_chunks, chunks)])  # the first chunk of each shard among all chunks
    named = np.zeros(starts[-1], np.bool_)  # whether a draft names each chunk: one byte a chunk of the corpus
    take: list[int] = []
    for path in drafts:
        left = None if limit is None else limit - sum(take)
        take.append(0)
        for _, draft in islice(record_batches(path), left):
            ids = draft.column("chunk_id").values.to_numpy()
            named[starts[schemas.shard_of(ids)] + schemas.row_of(ids)] = True
            take[-1] += 1
    for shard, (first, last) in enumerate(pairwise(starts.tolist())):
        np.save(f"{out}.{shard:05d}.rows.npy", np.flatnonzero(named[first:last]))
    return ReferencedChunksResult(take=tuple(take), drafts=sum(take), chunks=int(np.count_nonzero(named)))


def tokens_step(ingest: Step, chunk: Step, tokenizer: Step, referenced: Step, *, engine: Engine) -> Step:
    """Return the step from the referenced chunks to TOKENS; rows that earlier variants have are copied."""
    version = 3
    config = {"engine": engine}

    def tasks(done: Artifacts) -> list[Task]:
        fingerprints = {step.name: step.fingerprint for step in (ingest, chunk, tokenizer)}
        run_dir = done["tokenizer"].folder.parent
        earlier: list[list[_Known]] = []  # finished TOKENS that have the fingerprints ids for the fingerprints rows
        for folder in sorted(run_dir.glob("[0-9][0-9]-tokens-*")):
            with suppress(RunError, ValueError):  # unfinished, damaged or partly removed: tokenize these rows again
                tokens = open_done("tokens", folder)
                manifest = tokens.manifest
                is_right = not any(shard.mismatches for shard in tokens.results(_TokensResult))
                is_same = manifest["version"] == version and manifest["config"] == config
                if is_right and is_same and fingerprints.items() <= manifest["inputs"].items():
                    (named,) = run_dir.glob(f"[0-9][0-9]-referenced_chunks-{manifest['inputs']['referenced_chunks']}")
                    rows = open_done("referenced_chunks", named).files(".rows.npy")
                    earlier.append(list(zip(rows, tokens.files(".offsets.npy"), tokens.files(".ids.npy"), strict=True)))
        text, rows_paths = corpus(done), done["referenced_chunks"].files(".rows.npy")
        chunked = chunks_of(done).results(ChunkResult)
        chunks, chars = sum(part.chunks for part in chunked), sum(part.chars for part in chunked)
        most_rows = _CHARS_OF_A_TASK * chunks // max(1, chars)
        # Consecutive shards make up a task, of at most `most_rows` rows unless it is a single shard.
        groups, room = list[list[_RequestedRows]](), 0
        for shard, paths in enumerate(zip(text.documents, text.chunks, rows_paths, strict=True)):
            count = len(np.load(paths[-1], mmap_mode="r"))
            if not groups or count > room:
                groups.append([])
                room = most_rows
            groups[-1].append(_RequestedRows(shard, *paths, known=[files[shard] for files in earlier]))
            room -= count
        path = done["tokenizer"].file(".tokenizer.json")
        return [partial(_tokenize_shards, requested=group, tokenizer=path, engine=engine) for group in groups]

    def check(done: Artifact) -> None:
        counts = [task.mismatches for task in done.results(_TokensResult)]
        if wrong := ", ".join(f"{count:,} of task {number}" for number, count in enumerate(counts) if count):
            raise RunError(
                f"fastokens gave other ids than the reference tokenizer for some checked chunks ({wrong}); "
                "run again with --set tokenizer.engine=reference, and please report it with the name of your tokenizer"
            )

    estimate = Estimate(
        work="referenced_chars",
        seconds=1.3e-8,
        disk="referenced_chars",
        bytes=0.9,
        tasks=lambda amounts: max(1.0, amounts.referenced_chars / _CHARS_OF_A_TASK),
        memory=lambda _: TOKENIZER_BYTES,
        rate="tokens",
    )
    inputs = (ingest, chunk, tokenizer, referenced)
    return Step("tokens", version, config, inputs, tasks, _TokensResult, check=check, estimate=estimate)


class _RequestedRows(NamedTuple):
    """A shard, the requested rows (.npy, sorted int64, shape (n,)), and the files that earlier variants have of it."""

    shard: int
    documents: Path
    chunks: Path
    rows: Path
    known: Sequence[_Known] = ()


def _tokenize_shards(
    out: Path, *, requested: Sequence[_RequestedRows], tokenizer: Path, engine: Engine
) -> _TokensResult:
    """Encode or copy the requested rows of shards; write `{out}.{shard}.ids.npy` and `.offsets.npy`."""
    encoder = kept_encoder(tokenizer, engine)
    encoder.checkable_texts = 0
    chunks = tokens = chars = copied = new_chars = 0
    shards = []
    for shard in requested:
        table, rows = read_chunks(shard.chunks, ("start", "end")), np.load(shard.rows)
        is_new = np.ones(len(rows), np.bool_)
        for known_rows, _, _ in shard.known:
            is_new &= ~np.isin(rows, np.load(known_rows), assume_unique=True)
        sizes = table["end"][rows] - table["start"][rows]
        shards.append((shard, rows, is_new))
        chunks, chars, copied = chunks + len(rows), chars + int(sizes.sum()), copied + int((~is_new).sum())
        new_chars += int(sizes[is_new].sum())
    encoder.expect(new_chars)
    for shard, rows, is_new in shards:
        new_ids, new_lengths = [np.empty(0, np.uint32)], [np.zeros(1, np.int64)]
        for batch in iter_chunk_texts(shard.documents, shard.chunks, rows[is_new]):
            ids, of_texts = encoder.encode_batch(batch.texts)
            new_ids.append(ids)
            new_lengths.append(of_texts)
        sources = [tuple(np.load(path, mmap_mode="r") for path in known) for known in shard.known]
        sources.append((rows[is_new], np.cumsum(np.concatenate(new_lengths)), np.concatenate(new_ids)))
        # (n,) each, of the requested rows: the number of the source, where the ids begin in it, and how many there are.
        origin, starts, lengths = (np.zeros(len(rows), np.int64) for _ in range(3))
        for number, (known_rows, offsets, _) in enumerate(sources):
            held = np.flatnonzero(np.isin(rows, known_rows, assume_unique=True))
            places = np.searchsorted(known_rows, rows[held])
            origin[held], starts[held], lengths[held] = number, offsets[places], offsets[places + 1] - offsets[places]
        stem = f"{out}.{shard.shard:05d}"
        with open(f"{stem}.ids.npy", "wb") as sink:
            write_header(sink, np.dtype(np.uint32), int(lengths.sum()))
            for first in range(0, len(rows), _COPIED_ROWS):
                block = (column[first : first + _COPIED_ROWS].tolist() for column in (origin, starts, lengths))
                pieces = [sources[number][2][start : start + size] for number, start, size in zip(*block, strict=True)]
                sink.write(np.concatenate(pieces).data)
        np.save(f"{stem}.offsets.npy", np.cumsum(np.concatenate([np.zeros(1, np.int64), lengths])))
        tokens += int(lengths.sum())
    # Mismatches of the encoder in earlier tasks count as well, because they cast doubt on the ids of this task.
    return _TokensResult(chunks=chunks, tokens=tokens, chars=chars, copied_chunks=copied, mismatches=encoder.mismatches)
