"""The command `nextlong train`: write a training recipe, plan it, carry it out, or hand it over to another trainer."""

from __future__ import annotations

import argparse
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nextlong.cli.asked import add_json, print_json
from nextlong.engine import store
from nextlong.errors import NextlongError
from nextlong.model_names import why_no_model
from nextlong.report import tables
from nextlong.report.tables import PipeConsole as Console

if TYPE_CHECKING:
    from nextlong.train.recipe import TrainRecipe

_NEEDED = ("torch", "transformers")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    train = commands.add_parser(
        "train",
        help="train a model on the sequences of finished runs",
        usage="nextlong train RECIPE [--engine NAME] [--dry-run | --check-attention | --emit TRAINER DIR] [--set KEY=VALUE]…\n"
        "       nextlong train init RECIPE --data RUN [--model PATH] [--preset NAME] [--force]",
    )
    train.add_argument("words", nargs="+", metavar="RECIPE", help="a training recipe; or: init RECIPE")
    train.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="e.g. training.steps=50"
    )
    train.add_argument(
        "--engine",
        choices=("nextlong", "torchtitan", "trl"),
        help="nextlong: one device; torchtitan: several (the default under torchrun, or if hardware.count is above 1); trl: "
        "fine-tuning on data.chat by TRL's SFTTrainer",
    )
    instead = train.add_mutually_exclusive_group()
    instead.add_argument(
        "--dry-run", action="store_true", help="print parameters, memory, FLOPs and hours; train nothing"
    )
    instead.add_argument(
        "--check-attention",
        action="store_true",
        help="change a token of a document in a packed row, count which outputs of the others move (0); train nothing",
    )
    instead.add_argument(
        "--emit",
        nargs=2,
        metavar=("TRAINER", "DIR"),
        help="write config, data set and launch script for axolotl, prolong or megatron",
    )
    add_json(train)
    init = train.add_argument_group("init")
    init.add_argument("--data", action="append", default=[], metavar="RUN", help="a run directory; again: a mix")
    init.add_argument("--chat", metavar="FILE", help="instead of --data: conversations, for paper-sft")
    init.add_argument("--model", metavar="PATH", help="a folder that from_pretrained loads")
    init.add_argument(
        "--preset",
        metavar="NAME",
        help="paper-128k, paper-512k, paper-sft, authors-512k or tiny (a model from scratch)",
    )
    init.add_argument("--out", metavar="DIR", help="where checkpoints go (default: beside the recipe)")
    init.add_argument("--force", action="store_true", help="overwrite the recipe if it is there")
    train.set_defaults(command=_train)


def _train(asked: argparse.Namespace) -> None:
    if asked.words[0] == "init" and len(asked.words) == 2:
        _init(asked, Path(asked.words[1]))
        return
    if len(asked.words) > 1:
        raise NextlongError(
            f"nextlong train takes one recipe, not {' '.join(asked.words)!r}; or: nextlong train init RECIPE …"
        )
    given = [f"--{name}" for name in ("data", "chat", "model", "preset", "out", "force") if getattr(asked, name)]
    if given:
        raise NextlongError(
            f"{', '.join(given)} belongs to `nextlong train init`; a recipe is changed by --set KEY=VALUE"
        )
    from nextlong.train.recipe import TrainRecipe

    recipe = TrainRecipe.load(asked.words[0], overrides=asked.overrides)
    if asked.emit:
        from nextlong.train.emit import emit

        emit(recipe, asked.emit[0], Path(asked.emit[1]), Console(stderr=asked.json))
        if asked.json:
            print_json({"trainer": asked.emit[0], "folder": asked.emit[1]})
        return
    _check_installed()
    if asked.dry_run:
        from nextlong.train import plan

        if asked.json:
            print_json(plan.planned(recipe).as_json())
        else:
            plan.show(recipe, Console())
        return
    if asked.check_attention:
        from nextlong.train import probe

        if asked.json:
            leaks = list(probe.measured(recipe))
            print_json([asdict(one) for one in leaks])
            probe.check(recipe, leaks)
        else:
            probe.show(recipe, Console())
        return
    engine = _engine(asked, recipe)
    if engine == "torchtitan":
        from nextlong.train.titan.launch import train
    elif engine == "trl":
        from nextlong.train.sft import train
    else:
        from nextlong.train.start import train

    final = train(recipe, Console(stderr=asked.json))
    if asked.json and os.environ.get("RANK", "0") == "0":
        print_json({"model": str(final), "steps": recipe.training.steps})


