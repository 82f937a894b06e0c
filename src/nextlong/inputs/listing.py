"""Listing: the recipe's paths → the files behind them.

In:  one `Source` of the recipe: a file, a folder or a glob on any fsspec file system.
Out: its files, sorted by path, each with a version by which a run notices that it changed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from nextlong.errors import CorpusError
from nextlong.inputs import file_systems
from nextlong.inputs.files import InputFile, full_path, version_of
from nextlong.inputs.formats import FORMATS, KNOWN, format_by_name, format_of, known_format
from nextlong.inputs.retries import again
from nextlong.inputs.walk import Listing, check_regular, match
from nextlong.recipe import Source

# What `datasets` and the hub put beside data: about the documents, none of them.
SIDE_FILES: Final = frozenset({"state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json"})
ABOUT_FILES: Final = frozenset({"readme.md", "readme.txt", "license.md", "license.txt"})


def list_files(source: Source, *, where: str) -> list[InputFile]:
    """Return the files of a source, sorted by path.

    Raises CorpusError, naming `where` (the recipe key, e.g. `ingest.sources[0].path`), if there is none or the file
    system cannot be reached.
    """
    fs, root = file_systems.reach(source.path, where=f"{where}={source.path!r}", error=CorpusError)
    try:
        base, matched, asked_for = again(lambda: match(fs, root), fs=fs)
    except (CorpusError, MemoryError):
        raise
    except Exception as error:  # each file system has errors of its own, many of them no OSError
        raise CorpusError(
            f"{where}={source.path!r} cannot be listed: {error}; check the path and your credentials"
        ) from None
    if not matched:
        _refuse_nothing(source, where, root, asked_for)
    kept = _known_files(matched, source, asked_for)
    if not kept:
        _refuse_unknown(source, where, matched)
    for path, info in kept.items():
        check_regular(fs, path, info, where=f"{where}={source.path!r}")
    files = [
        InputFile(full_path(fs, path), int(info["size"] or 0), version_of(info), posixpath.relpath(path, base))
        for path, info in kept.items()
    ]
    return sorted(files, key=lambda file: file.path)


def _known_files(matched: Mapping[str, Any], source: Source, asked_for: str) -> Listing:
    """Return the files whose format is known; a format in the recipe covers every file that was named or matched."""
    if asked_for == "file":
        return {path: info for path, info in matched.items() if known_format(posixpath.basename(path), source)}
    data = {path: info for path, info in matched.items() if posixpath.basename(path).lower() not in SIDE_FILES}
    if asked_for == "folder" and source.format != "auto":
        return {path: info for path, info in data.items() if format_by_name(path) is FORMATS[source.format]}
    kept = {path: info for path, info in data.items() if known_format(path, source)}
    if any(format_of(path, source).has_columns for path in kept):
        return {path: info for path, info in kept.items() if posixpath.basename(path).lower() not in ABOUT_FILES}
    return kept


def _refuse_nothing(source: Source, where: str, root: str, asked_for: str) -> NoReturn:
    if asked_for == "glob":
        raise CorpusError(f"{where}={source.path!r} matches no file; check the pattern (** crosses folders)")
    if asked_for == "folder":
        raise CorpusError(f"{where}={source.path!r} is an empty folder; put files there ({KNOWN})")
    raise CorpusError(f"{where}={source.path!r} does not exist (looked for {root}); correct the path")


def _refuse_unknown(source: Source, where: str, matched: Mapping[str, Any]) -> NoReturn:
    wanted = "known format" if source.format == "auto" else f"format {source.format!r}"
    raise CorpusError(
        f"{where}={source.path!r} has no file of a {wanted}, only such as {posixpath.basename(min(matched))!r}; "
        f"known are {KNOWN}; for other names give a file or a glob and set its format, one of {', '.join(FORMATS)} "
        "(source code: text)"
    )
