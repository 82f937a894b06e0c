"""Notebook: how a run, a sequence and a data set show themselves where Python's last value is shown.

In:  the object. Out: HTML without script or style sheet, for a notebook trusts neither; every text escaped.
"""

from __future__ import annotations

from html import escape
from itertools import islice
from typing import TYPE_CHECKING

from nextlong.picture import before_after, pieces
from nextlong.picture.pieces import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nextlong.runs.run import Run, Sequence

_FIRST = 5  # sequences of a run
_MOST_PIECES = 4000  # that a picture is drawn of


def sequence_html(sequence: Sequence) -> str:
    """Return a sequence as its picture, before and after."""
    if len(sequence.spans) > _MOST_PIECES:
        return _facts(sequence.id, {"tokens": f"{len(sequence.input_ids):,}", "chunks": f"{len(sequence.spans):,}"})
    return before_after.svg(sequence.spans, tokens=len(sequence.input_ids), name=sequence.id)


def run_html(run: Run) -> str:
    """Return a run as what it is and its first sequences."""
    recipe = run.recipe
    facts = {
        "method": recipe.compose.method,
        "sequences": f"{len(run):,} of exactly {recipe.sequence_tokens:,} tokens",
        "read from": ", ".join(source.name or source.path for source in recipe.ingest.sources),
    }
    heads = "".join(f"<th>{head}</th>" for head in ("sequence", "about", "chunks", "mean cosine"))
    rows = ""
    for number, sequence in enumerate(islice(run.sequences(), _FIRST)):
        cosines, lead = pieces.scored(sequence.spans), pieces.lead_document(sequence.spans)
        about = next((span.source_id for span in sequence.spans if span.doc_id == lead), "")
        chunks = sum(span.role in pieces.CHUNK_ROLES for span in sequence.spans)
        mean = f"{sum(cosines) / len(cosines):.3f}" if cosines else "–"
        rows += f"<tr><td>{number}</td><td>{escape(clean(about))}</td><td>{chunks:,}</td><td>{mean}</td></tr>"
    return f"{_facts(str(run), facts)}<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def data_set_html(name: str, rows: int, columns: tuple[str, ...], fill: float | None) -> str:
    """Return a data set of rows for PyTorch as what it holds."""
    facts = {"rows": f"{rows:,}", "columns": ", ".join(columns)}
    return _facts(name, facts if fill is None else facts | {"filled": f"{fill:.1%}"})


def _facts(title: str, facts: Mapping[str, str]) -> str:
    lines = "".join(f"<br>{escape(name)}: {escape(clean(value))}" for name, value in facts.items())
    return f"<p><b>{escape(clean(title))}</b>{lines}</p>"
