"""BM25: the weights of words in texts, and the scores of texts for a query.

In:  texts, and the counts of the words of queries. Out: sparse matrices of SciPy.

BM25 is Lucene's (k1 = 1.2, b = 0.75). A text is a chunk or a whole document; words are
hashed, so that a vocabulary has no strings. Shapes: V words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from nextlong.arrays import Floats, Hashes, Ints
from nextlong.artifacts import corpus_files
from nextlong.retrieval.near_duplicates.shingles import bounds_of, hash_words

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_K1 = 1.2
_B = 0.75
_TEXTS_AT_ONCE: Final = 512
# Products of query words and words of texts; their scores take about 200 MB.
_PRODUCTS_AT_ONCE: Final = 1 << 24


class Vocabulary(NamedTuple):
    """The words that queries may have, and how rare they are."""

    hashes: Hashes  # (V,) ascending
    idf: Floats  # (V,)
    mean_words: float  # per text


def idf_of(frequency: Ints, *, texts: int) -> Floats:
    """Return the weight of each word by the number of texts that have it, (V,)."""
    idf = np.log1p((texts - frequency + 0.5) / (frequency + 0.5))
    return idf.astype(np.float32)


def hash_texts(texts: Sequence[str]) -> tuple[Hashes, Ints]:
    """Return the hashes of the words of all n texts, and their bounds, (n + 1,).

    The hashes are concatenated.
    """
    hashes = [np.empty(0, np.uint64)]
    bounds = [np.zeros(1, np.int64)]
    for low in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts[low : low + _TEXTS_AT_ONCE]
        words = hash_words("\n".join(part))
        hashes.append(words.hashes)
        words_before = bounds[-1][-1]
        bounds.append(words_before + bounds_of(words, part)[1:])
    return np.concatenate(hashes), np.concatenate(bounds)


def count_known(hashes: Hashes, bounds: Ints, words: Hashes) -> csr_matrix:
    """Return the count of each word of the vocabulary in each text.

    CSR float32 (texts, V); `words`, (V,), ascend.
    """
    from scipy import sparse

    columns = np.searchsorted(words, hashes)
    is_known = np.zeros(len(hashes), np.bool_)
    if len(words):
        is_known = words[np.minimum(columns, len(words) - 1)] == hashes
    # Where the known words of each text begin and end.
    ends = np.append(0, np.cumsum(is_known))[bounds]
    ones = np.ones(ends[-1], np.float32)
    known_columns = columns[is_known].astype(np.int32)
    counts = sparse.csr_matrix(
        (ones, known_columns, ends), shape=(len(bounds) - 1, len(words))
    )
    counts.sum_duplicates()
    return counts


def weights_of(counts: csr_matrix, lengths: Ints, vocabulary: Vocabulary) -> csr_matrix:
    """Return the BM25 weights of n texts, CSR float32 (V, n).

    `lengths`, (n,), are in words.
    """
    relative_lengths = _B * lengths / max(1.0, vocabulary.mean_words)
    norm = (_K1 * (1 - _B + relative_lengths)).astype(np.float32)
    norm_of_entry = np.repeat(norm, np.diff(counts.indptr))
    weights = counts.copy()
    idf = vocabulary.idf[counts.indices]
    weights.data = idf * counts.data / (counts.data + norm_of_entry)
    return weights.T.tocsr()


def scores_of(
    queries: csr_matrix, weights: csr_matrix
) -> Iterator[tuple[int, csr_matrix]]:
    """Yield the first row and the scores of each block of queries.

    CSR (queries of the block, chunks).
    """
    # A score is summed in the order of the query's words: blocks and shards do not
    # change its bits. `postings`, (queries + 1,), is the number of products of all
    # queries before each one.
    chunks_of_word = np.diff(weights.indptr)
    ends = np.cumsum(chunks_of_word[queries.indices])
    postings = np.append(0, ends)[queries.indptr]
    for first, last in corpus_files.runs_within(np.diff(postings), _PRODUCTS_AT_ONCE):
        yield first, queries[first:last] @ weights
