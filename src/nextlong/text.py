"""Text: counts, wrapped lines and names for messages and tables."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pydantic import ValidationError

# A JSON object whose keys users, plugins, trainers or libraries choose; our own objects
# have a model or a TypedDict.
Json = dict[str, Any]
Rows = Iterator[Mapping[str, Any]]  # of a file, by column


HANGING: Final = "  "  # indentation of the continuation lines of a message


def wrapped(text: str, cells: int, *, indent: str = "") -> list[str]:
    """Wrap the lines of a text at `cells` characters, never within a word.

    `indent` precedes all but the first part of a line.
    """
    wrapper = textwrap.TextWrapper(
        cells, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    parts: list[str] = []
    for line in text.split("\n"):
        parts += wrapper.wrap(line) or [""]
    return parts


def counted(count: int, noun: str) -> str:
    """Return `1 chunk`, `2 chunks`, `1,000 chunks`, `2 queries`, `2 breaches`."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


class NoModel(NamedTuple):
    """Why a name is no model, as a predicate of it, and what to do."""

    problem: str
    fix: str


def why_no_model(name: str) -> NoModel | None:
    """Return why a name is no model; None if it may be one.

    A model is a folder, or a name on the Hugging Face hub.
    """
    fix = (
        "use a folder with config.json and weights, as `save_pretrained` writes it, or "
        "a name on the Hugging Face hub (org/name)"
    )
    path = Path(name).expanduser()
    if path.is_dir():
        if (path / "config.json").is_file():
            return None
        return NoModel("is not a model: it has no config.json", fix)
    if path.exists():
        return NoModel("is a file, not a model", fix)
    # The hub's names have one slash, between the organization and the model.
    is_path = (
        name.startswith((".", "~", "/")) or name.endswith("/") or name.count("/") > 1
    )
    return NoModel("does not exist", fix) if is_path else None


def similar_path(
    path: Path, *, accepts: Callable[[Path], bool] = Path.is_file
) -> Path | None:
    """Return the accepted path most similar to a missing one; None if there is none.

    From the start of the path, each missing part gives way to the most similar name.
    """
    found = Path(path.anchor)
    parts = path.parts[1:] if path.is_absolute() else path.parts
    for part in parts:
        below = found / part
        if not below.exists():
            names = []
            if found.is_dir():
                names = sorted(other.name for other in found.iterdir())
            visible = [name for name in names if name[0] != "."]
            near = difflib.get_close_matches(part, visible, n=1)
            if not near:
                return None
            below = found / near[0]
        found = below
    return found if accepts(found) else None


def first_sentence(error: BaseException) -> str:
    """Return the first line of a library's error message without its final period.

    The name of the error if it has no message.
    """
    for line in str(error).splitlines():
        if line.strip():
            return line.strip().rstrip(".")
    return type(error).__name__


def public_name(path: str) -> str:
    """Return the last part of a path or URL; the whole name on the Hugging Face hub."""
    if path.startswith("hf://"):
        return path
    if path.startswith(("http://", "https://")):
        path = path.partition("?")[0]
    return path.rstrip("/").rpartition("/")[2]


# Characters that LaTeX reads as commands, and signs that its text fonts lack.
_LATEX: Final = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "–": "--",
        "±": r"$\pm$",
        "−": "$-$",
        **{character: f"\\{character}" for character in "&%$#_{}"},
    }
)


def latex(text: str) -> str:
    """Return a text that LaTeX sets as it is."""
    return text.translate(_LATEX)


def first_mistake(invalid: ValidationError) -> str:
    """Return what is wrong with a record: the field, what it holds, what it should.

    The first mistake of those that pydantic found.
    """
    error = invalid.errors(include_url=False)[0]
    path = ""
    for part in error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        # pydantic's path also names the member of a union, which is no field.
        elif part.isidentifier() and part not in ("str", "int"):
            path += f".{part}"
    field = path.removeprefix(".")
    found = error["input"]
    if error["type"] == "missing":
        present = f"{found!r:.60}"
        if isinstance(found, dict):
            present = ", ".join(map(str, found))
        parent = field.rpartition(".")[0] or "the record"
        missing = str(error["loc"][-1])
        return f"{parent} has no {missing!r} (it has {present:.200})"
    where = field or "the record"
    if error["type"] == "value_error":
        return f"{where}: {error['ctx']['error']}"
    message = error["msg"][0].lower() + error["msg"][1:]
    return f"{where} is {found!r:.60}, but {message.replace('input ', 'it ')}"
