"""The LSA encoder: TF-IDF and a truncated SVD, fitted on a sample of the corpus.

In:  texts. Out: float32 (n, dimensions), unit rows.
It is the built-in encoder, so that a first run needs neither a download nor a GPU. Terms and weights equal those of
scikit-learn's TfidfVectorizer(sublinear_tf=True) (tested), but words are split and looked up by NumPy and Arrow over whole
batches, so the whole encoder is over twice as fast as that vectorizer alone. The SVD is the randomized one of Halko,
Martinsson and Tropp (2011). A single thread gives the same bits on every run, whatever the batches.
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
from numpy.typing import NDArray
from pydantic import Field, JsonValue

from nextlong import recipe
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

_BATCH_CHARS: Final = (
    1 << 22
)  # looked up at a time: each batch builds a hash table of all terms
_CUT_CHARS: Final = 1 << 18  # split at a time; the arrays fit into caches
_ENCODED_CHARS: Final = 1 << 20  # … when the distinct words are collected
_OVERSAMPLING: Final = 16
# float32 noise: singular values below this share of the first, and shorter projections, are meaningless.
_NEGLIGIBLE: Final = 1e-5
_GRAM_ROWS: Final = 4096


class FitResult(TaskResult):
    """A fitted encoder: the chunks of the corpus and of the sample, its terms, and the width of its vectors."""

    chunks: int
    fit_chunks: int
    terms: int
    dimensions: int


class LsaOptions(Section):
    """The built-in encoder: TF-IDF and a truncated SVD, fitted on a sample of the chunks."""

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
    """A fitted encoder: terms, their idf, shape (terms,), and the components, shape (terms, dimensions)."""

    def __init__(
        self,
        terms: Sequence[str],
        idf: NDArray[np.float32],
        components: NDArray[np.float32],
    ) -> None:
        self.terms, self.idf, self.components = terms, idf, components
        self.dimensions: int = components.shape[1]
        # Encoded as `_cut_words` and `_cut_ascii_words` return words.
        as_written = (
            [term.encode(encoding) for term in terms]
            for encoding in ("utf-32-le", "utf-8")
        )
        self._terms, self._ascii_terms = (
            pa.array(encoded_terms, pa.large_binary()) for encoded_terms in as_written
        )

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors, shape (n, dimensions); a text without known terms gets a random direction of its own."""
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        is_ascii = np.array([text.isascii() for text in texts], np.bool_)
        for rows in (np.flatnonzero(is_ascii), np.flatnonzero(~is_ascii)):
            alike = [texts[row] for row in rows.tolist()]
            for first, last in runs_within([*map(len, alike)], _BATCH_CHARS):
                # A sparse product computes each row on its own, so the batch does not affect the bits.
                vectors[rows[first:last]] = (
                    self.tfidf(alike[first:last]) @ self.components
                )
        return unit_or_drawn(vectors, texts, least=_NEGLIGIBLE)

    def tfidf(self, texts: Sequence[str]) -> Any:
        """Return the TF-IDF rows of a batch, CSR float32 (n, terms): (1 + ln count) · idf at unit length."""
        is_ascii = all(map(str.isascii, texts))
        cut, terms = (
            (_cut_ascii_words, self._ascii_terms)
            if is_ascii
            else (_cut_words, self._terms)
        )
        words, starts = [pa.array([], pa.large_binary())], [np.zeros(1, np.int64)]
        for first, last in runs_within([*map(len, texts)], _CUT_CHARS):
            piece, bounds = cut(texts[first:last])
            words.append(piece)
            starts.append(starts[-1][-1] + bounds[1:])
        columns = pc.fill_null(
            pc.index_in(pa.chunked_array(words), value_set=terms), -1
        ).to_numpy()
        known = columns >= 0
        known_before = np.concatenate([[0], np.cumsum(known)])
        return _weigh(
            _count(
                columns[known],
                known_before[np.concatenate(starts)],
                width=len(self.terms),
            ),
            self.idf,
        )

    def save(self, out: Path) -> None:
        """Write `{out}.terms.json`, `{out}.idf.npy` and `{out}.components.npy`."""
        Path(f"{out}.terms.json").write_bytes(orjson.dumps(list(self.terms)))
        np.save(f"{out}.idf.npy", self.idf)
        np.save(f"{out}.components.npy", self.components)

    @classmethod
    def load(cls, stem: Path) -> Self:
        """Read the files that `save` wrote; the components are memory-mapped, so processes share them."""
        terms = orjson.loads(Path(f"{stem}.terms.json").read_bytes())
        return cls(
            terms,
            np.load(f"{stem}.idf.npy"),
            np.asarray(np.load(f"{stem}.components.npy", mmap_mode="r")),
        )


