"""Mean token vectors of texts, each piece of which is tokenized once.

In:  a tokenizer such as Llama 2's or BERT's, and a vector for each token. Texts.
Out: the mean vector of each text's tokens, float32 (n, dimensions).

`WordPieces` is for a BPE tokenizer that does not cut texts into words. It merges over
the whole text, 1,200 chunks/s. No token of its vocabulary spans a letter and a
punctuation mark, say, so the text is cut there first, by NumPy; each piece is tokenized
once, and its sum of vectors is kept. The ids are the same, because BPE merges only what
a token of the vocabulary spans. Texts with one of the few tokens for which that is not
so are tokenized whole.

`BertWords` is for the tokenizers of BERT, which normalize character by character and
cut at blanks and punctuation. It keeps the ids of each piece, and adds the vectors of a
text in the order of its tokens, so its means have the bits of NumPy's.
"""

from __future__ import annotations

import copy
import json
import re
import string
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.arrays import Floats, Ints
from nextlong.artifacts.corpus_files import ranges, runs_within

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Kinds of characters: a piece is blanks and a run of letters or of marks, or one digit
# or newline.
_BLANK, _LETTER, _MARK, _SINGLE = range(4)
_METASPACE: Final = "\u2581"
_BATCH_CHARS: Final = 1 << 22  # cut at a time
_KEPT_PIECES: Final = 1 << 18  # with their sums, about 270 MB at 256 dimensions
# Tokens of single bytes; the vocabulary has no text for them.
_BYTE_TOKEN: Final = re.compile(r"<0x[0-9A-F]{2}>")
# Added tokens of BERT, and one that separates pieces.
_BRACKETED: Final = re.compile(r"\[[A-Za-z0-9]+\]")
_SEPARATOR: Final = "[PAD]"


class _KnownPieces(ABC):
    """The rows of the pieces that were tokenized before."""

    _rows: dict[bytes, int]

    @abstractmethod
    def _forget(self) -> None:
        """Drop all rows."""

    @abstractmethod
    def _add(self, pieces: Sequence[bytes]) -> None:
        """Tokenize new pieces, and give them the next rows."""

    def _rows_of(self, pieces: Sequence[bytes]) -> Ints:
        """Return the rows of distinct pieces, of which new ones are tokenized."""
        rows = self._known_rows(pieces)
        is_new = rows < 0
        if not is_new.any():
            return rows
        new = [pieces[index] for index in np.flatnonzero(is_new).tolist()]
        if len(self._rows) + len(new) > _KEPT_PIECES:
            self._forget()
            new = list(pieces)
        self._add(new)
        return self._known_rows(pieces)

    def _known_rows(self, pieces: Sequence[bytes]) -> Ints:
        """Return the row of each piece, -1 of a new one."""
        known = self._rows
        return np.array([known.get(piece, -1) for piece in pieces], np.int64)


class WordPieces(_KnownPieces):
    """Sums of token vectors by piece.

    `vectors` has the shape (tokens, dimensions).
    """

    def __init__(self, tokenizer: Tokenizer, vectors: Floats) -> None:
        self._vectors = vectors
        self._whole = tokenizer
        # Called piece by piece, it takes 4 µs; a tokenizer takes 9 µs around it.
        self._model = tokenizer.model
        self._crossing = _crossing_tokens(tokenizer)
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[bytes, int] = {}
        # Memory is taken when a row is first written.
        self._sums = np.empty((_KEPT_PIECES, self._vectors.shape[1]), np.float32)
        self._counts = np.empty(_KEPT_PIECES, np.int64)

    def means(self, texts: Sequence[str]) -> Floats:
        """Return the mean token vector of each text; zeros for a text without tokens.

        A text gives the same bits whatever texts were encoded before.
        """
        means = np.zeros((len(texts), self._vectors.shape[1]), np.float32)
        is_whole = [self._is_whole(text) for text in texts]
        for row in np.flatnonzero(is_whole).tolist():
            ids = self._whole.encode(texts[row], add_special_tokens=False).ids
            if ids:
                means[row] = self._vectors[ids].mean(axis=0)
        rows = np.flatnonzero(np.logical_not(is_whole))
        lengths = [len(texts[row]) for row in rows.tolist()]
        for first, last in runs_within(lengths, _BATCH_CHARS):
            batch = rows[first:last]
            means[batch] = self._means_of_cut([texts[row] for row in batch.tolist()])
        return means

    def _is_whole(self, text: str) -> bool:
        """Return whether a text must be tokenized as a whole."""
        # Before an empty text, the tokenizer puts no blank.
        seen = f" {text}".replace(_METASPACE, " ")
        return not text or self._crossing.search(seen) is not None

    def _means_of_cut(self, texts: Sequence[str]) -> Floats:
        pieces, offsets = cut(texts, _kinds())
        encoded = pieces.dictionary_encode()
        rows_of_distinct = self._rows_of(encoded.dictionary.to_pylist())
        rows = rows_of_distinct[encoded.indices.to_numpy()]
        sums = _sums_of_rows(self._sums, rows, offsets)
        tokens = np.add.reduceat(self._counts[rows], offsets[:-1])
        means: Floats = np.divide(sums, tokens[:, None], dtype=np.float32)
        return means

    def _add(self, pieces: Sequence[bytes]) -> None:
        ids: list[int] = []
        counts = []
        for piece in pieces:
            text = piece.decode("utf-32-le", "surrogatepass")
            tokens = self._model.tokenize(text.replace(" ", _METASPACE))
            ids += [token.id for token in tokens]
            counts.append(len(tokens))
        known = len(self._rows)
        added = slice(known, known + len(pieces))
        offsets = np.cumsum([0, *counts])
        self._sums[added] = _sums_of_rows(self._vectors, np.array(ids), offsets)
        self._counts[added] = counts
        for row, piece in enumerate(pieces, start=known):
            self._rows[piece] = row


