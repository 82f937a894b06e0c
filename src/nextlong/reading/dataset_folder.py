"""Data set folders: their configs and splits, as the `datasets` library finds them.

In:  the names of the files of a folder, its metadata (the YAML of README.md, and
     dataset_dict.json), and the `config` and `split` of the recipe.
Out: the names of the files to read, and a note on those that are not read.

The rules are those of `datasets` 5 (data_files.py, load.py): `configs` in README.md
first, then `data/{split}-00000-of-00001.*`, then names of folders and of files such as
`train` and `test`. Unlike there, these may have capitals: `Test.jsonl` must not be
trained on either. A split that is not asked for is `train`: a test split must not be
trained on without a word. Other folders are no data sets, and all of their files are
read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import orjson
import yaml
from fsspec.utils import glob_translate

from nextlong.errors import CorpusError
from nextlong.reading.formats import format_by_name
from nextlong.text import counted

ALL: Final = "all"  # the value of `split` that reads every split, and files of none
README: Final = "README.md"
YAML_FILE: Final = ".huggingface.yaml"  # may hold the YAML of README.md
SAVED: Final = "dataset_dict.json"  # written by DatasetDict.save_to_disk

_TRAIN: Final = "train"
_KEYWORDS: Final = {
    _TRAIN: ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SEPARATORS: Final = "-._ 0-9"
_IN_FOLDER: Final = (
    "**/{keyword}/**",
    "**/{keyword}[{sep}]*/**",
    "**/*[{sep}]{keyword}/**",
    "**/*[{sep}]{keyword}[{sep}]*/**",
)
_IN_FILE: Final = ("**/{keyword}[{sep}]*", "**/*[{sep}]{keyword}[{sep}]*")
_SHARD: Final = re.compile(r"data/([^/]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_SPLIT_NAME: Final = re.compile(r"\w+(\.\w+)*")
_TEXT_SUFFIX: Final = re.compile(r"\.txt(\.\w+)?$", re.IGNORECASE)
# If a split has files of several formats, `datasets` reads the most frequent one, and
# of equal ones the first of these.
_FORMATS: Final = ("parquet", "arrow", "jsonl", "csv", "tsv", "text")
_SHOWN: Final = 8  # names in a message

_Splits = Mapping[str, Sequence[str]]  # split → names of its files


@dataclass(frozen=True)
class Metadata:
    """What a folder says about itself."""

    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    saved_splits: Sequence[str] = ()


@dataclass(frozen=True)
class ChosenSplit:
    """The files of one split, or of several, and where they come from."""

    split: str
    config: str | None
    names: Sequence[str]
    note: str  # what is read and what is not; "" if every file is read


def read_metadata(
    readme: bytes, yaml_file: bytes, saved: bytes, *, where: str
) -> Metadata:
    """Return the metadata of a folder from the contents of its files.

    These are b"" for missing ones. Raises CorpusError, which begins with `where`, for
    configs that are not as `datasets` defines them.
    """
    card = _front_matter(readme) | _mapping(yaml_file)
    entries = card.get("configs") or []
    if not isinstance(entries, list):
        raise CorpusError(
            where=where,
            problem=f"configs in {README} must be a list, not {entries!r:.80}",
            fix="write one entry per configuration",
        )
    configs = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("config_name"), str):
            raise CorpusError(
                where=where,
                problem=f"each of the configs in {README} needs a config_name",
                fix=f"correct {entry!r:.80}",
            )
        configs[entry["config_name"]] = entry
    try:
        splits = orjson.loads(saved)["splits"] if saved else []
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise CorpusError(
            where=where,
            problem=f"{SAVED} is damaged",
            fix="copy the whole folder again",
        ) from None
    return Metadata(configs, [str(split) for split in splits])


def choose_split(
    names: Sequence[str],
    metadata: Metadata,
    *,
    split: str | None,
    config: str | None,
    where: str,
) -> ChosenSplit | None:
    """Return the files of a folder to read, None for all of them: it is no data set.

    `names` are the files of supported formats, relative to the folder. Raises
    CorpusError, which begins with `where`, for a split or config that the folder lacks
    or that must be chosen.
    """
    config, splits = _find(names, metadata, config=config, where=where)
    reads_every_file = split == ALL and not metadata.configs
    if reads_every_file or (splits is None and split is None):
        return None
    if splits is None:
        raise CorpusError(
            where=where,
            problem=f"it has no splits, so split={split!r} cannot be read",
            fix="remove it",
        )
    if split is None:
        in_splits = set().union(*splits.values())
        split = _default_splits(splits, set(names) - in_splits, where=where)
    asked = list(splits) if split == ALL else split.split("+")
    chosen = _of_one_format(_files_of_splits(asked, splits, where=where))
    if not chosen:
        raise CorpusError(
            where=where,
            problem=f"the split {split!r} has no file of a supported format",
            fix=f"choose another: {_listed(splits)}",
        )
    note = _note(splits, asked, chosen, names, config)
    return ChosenSplit("+".join(asked), config, chosen, note)


def _files_of_splits(
    asked: Sequence[str], splits: _Splits, *, where: str
) -> Iterable[str]:
    """Return the files of the splits asked for, each once."""
    files: dict[str, None] = {}
    for split in asked:
        if split not in splits:
            raise CorpusError(
                where=where,
                problem=f"it has no split {split!r}, only {_listed(splits)}",
                fix="split takes a name, several joined by +, or all",
            )
        files |= dict.fromkeys(splits[split])
    return files


def _find(
    names: Sequence[str], metadata: Metadata, *, config: str | None, where: str
) -> tuple[str | None, _Splits | None]:
    """Return the config, and its splits; None for a folder that is no data set."""
    if metadata.configs:
        config = _choose_config(metadata.configs, config, where=where)
        return config, _splits_of_config(names, metadata.configs[config], where=where)
    if config is not None:
        raise CorpusError(
            where=where,
            problem=f"it has no configs in {README}, so config={config!r} cannot be "
            "read",
            fix="remove it",
        )
    if metadata.saved_splits:
        splits = {}
        for split in metadata.saved_splits:
            splits[split] = [name for name in names if name.startswith(f"{split}/")]
        return None, splits
    return None, _splits_by_name(names)


# configs


def _choose_config(
    configs: Mapping[str, Mapping[str, Any]], config: str | None, *, where: str
) -> str:
    if config is None:
        defaults = [
            name
            for name, entry in configs.items()
            if len(configs) == 1 or name == "default" or entry.get("default")
        ]
        if len(defaults) == 1:
            return defaults[0]
        problem = f"it has the configs {_listed(configs)}, and no default one"
    elif config in configs:
        return config
    else:
        problem = f"it has no config {config!r}, only {_listed(configs)}"
    raise CorpusError(
        where=where,
        problem=problem,
        fix="set the source's config to one of them, or name its files in path",
    )


def _splits_of_config(
    names: Sequence[str], entry: Mapping[str, Any], *, where: str
) -> _Splits:
    # The patterns of a config are relative to its `data_dir`.
    folder = str(entry.get("data_dir") or "").strip("/")
    prefix = f"{folder}/" if folder not in ("", ".") else ""
    inside = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    data_files = entry.get("data_files")
    splits: dict[str, Sequence[str]] = {}
    if data_files is None:
        splits |= _splits_by_name(inside) or {_TRAIN: inside}
    else:
        for split, patterns in _patterns(data_files, where=where).items():
            splits[split] = _matching(inside, patterns)
    for split, found in splits.items():
        splits[split] = [prefix + name for name in found]
    return splits


def _patterns(data_files: Any, *, where: str) -> dict[str, list[str]]:
    """Return split → patterns from `data_files`.

    This is a pattern, a list of them, or a list of splits.
    """
    entries = data_files
    if not isinstance(data_files, list):
        entries = [data_files]
    if all(isinstance(entry, str) for entry in entries):
        return {_TRAIN: entries}
    patterns: dict[str, list[str]] = {}
    for entry in entries:
        paths: list[Any] = []
        if isinstance(entry, dict) and set(entry) == {"split", "path"}:
            path = entry["path"]
            paths = path if isinstance(path, list) else [path]
        is_valid = bool(paths) and all(isinstance(path, str) for path in paths)
        if not is_valid or str(entry["split"]) in patterns:
            raise CorpusError(
                where=where,
                problem=f"data_files in {README} must be patterns, or a split and its "
                "path each",
                fix=f"correct {entry!r:.80}",
            )
        patterns[str(entry["split"])] = paths
    return patterns


def _matching(names: Sequence[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that match a pattern, in the order of patterns."""
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = _regex(pattern.removeprefix("./")).match
        special_folders = _special_folders(pattern)
        for name in names:
            if matches(name) and _special_folders(name) == special_folders:
                found[name] = None
    return list(found)


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(glob_translate(pattern))


