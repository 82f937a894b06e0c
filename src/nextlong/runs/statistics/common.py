"""Common: a document that sequences of several runs are about, and sampled chunks.

In:  runs. Out: the number of a sequence about it in each run; ids of chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from nextlong import schemas
from nextlong.arrays import Ints
from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import ComposeFiles
from nextlong.runs.run import Run
from nextlong.runs.statistics import spans

_SAMPLED_SHARDS: Final = 48
# Only so many first sequences of each run are looked at …
_LOOKED_AT: Final = 4000
# … and of their documents, only so many are looked for in all runs.
_CANDIDATES: Final = 200


def common_document(runs: Sequence[Run]) -> tuple[int, dict[int, int]] | None:
    """Return the document that most runs have a sequence about (or hold).

    With it, the number of the first such sequence, by index of the run. None if the
    runs do not read the same documents, or no two have a sequence about the same one.
    """
    corpora = [run.steps["ingest"].manifest["fingerprint"] for run in runs]
    firsts_by_run: dict[int, dict[int, int]] = {}
    for index, run in enumerate(runs):
        if corpora[index] == corpora[0] and len(run):
            firsts_by_run[index] = _first_about(run)
    if len(firsts_by_run) < 2:
        return None

    # The document that most runs share. Candidates are those of the run with the fewest
    # documents, in the order of its sequences, so that the earliest wins among equals.
    fewest = min(firsts_by_run.values(), key=len)
    candidates = list(fewest)[:_CANDIDATES]

    def num_runs(document: int) -> int:
        return sum(document in firsts for firsts in firsts_by_run.values())

    best = max(candidates, key=num_runs)
    numbers = {
        index: firsts[best] for index, firsts in firsts_by_run.items() if best in firsts
    }
    if len(numbers) < 2:
        return None
    return best, numbers


def _first_about(run: Run) -> dict[int, int]:
    """Return the number of the first sequence about each document, by doc_id.

    The documents are in the order of the sequences.
    """
    firsts: dict[int, int] = {}
    number = 0
    paths = ComposeFiles.of(run.steps).sequences
    for path, take in zip(paths, run.sequences_per_part, strict=True):
        remaining = min(take, _LOOKED_AT - number)
        for block in spans.read_blocks(path, remaining, run.corpus):
            subject = block.of(*spans.ABOUT_ROLES)
            _, positions = np.unique(subject.doc_ids, return_index=True)
            for position in np.sort(positions).tolist():
                document = int(subject.doc_ids[position])
                firsts.setdefault(document, number + int(subject.sequence[position]))
            number += int(block.sequence[-1]) + 1
    return firsts


def sample_chunks(run: Run, count: int) -> Ints:
    """Return the sorted ids of about `count` chunks, shape (n,).

    They are from at most 48 evenly spaced shards.
    """
    chunks = corpus_files.corpus(run.steps).chunks
    num_shards = len(chunks)
    num_sampled = min(_SAMPLED_SHARDS, num_shards)
    spaced = np.linspace(0, num_shards - 1, num_sampled)
    shards = np.unique(spaced.astype(int))
    per_shard = math.ceil(count / len(shards))
    rng = np.random.default_rng(0)
    ids = []
    for shard in shards.tolist():
        columns = corpus_files.read_chunks(chunks[shard], ("doc_row",))
        num_chunks = len(columns["doc_row"])
        rows = rng.choice(num_chunks, min(num_chunks, per_shard), replace=False)
        ids.append(schemas.pack_ids(shard, np.sort(rows)))
    return np.concatenate(ids)


def has_every_vector(run: Run) -> bool:
    """Return whether the run embedded all of its chunks.

    With a shortlist, the vectors of most chunks are zero.
    """
    return "embed" in run.steps and "shortlist" not in run.steps
