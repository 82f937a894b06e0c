"""Synthesize: from texts in memory to a finished run, in one call.

In:  strings, dictionaries, a `datasets.Dataset`, or a frame of pandas, polars or Arrow.
Out: a `Run` in a folder named by the texts, so that the same texts with other settings
     reuse what is embedded and searched already.

Everything runs in this process, so that a script needs no `if __name__ == "__main__":`
and a notebook no script; for a corpus of gigabytes write a recipe (`nextlong init`),
which uses all cores.
"""

from __future__ import annotations

import json
import numbers
import random
import re
import statistics
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import xxhash
from rich.console import Console
from tokenizers import Tokenizer

from nextlong import arguments
from nextlong.engine import store
from nextlong.engine.phases import phases_for
from nextlong.engine.progress import Reporter
from nextlong.errors import ArgumentError, CorpusError, NextlongError, RecipeError
from nextlong.reading.choose_columns import ColumnChoice, choose_columns
from nextlong.reading.document_text import document_text, value_at
from nextlong.reading.records import RejectKind
from nextlong.recipe import Recipe
from nextlong.recipe import Tokenizer as TokenizerSection
from nextlong.recipe.keys import TYPICAL_CHARS_PER_TOKEN
from nextlong.runs import export
from nextlong.runs.phases import PHASES
from nextlong.runs.run import Run
from nextlong.sequences.shortfall import why_fewer
from nextlong.sequences.tokenizer import (
    END_OF_TEXT,
    Ends,
    find_ends,
    find_ends_of,
    load_tokenizer,
    local_path,
)
from nextlong.text import first_sentence

_ORIGIN: Final = "nextlong.synthesize"
_SETTINGS_FIX: Final = "write settings=['mine.near_duplicates=0.9']"
_FOLDER: Final = "nextlong-runs"
_INDEX: Final = "__index_level_"  # pandas' name of an index that is not a range
_MAX_CHUNK_CHARS: Final = 2048
_MIN_CHUNK_CHARS: Final = 64
# At least, so that several negatives fit between two chunks of a document.
_CHUNKS_PER_SEQUENCE: Final = 16
_CHUNKS_PER_DOCUMENT: Final = 3  # of a median one, where texts are short
_SAMPLE_ROWS: Final = 256  # by which the columns are judged
_STAND_IN_ENTRIES: Final = 4096
_ARGUMENTS: Final = {
    "compose.target_tokens": "seq_len",
    "compose.sequences": "num_sequences",
}

_Text = str | Mapping[str, Any]


