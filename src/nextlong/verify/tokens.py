"""Tokens: the stored ids of every used chunk against the reference tokenizer, and the place of every cut.

In:  TOKENS, tokenizer.json, DOCUMENTS, CHUNKS. The reference is `Tokenizer.encode(text, add_special_tokens=False)` of the
`tokenizers` library on the chunk's slice of its document. Sequences refer to these ids, and `exports` compares files with
them, so each chunk is tokenized once here, however many sequences contain it.

The reference encodes all chunks of a small run. Of a large run fastokens encodes all of them, about fifteen times as fast, and
the reference a seeded sample and every chunk for which fastokens disagrees with the stored ids (docs/decisions/0015).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.schemas import BOS, EOS, NEGATIVE, ROW_MASK, SEPARATOR, SHARD_BITS, Layout
from nextlong.verify.outcome import CheckOutcome, chunk_name
from nextlong.verify.run_files import Ids, ResolvedSequence, RunFiles

if TYPE_CHECKING:
    from fastokens import Tokenizer as FastTokenizer  # type: ignore[import-untyped]

EVERYTHING = sys.maxsize  # as a sample
_BATCH_CHUNKS = 512
_SAMPLE_CHARS = 8_000_000  # which the reference encodes in about a second
_DOUBTFUL = "\u017f\u212a\u180e"  # the two classify these otherwise: the reference alone is asked

Bools = NDArray[np.bool_]


class _TokenizedChunks(NamedTuple):
    """Some chunks, and the ids that are stored for each."""

    names: list[int]
    texts: list[str]
    ids: list[NDArray[np.uint32]]

    @property
    def rows(self) -> Ids:
        """Their rows in their shard, shape (n,)."""
        rows: Ids = np.array(self.names, np.int64) & ROW_MASK
        return rows

    def at(self, places: list[int]) -> _TokenizedChunks:
        """Return some of them."""
        names, texts, ids = self
        return _TokenizedChunks([names[at] for at in places], [texts[at] for at in places], [ids[at] for at in places])


def check_tokens(run: RunFiles) -> list[CheckOutcome]:
    """Tokenize every chunk that a sequence names, all by the reference if the sample is EVERYTHING, and decode what is stored."""
    ids, texts = CheckOutcome("token ids", "chunks"), CheckOutcome("decoded text", "chunks")
    used = run.used_rows()
    tables = ((run.chunks(shard), rows) for shard, rows in enumerate(used))
    chars = sum(int((table["end"] - table["start"])[rows].sum()) for table, rows in tables)
    share = 1.0 if run.sample == EVERYTHING else _SAMPLE_CHARS / max(1, chars)
    suspects = _suspects(run, used) if share < 1 else None
    draw, judged_by_reference = np.random.default_rng(run.seed), 0
    _check_special(run, ids)
    if (bytes_of_id := _bytes_of_ids(run)) is None:
        texts.skipped = "this tokenizer's decoder does not restore the text"
    for shard, is_used in enumerate(used):
        by_reference = is_used if suspects is None else suspects[shard] | (draw.random(len(is_used)) < share)
        wanted = np.flatnonzero(is_used)
        for row in wanted[~np.isin(wanted, run.token_shard(shard)[0])].tolist():
            ids.breach(f"{chunk_name(shard << SHARD_BITS | row)} is in a sequence but has no tokens")
        for chunks in _chunks(run, shard, wanted):
            judged = np.flatnonzero(by_reference[chunks.rows]).tolist()
            _compare_ids(run, chunks.at(judged), ids)
            judged_by_reference += len(judged)
            ids.checked += len(chunks.names)
            if bytes_of_id is not None:
                _compare_texts(run, bytes_of_id, chunks, texts)
    ids.note = "" if suspects is None else f"{judged_by_reference:,} of them by the reference tokenizer"
    return [ids, texts]


def _chunks(run: RunFiles, shard: int, wanted: Ids) -> Iterator[_TokenizedChunks]:
    """Yield the chunks of those of some rows of a shard that have tokens, a few hundred at a time."""
    named, offsets, stored = run.token_shard(shard)
    for part, texts in run.chunk_texts(shard, wanted[np.isin(wanted, named)]):
        for start in range(0, len(texts), _BATCH_CHUNKS):
            rows = part[start : start + _BATCH_CHUNKS]
            places = np.searchsorted(named, rows).tolist()
            ids = [stored[offsets[place] : offsets[place + 1]] for place in places]
            yield _TokenizedChunks((rows | (shard << SHARD_BITS)).tolist(), texts[start : start + _BATCH_CHUNKS], ids)


def _suspects(run: RunFiles, used: list[Bools]) -> list[Bools] | None:
    """Return for each shard of which of the chunk rows in use fastokens does not give the stored ids.

    None where it does not know the kind of tokenizer. It is loaded before the reference and released: each takes 100 MB.
    """
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")  # read when it first encodes
    import fastokens

    (path,) = run.files("tokenizer", ".tokenizer.json")
    try:
        fast = fastokens.Tokenizer.from_json_str(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    suspects = [np.zeros(len(is_used), np.bool_) for is_used in used]
    for shard, is_used in enumerate(used):
        for chunks in _chunks(run, shard, np.flatnonzero(is_used)):
            suspects[shard][chunks.rows] = differs(fast, chunks)
    return suspects


def differs(fast: FastTokenizer, chunks: _TokenizedChunks) -> Bools:
    """Return of which chunks fastokens does not give the stored ids, or would not be believed."""
    try:
        flat, stops = fast.encode_batch_flat(chunks.texts, add_special_tokens=False, split_special_tokens=True)
    except ValueError:  # a limit of its regular expressions, say
        return np.ones(len(chunks.texts), np.bool_)
    encoded = np.split(np.frombuffer(flat, np.uint32), np.frombuffer(stops, np.uint64)[1:-1].astype(np.int64))
    compared = zip(chunks.texts, encoded, chunks.ids, strict=True)
    return np.array(
        [not np.array_equal(true, ids) or any(char in text for char in _DOUBTFUL) for text, true, ids in compared]
    )


def _compare_ids(run: RunFiles, chunks: _TokenizedChunks, outcome: CheckOutcome) -> None:
    encodings = run.tokenizer.encode_batch_fast(chunks.texts, add_special_tokens=False)
    for name, encoding, stored_ids in zip(chunks.names, encodings, chunks.ids, strict=True):
        true = np.array(encoding.ids, np.int64)
        if not np.array_equal(true, stored_ids):
            difference = f"{len(stored_ids)} tokens stored, the reference tokenizer gives {len(true)}"
            if len(stored_ids) == len(true):
                place = int(np.flatnonzero(stored_ids != true)[0])
                difference = f"token {place} is {stored_ids[place]}, the reference tokenizer gives {true[place]}"
            outcome.breach(f"{chunk_name(name)}: {difference}")


def _compare_texts(run: RunFiles, bytes_of_id: NDArray[Any], chunks: _TokenizedChunks, outcome: CheckOutcome) -> None:
    outcome.checked += len(chunks.names)
    normalizer = run.tokenizer.normalizer
    for name, text, ids in zip(*chunks, strict=True):
        expected = text if normalizer is None else normalizer.normalize_str(text)
        try:
            if b"".join(bytes_of_id[ids].tolist()) == expected.encode():
                continue
        except (IndexError, TypeError):  # an id that the vocabulary does not have
            pass
        # What is no UTF-8 decodes to U+FFFD, which the text may hold, too.
        decoded = run.tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        if decoded != expected:
            at = next(
                (n for n, (a, b) in enumerate(zip(decoded, expected, strict=False)) if a != b),
                min(len(decoded), len(expected)),
            )
            outcome.breach(
                f"{chunk_name(name)} at character {at}: tokens say {decoded[at : at + 20]!r}, "
                f"the document {expected[at : at + 20]!r}"
            )


def _bytes_of_ids(run: RunFiles) -> NDArray[Any] | None:
    """Return the bytes of each id as the tokenizer decodes it, shape (ids,); None unless it decodes bytes."""
    if type(run.tokenizer.decoder).__name__ != "ByteLevel":
        return None
    # Byte-level vocabularies spell a byte as its Latin-1 character if that is printable, else as the next one from U+0100 on.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
    vocabulary = run.tokenizer.get_vocab(with_added_tokens=True)
    bytes_of_id = np.full(max(vocabulary.values(), default=-1) + 1, None)
    for token, number in vocabulary.items():
        try:
            bytes_of_id[number] = bytes(map(byte_of.__getitem__, token))
        except KeyError:  # an added token
            bytes_of_id[number] = token.encode()
    return bytes_of_id


def _check_special(run: RunFiles, outcome: CheckOutcome) -> None:
    """Compare the ids that the run put between chunks with the reference tokenizer's."""
    (part,) = run.steps["tokenizer"].manifest["parts"]
    said = part["counts"]
    for role, key in ((SEPARATOR, "separator_ids"), (BOS, "bos_id"), (EOS, "eos_id")):
        stored = said[key] if isinstance(said[key], list) else [] if said[key] is None else [said[key]]
        if stored != run.special_ids[role]:
            outcome.breach(f"tokenizer {key} is {said[key]}, the reference tokenizer gives {run.special_ids[role]}")


