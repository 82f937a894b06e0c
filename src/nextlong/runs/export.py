"""Exports: write finished runs in further formats, alone or mixed; give each export its card; publish it.

In:  finished run directories, formats, and the recipe's `export` keys.
Out: one folder per format and split in the first run's directory, each with a data card; a copy at a destination.
Of the corpus only the chunks that spans refer to are read.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from nextlong.engine.step import Artifact, Artifacts
from nextlong.errors import ExportError, RecipeError, RunError
from nextlong.export import steps as export_steps
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

_SHORT_TOKENS: Final = 8192  # of a row of short documents, at most: the context that Llama 3 was pretrained on
_Changed: TypeAlias = Literal["refuse", "accept"]


def run(
    recipe: Recipe,
    *,
    reporter: Reporter | None = None,
    changed_inputs: _Changed = "refuse",
) -> Exported:
    """Run or resume a recipe, and publish its exports. Raises NextlongError."""
    run_dir = recipe.run_path
    if recipe.export.push is not None and variant_names.name_for(
        recipe, run_dir
    ) not in variant_records.names(run_dir):
        for name in recipe.export.formats:
            check_destination(_destination(recipe.export, name))
    written = make(recipe, reporter=reporter, changed_inputs=changed_inputs)
    push(written)
    return written


def make(
    recipe: Recipe,
    *,
    reporter: Reporter | None = None,
    changed_inputs: _Changed = "refuse",
) -> Exported:
    """Run a recipe, measure its variant, and put its exports into `data/`; nothing is published. Raises NextlongError."""
    with pipeline.session(
        recipe, reporter=reporter, changed_inputs=changed_inputs
    ) as session:
        done, variant = session.make_variant()
        data_folder.settle(variant.run_dir)
        made = Run(
            variant.run_dir
            if variant_records.current(variant.run_dir) == variant.name
            else variant.named
        )
        written = Exported(
            recipe, [made], _with_statistics(made, done, session.run_steps)
        )
        _place_data(written)
    return written


def _with_statistics(
    run: Run, done: Artifacts, run_all: Callable[..., dict[str, Artifact]]
) -> Artifacts:
    """Measure a run and return the finished steps with that one, which takes the place of an earlier version's."""
    done = run_all([statistics_step(run)], known=done)
    variant_records.add_steps(run.variant, {STATISTICS: done[STATISTICS].folder.name})
    run.steps[STATISTICS] = done[STATISTICS]
    return done


def export(
    runs: Sequence[str | Path],
    *,
    formats: Sequence[str] = (),
    overrides: Sequence[str] = (),
    mix: Sequence[float] = (),
    by: Literal["sequences", "tokens"] = "sequences",
    stale: Literal["refuse", "replace"] = "refuse",
    short_tokens: int | None = None,
    reporter: Reporter | None = None,
) -> Exported:
    """Write the sequences of finished runs in `formats` (default: those of the first run's recipe).

    A run is a run directory, or one of its variants, `RUN@NAME`; after the first also a file of short documents, which are
    made into rows of `short_tokens` tokens (default: 8,192, or the first run's length if that is less). `overrides` are
    `export.key=value`. Several runs are mixed in the proportions `mix`, counted in sequences or tokens (default: all of
    each), and the files are written to the first run's directory. Exports that exist already are reused; `stale` says what
    to do with files of another export at `export.push`. In a script, call it under `if __name__ == "__main__":`. Raises
    NextlongError for mistakes of the user.
    """
    documents, runs = (
        [place for place, one in enumerate(runs) if place and Path(one).is_file()],
        list(runs),
    )
    if short_tokens is not None and not documents:
        raise RecipeError(
            "--short-tokens without a file of short documents; name one after the first run"
        )
    for place in documents:
        recipe = _short_recipe(Run(runs[0]), Path(runs[place]), tokens=short_tokens)
        runs[place] = run(recipe, reporter=reporter).runs[0].path
    mixed = [Run(run) for run in runs]
    if mix:
        mix = proportions_of(mix, mixed)
    check_mix(mixed, mix, by=by)
    with store.locked(Run(runs[0]).path):
        opened = [
            Run(run) for run in runs
        ]  # as they are now that no other process changes the first
        first = opened[0]
        recipe = _recipe(first, formats, overrides)
        _check(recipe, opened, stale)
        corpora = [one.steps["ingest"].manifest["fingerprint"] for one in opened]
        alike = [
            str(one)
            for one, corpus in zip(opened, corpora, strict=True)
            if corpora.count(corpus) > 1
        ]
        if reporter is not None and alike:
            cure = "to avoid this, mix runs of other documents"
            reporter.tell(
                f"{', '.join(alike)} were made from the same documents, so the mix repeats text; {cure}"
            )
        for one in opened:
            export_steps.check_read(
                one.steps,
                one.path,
                trust="time" if recipe.export.push is None else "hash",
            )
        export_steps.check_names(recipe.export.formats, first.steps)
        others = [(one.recipe.compose.sequences, one.steps) for one in opened[1:]]
        read, sequences = export_steps.read_steps(first.steps), recipe.compose.sequences
        steps = export_steps.export_steps(
            recipe.export, read, sequences=sequences, others=others, mix=mix, by=by
        )
        by_name, splits = (
            {step.name: step for step in steps},
            export_steps.splits_of(recipe.export),
        )
        for name in (
            recipe.export.formats
            if recipe.export.push is not None and stale == "refuse"
            else ()
        ):
            made = {
                split: by_name[export_steps.step_name(name, split)] for split in splits
            }
            if not all(find_done(step, first.path) for step in made.values()):
                fingerprints = {split: step.fingerprint for split, step in made.items()}
                check_destination(_destination(recipe.export, name), fingerprints)
        with pipeline.executor_for(recipe, work="export") as executor:
            run_all = partial(
                run_steps, run_dir=first.path, executor=executor, reporter=reporter
            )
            done: Artifacts = run_all(steps, known=first.steps)
            if not others:
                variant_records.add_steps(
                    first.variant,
                    {step.name: done[step.name].folder.name for step in steps},
                )
                done = _with_statistics(first, done, run_all)
            written = Exported(recipe, opened, done)
            if others:
                _describe_mix(written, mix, by)
            _place_data(written)
    push(written, stale=stale)
    return written


