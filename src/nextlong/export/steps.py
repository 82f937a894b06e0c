"""Exports: sequences → rows → files of each format, as steps; of one run, or of several mixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from nextlong.artefacts.finished import chunks_of, corpus, references, sequences_per_part, special_ids, token_store
from nextlong.engine.step import Counts, Finished, Step, Task
from nextlong.export.rows import SPLITS, Arrangement, arrange_rows, row_tokens
from nextlong.export.write import COLUMNS, Format, Options, Origin, close_export, export_shard, mds_shards, shards_of
from nextlong.recipe import Recipe

# How the files end that hold the rows.
SUFFIXES: Final[Mapping[str, str | tuple[str, ...]]] = {
    **dict.fromkeys(COLUMNS, ".parquet"),
    "arrow": ".arrow",
    "jsonl": ".jsonl",
    **dict.fromkeys(("mds", "prolong"), (".mds", ".mds.zstd")),
    "megatron": ".bin",
}

_SHARDS = 16  # so that small data sets are written in parallel too, …
_LEAST_SHARD_MB, _MOST_SHARD_MB = 8, 256  # … in files of a size that readers like
_MEGATRON_SHARD_MB = 16_000  # its users name each file
_ID_BYTES = 4


class Other(NamedTuple):
    """A finished run that is mixed with the recipe's own."""

    recipe: Recipe
    finished: Finished


class Mix(NamedTuple):
    """Other runs, and the proportions of all, the recipe's own first; None: all that there is."""

    others: tuple[Other, ...] = ()
    proportions: tuple[float, ...] | None = None
    by: Literal["sequences", "tokens"] = "sequences"

    def runs(self, recipe: Recipe, done: Finished) -> list[Other]:
        """Return every run of the mix."""
        return [Other(recipe, done), *self.others]


ALONE = Mix()


def export_steps(recipe: Recipe, read: Sequence[Step], *, mix: Mix = ALONE) -> list[Step]:
    """Return the steps that write every format of `recipe.export`; `read` are those whose files they need, as `read_steps`."""
    rows = _rows_step(recipe, read, mix)
    return [
        rows,
        *(
            _format_step(recipe, name, split, rows, read, mix)
            for name in recipe.export.formats
            for split in splits_of(recipe)
        ),
    ]


def read_steps(done: Finished) -> tuple[Step, ...]:
    """Return the steps of a finished run whose files exporting needs."""
    names = ("ingest", chunks_of(done).name, "tokenizer", "refer", "tokens", "compose")
    return tuple(Step.of(done[name]) for name in names)


def splits_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the splits that the recipe asks for."""
    return SPLITS if recipe.export.validation else SPLITS[:1]


def files_of(name: Format, folder: str) -> str:
    """Return what a reader is given for the files of a format in `folder`, which is empty or ends in a slash."""
    if name in COLUMNS or name == "jsonl":
        return f"{folder}*{SUFFIXES[name]}"
    if name == "megatron":
        return f"{folder}part-00000"
    return folder or "."


def step_name(name: str, split: str) -> str:
    """Return the name of the step that writes one split in one format."""
    return name if split == "train" else f"{name}-{split}"


def _rows_step(recipe: Recipe, read: Sequence[Step], mix: Mix) -> Step:
    """SEQUENCES → rows."""
    export = recipe.export
    is_split, is_mixed = export.validation > 0, bool(mix.others)
    arrangement: dict[str, Any] = {
        "mix": mix.proportions if is_mixed else None,
        "by": mix.by if is_mixed else "sequences",
        "validation": export.validation,
        "shared_chunks": export.shared_chunks if is_split else "keep",
        "pack": export.pack,
        "seed": export.split_seed if is_split else 0,
    }
    others = [[step.fingerprint for step in read_steps(other.finished)] for other in mix.others]
    takes = [run.recipe.compose.sequences for run in mix.runs(recipe, {})]

    def tasks(done: Finished) -> list[Task]:
        runs = [
            references(run.finished, sequences_per_part(run.recipe, run.finished["compose"]))
            for run in mix.runs(recipe, done)
        ]
        return [partial(arrange_rows, runs=runs, arrangement=Arrangement(**arrangement))]

    config = arrangement | {"sequences": takes, "others": others}
    return Step("rows", 2, config, tuple(read), tasks)


def _format_step(recipe: Recipe, name: Format, split: str, rows: Step, read: Sequence[Step], mix: Mix) -> Step:
    """Rows → the files of one split in one format."""
    export = recipe.export
    config: dict[str, Any] = {"format": name, "split": split, "shard_mb": export.shard_mb}
    if name in COLUMNS:
        config["row_group_mb"] = export.row_group_mb
    compression = _compression(recipe, name)
    if compression is not None:
        config["compression"] = compression
    if name == "megatron":
        config["eod"] = export.megatron_eod

    def tasks(done: Finished) -> list[Task]:
        index, offsets = (done["rows"].file(f".{split}.{kind}.npy") for kind in ("index", "offsets"))
        row_bytes = _ID_BYTES * row_tokens(np.load(index), np.load(offsets))
        origins = [_origin(run.finished) for run in mix.runs(recipe, done)]
        options = Options(
            shard_bytes=_shard_bytes(recipe, name, int(row_bytes.sum())),
            row_group_bytes=int(export.row_group_mb * 1_000_000),
            compression=compression,
            eod=export.megatron_eod,
            vocab_size=done["tokenizer"].counts[0]["vocab_size"],
        )
        shared: dict[str, Any] = {"index": index, "offsets": offsets, "origins": origins, "options": options}
        if name in ("mds", "prolong"):
            shards = mds_shards(np.load(index), np.load(offsets), origins, options)
        else:
            shards = shards_of(row_bytes, shard_bytes=options.shard_bytes)
        return [partial(export_shard, format=name, shard=shard, **shared) for shard in shards]

    def close(counts: Sequence[Counts]) -> Task:
        return partial(close_export, format=name, shards=counts)

    return Step(step_name(name, split), 4, config, (rows, *read), tasks, close=close)


def _compression(recipe: Recipe, name: Format) -> Literal["zstd", "lz4", "snappy", "none"] | None:
    """Return how a format's files are compressed, None if they are as they are by default."""
    asked = recipe.export.compression
    if name in ("mds", "prolong"):
        return "zstd" if asked == "zstd" else None
    return None if asked == "auto" or asked == "zstd" or name not in COLUMNS else asked


def _shard_bytes(recipe: Recipe, name: Format, total_bytes: int) -> int:
    if recipe.export.shard_mb != "auto":
        return int(recipe.export.shard_mb * 1_000_000)
    if name == "megatron":
        return _MEGATRON_SHARD_MB * 1_000_000
    return min(max(total_bytes // _SHARDS, _LEAST_SHARD_MB * 1_000_000), _MOST_SHARD_MB * 1_000_000)


def _origin(done: Finished) -> Origin:
    return Origin(
        tuple(done["compose"].files(".sequences.arrow")),
        corpus(done),
        token_store(done),
        special_ids(done),
        done["tokenizer"].file(".tokenizer.json"),
        done["tokenizer"].file(".tokenchars.npy"),
    )
