"""Named: chunks and documents as a person is told of them, by document id and ordinal, never by internal ids.

In:  examples of breaches in which `chunk_name` and `document_name` left a mark for each id. Out: the same with names in them.
Only the few examples that are kept cost a look-up, however many breaches are counted.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nextlong.schemas import ROW_MASK, SHARD_BITS
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.export_readers import BROKEN
from nextlong.verify.marks import MARK
from nextlong.verify.outcome import Outcome


def with_names(run: Artefacts, outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the outcomes after putting the name of each chunk and document into their examples, in place."""
    named = list(outcomes)
    marks = {match.groups() for outcome in named for example in outcome.examples for match in MARK.finditer(example)}
    name_of = {mark: _name(run, *mark) for mark in marks}
    for outcome in named:
        outcome.examples = [MARK.sub(lambda match: name_of[match.groups()], example) for example in outcome.examples]
    return named


def _name(run: Artefacts, kind: str, digits: str) -> str:
    """Return `doc-17 · chunk 3` or `doc-17`; of an id that the run does not have, where it would lie."""
    number = int(digits)
    if number < 0:
        return f"no {kind}"
    shard, row = number >> SHARD_BITS, number & ROW_MASK
    try:
        if kind == "document":
            return run.names_of(np.array([number]), "source_id")[number]
        doc_rows = run.chunks(shard)["doc_row"]
        doc = int(doc_rows[row]) | shard << SHARD_BITS
        ordinal = row - int(np.searchsorted(doc_rows, doc_rows[row])) + 1
        return f"{run.names_of(np.array([doc]), 'source_id')[doc]} · chunk {ordinal}"
    except BROKEN:
        return f"unknown {kind} (shard {shard}, row {row:,})"
