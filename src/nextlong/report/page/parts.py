"""Parts: what every section of the page is made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from nextlong.picture.elements import element
from nextlong.report.page.numbers import Cell, Row


def letters(count: int) -> list[str]:
    """Return what stands for each run in pictures and at the head of columns."""
    return ["this run"] if count == 1 else list("ABCDEF"[:count])


def section(name: str, heading: str, *children: Element) -> Element:
    """Return a section that the page's navigation leads to."""
    return element(
        "section", element("h2", heading, id=f"{name}-heading"), *children, id=name, aria_labelledby=f"{name}-heading"
    )


def wide(child: Element, label: str) -> Element:
    """Return something that may be wider than the page, which the keyboard scrolls too."""
    return element("div", child, class_="wide", tabindex="0", role="region", aria_label=label)


def table(caption: str, rows: Sequence[Row], heads: Sequence[str], **attributes: str) -> Element:
    """Return numbers of runs, a column each."""
    return element(
        "table",
        element("caption", caption),
        element(
            "thead",
            element("tr", element("th", "what", scope="col"), *(element("th", head, scope="col") for head in heads)),
        ),
        element("tbody", *map(_row, rows)),
        **attributes,
    )


def _row(row: Row) -> Element:
    name = element("bdi", row.name) if row.is_foreign else row.name
    return element("tr", element("th", name, scope="row"), *(element("td", number(cell)) for cell in row.cells))


def number(cell: Cell) -> Element | str:
    """Return a number that shows rounded and holds itself whole, with its place in `nextlong stats --json`."""
    if not cell.path:
        return cell.text
    value, path = json.dumps(cell.value), json.dumps(cell.path)
    return element("data", element("bdi", cell.text), value=value, data_path=path)
