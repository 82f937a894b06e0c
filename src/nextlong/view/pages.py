"""Pages: what every page of the viewer is made of.

In:  elements. Out: a page, or a part of one for `view.js` to put in its place. Everything is escaped where it enters
(`picture/elements.py`); links are made of the words that they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode
from xml.etree.ElementTree import Element

from nextlong.picture.elements import document, element
from nextlong.view.variants import Variants

ROOMS = (("sequences", "Sequences"), ("documents", "Documents"), ("left-out", "Left out"))


def url(variant: str, *parts: str | int, **query: Any) -> str:
    """Return a link within the viewer; what is None or "" is left out of the query."""
    path = "/".join(quote(str(part), safe="") for part in (variant, *parts))
    asked = {name: value for name, value in query.items() if value not in (None, "")}
    return f"/{path}" + (f"?{urlencode(asked)}" if asked else "")


def page(variants: Variants, variant: str, room: str, heading: str, *children: Element) -> str:
    """Return a page of a variant."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{heading} · {variant} · nextlong view"),
        element("link", rel="stylesheet", href="/style.css"),
        element("script", src="/strip.js", defer="defer"),
        element("script", src="/view.js", defer="defer"),
    )
    skip = element("a", "Skip to the content", href="#content", class_="skip")
    main = element("main", element("h1", heading), *children, id="content")
    return document(element("html", head, element("body", skip, _header(variants, variant, room), main), lang="en"))


def _header(variants: Variants, variant: str, room: str) -> Element:
    links = []
    for key, name in ROOMS:
        link = element("a", name, href=url(variant, key))
        if key == room:
            link.set("aria-current", "page")
        links.append(element("li", link))
    navigation = element("nav", element("ul", *links), aria_label="Rooms")
    return element(
        "header",
        element("p", element("bdi", str(variants.run_dir)), class_="run"),
        navigation,
        *_switch(variants, variant),
    )


def _switch(variants: Variants, variant: str) -> list[Element]:
    """Return what leads to the other variants of the run directory."""
    names = variants.names
    if len(names) < 2:
        return []
    items = [
        element("li", element("a", element("bdi", name), href=url(name, "sequences")))
        for name in names
        if name != variant
    ]
    return [
        element(
            "details",
            element("summary", "Variant: ", element("bdi", variant)),
            element("ul", *items),
            class_="variants",
        )
    ]


def field(label: str, name: str, value: str, **attributes: str) -> Element:
    """Return a labelled input of a search form."""
    return element("label", element("span", label), element("input", name=name, value=value, **attributes))


def choice(label: str, name: str, value: str, options: Sequence[str]) -> Element:
    """Return a labelled choice of a search form; the first option asks for nothing."""
    made = [element("option", "any", value="")]
    for one in options:
        option = element("option", one, value=one)
        if one == value:
            option.set("selected", "selected")
        made.append(option)
    return element("label", element("span", label), element("select", *made, name=name))


def form(action: str, *children: Element) -> Element:
    """Return a search form."""
    clear = element("a", "Show all", href=action, class_="clear")
    return element(
        "form", *children, element("button", "Search", type="submit"), clear, action=action, method="get", role="search"
    )


def table(name: str, heads: Sequence[str], rows: Sequence[Element], *, caption: str) -> Element:
    """Return a table that may be wider than the page; `name` is where further rows go."""
    head = element("thead", element("tr", *(element("th", text, scope="col") for text in heads)))
    made = element("table", element("caption", caption), head, element("tbody", *rows, id=name))
    return element("div", made, class_="wide", tabindex="0", role="region", aria_label=caption)


def row(*cells: Element | str) -> Element:
    """Return a row whose first cell names it."""
    first, *others = cells
    return element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in others))


def more(link: str | None, status: str, *, into: str, is_searching: bool = False) -> Element:
    """Return what stands below a list: how to go on, or that this is all. `view.js` fetches what a search has not reached."""
    if link is None:
        return element("p", status, class_="more", role="status")
    made = element(
        "p",
        status,
        " ",
        element("a", "Search on" if is_searching else "Show more", href=link),
        class_="more",
        role="status",
    )
    made.set("data-into", into)
    if is_searching:
        made.set("data-searching", "yes")
    return made


def part(rows: Sequence[Element], below: Element) -> str:
    """Return further rows and what stands below them, for `view.js`."""
    tables = element("table", element("tbody", *rows))
    return document(element("html", element("body", tables, below), lang="en"))


def facts(values: Mapping[str, str | Element]) -> Element:
    """Return a few facts, each with its name."""
    parts = [element("div", element("dt", name), element("dd", value)) for name, value in values.items()]
    return element("dl", *parts, class_="tiles")
