"""Corpus: recompute each document's hashes; check that kept documents differ and that their chunks tile them."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Final

import fsspec
import numpy as np
import xxhash

from nextlong.schemas import SHARD_BITS
from nextlong.text import counted
from nextlong.verify.outcome import CheckOutcome, document_name
from nextlong.verify.run_files import Columns, RunFiles

_HELD_DOCUMENTS: Final = 4_000_000


def check_corpus(run: RunFiles) -> list[CheckOutcome]:
    """Read every document once."""
    documents, chunks = CheckOutcome("documents", "documents"), CheckOutcome("chunks tile documents", "chunks")
    hashes, chars = run.files("ingest", ".hashes.npy"), run.files("ingest", ".chars.npy")
    # Which documents the chunks were made from is settled by one step or another: the last that says so counts.
    keeps = [files for name in run.steps["chunk"].manifest["inputs"] if (files := run.files(name, ".keep.npy"))][-1]
    is_normalized = run.recipe["ingest"].get("dedup") == "normalized"
    compared = run.files("ingest", ".normalized.npy") if is_normalized else hashes
    limit = int(run.setting("chunk", "max_chars", 0))
    is_limited = run.setting("chunk", "oversize") == "split" and run.setting("chunk", "length") == "slice"
    for shard in range(len(run.shards)):
        own_hashes, own_chars, own_compared, keep = (
            np.load(paths[shard]) for paths in (hashes, chars, compared, keeps)
        )
        table = run.chunks_before_cleaning(shard)
        chunks.checked += len(table["start"])
        if problem := _cleaning_problem(table, run.chunks(shard), shard):
            chunks.breach(f"shard {shard}: {problem}")
        if np.any(np.diff(table["doc_row"]) < 0):
            chunks.breach(f"shard {shard}: chunks are not in the order of their documents")
        if is_limited and len(long := np.flatnonzero(table["end"] - table["start"] > limit)):
            doc_row = table["doc_row"][long[0]]
            ordinal = long[0] - np.searchsorted(table["doc_row"], doc_row) + 1
            place = f"{document_name(shard << SHARD_BITS | int(doc_row))} · chunk {ordinal}"
            chunks.breach(f"{place} is longer than chunk.max_chars={limit}")
        _check_kept(documents, run, shard)
        columns = [table[name].tolist() for name in ("start", "end", "separator")]
        bounds = np.searchsorted(table["doc_row"], np.arange(len(own_hashes) + 1)).tolist()
        for first, batch in run.documents(shard, "text", "content_hash"):
            stored = batch.column("content_hash").to_pylist()
            for row, (text, said) in enumerate(zip(batch.column("text").to_pylist(), stored, strict=True), first):
                documents.checked += 1
                name = f"document {document_name(shard << SHARD_BITS | row)}"
                now = xxhash.xxh3_64_intdigest(text.encode())
                if not now == said == own_hashes[row]:
                    documents.breach(f"{name} has the hash {now:016x}, stored are {said:016x}, {own_hashes[row]:016x}")
                normalized = " ".join(text.lower().split()) if is_normalized else ""
                if is_normalized and xxhash.xxh3_64_intdigest(normalized.encode()) != own_compared[row]:
                    documents.breach(f"{name} has another normalized hash than is stored, {own_compared[row]:016x}")
                if len(text) != own_chars[row]:
                    documents.breach(f"{name} has {len(text):,} characters, stored is {own_chars[row]:,}")
                tiles = [column[bounds[row] : bounds[row + 1]] for column in columns]
                if problem := _tiling_problem(text, tiles, is_kept=bool(keep[row])):
                    chunks.breach(f"{name}: {problem}")
    return [documents, _check_distinct(compared, keeps), chunks, *_check_excluded(run)]


def _check_excluded(run: RunFiles) -> list[CheckOutcome]:
    """Find documents of the corpus that the exclusion list named when it was ingested; what it names by now is a note."""
    outcome, path = CheckOutcome("excluded documents", "documents"), run.recipe["ingest"].get("exclude")
    if not path:
        return []
    kept = [json.loads(file.read_text(encoding="utf-8")) for file in run.files("ingest", ".excluded.json")]
    if not kept:
        config = run.steps["ingest"].manifest.get("config", {})
        if any("exclude" in source for source in config.get("sources", ())):
            outcome.skipped = "an earlier version excluded documents and kept no list of them; run again"
        else:
            outcome.not_needed = f"{path} named nothing"
        return [outcome]
    excluded = {(of["source"], source_id or None) for of in kept for source_id in of["ids"]}
    excluded |= {(of["source"], None) for of in kept if of["whole"]}
    named_since, since = _named_now(path) - excluded, 0
    for shard in range(len(run.shards)):
        for first, batch in run.documents(shard, "source", "source_id"):
            pairs = zip(batch.column("source").to_pylist(), batch.column("source_id").to_pylist(), strict=True)
            for row, (source, source_id) in enumerate(pairs, first):
                outcome.checked += 1
                if (source, source_id) in excluded or (source, None) in excluded:
                    name = document_name(shard << SHARD_BITS | row)
                    outcome.breach(
                        f"document {name}, {source_id} of {source}, is in the corpus, but was to be excluded"
                    )
                since += (source, source_id) in named_since or (source, None) in named_since
    if since:
        outcome.note = f"{path} names {counted(since, 'document')} of the corpus by now; run again to exclude them"
    return [outcome]


def _named_now(path: str) -> set[tuple[str, str | None]]:
    """Return what an exclusion list names now, nothing if it cannot be read, as from another working directory."""
    try:
        with fsspec.open(path, "rt", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file.read().split("\n") if line.strip()]
        return {(line["source"], line.get("id") or None) for line in lines}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def _check_distinct(compared: list[Path], keeps: list[Path]) -> CheckOutcome:
    """Find kept documents that `ingest.dedup` compares as equal, a range of hashes at a time."""
    outcome = CheckOutcome("kept documents differ", "documents")
    outcome.checked = sum(int(np.count_nonzero(np.load(path, mmap_mode="r"))) for path in keeps)
    passes = outcome.checked // _HELD_DOCUMENTS + 1
    for step in range(passes):
        first_hash, last_hash = np.uint64(2**64 * step // passes), np.uint64(2**64 * (step + 1) // passes - 1)
        ids, held = [], []
        for shard, (path, keep) in enumerate(zip(compared, keeps, strict=True)):
            hashes = np.load(path, mmap_mode="r")
            rows = np.flatnonzero(np.load(keep, mmap_mode="r") & (hashes >= first_hash) & (hashes <= last_hash))
            ids.append(rows | (shard << SHARD_BITS))
            held.append(hashes[rows])
        _, first, group = np.unique(np.concatenate(held), return_index=True, return_inverse=True)
        every = np.concatenate(ids)
        for place in np.flatnonzero(first[group] != np.arange(len(every))).tolist():
            outcome.breach(
                f"documents {document_name(every[first[group[place]]])} and {document_name(every[place])} are both kept, "
                "but are duplicates"
            )
    return outcome


def _check_kept(outcome: CheckOutcome, run: RunFiles, shard: int) -> None:
    """Find documents whose kept columns are not those that the recipe names for their source."""
    wanted = {
        source.get("name") or source["path"]: list(source.get("metadata") or ())
        for source in run.recipe["ingest"]["sources"]
    }
    has_column = run.keeps(shard)
    for first, batch in run.documents(shard, "source", *(["metadata"] if has_column else [])):
        sources = batch.column("source").to_pylist()
        kept = batch.column("metadata").to_pylist() if has_column else ["{}"] * len(sources)
        for row, (source, source_kept) in enumerate(zip(sources, kept, strict=True), first):
            if (names := _keys(source_kept)) != wanted.get(source, []):
                outcome.breach(
                    f"document {document_name(shard << SHARD_BITS | row)} keeps {names} of {source}, "
                    f"the recipe asks for {wanted.get(source)}"
                )
                return


@lru_cache(maxsize=1)  # in most corpora all documents' are the same
def _keys(kept: str) -> list[str] | None:
    try:
        return list(json.loads(kept))
    except ValueError:
        return None


def _cleaning_problem(all_chunks: Columns, used: Columns, shard: int) -> str:
    """Return what is wrong with the chunks in use if they are not some of those that documents were split into, in their order."""
    names, known = ([*zip(*(table[name].tolist() for name in table), strict=True)] for table in (used, all_chunks))
    rest = iter(known)
    strange = next((name for name in names if name not in rest), None)  # an iterator goes on where the last was found
    if strange is None:
        return ""
    row, start, end, _ = strange
    of = document_name(shard << SHARD_BITS | row)
    return f"the chunk [{start}, {end}) of document {of} is in use, but is not one of its chunks, or is out of order"


def _tiling_problem(text: str, tiles: list[list[int]], *, is_kept: bool) -> str:
    """Return what is wrong with the chunks of a document: their starts, ends, and whether each is open-ended."""
    if not is_kept:
        return f"has {len(tiles[0])} chunks but was not selected" if tiles[0] else ""
    at = 0
    for start, end, is_open in zip(*tiles, strict=True):
        if start != at or end <= start:
            return f"a chunk is [{start}, {end}) where the one before ends at {at}"
        if is_open != (text[end - 1 : end] != "\n"):
            return f"chunk [{start}, {end}) has separator={is_open} but ends in {text[end - 1 : end]!r}"
        at = end
    return "" if at == len(text) else f"its chunks end at {at} of {len(text)} characters"
