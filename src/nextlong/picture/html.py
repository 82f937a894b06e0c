"""HTML: pages from Jinja templates that escape every text where it enters.

In:  texts of any origin. Out: pages and parts of pages. Templates are in the folder of
the code that fills them and are named from the package's root (`picture/strip.html`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any, cast

import jinja2
from markupsafe import Markup

from nextlong.picture.pieces import clean, css_of_colours


def _with_code(text: str) -> Markup:
    """Return text whose parts between backticks are marked up as code."""
    marked = []
    for index, part in enumerate(text.split("`")):
        is_code = index % 2 == 1
        form = Markup("<code>{}</code>") if is_code else Markup("{}")
        cleaned = clean(part)
        marked.append(form.format(cleaned))
    return Markup("").join(marked)


def _is_html(template: str | None) -> bool:
    """Return whether the texts of a template are escaped here.

    Markdown and LaTeX have escapes of their own, which come with the texts.
    """
    return template is None or not template.endswith((".md", ".tex"))


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nextlong", ""),
        # Texts of a corpus may hold anything, so escaping is never left to a template.
        autoescape=_is_html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.filters["json"] = as_json
    environment.filters["code"] = _with_code
    return environment


def render(template: str, **values: Any) -> str:
    """Return a template filled in.

    Every value that is not `Markup` is escaped and cleaned.
    """
    filled = _environment().get_template(template)
    return filled.render(values)


def macro(template: str, name: str) -> Callable[..., Markup]:
    """Return a macro of a template as a function."""
    module = _environment().get_template(template).module
    return cast("Callable[..., Markup]", getattr(module, name))


def as_json(data: object) -> Markup:
    """Return JSON for a script element.

    It is escaped so that it cannot end the element or open a comment.
    """
    # "<" would begin a tag, and two line separators end a line of JavaScript but not of
    # JSON.
    text = json.dumps(_cleaned(data), ensure_ascii=False, separators=(",", ":"))
    for character in ("<", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _cleaned(data: object) -> object:
    if isinstance(data, str):
        return clean(data)
    if isinstance(data, dict):
        return {key: _cleaned(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_cleaned(value) for value in data]
    return data


@cache
def style() -> str:
    """Return the style sheet of reports and of the viewer."""
    return css_of_colours() + asset(__package__, "page.css")


@cache
def script() -> str:
    """Return the script of reports and of the viewer.

    It has tooltips, legends, and walking along a strip.
    """
    return asset(__package__, "page.js")


def asset(package: str, name: str) -> str:
    """Return a text file of a package's folder."""
    path = resources.files(package) / name
    return path.read_text("utf-8")
