"""Exports: write finished runs in further formats, alone or mixed, and publish them.

In:  finished run directories, formats, and the recipe's `export` keys. Out: one folder
per format and split in the first run's directory, each with a data card; a copy at a
destination. Of the corpus only the chunks that spans refer to are read.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

from xxhash import xxh3_128_hexdigest

from nextlong import pipeline
from nextlong.artifacts import variant_names, variant_records
from nextlong.artifacts.results import TokenizerFiles
from nextlong.engine import store
from nextlong.engine.progress import Reporter
from nextlong.engine.runner import find_done, run_steps
from nextlong.engine.step import Artifact, Artifacts, Step
from nextlong.errors import ExportError, RecipeError, RunError
from nextlong.export import steps as export_steps
from nextlong.export.mixture import EVERYTHING, Mixture, check_mixture
from nextlong.export.publish import (
    DELIVERED,
    ExportFile,
    check_destination,
    publish,
    publish_card,
)
from nextlong.reading.files import check_kept
from nextlong.recipe import Export, Recipe
from nextlong.recipe.export import unused_keys
from nextlong.recipe.text import merge
from nextlong.runs import card, data_folder
from nextlong.runs.exported import Exported, fingerprints_of
from nextlong.runs.run import Run, check_mix, proportions_of
from nextlong.runs.statistics.measure import STATISTICS, statistics_step
from nextlong.sequences.tokenizer import special_id
from nextlong.text import Json

# Of a row of short documents, at most: the context that Llama 3 was pretrained on.
_MAX_SHORT_TOKENS: Final = 8192
_Changed: TypeAlias = Literal["refuse", "accept"]
_Stale: TypeAlias = Literal["refuse", "replace"]


def run(
    recipe: Recipe,
    *,
    reporter: Reporter | None = None,
    changed_inputs: _Changed = "refuse",
) -> Exported:
    """Run or resume a recipe, and publish its exports. Raises NextlongError."""
    run_dir = recipe.run_path
    if recipe.export.push is not None:
        name = variant_names.name_for(recipe, run_dir)
        if name not in variant_records.names(run_dir):
            for format_name in recipe.export.formats:
                check_destination(_destination(recipe.export, format_name))
    written = make(recipe, reporter=reporter, changed_inputs=changed_inputs)
    push(written)
    return written


def make(
    recipe: Recipe,
    *,
    reporter: Reporter | None = None,
    changed_inputs: _Changed = "refuse",
) -> Exported:
    """Run a recipe, measure its variant, and put its exports into `data/`.

    Nothing is published. Raises NextlongError.
    """
    with pipeline.session(
        recipe, reporter=reporter, changed_inputs=changed_inputs
    ) as session:
        done, variant = session.make_variant()
        run_dir = variant.run_dir
        # The new variant may be the one that `RUN` opens, whose rows belong into
        # `data/`.
        data_folder.settle(run_dir)
        is_current = variant_records.current(run_dir) == variant.name
        finished = Run(run_dir if is_current else variant.named)
        measured = _with_statistics(finished, done, session.run_steps)
        written = Exported(recipe, [finished], measured)
        _place_data(written)
    return written


def _with_statistics(
    run: Run, done: Artifacts, run_all: Callable[..., dict[str, Artifact]]
) -> Artifacts:
    """Measure a run and return the finished steps with that one.

    It takes the place of an earlier version's.
    """
    done = run_all([statistics_step(run)], known=done)
    measured = done[STATISTICS]
    variant_records.add_steps(run.variant, {STATISTICS: measured.folder.name})
    run.steps[STATISTICS] = measured
    return done


def export(
    runs: Sequence[str | Path],
    *,
    formats: Sequence[str] = (),
    overrides: Sequence[str] = (),
    mixture: Mixture = EVERYTHING,
    stale: _Stale = "refuse",
    short_tokens: int | None = None,
    reporter: Reporter | None = None,
) -> Exported:
    """Write the sequences of finished runs in `formats`.

    By default those of the first run's recipe. A run is a run directory, or one of its
    variants, `RUN@NAME`; after the first also a file of short documents, which are made
    into rows of `short_tokens` tokens (default: 8,192, or the first run's length if
    that is less). `overrides` are `export.key=value`. A `mixture` says how much of each
    run, length bucket, source or language is used (default: everything); the files of a
    mix are written to the first run's directory. Exports that exist already are reused;
    `stale` says what to do with files of another export at `export.push`. In a script,
    call it under `if __name__ == "__main__":`. Raises NextlongError for mistakes of the
    user.
    """
    runs = _with_short_documents(runs, tokens=short_tokens, reporter=reporter)
    mixed = [Run(run) for run in runs]
    check_mixture(mixture)
    if mixture.components == "runs" and mixture.weights:
        weights = proportions_of(mixture.weights, mixed)
        mixture = replace(mixture, weights=weights)
    unit = "sequences" if mixture.has_weights else mixture.by
    check_mix(mixed, mixture.weights, by=unit)
    with store.locked(mixed[0].path):
        # As they are now that no other process changes the first.
        opened = [Run(run) for run in runs]
        first = opened[0]
        recipe = _recipe(first, formats, overrides)
        _check(recipe, opened, stale)
        _tell_repeated(opened, reporter)
        # Before files are published, the bytes they are made from are hashed.
        trust: store.Trust = "time" if recipe.export.push is None else "hash"
        for run in opened:
            export_steps.check_read(run.steps, run.path, trust=trust)
        export_steps.check_names(recipe.export.formats, first.steps)
        steps = export_steps.export_steps(
            recipe.export,
            export_steps.read_steps(first.steps),
            sequences=recipe.compose.sequences,
            others=[(run.recipe.compose.sequences, run.steps) for run in opened[1:]],
            mixture=mixture,
        )
        if recipe.export.push is not None and stale == "refuse":
            _check_destinations(recipe.export, steps, first.path)
        with pipeline.executor_for(recipe, work="export") as executor:
            run_all = partial(
                run_steps, run_dir=first.path, executor=executor, reporter=reporter
            )
            done: Artifacts = run_all(steps, known=first.steps)
            written = Exported(recipe, opened, done)
            if written.is_mix:
                _describe_mix(written, mixture)
            else:
                folders = {step.name: done[step.name].folder.name for step in steps}
                variant_records.add_steps(first.variant, folders)
                done = _with_statistics(first, done, run_all)
                written = Exported(recipe, opened, done)
            _place_data(written)
    push(written, stale=stale)
    return written


def _with_short_documents(
    runs: Sequence[str | Path], *, tokens: int | None, reporter: Reporter | None
) -> list[str | Path]:
    """Return runs, with each file of short documents replaced by a run made of it.

    The first run cannot be one.
    """
    document_files = [
        index for index, path in enumerate(runs) if index > 0 and Path(path).is_file()
    ]
    if tokens is not None and not document_files:
        raise RecipeError(
            where="--short-tokens",
            problem="it sets the row length of short documents, and no file of short "
            "documents is given",
            fix="add such a file after the run: nextlong export RUN short.jsonl",
        )
    runs = list(runs)
    for index in document_files:
        recipe = _short_recipe(Run(runs[0]), Path(runs[index]), tokens=tokens)
        runs[index] = run(recipe, reporter=reporter).runs[0].path
    return runs


def _tell_repeated(runs: Sequence[Run], reporter: Reporter | None) -> None:
    """Tell which runs of a mix repeat each other's text."""
    corpora = [run.steps["ingest"].manifest["fingerprint"] for run in runs]
    alike = [
        str(run)
        for run, corpus in zip(runs, corpora, strict=True)
        if corpora.count(corpus) > 1
    ]
    if reporter is not None and alike:
        reporter.tell(
            f"{', '.join(alike)} were made from the same documents, so the mix repeats "
            "text; to avoid this, mix runs of other documents"
        )


