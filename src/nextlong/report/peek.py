"""Peek: the sequences of a run as a list; or one as a strip, a table of its spans, or its text.

Without a terminal the same as plain text, one record a line; or as plain dictionaries (docs/reference/json.md names every key).
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from math import isfinite
from typing import Final, Literal

from rich.console import Console
from rich.text import Text

from nextlong.methods.base import described, method_of
from nextlong.report import tables
from nextlong.runs.run import Run, Sequence
from nextlong.schemas import Layout
from nextlong.text import Json, counted

_ROLES = {  # name, mark (distinct without colour, too), its colour, and the style of text
    "meta": ("meta-chunk", "█", "gold3", "bold black on gold3"),
    "negative": ("negative", "░", "dodger_blue3", "white on dodger_blue3"),
    "document": ("document", "▒", "dark_green", "white on dark_green"),
}
_OTHER = ("", "·", "dim", "dim")
_STRIP_CELLS = 96
_SOURCE_CELLS = 44
_SNIPPET_CHARS = 64
_WIDE, _NARROW_CELLS = (
    120,
    46,
)  # of a terminal; what a narrow one needs beside the document's name
_COLUMNS: Final[dict[str, Literal["left", "right"]]] = {  # of the spans of a sequence
    "tokens": "right",
    "length": "right",
    "role": "left",
    "cosine": "right",
    "source": "left",
    "characters": "right",
    "metadata": "left",
    "text": "left",
}
_HEADINGS = ("#", "tokens", "chunks", "negatives", "meta share", "cosine", "documents")


def show_run(run: Run, console: Console, *, first: int = 100) -> None:
    """Print a line for each of the `first` sequences (0: all) as it is read: its composition and its meta-document."""
    shown = min(first, len(run)) if first else len(run)
    widest = {"#": len(str(shown)), "tokens": len(f"{run.recipe.sequence_tokens:,}")}
    extends = method_of(run.recipe).layout == Layout.EXTENDED
    title = f"{counted(len(run), 'sequence')} by {described(run.recipe)} in {run}"
    tables.show_line(Text(tables.visible(title), style="bold"), console)
    # Names of documents need the room of columns that tell the least.
    is_narrow = console.is_terminal and console.width < _WIDE
    columns = [name for name in _HEADINGS if name != "meta share" or not is_narrow]
    widths = [max(len(name), widest.get(name, 0)) for name in columns]
    heading = tables.line(
        (*columns, "meta-document" if extends else "first document"), widths
    )
    heading.stylize("bold")
    tables.show_line(heading, console)
    for number, sequence in enumerate(islice(run.sequences(), shown)):
        outline = _outline(number, sequence)
        of_extended = {
            "chunks": str(outline["meta_chunks"]),
            "negatives": str(outline["negatives"]),
            "meta share": f"{outline['meta_tokens'] / outline['tokens']:.1%}",
        }
        cells = {
            "#": str(number),
            "tokens": f"{outline['tokens']:,}",
            "documents": str(outline["documents"]),
        }
        cells |= of_extended if extends else dict.fromkeys(of_extended, "–")  # not 0
        cells["cosine"] = (
            "–" if outline["cosine_mean"] is None else f"{outline['cosine_mean']:.3f}"
        )
        # An extended sequence that is cut at T may hold no meta-chunk.
        name = "" if extends and not outline["meta_chunks"] else outline["source_id"]
        if console.is_terminal:
            name = tables.tail(name, console.width - sum(widths) - 2 * len(widths))
        tables.show_line(
            tables.line((*(cells[column] for column in columns), name), widths), console
        )
    if shown < len(run):
        tables.show_line(
            Text(f"{len(run) - shown:,} more; --first 0 shows all"), console
        )


def show_sequence(sequence: Sequence, console: Console) -> None:
    """Print one sequence: a strip of its tokens, then every chunk with its position and its source."""
    console.print(
        f"[bold]{sequence.id}[/]  {len(sequence.input_ids):,} tokens", highlight=False
    )
    if console.is_terminal:
        cells = min(_STRIP_CELLS, console.width)
        cell_tokens, strip = len(sequence.input_ids) / cells, Text()
        for cell in range(
            cells
        ):  # one with any meta-chunk in it is marked and coloured as such
            first, last = cell * cell_tokens, (cell + 1) * cell_tokens
            roles = {
                span.role
                for span in sequence.spans
                if span.token_start < last and span.token_end > first
            }
            _, mark, colour, _ = next(
                (drawn for role, drawn in _ROLES.items() if role in roles), _OTHER
            )
            strip.append(mark, colour)
        console.print(strip)
        present = {span.role for span in sequence.spans}
        shown = [_ROLES[role] for role in _ROLES if role in present]
        console.print(
            Text("  ").join(
                Text(f"{mark} {name}", style=colour) for name, mark, colour, _ in shown
            )
        )
    is_narrow = (
        console.is_terminal and console.width < _WIDE
    )  # names of documents come before what can be worked out
    source_cells = (
        console.width - _NARROW_CELLS
        if is_narrow
        else min(_SOURCE_CELLS, console.width // 3)
    )
    hidden = {"length", "characters"} if is_narrow else set()
    if not any(span.metadata for span in sequence.spans):
        hidden.add("metadata")
    names = [name for name in _COLUMNS if name not in hidden]
    table = tables.table()
    for name in names:
        table.add_column(
            name, justify=_COLUMNS[name], overflow="ellipsis", no_wrap=True
        )
    for span, text in zip(sequence.spans, sequence.texts, strict=True):
        *_, style = _ROLES.get(span.role, _OTHER)
        cell_of = {
            "tokens": f"{span.token_start:,}–{span.token_end:,}",
            "length": str(span.token_end - span.token_start),
            "role": Text(f" {span.role} ", style=style)
            if console.is_terminal
            else span.role,
            "cosine": f"{span.score:.3f}" if span.role == "negative" else "",
            "source": tables.cell(
                tables.tail(span.source_id, source_cells)
                if console.is_terminal
                else span.source_id
            ),
            "characters": f"{span.char_start:,}–{span.char_end:,}"
            if span.doc_id >= 0
            else "",
            "metadata": tables.cell(
                ", ".join(f"{name}={value}" for name, value in span.metadata.items())
            ),
            "text": tables.cell(text[:_SNIPPET_CHARS]),
        }
        table.add_row(*(cell_of[name] for name in names))
    flexible = [
        names.index(name) for name in ("text", "metadata", "source") if name in names
    ]
    tables.shrink(table, console, columns=flexible)
    tables.show(table, console)


def show_text(sequence: Sequence, console: Console) -> None:
    """Print the text of one sequence: on a terminal each span under a line that describes it, in a pipe the exact text."""
    if not console.is_terminal:
        console.file.write(sequence.text)
        return
    for span, text in zip(sequence.spans, sequence.texts, strict=True):
        name, mark, _, style = _ROLES.get(span.role, _OTHER)
        if name:
            cosine = f", cosine {span.score:.3f}" if span.role == "negative" else ""
            source = " ".join(tables.visible(span.source_id).split())
            tokens = f"tokens {span.token_start:,}–{span.token_end:,}{cosine}"
            console.print(
                Text(f"{mark} {name} of {source}, {tokens}", style="bold"),
                soft_wrap=True,
            )
        shown = tables.visible(text)
        console.print(
            Text(shown, style=style),
            end="" if shown.endswith("\n") else "\n",
            soft_wrap=True,
        )


def sequences_of(run: Run, *, first: int) -> list[Json]:
    """Return the composition of the `first` sequences (0: all) of a run."""
    return [
        _outline(number, sequence)
        for number, sequence in enumerate(islice(run.sequences(), first or None))
    ]


def _outline(number: int, sequence: Sequence) -> Json:
    """Return the composition of a sequence; `source_id` is that of its meta-document, else of its first document."""
    meta_spans, negatives, documents = (
        [span for span in sequence.spans if span.role == role]
        for role in ("meta", "negative", "document")
    )
    owner = next(iter(meta_spans or documents or negatives), None)
    return {
        "number": number,
        "id": sequence.id,
        "method": sequence.method,
        "tokens": len(sequence.input_ids),
        "meta_chunks": len(meta_spans),
        "negatives": len(negatives),
        "meta_tokens": sum(span.length for span in meta_spans),
        "cosine_mean": sum(span.score for span in negatives) / len(negatives)
        if negatives
        else None,
        "documents": len({span.doc_id for span in sequence.spans if span.doc_id >= 0}),
        "source_id": owner and owner.source_id,
    }


def sequence_of(number: int, sequence: Sequence) -> Json:
    """Return one sequence with its spans and their texts; a span without a score has None."""
    spans = [
        asdict(span)
        | {"score": span.score if isfinite(span.score) else None, "text": text}
        for span, text in zip(sequence.spans, sequence.texts, strict=True)
    ]
    return _outline(number, sequence) | {"spans": spans}
