"""Starter: the first recipe that fits a user's files.

In:  where the recipe is to lie, and files, folders, globs or URLs; without any, the data files beside it and in `data/`.
Out: a recipe whose paths are absolute, so that it means the same from every working directory, and whose sources have names
that tell them apart in reports.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nextlong.cli import found
from nextlong.cli.columns import LOOKED_AT, Look, look_into
from nextlong.cli.propose import Proposal, propose
from nextlong.errors import CorpusError, RecipeError
from nextlong.inputs.listing import list_files
from nextlong.inputs.walk import reaches
from nextlong.plain_data import Json
from nextlong.recipe import Recipe, Source
from nextlong.recipe.lengths import read_length
from nextlong.tokens.ends import Ends, find_ends_of
from nextlong.tokens.tokenizer import check_there

_DATA_SUFFIXES = (".jsonl", ".jsonl.zst", ".jsonl.gz", ".parquet", ".csv", ".tsv")
_TEXT_SUFFIXES = (".json", ".ndjson", ".arrow", ".txt", ".md", ".zst", ".gz")  # no part of a name, either
# .json may be either.
_NEVER_RECIPES = tuple({*_DATA_SUFFIXES, *_TEXT_SUFFIXES, ".html", ".htm", ".warc"} - {".json"})
_LIKE_A_RECIPE = re.compile(rb'^\s*"?(ingest|base|run_dir|tokenizer|compose)"?\s*:', re.MULTILINE)
_LOOKED_AT_BYTES = 1 << 16
_VOCABULARY = 32_000
_SEPARATE_FILES = LOOKED_AT  # each a source of its own, for weights, caps and statistics; more are parts of one


class Started(NamedTuple):
    """A first recipe, and what its files proposed, None if they could not be read."""

    recipe: Recipe
    proposed: Proposal | None


def starter(recipe_path: Path, sources: Sequence[str] = (), *, tokenizer: str | None = None) -> Started:
    """Return a recipe for `sources`, or else for what lies beside `recipe_path`, or else with a place to put files.

    `tokenizer` is a file, a folder, a hub name, or the size of a vocabulary to train; by default the tokenizer.json beside.

    Raises CorpusError for a source that is not there, TokenizerError for such a tokenizer.
    """
    folder = Path(_absolute(recipe_path)).parent
    found = [path for path in _gathered(finds(recipe_path, sources)) for path in _apart(path)]
    paths = list(dict.fromkeys(found)) or [str(folder / "data/*.jsonl")]
    plain: Json = {
        "run_dir": str(_outside(folder, paths) / "runs" / recipe_path.stem),
        "ingest": {
            "sources": [
                {"path": path, "name": name} | _columns(path) for path, name in zip(paths, _names(paths), strict=True)
            ]
        },
        "tokenizer": _tokenizer(tokenizer, folder / "tokenizer.json"),
    }
    recipe = Recipe.from_dict(plain)
    check_there(recipe.tokenizer)
    ends = find_ends_of(recipe.tokenizer) or Ends()
    plain["tokenizer"] |= {key: token for key, token in (("bos", ends.bos), ("eos", ends.eos)) if token is not None}
    proposed = propose(Recipe.from_dict(plain)) if found else None
    if proposed is not None:
        if proposed.max_chars != recipe.chunk.max_chars:
            plain["chunk"] = {"max_chars": proposed.max_chars}
        plain["compose"] = {"target_tokens": proposed.target_tokens, "sequences": proposed.sequences}
    return Started(Recipe.from_dict(plain), proposed)


def check_name(path: Path, *, is_forced: bool) -> None:
    """Raise RecipeError for a name that no recipe should have, or that of a file which is there; never overwrites documents."""
    if path.name.lower().endswith(_NEVER_RECIPES):
        raise RecipeError(f"{path} is a name for documents, not for a recipe; say: nextlong init my.yaml {path}")
    if not path.exists():
        return
    if not is_forced:
        raise RecipeError(f"{path} exists; choose another name, or say --force to overwrite it")
    if path.is_file() and path.stat().st_size and not _LIKE_A_RECIPE.search(path.read_bytes()[:_LOOKED_AT_BYTES]):
        raise RecipeError(f"{path} is no recipe, so it is not overwritten; choose another name")


def notes(recipe_path: Path, started: Started, sources: Sequence[str]) -> Iterator[str]:
    """Yield what was found in the sources of a new recipe, and which files in their folders, or beside it, are left out."""
    recipe, proposed = started
    taken = finds(recipe_path, sources)
    for source in recipe.ingest.sources if taken else ():
        yield from found.of_source(source)
    for path in map(Path, taken):
        if left_out := found.unread(path):
            yield f"{path}: left out, for their names tell no known format: {found.listed(left_out)}"
    yield from _of_tokenizer(recipe)
    if proposed is not None:
        yield proposed.in_words
    folder = Path(_absolute(recipe_path)).parent
    for place in (folder, folder / "data") if not sources else ():
        if left_out := found.left_beside(place, [*taken, str(recipe.tokenizer.source)]):
            told = found.listed(left_out)
            yield f"{place}: left out, for they may be no documents: {told}; to take them, name them behind the recipe"


def is_readable(started: Started) -> bool:
    """Say whether a run will read the files that were looked at: none is damaged, each table has a text, few rows are rejects."""
    recipe, proposed = started
    if proposed is not None and proposed.reject_share > recipe.ingest.max_reject_share:
        return False
    for source in recipe.ingest.sources:
        tables = [look for look in _looks(source.path) if look.has_columns]
        if any(look.problem for look in _looks(source.path)) or (tables and not any(look.text for look in tables)):
            return False
    return True


def _of_tokenizer(recipe: Recipe) -> Iterator[str]:
    if recipe.tokenizer.source is None:
        return
    ends = find_ends_of(recipe.tokenizer)
    if ends is None:
        source = recipe.tokenizer.source
        yield f"tokenizer: {source} was not read, so which token ends a text is not known; name it as tokenizer.eos"
        return
    if ends.eos is None:
        yield "tokenizer: no special token ends a text, so a model will not learn where one ends; name one as tokenizer.eos"
    else:
        yield f"tokenizer: {ends.eos} ends each sequence (known by {ends.eos_said_by})"
    if ends.bos is not None:
        yield f"tokenizer: {ends.bos} begins each sequence (known by {ends.bos_said_by})"


def as_json(path: Path, recipe: Recipe, *, has_documents: bool, notes: Sequence[str] = ()) -> Json:
    """Return what `init` wrote, as plain dictionaries and lists."""
    return {
        "recipe": str(path),
        "run_dir": recipe.run_dir,
        "sources": [source.model_dump(include={"path", "name", "text", "id"}) for source in recipe.ingest.sources],
        "tokenizer": recipe.tokenizer.source or recipe.tokenizer.train,
        "has_documents": has_documents,
        "notes": list(notes),
    }


def _columns(path: str) -> dict[str, str]:
    """Return the columns that hold text and id, as far as they are found; of files elsewhere nothing, to ask nobody."""
    looks = _looks(path)
    first = next((look for look in looks if look.text), next((look for look in looks if look.has_columns), None))
    if first is None:
        return {}
    return {key: name for key, name in (("text", first.text), ("id", first.id)) if name is not None}


def _apart(path: str) -> list[str]:
    """Return a path, or those of its few files or of each kind of its files where these hold their texts in other columns.

    Plain texts stay with their folder: which of them are about the others, the whole of it tells.
    """
    looks = _looks(path)  # of many files, the first
    if len({look.text for look in looks if look.text}) < 2:
        return [path]
    files = list_files(Source(path=path), where="FILE")
    if len(files) <= _SEPARATE_FILES:
        return [file.path for file in files]
    suffixes = dict.fromkeys(look.suffix for look in looks)
    are_tables = all(look.has_columns for look in looks)
    if len(suffixes) < 2 or not are_tables or not Path(path).is_dir():
        return [path]
    return [f"{glob.escape(path)}/**/*{suffix}" for suffix in suffixes]


def _looks(path: str) -> list[Look]:
    if "://" in path:
        return []
    try:
        return look_into(path)
    except CorpusError:
        return []  # there is nothing yet


def _tokenizer(asked: str | None, beside: Path) -> dict[str, str | int]:
    if asked is None:
        return {"source": str(beside)} if beside.is_file() else {"train": _VOCABULARY}
    if (size := read_length(asked)) is not None:
        return {"train": size}
    path = Path(asked).expanduser()
    return {"source": _absolute(path) if path.exists() else asked}


def finds(recipe_path: Path, sources: Sequence[str] = ()) -> list[str]:
    """Return the absolute paths of `sources`, or else of the documents beside `recipe_path`."""
    folder = Path(_absolute(recipe_path)).parent
    if sources:
        return [_checked(source) for source in sources]
    beside = [
        str(path)
        for place in (folder, folder / "data")
        for suffix in _DATA_SUFFIXES
        for path in sorted(place.glob(f"*{suffix}"))
    ]
    below = [path for path in sorted(folder.glob("*")) if path.name != "data" and _holds_data(path, "*")]
    below += [path for path in sorted((folder / "data").glob("*")) if _holds_data(path, "**/*")]
    return beside + [str(path) for path in below]


def _holds_data(folder: Path, pattern: str) -> bool:
    """Say whether files of documents lie in a folder that is not hidden."""
    if not folder.is_dir() or folder.name.startswith("."):
        return False
    return any(next(folder.glob(f"{pattern}{suffix}"), None) for suffix in _DATA_SUFFIXES)


def _outside(folder: Path, sources: Sequence[str]) -> Path:
    """Return the folder, or the nearest one above it that no source takes in; to look at a URL may need its package."""
    local = [path for path in sources if "://" not in path]
    return next(
        (
            place
            for place in (folder, *folder.parents)
            if not any(reaches(Source(path=path), place / "runs") for path in local)
        ),
        folder,
    )


def _absolute(path: Path) -> str:
    # Symbolic links stay: what they point to may have another name.
    return os.path.normpath(path.expanduser().absolute())


def _checked(source: str) -> str:
    if "://" in source:
        return source
    path = _absolute(Path(source))
    list_files(Source(path=path), where="FILE")
    return path


def _gathered(paths: Sequence[str]) -> list[str]:
    """Return the paths, with a glob in the stead of many files that are all of their kind in their folder."""
    kept = list(dict.fromkeys(paths))
    if len(kept) <= _SEPARATE_FILES:
        return kept
    for folder in dict.fromkeys(Path(path).parent for path in kept):
        for suffix in _DATA_SUFFIXES:
            pattern = f"{glob.escape(str(folder))}/*{suffix}"
            files = [str(path) for path in folder.glob(f"*{suffix}")]
            if len(files) > 1 and set(files) <= set(kept):
                kept[kept.index(min(files, key=kept.index))] = pattern
                gathered = set(files)
                kept = [path for path in kept if path not in gathered]
    return kept


def _names(paths: Sequence[str]) -> list[str]:
    """Return for each path its stem, or of a glob its folder; with as many folders before it as tell it from the others.

    Where that is no name of its own, the end of the path is, such as `books/*.jsonl`.
    """
    parts = [_name_parts(path) for path in paths]
    whole = [[part for part in PurePosixPath(path).parts if part not in ("/", "**")] for path in paths]
    return [
        _tail(stem, parts) or _tail(names, whole, least=2) or path
        for path, stem, names in zip(paths, parts, whole, strict=True)
    ]


def _tail(parts: Sequence[str], of_all: Sequence[Sequence[str]], *, least: int = 1) -> str:
    """Return the fewest last parts that only one of all ends in, "" if there are none."""
    tails = (parts[-length:] for length in range(least, len(parts) + 1))
    return next(("/".join(tail) for tail in tails if sum(other[-len(tail) :] == tail for other in of_all) == 1), "")


def _name_parts(path: str) -> list[str]:
    """Return the folders of a path and its name without suffixes, up to the first part with a wildcard."""
    parts = [part for part in PurePosixPath(path.partition("://")[2] or path).parts if part != "/"]
    wild = next((place for place, part in enumerate(parts) if glob.has_magic(part)), None)
    if wild is not None:
        return parts[:wild] or [path]
    name = parts[-1]
    while suffix := next((end for end in (*_DATA_SUFFIXES, *_TEXT_SUFFIXES) if name.endswith(end) and name != end), ""):
        name = name.removesuffix(suffix)
    return [*parts[:-1], name]
