"""Corpus: check documents, the chunks that cover them, and the token ids of the chunks that sequences use.

In:  DOCUMENTS, CHUNKS, TOKENS, tokenizer.json. Out: one outcome per check. The reference for token ids is
`Tokenizer.encode(text, add_special_tokens=False)` of the `tokenizers` library on the text of each chunk, without the space
that some tokenizers put before a text where the chunk continues its document (reference.py). The reference encodes
all chunks of a small run. In a large run, fastokens encodes all of them, about 15 times as fast, and the reference a seeded
sample and every chunk for which fastokens disagrees with the stored ids (docs/decisions/0015).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from nextlong.artifacts import lookup
from nextlong.schemas import BOS, EOS, SEPARATOR, pack_ids
from nextlong.verify.outcome import (
    CheckOutcome,
    chunk_name,
    document_name,
    first_difference,
)
from nextlong.verify.run_files import Ids, StoredRun

_HELD_DOCUMENTS: Final = 4_000_000
EVERYTHING = sys.maxsize  # as a sample
_BATCH_CHUNKS = 512
_SAMPLE_CHARS = 8_000_000  # the reference encodes them in about a second
# If the tokenizer restores none of so many chunks, it restores no text.
_LOSSY_CHUNKS = 512
_DOUBTFUL = "\u017f\u212a\u180e"  # the two libraries classify these differently: only the reference decides

_Bools = NDArray[np.bool_]


class _Tokenized(NamedTuple):
    """The n chunks of a part of a shard; `begins`: which of them begin their document."""

    rows: Ids  # (n,)
    texts: list[str]
    begins: list[bool]
    ids: list[NDArray[np.uint32]]  # as stored


def check_corpus(run: StoredRun) -> list[CheckOutcome]:
    documents, chunks = (
        CheckOutcome("documents", "documents"),
        CheckOutcome("chunks tile documents", "chunks"),
    )
    hashes, chars = (
        run.files("ingest", ".hashes.npy"),
        run.files("ingest", ".chars.npy"),
    )
    # Several steps decide which documents are kept: the last one counts.
    keeps = [
        files
        for name in run.steps["chunk"].manifest["inputs"]
        if (files := run.files(name, ".keep.npy"))
    ][-1]
    is_normalized = run.recipe["ingest"].get("dedup") == "normalized"
    compared = run.files("ingest", ".normalized.npy") if is_normalized else hashes
    for shard in range(len(run.shards)):
        own_hashes, own_chars, own_compared, keep = (
            np.load(of[shard]) for of in (hashes, chars, compared, keeps)
        )
        table = lookup.read_chunks(
            run.files("chunk", ".chunks.arrow")[shard]
        )  # before any were left out
        chunks.checked += len(table["start"])
        chunks.breach_each(_chunk_problems(run, shard, table))
        columns = [table[name].tolist() for name in ("start", "end", "separator")]
        bounds = np.searchsorted(
            table["doc_row"], np.arange(len(own_hashes) + 1)
        ).tolist()
        for first, batch in run.documents(shard, "text", "content_hash"):
            documents.checked += batch.num_rows
            for row, (text, stored) in enumerate(
                zip(*(column.to_pylist() for column in batch), strict=True), first
            ):
                name = f"document {document_name(row, shard)}"
                computed = xxhash.xxh3_64_intdigest(text.encode())
                if not computed == stored == own_hashes[row]:
                    hashes_stored = f"{stored:016x}, {own_hashes[row]:016x}"
                    documents.breach(
                        f"{name} has the hash {computed:016x}, stored are {hashes_stored}"
                    )
                normalized = " ".join(text.lower().split()) if is_normalized else ""
                if (
                    is_normalized
                    and xxhash.xxh3_64_intdigest(normalized.encode())
                    != own_compared[row]
                ):
                    documents.breach(
                        f"{name} has another normalized hash than the stored {own_compared[row]:016x}"
                    )
                if len(text) != own_chars[row]:
                    documents.breach(
                        f"{name} has {len(text):,} characters, but {own_chars[row]:,} are recorded"
                    )
                tiles = [column[bounds[row] : bounds[row + 1]] for column in columns]
                if problem := _tiling_problem(text, tiles, is_kept=bool(keep[row])):
                    chunks.breach(f"{name}: {problem}")
    return [
        documents,
        _check_distinct(compared, keeps),
        chunks,
        *_check_columns(run, documents),
    ]


def _chunk_problems(
    run: StoredRun, shard: int, table: Mapping[str, NDArray[Any]]
) -> Iterator[str]:
    """Yield problems of the CHUNKS of a shard, apart from texts: which chunks are used, their order and length."""
    # The used chunks must be a subsequence of the chunks of the documents.
    used, known = (
        zip(*(of[name].tolist() for name in table), strict=True)
        for of in (run.chunks(shard), table)
    )
    strange = (
        chunk for chunk in used if chunk not in known
    )  # `in` continues where the last chunk was found
    for row, start, end, _ in islice(strange, 1):
        of = f"chunk [{start}, {end}) of document {document_name(row, shard)}"
        yield f"shard {shard}: the {of} is used, but is not one of its chunks, or is out of order"
    if np.any(np.diff(table["doc_row"]) < 0):
        yield f"shard {shard}: chunks are not in the order of their documents"
    limit = int(run.setting("chunk", "max_chars", 0))
    is_limited = (
        run.setting("chunk", "oversize") == "split"
        and run.setting("chunk", "length") == "slice"
    )
    for long in (
        np.flatnonzero(table["end"] - table["start"] > limit)[:1].tolist()
        if is_limited
        else ()
    ):
        doc_row = table["doc_row"][long]
        place = f"{document_name(doc_row, shard)} · chunk {long - np.searchsorted(table['doc_row'], doc_row) + 1}"
        yield f"{place} is longer than chunk.max_chars={limit}"


def _check_columns(run: StoredRun, documents: CheckOutcome) -> list[CheckOutcome]:
    """Check the metadata columns of documents against the recipe, and that excluded documents are absent."""
    recipe = run.recipe["ingest"]
    columns_of = {
        of.get("name") or of["path"]: list(of.get("metadata") or ())
        for of in recipe["sources"]
    }
    outcome, path = (
        CheckOutcome("excluded documents", "documents"),
        recipe.get("exclude"),
    )
    lists = [
        json.loads(file.read_text(encoding="utf-8"))
        for file in run.files("ingest", ".excluded.json")
        if path
    ]
    outcome.not_needed = "" if lists else f"{path} excludes nothing"
    excluded = {(of["source"], name or None) for of in lists for name in of["ids"]}
    excluded |= {(of["source"], None) for of in lists if of["whole"]}
    for shard in range(len(run.shards)):
        is_reported = (
            False  # only the first document of a shard with other columns is reported
        )
        for first, batch in run.documents(shard, "source", "source_id", "metadata"):
            sources, ids = (
                batch.column(name).to_pylist() for name in ("source", "source_id")
            )
            kept = (
                batch.column("metadata").to_pylist()
                if "metadata" in batch.schema.names
                else ["{}"] * len(ids)
            )
            names_of: dict[
                str, list[str]
            ] = {}  # by metadata, which is the same for all documents in most corpora
            for source_kept in set(kept):
                with suppress(ValueError):
                    names_of[source_kept] = list(json.loads(source_kept))
            outcome.checked += len(ids)
            for row, (source, name, source_kept) in enumerate(
                zip(sources, ids, kept, strict=True), first
            ):
                document, names = (
                    f"document {document_name(row, shard)}",
                    names_of.get(source_kept),
                )
                if not is_reported and names != columns_of.get(source, []):
                    is_reported = True
                    wrong = f"{document} of {source} has the metadata columns {names}"
                    documents.breach(
                        f"{wrong}, the recipe asks for {columns_of.get(source)}"
                    )
                if (source, name) in excluded or (source, None) in excluded:
                    outcome.breach(
                        f"{document}, {name} of {source}, is in the corpus but is excluded"
                    )
    outcome.checked *= bool(lists)
    return [outcome] if path else []


def _check_distinct(compared: list[Path], keeps: list[Path]) -> CheckOutcome:
    """Find kept documents that `ingest.dedup` treats as equal, one range of hashes at a time."""
    outcome = CheckOutcome("no duplicate documents", "documents")
    outcome.checked = sum(
        int(np.count_nonzero(np.load(path, mmap_mode="r"))) for path in keeps
    )
    passes = outcome.checked // _HELD_DOCUMENTS + 1
    for step in range(passes):
        first_hash, last_hash = (
            np.uint64(2**64 * step // passes),
            np.uint64(2**64 * (step + 1) // passes - 1),
        )
        ids, held = [], []
        for shard, paths in enumerate(zip(compared, keeps, strict=True)):
            hashes, keep = (np.load(path, mmap_mode="r") for path in paths)
            rows = np.flatnonzero(keep & (hashes >= first_hash) & (hashes <= last_hash))
            ids.append(pack_ids(shard, rows))
            held.append(hashes[rows])
        every = np.concatenate(ids)
        _, first, group = np.unique(
            np.concatenate(held), return_index=True, return_inverse=True
        )
        for place in np.flatnonzero(first[group] != np.arange(len(every))).tolist():
            one, other = (
                document_name(doc_id)
                for doc_id in (every[first[group[place]]], every[place])
            )
            outcome.breach(
                f"documents {one} and {other} are both kept, but are duplicates"
            )
    return outcome


def _tiling_problem(text: str, tiles: list[list[int]], *, is_kept: bool) -> str:
    """Return the problem of a document's chunks, given their starts, ends and `separator` values; "" if there is none."""
    if not is_kept:
        return f"has {len(tiles[0])} chunks but was not selected" if tiles[0] else ""
    position = 0
    for start, end, is_open in zip(*tiles, strict=True):
        if start != position or end <= start:
            return f"a chunk is [{start}, {end}) but the one before ends at {position}"
        if is_open != (text[end - 1 : end] != "\n"):
            return f"chunk [{start}, {end}) has separator={is_open} but ends in {text[end - 1 : end]!r}"
        position = end
    return (
        ""
        if position == len(text)
        else f"its chunks end at {position} of {len(text)} characters"
    )


