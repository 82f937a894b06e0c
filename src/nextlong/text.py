"""Text: counts, wrapped lines and names for messages and tables."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

# A JSON object whose keys users, plugins, trainers or libraries choose; our own objects have a model or a TypedDict.
Json = dict[str, Any]


HANGING: Final = "  "  # indentation of the continuation lines of a message


def wrapped(text: str, cells: int, *, indent: str = "") -> list[str]:
    """Wrap the lines of a text at `cells` characters, never within a word; `indent` precedes all but a line's first part."""
    lines = textwrap.TextWrapper(
        cells, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [part for line in text.split("\n") for part in lines.wrap(line) or [""]]


def counted(count: int, noun: str) -> str:
    """Return `1 chunk`, `2 chunks`, `1,000 chunks`, `2 queries`, `2 keys`, `2 breaches`."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def why_no_model(name: str) -> str:
    """Return why a name is neither a model folder nor a name on the Hugging Face hub, with the fix; "" if it may be one."""
    path = Path(name).expanduser()
    cure = "use a folder with config.json and weights, as `save_pretrained` writes it, or a name on the Hugging Face hub (org/name)"
    if path.is_dir():
        return (
            ""
            if (path / "config.json").is_file()
            else f"is not a model: it has no config.json; {cure}"
        )
    if path.exists():
        return f"is a file, not a model; {cure}"
    is_path = (
        name.startswith((".", "~", "/")) or name.endswith("/") or name.count("/") > 1
    )
    return f"does not exist; {cure}" if is_path else ""


def did_you_mean(path: Path, *, accepts: Callable[[Path], bool] = Path.is_file) -> str:
    """Return "; did you mean …?" with the accepted path most similar to a missing one; "" if there is none."""
    found = Path(path.anchor)
    for part in path.parts[1:] if path.is_absolute() else path.parts:
        below = found / part
        if not below.exists():
            names = (
                sorted(other.name for other in found.iterdir())
                if found.is_dir()
                else []
            )
            near = difflib.get_close_matches(
                part, [name for name in names if name[0] != "."], n=1
            )
            if not near:
                return ""
            below = found / near[0]
        found = below
    return f"; did you mean {found}?" if accepts(found) else ""


def first_sentence(error: BaseException) -> str:
    """Return the first line of a library's error message without its final period; never empty."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__).rstrip(".")


def public_name(path: str) -> str:
    """Return the last part of a path or URL; the whole name for the Hugging Face hub."""
    if path.startswith("hf://"):
        return path
    without_query = (
        path.partition("?")[0] if path.startswith(("http://", "https://")) else path
    )
    return without_query.rstrip("/").rpartition("/")[2]
