"""The commands that train and measure models: train and evaluate."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from nextlong.cli.common import absolute, check_installed, console, present, write
from nextlong.errors import EvaluateError, NextlongError
from nextlong.recipe.recipe import commented_sections
from nextlong.runs.run import Run
from nextlong.text import why_no_model
from nextlong.train.recipe import (
    TrainRecipe,
    nearest_multiple,
    preset,
    recipe_from,
    row_warning,
)

if TYPE_CHECKING:
    from nextlong.evaluate.prompts import ModelOptions


def train(args: argparse.Namespace) -> None:
    if args.words[0] == "init" and len(args.words) == 2:
        _init(args, Path(args.words[1]))
        return
    if len(args.words) > 1:
        raise NextlongError(
            f"train takes one recipe, not {' '.join(args.words)!r}; or: nextlong train init RECIPE …"
        )
    given = [
        f"--{name}"
        for name in ("data", "chat", "model", "preset", "out", "force")
        if getattr(args, name)
    ]
    if given:
        cure = "change a recipe with --set KEY=VALUE"
        raise NextlongError(
            f"{', '.join(given)} belongs to `nextlong train init`; {cure}"
        )
    recipe, shown = (
        TrainRecipe.load(args.words[0], overrides=args.overrides),
        console(stderr=args.json),
    )
    if args.emit:
        from nextlong.train.emit import emit

        emit(recipe, args.emit[0], Path(args.emit[1]), shown)
        present(args, {"trainer": args.emit[0], "folder": args.emit[1]})
        return
    check_installed("training", "torch", "transformers", extra="train")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if args.dry_run:
        from nextlong.train import forecast

        with shown.status("timing one and two layers of the model"):
            planned = forecast.forecast(recipe)
        present(args, planned.as_json, partial(forecast.show, planned))
        return
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 or recipe.hardware.count > 1
    engine = args.engine or ("torchtitan" if several else "nextlong")
    if engine == "torchtitan":
        from nextlong.train.titan.launch import train
    elif engine == "trl":
        from nextlong.train.sft import fine_tune as train
    else:
        from nextlong.train.loop import train

    final = train(recipe, shown)
    if os.environ.get("RANK", "0") == "0":
        present(args, {"model": str(final), "steps": recipe.training.steps})


def _init(args: argparse.Namespace, path: Path) -> None:
    if args.dry_run or args.emit:
        option = "--dry-run" if not args.emit else f"--emit {' '.join(args.emit)}"
        raise NextlongError(
            f"init only writes the recipe; remove {option}, then run nextlong train {path} {option}"
        )
    if args.data and args.chat:
        raise NextlongError("--data and --chat exclude each other; remove one")
    if files := [run for run in args.data if Path(run).is_file()]:
        raise NextlongError(
            f"--data {files[0]} is a file, not a run; for conversations use --chat {files[0]}"
        )
    keys, model, overrides = (
        preset(args.preset) if args.preset else {},
        args.model,
        tuple(args.overrides),
    )
    if (
        not model
        and "model.scratch" not in keys
        and not any(word.startswith("model") for word in overrides)
    ):
        example = "for example --model meta-llama/Meta-Llama-3-8B or a folder with config.json and weights"
        other = "or use --preset tiny, a small model from scratch"
        raise NextlongError(
            f"--model is missing: name the model to train, {example}; {other}"
        )
    if model and (why := why_no_model(model)):
        raise NextlongError(f"--model {model} {why}")
    is_local = (
        model is not None and Path(model).expanduser().exists()
    )  # else the name of a model on the Hub
    recipe = recipe_from(
        args.preset,
        out=absolute(args.out or str(path.with_suffix(""))),
        data={"chat": absolute(args.chat)}
        if args.chat
        else {"runs": [absolute(run) for run in args.data]},
        model=absolute(model) if is_local else model,
        overrides=overrides,
    )
    # Steps of whole rows, unless the user has given their tokens.
    longest, notes = (
        max(
            (Run(run).recipe.sequence_tokens for run in recipe.data.runs), default=None
        ),
        [],
    )
    row_tokens, given = recipe.data.pack or longest, recipe.training.tokens_per_step
    is_own = any(
        override.startswith(("training.tokens_per_step=", "training="))
        for override in overrides
    )
    if row_tokens is not None and given % row_tokens and not is_own:
        whole = nearest_multiple(given, row_tokens=row_tokens)
        recipe = recipe.model_copy(
            update={
                "training": recipe.training.model_copy(
                    update={"tokens_per_step": whole}
                )
            }
        )
        instead = f"{whole:,} instead of {given:,}, a multiple of the rows' {row_tokens:,} tokens"
        notes = [f"training.tokens_per_step: {instead}"]
    if args.preset and row_tokens is not None:
        notes += row_warning(args.preset, row_tokens)
    if model and not is_local:
        notes.append(
            f"model.path: {model} is not a local folder, so it will be loaded from the Hugging Face hub"
        )
    heading = f"A training recipe of nextlong{f', preset {args.preset}' if args.preset else ''}.\n"
    heading += f"`nextlong train {path} --dry-run` estimates its cost, `nextlong train {path}` runs it."
    _write(
        args,
        path,
        commented_sections(recipe, sources=keys, heading=heading),
        out=recipe.out,
        notes=notes,
    )


def _write(
    args: argparse.Namespace,
    path: Path,
    text: str,
    *,
    out: str,
    notes: Sequence[str] = (),
) -> None:
    """Write a recipe, and print notes on it and the next command."""
    write(path, text, overwrite=args.force)
    messages = [
        *notes,
        f"wrote {path}; next: nextlong {args.name_of_command} {path} --dry-run",
    ]
    present(args, {"recipe": str(path), "out": out}, "\n".join(messages))


def evaluate_command(args: argparse.Namespace) -> None:
    if args.model not in ("report", "judge", "import", "data") and args.files:
        raise EvaluateError(
            f"unexpected argument {args.files[0]} after the model; evaluate one model at a time"
        )
    for name in (
        "samples",
        "chunk_tokens",
        "batch_tokens",
        "concurrency",
        "max_attempts",
        "context",
        "gpus",
    ):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise EvaluateError(
                f"--{name.replace('_', '-')} {value} is below 1; give a positive number"
            )
    shown = console(stderr=args.json)
    if args.model == "report":
        from nextlong.evaluate import report

        results = report.read(args.files, protocols=args.protocols)
        if args.output or args.figures:
            report.write(
                results, outputs=args.output, figures=args.figures, console=shown
            )
        is_written = args.output or args.figures is not None
        present(
            args,
            partial(report.as_json, results),
            None if is_written else partial(report.show, results),
        )
    elif args.model == "judge":
        from nextlong.evaluate import judge

        model = _model(args, args.judge) if args.judge and args.url else None
        judged = judge.run(args.files, model=model, console=shown)
        present(args, [{"file": str(path), "score": score} for path, score in judged])
    elif args.model == "import":
        from nextlong.evaluate import report
        from nextlong.evaluate.import_helmet import import_helmet

        imported = import_helmet(
            args.files, out=args.out, label=args.label, console=shown
        )
        present(args, partial(report.as_json, [imported]))
    elif args.model == "data":
        from nextlong.evaluate.data import download
        from nextlong.evaluate.registry import chosen

        suites = [
            suite.strip()
            for listed in args.files
            for suite in str(listed).split(",")
            if suite.strip()
        ]
        if not suites or args.out is None:
            example = (
                "nextlong evaluate data SUITE… --out FOLDER, then use --data FOLDER"
            )
            raise EvaluateError(f"data needs suites and --out: {example}")
        listed = [
            files
            for task in chosen(suites, [])
            for files in (task.files, *task.files_at.values())
        ]
        present(
            args,
            download(list(dict.fromkeys(chain.from_iterable(listed))), args.out, shown),
        )
    else:
        _measure(args, shown)


def _measure(args: argparse.Namespace, shown: Console) -> None:
    from nextlong.evaluate import dry_run, report, results, run
    from nextlong.evaluate.data import DataFiles
    from nextlong.evaluate.progress import TaskProgress
    from nextlong.evaluate.registry import chosen
    from nextlong.evaluate.settings import EvaluationSettings, check
    from nextlong.evaluate.task import parse_lengths

    similarity = None
    if args.trained_on is not None:
        from nextlong.runs.statistics.measure import measure

        similarity = measure(Run(args.trained_on)).similarity
    settings = EvaluationSettings(
        tasks=chosen(args.suite or ([] if args.tasks else ["ruler"]), args.tasks),
        lengths=parse_lengths(args.lengths or "8k..128k"),
        names_lengths=args.lengths is not None,
        out=args.out or Path(f"evaluation-{Path(args.model.rstrip('/')).name}"),
        data=DataFiles(args.data),
        samples=args.samples,
        seed=args.seed,
        label=args.label,
        run=args.run,
        negatives_cosine=None if similarity is None else similarity.cosine.p50,
        model=_model(args, args.model),
    )
    if args.dry_run:
        planned, context = dry_run.planned(settings)
        present(args, planned, partial(dry_run.show, planned))
        check(settings, context=context)
        return
    try:
        measured = run.evaluate(
            lambda: run.opened(settings), settings, progress=TaskProgress(shown)
        )
    except run.IncompleteError:
        present(args, lambda: report.as_json([results.read_results(settings.out)]))
        raise
    present(args, partial(report.as_json, [measured]), partial(report.show, [measured]))


def _model(args: argparse.Namespace, name: str) -> ModelOptions:
    """Return the options of a model: its fields are the options of the command."""
    from nextlong.evaluate.prompts import ModelOptions

    given = {
        field.name: getattr(args, field.name)
        for field in fields(ModelOptions)
        if hasattr(args, field.name)
    }
    return ModelOptions(**{**given, "name": name})