def check_tokens(run: StoredRun) -> list[CheckOutcome]:
    """Tokenize and decode every chunk in a sequence; by the reference alone if the sample is EVERYTHING."""
    ids, texts = (
        CheckOutcome("token ids", "chunks"),
        CheckOutcome("decoded text", "chunks"),
    )
    used = run.used_rows()
    tables = ((run.chunks(shard), rows) for shard, rows in enumerate(used))
    chars = sum(
        int((table["end"] - table["start"])[rows].sum()) for table, rows in tables
    )
    share = 1.0 if run.sample == EVERYTHING else _SAMPLE_CHARS / max(1, chars)
    suspects = _suspects(run, used) if share < 1 else None
    draw, judged_by_reference = np.random.default_rng(run.seed), 0
    lossy = _Lossy()
    # The ids that the run inserted between chunks.
    recorded = run.steps["tokenizer"].manifest["parts"][0]["counts"]
    for role, key in ((SEPARATOR, "separator_ids"), (BOS, "bos_id"), (EOS, "eos_id")):
        stored = (
            recorded[key]
            if isinstance(recorded[key], list)
            else []
            if recorded[key] is None
            else [recorded[key]]
        )
        if stored != run.special_ids[role]:
            ids.breach(
                f"tokenizer {key} is {recorded[key]}, the reference tokenizer gives {run.special_ids[role]}"
            )
    for shard, is_used in enumerate(used):
        by_reference = (
            is_used
            if suspects is None
            else suspects[shard] | (draw.random(len(is_used)) < share)
        )
        wanted = np.flatnonzero(is_used)
        for row in wanted[~np.isin(wanted, run.token_shard(shard)[0])].tolist():
            ids.breach(
                f"{chunk_name(row, shard)} is used in a sequence but has no tokens"
            )
        for chunks in _chunks(run, shard, wanted):
            judged = np.flatnonzero(by_reference[chunks.rows]).tolist()
            judged_by_reference += len(judged)
            ids.breach_each(
                _id_problems(run, shard, chunks, judged), checked=len(chunks.rows)
            )
            if texts.checked or lossy.chunks < _LOSSY_CHUNKS:
                lossy_before = lossy.chunks
                problems = list(_text_problems(run, shard, chunks, lossy))
                new_lossy = lossy.chunks - lossy_before
                texts.breach_each(problems, checked=len(chunks.rows) - new_lossy)
    if lossy.chunks and not texts.checked:
        texts.skipped = f"the tokenizer does not restore the text: {lossy.example}"
    elif lossy.chunks:
        texts.note = (
            f"{lossy.chunks:,} more that the tokenizer itself does not restore, such as "
            f"{lossy.example}"
        )
    ids.note = (
        ""
        if suspects is None
        else f"{judged_by_reference:,} of them by the reference tokenizer"
    )
    return [ids, texts]