class BertWords(_KnownPieces):
    """Mean token vectors by a tokenizer of BERT.

    `vectors` has the shape (tokens, dimensions); tokens `unknown` are left out.
    """

    def __init__(
        self, tokenizer: Tokenizer, vectors: Floats, *, unknown: int | None
    ) -> None:
        self._vectors = vectors
        # model2vec sets how many tokens its own returns.
        self._tokenizer = copy.deepcopy(tokenizer)
        self._tokenizer.no_truncation()
        self._unknown = unknown
        self._separator = tokenizer.token_to_id(_SEPARATOR)
        self._forget()

    def _forget(self) -> None:
        self._rows = {}
        # Those of the piece in a row are ids[starts[row] : starts[row + 1]].
        self._ids = np.empty(0, np.int64)
        self._starts = np.zeros(1, np.int64)

    @staticmethod
    def takes(tokenizer: Tokenizer) -> bool:
        """Return whether it normalizes and cuts as BERT's does."""
        parts = json.loads(tokenizer.to_str())
        normalizer = parts["normalizer"] or {}
        pre_tokenizer = parts["pre_tokenizer"] or {}
        added = parts["added_tokens"]
        names = [token["content"] for token in added]
        return (
            normalizer.get("type") == "BertNormalizer"
            and normalizer["handle_chinese_chars"]
            and pre_tokenizer.get("type") == "BertPreTokenizer"
            and _SEPARATOR in names
            # They are found before a text is cut, so none may be cut here,
            and all(_BRACKETED.fullmatch(name) for name in names)
            # nor depend on what is beside it.
            and not any(token["single_word"] for token in added)
        )

    def means(self, texts: Sequence[str]) -> Floats:
        """Return the mean token vector of each text; zeros for a text without tokens.

        The bits are those of NumPy's mean of the vectors.
        """
        means = np.zeros((len(texts), self._vectors.shape[1]), np.float32)
        lengths = [len(text) for text in texts]
        for first, last in runs_within(lengths, _BATCH_CHARS):
            ids, offsets = self.token_ids(texts[first:last])
            sums = _sums_of_rows(self._vectors, ids, offsets)
            tokens = np.maximum(1, np.diff(offsets)).astype(np.float32)
            means[first:last] = sums / tokens[:, None]
        return means

    def token_ids(self, texts: Sequence[str]) -> tuple[Ints, Ints]:
        """Return the ids of texts, one text after another, and their bounds, (n + 1,).

        They are those of the tokenizer.
        """
        pieces, offsets = cut(texts, _bert_kinds())
        encoded = pieces.dictionary_encode()
        rows_of_distinct = self._rows_of(encoded.dictionary.to_pylist())
        rows = rows_of_distinct[encoded.indices.to_numpy()]
        starts = self._starts[rows]
        counts = self._starts[rows + 1] - starts
        ends = np.append(0, np.cumsum(counts))
        return self._ids[ranges(starts, counts)], ends[offsets]

    def _add(self, pieces: Sequence[bytes]) -> None:
        # One text of all pieces is tokenized in a third of the time.
        separator = _SEPARATOR.encode("utf-32-le")
        joined = separator.join([*pieces, b""]).decode("utf-32-le", "surrogatepass")
        ids = self._encoded(joined)
        ends = np.flatnonzero(ids == self._separator)
        if len(ends) == len(pieces):
            counts = np.diff(ends, prepend=-1) - 1
            ids = ids[ids != self._separator]
        else:
            texts = [piece.decode("utf-32-le", "surrogatepass") for piece in pieces]
            ids_of_pieces = [self._encoded(text) for text in texts]
            counts = np.array([len(found) for found in ids_of_pieces])
            ids = np.concatenate(ids_of_pieces)
        for row, piece in enumerate(pieces, start=len(self._rows)):
            self._rows[piece] = row
        self._starts = np.append(self._starts, self._starts[-1] + np.cumsum(counts))
        self._ids = np.append(self._ids, ids)

    def _encoded(self, text: str) -> Ints:
        """Return the ids of a text without unknown tokens."""
        (encoding,) = self._tokenizer.encode_batch_fast(
            [text], add_special_tokens=False
        )
        ids = np.array(encoding.ids, np.int64)
        return ids[ids != self._unknown] if self._unknown is not None else ids


