"""Exclude: the documents that the user's exclusion list removes, as `nextlong view` writes one.

In:  a JSON Lines file: `source` and, unless all of the source is meant, `id`. Out: for each source of a recipe, which ids.

Ingest keeps with its documents what the list excluded, and which of its entries met a document: the list may change or move.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import fsspec
import xxhash

from nextlong.engine.step import Artifact
from nextlong.errors import CorpusError
from nextlong.recipe import Source

_KEPT: Final = ".excluded.json"  # of each source's first task: what was excluded of it
_MET: Final = ".excluded_met.json"  # of each task: the entries that it met
ELSEWHERE: Final = "excluded_elsewhere"  # in the step's configuration: how many entries are of other sources


class Exclusion(NamedTuple):
    """The documents of one source that are excluded: all of them, or those with one of `ids`."""

    is_whole: bool = False
    ids: frozenset[str] = frozenset()

    def holds(self, source_id: str) -> bool:
        """Return whether a document of this id is excluded."""
        return self.is_whole or source_id in self.ids

    def entries(self, source_id: str) -> set[str]:
        """Return the entries that name a document of this id: ids, and "" for the whole source."""
        return ({source_id} & self.ids) | ({""} if self.is_whole else set())

    @property
    def identity(self) -> str:
        """A hash of what is excluded, "" if nothing is."""
        if not self.is_whole and not self.ids:
            return ""
        return xxhash.xxh3_64_hexdigest(json.dumps([self.is_whole, sorted(self.ids)]).encode())


def exclusions_of(path: str | None, sources: Sequence[Source]) -> tuple[list[Exclusion], int]:
    """Return what a list excludes of each source, and how many of its entries are of other sources.

    Raises CorpusError for a file that cannot be read or a line without a source.
    """
    if path is None:
        return [Exclusion()] * len(sources), 0
    try:
        with fsspec.open(path, "rt", encoding="utf-8") as file:
            lines = file.read().split("\n")  # JSON may have other line separators in its strings
    except (OSError, ValueError) as error:
        raise CorpusError(
            f"ingest.exclude={path!r} cannot be read ({error}); correct the path, or set it to null"
        ) from None
    whole: set[str] = set()
    ids: dict[str, set[str]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            source, source_id = entry["source"], entry.get("id", "")
        except (ValueError, TypeError, KeyError, AttributeError):
            source = source_id = None
        if not (isinstance(source, str) and isinstance(source_id, str)):
            raise CorpusError(
                f'ingest.exclude: {path}:{number} is not {{"source": …, "id": …}}; correct or delete the line'
            )
        if source_id:
            ids.setdefault(source, set()).add(source_id)
        else:
            whole.add(source)
    known = {source.label for source in sources}
    if (whole or ids) and known.isdisjoint(whole | set(ids)):
        raise CorpusError(
            f"ingest.exclude={path!r} names none of the sources of this recipe ({', '.join(sorted(known))}) but "
            f"{', '.join(sorted(whole | set(ids)))}; correct the names, or set ingest.exclude to null"
        )
    each = [Exclusion(source.label in whole, frozenset(ids.get(source.label, ()))) for source in sources]
    elsewhere = len(whole - known) + sum(len(of) for source, of in ids.items() if source not in known)
    return each, elsewhere


def all_excluded(documents: str) -> CorpusError:
    """Return the error that the list leaves nothing of these documents."""
    return CorpusError(f"ingest.exclude excludes all {documents}; delete lines of it, or set it to null")


def write_kept(out: Path, source: Source, exclusion: Exclusion) -> None:
    """Write `{out}.excluded.json`: what is excluded of a source."""
    _write(f"{out}{_KEPT}", {"source": source.label, "whole": exclusion.is_whole, "ids": sorted(exclusion.ids)})


def write_met(out: Path, source: Source, entries: set[str]) -> None:
    """Write `{out}.excluded_met.json`: the entries for a source that name a document which one task met."""
    _write(f"{out}{_MET}", {"source": source.label, "entries": sorted(entries)})


def met_none(ingested: Artifact) -> tuple[int, int]:
    """Return how many entries of the list named no document when the corpus was ingested, and how many there were."""
    elsewhere = int(ingested.manifest["config"].get(ELSEWHERE, 0))
    named = {
        (kept["source"], entry)
        for kept in _read(ingested, _KEPT)
        for entry in (*kept["ids"], *([""] if kept["whole"] else []))
    }
    met = {(task["source"], entry) for task in _read(ingested, _MET) for entry in task["entries"]}
    return len(named - met) + elsewhere, len(named) + elsewhere


def _write(path: str, value: Any) -> None:
    Path(path).write_text(json.dumps(value), encoding="utf-8")


def _read(ingested: Artifact, suffix: str) -> Iterator[Any]:
    names = [name for part in ingested.manifest["parts"] for name in part["files"] if name.endswith(suffix)]
    return (json.loads((ingested.folder / name).read_text(encoding="utf-8")) for name in names)
