"""Measures: parts of a run's statistics that need more than its spans.

In:  a run, and counts over its sequences. Out: reuse of chunks, tokens cut off at the
ends of sequences, lengths of documents, the cosine of random chunks, costs of steps.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Final

import numpy as np

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.sequence_files import special_ids
from nextlong.methods.documents import LengthsFiles, separator_follows
from nextlong.retrieval.embed import EmbedFiles
from nextlong.runs.run import Run
from nextlong.runs.statistics.common import has_every_vector, sample_chunks
from nextlong.runs.statistics.counting import COSINE_UNIT
from nextlong.runs.statistics.stats import CutOff, Hub, Reuse, StepCost, Uses
from nextlong.runs.statistics.tally import Spread, Tally

# The pairs of so many chunks are the baseline of cosines: its mean is exact to about
# 0.005.
_RANDOM_CHUNKS: Final = 500
_HUBS: Final = 10
# Uses of a chunk beyond which it teaches hardly anything (arXiv 2305.16264;
# docs/warnings.md).
OVERUSED: Final = 16


def measure_reuse(run: Run, tally: Tally) -> Reuse:
    """Return how often the chunks of a run are used, from the count of each."""
    chunk_ids, uses = tally.counted()
    if not len(uses):
        return Reuse(
            distinct_chunks=0,
            mean=None,
            max=None,
            overused_share=None,
            histogram=(),
            hubs=(),
        )
    # Bins that double, up to the first that holds the most uses: 1, 2, 3-4, 5-8 …
    num_bins = max(0, int(uses.max()) - 1).bit_length() + 1
    highs = [1 << power for power in range(num_bins)]
    histogram = []
    for below, high in pairwise([0, *highs]):
        is_in_bin = (uses > below) & (uses <= high)
        histogram.append(Uses(low=below + 1, high=high, chunks=int(is_in_bin.sum())))

    # The last key sorts first: the most used chunks, and of equally used ones those
    # with the lowest ids.
    top = np.lexsort((chunk_ids, -uses))[:_HUBS]
    top = top[uses[top] > 1]
    return Reuse(
        distinct_chunks=len(uses),
        mean=float(uses.mean()),
        max=int(uses.max()),
        overused_share=float(uses[uses > OVERUSED].sum() / uses.sum()),
        histogram=tuple(histogram),
        hubs=_hubs(run, chunk_ids[top].tolist(), uses[top].tolist()),
    )


def _hubs(run: Run, chunk_ids: list[int], uses: list[int]) -> tuple[Hub, ...]:
    """Return chunks and their uses, with the names by which a reader finds them."""
    if not chunk_ids:
        return ()
    names = corpus_files.chunk_names(
        np.array(chunk_ids),
        documents=run.corpus.documents,
        chunks=run.corpus.chunks,
    )
    hubs = []
    for chunk_id, (source_id, ordinal), count in zip(
        chunk_ids, names, uses, strict=True
    ):
        hubs.append(Hub(chunk_id, source_id, ordinal, count))
    return tuple(hubs)


def measure_cut_off(run: Run, taken: Tally, *, tokens: int) -> CutOff | None:
    """Return what is cut off of the documents `taken`; None if it was not counted.

    `taken` has the number of sequences of each document; `tokens` tokens of these
    documents are in sequences.
    """
    doc_ids, uses = taken.counted()
    if "lengths" not in run.steps or not len(doc_ids):
        return None
    lengths = LengthsFiles.of(run.steps).lengths
    separator_tokens = len(special_ids(run.steps).separator)
    rows_by_shard, order = corpus_files.by_shard(doc_ids)
    document_tokens = []
    for shard, rows in rows_by_shard:
        # The lengths (chunks,) count the separator behind a chunk too, which is no text
        # of the document.
        chunks = corpus_files.read_chunks(run.corpus.chunks[shard])
        separators = separator_tokens * separator_follows(chunks)
        chunk_tokens = np.load(lengths[shard]) - separators
        of_documents = np.bincount(chunks["doc_row"], weights=chunk_tokens)
        document_tokens.append(of_documents[rows])
    # In the order of `doc_ids`, as `uses`.
    tokens_of_documents = np.concatenate(document_tokens)[order]
    of_tokens = int(tokens_of_documents @ uses)
    return CutOff(tokens=of_tokens - tokens, of_tokens=of_tokens)


def corpus_chars(run: Run) -> tuple[Tally, dict[str, int]]:
    """Count the characters of every document's chunks, and those of each source.

    Sources are ordered from the largest. One shard is read at a time.
    """
    lengths = Tally()
    by_source = Counter[str]()
    corpus = corpus_files.corpus(run.steps)
    for shard, path in enumerate(corpus.chunks):
        columns = corpus_files.read_chunks(path, ("doc_row", "start", "end"))
        rows = columns["doc_row"]
        chars = columns["end"] - columns["start"]
        if not len(rows):
            continue
        # The chunks of a document are consecutive, so each new row of the documents
        # begins a document.
        firsts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 1))
        document_chars = np.add.reduceat(chars, firsts)
        lengths.add(document_chars)
        # The documents of a shard are of one source.
        first = schemas.pack_ids(shard, rows[:1])
        (sources,) = corpus_files.document_columns(first, corpus.documents, ("source",))
        by_source[str(sources[0])] += int(chars.sum())
    return lengths, largest_first(by_source)


def largest_first(counts: Counter[str]) -> dict[str, int]:
    """Return counts, the largest first, equal ones by name."""
    by_name = Counter(dict(sorted(counts.items())))
    return dict(by_name.most_common())


def measure_random_similarity(run: Run) -> Spread | None:
    """Return the cosines of all pairs of 500 sampled chunks of different documents.

    None unless the run embedded all chunks.
    """
    if not has_every_vector(run):
        return None
    ids = sample_chunks(run, _RANDOM_CHUNKS)
    # (n, dimensions), float64, so that sums of any order round to the same multiple of
    # COSINE_UNIT.
    files = EmbedFiles.of(run.steps).vectors
    vectors = corpus_files.vectors(ids, files).astype(np.float64)
    documents = corpus_files.documents_of(ids, run.corpus.chunks)
    # Every pair once, (n · (n − 1) / 2,). Chunks of one document are similar, so such
    # pairs are no baseline.
    left, right = np.triu_indices(len(ids), 1)
    is_pair = documents[left] != documents[right]
    products = (vectors @ vectors.T)[left[is_pair], right[is_pair]]
    # Rounding to float16 makes some vectors longer than 1.
    units = np.rint(products.clip(-1, 1) / COSINE_UNIT)
    cosines = Tally()
    cosines.add(units.astype(np.int64))
    return cosines.spread(unit=COSINE_UNIT)


def step_costs(run: Run) -> tuple[StepCost, ...]:
    """Return what each step of a run took, in the order in which they ran."""
    costs = []
    for name, done in run.steps.items():
        manifest = done.manifest
        peaks = [part.get("peak_bytes") for part in manifest["parts"]]
        measured_peaks = [peak for peak in peaks if peak is not None]
        costs.append(
            StepCost(
                step=name,
                seconds=manifest["seconds"],
                bytes=manifest["bytes"],
                peak_bytes=max(measured_peaks, default=None),
            )
        )
    return tuple(costs)
