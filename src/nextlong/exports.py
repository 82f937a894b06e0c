"""Exports: write finished runs in further formats, alone or mixed; give each export its card; publish it.

In:  finished run directories, formats, and the recipe's `export` keys.
Out: one folder a format and split, in the first run's directory, each with a data set card; the same at a destination.
Nothing of the corpus is read but what spans refer to.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from rich.console import Console

from nextlong import pipeline
from nextlong.engine import store
from nextlong.engine.progress import Reporter, reporter_for
from nextlong.engine.runner import run_steps
from nextlong.engine.step import Done, Finished
from nextlong.errors import RecipeError, RunError
from nextlong.formats import jsonl
from nextlong.formats.card import Facts, Source, Split, card
from nextlong.formats.card import Format as Layout
from nextlong.opened import Run, check_mix
from nextlong.recipe import Recipe
from nextlong.report import card_statistics, stats, summary
from nextlong.stages.export import COLUMNS, Format
from nextlong.stages.publish import ExportFile, publish
from nextlong.steps import exports

CARD = "README.md"
_MDS_COLUMNS = ("input_ids", "indices", "length", "domain")
_COLUMNS: Final[Mapping[Format, Sequence[str]]] = {
    **COLUMNS,
    "arrow": COLUMNS["parquet"],
    "jsonl": jsonl.KEYS,
    "mds": _MDS_COLUMNS,
    "prolong": _MDS_COLUMNS,
    "megatron": (),
}
# What a card calls the formats that go by the name of their trainer.
_LAYOUTS: Final[Mapping[Format, Layout]] = {"torchtitan": "parquet", "axolotl": "parquet", "prolong": "mds"}


class Exported(NamedTuple):
    """What a recipe exported: the runs that its rows come from, and the finished steps by name."""

    recipe: Recipe
    runs: Sequence[Run]
    done: Finished


def run(
    recipe: Recipe, *, reporter: Reporter | None = None, changed_inputs: Literal["refuse", "accept"] = "refuse"
) -> Exported:
    """Carry out a recipe, and complete its exports. Raises NextlongError."""
    finished: list[Exported] = []

    def complete(done: Finished) -> None:
        finished.append(Exported(recipe, [Run(pipeline.run_dir_of(recipe))], done))
        write_cards(finished[0])

    pipeline.run(recipe, reporter=reporter, changed_inputs=changed_inputs, when_done=complete)
    (written,) = finished
    push(written)
    return written


def run_and_tell(recipe: Recipe, console: Console, *, changed_inputs: Literal["refuse", "accept"] = "refuse") -> None:
    """Carry out a recipe with progress on the console, then print what it made and where."""
    written = run(recipe, reporter=reporter_for(console), changed_inputs=changed_inputs)
    summary.tell(summary.lines(recipe, written.done), console)


def export(
    runs: Sequence[str | Path],
    *,
    formats: Sequence[str] = (),
    overrides: Sequence[str] = (),
    mix: Sequence[float] = (),
    by: Literal["sequences", "tokens"] = "sequences",
    stale: Literal["refuse", "replace"] = "refuse",
    reporter: Reporter | None = None,
) -> Exported:
    """Write the sequences of finished runs in `formats` (default: those of the first run's recipe).

    `overrides` are `export.key=value`. Several runs are mixed in the proportions `mix`, counted in sequences or tokens
    (default: all that there is); the files then lie in the first run's directory. What is there already is kept; `stale`
    says what to do about files of another export that lie at `export.push`. In a script, call it under
    `if __name__ == "__main__":`. Raises NextlongError for every mistake that a user can mend.
    """
    check_mix([Run(run) for run in runs], mix)
    with store.locked(Run(runs[0]).path):
        opened = [Run(run) for run in runs]  # as they are now that no other process changes the first
        for step in [run.steps[step.name] for run in opened for step in exports.read_steps(run.steps)]:
            store.check_files(step.folder, step.manifest)  # a run that was copied is opened without a look into it
        first = opened[0]
        recipe = _recipe(first, formats, overrides)
        others = tuple(exports.Other(run.recipe, run.steps) for run in opened[1:])
        steps = exports.export_steps(
            recipe, exports.read_steps(first.steps), mix=exports.Mix(others, tuple(mix) or None, by)
        )
        with pipeline.executor_for(recipe, work="export") as executor:
            done = run_steps(steps, run_dir=first.path, executor=executor, reporter=reporter, known=first.steps)
        if not others:
            _record(first, {step.name: done[step.name] for step in steps})
        written = Exported(recipe, opened, done)
        write_cards(written)
    push(written, stale=stale)
    return written


def _recipe(run: Run, formats: Sequence[str], overrides: Sequence[str]) -> Recipe:
    """Return the run's recipe with other exports."""
    foreign = [asked for asked in overrides if not asked.startswith("export.") and not asked.startswith("workers=")]
    if foreign:
        raise RecipeError(
            f"--set {foreign[0]} changes more than the export; say `nextlong run RECIPE --set {foreign[0]}`, which "
            "keeps every step that it does not touch"
        )
    asked = [f"export.formats=[{','.join(formats)}]"] if formats else []
    asked += ["export.push=null", *overrides]  # what the run published stays as it is
    recipe = Recipe.from_dict(run.recipe.model_dump(mode="json"), overrides=asked, origin=str(run.record))
    if recipe.sequence_tokens > run.recipe.sequence_tokens:
        raise RunError(
            f"torchtitan wants sequences of compose.target_tokens + 1 = {recipe.sequence_tokens:,} tokens, those of {run.path} "
            f"have {run.recipe.sequence_tokens:,}; say "
            f"`nextlong run RECIPE --set export.formats=[{','.join(recipe.export.formats)}]`, "
            "which keeps vectors and candidates and composes anew"
        )
    return recipe


def _record(run: Run, written: dict[str, Done]) -> None:
    """Add what was written to the run's record, so that `nextlong.open` finds it."""
    record: dict[str, Any] = store.read_json(run.record)
    for name in written:
        record["steps"].pop(
            exports.step_name(name, "validation"), None
        )  # of other rows than the train split that is new
    record["steps"] |= {name: step.folder.name for name, step in written.items()}
    with store.explained(run.record):
        store.write_json(run.record, record)


def write_cards(written: Exported) -> None:
    """Put a data set card into every folder."""
    statistics = _statistics(written)
    for name in written.recipe.export.formats:
        for split in exports.splits_of(written.recipe):
            folder = written.done[exports.step_name(name, split)].folder
            text = card(_facts(written, name, {split: ""}, statistics))
            if not (folder / CARD).exists() or (folder / CARD).read_text(encoding="utf-8") != text:
                with store.explained(folder):
                    store.write_text(folder / CARD, text)


def push(written: Exported, *, stale: Literal["refuse", "replace"] = "refuse") -> None:
    """Publish what is to be published. Raises ExportError."""
    if written.recipe.export.push is not None:
        for name in written.recipe.export.formats:
            _push(written, name, _statistics(written), stale)


def _statistics(written: Exported) -> dict[str, str]:
    """Return what a run's cards tell in numbers; kept beside its rows, because measuring reads every sequence."""
    if len(written.runs) > 1:
        return {}
    path = written.done["rows"].folder / "statistics.json"
    if not path.exists():
        with store.explained(path):
            store.write_json(path, card_statistics.statistics(stats.measure(written.runs[0])))
    kept: dict[str, str] = store.read_json(path)
    return kept


def _push(written: Exported, name: Format, statistics: Mapping[str, str], stale: Literal["refuse", "replace"]) -> None:
    """Publish one format: every split in a folder of its own if there are several, and one card over all."""
    recipe = written.recipe
    splits = exports.splits_of(recipe)
    below = {split: f"{split}/" if len(splits) > 1 else "" for split in splits}
    destination = str(recipe.export.push).rstrip("/")
    if len(recipe.export.formats) > 1:
        destination = f"{destination}/{name}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CARD
        path.write_text(card(_facts(written, name, below, statistics)), encoding="utf-8")
        files = [ExportFile(path, CARD, path.stat().st_size, store.hash_file(path))]
        for split in splits:
            step = written.done[exports.step_name(name, split)]
            files += [
                ExportFile(step.folder / file, f"{below[split]}{file}", found["bytes"], found["xxh3"])
                for part in step.manifest["parts"]
                for file, found in part["files"].items()
            ]
        publish(files, destination, others=stale)


def _facts(written: Exported, name: Format, below: Mapping[str, str], statistics: Mapping[str, str]) -> Facts:
    """Return what the card says of some splits of a format, whose files lie in the folders `below`."""
    recipe = written.recipe
    (rows,) = written.done["rows"].counts
    splits = [
        Split(
            split,
            exports.files_of(name, folder),
            rows[split]["rows"],
            rows[split]["tokens"],
            written.done[exports.step_name(name, split)].manifest["bytes"],
        )
        for split, folder in below.items()
    ]
    return Facts(
        name=Path(recipe.run_dir).name,
        format=_LAYOUTS.get(name, name),  # type: ignore[arg-type]
        splits=splits,
        columns=_COLUMNS[name],
        method="+".join(dict.fromkeys(run.recipe.compose.method for run in written.runs)),
        target_tokens=sorted({run.recipe.sequence_tokens for run in written.runs}),
        sequences=sum(rows[split]["sequences"] for split in below),
        tokenizer=recipe.tokenizer.source
        or f"a byte-level BPE of {recipe.tokenizer.train:,} entries trained on the corpus",
        sources=_sources(written.runs),
        recipes=[recipe.dump(), *(run.recipe.dump() for run in written.runs[1:])],
        runs=_runs(written, below),
        version=written.done["rows"].manifest["versions"]["nextlong"],
        statistics=statistics,
    )


def _runs(written: Exported, splits: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return the name of each run of a mix, and how many of its sequences and tokens are in the splits; none of one run alone."""
    if len(written.runs) == 1:
        return []
    (rows,) = written.done["rows"].counts
    taken = [rows[split]["of_runs"] for split in splits]
    return [
        (run.path.name, *(sum(own[number][column] for own in taken) for column in (0, 1)))
        for number, run in enumerate(written.runs)
    ]


def _sources(runs: Sequence[Run]) -> list[Source]:
    """Return the sources of all runs, each once."""
    found = [Source(source.label, source.path, source.license) for run in runs for source in run.recipe.ingest.sources]
    return list(dict.fromkeys(found))
