"""Tables, and all else that commands print: titles, pairs, facts and messages look the same in each.

On a terminal in colour and wrapped between words at its edge; elsewhere plain text, one record a line. Text of the user's comes
into a cell by `cell`, so that neither its markup nor its control characters reach the terminal.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nextlong.text import HANGING, wrapped

# What moves the cursor, colours the screen or turns the order of what follows; tabs and newlines do no harm.
_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = dict.fromkeys(code for code in (*range(32), *range(0x7F, 0xA0), *_BIDI) if chr(code) not in "\t\n")
_GAP_CELLS = 2  # between two columns
_HEADING_CELLS = 24  # of a heading; what is longer goes on below
_NAME_CELLS = 24  # of a name before its value
_LEAST_CELLS = 8  # of a column that gives way
_LEAST_FACT_CELLS = 20
_COMMANDS = ("look", "one of them", "its text", "longer")  # facts whose values are to be copied
_PIPE_CELLS = 400  # wide enough that a pipe loses nothing to a narrow terminal that is not there


class PipeConsole(Console):
    """A console that leaves a reader who has gone to the caller; rich ends the process with exit code 1."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError."""
        raise BrokenPipeError


def table(title: str = "") -> Table:
    """Return an empty table without lines."""
    return Table(title=escape(title) or None, title_justify="left", box=None, header_style="bold", pad_edge=False)


def say(message: str, console: Console, *, style: str = "", label: str = "") -> None:
    """Print a message, behind a label in red if one is given. Paths that are longer than a terminal is wide stay whole."""
    shown = visible(f"{label}{message}")
    if console.is_terminal:
        shown = "\n".join(wrapped(shown, console.width, indent=HANGING))
    text = Text(shown, style=style)
    text.stylize("bold red", 0, len(label))
    console.print(text, soft_wrap=True)


def show_facts(facts: Sequence[tuple[str, str]], console: Console, *, beside: Sequence[tuple[str, str]] = ()) -> None:
    """Print (name, value), one a line; the values stand below those `beside` which were printed before.

    On a terminal what is said in words goes on below itself; commands stay whole.
    """
    width = max(len(name) for name, _ in (*facts, *beside)) + 2
    for name, value in facts:
        style, room = "yellow" if name == "warning" else "", max(_LEAST_FACT_CELLS, console.width - width)
        parts = wrapped(value, room) if console.is_terminal and name not in _COMMANDS else [value]
        shown = visible(f"\n{'':<{width}}".join(parts))
        console.print(f"{name + ':':<{width}}{shown}", highlight=False, markup=False, soft_wrap=True, style=style)


def show_title(title: str, console: Console) -> None:
    """Print the line above a table or a block."""
    console.print(f"[bold]{cell(title)}[/]", highlight=False, soft_wrap=True)


def show_pairs(title: str, rows: Sequence[tuple[str, str]], console: Console) -> None:
    """Print names and values under a title; on a terminal a long value goes on below itself."""
    show_title(title, console)
    block = table()
    block.show_header = False
    width = _NAME_CELLS if console.is_terminal else None  # one column edge for all blocks of a page
    block.add_column(no_wrap=True, min_width=width)
    block.add_column(overflow="fold")
    for name, value in rows:
        block.add_row(f"  {cell(name)}", cell(value))
    show(block, console)


def cell(text: str) -> str:
    """Return text on one line and without effect on the terminal."""
    return escape(" ".join(visible(text).split()))


def tail(text: str, cells: int) -> str:
    """Return text cut at its left to so many cells: of long paths and ids the end tells them apart."""
    return text if len(text) <= cells else f"…{text[len(text) - max(0, cells - 1) :]}"


def visible(text: str) -> str:
    """Return text without control characters other than tab and newline, those of the writing direction among them."""
    return text.translate(_CONTROLS)


def line(cells: Sequence[str], widths: Sequence[int]) -> Text:
    """Return one row: cells to the right of their column's width, one more than there are widths to the left."""
    aligned = [f"{text:>{width}}" for text, width in zip(cells, widths, strict=False)]
    return Text("  ".join([*aligned, *(" ".join(visible(text).split()) for text in cells[len(widths) :])]))


def show_line(row: Text, console: Console) -> None:
    """Print a row at once: cut at the edge of a terminal, whole where there is none."""
    is_cut = console.is_terminal
    console.print(row, no_wrap=True, overflow="ellipsis" if is_cut else "ignore", crop=is_cut)


def shrink(filled: Table, console: Console, *, columns: Sequence[int]) -> None:
    """Let only `columns`, in this order, give way on a narrow terminal: numbers cut to an ellipsis tell nothing."""
    if not console.is_terminal:
        return
    gaps = 2 * (len(filled.columns) - 1)
    for column in filled.columns:
        widest = max(console.measure(text).maximum for text in (column.header, *column.cells))
        column.width = min(widest, column.max_width or widest)
    excess = gaps + sum(column.width or 0 for column in filled.columns) - console.width
    for place in columns:
        width = filled.columns[place].width or 0
        filled.columns[place].width = min(width, max(_LEAST_CELLS, width - max(0, excess)))
        excess -= width - (filled.columns[place].width or 0)


def show_in_blocks(headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console, *, names: int) -> None:
    """Print a table of plain text; columns beyond the edge of a terminal follow in blocks below.

    The first `names` columns say what a row is: they stand to the left and in every block.
    """
    widths = [  # of each column, in cells
        max(min(_HEADING_CELLS, max(map(cell_len, heading.split("\n")))), *(cell_len(row[place]) for row in rows))
        for place, heading in enumerate(headings)
    ]
    blocks: list[list[int]] = [[]]
    for place in range(names, len(headings)):
        block_cells = sum(widths[column] + _GAP_CELLS for column in (*range(names), *blocks[-1], place)) - _GAP_CELLS
        if console.is_terminal and blocks[-1] and block_cells > console.width:
            blocks.append([])
        blocks[-1].append(place)
    for number, block in enumerate(blocks):
        if number:
            console.print()
        shown, places = table(), [*range(names), *block]
        for place in places:
            heading = "\n".join(map(cell, headings[place].split("\n")))
            width = widths[place] if console.is_terminal else None
            shown.add_column(heading, justify="left" if place < names else "right", overflow="fold", width=width)
        for row in rows:
            shown.add_row(*(cell(row[place]) for place in places))
        show(shown, console)


def show(filled: Table, console: Console) -> None:
    """Print a table; where there is no terminal, as wide as its text, without blanks at the ends of lines."""
    if console.is_terminal:
        console.print(filled)
        return
    wide = Console(file=io.StringIO(), width=_PIPE_CELLS, no_color=True, highlight=False)
    with wide.capture() as captured:
        wide.print(filled)
    console.file.writelines(f"{row.rstrip()}\n" for row in captured.get().splitlines())