def synthesize(
    texts: Iterable[_Text],
    tokenizer: Any = None,
    *,
    seq_len: int | str = 4096,
    num_sequences: int | Literal["all"] = "all",
    text: str | Sequence[str] | None = None,
    id: str | None = None,  # noqa: A002 - the column's name
    folder: str | Path | None = None,
    settings: Iterable[str] = (),
    progress: bool = True,
) -> Run:
    """Make long sequences from short texts and return them as a finished run.

    Args:
        texts: strings or dictionaries; or a table of them: a `datasets.Dataset`, a
            frame of pandas or polars, a pyarrow table.
        tokenizer: a tokenizer.json, a folder with one, a hub name, or a tokenizer of
            `transformers` or `tokenizers`. None trains a stand-in on the texts, which
            is not compatible with any pretrained model. Each sequence begins and ends
            as `nextlong init` finds it: with EOS, and with BOS if the tokenizer puts it
            before every text; other tokens, or none: settings=["tokenizer.eos=null"].
        seq_len: tokens of each sequence, exactly; "128k" counts 1,024s.
        num_sequences: how many; "all": one from each text that can be extended.
        text: the column with the text, as in a recipe: a string, a path such as
            "body_text[].text", or several columns to join. None chooses one by its name
            and values, as `nextlong init` does, and says which.
        id: the column with ids. None chooses one in the same way; without any,
            documents are numbered, and so are those whose id is null.
        folder: where texts and run are kept; by default `nextlong-runs/`, in the
            working directory, and a hash of the texts.
        settings: other recipe keys, as `--set` takes them: "mine.near_duplicates=0.9".
        progress: show the steps, as bars on a terminal and as lines elsewhere.

    Raises:
        NextlongError: for every mistake of the caller: no texts, too few for one
            sequence, an unknown tokenizer.
    """
    parent = arguments.path(
        _FOLDER if folder is None else folder, "folder", fix="give the path of a folder"
    )
    seq_len = _size(
        seq_len, "seq_len", fix="give a number of tokens, or a string such as '128k'"
    )
    num_sequences = _size(
        num_sequences, "num_sequences", fix="give a number of sequences, or 'all'"
    )
    overrides = _overrides(settings)
    if not isinstance(progress, bool):
        raise arguments.wrong(
            "progress", progress, "is not a bool", fix="give True or False"
        )
    # A notebook's kernel asks for colours, but shows what a bar has overwritten.
    console = Console(force_jupyter=False, force_terminal=sys.stdout.isatty())
    reporter = phases_for(console, PHASES) if progress else Reporter()
    rows = _rows(texts)
    columns = _columns(rows, text=text, id=id, tell=reporter.tell)
    path, chars = _written(rows, columns, parent=parent)
    data = {
        "run_dir": str(path.parent / "run"),
        "executor": "serial",
        "ingest": {"sources": [{"path": str(path), "name": "texts"}]},
        "tokenizer": _tokenizer(tokenizer, path.parent),
        "compose": {"sequences": num_sequences, "target_tokens": seq_len},
        "export": {"formats": ["arrow"]},
    }
    with _arguments_named():
        checked = Recipe.from_dict(data, origin=_ORIGIN)
    max_chars = _chunk_chars(checked.compose.target_tokens, chars)
    overrides = [f"chunk.max_chars={max_chars}", *overrides]
    recipe = Recipe.from_dict(data, overrides=overrides, origin=_ORIGIN)
    with _arguments_named():
        (run,) = export.run(recipe, reporter=reporter).runs
    if recipe.compose.sequences != "all" and len(run) < recipe.compose.sequences:
        causes = "; ".join(why_fewer(recipe.compose, run.steps))
        warnings.warn(
            f"{len(run):,} sequences, fewer than num_sequences={num_sequences} "
            f"({causes})",
            stacklevel=2,
        )
    return run


def _overrides(settings: Iterable[str]) -> list[str]:
    """Return the settings as a list, or raise ArgumentError."""
    given = [settings] if isinstance(settings, str) else settings
    overrides = list(arguments.strings(given, "settings", fix=_SETTINGS_FIX))
    for setting in overrides:
        if "=" not in setting:
            raise ArgumentError(
                where="settings",
                problem=f"it has {setting!r}, which is not KEY=VALUE",
                fix=_SETTINGS_FIX,
            )
    return overrides


def _chunk_chars(target_tokens: int, chars: Sequence[int]) -> int:
    """Return a chunk size with several chunks in a sequence and in a text.

    `chars` are the sizes of the texts.
    """
    of_sequence = target_tokens * TYPICAL_CHARS_PER_TOKEN / _CHUNKS_PER_SEQUENCE
    of_text = statistics.median(chars) / _CHUNKS_PER_DOCUMENT
    at_least_min = max(_MIN_CHUNK_CHARS, min(of_sequence, of_text))
    return int(min(_MAX_CHUNK_CHARS, at_least_min))


@contextmanager
def _arguments_named() -> Iterator[None]:
    """Name the arguments of the call in an error, where it names the recipe's keys.

    A command in it stays as it is.
    """
    try:
        yield
    except NextlongError as error:
        error.where = _with_arguments(error.where)
        error.problem = _with_arguments(error.problem)
        error.fix = _with_arguments(error.fix)
        error.args = (_with_arguments(str(error)),)
        raise error from None


def _with_arguments(text: str) -> str:
    for key, argument in _ARGUMENTS.items():
        text = re.sub(rf"(?<!--set ){re.escape(key)}\b", argument, text)
    return text


def _size(size: Any, name: str, *, fix: str) -> Any:
    """Return a number, which may be a scalar of numpy or torch, or a word."""
    if isinstance(size, str):
        return size
    return arguments.whole_number(size, name, fix=fix, min_value=None)


