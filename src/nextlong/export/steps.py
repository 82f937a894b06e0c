"""Build the export steps: sequences → rows → files of each format.

In:  SEQUENCES (references) of one or more runs, and the files that they refer to.
Out: the rows (`export/arrange.py`), then the files of each
     shard in the requested formats (modules of `formats/`) and,
     once all shards are written, the format's index of them.

Rows are resolved run by run in blocks of about eight million tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nextlong.arrays import AnyArray, Ints
from nextlong.artifacts import corpus_files
from nextlong.artifacts.blocks import (
    Resolved,
    Wanted,
    joined,
    joined_names,
    labels_of,
    of_documents,
    packed,
    resolve_table,
    sliced,
)
from nextlong.artifacts.results import (
    ShardResult,
    TokenizerFiles,
    TokenizerResult,
    chunks_of,
    sequences_per_part,
)
from nextlong.artifacts.sequence_files import SequenceFiles
from nextlong.engine import store
from nextlong.engine.step import (
    Artifact,
    Artifacts,
    Join,
    Step,
    Task,
    TaskResult,
    Work,
)
from nextlong.errors import RecipeError, RunError
from nextlong.export.arrange import (
    SPLITS,
    Arrangement,
    RowFiles,
    RowsResult,
    arrange_rows,
)
from nextlong.export.formats.base import Format, Options, RowSizes, format_of
from nextlong.export.mixture import EVERYTHING, Mixture
from nextlong.plugins import FORMATS
from nextlong.recipe import Export
from nextlong.sequences.tokenizer import special_id
from nextlong.text import Json

# At least so many, so that small data sets are written in parallel as well, within
# these file sizes, which suit readers.
MIN_SHARDS = 16
MIN_SHARD_MB = 8
MAX_SHARD_MB = 256
ID_BYTES = 4
# Tokens resolved at a time, 32 MB of ids: each block reads from every shard that it
# names.
_BLOCK_TOKENS = 1 << 23
# Values of keys that do not change the files.
_NO_CHANGE = {"boundaries": "sequence", "pad_documents_to": None}

_Count = int | Literal["all"]
# Of the recipe's own run, and of the other runs of a mix.
_FilesOf = Callable[[Artifacts], list[SequenceFiles]]


def export_steps(
    export: Export,
    read: Sequence[Step],
    *,
    sequences: _Count,
    others: Sequence[tuple[_Count, Artifacts]] = (),
    mixture: Mixture = EVERYTHING,
) -> list[Step]:
    """Return the steps that write every format.

    They read the files of the steps `read`. See `read_steps`. `sequences` is the
    recipe's `compose.sequences`; `others` are those of other runs, with their finished
    steps. The recipe's own run is the first of the `mixture`.
    """

    def files_of_runs(done: Artifacts) -> list[SequenceFiles]:
        files = []
        for count, steps in ((sequences, done), *others):
            counts = sequences_per_part(count, steps["compose"])
            files.append(SequenceFiles.of(steps, counts))
        return files

    if not others and mixture.is_of_runs:
        mixture = EVERYTHING
    arrangement = _arrangement(export, mixture)

    def tasks(done: Artifacts) -> list[Task]:
        runs = files_of_runs(done)
        return [partial(arrange_rows, runs=runs, arrangement=arrangement)]

    other_counts = [count for count, _ in others]
    fingerprints = []
    for _, done in others:
        fingerprints.append([step.fingerprint for step in read_steps(done)])
    config = {
        **_arrangement_config(arrangement),
        "sequences": [sequences, *other_counts],
        "others": fingerprints,
    }
    rows = Step(
        name="rows",
        phase="write",
        version=2,
        config=config,
        inputs=tuple(read),
        tasks=tasks,
        result=RowsResult,
    )
    steps = [rows]
    for name in export.formats:
        for split in splits_of(export):
            step = _format_step(
                name,
                split,
                export=export,
                rows=rows,
                read=read,
                files_of_runs=files_of_runs,
            )
            steps.append(step)
    return steps


def _arrangement(export: Export, mixture: Mixture) -> Arrangement:
    """Return the settings of the rows.

    Those that change nothing have their defaults.
    """
    is_split = export.validation > 0
    return Arrangement(
        mixture=mixture,
        validation=export.validation,
        shared_chunks=export.shared_chunks if is_split else "keep",
        pack=export.pack,
        seed=export.split_seed if is_split else 0,
    )


def _arrangement_config(arrangement: Arrangement) -> Json:
    """Return what decides the rows; a mixture of runs alone as `mix` and `by`."""
    config = asdict(arrangement)
    mixture = arrangement.mixture
    del config["mixture"]
    config["mix"] = mixture.weights or None
    config["by"] = mixture.by
    if not mixture.is_of_runs:
        config["mixture"] = asdict(mixture)
    return config


def check_names(formats: Sequence[str], known: Artifacts) -> None:
    """Raise RecipeError for a format with the name of another step of the run.

    It would replace that step in the record.
    """
    for name in formats:
        if name in known and "format" not in known[name].manifest["config"]:
            raise RecipeError(
                where="export.formats",
                problem=f"{name} is also the name of a step of the run",
                fix="rename the format and its entry point",
            )


def read_steps(done: Artifacts) -> tuple[Step, ...]:
    """Return the steps of a finished run whose files exporting reads."""
    names = (
        "ingest",
        chunks_of(done).name,
        "tokenizer",
        "referenced_chunks",
        "tokens",
        "compose",
    )
    return tuple(Step.of(done[name]) for name in names)


def check_read(done: Artifacts, run_dir: Path, *, trust: store.Trust) -> None:
    """Raise RunError if a file that exporting reads was altered.

    The message names the exports made from it. Before publishing, files are hashed
    (`trust="hash"`): a bit that flipped on disk changes neither size nor time.
    """
    for read in read_steps(done):
        step = done[read.name]
        try:
            store.check_files(step.folder, step.manifest, trust=trust)
        except RunError as error:
            exports = _exports_of(step, run_dir)
            if not exports:
                raise
            raise RunError(
                where=error.where,
                problem=error.problem,
                fix=f"{error.fix}; also delete the exports made from it: "
                f"{', '.join(exports)}",
            ) from None


def _exports_of(step: Artifact, run_dir: Path) -> list[str]:
    """Return the folders of the exports that were made from a step."""
    exports = []
    for path in sorted(run_dir.glob(f"*/{store.MANIFEST}")):
        inputs = store.read_json(path)["inputs"]
        is_export = "rows" in inputs
        if is_export and inputs.get(step.name) == step.manifest["fingerprint"]:
            exports.append(str(path.parent))
    return exports


def splits_of(export: Export) -> tuple[str, ...]:
    """Return the names of the splits of the recipe."""
    return SPLITS if export.validation else SPLITS[:1]


def step_name(name: str, split: str) -> str:
    """Return the name of the step that writes a split in a format."""
    return name if split == "train" else f"{name}-{split}"


def _format_step(
    name: str,
    split: str,
    *,
    export: Export,
    rows: Step,
    read: Sequence[Step],
    files_of_runs: _FilesOf,
) -> Step:
    """Return the step from rows to the files of one split in one format."""
    written = format_of(name)
    compression = written.compressions[0]
    if export.compression in written.compressions:
        compression = export.compression
    keys = _changing_keys(export, written)
    config: Json = {"format": name, "split": split, "shard_mb": export.shard_mb, **keys}
    # A named default gives the files of the default, so it has their fingerprint.
    if compression != written.compressions[0]:
        config["compression"] = compression
    if written.extra_tokens:
        config["extra_tokens"] = written.extra_tokens
    if written.min_shard_rows > 1:
        config["min_shard_rows"] = written.min_shard_rows
    shard_mb = written.auto_shard_mb if export.shard_mb == "auto" else export.shard_mb

    def tasks(done: Artifacts) -> Work:
        rows = RowFiles.of(done, split)
        index = np.load(rows.index)
        tokenizer = done["tokenizer"].result(TokenizerResult)
        token_id = partial(
            special_id, TokenizerFiles.of(done).tokenizer, key="export.megatron_eod"
        )
        id_bytes = ID_BYTES * int(index["length"].sum())
        options = Options(
            keys={**keys, "compression": compression},
            shard_bytes=_shard_bytes(shard_mb, id_bytes),
            vocab_size=tokenizer.vocab_size,
            bos_id=tokenizer.bos_id,
            eos_id=tokenizer.eos_id,
            token_id=token_id,
        )
        origins = files_of_runs(done)
        bounds = _shard_bounds(
            index, np.load(rows.offsets), origins, written=written, options=options
        )
        shards = [
            partial(
                _export_shard,
                name=name,
                rows=(first, last),
                index=rows.index,
                offsets=rows.offsets,
                origins=origins,
                options=replace(options, shard=number, shards=len(bounds) - 1),
            )
            for number, (first, last) in enumerate(pairwise(bounds))
        ]
        # Once all shards are written: it describes all of them.
        close = Join(
            range(len(shards)),
            lambda results: partial(_close_export, name=name, shards=results),
        )
        return Work(shards, [close])

    return Step(
        name=step_name(name, split),
        phase="write",
        version=5,
        config=config,
        inputs=(rows, *read),
        tasks=tasks,
        result=written.result,
    )


def _changing_keys(export: Export, written: Format) -> Json:
    """Return the keys of the format that change something, but compression.

    These are not part of the fingerprint.
    """
    keys = {}
    for key in sorted(written.keys - {"compression"}):
        value = getattr(export, key)
        if key not in _NO_CHANGE or value != _NO_CHANGE[key]:
            keys[key] = value
    return keys


def _shard_bytes(shard_mb: float | None, id_bytes: int) -> int:
    """Return the bytes of ids of a file; None: by the bytes of all ids."""
    if shard_mb is not None:
        return int(shard_mb * 1_000_000)
    share = max(id_bytes // MIN_SHARDS, MIN_SHARD_MB * 1_000_000)
    return min(share, MAX_SHARD_MB * 1_000_000)


def _shard_bounds(
    index: AnyArray,
    offsets: Ints,
    origins: Sequence[SequenceFiles],
    *,
    written: Format,
    options: Options,
) -> list[int]:
    """Return the bounds of the rows of each file.

    They follow from the format's rule, else files have about `options.shard_bytes` of
    ids.
    """
    row_tokens = _row_tokens(index, offsets)
    if written.shard_rows is not None:
        rows = RowSizes(
            tokens=row_tokens,
            documents=np.diff(offsets),
            domains=_domains_of_rows(index, offsets, origins),
        )
        sizes = written.shard_rows(rows, options)
        return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]
    files = corpus_files.runs_within(ID_BYTES * row_tokens, options.shard_bytes)
    bounds = [0, *(last for _, last in files)]
    return _without_small_files(bounds, min_rows=written.min_shard_rows)


def _row_tokens(index: AnyArray, offsets: Ints) -> Ints:
    """Return the tokens of each row, (rows,).

    The index has the lengths of sequences, the offsets the sequences of each row.
    """
    token_offsets = np.append(0, np.cumsum(index["length"]))
    return np.diff(token_offsets[offsets])


def _domains_of_rows(
    index: AnyArray,
    offsets: Ints,
    origins: Sequence[SequenceFiles],
) -> list[str]:
    """Return the domains of the sequences of each row."""
    domains = labels_of(index, origins, column="source")
    rows = pairwise(offsets.tolist())
    return [joined_names(domains[first:last].tolist()) for first, last in rows]


def _without_small_files(bounds: list[int], *, min_rows: int) -> list[int]:
    """Return the bounds of files of at least `min_rows` rows, or of all rows."""
    if len(bounds) == 1:
        return bounds
    kept = [bounds[0]]
    for bound in bounds[1:]:
        if bound - kept[-1] >= min_rows:
            kept.append(bound)
    # The rows after the last bound belong to the file before them, if there is one.
    if len(kept) > 1:
        kept.pop()
    return [*kept, bounds[-1]]


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
    """Write rows [first, last) of `index` and `offsets` as one shard.

    Its files are named after `out`.
    """
    # By name, because a task is sent to another process.
    declared = format_of(name)
    first, last = rows
    row_offsets = np.load(offsets)[first : last + 1]
    index_array = np.load(index)
    blocks = _read_rows(index_array, row_offsets, origins, wanted=declared.wanted)
    if options.keys.get("boundaries") == "document":
        blocks = map(of_documents, blocks)
    result = declared.write(out, blocks, options)
    if not isinstance(result, declared.result):
        raise FORMATS.broken(
            name,
            f"returns {result!r:.80} from write, which must be its "
            f"{declared.result.__name__}",
        )
    return result


def _close_export(out: Path, *, name: str, shards: Sequence[ShardResult]) -> TaskResult:
    """Write the files that describe all shards, from the results of `write`."""
    close = format_of(name).close
    if close is not None:
        close(out.parent, shards)
    return TaskResult()


def _read_rows(
    index: AnyArray,
    offsets: Ints,
    origins: Sequence[SequenceFiles],
    *,
    wanted: Wanted,
) -> Iterator[Resolved]:
    """Yield blocks of rows, of about eight million tokens.

    Row i has the sequences index[offsets[i]:offsets[i + 1]].
    """
    row_tokens = _row_tokens(index, offsets)
    for first, last in corpus_files.runs_within(row_tokens, _BLOCK_TOKENS):
        sequences = index[offsets[first] : offsets[last]]
        runs = sequences["run"]
        resolved = {}
        for run in np.unique(runs).tolist():
            table = origins[run].table(sequences[runs == run])
            resolved[run] = resolve_table(table, origins[run], wanted=wanted)
        block = _interleaved(resolved, runs)
        yield packed(block, offsets[first : last + 1] - offsets[first])


def _interleaved(
    resolved: Mapping[int, Resolved], runs: NDArray[np.integer[Any]]
) -> Resolved:
    """Return the sequences of several runs in the order of `runs`, the run of each.

    `resolved` has the sequences of each run in order; they are taken stretch by
    stretch.
    """
    if len(resolved) == 1:
        (block,) = resolved.values()
        return block
    stretches = []
    taken = Counter[int]()
    changes = np.flatnonzero(np.diff(runs)) + 1
    for stretch in np.split(runs, changes):
        run = int(stretch[0])
        start = taken[run]
        end = start + len(stretch)
        stretches.append(sliced(resolved[run], start, end))
        taken[run] = end
    return joined(stretches)