def _chunks(run: StoredRun, shard: int, wanted: Ids) -> Iterator[_Tokenized]:
    """Yield the chunks with tokens among some rows of a shard, a few hundred at a time."""
    has_tokens = np.isin(wanted, run.token_shard(shard)[0])
    for part, _, texts, begins in run.chunk_texts(shard, wanted[has_tokens]):
        for start in range(0, len(texts), _BATCH_CHUNKS):
            some = slice(start, start + _BATCH_CHUNKS)
            rows = part[some]
            yield _Tokenized(
                rows, texts[some], begins[some], run.token_ids(shard, rows)
            )


def _suspects(run: StoredRun, used: list[_Bools]) -> list[_Bools] | None:
    """Return for each shard the used chunks whose stored ids fastokens disputes; None if it does not support the tokenizer."""
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
            suspects[shard][chunks.rows] = _differs(fast, chunks.texts, chunks.ids)
    return suspects


def _differs(fast: Any, texts: list[str], ids: list[NDArray[np.uint32]]) -> list[bool]:
    """Return for each chunk whether fastokens gives other ids than the stored ones, or cannot be trusted."""
    try:
        flat, stops = fast.encode_batch_flat(
            texts, add_special_tokens=False, split_special_tokens=True
        )
    except ValueError:  # for example, a limit of its regular expressions
        return [True] * len(texts)
    encoded = np.split(
        np.frombuffer(flat, np.uint32),
        np.frombuffer(stops, np.uint64)[1:-1].astype(np.int64),
    )
    compared = zip(texts, encoded, ids, strict=True)
    return [
        not np.array_equal(true, of) or any(char in text for char in _DOUBTFUL)
        for text, true, of in compared
    ]


