"""The command `nextlong train`: write, plan or run a training recipe, or convert it for another trainer."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from nextlong.cli.common import check_installed, console, print_json, say, write
from nextlong.errors import NextlongError
from nextlong.runs.run import Run
from nextlong.text import why_no_model
from nextlong.train.recipe import TrainRecipe, commented_yaml, nearest_multiple, preset, recipe_from


def train(args: argparse.Namespace) -> None:
    """Write, plan or run a training recipe."""
    if args.words[0] == "init" and len(args.words) == 2:
        _init(args, Path(args.words[1]))
        return
    if len(args.words) > 1:
        raise NextlongError(f"train takes one recipe, not {' '.join(args.words)!r}; or: nextlong train init RECIPE …")
    given = [f"--{name}" for name in ("data", "chat", "model", "preset", "out", "force") if getattr(args, name)]
    if given:
        raise NextlongError(f"{', '.join(given)} belongs to `nextlong train init`; change a recipe by --set KEY=VALUE")
    recipe, shown = TrainRecipe.load(args.words[0], overrides=args.overrides), console(stderr=args.json)
    if args.emit:
        from nextlong.train.emit import emit

        emit(recipe, args.emit[0], Path(args.emit[1]), shown)
        if args.json:
            print_json({"trainer": args.emit[0], "folder": args.emit[1]})
        return
    check_installed("training", "torch", "transformers", extra="train")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if args.dry_run:
        from nextlong.train import forecast

        made = forecast.forecast(recipe)
        if args.json:
            print_json(made.as_json())
        else:
            forecast.show(made, shown)
        return
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 or recipe.hardware.count > 1
    engine = args.engine or ("torchtitan" if several else "nextlong")
    if engine == "torchtitan":
        from nextlong.train.titan.launch import train
    elif engine == "trl":
        from nextlong.train.sft import train
    else:
        from nextlong.train.loop import train

    final = train(recipe, shown)
    if args.json and os.environ.get("RANK", "0") == "0":
        print_json({"model": str(final), "steps": recipe.training.steps})


def _init(args: argparse.Namespace, path: Path) -> None:
    if args.dry_run or args.emit:
        option = "--dry-run" if args.dry_run else f"--emit {' '.join(args.emit)}"
        raise NextlongError(f"init only writes the recipe; remove {option}, then run nextlong train {path} {option}")
    if args.data and args.chat:
        raise NextlongError("--data and --chat name two kinds of rows; remove one")
    if files := [run for run in args.data if Path(run).is_file()]:
        raise NextlongError(f"--data {files[0]} is a file, not a run; conversations are given as --chat {files[0]}")
    keys, model, overrides = preset(args.preset) if args.preset else {}, args.model, tuple(args.overrides)
    if not model and "model.scratch" not in keys and not any(word.startswith("model") for word in overrides):
        raise NextlongError(
            "--model is missing: name the model to train, for example --model meta-llama/Meta-Llama-3-8B or a folder "
            "with config.json and weights; or use --preset tiny, a small model from scratch"
        )
    if model and (why := why_no_model(model)):
        raise NextlongError(f"--model {model} {why}")
    is_local = model is not None and Path(model).expanduser().exists()  # else the name of a model on the Hub
    recipe = recipe_from(
        args.preset,
        out=_absolute(args.out or str(path.with_suffix(""))),
        data={"chat": _absolute(args.chat)} if args.chat else {"runs": [_absolute(run) for run in args.data]},
        model=_absolute(model) if is_local else model,
        overrides=overrides,
    )
    # Steps of whole rows, unless the user has given their tokens.
    longest, changed = max((Run(run).recipe.sequence_tokens for run in recipe.data.runs), default=None), ""
    row_tokens, given = recipe.data.pack or longest, recipe.training.tokens_per_step
    is_own = any(override.startswith(("training.tokens_per_step=", "training=")) for override in overrides)
    if row_tokens is not None and given % row_tokens and not is_own:
        whole = nearest_multiple(given, row_tokens=row_tokens)
        training = recipe.training.model_copy(update={"tokens_per_step": whole})
        recipe = recipe.model_copy(update={"training": training})
        changed = f"training.tokens_per_step: {whole:,}, whole rows of {row_tokens:,} tokens, in place of {given:,}"
    heading = f"A training recipe of nextlong{f', preset {args.preset}' if args.preset else ''}.\n"
    heading += f"`nextlong train {path} --dry-run` estimates its cost, `nextlong train {path}` runs it."
    write(path, commented_yaml(recipe, sources=keys, heading=heading), overwrite=args.force)
    if args.json:
        print_json({"recipe": str(path), "out": recipe.out})
        return
    if model and not is_local:
        say(f"model.path: {model} is not a local folder; looking for it on the Hugging Face hub")
    if changed:
        say(changed)
    say(f"wrote {path}; next: nextlong train {path} --dry-run")


def _absolute(path: str) -> str:
    return os.path.normpath(Path(path).expanduser().absolute())
