"""Tokenize the chunks that drafts refer to, to exactly the ids of Hugging Face.

In:  DRAFTS; DOCUMENTS and CHUNKS of all shards; a tokenizer.json; TOKENS of earlier
     variants, from which rows are copied.
Out: TOKENS of each shard: flat ids (uint32) and offsets (int64, one more than rows),
     both memory-mappable `.npy`; the ids of the i-th requested row are
     ids[offsets[i]:offsets[i + 1]]. They equal `encode(text, add_special_tokens=False)`
     of the reference, `tokenizers`, with `encode_special_tokens`: the name of a special
     token is text, so that no document can end a sequence. Only a chunk that begins its
     document gets the space that some tokenizers put before a text
     (artifacts/continuation.py).

Each chunk is encoded once. fastokens encodes where its ids are the same. It is about
forty times as fast, but takes long to load a large vocabulary, so a process loads it
when it expects enough text, or when the reference has encoded as much. Wrong ids damage
training data silently. Therefore:

1.  fastokens must load the tokenizer (it supports little but byte-level BPE) and give
    the reference's ids on `_trial_texts`.
2.  Texts with one of the three characters that the two libraries classify differently
    are encoded by the reference; a test tries all other characters.
3.  The first texts and then every 256th are encoded by both, and a step fails if a
    process has seen a difference.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, Literal, NamedTuple

import fastokens  # type: ignore[import-untyped]
import numpy as np
import xxhash
from tokenizers import Tokenizer
from tokenizers.models import BPE

from nextlong import schemas
from nextlong.arrays import Ints, UInt32s
from nextlong.artifacts.continuation import contexts_of, encode_within
from nextlong.artifacts.corpus_files import (
    FileVersion,
    corpus,
    count_chunks,
    file_version,
    iter_chunk_texts,
    read_chunks,
    record_batches,
    write_header,
)
from nextlong.artifacts.results import (
    ChunkResult,
    DraftFiles,
    ReferencedChunksFiles,
    ReferencedChunksResult,
    TokenizerFiles,
    TokensFiles,
    chunk_files,
    chunks_of,
)
from nextlong.artifacts.sequence_files import read_tokenizer
from nextlong.engine.executor import Resources
from nextlong.engine.runner import open_done
from nextlong.engine.step import Artifact, Artifacts, Step, Task, TaskResult
from nextlong.errors import RunError
from nextlong.text import Json

# One thread, like everything in a worker; fastokens reads this when it first encodes.
os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")

# The long s and the Kelvin sign match s and k when case is ignored; U+180E was white
# space until Unicode 6.3.
_DOUBTFUL: Final = "\u017f\u212a\u180e"
_ALWAYS_CHECKED: Final = 16
_CHECK_EVERY: Final = 256
# The reference needs gigabytes for texts of many million characters, and panics on 10
# million spaces in a row.
_MAX_CHECKED_CHARS: Final = 2**17
# fastokens is loaded and tried in about 15 ms per 1,000 entries; the reference encodes
# 40 characters per entry in that time.
_CHARS_WORTH_AN_ENTRY: Final = 40
SPEED_UP: Final = 40.0  # of fastokens over the reference

Engine = Literal["auto", "reference"]
# Flat ids, and the length of each text.
_Encoded = tuple[UInt32s, Ints]

_TRIED_ADDED_TOKENS: Final = 200
# By hash of the tokenizer.json, so that a process tries a tokenizer only once.
_verdicts: dict[int, bool] = {}
# Contractions, spaces and control characters, numbers, normalized characters, scripts,
# emoji, unassigned characters.
_AWKWARD: Final = (
    "'s", "'S", "'ſ", "'t", "'rE", "'ve", "'LL", "'d", "’s", "ſ", "\u212a",
    " ", "  ", "    ", "\n", "\r\n", "\n\n", "\r", "\t", "\x0b", "\x1c", "\x00", "\x7f",
    "\u0085", "\u00a0", "\u2028", "\u3000", "\u200b", "\u200d", "\ufeff", "\u1680",
    "1", "12", "1234567", "½", "²", "Ⅷ", "١٢", "१२३४", "１２３", "\U0001d7d8",
    "e\u0301", "\u0301", "a\u0323\u0302", "Å", "\u212b", "\u1100\u1161", "각", "ﬁ",
    "ẞ", "İ", "ǆ", "क्ष", "שָׁלוֹם", "العربية", "東京", "ไทย", "\ue000", "\U000e0041",
    "\u0378", "🤗", "👩\u200d👩\u200d👧", "\U0001f1e9\U0001f1ea", "❤️", "\U0001fae8",
    "the", " The", "don", "x", "<", "|>", "</s>", "▁", "Ġ",
    "!", "...", "#", "_", "==", "https://a.b/c?d=1",
)  # fmt: skip

# The rows (None: all), offsets and ids that an earlier step has of a shard.
_Known = tuple[Path | None, Path, Path]

_COPIED_ROWS = 4096  # rows copied at a time
# A worker keeps fastokens from task to task, and loading it takes as long as encoding
# 200 MB. For less text than that, several workers that were idle still finish sooner
# than one.
CHARS_PER_TASK: Final = 40_000_000


def chars_before_loading(tokenizer: Tokenizer) -> int:
    """Return below how many characters loading fastokens is not worth it.

    Loading it takes longer than encoding fewer characters with the reference.
    """
    return _CHARS_WORTH_AN_ENTRY * int(tokenizer.get_vocab_size())


def is_known_to_be_fast(tokenizer: Tokenizer) -> bool:
    """Return whether fastokens probably supports the tokenizer, without loading it.

    It does if this is a byte-level BPE.
    """
    return isinstance(tokenizer.model, BPE) and "ByteLevel" in str(tokenizer.decoder)


class TextEncoder:
    """Encode texts as the reference does, single-threaded.

    By fastokens if its ids are the same and it is worth loading.
    """

    def __init__(self, tokenizer: Tokenizer, *, engine: Engine = "auto") -> None:
        tokenizer.encode_special_tokens = True
        self._reference = tokenizer
        self._is_settled = engine == "reference"  # whether fastokens is out or in
        self._fast: fastokens.Tokenizer | None = None
        self._chars_before_loading = chars_before_loading(tokenizer)
        self._contexts = contexts_of(tokenizer)
        self.begin_checks()

    def begin_checks(self) -> None:
        """Check the first of the texts that follow, and count mismatches anew."""
        self.mismatches = 0  # checked texts on which fastokens differed
        self._checkable_texts = 0  # texts encoded since the checks began

    def expect(self, chars: float) -> Literal["fastokens", "reference"]:
        """Load fastokens if its ids are right and `chars` more characters are worth it.

        Returns what encodes from now on.
        """
        if not self._is_settled and chars >= self._chars_before_loading:
            self._is_settled = True
            # fastokens may not support the tokenizer, so the reference encodes.
            with suppress(ValueError):
                self._fast = _trusted_fast(self._reference)
        return "reference" if self._fast is None else "fastokens"

    def encode_chunks(self, texts: Sequence[str], begins: Sequence[bool]) -> _Encoded:
        """Return the flat ids of chunks within their documents, and the ids of each.

        The latter is a number per chunk, shape (len(texts),). `begins` tells which
        chunks begin their document.
        """
        if not texts or not self._contexts:
            return self.encode_batch(texts)
        ids = encode_within(
            texts,
            begins,
            contexts=self._contexts,
            encode=self._encode_each,
        )
        return _joined(ids)

    def _encode_each(self, texts: list[str]) -> list[UInt32s]:
        ids, lengths = self.encode_batch(texts)
        return np.split(ids, np.cumsum(lengths)[:-1])

    def encode_batch(self, texts: Sequence[str]) -> _Encoded:
        """Return the flat ids of whole texts, and the number of ids of each text."""
        self.expect(0)
        if self._fast is None:
            self._chars_before_loading -= sum(map(len, texts))
            return _joined(_reference_ids(self._reference, text) for text in texts)
        try:
            ids, lengths = _encode_fast(self._fast, self._reference, texts)
        except ValueError:  # e.g. a limit of its regular expressions
            return _joined(_reference_ids(self._reference, text) for text in texts)
        self._check_some(texts, ids, lengths)
        return ids, lengths

    def _check_some(
        self,
        texts: Sequence[str],
        ids: UInt32s,
        lengths: Ints,
    ) -> None:
        """Compare the ids of the first texts and then of every 256th."""
        stops = np.cumsum(lengths)  # where the ids of each text end in `ids`
        for index, text in enumerate(texts, self._checkable_texts):
            is_due = index < _ALWAYS_CHECKED or index % _CHECK_EVERY == 0
            if not is_due or len(text) > _MAX_CHECKED_CHARS:
                continue
            stop = stops[index - self._checkable_texts]
            length = lengths[index - self._checkable_texts]
            true_ids = _reference_ids(self._reference, text)
            if not np.array_equal(ids[stop - length : stop], true_ids):
                self.mismatches += 1
        self._checkable_texts += len(texts)


_kept: dict[tuple[int, Engine], TextEncoder] = {}


def kept_encoder(path: Path, engine: Engine) -> TextEncoder:
    """Return the encoder of a tokenizer.json.

    A process keeps it from task to task, because fastokens takes a second to load.
    """
    content_hash = _hash_of(file_version(path))
    encoder = _kept.get((content_hash, engine))
    if encoder is None:
        encoder = TextEncoder(read_tokenizer(path), engine=engine)
        _keep(content_hash, engine, encoder)
    return encoder


def share_encoder(tokenizer: Tokenizer, engine: Engine) -> None:
    """Load fastokens for all processes that are forked from this one."""
    content = tokenizer.to_str().encode()
    encoder = TextEncoder(tokenizer, engine=engine)
    encoder.expect(math.inf)
    _keep(xxhash.xxh3_128_intdigest(content), engine, encoder)


def _keep(content_hash: int, engine: Engine, encoder: TextEncoder) -> None:
    # Only one, because each takes up to 100 MB.
    _kept.clear()
    _kept[content_hash, engine] = encoder


@lru_cache(maxsize=1)
def _hash_of(tokenizer: FileVersion) -> int:
    return xxhash.xxh3_128_intdigest(tokenizer.path.read_bytes())


def _trusted_fast(reference: Tokenizer) -> fastokens.Tokenizer | None:
    """Return the tokenizer of fastokens; None if it gives other ids on trial texts.

    Raises ValueError if it does not support the tokenizer.
    """
    content = reference.to_str()
    fast = fastokens.Tokenizer.from_json_str(content)
    key = xxhash.xxh3_128_intdigest(content.encode())
    if key not in _verdicts:
        texts = list(_trial_texts(reference))
        true_ids, true_lengths = _joined(
            _reference_ids(reference, text) for text in texts
        )
        ids, lengths = _encode_fast(fast, reference, texts)
        has_lengths = np.array_equal(lengths, true_lengths)
        _verdicts[key] = has_lengths and np.array_equal(ids, true_ids)
    return fast if _verdicts[key] else None


def _trial_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield about 70,000 characters on which tokenizers are likely to differ."""
    for piece in ("", *_AWKWARD):
        yield piece
        yield f"a{piece}1 {piece}'{piece} \n{piece}{piece}"
        yield "".join(piece + other for other in _AWKWARD)
    for char in " a1\n\té!東\u0301\x00🤗":
        yield char * 1_000
    yield "a " * 500
    # Every 16th character, in a word and alone.
    for first in (*range(0x20, 0xD800, 0x400), *range(0xE000, 0x20000, 0x400)):
        codes = range(first, first + 0x400, 16)
        chars = [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
        yield "".join(f"a{char} {char}" for char in chars)
    added_tokens = tokenizer.get_added_tokens_decoder().values()
    added = sorted({token.content for token in added_tokens})
    for content in added[:: max(1, len(added) // _TRIED_ADDED_TOKENS)]:
        yield (
            f"x{content}y {content}  {content}\n{content}{content}\u0301"
            f"{content[:-1]} {content.upper()}{content[1:]}"
        )


def _encode_fast(
    fast: fastokens.Tokenizer,
    reference: Tokenizer,
    texts: Sequence[str],
) -> _Encoded:
    """Return the ids of texts by fastokens, of doubtful ones by the reference."""
    doubtful = [index for index, text in enumerate(texts) if _is_doubtful(text)]
    certain = list(texts)
    for index in doubtful:
        certain[index] = ""
    ids_bytes, offsets_bytes = fast.encode_batch_flat(
        certain, add_special_tokens=False, split_special_tokens=True
    )
    ids = np.frombuffer(ids_bytes, np.uint32)
    offsets = np.frombuffer(offsets_bytes, np.uint64).astype(np.int64)
    if not doubtful:
        return ids, np.diff(offsets)
    # fastokens encoded "" for doubtful texts, so each has an empty part to replace.
    parts = np.split(ids, offsets[1:-1])
    for index in doubtful:
        parts[index] = _reference_ids(reference, texts[index])
    return _joined(parts)


def _is_doubtful(text: str) -> bool:
    return any(char in text for char in _DOUBTFUL)


def _reference_ids(tokenizer: Tokenizer, text: str) -> UInt32s:
    # A batch of one avoids computing offsets, and never starts a thread pool.
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return np.array(encoding.ids, np.uint32)


def _joined(all_ids: Iterable[UInt32s]) -> _Encoded:
    """Return the ids of several texts, concatenated, and how many each has."""
    parts = [np.empty(0, np.uint32), *all_ids]
    lengths = [len(part) for part in parts[1:]]
    return np.concatenate(parts), np.array(lengths, np.int64)


# Of the steps that write token ids.
VERSIONS: Final = {"lengths": 2, "tokens": 3}


class TokensResult(TaskResult):
    """Chunks encoded or copied from an earlier variant.

    `mismatches`: chunks whose ids differ from the reference's.
    """

    chunks: int
    tokens: int
    chars: int
    copied_chunks: int
    mismatches: int


def referenced_chunks_step(chunk: Step, draft: Step, *, limit: int | None) -> Step:
    """Return the step that lists the chunks of the first `limit` DRAFTS (None: all)."""

    def tasks(done: Artifacts) -> list[Task]:
        task = partial(
            _list_referenced_chunks,
            drafts=DraftFiles.of(done).drafts,
            chunks=chunk_files(done).chunks,
            limit=limit,
        )
        return [task]

    return Step(
        name="referenced_chunks",
        phase="compose",
        version=1,
        config={"limit": limit},
        inputs=(chunk, draft),
        tasks=tasks,
        result=ReferencedChunksResult,
    )


def _list_referenced_chunks(
    out: Path,
    *,
    drafts: Sequence[Path],
    chunks: Sequence[Path],
    limit: int | None,
) -> ReferencedChunksResult:
    """Choose the first `limit` drafts and list their chunks.

    Writes `{out}.{shard}.rows.npy`, sorted, for each shard.
    """
    # The first chunk of each shard among all chunks, and whether a draft names each
    # chunk: one byte per chunk of the corpus.
    starts = np.cumsum([0, *map(count_chunks, chunks)])
    is_named = np.zeros(starts[-1], np.bool_)
    take: list[int] = []  # drafts of each file
    for path in drafts:
        left = None if limit is None else limit - sum(take)
        take.append(0)
        for _, draft in islice(record_batches(path), left):
            ids = draft.column("chunk_id").values.to_numpy()
            shard_starts = starts[schemas.shard_of(ids)]
            is_named[shard_starts + schemas.row_of(ids)] = True
            take[-1] += 1
    for shard, (first, last) in enumerate(pairwise(starts.tolist())):
        rows = np.flatnonzero(is_named[first:last])
        np.save(f"{out}.{shard:05d}.rows.npy", rows)
    named_chunks = int(np.count_nonzero(is_named))
    return ReferencedChunksResult(
        take=tuple(take), drafts=sum(take), chunks=named_chunks
    )


def tokens_step(
    ingest: Step,
    chunk: Step,
    tokenizer: Step,
    referenced: Step,
    *,
    engine: Engine,
) -> Step:
    """Return the step from the referenced chunks to TOKENS.

    Rows that `lengths` or earlier variants have are copied.
    """
    config = {"engine": engine}

    def tasks(done: Artifacts) -> list[Task]:
        run_dir = done["tokenizer"].folder.parent
        fingerprints = {
            step.name: step.fingerprint for step in (ingest, chunk, tokenizer)
        }
        earlier = list(_earlier_tokens(run_dir, fingerprints, config))
        files = corpus(done)
        row_files = ReferencedChunksFiles.of(done).rows
        paths = zip(files.documents, files.chunks, row_files, strict=True)
        requested = []
        for shard, (documents, chunks, rows) in enumerate(paths):
            known = [step_files[shard] for step_files in earlier]
            requested.append(
                _RequestedRows(
                    shard=shard,
                    documents=documents,
                    chunks=chunks,
                    rows=rows,
                    known=known,
                )
            )
        shards = chunks_of(done).results(ChunkResult)
        chunk_count = sum(shard.chunks for shard in shards)
        chars = sum(shard.chars for shard in shards)
        max_rows = CHARS_PER_TASK * chunk_count // max(1, chars)
        path = TokenizerFiles.of(done).tokenizer
        return [
            partial(_tokenize_shards, requested=group, tokenizer=path, engine=engine)
            for group in _grouped(requested, max_rows)
        ]

    return Step(
        name="tokens",
        phase="compose",
        version=VERSIONS["tokens"],
        config=config,
        inputs=(ingest, chunk, tokenizer, referenced),
        tasks=tasks,
        result=TokensResult,
        check=check_ids,
        resources=Resources(uses_shared=True),
    )


def _earlier_tokens(
    run_dir: Path,
    fingerprints: dict[str, str],
    config: Json,
) -> Iterator[list[_Known]]:
    """Yield the files, by shard, of finished steps that have the same ids.

    Those made from the inputs with these fingerprints, of the same rows.
    """
    for folder in sorted(run_dir.glob("[0-9][0-9]-lengths-*")):
        lengths = _open_tokens("lengths", folder, fingerprints, config)
        if lengths is not None:
            files = TokensFiles(lengths)
            pairs = zip(files.offsets, files.ids, strict=True)
            yield [(None, offsets, ids) for offsets, ids in pairs]
    for folder in sorted(run_dir.glob("[0-9][0-9]-tokens-*")):
        tokens = _open_tokens("tokens", folder, fingerprints, config)
        if tokens is None:
            continue
        # A folder that is partly removed: tokenize these rows again.
        with suppress(RunError, ValueError):
            fingerprint = tokens.manifest["inputs"]["referenced_chunks"]
            (named,) = run_dir.glob(f"[0-9][0-9]-referenced_chunks-{fingerprint}")
            referenced = open_done("referenced_chunks", named)
            rows = ReferencedChunksFiles(referenced).rows
            files = TokensFiles(tokens)
            yield list(zip(rows, files.offsets, files.ids, strict=True))


def _grouped(
    requested: Sequence[_RequestedRows], max_rows: int
) -> list[list[_RequestedRows]]:
    """Return groups of consecutive shards, each of which makes up a task.

    A group has at most `max_rows` rows unless it is a single shard.
    """
    groups: list[list[_RequestedRows]] = []
    room = 0
    for shard in requested:
        rows = len(np.load(shard.rows, mmap_mode="r"))
        if not groups or rows > room:
            groups.append([])
            room = max_rows
        groups[-1].append(shard)
        room -= rows
    return groups


def _open_tokens(
    name: str,
    folder: Path,
    fingerprints: dict[str, str],
    config: Json,
) -> Artifact | None:
    """Return a finished step that has the same ids for the same chunks.

    None for any other, or a damaged one.
    """
    with suppress(RunError, ValueError):
        done = open_done(name, folder)
        manifest = done.manifest
        is_right = not any(task.mismatches for task in done.results(TokensResult))
        is_same = (manifest["version"], manifest["config"]) == (VERSIONS[name], config)
        if is_right and is_same and fingerprints.items() <= manifest["inputs"].items():
            return done
    return None


def check_ids(done: Artifact) -> None:
    """Raise RunError if fastokens gave other ids than the reference in any task."""
    counts = [task.mismatches for task in done.results(TokensResult)]
    wrong = [f"{count:,} of task {task}" for task, count in enumerate(counts) if count]
    if wrong:
        raise RunError(
            where="tokenizer.engine",
            problem=(
                "fastokens gave other ids than the reference tokenizer "
                f"for some checked chunks ({', '.join(wrong)})"
            ),
            fix=(
                "run again with --set tokenizer.engine=reference, "
                "and please report it with the name of your tokenizer"
            ),
        )


def tokenize_shard(
    out: Path,
    *,
    documents: Path,
    chunks: Path,
    tokenizer: Path,
    engine: Engine,
) -> tuple[TokensResult, Ints]:
    """Encode all chunks of a shard; also return the tokens of each, shape (chunks,).

    Writes `{out}.ids.npy` and `.offsets.npy`.
    """
    encoder = kept_encoder(tokenizer, engine)
    encoder.begin_checks()
    table = read_chunks(chunks, ("start", "end"))
    chars = int((table["end"] - table["start"]).sum())
    encoder.expect(chars)
    lengths = np.zeros(len(table["start"]), np.int64)
    with open(f"{out}.ids.npy", "wb") as sink:
        write_header(sink, np.dtype(np.uint32), 0)
        for batch in iter_chunk_texts(documents, chunks):
            ids, lengths[batch.rows] = encoder.encode_chunks(batch.texts, batch.begins)
            sink.write(ids.data)
        # The header again, now that the number of ids is known.
        offsets = np.append(0, np.cumsum(lengths))
        sink.seek(0)
        write_header(sink, np.dtype(np.uint32), int(offsets[-1]))
    np.save(f"{out}.offsets.npy", offsets)
    result = TokensResult(
        chunks=len(lengths),
        tokens=int(offsets[-1]),
        chars=chars,
        copied_chunks=0,
        mismatches=encoder.mismatches,
    )
    return result, lengths


class _RequestedRows(NamedTuple):
    """A shard, the requested rows, and the files that earlier variants have of it.

    The rows are sorted int64, shape (n,), in an `.npy`.
    """

    shard: int
    documents: Path
    chunks: Path
    rows: Path
    known: Sequence[_Known] = ()


class _Source(NamedTuple):
    """Ids of some chunks of a shard, from an earlier step or encoded now.

    Those of rows[i] are ids[offsets[i]:offsets[i + 1]].
    """

    rows: Ints
    offsets: Ints
    ids: UInt32s


def _open_known(rows: Path | None, offsets: Path, ids: Path) -> _Source:
    """Memory-map the ids of an earlier step."""
    known_offsets = np.load(offsets, mmap_mode="r")
    known_rows = np.arange(len(known_offsets) - 1)
    if rows is not None:
        known_rows = np.load(rows, mmap_mode="r")
    return _Source(known_rows, known_offsets, np.load(ids, mmap_mode="r"))


def _tokenize_shards(
    out: Path,
    *,
    requested: Sequence[_RequestedRows],
    tokenizer: Path,
    engine: Engine,
) -> TokensResult:
    """Encode or copy the requested rows of shards.

    Writes `{out}.{shard}.ids.npy` and `.offsets.npy`.
    """
    encoder = kept_encoder(tokenizer, engine)
    encoder.begin_checks()
    chunks = 0
    tokens = 0
    chars = 0
    copied = 0
    new_chars = 0
    shards = []
    for shard in requested:
        table = read_chunks(shard.chunks, ("start", "end"))
        rows = np.load(shard.rows)
        is_new = np.ones(len(rows), np.bool_)
        for known in shard.known:
            is_new &= ~np.isin(rows, _open_known(*known).rows, assume_unique=True)
        shards.append((shard, rows, is_new))
        sizes = table["end"][rows] - table["start"][rows]
        chunks += len(rows)
        chars += int(sizes.sum())
        copied += int(np.count_nonzero(~is_new))
        new_chars += int(sizes[is_new].sum())
    encoder.expect(new_chars)
    for shard, rows, is_new in shards:
        sources = [_open_known(*known) for known in shard.known]
        sources.append(_encode_rows(encoder, shard, rows[is_new]))
        tokens += _write_ids(f"{out}.{shard.shard:05d}", rows, sources)
    return TokensResult(
        chunks=chunks,
        tokens=tokens,
        chars=chars,
        copied_chunks=copied,
        mismatches=encoder.mismatches,
    )


def _encode_rows(
    encoder: TextEncoder,
    shard: _RequestedRows,
    rows: Ints,
) -> _Source:
    """Return the ids of some chunks of a shard."""
    all_ids = [np.empty(0, np.uint32)]
    all_lengths = [np.zeros(1, np.int64)]
    for batch in iter_chunk_texts(shard.documents, shard.chunks, rows):
        ids, lengths = encoder.encode_chunks(batch.texts, batch.begins)
        all_ids.append(ids)
        all_lengths.append(lengths)
    offsets = np.cumsum(np.concatenate(all_lengths))
    return _Source(rows, offsets, np.concatenate(all_ids))


def _write_ids(stem: str, rows: Ints, sources: Sequence[_Source]) -> int:
    """Write TOKENS of the rows from the sources that have them; return the tokens."""
    # (n,) each, of the rows: the source, where the ids begin in it, and how many there
    # are. If several sources have a row, the last one counts.
    origins = np.zeros(len(rows), np.int64)
    starts = np.zeros(len(rows), np.int64)
    lengths = np.zeros(len(rows), np.int64)
    for origin, source in enumerate(sources):
        found = np.flatnonzero(np.isin(rows, source.rows, assume_unique=True))
        indices = np.searchsorted(source.rows, rows[found])
        first = source.offsets[indices]
        origins[found] = origin
        starts[found] = first
        lengths[found] = source.offsets[indices + 1] - first
    tokens = int(lengths.sum())
    with open(f"{stem}.ids.npy", "wb") as sink:
        write_header(sink, np.dtype(np.uint32), tokens)
        for first_row in range(0, len(rows), _COPIED_ROWS):
            block = slice(first_row, first_row + _COPIED_ROWS)
            columns = (origins[block], starts[block], lengths[block])
            places = zip(*(column.tolist() for column in columns), strict=True)
            pieces = [
                sources[origin].ids[start : start + length]
                for origin, start, length in places
            ]
            sink.write(np.concatenate(pieces).data)
    offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), lengths]))
    np.save(f"{stem}.offsets.npy", offsets)
    return tokens