def _short_recipe(first: Run, documents: Path, *, tokens: int | None) -> Recipe:
    """Return the recipe of the plain run of some short documents. Raises RecipeError for what no recipe allows."""
    like, name = first.recipe, re.sub(r"[^\w.-]+", "-", documents.name)
    target_tokens = tokens or min(_SHORT_TOKENS, like.compose.target_tokens)
    kept: dict[str, bool | set[str]] = {
        "tokenizer": {"bos", "eos", "engine"},
        "export": {"formats"},
    }
    kept |= dict.fromkeys(("seed", "workers", "executor"), True)
    plain = like.model_dump(mode="json", include=kept) | {
        "run_dir": str(first.path.with_name(f"{first.path.name}-short-{name}")),
        "ingest": {"sources": [{"path": str(documents)}]},
        "compose": {
            "method": "standard",
            "sequences": "all",
            "target_tokens": target_tokens,
        },
    }
    plain["tokenizer"]["source"] = str(
        TokenizerFiles.of(first.steps).tokenizer.absolute()
    )
    return Recipe.from_dict(plain, origin=f"short documents of {documents}")


def _recipe(run: Run, formats: Sequence[str], overrides: Sequence[str]) -> Recipe:
    """Return the run's recipe with other exports and no `export.push`. Raises RecipeError that names the wrong options."""
    for override in overrides:
        key, equals, _ = override.partition("=")
        if not equals:
            raise RecipeError(
                f"--set {override!r} is not KEY=VALUE; write --set export.pack=524288"
            )
        if key.split(".")[0] not in ("export", "workers"):
            cure = f"use `nextlong run RECIPE --set {override}`, which reuses every step that the key does not affect"
            raise RecipeError(f"--set {override} changes more than the export; {cure}")
    options = {f"--set {shlex.quote(override)}": override for override in overrides}
    if formats:
        options = {
            f"--to {shlex.quote(','.join(formats))}": f"export.formats={json.dumps(list(formats))}"
        } | options

    def made(without: str = "") -> Recipe:
        """Return the recipe with all options but one."""
        settings = [
            "export.push=null",
            *(option for name, option in options.items() if name != without),
        ]
        plain = merge(run.recipe.model_dump(mode="json"), settings)
        keys = {option.partition("=")[0] for option in settings}
        for key in (
            unused_keys(plain["export"]) if isinstance(plain["export"], dict) else ()
        ):
            if f"export.{key}" not in keys:
                del plain["export"][key]
        return Recipe.from_dict(plain, origin=str(run.record))

    try:
        recipe = made()
    except RecipeError as error:
        wrong = []  # each option without which the recipe would be valid
        for option in options:
            with suppress(RecipeError):
                made(without=option)
                wrong.append(option)
        named = " ".join(wrong or options)
        problem = str(error).replace(f"{run.record}: ", "")
        raise RecipeError(
            f"{named}: {problem}" if named not in problem else problem
        ) from None
    if recipe.sequence_tokens != run.recipe.sequence_tokens:
        named = ",".join(recipe.export.formats)
        extra = f" + {recipe.export.extra_tokens}" if recipe.export.extra_tokens else ""
        raise RunError(
            f"{named} needs sequences of compose.target_tokens{extra} = {recipe.sequence_tokens:,} tokens, but those of {run} "
            f"have {run.recipe.sequence_tokens:,}; use `nextlong run RECIPE --set export.formats=[{named}]`, "
            "which reuses vectors and candidates and composes again"
        )
    return recipe


