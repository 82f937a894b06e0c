"""Document text: the values of a record's text columns → the text of a document.

In:  the recipe's `text`, and the values of a record as Python objects.
Out: one string, or the reason why there is none. Every reader uses this module, so that
     the same record gives the same text in every format.

A path names a column (`text`), a field of an object (`a.b`), or a field of each object
in a list (`body_text[].text`). Strings of a list, and several columns, are joined by
blank lines; null and empty ones are skipped, so that every character of the others is
kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from nextlong.reading.records import RejectKind

# Keys of role and content in the two layouts of chat data: OpenAI and TRL, ShareGPT.
TURN_KEYS: Final = (("role", "content"), ("from", "value"))
EACH: Final = "[]"  # in a path: each item of a list
ABSENT: Final = object()  # the value at a path that a record lacks; JSON can hold None
_BLANK_LINE: Final = "\n\n"
_ROLES: Final = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
}
_MAX_DEPTH: Final = 16  # of nested lists and objects
_SHOWN_FIELDS: Final = 8  # of an object in a message

_Problem = tuple[RejectKind, str]  # kind and detail of a reject


def field_at(record: Any, path: str) -> Any:
    """Return the value of a column, or of the field `a.b`.

    ABSENT if the record has none. A key that is spelled like the path comes first: a
    column may be called `a.b`, also one that holds objects.
    """
    if not isinstance(record, dict):
        return ABSENT
    if path in record:
        return record[path]
    for name, inside in splits_of(path):
        if name in record:
            value = field_at(record[name], inside)
            if value is not ABSENT:
                return value
    return ABSENT


def splits_of(path: str) -> Iterator[tuple[str, str]]:
    """Yield what is before and after each dot of a path."""
    dot = path.find(".")
    while dot >= 0:
        yield path[:dot], path[dot + 1 :]
        dot = path.find(".", dot + 1)


def value_at(record: Any, path: str) -> Any:
    """Return the value at a path of the text, which may contain `[]`, or ABSENT."""
    value = field_at(record, path)
    if value is ABSENT and EACH in path:
        column, _, inside = path.partition(EACH)
        value = values_inside(field_at(record, column), inside)
    return value


def values_inside(value: Any, inside: str) -> Any:
    """Return the value at a path inside each item of a list, such as `.text`.

    Items without the path are skipped. A null list is None; ABSENT if the value is not
    a list, or if no item has the path.
    """
    if value is None:
        return None
    if not isinstance(value, list):
        return ABSENT
    if not inside:
        return value
    found = [_value_inside(item, inside) for item in value]
    present = [item for item in found if item is not ABSENT]
    return ABSENT if value and not present else present


def _value_inside(item: Any, inside: str) -> Any:
    if item is None:
        return None
    if inside.startswith(EACH):
        return values_inside(item, inside.removeprefix(EACH))
    return value_at(item, inside.removeprefix("."))


def paths_of(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each path of a record with its value.

    Paths are of columns, and of fields of objects and of lists.
    """
    for name, value in record.items():
        yield str(name), value
        yield from _paths_inside(str(name), value, 1)