MOST_TRIMMED = 4  # tokens that a cut gives up to fall between two characters


class _Beginning(NamedTuple):
    """The beginning of a chunk, of so many tokens: the whole characters, and whether the next token begins another one."""

    chars: int
    is_between: bool


class Tokenized:
    """The text of a chunk, by its tokens."""

    def __init__(self, run: RunFiles, text: str) -> None:
        """Encode the text anew."""
        self.text = text
        self._offsets: Sequence[tuple[int, int]] = run.tokenizer.encode(text, add_special_tokens=False).offsets

    def first(self, tokens: int) -> _Beginning:
        """Return what the first tokens, not all, cover. A character that goes on behind the cut is not whole."""
        stop = max((end for _, end in self._offsets[:tokens]), default=0)
        start = min(start for start, _ in self._offsets[tokens:])
        return _Beginning(min(stop, start), stop <= start)

    def visible(self, tokens: int) -> str:
        """Return the text that spans tell of: at least a character."""
        return self.text[: max(1, self.first(tokens).chars)]


def is_exact(run: RunFiles) -> bool:
    """Whether negatives fill a budget, and only the last of a sequence is cut."""
    return run.layout == Layout.EXTENDED and run.setting("compose", "fit", "exact") == "exact"


def texts_of_cuts(run: RunFiles, block: Iterable[ResolvedSequence]) -> dict[int, Tokenized]:
    """Return the chunks that the sequences of a block hold only the beginning of."""
    cut = np.concatenate([np.empty(0, np.int64), *(sequence.chunk[sequence.is_truncated] for sequence in block)])
    return {chunk: Tokenized(run, text) for chunk, text in run.texts_of(cut).items()}


