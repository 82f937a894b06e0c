"""The command that trains models on the sequences of finished runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from nextlong.cli.common import absolute, check_installed, console, present, write
from nextlong.errors import NextlongError
from nextlong.recipe.recipe import commented_sections
from nextlong.runs.run import Run
from nextlong.text import Json, why_no_model
from nextlong.train.recipe import (
    TrainRecipe,
    nearest_multiple,
    preset,
    recipe_from,
    row_warning,
)


def train(args: argparse.Namespace) -> None:
    if args.words[0] == "init" and len(args.words) == 2:
        _init(args, Path(args.words[1]))
        return
    _check_no_options_of_init(args)
    recipe = TrainRecipe.load(args.words[0], overrides=args.overrides)
    shown = console(stderr=args.json)
    if args.emit:
        from nextlong.train.emit import emit

        name, folder = args.emit
        emit(recipe, name, Path(folder), shown)
        present(args, {"trainer": name, "folder": folder})
        return
    check_installed("training", "torch", "transformers", extra="train")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if args.dry_run:
        from nextlong.train import forecast

        with shown.status("timing one and two layers of the model"):
            planned = forecast.forecast(recipe)
        present(args, planned.as_json, partial(forecast.show, planned))
        return
    train_model = _engine(args.engine, recipe)
    final = train_model(recipe, shown)
    if os.environ.get("RANK", "0") == "0":
        present(args, {"model": str(final), "steps": recipe.training.steps})


def _check_no_options_of_init(args: argparse.Namespace) -> None:
    """Raise NextlongError for what only `nextlong train init` takes."""
    if len(args.words) > 1:
        raise NextlongError(
            where="nextlong train",
            problem=f"it takes one recipe, not {' '.join(args.words)!r}",
            fix="or: nextlong train init RECIPE …",
        )
    options = ("data", "chat", "model", "preset", "out", "force")
    given = [f"--{name}" for name in options if getattr(args, name)]
    if given:
        raise NextlongError(
            where=", ".join(given),
            problem="it belongs to `nextlong train init`",
            fix="change a recipe with --set KEY=VALUE",
        )


def _engine(
    name: str | None, recipe: TrainRecipe
) -> Callable[[TrainRecipe, Console], Path]:
    """Return the training of an engine.

    By default, several devices are torchtitan's.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    has_several = processes > 1 or recipe.hardware.count > 1
    if name is None:
        name = "torchtitan" if has_several else "nextlong"
    if name == "torchtitan":
        from nextlong.train.titan import launch

        return launch.train
    if name == "trl":
        from nextlong.train import sft

        return sft.fine_tune
    from nextlong.train import loop

    return loop.train


def _init(args: argparse.Namespace, path: Path) -> None:
    """Write a training recipe, and print notes on it and the next command."""
    _check_init(args, path)
    keys = preset(args.preset) if args.preset else {}
    model = _model_of(args, has_scratch="model.scratch" in keys)
    # Else the name of a model on the Hub.
    is_local = model is not None and Path(model).expanduser().exists()
    data: Json = {"runs": [absolute(run) for run in args.data]}
    if args.chat:
        data = {"chat": absolute(args.chat)}
    recipe = recipe_from(
        args.preset,
        out=absolute(args.out or str(path.with_suffix(""))),
        data=data,
        model=absolute(model) if model is not None and is_local else model,
        overrides=tuple(args.overrides),
    )
    recipe, notes = _with_whole_rows(args, recipe)
    if model is not None and not is_local:
        notes.append(
            f"model.path: {model} is not a local folder, so it will be loaded from the "
            "Hugging Face hub"
        )
    named_preset = f", preset {args.preset}" if args.preset else ""
    heading = (
        f"A training recipe of nextlong{named_preset}.\n"
        f"`nextlong train {path} --dry-run` estimates its cost, "
        f"`nextlong train {path}` runs it."
    )
    text = commented_sections(recipe, sources=keys, heading=heading)
    write(path, text, overwrite=args.force)
    next_command = f"nextlong {args.name_of_command} {path} --dry-run"
    messages = [*notes, f"wrote {path}; next: {next_command}"]
    present(args, {"recipe": str(path), "out": recipe.out}, "\n".join(messages))


def _check_init(args: argparse.Namespace, path: Path) -> None:
    """Raise NextlongError for options that do not go with `init` or each other."""
    if args.dry_run or args.emit:
        option = "--dry-run"
        if args.emit:
            option = f"--emit {' '.join(args.emit)}"
        raise NextlongError(
            where=option,
            problem="init only writes the recipe",
            fix=f"remove it, then run nextlong train {path} {option}",
        )
    if args.data and args.chat:
        raise NextlongError(
            where="--chat",
            problem="--data and --chat exclude each other",
            fix="remove one",
        )
    files = [run for run in args.data if Path(run).is_file()]
    if files:
        raise NextlongError(
            where=f"--data {files[0]}",
            problem="it is a file, not a run",
            fix=f"for conversations use --chat {files[0]}",
        )


def _model_of(args: argparse.Namespace, *, has_scratch: bool) -> str | None:
    """Return the named model, if any. Raises NextlongError where one is needed."""
    model: str | None = args.model or None
    is_overridden = any(word.startswith("model") for word in args.overrides)
    if model is None and not has_scratch and not is_overridden:
        raise NextlongError(
            where="--model",
            problem="it is missing",
            fix="name the model to train, for example --model "
            "meta-llama/Meta-Llama-3-8B or a folder with config.json and weights; or "
            "use --preset tiny, a small model from scratch",
        )
    no_model = None if model is None else why_no_model(model)
    if no_model is not None:
        raise NextlongError(
            where=f"--model {model}",
            problem=f"it {no_model.problem}",
            fix=no_model.fix,
        )
    return model


def _with_whole_rows(
    args: argparse.Namespace, recipe: TrainRecipe
) -> tuple[TrainRecipe, list[str]]:
    """Return the recipe with steps of whole rows, and notes.

    The user's own tokens of a step are kept.
    """
    lengths = [Run(run).recipe.sequence_tokens for run in recipe.data.runs]
    row_tokens = recipe.data.pack or max(lengths, default=None)
    if row_tokens is None:
        return recipe, []
    notes = []
    tokens_per_step = recipe.training.tokens_per_step
    is_own = any(
        override.startswith(("training.tokens_per_step=", "training="))
        for override in args.overrides
    )
    if tokens_per_step % row_tokens and not is_own:
        whole = nearest_multiple(tokens_per_step, row_tokens=row_tokens)
        training = recipe.training.model_copy(update={"tokens_per_step": whole})
        recipe = recipe.model_copy(update={"training": training})
        notes.append(
            f"training.tokens_per_step: {whole:,} instead of {tokens_per_step:,}, a "
            f"multiple of the rows' {row_tokens:,} tokens"
        )
    if args.preset:
        notes += row_warning(args.preset, row_tokens)
    return recipe, notes