def _id_problems(
    run: StoredRun, shard: int, chunks: _Tokenized, places: list[int]
) -> Iterator[str]:
    all_true = run.reference.ids(
        [chunks.texts[place] for place in places],
        [chunks.begins[place] for place in places],
    )
    for place, true_ids in zip(places, all_true, strict=True):
        name = chunk_name(chunks.rows[place], shard)
        stored, true = chunks.ids[place], np.array(true_ids, np.int64)
        if len(stored) != len(true):
            yield f"{name}: {len(stored)} tokens stored, the reference tokenizer gives {len(true)}"
        elif len(differing := np.flatnonzero(stored != true)):
            token = differing[0]
            yield f"{name}: token {token} is {stored[token]}, the reference tokenizer gives {true[token]}"


@dataclass
class _Lossy:
    """Chunks whose text the tokenizer itself does not restore, and one of them in words."""

    chunks: int = 0
    example: str = ""


def _text_problems(
    run: StoredRun, shard: int, chunks: _Tokenized, lossy: _Lossy
) -> Iterator[str]:
    """Yield chunks whose stored ids decode to another text than the reference's own ids do; count in `lossy` the rest."""
    all_ids = [stored.tolist() for stored in chunks.ids]
    decoded = run.reference.texts(all_ids, chunks.begins)
    normalizer = run.tokenizer.normalizer
    # A normalizer may write spaces as another character, which decoding undoes.
    is_undone = normalizer is not None and normalizer.normalize_str("a b") != "a b"
    for place, (text, decoded_text) in enumerate(
        zip(chunks.texts, decoded, strict=True)
    ):
        keeps_text = normalizer is None or is_undone
        expected = text if keeps_text else normalizer.normalize_str(text)
        if decoded_text == expected:
            continue
        begins = [chunks.begins[place]]
        true_ids = run.reference.ids([text], begins)
        (restored,) = run.reference.texts(true_ids, begins)
        if decoded_text != restored:
            position, from_tokens, from_document = first_difference(
                decoded_text, restored
            )
            name = chunk_name(chunks.rows[place], shard)
            parts = f"the tokens decode to {from_tokens!r}, the document has {from_document!r}"
            yield f"{name} at character {position}: {parts}"
        elif restored != text:
            lossy.chunks += 1
            _, from_tokens, from_document = first_difference(restored, text)
            lossy.example = (
                lossy.example or f"{from_tokens!r} instead of {from_document!r}"
            )