def check_cuts(run: RunFiles) -> list[CheckOutcome]:
    """Check every cut."""
    outcome = CheckOutcome("cuts between characters", "cuts")
    for block in run.blocks():
        texts = texts_of_cuts(run, block)
        for sequence in block:
            outcome.checked += int(sequence.is_truncated.sum())
            outcome.breach_each(_cut_problems(run, sequence, texts))
    return [outcome]


def _cut_problems(run: RunFiles, sequence: ResolvedSequence, texts: dict[int, Tokenized]) -> Iterator[str]:
    """Yield cuts that part a character though one near would not, or leave none, and separators behind a newline."""
    separator_tokens = len(run.special_ids[SEPARATOR])
    for span in np.flatnonzero(sequence.is_truncated).tolist():
        if int(sequence.chunk[span]) not in texts:
            continue
        tokenized, tokens = texts[int(sequence.chunk[span])], int(sequence.end[span] - sequence.start[span])
        chars, is_between = tokenized.first(tokens)
        fills_budget = is_exact(run) and sequence.role[span] == NEGATIVE
        if fills_budget and not chars:
            yield f"{sequence.where(span)} holds a part of a character only"
        is_joined = span + 1 < len(sequence.role) and sequence.role[span + 1] == SEPARATOR
        if fills_budget and is_joined and tokenized.text[:chars].endswith("\n"):
            yield f"{sequence.where(span)} ends in a newline but a separator follows it"
        if is_between or not separator_tokens:
            continue
        # A negative that is followed by no separator gives up the room of one, too.
        most = tokens - (separator_tokens if fills_budget and not is_joined else 1)
        for fewer in range(most, max(0, most - MOST_TRIMMED), -1):
            before = tokenized.first(fewer)
            is_fit = before.chars and not (fills_budget and tokenized.text[: before.chars].endswith("\n"))
            if before.is_between and is_fit:
                yield f"{sequence.where(span)} ends within a character; {tokens - fewer} tokens fewer would not"
                break