def _count(columns: NDArray[np.int32], starts: NDArray[np.int64], *, width: int) -> Any:
    """Return the count of each column in each text, CSR float32; the words of text i are [starts[i], starts[i + 1])."""
    from scipy import (
        sparse,
    )  # imported here because it takes 0.1 s, which every start of nextlong would pay

    texts, bits = len(starts) - 1, width.bit_length()
    # Sorting one integer of text and column is faster than sorting the columns of each text with their counts.
    keys = np.repeat(np.arange(texts) << bits, np.diff(starts))
    keys |= columns
    keys.sort()
    firsts = np.flatnonzero(np.diff(keys, prepend=-1))
    counts = np.diff(firsts, append=len(keys)).astype(np.float32)
    keys = keys[firsts]
    offsets = np.searchsorted(keys, np.arange(texts + 1) << bits)
    return sparse.csr_matrix(
        (counts, (keys & ((1 << bits) - 1)).astype(np.int32), offsets),
        shape=(texts, width),
    )


def _weigh(counts: Any, idf: NDArray[np.float32]) -> Any:
    """Convert counts, in place, to (1 + ln count) · idf with rows of unit length."""
    # From a table, because vectorized logarithms can differ in the last bit by their place in the batch.
    logarithms = np.log(np.arange(1, counts.data.max(initial=1) + 1)).astype(np.float32)
    weights = (1 + logarithms[counts.data.astype(np.int64) - 1]) * idf[counts.indices]
    rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    lengths = np.sqrt(np.bincount(rows, weights=weights**2, minlength=counts.shape[0]))
    counts.data = weights / lengths.astype(np.float32)[rows]
    return counts


def _components(tfidf: Any, *, dimensions: int, seed: int) -> NDArray[np.float32]:
    """Return the leading right singular vectors of a CSR matrix (n, terms), shape (terms, rank), rank ≤ dimensions."""
    texts, terms = tfidf.shape
    if not tfidf.nnz:
        return np.zeros((terms, dimensions), np.float32)
    width = min(dimensions + _OVERSAMPLING, texts, terms)
    rows_NW = tfidf @ rng_for(seed, "lsa").standard_normal((terms, width), np.float32)
    # One power iteration. With one, two or four, the same share (40-41 %) of the ten nearest of 20,000 unseen chunks is of
    # the same document; without any, 28 % of the neighbours differ from those after four iterations.
    rows_NW = tfidf @ (tfidf.T @ rows_NW)
    basis_NW, _ = np.linalg.qr(rows_NW)
    del rows_NW
    projected_TW = tfidf.T @ basis_NW
    gram_WW = np.zeros(
        (width, width)
    )  # products of all columns, in float64 because squares double the digits
    for first in range(0, terms, _GRAM_ROWS):
        block = projected_TW[first : first + _GRAM_ROWS].astype(np.float64)
        gram_WW += block.T @ block
    squares, turn_WW = np.linalg.eigh(
        gram_WW
    )  # squared singular values within the basis, ascending
    values = np.sqrt(np.maximum(squares[::-1], 0))
    kept = np.flatnonzero(values[:dimensions] > _NEGLIGIBLE * values[0])
    return np.ascontiguousarray(
        projected_TW @ (turn_WW[:, ::-1][:, kept] / values[kept]).astype(np.float32)
    )


def fit_on_chunks(
    out: Path, *, corpus: CorpusFiles, options: LsaOptions, seed: int
) -> FitResult:
    """Fit on about `options.fit_chunks` chunks of all shards; write the files of `Lsa.save`."""
    total = sum(map(count_chunks, corpus.chunks))
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

    Terms are in at least 2 texts and at most half of them (all terms if these are too few); the `max_terms` most frequent.
    """
    encoded, starts = (
        [pa.array([], pa.large_binary()).dictionary_encode()],
        [np.zeros(1, np.int64)],
    )
    for first, last in runs_within([*map(len, texts)], _ENCODED_CHARS):
        words, bounds = _cut_words(texts[first:last])
        encoded.append(words.dictionary_encode())
        starts.append(starts[-1][-1] + bounds[1:])
    unified = pa.chunked_array(encoded).unify_dictionaries()
    names = unified.chunk(0).dictionary
    columns = np.concatenate([part.indices.to_numpy() for part in unified.chunks])
    del encoded, unified  # as large as all arrays that follow
    counts = _count(columns, np.concatenate(starts), width=len(names))
    del columns
    # (names,) each: the number of texts with a term, and its occurrences in all texts.
    document_frequency = np.bincount(counts.indices, minlength=len(names))
    frequency = np.bincount(counts.indices, weights=counts.data, minlength=len(names))
    telling = (document_frequency >= 2) & (document_frequency <= counts.shape[0] / 2)
    chosen = pc.array_sort_indices(names).to_numpy().astype(np.int64)
    if telling.sum() >= dimensions:
        chosen = chosen[telling[chosen]]
    # The most frequent terms first, ties in the order of the terms.
    chosen = chosen[np.argsort(-frequency[chosen], kind="stable")[:max_terms]]
    counts = counts[:, chosen]
    counts.sort_indices()
    idf = (np.log((1 + len(texts)) / (1 + document_frequency[chosen])) + 1).astype(
        np.float32
    )
    terms = [
        name.decode("utf-32-le") for name in names.take(pa.array(chosen)).to_pylist()
    ]
    del names
    return Lsa(
        terms, idf, _components(_weigh(counts, idf), dimensions=dimensions, seed=seed)
    )


_SPACE: Final = 0x20
# Scripts written without spaces between words: Thai to Myanmar, Khmer, kana, Han, Hangul, their compatibility forms and
# the Han planes. Hangul uses spaces, but its particles attach to words.
_UNSPACED: Final = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3005, 0x3007), (0x3040, 0x30FF), (0x31F0, 0x31FF),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x20000, 0x3FFFF),
)  # fmt: skip


def _cut_words(texts: Sequence[str]) -> tuple[Any, NDArray[np.int64]]:
    """Split texts into lower-case words of two or more characters: an Arrow array of UTF-32 bytes, and each text's bounds."""
    # A word is a run of letters, digits, underscores and marks; a run in a script without spaces becomes character pairs.
    characters = "\n".join(texts).encode("utf-32-le", "surrogatepass")
    lowered, is_unspaced = _characters()
    codes = lowered.take(
        np.frombuffer(characters, np.uint32), mode="clip"
    )  # all in range; half the time of "raise"
    bounds = np.cumsum([0, *(len(text) + 1 for text in texts)])
    high = np.flatnonzero(
        codes >= _UNSPACED[0][0]
    )  # few in texts in Latin, Greek, Cyrillic, Hebrew or Arabic script
    if len(unspaced := high[is_unspaced.take(codes[high])]):
        codes, bounds = _pair_unspaced(codes, bounds, unspaced)
    inside = codes != _SPACE
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    firsts, lengths = edges[::2], edges[1::2] - edges[::2]
    inside[firsts[lengths == 1]] = False
    firsts, lengths = firsts[lengths > 1], lengths[lengths > 1]
    return _binary(4 * lengths, codes[inside]), np.searchsorted(firsts, bounds)


