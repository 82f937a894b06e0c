"""Tables, and everything else that commands print.

Titles, pairs, facts and messages look the same in all of them. A terminal gets colours
and wrapped lines, a pipe plain text with one record per line. Text of the user enters a
table through `cell`, so that neither its markup nor its control characters reach the
terminal.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nextlong.text import HANGING, wrapped

# What moves the cursor, colours the screen or turns the order of what follows; tabs and
# newlines do no harm.
_BIDI: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS: Final = dict.fromkeys(
    code for code in (*range(32), *range(0x7F, 0xA0), *_BIDI) if chr(code) not in "\t\n"
)
_GAP_CELLS: Final = 2  # between two columns
_HEADING_CELLS: Final = 24  # of a heading; a longer one is wrapped
_NAME_CELLS: Final = 24  # of a name before its value
_MIN_CELLS: Final = 8  # of a column that gives way
_MIN_FACT_CELLS: Final = 20
# Facts whose values are to be copied.
_COMMANDS: Final = (
    "inspect",
    "verify",
    "one sequence",
    "its text",
    "shorter sequences",
    "in a browser",
    "compare again",
)
_PIPE_CELLS: Final = 400  # of a line in a pipe, which no terminal limits


class PipeConsole(Console):
    """A console that raises BrokenPipeError when its reader has gone.

    rich itself would end the process with exit code 1.
    """

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError."""
        raise BrokenPipeError


def table(title: str = "") -> Table:
    """Return an empty table without lines."""
    return Table(
        title=escape(title) or None,
        title_justify="left",
        box=None,
        header_style="bold",
        pad_edge=False,
    )


def say(message: str, console: Console, *, style: str = "", label: str = "") -> None:
    """Print a message, behind a label in red if one is given.

    Paths that are longer than a terminal is wide stay whole.
    """
    shown = visible(f"{label}{message}")
    if console.is_terminal:
        shown = "\n".join(wrapped(shown, console.width, indent=HANGING))
    text = Text(shown, style=style)
    text.stylize("bold red", 0, len(label))
    console.print(text, soft_wrap=True)


def show_facts(
    facts: Sequence[tuple[str, str]],
    console: Console,
    *,
    beside: Sequence[tuple[str, str]] = (),
) -> None:
    """Print (name, value) pairs, one per line.

    They are aligned with those in `beside`, which were printed before. On a terminal
    long values are wrapped; commands stay on one line so that they can be copied.
    """
    width = max(len(name) for name, _ in (*facts, *beside)) + 2
    room = max(_MIN_FACT_CELLS, console.width - width)
    for name, value in facts:
        style = "yellow" if name == "warning" else ""
        # A wrapped command could not be copied.
        is_wrapped = console.is_terminal and name not in _COMMANDS
        parts = wrapped(value, room) if is_wrapped else [value]
        shown = visible(f"\n{'':<{width}}".join(parts))
        console.print(
            f"{name + ':':<{width}}{shown}",
            highlight=False,
            markup=False,
            soft_wrap=True,
            style=style,
        )


def show_title(title: str, console: Console) -> None:
    """Print the line above a table or a block."""
    console.print(f"[bold]{cell(title)}[/]", highlight=False, soft_wrap=True)


def show_pairs(title: str, rows: Sequence[tuple[str, str]], console: Console) -> None:
    """Print names and values under a title; on a terminal long values are wrapped."""
    show_title(title, console)
    block = table()
    block.show_header = False
    # One column edge for all blocks of a page.
    width = _NAME_CELLS if console.is_terminal else None
    block.add_column(no_wrap=True, min_width=width)
    block.add_column(overflow="fold")
    for name, value in rows:
        block.add_row(f"  {cell(name)}", cell(value))
    show(block, console)


def cell(text: str) -> str:
    """Return text on one line and without effect on the terminal."""
    return escape(_one_line(text))


def _one_line(text: str) -> str:
    words = visible(text).split()
    return " ".join(words)


def tail(text: str, cells: int) -> str:
    """Return text shortened to `cells` at its left.

    Long paths and ids differ at their ends.
    """
    if len(text) <= cells:
        return text
    kept = max(0, cells - 1)
    return f"…{text[len(text) - kept :]}"


