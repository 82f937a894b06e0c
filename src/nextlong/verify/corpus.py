"""Corpus: check documents, the chunks that cover them, and the token ids of chunks.

In:  DOCUMENTS, CHUNKS, TOKENS, tokenizer.json.
Out: one outcome per check.

The reference for token ids is `Tokenizer.encode(text, add_special_tokens=False)` of the
`tokenizers` library on the text of each chunk that sequences use, without the space
that some tokenizers put before a text where the chunk continues its document
(reference.py). The reference encodes all chunks of a small run. In a large run,
fastokens encodes all of them, about 15 times as fast, and the reference a seeded sample
and every chunk for which fastokens disagrees with the stored ids (docs/decisions/0015).
"""

from __future__ import annotations

import json
import math
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from nextlong.arrays import AnyArray, Bools, Hashes, UInt32s
from nextlong.artifacts import corpus_files
from nextlong.schemas import BOS, EOS, SEPARATOR, pack_ids
from nextlong.verify.outcome import (
    CheckOutcome,
    chunk_name,
    document_name,
    first_difference,
)
from nextlong.verify.run_files import Ids, StoredRun

# Documents whose hashes and ids, 16 bytes each, are compared at a time.
_DOCUMENTS_PER_PASS: Final = 4_000_000
EVERYTHING = sys.maxsize  # as a sample
_BATCH_CHUNKS = 512
_SAMPLE_CHARS = 8_000_000  # the reference encodes them in about a second
# If the tokenizer restores none of so many chunks, it restores no text.
_LOSSY_CHUNKS = 512
# The two libraries classify these differently: only the reference decides.
_DOUBTFUL = "\u017f\u212a\u180e"


class _Recorded(NamedTuple):
    """What INGEST recorded about the n documents of a shard, shape (n,) each."""

    hashes: Hashes
    compared: Hashes  # which `ingest.dedup` compared: of the text, or normalized
    chars: AnyArray
    is_normalized: bool


def check_corpus(run: StoredRun) -> list[CheckOutcome]:
    """Check documents and chunks by the texts, then the columns of documents."""
    documents = CheckOutcome("documents", "documents")
    chunks = CheckOutcome("chunks tile documents", "chunks")
    is_normalized = run.recipe["ingest"].get("dedup") == "normalized"
    hash_files = run.files("ingest", ".hashes.npy")
    char_files = run.files("ingest", ".chars.npy")
    keep_files = _keep_files(run)
    compared_files = hash_files
    if is_normalized:
        compared_files = run.files("ingest", ".normalized.npy")
    for shard in range(len(run.shards)):
        recorded = _Recorded(
            hashes=np.load(hash_files[shard]),
            compared=np.load(compared_files[shard]),
            chars=np.load(char_files[shard]),
            is_normalized=is_normalized,
        )
        keep = np.load(keep_files[shard])
        # All chunks, before decontamination left any out.
        table = corpus_files.read_chunks(run.files("chunk", ".chunks.arrow")[shard])
        chunks.breach_each(
            _chunk_problems(run, shard, table), checked=len(table["start"])
        )
        # The chunks of document i have the rows bounds[i]:bounds[i + 1].
        columns = [table[name].tolist() for name in ("start", "end", "separator")]
        document_rows = np.arange(len(recorded.hashes) + 1)
        bounds = np.searchsorted(table["doc_row"], document_rows).tolist()
        for first, batch in run.documents(shard, "text", "content_hash"):
            documents.checked += batch.num_rows
            texts, hashes = (column.to_pylist() for column in batch)
            for row, text in enumerate(texts, first):
                name = f"document {document_name(row, shard)}"
                stored_hash = hashes[row - first]
                for problem in _document_problems(text, stored_hash, recorded, row):
                    documents.breach(f"{name} has {problem}")
                tiles = [column[bounds[row] : bounds[row + 1]] for column in columns]
                problem = _tiling_problem(text, tiles, is_kept=bool(keep[row]))
                if problem:
                    chunks.breach(f"{name}: {problem}")
    return [
        documents,
        _check_distinct(compared_files, keep_files),
        chunks,
        *_check_long_documents(run),
        *_check_columns(run, documents),
    ]


