"""Mean token vectors of texts, for a BPE tokenizer that does not cut texts into words.

In:  a tokenizer such as Llama 2's, and a vector for each token. Texts.
Out: the mean vector of each text's tokens, float32 (n, dimensions).

Such a tokenizer merges over the whole text, 1,200 chunks/s. No token of its vocabulary
spans a letter and a punctuation mark, say, so the text is cut there first, by NumPy;
each piece is tokenized once, and its sum of vectors is kept. The ids are the same,
because BPE merges only what a token of the vocabulary spans. Texts with one of the few
tokens for which that is not so are tokenized whole.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.arrays import Floats, Ints
from nextlong.artifacts.corpus_files import runs_within

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


class WordPieces:
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
        pieces, offsets = cut(texts)
        encoded = pieces.dictionary_encode()
        rows_of_distinct = self._rows_of(encoded.dictionary.to_pylist())
        rows = rows_of_distinct[encoded.indices.to_numpy()]
        sums = _sums_of_rows(self._sums, rows, offsets)
        tokens = np.add.reduceat(self._counts[rows], offsets[:-1])
        means: Floats = np.divide(sums, tokens[:, None], dtype=np.float32)
        return means

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


def cut(texts: Sequence[str]) -> tuple[Any, Ints]:
    """Return the pieces of texts as UTF-32 bytes, and the bounds of texts, (n + 1,).

    Each text has a blank before it, as the tokenizer puts one there.
    """
    joined = "".join([f" {text}" for text in texts])
    characters = joined.encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(characters, np.uint32)
    kinds = _kinds().take(codes, mode="clip")
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


def _crossing_tokens(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Return a pattern of the texts that are not cut: tokens of several pieces.

    And added tokens, which are found before any other.
    """
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    names = [name.replace(_METASPACE, " ") for name in vocabulary]
    names = [name for name in names if not _BYTE_TOKEN.fullmatch(name)]
    # Each name as a text of its own, behind the blank that `cut` puts there.
    _, offsets = cut([f"\n{name}" for name in names])
    # The blank and the newline are two pieces.
    spans = np.diff(offsets) - 2
    crossing = [name for name, span in zip(names, spans, strict=True) if span > 1]
    alternatives = "|".join(map(re.escape, {*added, *crossing}))
    return re.compile(alternatives or r"(?!)")