def _check_destinations(export: Export, steps: Sequence[Step], run_dir: Path) -> None:
    """Raise ExportError if files of another export are where a new one is published."""
    steps_by_name = {step.name: step for step in steps}
    for name in export.formats:
        fingerprints = {}
        is_finished = True
        for split in export_steps.splits_of(export):
            step = steps_by_name[export_steps.step_name(name, split)]
            fingerprints[split] = step.fingerprint
            is_finished = is_finished and find_done(step, run_dir) is not None
        if not is_finished:
            check_destination(_destination(export, name), fingerprints)


def _short_recipe(first: Run, documents: Path, *, tokens: int | None) -> Recipe:
    """Return the recipe of the plain run of some short documents.

    Raises RecipeError for what no recipe allows.
    """
    kept: dict[str, bool | set[str]] = {
        "tokenizer": {"bos", "eos", "engine"},
        "export": {"formats"},
        "seed": True,
        "workers": True,
        "executor": True,
    }
    data = first.recipe.model_dump(mode="json", include=kept)
    # The same documents get the same run beside the first one, so that it is reused.
    name = re.sub(r"[^\w.-]+", "-", documents.name)
    data["run_dir"] = str(first.path.with_name(f"{first.path.name}-short-{name}"))
    data["ingest"] = {"sources": [{"path": str(documents)}]}
    target_tokens = tokens or min(_MAX_SHORT_TOKENS, first.recipe.compose.target_tokens)
    data["compose"] = {
        "method": "standard",
        "sequences": "all",
        "target_tokens": target_tokens,
    }
    tokenizer = TokenizerFiles.of(first.steps).tokenizer
    data["tokenizer"]["source"] = str(tokenizer.absolute())
    return Recipe.from_dict(data, origin=f"short documents of {documents}")