def _keep_files(run: StoredRun) -> list[Path]:
    """Return the files that tell which documents are kept.

    Several steps before CHUNKS decide this: the last one counts.
    """
    found = [
        run.files(name, ".keep.npy") for name in run.steps["chunk"].manifest["inputs"]
    ]
    return [files for files in found if files][-1]


def _document_problems(
    text: str,
    stored_hash: int,
    recorded: _Recorded,
    row: int,
) -> Iterator[str]:
    """Yield what a document has that differs from what its text gives."""
    # The hash is recorded twice: in DOCUMENTS and in a file of its own.
    computed = xxhash.xxh3_64_intdigest(text.encode())
    recorded_hash = recorded.hashes[row]
    if not computed == stored_hash == recorded_hash:
        stored = f"{stored_hash:016x}, {recorded_hash:016x}"
        yield f"the hash {computed:016x}, stored are {stored}"
    if recorded.is_normalized:
        normalized = " ".join(text.lower().split())
        compared = recorded.compared[row]
        if xxhash.xxh3_64_intdigest(normalized.encode()) != compared:
            yield f"another normalized hash than the stored {compared:016x}"
    chars = recorded.chars[row]
    if len(text) != chars:
        yield f"{len(text):,} characters, but {chars:,} are recorded"


def _chunk_problems(
    run: StoredRun,
    shard: int,
    table: Mapping[str, AnyArray],
) -> Iterator[str]:
    """Yield problems of the CHUNKS of a shard, apart from texts.

    They concern which chunks are used, their order and length.
    """
    # The used chunks must be a subsequence of the chunks of the documents.
    known = _rows(table, table)
    for chunk in _rows(run.chunks(shard), table):
        if chunk not in known:  # `in` continues where the last chunk was found
            row, start, end, _ = chunk
            name = f"chunk [{start}, {end}) of document {document_name(row, shard)}"
            yield (
                f"shard {shard}: the {name} is used, "
                "but is not one of its chunks, or is out of order"
            )
            break
    if np.any(np.diff(table["doc_row"]) < 0):
        yield f"shard {shard}: chunks are not in the order of their documents"

    # With oversize=keep or length=paper, chunks may be longer than max_chars.
    is_split = run.setting("chunk", "oversize") == "split"
    is_slice = run.setting("chunk", "length") == "slice"
    if not is_split or not is_slice:
        return
    max_chars = int(run.setting("chunk", "max_chars", 0))
    too_long = np.flatnonzero(table["end"] - table["start"] > max_chars)
    if len(too_long):
        doc_row = table["doc_row"][too_long[0]]
        first_chunk = np.searchsorted(table["doc_row"], doc_row)
        ordinal = too_long[0] - first_chunk + 1
        name = f"{document_name(doc_row, shard)} · chunk {ordinal}"
        yield f"{name} is longer than chunk.max_chars={max_chars}"


def _rows(
    table: Mapping[str, AnyArray], names: Iterable[str]
) -> Iterator[tuple[Any, ...]]:
    """Return an iterator over the rows of some columns of a table."""
    return zip(*(table[name].tolist() for name in names), strict=True)


def _check_columns(run: StoredRun, documents: CheckOutcome) -> list[CheckOutcome]:
    """Check that excluded documents are absent, and metadata columns as in the recipe.

    Breaches of the latter are added to `documents`.
    """
    columns_of = _columns_by_source(run)
    exclude = run.recipe["ingest"].get("exclude")
    excluded = _excluded(run) if exclude else set()
    outcome = CheckOutcome("excluded documents", "documents")
    for shard in range(len(run.shards)):
        # Only the first document of a shard with other columns is reported.
        is_reported = False
        for row, source, source_id, names in _document_columns(run, shard):
            outcome.checked += 1
            if not is_reported and names != columns_of.get(source, []):
                is_reported = True
                document = f"document {document_name(row, shard)} of {source}"
                documents.breach(
                    f"{document} has the metadata columns {names}, "
                    f"the recipe asks for {columns_of.get(source)}"
                )
            if (source, source_id) in excluded or (source, None) in excluded:
                document = f"document {document_name(row, shard)}"
                outcome.breach(
                    f"{document}, {source_id} of {source}, "
                    "is in the corpus but is excluded"
                )
    if not exclude:
        return []
    if not run.files("ingest", ".excluded.json"):
        outcome.not_needed = f"{exclude} excludes nothing"
        outcome.checked = 0
    return [outcome]


