"""The command `nextlong train`: write, plan or run a training recipe, or convert it for another trainer."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nextlong.cli.common import Commands, add_json, add_set, check_installed, console, print_json, say
from nextlong.errors import NextlongError
from nextlong.text import why_no_model

if TYPE_CHECKING:
    from nextlong.train.recipe import TrainRecipe


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    train = commands.add_parser(
        "train",
        help="Train a model on the sequences of finished runs",
        usage="nextlong train RECIPE [--engine NAME] [--dry-run | --emit TRAINER DIR] [--set KEY=VALUE]…\n"
        "       nextlong train init RECIPE --data RUN [--model PATH] [--preset NAME] [--force]",
    )
    train.add_argument("words", nargs="+", metavar="RECIPE", help="a training recipe; or: init RECIPE")
    add_set(train, example="training.steps=50")
    train.add_argument(
        "--engine",
        choices=("nextlong", "torchtitan", "trl"),
        help="nextlong: one device; torchtitan: several (the default under torchrun, or if hardware.count is above 1); trl: "
        "fine-tuning on data.chat by TRL's SFTTrainer",
    )
    instead = train.add_mutually_exclusive_group()
    instead.add_argument(
        "--dry-run", action="store_true", help="print parameters, memory, FLOPs and hours without training"
    )
    instead.add_argument(
        "--emit",
        nargs=2,
        metavar=("TRAINER", "DIR"),
        help="write the config, data set and launch script of axolotl, megatron, olmo, prolong or trl",
    )
    add_json(train)
    init = train.add_argument_group("init")
    init.add_argument("--data", action="append", default=[], metavar="RUN", help="a run directory; repeat it for a mix")
    init.add_argument("--chat", metavar="FILE", help="conversations instead of --data, for paper-sft")
    init.add_argument("--model", metavar="PATH", help="a model folder or hub name, as for from_pretrained")
    init.add_argument(
        "--preset",
        metavar="NAME",
        help="paper-128k, paper-512k, paper-sft, authors-512k or tiny (a model from scratch)",
    )
    init.add_argument("--out", metavar="DIR", help="output directory of checkpoints (default: beside the recipe)")
    init.add_argument("--force", action="store_true", help="overwrite an existing recipe")
    train.set_defaults(command=_train)


def _train(args: argparse.Namespace) -> None:
    if args.words[0] == "init" and len(args.words) == 2:
        _init(args, Path(args.words[1]))
        return
    if len(args.words) > 1:
        raise NextlongError(
            f"nextlong train takes one recipe, not {' '.join(args.words)!r}; or: nextlong train init RECIPE …"
        )
    given = [f"--{name}" for name in ("data", "chat", "model", "preset", "out", "force") if getattr(args, name)]
    if given:
        raise NextlongError(
            f"{', '.join(given)} belongs to `nextlong train init`; a recipe is changed by --set KEY=VALUE"
        )
    from nextlong.train.recipe import TrainRecipe

    recipe = TrainRecipe.load(args.words[0], overrides=args.overrides)
    if args.emit:
        from nextlong.train.emit import emit

        emit(recipe, args.emit[0], Path(args.emit[1]), console(stderr=args.json))
        if args.json:
            print_json({"trainer": args.emit[0], "folder": args.emit[1]})
        return
    check_installed("training", ("torch", "transformers"), extra="train")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if args.dry_run:
        from nextlong.train import forecast

        made = forecast.forecast(recipe)
        if args.json:
            print_json(made.as_json())
        else:
            forecast.show(made, console())
        return
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 or recipe.hardware.count > 1
    engine = args.engine or ("torchtitan" if several else "nextlong")
    if engine == "torchtitan":
        from nextlong.train.titan.launch import train
    elif engine == "trl":
        from nextlong.train.sft import train
    else:
        from nextlong.train.loop import train

    final = train(recipe, console(stderr=args.json))
    if args.json and os.environ.get("RANK", "0") == "0":
        print_json({"model": str(final), "steps": recipe.training.steps})


def _init(args: argparse.Namespace, path: Path) -> None:
    from nextlong.engine import store
    from nextlong.train import presets

    if args.dry_run or args.emit:
        option = "--dry-run" if args.dry_run else f"--emit {' '.join(args.emit)}"
        raise NextlongError(f"init only writes the recipe; remove {option}, then run nextlong train {path} {option}")
    if path.exists() and not args.force:
        raise NextlongError(f"{path} exists; choose another name, or add --force to overwrite it")
    if args.data and args.chat:
        raise NextlongError("--data and --chat name two kinds of rows; remove one")
    if files := [run for run in args.data or () if Path(run).is_file()]:
        raise NextlongError(f"--data {files[0]} is a file, not a run; conversations are given as --chat {files[0]}")
    data = {"chat": _absolute(args.chat)} if args.chat else {"runs": [_absolute(run) for run in args.data]}
    if args.model and (why := why_no_model(args.model)):
        raise NextlongError(f"--model {args.model} {why}")
    sources = presets.preset(args.preset) if args.preset else {}
    recipe = presets.recipe_from(
        args.preset,
        out=_absolute(args.out or str(path.with_suffix(""))),
        data=data,
        # A name that is not a path here is one on the Hub.
        model=_absolute(args.model) if args.model and Path(args.model).expanduser().exists() else args.model,
        overrides=tuple(args.overrides),
    )
    recipe, changed = _with_whole_rows(recipe, args.overrides)
    heading = f"A training recipe of nextlong{f', preset {args.preset}' if args.preset else ''}.\n"
    heading += f"`nextlong train {path} --dry-run` estimates its cost, `nextlong train {path}` runs it."
    with store.explained(path):
        path.write_text(presets.commented_yaml(recipe, sources=sources, heading=heading), encoding="utf-8")
    if args.json:
        print_json({"recipe": str(path), "out": recipe.out})
        return
    if args.model and not Path(args.model).expanduser().exists():
        say(f"model.path: {args.model} is not a local folder; looking for it on the Hugging Face hub")
    if changed:
        say(changed)
    say(f"wrote {path}; next: nextlong train {path} --dry-run")


def _with_whole_rows(recipe: TrainRecipe, overrides: Sequence[str]) -> tuple[TrainRecipe, str]:
    """Return the recipe with steps of whole rows of its runs, and what was changed for that, in words; the user's own stay."""
    from nextlong.runs.run import Run
    from nextlong.train.recipe import nearest_multiple

    longest = max((Run(run).recipe.sequence_tokens for run in recipe.data.runs), default=None)
    row_tokens, given = recipe.data.pack or longest, recipe.training.tokens_per_step
    is_own = any(override.startswith(("training.tokens_per_step=", "training=")) for override in overrides)
    if row_tokens is None or given % row_tokens == 0 or is_own:
        return recipe, ""
    whole = nearest_multiple(given, row_tokens=row_tokens)
    training = recipe.training.model_copy(update={"tokens_per_step": whole})
    changed = f"training.tokens_per_step: {whole:,}, whole rows of {row_tokens:,} tokens, in place of {given:,}"
    return recipe.model_copy(update={"training": training}), changed


def _absolute(path: str) -> str:
    return os.path.normpath(Path(path).expanduser().absolute())