def _recipe(run: Run, formats: Sequence[str], overrides: Sequence[str]) -> Recipe:
    """Return the run's recipe with other exports and no `export.push`.

    Raises RecipeError that names the wrong options.
    """
    options = {}
    if formats:
        listed = shlex.quote(",".join(formats))
        options[f"--to {listed}"] = f"export.formats={json.dumps(list(formats))}"
    for override in overrides:
        _check_override(override)
        options[f"--set {shlex.quote(override)}"] = override
    try:
        recipe = _recipe_with(run, list(options.values()))
    except RecipeError as error:
        raise _of_options(error, run, options) from None
    if recipe.sequence_tokens != run.recipe.sequence_tokens:
        raise _other_length(recipe, run)
    return recipe


def _check_override(override: str) -> None:
    """Raise RecipeError for an override of another section than `export`."""
    key, equals, _ = override.partition("=")
    if not equals:
        raise RecipeError(
            where=f"--set {override!r}",
            problem="it is not KEY=VALUE",
            fix="write --set export.pack=524288",
        )
    if key.split(".")[0] not in ("export", "workers"):
        raise RecipeError(
            where=f"--set {override}",
            problem="it changes more than the export",
            fix=(
                f"use `nextlong run RECIPE --set {override}`, which reuses every step "
                "that the key does not affect"
            ),
        )


def _recipe_with(run: Run, settings: Sequence[str]) -> Recipe:
    """Return the run's recipe with some settings.

    Keys that they make useless are left out.
    """
    # Publish only where this export is asked to, not where the run's recipe did.
    settings = ["export.push=null", *settings]
    data = merge(run.recipe.model_dump(mode="json"), settings)
    set_keys = {setting.partition("=")[0] for setting in settings}
    if isinstance(data["export"], dict):
        for key in unused_keys(data["export"]):
            if f"export.{key}" not in set_keys:
                del data["export"][key]
    return Recipe.from_dict(data, origin=str(run.record))


def _of_options(
    error: RecipeError, run: Run, options: Mapping[str, str]
) -> RecipeError:
    """Return an error of a recipe with the options that caused it in its place.

    They are those without each of which the recipe would be valid.
    """
    wrong = []
    for option in options:
        others = [setting for name, setting in options.items() if name != option]
        with suppress(RecipeError):
            _recipe_with(run, others)
            wrong.append(option)
    named = " ".join(wrong or options)
    if named in str(error):
        return error
    key = error.where.removeprefix(str(run.record)).removeprefix(": ")
    return type(error)(
        where=f"{named}: {key}" if key else named,
        value=error.value,
        problem=error.problem,
        fix=error.fix,
    )


def _other_length(recipe: Recipe, run: Run) -> RunError:
    """Return the error for formats that need sequences of another length."""
    formats = ",".join(recipe.export.formats)
    extra = f" + {recipe.export.extra_tokens}" if recipe.export.extra_tokens else ""
    return RunError(
        where=formats,
        problem=(
            f"it needs sequences of compose.target_tokens{extra} = "
            f"{recipe.sequence_tokens:,} tokens, but those of {run} have "
            f"{run.recipe.sequence_tokens:,}"
        ),
        fix=(
            f"use `nextlong run RECIPE --set export.formats=[{formats}]`, which reuses "
            "vectors and candidates and composes again"
        ),
    )