def _columns_by_source(run: StoredRun) -> dict[str, list[str]]:
    """Return the metadata columns that the recipe asks for, by source."""
    columns_of = {}
    for source in run.recipe["ingest"]["sources"]:
        name = source.get("name") or source["path"]
        columns_of[name] = list(source.get("metadata") or ())
    return columns_of


def _document_columns(
    run: StoredRun, shard: int
) -> Iterator[tuple[int, str, str, list[str] | None]]:
    """Yield row, source, id and names of metadata of each document of a shard.

    The names are None if the metadata is not a JSON object.
    """
    for first, batch in run.documents(shard, "source", "source_id", "metadata"):
        sources = batch.column("source").to_pylist()
        ids = batch.column("source_id").to_pylist()
        metadata = ["{}"] * len(ids)
        if "metadata" in batch.schema.names:
            metadata = batch.column("metadata").to_pylist()
        # In most corpora, all documents of a batch have the same metadata.
        names_of: dict[str, list[str]] = {}
        for value in set(metadata):
            with suppress(ValueError):
                names_of[value] = list(json.loads(value))
        documents = zip(sources, ids, metadata, strict=True)
        for row, (source, source_id, value) in enumerate(documents, first):
            yield row, source, source_id, names_of.get(value)


def _excluded(run: StoredRun) -> set[tuple[str, str | None]]:
    """Return the source and id of each excluded document; None: the whole source."""
    excluded: set[tuple[str, str | None]] = set()
    for path in run.files("ingest", ".excluded.json"):
        listed = json.loads(path.read_text(encoding="utf-8"))
        source = listed["source"]
        excluded.update((source, source_id or None) for source_id in listed["ids"])
        if listed["whole"]:
            excluded.add((source, None))
    return excluded


