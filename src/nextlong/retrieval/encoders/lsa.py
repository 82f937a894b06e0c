"""The LSA encoder: TF-IDF and a truncated SVD, fitted on a sample of the corpus.

In:  texts. Out: float32 (n, dimensions), unit rows.

It is the built-in encoder, so that a first run needs neither a download nor a GPU.
Terms and weights equal those of scikit-learn's TfidfVectorizer(sublinear_tf=True)
(tested), but words are split and looked up by NumPy and Arrow over whole batches, so
the whole encoder is over twice as fast as that vectorizer alone. The SVD is the
randomized one of Halko, Martinsson and Tropp (2011). A single thread gives the same
bits on every run, whatever the batches.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, JsonValue

from nextlong import recipe
from nextlong.arrays import Bools, Floats, Int32s, Ints, UInt32s
from nextlong.artifacts.corpus_files import (
    CorpusFiles,
    count_chunks,
    runs_within,
    sample_texts,
)
from nextlong.engine.step import Task, TaskResult
from nextlong.recipe.keys import Positive, Section
from nextlong.retrieval.encoders.base import EncoderKind, Prepared, unit_or_drawn
from nextlong.rng import rng_for

# Characters looked up at a time: each batch builds a hash table of all terms.
_BATCH_CHARS: Final = 1 << 22
# Characters split at a time, and when the distinct words are collected: the arrays fit
# into caches.
_CUT_CHARS: Final = 1 << 18
_ENCODED_CHARS: Final = 1 << 20
_OVERSAMPLING: Final = 16
# float32 noise: singular values below this share of the first, and shorter projections,
# are meaningless.
_NEGLIGIBLE: Final = 1e-5
_GRAM_ROWS: Final = 4096

_SPACE: Final = 0x20
# Scripts written without spaces between words: Thai to Myanmar, Khmer, kana, Han,
# Hangul, their compatibility forms and the Han planes. Hangul uses spaces, but its
# particles attach to words.
_UNSPACED: Final = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3005, 0x3007),
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7AF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x20000, 0x3FFFF),
)


class FitResult(TaskResult):
    """A fitted encoder."""

    chunks: int  # of the corpus
    fit_chunks: int  # of the sample
    terms: int
    dimensions: int


class LsaOptions(Section):
    """The built-in encoder: TF-IDF and a truncated SVD, fitted on a sample."""

    dimensions: int = Field(
        256, ge=2, description="width of the vectors; less if the sample is small"
    )
    fit_chunks: Positive = Field(
        16_384, description="number of randomly sampled chunks to fit on"
    )
    max_terms: Positive = Field(
        50_000, description="vocabulary size: the most frequent terms of the sample"
    )


class Lsa:
    """A fitted encoder.

    Of its terms, `idf` has the shape (terms,), `components` (terms, dimensions).
    """

    def __init__(
        self,
        terms: Sequence[str],
        idf: Floats,
        components: Floats,
    ) -> None:
        self.terms = terms
        self.idf = idf
        self.components = components
        self.dimensions: int = components.shape[1]
        # Encoded as `_cut_words` and `_cut_ascii_words` return words.
        self._terms = _encoded(terms, "utf-32-le")
        self._ascii_terms = _encoded(terms, "utf-8")

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return unit vectors, shape (n, dimensions).

        A text without known terms gets a random direction of its own.
        """
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        is_ascii = np.array([text.isascii() for text in texts], np.bool_)
        for rows in (np.flatnonzero(is_ascii), np.flatnonzero(~is_ascii)):
            alike = [texts[row] for row in rows.tolist()]
            lengths = [len(text) for text in alike]
            for first, last in runs_within(lengths, _BATCH_CHARS):
                # A sparse product computes each row on its own, so the batch does not
                # affect the bits.
                batch = self.tfidf(alike[first:last])
                vectors[rows[first:last]] = batch @ self.components
        return unit_or_drawn(vectors, texts, min_length=_NEGLIGIBLE)

    def tfidf(self, texts: Sequence[str]) -> Any:
        """Return the TF-IDF rows of a batch, CSR float32 (n, terms).

        They are (1 + ln count) · idf at unit length.
        """
        cut = _cut_words
        terms = self._terms
        if all(text.isascii() for text in texts):
            cut = _cut_ascii_words
            terms = self._ascii_terms
        # All words, and where those of each text begin, (n + 1,).
        words = [pa.array([], pa.large_binary())]
        starts = [np.zeros(1, np.int64)]
        lengths = [len(text) for text in texts]
        for first, last in runs_within(lengths, _CUT_CHARS):
            piece, bounds = cut(texts[first:last])
            words.append(piece)
            starts.append(starts[-1][-1] + bounds[1:])
        found = pc.index_in(pa.chunked_array(words), value_set=terms)
        columns = pc.fill_null(found, -1).to_numpy()
        is_known = columns >= 0
        known_before = np.concatenate([[0], np.cumsum(is_known)])
        known_starts = known_before[np.concatenate(starts)]
        counts = _count(columns[is_known], known_starts, width=len(self.terms))
        return _weigh(counts, self.idf)

    def save(self, out: Path) -> None:
        """Write `{out}.terms.json`, `{out}.idf.npy` and `{out}.components.npy`."""
        terms = orjson.dumps(list(self.terms))
        Path(f"{out}.terms.json").write_bytes(terms)
        np.save(f"{out}.idf.npy", self.idf)
        np.save(f"{out}.components.npy", self.components)

    @classmethod
    def load(cls, stem: Path) -> Self:
        """Read the files that `save` wrote.

        The components are memory-mapped, so processes share them.
        """
        terms = Path(f"{stem}.terms.json").read_bytes()
        idf = np.load(f"{stem}.idf.npy")
        components = np.load(f"{stem}.components.npy", mmap_mode="r")
        return cls(orjson.loads(terms), idf, np.asarray(components))


