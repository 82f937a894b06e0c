"""Splits: how large a shard is, which files or parts of files each task of ingest reads, and how many lines are above each part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from nextlong.artifacts.results import LineCountResult
from nextlong.engine.estimate import Estimate, per_shard
from nextlong.engine.step import Step
from nextlong.reading.files import FilePart, InputFile, compression_of
from nextlong.reading.parts import can_be_shared, count_lines, max_tasks, split_inputs
from nextlong.reading.sampling import estimate_text_bytes
from nextlong.recipe import Source
from nextlong.recipe.keys import Ingest
from nextlong.text import Json

_WORTH_TELLING_BYTES: Final = 16_000_000  # compressed: reads in a second or two

Splits = Sequence[Sequence[tuple[FilePart, ...]]]  # of each source, of each task


def shard_bytes_of(ingest: Ingest, files: Sequence[Sequence[InputFile]]) -> int:
    """Return the text bytes of a shard; with `auto`, the heads of a few files decide."""
    if ingest.shard_mb != "auto":
        return shard_bytes_for(ingest, 0)
    return shard_bytes_for(ingest, sum(map(estimate_text_bytes, files, ingest.sources)))


def shard_bytes_for(ingest: Ingest, text_bytes: float) -> int:
    """Return the text bytes of a shard of a corpus with `text_bytes` in all; `auto`: a 32nd, between 1 MB and 128 MB."""
    if ingest.shard_mb != "auto":
        return int(ingest.shard_mb * 1_000_000)
    return min(max(int(text_bytes) // 32, 1_000_000), 128_000_000)


def splits_of(sources: Sequence[Source], files: Sequence[Sequence[InputFile]], *, shard_bytes: int) -> Splits:
    """Return what each task reads, of each source; a part of a file holds about as much text as a shard."""
    splits = []
    for source, source_files in zip(sources, files, strict=True):
        large = [file for file in source_files if file.bytes > shard_bytes and can_be_shared(file, source)]
        text_bytes = estimate_text_bytes(large, source)
        part_bytes = shard_bytes * sum(file.bytes for file in large) // text_bytes if text_bytes else shard_bytes
        splits.append(split_inputs(source_files, source, shard_bytes=shard_bytes, part_bytes=part_bytes))
    return splits


def all_parts(splits: Splits) -> list[FilePart]:
    """Return the parts of all tasks in task order."""
    return [part for of_source in splits for split in of_source for part in split]


def split_config(splits: Splits) -> Json:
    """Return how Parquet files and files compressed as a whole are divided, for the fingerprint; empty if none is."""
    parts = all_parts(splits)
    row_groups = [[part.file.name, *part.row_groups] for part in parts if part.row_groups]
    skipping = [[part.file.name, part.start] for part in parts if part.skips]
    return {key: value for key, value in (("row_groups", row_groups), ("decompressed_from", skipping)) if value}


def task_bytes(splits: Splits) -> list[float]:
    """Return about how many bytes on disk each task reads, in task order."""
    pieces: Counter[str] = Counter()  # by file: its row groups, or its parts of decompressed content
    for part in all_parts(splits):
        if part.row_groups is not None:
            pieces[part.file.path] = max(pieces[part.file.path], part.row_groups[1])
        elif part.skips:
            pieces[part.file.path] += 1

    def bytes_of(part: FilePart) -> float:
        if part.row_groups is not None:
            return part.file.bytes * (part.row_groups[1] - part.row_groups[0]) / pieces[part.file.path]
        if part.skips:
            return part.file.bytes / pieces[part.file.path]
        return (part.file.bytes if part.stop is None else part.stop) - part.start

    return [sum(map(bytes_of, parts)) for of_source in splits for parts in of_source]


def whole_files(
    sources: Sequence[Source], files: Sequence[Sequence[InputFile]], *, shard_bytes: int, workers: int
) -> list[str]:
    """Return a message for each large compressed file that fewer tasks can read than there are workers."""
    messages = []
    for source, source_files in zip(sources, files, strict=True):
        for file in source_files:
            if not compression_of(file.name) or file.bytes <= max(2 * shard_bytes, _WORTH_TELLING_BYTES):
                continue
            tasks = max_tasks(file, source)
            if tasks is not None and tasks < workers:
                who = "one task reads it" if tasks == 1 else f"at most {tasks} tasks read it, each from its beginning"
                messages.append(
                    f"{file.path} ({file.bytes / 1e6:,.0f} MB) is compressed as a whole, so {who}; several smaller files, plain "
                    "JSON lines, JSON lines in several zstd frames (pzstd, or .zst files joined by cat) and Parquet are read by "
                    "all workers"
                )
    return messages


def numbered(
    splits: Sequence[tuple[FilePart, ...]], counts: Iterator[LineCountResult]
) -> Iterator[tuple[FilePart, ...]]:
    """Yield the splits of a source with the number of lines above each part; `counts` has a result for each counted part."""
    lines_above, begins_line = 0, True
    for parts in splits:
        if not _is_counted(parts[0]):
            yield parts
            continue
        (part,) = parts
        if not part.start:
            lines_above, begins_line = 0, True
        count = next(counts)
        inside_bytes = count.bytes if compression_of(part.file.name) else None
        yield (replace(part, lines_before=lines_above, inside_bytes=inside_bytes, begins_line=begins_line),)
        lines_above += count.lines
        begins_line = count.ends_line if count.bytes else begins_line


def _is_counted(part: FilePart) -> bool:
    return part.stop is not None and not part.skips


def line_counts_steps(splits: Splits) -> list[Step]:
    """Return the step that counts the lines in parts of large files; none if no file is divided by bytes."""
    parts = [part for part in all_parts(splits) if _is_counted(part)]
    if not parts:
        return []
    config = [[part.file.name, part.file.identity, part.start, part.stop] for part in parts]
    tasks = [partial(_task, part=part) for part in parts]
    estimate = Estimate(work="text_bytes", seconds=3e-10, tasks=per_shard, rate="")
    return [Step("line_counts", 1, {"parts": config}, (), lambda _: tasks, LineCountResult, estimate=estimate)]


def _task(_: Path, *, part: FilePart) -> LineCountResult:
    return count_lines(part)
