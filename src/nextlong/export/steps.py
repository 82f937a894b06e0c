"""Exports: sequences → rows → files of each format, as steps; of one run, or of several mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from nextlong.artifacts.finished import RunFiles, chunks_of, sequences_per_part
from nextlong.artifacts.results import TokenizerResult
from nextlong.engine import store
from nextlong.engine.estimate import Estimate
from nextlong.engine.step import Artifact, Artifacts, Join, Step, Task, Work
from nextlong.errors import RecipeError, RunError
from nextlong.export.arrange import SPLITS, Arrangement, RowsResult, arrange_rows
from nextlong.export.formats.base import Options, format_of
from nextlong.export.write import close_export, divide_into_shards, export_shard
from nextlong.recipe import Export
from nextlong.recipe.amounts import TYPICAL_CHARS_PER_TOKEN
from nextlong.sequences.tokenizer import token_id
from nextlong.text import Json

_SHARDS = 16  # so that small data sets are written in parallel too, …
_LEAST_SHARD_MB, _MOST_SHARD_MB = 8, 256  # … in files of a size that readers like
_ID_BYTES = 4


class Other(NamedTuple):
    """A finished run that rows are made of, and how many of its sequences belong to its data set."""

    sequences: int | Literal["all"]
    finished: Artifacts


class Mix(NamedTuple):
    """Other runs, and the proportions of all, the recipe's own first; None: all that there is."""

    others: tuple[Other, ...] = ()
    proportions: tuple[float, ...] | None = None
    by: Literal["sequences", "tokens"] = "sequences"


_ALONE = Mix()
_FilesOf = Callable[[Artifacts], list[RunFiles]]  # of the recipe's own run, and of the others of a mix


def export_steps(
    export: Export, read: Sequence[Step], *, sequences: int | Literal["all"], mix: Mix = _ALONE
) -> list[Step]:
    """Return the steps that write every format; `read` are those whose files they need, as `read_steps`.

    `sequences` is the recipe's own `compose.sequences`.
    """

    def of_runs(done: Artifacts) -> list[RunFiles]:
        runs = (Other(sequences, done), *mix.others)
        takes = [sequences_per_part(run.sequences, run.finished["compose"]) for run in runs]
        return [RunFiles.of(run.finished, take) for run, take in zip(runs, takes, strict=True)]

    rows = _rows_step(export, read, sequences, mix, of_runs)
    return [
        rows,
        *(
            _format_step(export, name, split, rows, read, of_runs)
            for name in export.formats
            for split in splits_of(export)
        ),
    ]


def check_names(formats: Sequence[str], known: Artifacts) -> None:
    """Raise RecipeError for a format with the name of a step of the run, which it would replace in the record."""
    for name in formats:
        if name in known and "format" not in known[name].manifest["config"]:
            raise RecipeError(
                f"export.formats: {name} is the name of a step of the run, so a format cannot have it; give the format, and its "
                "entry point, another name"
            )


def read_steps(done: Artifacts) -> tuple[Step, ...]:
    """Return the steps of a finished run whose files exporting needs."""
    names = ("ingest", chunks_of(done).name, "tokenizer", "referenced_chunks", "tokens", "compose")
    return tuple(Step.of(done[name]) for name in names)


def check_read(done: Artifacts, run_dir: Path, *, trust: store.Trust) -> None:
    """Raise RunError if a file that exporting reads is not what was written; the error names the exports made from it.

    What is published is hashed (`trust="hash"`): a bit that flipped on the disk changes neither size nor time.
    """

    def check(step: Artifact) -> None:
        try:
            store.check_files(step.folder, step.manifest, trust=trust)
        except RunError as error:
            inputs = {path.parent: store.read_json(path)["inputs"] for path in run_dir.glob(f"*/{store.MANIFEST}")}
            made = [
                str(folder)
                for folder, read in sorted(inputs.items())
                if "rows" in read and read.get(step.name) == step.manifest["fingerprint"]
            ]
            beside = f"; delete what was exported from it, too: {', '.join(made)}" if made else ""
            raise RunError(f"{error}{beside}") from None

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, [done[step.name] for step in read_steps(done)]))


def splits_of(export: Export) -> tuple[str, ...]:
    """Return the splits that the recipe asks for."""
    return SPLITS if export.validation else SPLITS[:1]


def step_name(name: str, split: str) -> str:
    """Return the name of the step that writes one split in one format."""
    return name if split == "train" else f"{name}-{split}"