def _encoded(terms: Sequence[str], encoding: str) -> Any:
    return pa.array([term.encode(encoding) for term in terms], pa.large_binary())


def _count(columns: Int32s, starts: Ints, *, width: int) -> Any:
    """Return the count of each column in each text, CSR float32.

    The words of text i are [starts[i], starts[i + 1]).
    """
    # Imported here because it takes 0.1 s, which every start of nextlong would pay.
    from scipy import sparse

    # Sorting one integer of text and column is faster than sorting the columns of each
    # text with their counts.
    texts = len(starts) - 1
    bits = width.bit_length()
    keys = np.repeat(np.arange(texts) << bits, np.diff(starts))
    keys |= columns
    keys.sort()
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.diff(firsts, append=len(keys))
    keys = keys[firsts]
    offsets = np.searchsorted(keys, np.arange(texts + 1) << bits)
    distinct_columns = (keys & ((1 << bits) - 1)).astype(np.int32)
    entries = (counts.astype(np.float32), distinct_columns, offsets)
    return sparse.csr_matrix(entries, shape=(texts, width))


def _weigh(counts: Any, idf: Floats) -> Any:
    """Convert counts, in place, to (1 + ln count) · idf with rows of unit length."""
    texts = counts.shape[0]
    # From a table, because vectorized logarithms can differ in the last bit by their
    # place in the batch.
    max_count = counts.data.max(initial=1)
    logarithms = np.log(np.arange(1, max_count + 1))
    logarithms = logarithms.astype(np.float32)
    weights = 1 + logarithms[counts.data.astype(np.int64) - 1]
    weights *= idf[counts.indices]
    rows = np.repeat(np.arange(texts), np.diff(counts.indptr))
    squares = np.bincount(rows, weights=weights**2, minlength=texts)
    lengths = np.sqrt(squares).astype(np.float32)
    counts.data = weights / lengths[rows]
    return counts


def _components(tfidf: Any, *, dimensions: int, seed: int) -> Floats:
    """Return the leading right singular vectors of a CSR matrix (n, terms).

    Shape (terms, rank), rank ≤ dimensions.
    """
    texts, terms = tfidf.shape
    if not tfidf.nnz:
        return np.zeros((terms, dimensions), np.float32)
    width = min(dimensions + _OVERSAMPLING, texts, terms)
    random_TW = rng_for(seed, "lsa").standard_normal((terms, width), np.float32)
    rows_NW = tfidf @ random_TW
    del random_TW  # as large as each product with the transposed matrix
    # One power iteration. With one, two or four, the same share (40-41 %) of the ten
    # nearest of 20,000 unseen chunks is of the same document; without any, 28 % of the
    # neighbours differ from those after four iterations.
    rows_NW = tfidf @ (tfidf.T @ rows_NW)
    basis_NW, _ = np.linalg.qr(rows_NW)
    del rows_NW
    projected_TW = tfidf.T @ basis_NW
    del basis_NW
    # Products of all columns, in float64 because squares double the digits.
    gram_WW = np.zeros((width, width))
    for first in range(0, terms, _GRAM_ROWS):
        block = projected_TW[first : first + _GRAM_ROWS].astype(np.float64)
        gram_WW += block.T @ block
    # Squared singular values within the basis, ascending.
    squares, turn_WW = np.linalg.eigh(gram_WW)
    values = np.sqrt(np.maximum(squares[::-1], 0))
    kept = np.flatnonzero(values[:dimensions] > _NEGLIGIBLE * values[0])
    scaled_turn_WK = turn_WW[:, ::-1][:, kept] / values[kept]
    return np.ascontiguousarray(projected_TW @ scaled_turn_WK.astype(np.float32))