def _special_folders(name: str) -> int:
    """Return how many folders of a path begin with `__`.

    These must be named to be read.
    """
    folders = name.split("/")[:-1]
    return len([folder for folder in folders if folder.startswith("__")])


# splits by the names of files and folders


def _splits_by_name(names: Sequence[str]) -> _Splits | None:
    # Pages and notes have names such as training.md; `datasets` does not read them
    # either.
    data = [name for name in names if _is_data(name)]
    shards = _sharded(data)
    if shards:
        return shards
    by_folder = _by_keyword(data, _IN_FOLDER)
    by_file = _by_keyword(data, _IN_FILE)
    has_train_folder = _TRAIN in by_folder
    has_train_file = _TRAIN in by_file
    splits = by_file
    # As in `datasets`, folders come before files, unless only files have a train split.
    if by_folder and (has_train_folder or not has_train_file):
        splits = by_folder
    in_splits = set().union(*splits.values())
    # Among other texts, a file that is called test.txt is a text about tests.
    is_of_texts = all(map(_TEXT_SUFFIX.search, data))
    if is_of_texts and len(in_splits) < len(names) and not has_train_folder:
        return None
    return splits or None


def _sharded(names: Sequence[str]) -> _Splits:
    """Return split → files of the form `data/train-00000-of-00002.parquet`."""
    splits: dict[str, list[str]] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        if match is not None:
            splits.setdefault(match[1], []).append(name)
    are_names = all(map(_SPLIT_NAME.fullmatch, splits))
    return splits if are_names else {}


