"""As JSON: what commands print with --json, as plain dictionaries and lists; docs/reference/json.md names every key.

In:  finished runs, their sequences, what was written of them. Out: what `json.dumps` takes.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from math import isfinite

from nextlong.runs.card import Exported
from nextlong.runs.run import Run, Sequence
from nextlong.runs.warnings import of_rows
from nextlong.text import Json


def sequences_of(run: Run, *, first: int) -> list[Json]:
    """Return what the `first` sequences (0: all) of a run are made of."""
    shown = islice(run.sequences(), first or None)
    return [outline(number, sequence) for number, sequence in enumerate(shown)]


def outline(number: int, sequence: Sequence) -> Json:
    """Return what a sequence is made of; `source_id` is that of its meta-document, else of the first document."""
    of_role = {
        role: [span for span in sequence.spans if span.role == role] for role in ("meta", "negative", "document")
    }
    meta_spans, negatives, documents = of_role.values()
    owner = next(iter(meta_spans or documents or negatives), None)
    return {
        "number": number,
        "id": sequence.id,
        "method": sequence.method,
        "tokens": len(sequence.input_ids),
        "meta_chunks": len(meta_spans),
        "negatives": len(negatives),
        "meta_tokens": sum(span.token_end - span.token_start for span in meta_spans),
        "cosine_mean": sum(span.score for span in negatives) / len(negatives) if negatives else None,
        "documents": len({span.doc_id for span in sequence.spans if span.doc_id >= 0}),
        "source_id": owner and owner.source_id,
    }


def sequence_of(number: int, sequence: Sequence) -> Json:
    """Return one sequence with its spans and their texts; a score that nobody measured is None."""
    spans = [
        asdict(span) | {"score": span.score if isfinite(span.score) else None, "text": text}
        for span, text in zip(sequence.spans, sequence.texts, strict=True)
    ]
    return outline(number, sequence) | {"spans": spans}


def run_of(written: Exported) -> Json:
    """Return what a run made, and where."""
    (run,) = written.runs
    return {
        "run": str(run.path),
        "variant": run.variant.name,
        "method": run.recipe.compose.method,
        "sequences": len(run),
        "target_tokens": run.recipe.sequence_tokens,
    } | export_of(written)


def export_of(written: Exported) -> Json:
    """Return what was exported, and where."""
    recipe, rows, stats = written.recipe, written.rows, written.stats
    room = recipe.export.pack or written.longest
    empty = [warning for name, split in rows.splits.items() for warning in of_rows(name, split, room=room)]
    return {
        "rows": {
            name: split.model_dump(include={"rows", "sequences", "documents", "tokens"})
            for name, split in rows.splits.items()
        },
        "left_out": rows.left_out,
        "exports": {name: str(written.folder / name) for name in recipe.export.formats},
        "pushed_to": recipe.export.push,
        "warnings": [asdict(warning) for warning in (*(stats.warnings if stats else ()), *empty)],
    }