def _check(recipe: Recipe, runs: Sequence[Run], stale: _Stale) -> None:
    """Raise a user's error for what cannot work, before anything is written."""
    export = recipe.export
    if stale == "replace" and export.push is None:
        raise RecipeError(
            where="--replace",
            problem="it needs --into, the destination whose files it replaces",
            fix="add --into DIR-or-URL",
        )
    if export.push is not None:
        destination = f"export.push={export.push!r}"
        check_kept(export.push, where=destination, error=ExportError)
    for run in runs:
        tokens = run.recipe.sequence_tokens
        if export.pack is not None and export.pack < tokens:
            raise RecipeError(
                where="export.pack",
                value=export.pack,
                problem=(
                    f"is less than the length of a sequence of {run}, {tokens} tokens"
                ),
                fix=f"raise it to {tokens} or a multiple, which needs no padding",
            )
    if export.validation and sum(map(len, runs)) < 2:
        raise RecipeError(
            where="export.validation",
            value=f"{export.validation:g}",
            problem="needs at least two sequences, and there is one",
            fix="make more sequences, or set it to 0",
        )
    if export.megatron_eod is not None:
        special_id(
            TokenizerFiles.of(runs[0].steps).tokenizer,
            export.megatron_eod,
            key="export.megatron_eod",
        )


def _describe_mix(written: Exported, mixture: Mixture) -> None:
    """Record beside the rows of a mix its runs.

    With how many sequences and tokens each run, and each component, gives to each
    split.
    """
    runs = []
    for number, run in enumerate(written.runs):
        taken = {}
        for name, split in written.rows.splits.items():
            # One run alone is not counted.
            sequences, tokens = split.sequences, split.tokens
            if split.of_runs:
                sequences, tokens = split.of_runs[number]
            taken[name] = {"sequences": sequences, "tokens": tokens}
        runs.append(
            {
                "run": f"{run.path.resolve()}@{run.variant.name}",
                "steps": fingerprints_of(run),
                "sequences": len(run),
                "taken": taken,
            }
        )
    described: Json = {
        "proportions": list(mixture.weights) or None,
        "by": mixture.by,
        "runs": runs,
    }
    if not mixture.is_of_runs:
        described["mixture"] = asdict(mixture)
        described["components"] = {
            name: split.of_components for name, split in written.rows.splits.items()
        }
    folder = written.done["rows"].folder
    with store.explained(folder):
        store.write_json(folder / "mix.json", described)


def _place_data(written: Exported) -> None:
    """Put the exports with their cards into the run's `data/`."""
    folder = written.folder
    for name in written.recipe.export.formats:
        files = written.files(name)
        texts = {data_folder.CARD: card.of_format(written, name)}
        texts |= written.split_files(name)
        own = []
        for file_name, text in texts.items():
            content = text.encode()
            own.append(
                ExportFile(
                    folder / name / file_name,
                    file_name,
                    len(content),
                    xxh3_128_hexdigest(content),
                )
            )
        delivered = card.delivered_record(written, name, [*own, *files])
        data_folder.place(folder / name, files, texts=texts, delivered=delivered)
    path = folder / data_folder.CARD
    text = card.of_data(written)
    with store.explained(path):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            store.write_file(path, text)
    card.write_index(written.runs[0].path)


def push(written: Exported, *, stale: _Stale = "refuse") -> None:
    """Copy the exports from `data/` to `export.push`, if it is set.

    The card goes first, the record last. Raises ExportError.
    """
    export = written.recipe.export
    if export.push is None:
        return
    for name in export.formats:
        own = []
        for file_name in (data_folder.CARD, *written.split_files(name), DELIVERED):
            path = written.folder / name / file_name
            hashed = store.hash_file(path)
            own.append(ExportFile(path, file_name, path.stat().st_size, hashed))
        *texts, delivered = own
        files = [*texts, *written.files(name), delivered]
        publish(files, _destination(export, name), others=stale)
    if len(export.formats) > 1:
        publish_card(card.of_formats(written), export.push)


def _destination(export: Export, name: str) -> str:
    """Return the destination of the files of a format."""
    folder = str(export.push).rstrip("/")
    return f"{folder}/{name}" if len(export.formats) > 1 else folder