def _paths_inside(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth == _MAX_DEPTH:
        return
    if isinstance(value, dict):
        for name, field in value.items():
            yield f"{path}.{name}", field
            yield from _paths_inside(f"{path}.{name}", field, depth + 1)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        objects = [item for item in value if isinstance(item, dict)]
        yield from _paths_of_each(f"{path}{EACH}", objects, depth)


def _paths_of_each(
    path: str, objects: Sequence[Mapping[str, Any]], depth: int
) -> Iterator[tuple[str, Any]]:
    """Yield the paths of the fields of objects, each with its values in all of them."""
    if depth == _MAX_DEPTH:
        return
    values_by_name: dict[Any, list[Any]] = {}
    for item in objects:
        for name, value in item.items():
            values_by_name.setdefault(name, []).append(value)
    for name, values in values_by_name.items():
        yield f"{path}.{name}", values
        inner_objects = [value for value in values if isinstance(value, dict)]
        yield from _paths_of_each(f"{path}.{name}", inner_objects, depth + 1)
        # Lists inside the objects are read as one list.
        inner_items: list[Any] = []
        for value in values:
            if isinstance(value, list):
                inner_items += value
        yield from _paths_inside(f"{path}.{name}", inner_items, depth + 1)


def document_text(columns: Sequence[str], values: Sequence[Any]) -> str | _Problem:
    """Return the text of a document, or kind and detail of its reject.

    `values` are those at the paths `columns`; null ones of several are skipped.
    """
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    texts = []
    for column, value in zip(columns, values, strict=True):
        if value is ABSENT:
            continue
        text = text_of(value)
        if isinstance(text, str):
            texts.append(text)
            continue
        kind, _ = text
        if kind is RejectKind.NOT_A_STRING:
            return kind, _advice(column, value)
        if kind is not RejectKind.NULL:
            return text
    if texts:
        return _joined(texts)
    is_absent = all(value is ABSENT for value in values)
    return (RejectKind.NO_COLUMN if is_absent else RejectKind.NULL), ""


def text_of(value: Any, *, depth: int = 0) -> str | _Problem:
    """Return the text of a string, UTF-8 bytes, a conversation, or a list of these.

    `depth` counts the lists around the value.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return RejectKind.NULL, ""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return RejectKind.INVALID_UTF8, ""
    if not isinstance(value, list) or depth == _MAX_DEPTH:
        return RejectKind.NOT_A_STRING, ""
    conversation = conversation_text(value)
    if conversation is not None:
        return conversation
    return _text_of_list(value, depth=depth + 1)


def _text_of_list(items: Sequence[Any], *, depth: int) -> str | _Problem:
    """Return the texts of the items, joined; null ones are skipped."""
    texts = []
    for item in items:
        if item is None:
            continue
        text = text_of(item, depth=depth)
        if not isinstance(text, str):
            return text
        texts.append(text)
    if items and not texts:
        return RejectKind.NULL, ""
    return _joined(texts)


def _joined(texts: Sequence[str]) -> str:
    return _BLANK_LINE.join(filter(None, texts))


def _advice(column: str, value: Any) -> str:
    """Return what a value without text is, and how to name the text in it.

    "" for numbers.
    """
    if isinstance(value, list):
        items = value
        kind = "a list of objects"
        column_path = f"{column}{EACH}"
    else:
        items = [value]
        kind = "an object"
        column_path = column
    first = next((item for item in items if isinstance(item, dict)), None)
    if first is None:
        return ""
    fields = ", ".join(map(str, list(first)[:_SHOWN_FIELDS]))
    advice = f"{column!r} is {kind} with the fields {fields}"
    field = text_field(first)
    if field is None:
        return advice
    return f"{advice}; to use one of them: text: {column_path}.{field}"


def text_field(fields: Mapping[str, Any]) -> str | None:
    """Return the field of an object with the longest text, None if none has text."""
    lengths = {}
    for name, value in fields.items():
        text = text_of(value)
        if isinstance(text, str) and text:
            lengths[name] = len(text)
    return max(lengths, key=lambda name: lengths[name], default=None)


def conversation_text(value: Any) -> str | None:
    """Format a list of turns as one text; None if it is not such a list.

    A turn is `role: content`, and turns are separated by blank lines. Turns without
    text, such as tool calls, are skipped.
    """
    if not isinstance(value, list) or not value:
        return None
    turns = []
    for item in value:
        turn = _turn_in(item)
        if turn is None:
            return None
        role, content = turn
        if content and not content.isspace():
            turns.append(f"{_ROLES.get(role, role)}: {content.strip()}")
    return "\n\n".join(turns)


def _turn_in(item: Any) -> tuple[str, str] | None:
    """Return role and content of a turn; None if it is none."""
    if not isinstance(item, dict):
        return None
    for role_key, content_key in TURN_KEYS:
        if role_key in item and content_key in item:
            role = item[role_key]
            content = _content_text(item[content_key])
            is_turn = isinstance(role, str) and content is not None
            return (role, content or "") if is_turn else None
    return None


def _content_text(content: Any) -> str | None:
    """Return the text of a turn, "" for none; None if it cannot be a turn's.

    The content may be a list of parts, whose texts are joined.
    """
    if content is None:
        return ""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else None