def _rows(texts: Iterable[_Text]) -> list[_Text]:
    fix = "give a list of texts, each a document"
    if isinstance(texts, str | bytes | Mapping):
        kind = type(texts).__name__
        raise CorpusError(where="texts", problem=f"it is one {kind}", fix=fix)
    # Iterating over a frame of pandas or polars gives its columns or their names.
    is_frame = hasattr(texts, "__arrow_c_stream__") and hasattr(texts, "columns")
    if is_frame:
        return _rows_of_frame(texts)
    return arguments.listed(texts, "texts", fix=fix)


def _rows_of_frame(frame: Any) -> list[_Text]:
    """Return the rows of a frame as dictionaries, without the index of pandas.

    Raises CorpusError for a frame that Arrow cannot hold.
    """
    try:
        table = pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise CorpusError(
            where="texts",
            problem="it cannot be converted to an Arrow table "
            f"({first_sentence(error)})",
            fix="give only the columns that are needed, such as frame[['id', 'text']]",
        ) from None
    columns = [name for name in table.column_names if not name.startswith(_INDEX)]
    rows: list[_Text] = table.select(columns).to_pylist()
    return rows


@dataclass(frozen=True)
class _Columns:
    """The columns of the text, and of the ids; strings have only a text."""

    texts: tuple[str, ...]
    id: str


def _columns(
    rows: Sequence[_Text],
    *,
    text: str | Sequence[str] | None,
    id: str | None,  # noqa: A002
    tell: Callable[[str], None],
) -> _Columns:
    """Return the given columns; those that are None are judged by a sample of the rows.

    Raises CorpusError if no column looks like text.
    """
    named = None if text is None else _named_columns(text)
    if id is not None and not isinstance(id, str):
        raise arguments.wrong("id", id, "is not a string", fix="name a column")
    records = [row for row in rows if isinstance(row, Mapping)]
    if len(records) > _SAMPLE_ROWS:
        records = random.Random(0).sample(records, _SAMPLE_ROWS)
    choice = choose_columns([_without(record, id) for record in records])
    if named is not None:
        return _Columns(named, _id_beside(named, id, choice))
    id_column = id or choice.id or "id"
    # Strings have no columns.
    if not records:
        return _Columns(("text",), id_column)
    if choice.text is None:
        keys = ", ".join(map(str, records[0]))
        raise CorpusError(
            where="texts",
            problem=f"no column looks like text (the first row has the keys {keys})",
            fix="name it with text=…",
        )
    _tell_choice(choice, choice.text, tell)
    return _Columns((choice.text,), id_column)


def _id_beside(
    texts: tuple[str, ...], id_column: str | None, choice: ColumnChoice
) -> str:
    """Return the column of the ids where the columns of the text are given."""
    if id_column in texts:
        fix = "name another column for one of them"
        raise arguments.wrong("id", id_column, "is a column of the text", fix=fix)
    if id_column:
        return id_column
    if choice.id and choice.id not in texts:
        return choice.id
    return "id"


def _named_columns(text: str | Sequence[str]) -> tuple[str, ...]:
    """Return the columns that the argument `text` names, or raise ArgumentError."""
    fix = "name a column"
    given = [text] if isinstance(text, str) else text
    columns = arguments.strings(given, "text", fix=fix)
    if not columns or not all(columns):
        raise arguments.wrong("text", columns, "names no column", fix=fix)
    return tuple(columns)


def _without(record: Mapping[str, Any], id_column: str | None) -> dict[str, Any]:
    """Return a row without the column named for the ids: it cannot be the text."""
    return {name: value for name, value in record.items() if name != id_column}


def _tell_choice(choice: ColumnChoice, text: str, tell: Callable[[str], None]) -> None:
    """Tell which column was chosen for the text, and what was not."""
    rivals = [rival.name for rival in choice.rivals(text)]
    if rivals:
        warnings.warn(
            f"text={text!r} was preferred to {', '.join(rivals)}; name the column with "
            "text=…",
            stacklevel=4,
        )
    elif text != "text":
        tell(f"text={text!r}: the column that looks like text")
    title = choice.title(text)
    if title is not None:
        tell(f"column {title!r} is not used; text={[title, text]} joins both")