def fit_on_chunks(
    out: Path, *, corpus: CorpusFiles, options: LsaOptions, seed: int
) -> FitResult:
    """Fit on about `options.fit_chunks` chunks of all shards.

    Writes the files of `Lsa.save`.
    """
    total = sum(count_chunks(path) for path in corpus.chunks)
    sample = sample_texts(
        corpus.documents,
        corpus.chunks,
        fraction=options.fit_chunks / max(total, 1),
        seed=seed,
    )
    lsa = _fit_lsa(
        sample, dimensions=options.dimensions, max_terms=options.max_terms, seed=seed
    )
    lsa.save(out)
    return FitResult(
        chunks=total,
        fit_chunks=len(sample),
        terms=len(lsa.terms),
        dimensions=lsa.dimensions,
    )


def _fit_lsa(
    texts: Sequence[str], *, dimensions: int, max_terms: int, seed: int
) -> Lsa:
    """Fit on a sample of the chunks: `dimensions` or the rank of the sample.

    Terms are in at least 2 texts and at most half of them (all terms if these are too
    few); the `max_terms` most frequent.
    """
    names, columns, starts = _distinct_words(texts)
    counts = _count(columns, starts, width=len(names))
    del columns  # as large as all arrays that follow

    # (names,) each: the number of texts with a term, and its occurrences in all texts.
    document_frequency = np.bincount(counts.indices, minlength=len(names))
    frequency = np.bincount(counts.indices, weights=counts.data, minlength=len(names))
    is_common = document_frequency > counts.shape[0] / 2
    is_telling = (document_frequency >= 2) & ~is_common
    chosen = pc.array_sort_indices(names).to_numpy()
    chosen = chosen.astype(np.int64)
    if is_telling.sum() >= dimensions:
        chosen = chosen[is_telling[chosen]]
    # The most frequent terms first, ties in the order of the terms.
    by_frequency = np.argsort(-frequency[chosen], kind="stable")
    chosen = chosen[by_frequency[:max_terms]]

    counts = counts[:, chosen]
    counts.sort_indices()
    rarity = (1 + len(texts)) / (1 + document_frequency[chosen])
    idf = (np.log(rarity) + 1).astype(np.float32)
    chosen_names = names.take(pa.array(chosen))
    terms = [name.decode("utf-32-le") for name in chosen_names.to_pylist()]
    del names, chosen_names
    tfidf = _weigh(counts, idf)
    components = _components(tfidf, dimensions=dimensions, seed=seed)
    return Lsa(terms, idf, components)


def _distinct_words(
    texts: Sequence[str],
) -> tuple[Any, Int32s, Ints]:
    """Return the distinct words of texts, UTF-32, the numbers of all words, and bounds.

    The words of text i are numbers[bounds[i]:bounds[i + 1]].
    """
    encoded = [pa.array([], pa.large_binary()).dictionary_encode()]
    starts = [np.zeros(1, np.int64)]
    lengths = [len(text) for text in texts]
    for first, last in runs_within(lengths, _ENCODED_CHARS):
        words, bounds = _cut_words(texts[first:last])
        encoded.append(words.dictionary_encode())
        starts.append(starts[-1][-1] + bounds[1:])
    unified = pa.chunked_array(encoded).unify_dictionaries()
    names = unified.chunk(0).dictionary
    numbers = np.concatenate([part.indices.to_numpy() for part in unified.chunks])
    return names, numbers, np.concatenate(starts)


def _cut_words(texts: Sequence[str]) -> tuple[Any, Ints]:
    """Split texts into lower-case words of two or more characters.

    Returns an Arrow array of UTF-32 bytes, and the bounds of each text.
    """
    # A word is a run of letters, digits, underscores and marks; a run in a script
    # without spaces becomes character pairs.
    characters = "\n".join(texts).encode("utf-32-le", "surrogatepass")
    lowered, is_unspaced = _characters()
    codes = np.frombuffer(characters, np.uint32)
    # All are in range, and "clip" takes half the time of "raise".
    codes = lowered.take(codes, mode="clip")
    bounds = _bounds_of(texts)
    # Few in texts in Latin, Greek, Cyrillic, Hebrew or Arabic script.
    high = np.flatnonzero(codes >= _UNSPACED[0][0])
    unspaced = high[is_unspaced.take(codes[high])]
    if len(unspaced):
        codes, bounds = _pair_unspaced(codes, bounds, unspaced)

    inside = codes != _SPACE
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    firsts = edges[::2]
    lengths = edges[1::2] - firsts
    inside[firsts[lengths == 1]] = False
    is_word = lengths > 1
    firsts = firsts[is_word]
    words = _binary(4 * lengths[is_word], codes[inside])
    return words, np.searchsorted(firsts, bounds)