def visible(text: str) -> str:
    """Return text without control characters other than tab and newline.

    Those of the writing direction are among them.
    """
    return text.translate(_CONTROLS)


def line(cells: Sequence[str], widths: Sequence[int]) -> Text:
    """Return one row: cells aligned to the right, and a last one without a width."""
    aligned = [f"{text:>{width}}" for text, width in zip(cells, widths, strict=False)]
    for text in cells[len(widths) :]:
        aligned.append(_one_line(text))
    return Text("  ".join(aligned))


def show_line(row: Text, console: Console) -> None:
    """Print a row at once; a terminal cuts it at its edge, a pipe gets all of it."""
    is_cut = console.is_terminal
    console.print(
        row, no_wrap=True, overflow="ellipsis" if is_cut else "ignore", crop=is_cut
    )


def shrink(filled: Table, console: Console, *, columns: Sequence[int]) -> None:
    """Shrink only `columns`, in this order, on a narrow terminal.

    A number that is cut to an ellipsis would be useless.
    """
    if not console.is_terminal:
        return
    gaps = _GAP_CELLS * (len(filled.columns) - 1)
    # As wide as the widest cell, so that rich does not shrink all columns alike.
    for column in filled.columns:
        texts = (column.header, *column.cells)
        widest = max(console.measure(text).maximum for text in texts)
        column.width = min(widest, column.max_width or widest)
    excess = gaps + sum(column.width or 0 for column in filled.columns) - console.width
    for index in columns:
        column = filled.columns[index]
        width = column.width or 0
        shrunk = max(_MIN_CELLS, width - max(0, excess))
        column.width = min(width, shrunk)
        excess -= width - column.width


def show_in_blocks(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    console: Console,
    *,
    names: int,
) -> None:
    """Print a table of plain text in blocks.

    Columns beyond the edge of a terminal follow in blocks below. The first `names`
    columns name the rows and are repeated in every block.
    """
    widths = []
    for index, heading in enumerate(headings):
        lines = heading.split("\n")
        heading_cells = min(_HEADING_CELLS, max(map(cell_len, lines)))
        row_cells = [cell_len(row[index]) for row in rows]
        widths.append(max(heading_cells, *row_cells))

    max_cells = console.width if console.is_terminal else None
    for number, block in enumerate(_blocks(widths, names=names, max_cells=max_cells)):
        if number:
            console.print()
        shown = table()
        columns = [*range(names), *block]
        for index in columns:
            lines = [cell(line) for line in headings[index].split("\n")]
            shown.add_column(
                "\n".join(lines),
                justify="left" if index < names else "right",
                overflow="fold",
                width=widths[index] if console.is_terminal else None,
            )
        for row in rows:
            shown.add_row(*(cell(row[index]) for index in columns))
        show(shown, console)


def _blocks(
    widths: Sequence[int], *, names: int, max_cells: int | None
) -> list[list[int]]:
    """Return the columns of each block, without those that name the rows."""
    name_cells = sum(widths[:names]) + _GAP_CELLS * names
    blocks: list[list[int]] = [[]]
    block_cells = name_cells - _GAP_CELLS
    for index in range(names, len(widths)):
        column_cells = _GAP_CELLS + widths[index]
        # A block has at least one column, even if that is too wide.
        is_full = max_cells is not None and block_cells + column_cells > max_cells
        if is_full and blocks[-1]:
            blocks.append([])
            block_cells = name_cells - _GAP_CELLS
        blocks[-1].append(index)
        block_cells += column_cells
    return blocks


def show(filled: Table, console: Console) -> None:
    """Print a table; in a pipe it is as wide as its text, without trailing spaces."""
    if console.is_terminal:
        console.print(filled)
        return
    wide = Console(
        file=io.StringIO(),
        width=_PIPE_CELLS,
        no_color=True,
        highlight=False,
    )
    with wide.capture() as captured:
        wide.print(filled)
    console.file.writelines(f"{row.rstrip()}\n" for row in captured.get().splitlines())
