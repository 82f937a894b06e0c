"""The command `nextlong replicate`: the small-scale replication, the mechanism experiment, and the report of its results."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nextlong.cli.common import Commands, add_json, add_set, console, print_json, say, write
from nextlong.errors import NextlongError

if TYPE_CHECKING:
    from rich.console import Console

    from nextlong.replicate.mechanism_recipe import Mechanism
    from nextlong.replicate.recipe import Replication

_NEEDED = ("torch", "transformers", "matplotlib")
_MECHANISM = "mechanism"


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    sub = commands.add_parser(
        "replicate",
        help="Run a small-scale replication of the paper: five methods, a small model each",
        usage="nextlong replicate (RECIPE | --preset NAME) [--corpus FILE]… [--ablate NAME]… [--out DIR] [--dry-run]\n"
        "       nextlong replicate init RECIPE --preset NAME [--corpus FILE]… [--ablate NAME]… [--force]\n"
        "       nextlong replicate --preset mechanism [--out DIR] [--set KEY=VALUE]…\n"
        "       nextlong replicate report RESULTS [--to DIR]",
    )
    sub.add_argument("words", nargs="*", metavar="RECIPE", help="a replication recipe; or: init RECIPE")
    sub.add_argument(
        "--preset", metavar="NAME", help="smoke, mechanism, cpu-night, one-gpu, or paper (prints the plan)"
    )
    sub.add_argument(
        "--corpus",
        action="append",
        default=[],
        metavar="FILE",
        help="your documents (default: the documentation of Python)",
    )
    sub.add_argument("--out", metavar="DIR", help="output directory (default: nextlong-replicate-PRESET)")
    sub.add_argument(
        "--ablate",
        action="append",
        default=[],
        choices=("granularity", "position", "negatives"),
        help="also compare these settings of nextlong (paper, Figures 5 to 7); may be repeated",
    )
    add_set(sub, example="seeds=[0,1,2,3]")
    sub.add_argument(
        "--dry-run", action="store_true", help="print models, tokens, hours and disk space without running"
    )
    sub.add_argument("--force", action="store_true", help="init: overwrite an existing recipe")
    sub.add_argument("--to", metavar="DIR", help="report: folder of results.md and results/ (default: beside RESULTS)")
    add_json(sub)
    sub.set_defaults(command=_replicate)


def _replicate(args: argparse.Namespace) -> None:
    from nextlong.report import tables

    if args.words[:1] == ["init"] and len(args.words) == 2:
        _init(args, Path(args.words[1]))
        return
    if args.words[:1] == ["report"] and len(args.words) == 2:
        _report(args, Path(args.words[1]))
        return
    if args.to is not None:
        raise NextlongError("--to belongs to `nextlong replicate report RESULTS`")
    if len(args.words) + (args.preset is not None) != 1:
        raise NextlongError(
            "replicate needs either a recipe or a preset, for example nextlong replicate --preset smoke"
        )
    if args.force:
        raise NextlongError("--force belongs to `nextlong replicate init`")
    if _is_mechanism(args):
        _mechanism(args)
        return
    from nextlong.replicate.recipe import is_only_planned

    recipe = _recipe(args)
    shown = console(stderr=args.json)
    if args.dry_run or is_only_planned(recipe):
        from nextlong.replicate import plan

        _check_installed(_NEEDED[:2])
        if args.json:
            print_json(plan.as_json(recipe))
        else:
            plan.show(recipe, shown)
        return
    _check_installed(_NEEDED)
    from nextlong.replicate import report
    from nextlong.replicate.run import replicate

    recipe = _with_corpus(recipe, shown)
    done = replicate(recipe, report=lambda line: tables.say(line, shown))
    report.write(done, shown)
    if args.json:
        print_json(report.as_json(done))


def _is_mechanism(args: argparse.Namespace) -> bool:
    """Say whether the preset, or the recipe file, is the mechanism experiment."""
    from nextlong.recipe.read import read_file
    from nextlong.replicate.recipe import Replication

    if args.preset is not None or args.corpus:
        return bool(args.preset == _MECHANISM)
    return read_file(Path(args.words[0]), init=Replication.INIT).get("preset") == _MECHANISM


def _mechanism_recipe(args: argparse.Namespace) -> Mechanism:
    from nextlong.replicate.mechanism_recipe import Mechanism

    if args.corpus or args.ablate:
        raise NextlongError(
            "--preset mechanism invents its corpus and compares its own arms; remove --corpus and --ablate"
        )
    if args.preset is None:
        elsewhere = [f"out={args.out}"] if args.out else []
        return Mechanism.load(args.words[0], overrides=[*args.overrides, *elsewhere])
    out = args.out or f"nextlong-replicate-{_MECHANISM}"
    return Mechanism.from_dict({"out": out}, overrides=args.overrides, origin=f"--preset {_MECHANISM}")


def _mechanism(args: argparse.Namespace) -> None:
    """Run or resume the mechanism experiment, then write its results."""
    from nextlong.replicate.mechanism_recipe import plan
    from nextlong.report import tables

    recipe = _mechanism_recipe(args)
    shown = console(stderr=args.json)
    if args.dry_run:
        if args.json:
            print_json({"preset": _MECHANISM, "facts": dict(plan(recipe))})
        else:
            tables.show_facts([*plan(recipe)], shown)
        return
    _check_installed(_NEEDED)
    from nextlong.replicate.mechanism import RESULTS, mechanism

    mechanism(recipe, report=lambda line: tables.say(line, shown))
    _report(args, Path(recipe.out).expanduser() / RESULTS)


def _report(args: argparse.Namespace, source: Path) -> None:
    """Draw the results of the mechanism experiment."""
    _check_installed(_NEEDED[-1:])
    from nextlong.replicate import results

    if not source.is_file():
        raise NextlongError(f"{source} does not exist; `nextlong replicate --preset mechanism` writes results.json")
    written = results.write(source, Path(args.to).expanduser() if args.to else source.parent)
    if args.json:
        print_json({"written": list(map(str, written))})
    else:
        say(f"report: {written[0]}, {len(written) - 1} files beside it")


def _recipe(args: argparse.Namespace) -> Replication:
    from nextlong.replicate.recipe import Replication, recipe_from

    if args.preset is None:
        if args.corpus:
            raise NextlongError("--corpus belongs to --preset and init; a recipe names its own (corpus.sources)")
        elsewhere = [f"out={args.out}"] if args.out else []
        recipe = Replication.load(args.words[0], overrides=[*args.overrides, *elsewhere])
    else:
        out = args.out or f"nextlong-replicate-{args.preset}"
        recipe = recipe_from(args.preset, out=out, sources=args.corpus, overrides=args.overrides)
    return _with_ablations(recipe, args.ablate)


def _with_ablations(recipe: Replication, ablations: Sequence[str]) -> Replication:
    experiments = tuple(dict.fromkeys([*recipe.experiments, *ablations]))
    return recipe.from_dict({**recipe.model_dump(mode="json"), "experiments": experiments})


def _with_corpus(recipe: Replication, shown: Console) -> Replication:
    """Return a recipe that names its documents: the user's, else Python's own documentation, written beside the results."""
    from nextlong.report import tables

    if recipe.corpus.sources:
        return recipe
    from nextlong.cli.demo import write_demo_corpus

    path = Path(recipe.out).expanduser() / "python-documentation.jsonl"
    if not path.exists():
        write_demo_corpus(path)
    tables.say(f"corpus: {path}, the documentation of Python (use --corpus FILE for yours)", shown)
    corpus = recipe.corpus.model_dump(mode="json") | {"sources": [{"path": str(path), "name": "python-documentation"}]}
    return recipe.from_dict({**recipe.model_dump(mode="json"), "corpus": corpus})


def _check_installed(names: tuple[str, ...]) -> None:
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise NextlongError(f"replicate needs {', '.join(missing)}; pip install 'nextlong[train,evaluate]'")


def _init(args: argparse.Namespace, path: Path) -> None:
    from nextlong.replicate.recipe import recipe_from
    from nextlong.train.presets import commented_yaml

    recipe: Replication | Mechanism
    if args.dry_run:
        raise NextlongError(
            f"init only writes the recipe; remove --dry-run, then run nextlong replicate {path} --dry-run"
        )
    if path.exists() and not args.force:
        raise NextlongError(f"{path} exists; choose another name, or add --force to overwrite it")
    name = args.preset or "smoke"
    out = args.out or f"nextlong-replicate-{name}"
    if name == _MECHANISM:
        recipe = _mechanism_recipe(args)
    else:
        made = recipe_from(name, out=out, sources=args.corpus, overrides=args.overrides)
        recipe = _with_ablations(made, args.ablate)
    heading = f"A replication recipe of nextlong, preset {name}.\n"
    heading += f"`nextlong replicate {path} --dry-run` estimates its cost, `nextlong replicate {path}` runs it."
    write(path, commented_yaml(recipe, sources={}, heading=heading))
    if args.json:
        print_json({"recipe": str(path), "out": recipe.out})
        return
    say(f"wrote {path}; next: nextlong replicate {path} --dry-run")