def _written(
    rows: Sequence[_Text], columns: _Columns, *, parent: Path
) -> tuple[Path, list[int]]:
    """Write the texts as a JSONL file whose folder is named by their hash.

    Return it, and each text's characters.
    """
    content = bytearray()
    chars = []
    has_words = False
    for number, row in enumerate(rows):
        text = row if isinstance(row, str) else _text_in(row, columns, number)
        own_id = row.get(columns.id) if isinstance(row, Mapping) else None
        document_id = number if _is_missing(own_id) else own_id
        record = {"id": str(document_id), "text": text}
        line = json.dumps(record, ensure_ascii=False)
        content += line.encode("utf-8", "surrogatepass")
        content += b"\n"
        if text is not None:
            chars.append(len(text))
            has_words = has_words or bool(text.strip())
    if not has_words:
        raise CorpusError(
            where="texts",
            problem=(
                f"all {len(chars):,} texts are empty" if chars else "there are none"
            ),
            fix="give a list of texts with words in them, each a document",
        )
    path = parent / xxhash.xxh3_64_hexdigest(content)[:12] / "texts.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"cannot hold folders ({error.strerror})"
        fix = "give the path of a folder"
        raise arguments.wrong("folder", str(parent), problem, fix=fix) from None
    # The run would take equal texts that are written again for a changed file.
    if not path.exists():
        store.write_file(path, bytes(content))
    return path, chars


def _text_in(row: Any, columns: _Columns, number: int) -> str | None:
    """Return the text of a row, None if it is null.

    Raises CorpusError if the row has none.
    """
    where = f"texts[{number}]"
    fix = "give strings, or dictionaries with text (text=… names its key)"
    if not isinstance(row, Mapping):
        raise CorpusError(where=where, problem=f"it is {row!r:.60}", fix=fix)
    values = [value_at(dict(row), column) for column in columns.texts]
    text = document_text(columns.texts, values)
    if isinstance(text, str):
        return text
    kind, detail = text
    # Ingest counts rows without a text, and refuses more than a few.
    if kind is RejectKind.NULL:
        return None
    keys = ", ".join(map(str, row))
    reason = f"{kind}: {detail}" if detail else f"{kind}"
    raise CorpusError(
        where=where,
        problem=(
            f"it has the keys {keys} and no text in {', '.join(columns.texts)} "
            f"({reason})"
        ),
        fix=fix,
    )


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or the NA or NaT of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    is_number = isinstance(value, numbers.Number)
    # Only NaN differs from itself.
    return is_number and bool(value != value)


def _tokenizer(given: Any, folder: Path) -> dict[str, Any]:
    """Return the recipe's tokenizer, with the ends that `nextlong init` finds.

    An object is written into the folder.
    """
    if given is None:
        return {"train": _STAND_IN_ENTRIES, "eos": END_OF_TEXT}
    if isinstance(given, str | Path):
        config = TokenizerSection(source=str(given))
        if not local_path(config.source or "").is_file():
            # The ends of a tokenizer on the hub are known when it is downloaded.
            load_tokenizer(config)
        return {"source": str(given)} | _named_ends(find_ends_of(config))
    inner = getattr(given, "backend_tokenizer", given)
    if not hasattr(inner, "to_str"):
        raise RecipeError(
            where="tokenizer",
            problem=f"it is of type {type(given).__name__}",
            fix=(
                "give a path, a hub name, or a fast tokenizer of transformers or "
                "tokenizers"
            ),
        )
    content = inner.to_str()
    digest = xxhash.xxh3_64_hexdigest(content.encode())[:12]
    path = folder / f"tokenizer-{digest}.json"
    if not path.exists():
        store.write_file(path, content)
    return {"source": str(path)} | _named_ends(_ends_of_object(given, content))


def _ends_of_object(given: Any, content: str) -> Ends:
    """Return the tokens that begin and end a document.

    As for the folder from which transformers loaded the object.
    """
    keys = ("bos_token", "eos_token", "add_bos_token")
    config = {key: getattr(given, key, None) for key in keys}
    loaded_from = Path(str(getattr(given, "name_or_path", None) or ""))
    is_folder = loaded_from != Path() and loaded_from.is_dir()
    return find_ends(
        Tokenizer.from_str(content),
        loaded_from if is_folder else None,
        tokenizer_config=config,
    )


def _named_ends(ends: Ends | None) -> dict[str, str]:
    """Return the recipe's keys of the ends that there are."""
    if ends is None:
        return {}
    named = {"bos": ends.bos, "eos": ends.eos}
    return {key: token for key, token in named.items() if token is not None}