def _by_keyword(names: Sequence[str], forms: Sequence[str]) -> dict[str, list[str]]:
    names_by_lower: dict[str, list[str]] = {}
    for name in names:
        names_by_lower.setdefault(name.lower(), []).append(name)
    splits: dict[str, list[str]] = {}
    for split, keywords in _KEYWORDS.items():
        found: list[str] = []
        for keyword in keywords:
            # Few names have the word at all; a search of 100,000 took 2.6 s without
            # this.
            with_word = [name for name in names_by_lower if keyword in name]
            patterns = [form.format(keyword=keyword, sep=_SEPARATORS) for form in forms]
            found += _matching(with_word, patterns)
        for name in dict.fromkeys(found):
            splits.setdefault(split, []).extend(names_by_lower[name])
    return splits


def _is_data(name: str) -> bool:
    """Return whether `datasets` reads files of this format."""
    file_format = format_by_name(name)
    if file_format is not None and file_format.has_columns:
        if file_format.extractor is None:
            return True
    return _TEXT_SUFFIX.search(name) is not None


# the choice of splits


def _default_splits(splits: _Splits, unread: set[str], *, where: str) -> str:
    """Return what is read if the recipe names no split.

    `unread` are the files of no split. Raises CorpusError if that is not clear.
    """
    if _TRAIN in splits:
        return _TRAIN
    held_out = [split for split in splits if _is_held_out(split)]
    if not held_out:
        return ALL
    problem = (
        f"it is a data set without a split {_TRAIN!r}, only with {_listed(splits)}"
    )
    if unread:
        first = min(splits[held_out[0]], default="")
        problem = (
            f"it has {first!r}, which looks like the split {held_out[0]!r} of a data "
            f"set, beside {counted(len(unread), 'file')} of no split"
        )
    raise CorpusError(
        where=where,
        problem=problem,
        fix="set the source's split to the one to train on, or to all for every file, "
        "or name the files in path",
    )


def _is_held_out(split: str) -> bool:
    """Return whether a split is meant for tests: test, dev, test_sft."""
    words = re.split(r"[-._ \d]+", split.lower())
    held_out = {*_KEYWORDS["validation"], *_KEYWORDS["test"]}
    return not held_out.isdisjoint(words)


def _of_one_format(names: Iterable[str]) -> list[str]:
    listed = list(names)
    formats = {name: _format_name(name) for name in listed}
    counts = Counter(formats.values())
    ranked = sorted(counts, key=lambda kind: (-counts[kind], _rank(kind)))
    return [name for name in listed if formats[name] == ranked[0]]


def _format_name(name: str) -> str:
    file_format = format_by_name(name)
    return "" if file_format is None else file_format.name


def _rank(kind: str) -> int:
    return _FORMATS.index(kind) if kind in _FORMATS else len(_FORMATS)


def _note(
    splits: _Splits,
    asked: Sequence[str],
    chosen: Sequence[str],
    names: Sequence[str],
    config: str | None,
) -> str:
    read = f"reads the split {'+'.join(asked)!r}"
    if config is not None:
        read += f" of the config {config!r}"
    read += f" ({counted(len(chosen), 'file')})"
    unread = []
    other_files = set(names) - set(chosen)
    for split, files in splits.items():
        if split not in asked:
            unread.append(f"{split} ({counted(len(files), 'file')})")
            other_files -= set(files)
    if other_files:
        unread.append(counted(len(other_files), "other file"))
    if not unread:
        return "" if config is None else read
    return f"{read}; not read: {', '.join(unread)}"


def _listed(names: Iterable[str]) -> str:
    listed = [str(name) for name in names]
    shown = ", ".join(listed[:_SHOWN])
    if len(listed) > _SHOWN:
        shown += f" and {len(listed) - _SHOWN} more"
    return shown


def _front_matter(readme: bytes) -> dict[str, Any]:
    """Return the YAML between the first two lines `---` of a README, {} for none."""
    lines = readme.decode("utf-8-sig", "replace").splitlines()
    if not lines or lines[0] != "---" or "---" not in lines[1:]:
        return {}
    end = lines.index("---", 1)
    return _mapping("\n".join(lines[1:end]))


def _mapping(text: str | bytes) -> dict[str, Any]:
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}  # a README of something else
    return parsed if isinstance(parsed, dict) else {}