def _check_distinct(compared: list[Path], keeps: list[Path]) -> CheckOutcome:
    """Find kept documents that `ingest.dedup` treats as equal.

    One range of hashes at a time, so that memory holds a part of them.
    """
    outcome = CheckOutcome("no duplicate documents", "documents")
    for path in keeps:
        outcome.checked += int(np.count_nonzero(np.load(path, mmap_mode="r")))
    passes = outcome.checked // _DOCUMENTS_PER_PASS + 1
    for index in range(passes):
        first_hash = np.uint64(2**64 * index // passes)
        last_hash = np.uint64(2**64 * (index + 1) // passes - 1)
        # Of the kept documents with a hash in this range: their ids and hashes.
        shard_ids = []
        shard_hashes = []
        for shard, (hash_file, keep_file) in enumerate(
            zip(compared, keeps, strict=True)
        ):
            hashes = np.load(hash_file, mmap_mode="r")
            keep = np.load(keep_file, mmap_mode="r")
            is_in_range = (hashes >= first_hash) & (hashes <= last_hash)
            rows = np.flatnonzero(keep & is_in_range)
            shard_ids.append(pack_ids(shard, rows))
            shard_hashes.append(hashes[rows])
        ids = np.concatenate(shard_ids)
        _, firsts, groups = np.unique(
            np.concatenate(shard_hashes), return_index=True, return_inverse=True
        )
        # (documents,) the first document with the same hash: itself, if it is distinct.
        originals = firsts[groups]
        is_copy = originals != np.arange(len(ids))
        for copy in np.flatnonzero(is_copy).tolist():
            original = document_name(ids[originals[copy]])
            names = f"{original} and {document_name(ids[copy])}"
            outcome.breach(f"documents {names} are both kept, but are duplicates")
    return outcome


class _Judged(NamedTuple):
    """A long document that a filter scored, and whether the filter kept it."""

    source: str
    name: str
    text: str
    score: float
    is_kept: bool


def _check_long_documents(run: StoredRun) -> list[CheckOutcome]:
    """Check which long documents are kept, from scores sorted source by source.

    The compression of some of them is computed again.
    """
    long_share = run.setting("ingest", "long_filter", 1.0)
    quantiles = {"gzip": (0.2, 0.8), "long_filter": (1 - long_share, 1.0)}
    outcomes = []
    for step in (name for name in quantiles if name in run.steps):
        outcome = CheckOutcome(f"long documents that {step} keeps", "documents")
        by_source: dict[str, list[_Judged]] = {}
        for document in _judged_documents(run, step):
            is_sampled = outcome.checked < run.sample
            outcome.checked += 1
            if step == "gzip" and is_sampled:
                if document.score != _ratio(document.text):
                    outcome.breach(f"document {document.name} compresses otherwise")
            without_text = document._replace(text="")
            by_source.setdefault(document.source, []).append(without_text)
        for documents in by_source.values():
            outcome.breach_each(_quantile_problems(documents, quantiles[step]))
        outcomes.append(outcome)
    return outcomes


def _judged_documents(run: StoredRun, step: str) -> Iterator[_Judged]:
    """Yield the documents that a filter scored, shard by shard."""
    score_files = run.files(f"{step}_scores", ".scores.npy")
    keep_files = run.files(step, ".keep.npy")
    for shard, (scores_file, keep_file) in enumerate(
        zip(score_files, keep_files, strict=True)
    ):
        scores = np.load(scores_file)
        keep = np.load(keep_file)
        for first, batch in run.documents(shard, "text", "source"):
            texts, sources = (column.to_pylist() for column in batch)
            rows = first + np.flatnonzero(
                ~np.isnan(scores[first : first + batch.num_rows])
            )
            for row in rows.tolist():
                yield _Judged(
                    source=sources[row - first],
                    name=document_name(row, shard),
                    text=texts[row - first],
                    score=float(scores[row]),
                    is_kept=bool(keep[row]),
                )


def _ratio(text: str) -> float:
    raw = text.encode("utf-8", "surrogatepass")
    compressor = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    compressed = compressor.compress(raw) + compressor.flush()
    return len(compressed) / len(raw)


def _quantile_problems(
    documents: list[_Judged], quantiles: tuple[float, float]
) -> Iterator[str]:
    """Yield the documents of a source that are kept or removed wrongly."""
    scores = sorted(document.score for document in documents)
    bounds = []
    for quantile in quantiles:
        place = quantile * (len(scores) - 1)
        below = scores[math.floor(place)]
        above = scores[math.ceil(place)]
        bounds.append(below + (above - below) * (place - math.floor(place)))
    low, high = bounds
    for document in documents:
        score = document.score
        # Rounding may decide at a bound.
        is_at_bound = math.isclose(score, low) or math.isclose(score, high)
        if document.is_kept != (low <= score <= high) and not is_at_bound:
            state = "kept" if document.is_kept else "removed"
            yield f"document {document.name} is {state}, with the score {score:.4f}"


def _tiling_problem(text: str, tiles: list[list[int]], *, is_kept: bool) -> str:
    """Return the problem of a document's chunks; "" if there is none.

    `tiles`: their starts, ends and `separator` values.
    """
    starts, ends, separators = tiles
    if not is_kept:
        return f"has {len(starts)} chunks but was not selected" if starts else ""
    position = 0  # the end of the chunk before
    for start, end, separator in zip(starts, ends, separators, strict=True):
        if start != position or end <= start:
            return f"a chunk is [{start}, {end}) but the one before ends at {position}"
        last = text[end - 1 : end]
        if separator != (last != "\n"):
            chunk = f"chunk [{start}, {end})"
            return f"{chunk} has separator={separator} but ends in {last!r}"
        position = end
    if position != len(text):
        return f"its chunks end at {position} of {len(text)} characters"
    return ""


class _ChunkBatch(NamedTuple):
    """Some chunks of a shard; `begins`: which of them begin their document."""

    rows: Ids  # (n,)
    texts: list[str]
    begins: list[bool]
    ids: list[UInt32s]  # as stored


def check_tokens(run: StoredRun) -> list[CheckOutcome]:
    """Tokenize and decode every chunk in a sequence.

    By the reference alone if the sample is EVERYTHING.
    """
    ids = CheckOutcome("token ids", "chunks")
    texts = CheckOutcome("decoded text", "chunks")
    used = run.used_rows()
    # The share of the chunks that the reference encodes; of a small run, all of them.
    share = 1.0
    if run.sample != EVERYTHING:
        share = _SAMPLE_CHARS / max(1, _chars_of(run, used))
    suspects = _suspects(run, used) if share < 1 else None
    draw = np.random.default_rng(run.seed)
    judged_by_reference = 0
    lossy = _Lossy()
    ids.breach_each(_special_id_problems(run))
    for shard, is_used in enumerate(used):
        by_reference = is_used
        if suspects is not None:
            by_reference = suspects[shard] | (draw.random(len(is_used)) < share)
        wanted = np.flatnonzero(is_used)
        tokenized_rows, _, _ = run.token_shard(shard)
        for row in wanted[~np.isin(wanted, tokenized_rows)].tolist():
            name = chunk_name(row, shard)
            ids.breach(f"{name} is used in a sequence but has no tokens")
        for chunks in _chunks(run, shard, wanted):
            judged = np.flatnonzero(by_reference[chunks.rows]).tolist()
            judged_by_reference += len(judged)
            ids.breach_each(
                _id_problems(run, shard, chunks, judged), checked=len(chunks.rows)
            )
            # Decode no more once it is clear that the tokenizer restores no text.
            if texts.checked or lossy.chunks < _LOSSY_CHUNKS:
                lossy_before = lossy.chunks
                problems = list(_text_problems(run, shard, chunks, lossy))
                new_lossy = lossy.chunks - lossy_before
                texts.breach_each(problems, checked=len(chunks.rows) - new_lossy)

    lossy.explain(texts)
    if suspects is not None:
        ids.note = f"{judged_by_reference:,} of them by the reference tokenizer"
    return [ids, texts]


def _chars_of(run: StoredRun, used: list[Bools]) -> int:
    """Return the characters of the used chunks of all shards."""
    chars = 0
    for shard, is_used in enumerate(used):
        table = run.chunks(shard)
        chars += int((table["end"] - table["start"])[is_used].sum())
    return chars


def _special_id_problems(run: StoredRun) -> Iterator[str]:
    """Yield the ids between chunks that differ from the reference tokenizer's."""
    recorded = run.steps["tokenizer"].manifest["parts"][0]["counts"]
    for role, key in ((SEPARATOR, "separator_ids"), (BOS, "bos_id"), (EOS, "eos_id")):
        stored = recorded[key]
        if stored is None:
            stored_ids = []
        elif isinstance(stored, list):
            stored_ids = stored
        else:
            stored_ids = [stored]
        true_ids = run.special_ids[role]
        if stored_ids != true_ids:
            yield (
                f"tokenizer {key} is {stored}, the reference tokenizer gives {true_ids}"
            )


def _chunks(run: StoredRun, shard: int, wanted: Ids) -> Iterator[_ChunkBatch]:
    """Yield the chunks with tokens among some rows of a shard, a few hundred each."""
    tokenized_rows, _, _ = run.token_shard(shard)
    has_tokens = np.isin(wanted, tokenized_rows)
    for part, _, texts, begins in run.chunk_texts(shard, wanted[has_tokens]):
        for start in range(0, len(texts), _BATCH_CHUNKS):
            batch = slice(start, start + _BATCH_CHUNKS)
            rows = part[batch]
            yield _ChunkBatch(
                rows=rows,
                texts=texts[batch],
                begins=begins[batch],
                ids=run.token_ids(shard, rows),
            )


def _suspects(run: StoredRun, used: list[Bools]) -> list[Bools] | None:
    """Return for each shard the used chunks whose stored ids fastokens disputes.

    None if it does not support the tokenizer.
    """
    # It is loaded before the reference and released again: each takes 100 MB.
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")  # read at the first encoding
    import fastokens  # type: ignore[import-untyped]

    (path,) = run.files("tokenizer", ".tokenizer.json")
    try:
        fast = fastokens.Tokenizer.from_json_str(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    suspects = [np.zeros(len(is_used), np.bool_) for is_used in used]
    for shard, is_used in enumerate(used):
        for chunks in _chunks(run, shard, np.flatnonzero(is_used)):
            suspects[shard][chunks.rows] = _is_disputed(fast, chunks.texts, chunks.ids)
    return suspects


def _is_disputed(
    fast: Any,
    texts: list[str],
    stored_ids: list[UInt32s],
) -> list[bool]:
    """Return for each chunk whether fastokens gives other ids than the stored ones.

    A chunk is also disputed if fastokens cannot be trusted with its text.
    """
    try:
        flat, stops = fast.encode_batch_flat(
            texts, add_special_tokens=False, split_special_tokens=True
        )
    except ValueError:  # for example, a limit of its regular expressions
        return [True] * len(texts)
    # `flat` has the ids of all texts as bytes, `stops` their ends after a first 0.
    ids = np.frombuffer(flat, np.uint32)
    inner_stops = np.frombuffer(stops, np.uint64)[1:-1].astype(np.int64)
    is_disputed = []
    for text, fast_ids, stored in zip(
        texts, np.split(ids, inner_stops), stored_ids, strict=True
    ):
        is_equal = np.array_equal(fast_ids, stored)
        is_doubtful = any(char in text for char in _DOUBTFUL)
        is_disputed.append(is_doubtful or not is_equal)
    return is_disputed


def _id_problems(
    run: StoredRun,
    shard: int,
    chunks: _ChunkBatch,
    judged: list[int],
) -> Iterator[str]:
    """Yield the judged chunks of a batch with other ids than the reference gives."""
    texts = [chunks.texts[index] for index in judged]
    begins = [chunks.begins[index] for index in judged]
    reference_ids = run.reference.ids(texts, begins)
    for index, true_ids in zip(judged, reference_ids, strict=True):
        name = chunk_name(chunks.rows[index], shard)
        stored = chunks.ids[index]
        true = np.array(true_ids, np.int64)
        gives = "the reference tokenizer gives"
        if len(stored) != len(true):
            yield f"{name}: {len(stored)} tokens stored, {gives} {len(true)}"
            continue
        differing = np.flatnonzero(stored != true)
        if len(differing):
            token = differing[0]
            yield f"{name}: token {token} is {stored[token]}, {gives} {true[token]}"


@dataclass
class _Lossy:
    """Chunks whose text the tokenizer itself does not restore, and one in words."""

    chunks: int = 0
    example: str = ""

    def explain(self, outcome: CheckOutcome) -> None:
        """Say in the outcome which chunks could not be compared."""
        if self.chunks and not outcome.checked:
            reason = "the tokenizer does not restore the text"
            outcome.skipped = f"{reason}: {self.example}"
        elif self.chunks:
            outcome.note = (
                f"{self.chunks:,} more that the tokenizer itself does not restore, "
                f"such as {self.example}"
            )


def _text_problems(
    run: StoredRun,
    shard: int,
    chunks: _ChunkBatch,
    lossy: _Lossy,
) -> Iterator[str]:
    """Yield chunks whose stored ids decode to another text than the reference's own.

    Those whose text the reference's ids do not restore either are counted in `lossy`.
    """
    all_ids = [stored.tolist() for stored in chunks.ids]
    decoded_texts = run.reference.texts(all_ids, chunks.begins)
    normalizer = run.tokenizer.normalizer
    # A normalizer may write spaces as another character, which decoding undoes.
    is_undone = normalizer is not None and normalizer.normalize_str("a b") != "a b"
    for index, text in enumerate(chunks.texts):
        decoded = decoded_texts[index]
        expected = text
        if normalizer is not None and not is_undone:
            expected = normalizer.normalize_str(text)
        if decoded == expected:
            continue
        # The reference's own ids show whether the run or the tokenizer lost the text.
        begins = [chunks.begins[index]]
        true_ids = run.reference.ids([text], begins)
        (restored,) = run.reference.texts(true_ids, begins)
        if decoded != restored:
            position, from_tokens, from_document = first_difference(decoded, restored)
            name = chunk_name(chunks.rows[index], shard)
            yield (
                f"{name} at character {position}: the tokens decode to "
                f"{from_tokens!r}, the document has {from_document!r}"
            )
        elif restored != text:
            lossy.chunks += 1
            _, from_tokens, from_document = first_difference(restored, text)
            example = f"{from_tokens!r} instead of {from_document!r}"
            lossy.example = lossy.example or example