def _engine(asked: argparse.Namespace, recipe: TrainRecipe) -> str:
    """Return the engine: the one asked for, or torchtitan for more than one device."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 or recipe.hardware.count > 1
    engine: str = asked.engine or ("torchtitan" if several else "nextlong")
    return engine


def _check_installed() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NextlongError(f"training needs {', '.join(missing)}; pip install 'nextlong[train]'")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _init(asked: argparse.Namespace, path: Path) -> None:
    from nextlong.train import presets, template

    given = [f"--{name}" for name in ("dry-run", "check-attention") if getattr(asked, name.replace("-", "_"))]
    if given or asked.emit:
        option = given[0] if given else f"--emit {' '.join(asked.emit)}"
        raise NextlongError(f"init only writes the recipe; leave out {option}, then say nextlong train {path} {option}")
    if path.exists() and not asked.force:
        raise NextlongError(f"{path} exists; choose another name, or say --force to overwrite it")
    if asked.data and asked.chat:
        raise NextlongError("--data and --chat name two kinds of rows; leave one out")
    if files := [run for run in asked.data or () if Path(run).is_file()]:
        raise NextlongError(f"--data {files[0]} is a file, not a run; conversations are given as --chat {files[0]}")
    data = {"chat": _absolute(asked.chat)} if asked.chat else {"runs": [_absolute(run) for run in asked.data]}
    if asked.model and (why := why_no_model(asked.model)):
        raise NextlongError(f"--model {asked.model} {why}")
    sources = presets.preset(asked.preset) if asked.preset else {}
    recipe = presets.recipe_from(
        asked.preset,
        out=_absolute(asked.out or str(path.with_suffix(""))),
        data=data,
        model=asked.model and _absolute_if_there(asked.model),
        overrides=tuple(asked.overrides),
    )
    recipe, changed = _with_whole_rows(recipe, asked.overrides)
    heading = f"A training recipe of nextlong{f', preset {asked.preset}' if asked.preset else ''}.\n"
    heading += f"`nextlong train {path} --dry-run` says what it will take, `nextlong train {path}` does it."
    with store.explained(path):
        path.write_text(template.commented(recipe, sources=sources, heading=heading), encoding="utf-8")
    if asked.json:
        print_json({"recipe": str(path), "out": recipe.out})
        return
    if asked.model and not Path(asked.model).expanduser().exists():
        tables.say(
            f"model.path: {asked.model} is no folder here, so it is looked for on the Hugging Face hub", Console()
        )
    if changed:
        tables.say(changed, Console())
    tables.say(f"wrote {path}; next: nextlong train {path} --dry-run", Console())


def _with_whole_rows(recipe: TrainRecipe, overrides: Sequence[str]) -> tuple[TrainRecipe, str]:
    """Return the recipe with steps of whole rows of its runs, and what was changed for that, in words; the user's own stay."""
    from nextlong.runs.opened import Run
    from nextlong.train.batches import nearest_multiple

    longest = max((Run(run).recipe.sequence_tokens for run in recipe.data.runs), default=None)
    row_tokens, asked = recipe.data.pack or longest, recipe.training.tokens_per_step
    is_own = any(override.startswith(("training.tokens_per_step=", "training=")) for override in overrides)
    if row_tokens is None or asked % row_tokens == 0 or is_own:
        return recipe, ""
    whole = nearest_multiple(asked, row_tokens=row_tokens)
    training = recipe.training.model_copy(update={"tokens_per_step": whole})
    changed = f"training.tokens_per_step: {whole:,}, whole rows of {row_tokens:,} tokens, in place of {asked:,}"
    return recipe.model_copy(update={"training": training}), changed


def _absolute(path: str) -> str:
    return os.path.normpath(Path(path).expanduser().absolute())


def _absolute_if_there(path: str) -> str:
    return _absolute(path) if Path(path).expanduser().exists() else path  # else a name on the Hub