def _sums_of_rows(vectors: Floats, rows: Ints, offsets: Ints) -> Floats:
    """Return the sum of vectors[rows[offsets[i]:offsets[i + 1]]] for each i.

    Added in the order of `rows`, so that a text always gives the same bits; 30 times
    as fast as `np.add.reduceat`.
    """
    # Imported here because it takes 0.1 s, which every start would pay.
    from scipy import sparse

    ones = np.ones(len(rows), np.float32)
    shape = (len(offsets) - 1, len(vectors))
    sums: Floats = sparse.csr_matrix((ones, rows, offsets), shape=shape) @ vectors
    return sums


def cut(texts: Sequence[str], kinds_of: NDArray[np.uint8]) -> tuple[Any, Ints]:
    """Return the pieces of texts as UTF-32 bytes, and the bounds of texts, (n + 1,).

    `kinds_of` has the kind of each code point. Each text has a blank before it, as the
    tokenizer of Llama 2 puts one there.
    """
    joined = "".join([f" {text}" for text in texts])
    characters = joined.encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(characters, np.uint32)
    kinds = kinds_of.take(codes, mode="clip")
    lengths = [len(text) + 1 for text in texts]
    bounds = np.cumsum([0, *lengths])

    # Where a piece begins: behind another kind, and always before a single character;
    # blanks belong to the letters or marks after them.
    begins = np.empty(len(codes), np.bool_)
    begins[0] = True
    np.not_equal(kinds[1:], kinds[:-1], out=begins[1:])
    is_blank_before = kinds[:-1] == _BLANK
    begins[1:] &= ~(is_blank_before & (kinds[1:] != _SINGLE))
    begins[1:] |= kinds[1:] == _SINGLE
    begins[bounds[:-1]] = True

    starts = np.flatnonzero(begins)
    offsets = np.append(starts, len(codes)) * codes.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(characters)]
    pieces = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(starts), buffers)
    return pieces, np.searchsorted(starts, bounds)


@lru_cache(maxsize=1)
def _kinds() -> NDArray[np.uint8]:
    """Return the kind of each code point."""
    kinds = np.full(sys.maxunicode + 1, _MARK, np.uint8)
    for code in range(0x40000):  # behind these are tags and private use
        character = chr(code)
        if character.isalpha():
            kinds[code] = _LETTER
        elif character.isdecimal() or character == "\n":
            kinds[code] = _SINGLE
    kinds[[ord(" "), ord(_METASPACE)]] = _BLANK
    return kinds


@lru_cache(maxsize=1)
def _bert_kinds() -> NDArray[np.uint8]:
    """Return the kind of each code point: a piece is blanks and what is between them.

    Only at these characters do all tokenizers of BERT cut whatever is beside them.
    """
    kinds = np.full(sys.maxunicode + 1, _LETTER, np.uint8)
    kinds[[ord(character) for character in " \n\r\t"]] = _BLANK
    kinds[[ord(character) for character in string.punctuation]] = _MARK
    kinds[[ord(character) for character in "[]"]] = _LETTER
    # Han: words of one character.
    kinds[0x4E00:0xA000] = _SINGLE
    return kinds


def _crossing_tokens(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Return a pattern of the texts that are not cut: tokens of several pieces.

    And added tokens, which are found before any other.
    """
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    names = [name.replace(_METASPACE, " ") for name in vocabulary]
    names = [name for name in names if not _BYTE_TOKEN.fullmatch(name)]
    # Each name as a text of its own, behind the blank that `cut` puts there.
    _, offsets = cut([f"\n{name}" for name in names], _kinds())
    # The blank and the newline are two pieces.
    spans = np.diff(offsets) - 2
    crossing = [name for name, span in zip(names, spans, strict=True) if span > 1]
    alternatives = "|".join(map(re.escape, {*added, *crossing}))
    return re.compile(alternatives or r"(?!)")