def _cut_ascii_words(texts: Sequence[str]) -> tuple[Any, NDArray[np.int64]]:
    """Split ASCII texts, in half the time: words as bytes, single characters included, and each text's bounds."""
    letters = (
        "\n".join(texts)
        .encode("ascii")
        .translate(bytes(_characters()[0][:128].tolist()).ljust(256))
    )
    inside = np.zeros(len(letters) + 2, np.bool_)
    np.not_equal(np.frombuffer(letters, np.uint8), _SPACE, out=inside[1:-1])
    edges = np.flatnonzero(inside[1:] != inside[:-1])
    bounds = np.cumsum([0, *(len(text) + 1 for text in texts)])
    return _binary(
        edges[1::2] - edges[::2], letters.translate(None, b" ")
    ), np.searchsorted(edges[::2], bounds)


def _binary(lengths: NDArray[np.int64], values: NDArray[np.uint32] | bytes) -> Any:
    buffers = [
        None,
        pa.py_buffer(np.concatenate([[0], np.cumsum(lengths)])),
        pa.py_buffer(values),
    ]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)


def _pair_unspaced(
    codes: NDArray[np.uint32], bounds: NDArray[np.int64], unspaced: NDArray[np.int64]
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Write each run abc of unspaced script as `ab bc`, separated from adjacent words; `unspaced` has its places, ascending."""
    ends_run = np.diff(unspaced, append=len(codes) + 1) > 1
    begins_run = np.concatenate([[True], ends_run[:-1]])
    last, before = unspaced[ends_run], unspaced[begins_run] - 1
    last, before = last[last + 1 < len(codes)], before[before >= 0]
    apart = np.concatenate(
        [last[codes[last + 1] != _SPACE], before[codes[before] != _SPACE]]
    )  # c → c␣
    inner = unspaced[~ends_run & ~begins_run]  # c → c␣c
    places = np.concatenate([apart, inner, inner]) + 1
    order = np.argsort(places, kind="stable")
    inserted = np.concatenate(
        [np.full(len(apart) + len(inner), _SPACE, np.uint32), codes[inner]]
    )[order]
    return np.insert(codes, places[order], inserted), bounds + np.searchsorted(
        places[order], bounds, side="right"
    )


@lru_cache(maxsize=1)
def _characters() -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Return for each code point its lower case (a space if no part of a word), and whether its script is unspaced."""
    table = np.arange(sys.maxunicode + 1, dtype=np.uint32)
    for code in range(0x20000):
        letter = chr(code)
        if letter.isalnum() or letter == "_" or unicodedata.category(letter)[0] == "M":
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
    cure = "this is a bug in nextlong; please report it"
    result = FitResult

    def load(self, config: recipe.Encoder, prepared: Prepared = None, /) -> Lsa:
        assert isinstance(prepared, Path)
        return Lsa.load(prepared)

    def prepare(
        self, config: recipe.Encoder, corpus: CorpusFiles, *, seed: int
    ) -> list[Task]:
        return [
            partial(
                fit_on_chunks,
                corpus=corpus,
                options=config.options_as(LsaOptions),
                seed=seed,
            )
        ]

    def depends_on(self, config: recipe.Encoder, *, seed: int) -> dict[str, JsonValue]:
        return {"seed": seed}


ENCODER = _LsaKind()