def _cut_ascii_words(texts: Sequence[str]) -> tuple[Any, Ints]:
    """Split ASCII texts, in half the time.

    Returns words as bytes, single characters included, and the bounds of each text.
    """
    lowered, _ = _characters()
    table = bytes(lowered[:128].tolist())
    joined = "\n".join(texts).encode("ascii")
    letters = joined.translate(table.ljust(256))
    inside = np.zeros(len(letters) + 2, np.bool_)
    np.not_equal(np.frombuffer(letters, np.uint8), _SPACE, out=inside[1:-1])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    firsts = edges[::2]
    words = _binary(edges[1::2] - firsts, letters.translate(None, b" "))
    return words, np.searchsorted(firsts, _bounds_of(texts))


def _bounds_of(texts: Sequence[str]) -> Ints:
    """Return where each text begins in `"\\n".join(texts)`, and the end, (n + 1,)."""
    lengths = [len(text) + 1 for text in texts]
    return np.cumsum([0, *lengths])


def _binary(lengths: Ints, values: UInt32s | bytes) -> Any:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)


def _pair_unspaced(
    codes: UInt32s, bounds: Ints, unspaced: Ints
) -> tuple[UInt32s, Ints]:
    """Write each run abc of unspaced script as `ab bc`, separated from adjacent words.

    `unspaced` has the positions of its characters, ascending.
    """
    ends_run = np.diff(unspaced, append=len(codes) + 1) > 1
    begins_run = np.concatenate([[True], ends_run[:-1]])

    # c → c␣ after the last character of a run, and after the one before its first.
    last = unspaced[ends_run]
    last = last[last + 1 < len(codes)]
    last = last[codes[last + 1] != _SPACE]
    before = unspaced[begins_run] - 1
    before = before[before >= 0]
    before = before[codes[before] != _SPACE]
    apart = np.concatenate([last, before])
    # c → c␣c within a run.
    inner = unspaced[~ends_run & ~begins_run]

    positions = np.concatenate([apart, inner, inner]) + 1
    order = np.argsort(positions, kind="stable")
    positions = positions[order]
    spaces = np.full(len(apart) + len(inner), _SPACE, np.uint32)
    inserted = np.concatenate([spaces, codes[inner]])[order]
    inserted_before = np.searchsorted(positions, bounds, side="right")
    return np.insert(codes, positions, inserted), bounds + inserted_before


@lru_cache(maxsize=1)
def _characters() -> tuple[UInt32s, Bools]:
    """Return the lower case of each code point, and whether its script is unspaced.

    The lower case of what is no part of a word is a space.
    """
    table = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    for code in range(0x20000):
        letter = chr(code)
        is_mark = unicodedata.category(letter).startswith("M")
        if letter.isalnum() or letter == "_" or is_mark:
            lower = letter.lower()
            table[code] = ord(lower) if len(lower) == 1 else code
        else:
            table[code] = _SPACE
    table[0x40000:] = _SPACE  # tags and private use; the planes before are Han
    table[ord("ς")] = ord("σ")
    is_unspaced = np.zeros(sys.maxunicode + 1, np.bool_)
    for first, last in _UNSPACED:
        is_unspaced[first : last + 1] = True
    return table, is_unspaced


class _LsaKind(EncoderKind):
    """The built-in encoder, fitted on a random sample of the chunks."""

    Options = LsaOptions
    usage = "lsa"
    version = 2
    needs_fit = True
    preload = ("nextlong.retrieval.encoders.lsa",)
    is_tried = True
    fix = "this is a bug in nextlong; please report it"
    result = FitResult

    def load(self, config: recipe.Encoder, prepared: Prepared = None, /) -> Lsa:
        assert isinstance(prepared, Path)
        return Lsa.load(prepared)

    def prepare(
        self, config: recipe.Encoder, corpus: CorpusFiles, *, seed: int
    ) -> list[Task]:
        options = config.options_as(LsaOptions)
        return [partial(fit_on_chunks, corpus=corpus, options=options, seed=seed)]

    def depends_on(self, config: recipe.Encoder, *, seed: int) -> dict[str, JsonValue]:
        return {"seed": seed}


ENCODER = _LsaKind()