def _rows_step(
    export: Export, read: Sequence[Step], sequences: int | Literal["all"], mix: Mix, of_runs: _FilesOf
) -> Step:
    """SEQUENCES → rows."""
    is_split, is_mixed = export.validation > 0, bool(mix.others)
    arrangement: Json = {
        "mix": mix.proportions if is_mixed else None,
        "by": mix.by if is_mixed else "sequences",
        "validation": export.validation,
        "shared_chunks": export.shared_chunks if is_split else "keep",
        "pack": export.pack,
        "seed": export.split_seed if is_split else 0,
    }
    others = [[step.fingerprint for step in read_steps(other.finished)] for other in mix.others]

    def tasks(done: Artifacts) -> list[Task]:
        return [partial(arrange_rows, runs=of_runs(done), arrangement=Arrangement(**arrangement))]

    takes = [sequences, *(other.sequences for other in mix.others)]
    config = arrangement | {"sequences": takes, "others": others}
    estimate = Estimate(work="sequences", seconds=2e-5, disk="sequences", bytes=36)
    return Step("rows", 2, config, tuple(read), tasks, RowsResult, estimate=estimate)


def _format_step(export: Export, name: str, split: str, rows: Step, read: Sequence[Step], of_runs: _FilesOf) -> Step:
    """Rows → the files of one split in one format."""
    keys, made = _keys(export, name), format_of(name)
    config: Json = {
        "format": name,
        "split": split,
        "shard_mb": export.shard_mb,
        **{key: value for key, value in keys.items() if key != "compression"},
        **({"compression": keys["compression"]} if keys["compression"] != made.compressions[0] else {}),
        **({"extra_tokens": made.extra_tokens} if made.extra_tokens else {}),
    }

    def tasks(done: Artifacts) -> Work:
        index, offsets = (done["rows"].file(f".{split}.{kind}.npy") for kind in ("index", "offsets"))
        id_bytes = _ID_BYTES * int(np.load(index)["length"].sum())
        tokenizer = done["tokenizer"].result(TokenizerResult)
        options = Options(
            keys=keys,
            shard_bytes=_shard_bytes(export, name, id_bytes),
            vocab_size=tokenizer.vocab_size,
            bos_id=tokenizer.bos_id,
            eos_id=tokenizer.eos_id,
            token_id=partial(token_id, tokenizer=done["tokenizer"].file(".tokenizer.json")),
        )
        origins = of_runs(done)
        shards = divide_into_shards(np.load(index), np.load(offsets), origins, name=name, options=options)
        shared: dict[str, Any] = {"index": index, "offsets": offsets, "origins": origins, "options": options}
        each = [partial(export_shard, name=name, shard=shard, **shared) for shard in shards]
        return Work(each, [Join(range(len(each)), lambda results: partial(close_export, name=name, shards=results))])

    share = export.validation if split == SPLITS[-1] else 1 - export.validation
    estimate = Estimate(
        work=lambda amounts: share * amounts.tokens,
        seconds=4e-8,
        disk=lambda amounts: share * amounts.tokens,
        bytes=made.bytes_per_token(export.compression, TYPICAL_CHARS_PER_TOKEN),
        tasks=lambda amounts: _shards_of(share * amounts.tokens * _ID_BYTES),
    )
    return Step(step_name(name, split), 5, config, (rows, *read), tasks, made.result, estimate=estimate)


def _shards_of(id_bytes: float) -> float:
    """Return about how many shards `id_bytes` bytes of ids make in a format that has no rule of its own."""
    megabytes = id_bytes / 1e6
    return max(1.0, min(_SHARDS, megabytes / _LEAST_SHARD_MB), megabytes / _MOST_SHARD_MB)


def _keys(export: Export, name: str) -> Json:
    """Return the keys of `export` that a format takes, and its compression, which is its first for `auto`."""
    accepted = format_of(name)
    asked = export.compression
    keys = {key: getattr(export, key) for key in sorted(accepted.keys - {"compression"})}
    for key, default in (("boundaries", "sequence"), ("pad_documents_to", None)):
        if keys.get(key) == default:
            keys.pop(key, None)  # what does not change the files is not part of the fingerprint
    return keys | {"compression": asked if asked in accepted.compressions else accepted.compressions[0]}


def _shard_bytes(export: Export, name: str, total_bytes: int) -> int:
    asked = export.shard_mb if export.shard_mb != "auto" else format_of(name).auto_shard_mb
    if asked is not None:
        return int(asked * 1_000_000)
    return min(max(total_bytes // _SHARDS, _LEAST_SHARD_MB * 1_000_000), _MOST_SHARD_MB * 1_000_000)