def _check(recipe: Recipe, runs: Sequence[Run], stale: str) -> None:
    """Raise a user's error for what cannot work, before anything is written."""
    if stale == "replace" and recipe.export.push is None:
        raise RecipeError(
            "--replace needs --into, the destination whose files it replaces; add --into DIR-or-URL"
        )
    if recipe.export.push is not None:
        destination = f"export.push={recipe.export.push!r}"
        check_kept(recipe.export.push, where=destination, error=ExportError)
    for run in runs:
        if (
            recipe.export.pack is not None
            and recipe.export.pack < run.recipe.sequence_tokens
        ):
            raise RecipeError(
                f"export.pack={recipe.export.pack}: a row of that many tokens cannot hold a sequence of {run}, which has "
                f"{run.recipe.sequence_tokens}; raise it to {run.recipe.sequence_tokens} or a multiple, which needs no padding"
            )
    if recipe.export.validation and sum(map(len, runs)) < 2:
        needs = "needs two sequences or more, and there is one; make more"
        raise RecipeError(f"export.validation={recipe.export.validation:g} {needs}")
    if (eod := recipe.export.megatron_eod) is not None:
        special_id(
            TokenizerFiles.of(runs[0].steps).tokenizer,
            eod,
            key="export.megatron_eod",
        )


def _describe_mix(written: Exported, mix: Sequence[float], by: str) -> None:
    """Record beside the rows of a mix its runs, and how many sequences and tokens each gives to each split."""
    described = {
        "proportions": list(mix) or None,
        "by": by,
        "runs": [
            {
                "run": f"{run.path.resolve()}@{run.variant.name}",
                "steps": fingerprints_of(run),
                "sequences": len(run),
                "taken": {
                    name: dict(
                        zip(("sequences", "tokens"), split.of_runs[number], strict=True)
                    )
                    for name, split in written.rows.splits.items()
                },
            }
            for number, run in enumerate(written.runs)
        ],
    }
    with store.explained(folder := written.done["rows"].folder):
        store.write_json(folder / "mix.json", described)


def _place_data(written: Exported) -> None:
    """Put the exports with their cards into the run's `data/`."""
    folder = written.folder
    for name in written.recipe.export.formats:
        files = written.files(name)
        texts = {
            data_folder.CARD: card.of_format(written, name),
            **written.split_files(name),
        }
        own = []
        for file_name, text in texts.items():
            content = text.encode()
            hashed = xxh3_128_hexdigest(content)
            path = folder / name / file_name
            own.append(ExportFile(path, file_name, len(content), hashed))
        delivered = card.delivered_record(written, name, [*own, *files])
        data_folder.place(folder / name, files, texts=texts, delivered=delivered)
    text, path = card.of_data(written), folder / data_folder.CARD
    with store.explained(path):
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            store.write_file(path, text)
    card.write_index(written.runs[0].path)


def push(written: Exported, *, stale: Literal["refuse", "replace"] = "refuse") -> None:
    """Copy the exports from `data/` to `export.push`, if it is set: the card first, the record last. Raises ExportError."""
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
        publish(
            [*texts, *written.files(name), delivered],
            _destination(export, name),
            others=stale,
        )
    if len(export.formats) > 1:
        publish_card(card.of_formats(written), export.push)


def _destination(export: Export, name: str) -> str:
    """Return the destination of the files of a format."""
    folder = str(export.push).rstrip("/")
    return f"{folder}/{name}" if len(export.formats) > 1 else folder
