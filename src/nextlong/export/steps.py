"""Exports: sequences → rows → files of each format, as steps; of one run, or of several mixed.

In:  SEQUENCES (references) of one run or several, and what they refer to.
Out: the rows (`export/arrange.py`), then the files of each shard in the requested format (a module of `formats/`) and, once all
are written, the format's index over them. A row of several sequences is resolved run by run and joined, in blocks of about eight
million tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.artifacts import resolve
from nextlong.artifacts.finished import SequenceFiles, chunks_of, sequences_per_part
from nextlong.artifacts.results import ShardResult, TokenizerResult
from nextlong.engine import store
from nextlong.engine.step import Amounts, Artifacts, Estimate, Join, Step, Task, TaskResult, Work
from nextlong.errors import RecipeError, RunError
from nextlong.export.arrange import SPLITS, Arrangement, RowsResult, arrange_rows
from nextlong.export.formats.base import Format, Options, RowSizes, format_of
from nextlong.plugins import FORMATS
from nextlong.recipe import Export
from nextlong.recipe.amounts import TYPICAL_CHARS_PER_TOKEN
from nextlong.sequences.tokenizer import special_id
from nextlong.text import Json

_SHARDS = 16  # so that small data sets are written in parallel too, …
_LEAST_SHARD_MB, _MOST_SHARD_MB = 8, 256  # … in files of a size that readers like
_ID_BYTES = 4
_BLOCK_TOKENS = 1 << 23  # resolved at a time, 32 MB of ids: each block reads what it names of every shard
_SEQUENCES_HELD = 4096  # references of these, some hundred bytes a span
_NO_CHANGE = {
    "boundaries": "sequence",
    "pad_documents_to": None,
}  # values of keys under which the files are as without them


_Count = int | Literal["all"]
_FilesOf = Callable[[Artifacts], list[SequenceFiles]]  # of the recipe's own run, and of the others of a mix


def export_steps(
    export: Export,
    read: Sequence[Step],
    *,
    sequences: _Count,
    others: Sequence[tuple[_Count, Artifacts]] = (),
    mix: Sequence[float] = (),
    by: Literal["sequences", "tokens"] = "sequences",
) -> list[Step]:
    """Return the steps that write every format; `read` are those whose files they need, as `read_steps`.

    `sequences` is the recipe's own `compose.sequences`; `others` are those of other runs, with their finished steps. `mix` are the
    proportions of all runs, the recipe's own first; none: all that there is.
    """

    def of_runs(done: Artifacts) -> list[SequenceFiles]:
        runs = ((sequences, done), *others)
        return [SequenceFiles.of(steps, sequences_per_part(count, steps["compose"])) for count, steps in runs]

    is_split = export.validation > 0
    arrangement: Json = {
        "mix": tuple(mix) or None if others else None,
        "by": by if others else "sequences",
        "validation": export.validation,
        "shared_chunks": export.shared_chunks if is_split else "keep",
        "pack": export.pack,
        "seed": export.split_seed if is_split else 0,
    }

    def tasks(done: Artifacts) -> list[Task]:
        return [partial(arrange_rows, runs=of_runs(done), arrangement=Arrangement(**arrangement))]

    config = arrangement | {
        "sequences": [sequences, *(count for count, _ in others)],
        "others": [[step.fingerprint for step in read_steps(steps)] for _, steps in others],
    }
    estimate = Estimate(work="sequences", seconds=2e-5, disk="sequences", bytes=36)
    rows = Step("rows", 2, config, tuple(read), tasks, RowsResult, estimate=estimate)
    each = ((name, split) for name in export.formats for split in splits_of(export))
    return [rows, *(_format_step(export, name, split, rows, read, of_runs) for name, split in each)]


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
    for step in (done[step.name] for step in read_steps(done)):
        try:
            store.check_files(step.folder, step.manifest, trust=trust)
        except RunError as error:
            paths, fingerprint = sorted(run_dir.glob(f"*/{store.MANIFEST}")), step.manifest["fingerprint"]
            inputs = {str(path.parent): store.read_json(path)["inputs"] for path in paths}
            made = [at for at, of in inputs.items() if "rows" in of and of.get(step.name) == fingerprint]
            beside = f"; delete what was exported from it, too: {', '.join(made)}" if made else ""
            raise RunError(f"{error}{beside}") from None


def splits_of(export: Export) -> tuple[str, ...]:
    """Return the splits that the recipe asks for."""
    return SPLITS if export.validation else SPLITS[:1]


def step_name(name: str, split: str) -> str:
    """Return the name of the step that writes one split in one format."""
    return name if split == "train" else f"{name}-{split}"


def _format_step(export: Export, name: str, split: str, rows: Step, read: Sequence[Step], of_runs: _FilesOf) -> Step:
    """Rows → the files of one split in one format."""
    made = format_of(name)
    compression = export.compression if export.compression in made.compressions else made.compressions[0]
    # What does not change the files is not part of the fingerprint.
    keys = {key: getattr(export, key) for key in sorted(made.keys - {"compression"})}
    keys = {key: value for key, value in keys.items() if key not in _NO_CHANGE or value != _NO_CHANGE[key]}
    config: Json = {"format": name, "split": split, "shard_mb": export.shard_mb, **keys}
    if compression != made.compressions[0]:
        config["compression"] = compression
    if made.extra_tokens:
        config["extra_tokens"] = made.extra_tokens
    asked_mb = made.auto_shard_mb if export.shard_mb == "auto" else export.shard_mb

    def tasks(done: Artifacts) -> Work:
        index, offsets = (done["rows"].file(f".{split}.{kind}.npy") for kind in ("index", "offsets"))
        id_bytes = _ID_BYTES * int(np.load(index)["length"].sum())
        auto_bytes = min(max(id_bytes // _SHARDS, _LEAST_SHARD_MB * 1_000_000), _MOST_SHARD_MB * 1_000_000)
        tokenizer = done["tokenizer"].result(TokenizerResult)
        options = Options(
            keys=keys | {"compression": compression},
            shard_bytes=auto_bytes if asked_mb is None else int(asked_mb * 1_000_000),
            vocab_size=tokenizer.vocab_size,
            bos_id=tokenizer.bos_id,
            eos_id=tokenizer.eos_id,
            token_id=partial(special_id, done["tokenizer"].file(".tokenizer.json"), key="export.megatron_eod"),
        )
        origins = of_runs(done)
        bounds = _shard_bounds(np.load(index), np.load(offsets), origins, made=made, options=options)
        shard = partial(_export_shard, name=name, index=index, offsets=offsets, origins=origins)
        each = [
            partial(shard, rows=rows, options=replace(options, shard=number, shards=len(bounds) - 1))
            for number, rows in enumerate(pairwise(bounds))
        ]
        return Work(each, [Join(range(len(each)), lambda results: partial(_close_export, name=name, shards=results))])

    share = export.validation if split == SPLITS[-1] else 1 - export.validation

    def tokens(amounts: Amounts) -> float:
        return share * amounts.tokens

    def shards(amounts: Amounts) -> float:  # of a format that has no rule of its own
        megabytes = tokens(amounts) * _ID_BYTES / 1e6
        return max(1.0, min(_SHARDS, megabytes / _LEAST_SHARD_MB), megabytes / _MOST_SHARD_MB)

    estimate = Estimate(
        work=tokens,
        seconds=4e-8,
        disk=tokens,
        bytes=made.bytes_per_token(export.compression, TYPICAL_CHARS_PER_TOKEN),
        tasks=shards,
    )
    return Step(step_name(name, split), 5, config, (rows, *read), tasks, made.result, estimate=estimate)


def _shard_bounds(
    index: NDArray[Any], offsets: NDArray[np.int64], origins: Sequence[SequenceFiles], *, made: Format, options: Options
) -> list[int]:
    """Return the rows of each file, bounds[i] to bounds[i + 1]: by the format's rule, else about `options.shard_bytes` of ids."""
    # (rows,) tokens of each row: the index has the tokens of its sequences, the offsets say which sequences make a row.
    row_tokens = np.diff(np.concatenate([[0], np.cumsum(index["length"])])[offsets])
    if made.shard_rows is not None:
        domains = np.empty(len(index), object)  # of each sequence
        for number, origin in enumerate(origins):
            places = np.flatnonzero(index["run"] == number)
            for some in np.array_split(places, -(-len(places) // _SEQUENCES_HELD)) if len(places) else ():
                lists = [_table(index[some], origin).column(name).combine_chunks() for name in ("chunk_id", "role")]
                chunk_ids, roles = (column.values.to_numpy() for column in lists)
                domains[some] = resolve.domains_of(chunk_ids, roles, lists[0].offsets.to_numpy(), origin.corpus)
        of_rows = [resolve.joined_names(domains[first:last].tolist()) for first, last in pairwise(offsets.tolist())]
        sizes = made.shard_rows(RowSizes(row_tokens, np.diff(offsets), of_rows), options)
        return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]
    ends, bounds = np.cumsum(_ID_BYTES * row_tokens), [0]
    while bounds[-1] < len(ends):
        before = ends[bounds[-1] - 1] if bounds[-1] else 0
        bounds.append(max(bounds[-1] + 1, int(np.searchsorted(ends, before + options.shard_bytes, side="right"))))
    return bounds


def _export_shard(
    out: Path,
    *,
    name: str,
    rows: tuple[int, int],
    index: Path,
    offsets: Path,
    origins: Sequence[SequenceFiles],
    options: Options,
) -> ShardResult:
    """Write rows [first, last) of `index` and `offsets` as one shard, whose files are named beside `out`."""
    made, row_offsets = format_of(name), np.load(offsets)[rows[0] : rows[1] + 1]
    blocks = _read_rows(np.load(index), row_offsets, origins, wanted=made.wanted)
    if options.keys.get("boundaries") == "document":
        blocks = map(resolve.of_documents, blocks)
    written = made.write(out, blocks, options)
    if not isinstance(written, made.result):
        raise FORMATS.broken(name, f"returns {written!r:.80} from write, which must be its {made.result.__name__}")
    return written


def _close_export(out: Path, *, name: str, shards: Sequence[ShardResult]) -> TaskResult:
    """Write the files that a format has once for all shards, from what `write` returned for each of them."""
    if (close := format_of(name).close) is not None:
        close(out.parent, shards)
    return TaskResult()


def _read_rows(
    index: NDArray[Any], offsets: NDArray[np.int64], origins: Sequence[SequenceFiles], *, wanted: resolve.Wanted
) -> Iterator[resolve.Resolved]:
    """Yield rows, the sequences index[offsets[i]:offsets[i + 1]] (SEQUENCE_INDEX), in blocks of about eight million tokens."""
    ends = np.concatenate([[0], np.cumsum(index["length"])])[offsets]  # (rows + 1,) in tokens
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(ends, ends[first] + _BLOCK_TOKENS, side="right")) - 1)
        sequences = index[offsets[first] : offsets[last]]
        runs = sequences["run"]
        of_runs = {
            run: resolve.resolve_table(_table(sequences[runs == run], origins[run]), origins[run], wanted=wanted)
            for run in np.unique(runs).tolist()
        }
        block = of_runs[int(runs[0])]
        if len(of_runs) > 1:
            # The sequences of each run are counted run by run; the block has them one after the other.
            stretches, seen = [], Counter[int]()
            for stretch in np.split(runs, np.flatnonzero(np.diff(runs)) + 1):
                run = int(stretch[0])
                stretches.append(resolve.sliced(of_runs[run], seen[run], seen[run] + len(stretch)))
                seen[run] += len(stretch)
            block = resolve.joined(stretches)
        yield resolve.packed(block, offsets[first : last + 1] - offsets[first])
        first = last


def _table(sequences: NDArray[Any], origin: SequenceFiles) -> pa.Table:
    """Return the SEQUENCES of one run that an index names; each stretch of one file is read at once."""
    batches: list[pa.RecordBatch] = []
    for part in np.split(sequences, np.flatnonzero(np.diff(sequences["part"])) + 1):
        with pa.ipc.open_file(pa.memory_map(str(origin.sequences[part["part"][0]]))) as reader:
            batches += [reader.get_batch(place) for place in part["place"].tolist()]
    return pa.Table.from_batches(batches)
