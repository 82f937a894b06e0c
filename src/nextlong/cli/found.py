"""Found: what `init` says of the files that it looked at: where text and ids are, what it cannot read and what it leaves out.

In:  a source of a new recipe; or a folder whose documents are looked for. Out: sentences.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nextlong.cli.columns import Look, look_into
from nextlong.inputs.formats import format_by_name
from nextlong.inputs.listing import ABOUT_FILES, SIDE_FILES
from nextlong.recipe import Source

_NAMED: Final = 3  # files in a sentence


def of_source(source: Source) -> Iterator[str]:
    """Yield what is known of a source: its columns first, then what speaks against them."""
    if "://" in source.path:
        yield f"{source.label}: not looked into; text from {source.text!r} and ids from {source.id!r} are guesses"
        return
    looks = look_into(source.path)
    tables = [look for look in looks if look.has_columns]
    if not tables:
        yield f"{source.label}: each file, or page, is a document"
    elif all(look.problem for look in tables):
        yield f"{source.label}: text from {source.text!r} is a guess, for no file could be read"
    else:
        is_known = any(look.text for look in tables)
        guess = "" if is_known else " is a guess, for no column looks like one of texts"
        yield f"{source.label}: text from {source.text!r}{guess}, {_ids(source, tables)}"
        examples = next((look.examples for look in tables if look.examples), {})
        has_ids = "id" in source.model_fields_set or any(look.repeating for look in tables)
        if not is_known or (len(examples) > 1 and not has_ids):
            yield f"{source.label}: columns are {', '.join(f'{name} ({value})' for name, value in examples.items())}"
    if tables and len(tables) < len(looks):
        yield f"{source.label}: {_names(look for look in looks if not look.has_columns)}: each file, or page, is a document"
    for problem in _problems(looks):
        yield f"{source.label}: {problem}"
    others = [look for look in tables if look.text not in (None, source.text)]
    for column in dict.fromkeys(look.text for look in others):
        files = _names(look for look in others if look.text == column)
        yield f"{source.label}: {files}: text seems to be in {column!r}; make them a source of their own"


def left_beside(folder: Path, taken: Sequence[str]) -> list[str]:
    """Return the names of files of a known format in a folder that are not taken, though they may be documents."""
    names = sorted(path.name for path in folder.glob("*") if path.is_file() and str(path) not in taken)
    return [
        name
        for name in names
        if format_by_name(name) and name[0] != "." and name.lower() not in ABOUT_FILES | SIDE_FILES
    ]


def unread(folder: Path) -> list[str]:
    """Return the names of files below a local folder that no format is known for."""
    below = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        str(path)
        for path in below
        if not any(part[0] == "." for part in path.parts)
        and not format_by_name(path.name)
        and path.name not in SIDE_FILES
    ]


def _problems(looks: Sequence[Look]) -> Iterator[str]:
    """Yield what is wrong with files, once for those of one kind and one reason."""
    alike: dict[tuple[str, str], list[Look]] = {}
    for look in looks:
        if look.problem:
            reason = look.problem.replace(look.file.path, "").replace(look.file.name, "")
            alike.setdefault((look.suffix, reason), []).append(look)
    for first, *others in alike.values():
        has_cure = first.problem.startswith(first.file.path)
        told = (
            first.problem
            if has_cure
            else f"{first.file.path} cannot be read: {first.problem}; mend it, or leave it out"
        )
        yield told + (f" (so with {_names(iter(others))})" if others else "")


def _ids(source: Source, tables: Sequence[Look]) -> str:
    if "id" in source.model_fields_set:
        return f"ids from {source.id!r}"
    repeating = next((look.repeating for look in tables if look.repeating), None)
    if repeating is None:
        return "no ids found: documents are called file:line"
    column, value = repeating
    if column == source.id:
        return f"ids from {column!r}, which repeat ({value!r} stands twice): make them unique, or name another column as id"
    return f"no ids, for those in {column!r} repeat ({value!r} stands twice): documents are called file:line"


def _names(looks: Iterator[Look]) -> str:
    return listed([posixpath.basename(look.file.path) for look in looks])


def listed(names: Sequence[str]) -> str:
    """Return the first of some names, and how many there are besides."""
    more = len(names) - _NAMED
    return ", ".join(names) if more < 2 else f"{', '.join(names[:_NAMED])} and {more} more"
