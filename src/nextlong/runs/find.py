"""Find: which sequences of runs hold the same document.

In:  runs over the same documents. Out: one document, and a sequence of each run that is about it.
Of extended sequences those count whose meta-document it is; of others those that it stands in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nextlong import schemas
from nextlong.artifacts import finished
from nextlong.runs import spans
from nextlong.runs.run import Run

_CANDIDATES = 200  # documents of the first run that are looked for in the others …
_LOOKED_AT = 4000  # … among so many of their sequences


def about(run: Run, *, first: int = 0, most: int = _LOOKED_AT) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of each sequence from `first` on, `most` at most, and the doc_ids that it is about, each once."""
    number = 0
    for path, take in zip(finished.sequence_files(run.steps), run.sequences_per_part, strict=True):
        if number + take <= first:
            number += take
            continue
        for block in spans.read_blocks(path, take, run.corpus):
            subject = block.of(schemas.META, schemas.DOCUMENT)
            for place in range(int(block.sequence[-1]) + 1):
                if first <= number < first + most:
                    yield number, np.unique(subject.doc_ids[subject.sequence == place])
                number += 1
            if number >= first + most:
                return


def common_document(runs: Sequence[Run]) -> tuple[int, dict[int, int]] | None:
    """Return the document that most of some runs have a sequence about, and that sequence's number by place of the run.

    None if they do not share their documents, or no two have a sequence about the same one.
    """
    corpora = [run.steps["ingest"].manifest["fingerprint"] for run in runs]
    alike = [place for place, run in enumerate(runs) if corpora[place] == corpora[0] and len(run)]
    if len(alike) < 2:
        return None
    sequences_of: dict[int, dict[int, int]] = {place: {} for place in alike}  # the first sequence about each document
    for place in alike:
        for number, doc_ids in about(runs[place]):
            for doc in doc_ids.tolist():
                sequences_of[place].setdefault(doc, number)
    base = min(alike, key=lambda place: len(sequences_of[place]))
    candidates = list(sequences_of[base])[:_CANDIDATES]
    # The document that most runs share; among equals, that of the earliest sequence of `base`.
    best = max(
        candidates,
        key=lambda doc: (sum(doc in first_of for first_of in sequences_of.values()), -sequences_of[base][doc]),
    )
    numbers = {place: first_of[best] for place, first_of in sequences_of.items() if best in first_of}
    return (best, numbers) if len(numbers) > 1 else None
