"""Elements: HTML as a tree that the standard library writes, so that every text is escaped where it enters.

In:  texts of any origin; SVG. Out: elements; a document as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

# What XML 1.0 cannot hold, and what turns the direction of the text around it.
_FORBIDDEN = re.compile(
    r"[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]"
)

_REFERENCE = re.compile(r"#([\w.-]+)")


def clean(text: str) -> str:
    """Return text without what a page cannot hold: control characters, lone surrogates, marks that turn its direction."""
    return _FORBIDDEN.sub("�", text)


def element(tag: str, *children: Element | str, **attributes: str) -> Element:
    """Return an element; an attribute's `_` stands for `-`, and one at its end is dropped (`class_`)."""
    made = Element(tag, {name.rstrip("_").replace("_", "-"): clean(value) for name, value in attributes.items()})
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + clean(child)
        else:
            made.text = (made.text or "") + clean(child)
    return made


def svg_element(svg: str, *, name: str) -> Element:
    """Return an SVG as an element of a page: no namespaces, no metadata, no style attributes, ids of its own.

    A strict content security policy refuses style attributes; what they hold are presentation attributes as well. Ids that
    nothing refers to go, the others begin with `name`, for a page may hold several pictures.
    """
    root = ElementTree.fromstring(clean(svg))
    _drop(root, ("metadata", "style"))
    for node in root.iter():
        node.tag = _local(node.tag)
        attributes = {_local(key): value for key, value in node.attrib.items()}
        attributes |= dict(_declarations(attributes.pop("style", "")))
        node.attrib.clear()
        node.attrib.update(attributes)
        node.tail = None
    _rename_ids(root, name)
    return root


def _rename_ids(root: Element, name: str) -> None:
    """Prefix the ids that clips and markers refer to; drop the others."""
    used = {
        reference for node in root.iter() for value in node.attrib.values() for reference in _REFERENCE.findall(value)
    }
    for node in root.iter():
        old = node.attrib.pop("id", "")
        for key, value in node.attrib.items():
            node.set(key, _REFERENCE.sub(rf"#{name}-\1", value) if key in ("href", "clip-path") else value)
        if old in used:
            node.set("id", f"{name}-{old}")


def _drop(root: Element, tags: tuple[str, ...]) -> None:
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in tags:
                parent.remove(child)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _declarations(style: str) -> Iterator[tuple[str, str]]:
    for declaration in filter(None, map(str.strip, style.split(";"))):
        key, _, value = declaration.partition(":")
        yield key.strip(), value.strip()


def document(html: Element) -> str:
    """Return a whole page as text."""
    return "<!doctype html>\n" + ElementTree.tostring(html, encoding="unicode", method="html") + "\n"
