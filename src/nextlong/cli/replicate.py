"""The command `nextlong replicate`: the experiments that compare methods, and the report of their results."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nextlong.cli.common import Commands, add_json, add_set, check_installed, console, print_json, say, write
from nextlong.errors import NextlongError

if TYPE_CHECKING:
    from rich.console import Console

    from nextlong.replicate.recipe import Replication

_NEEDED = ("torch", "transformers", "matplotlib")


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    sub = commands.add_parser(
        "replicate",
        help="Run a small-scale replication of the paper: small models, extended on the sequences of each method",
        usage="nextlong replicate (RECIPE | --preset NAME) [--corpus FILE]… [--out DIR] [--set KEY=VALUE]… [--dry-run]\n"
        "       nextlong replicate init RECIPE --preset NAME [--corpus FILE]… [--force]\n"
        "       nextlong replicate report RESULTS… [--to DIR]",
    )
    sub.add_argument("words", nargs="*", metavar="RECIPE", help="a replication recipe; or: init RECIPE, report RESULTS")
    sub.add_argument("--preset", metavar="NAME", help="smoke, mechanism (an invented corpus), cpu-night, or one-gpu")
    sub.add_argument(
        "--corpus",
        action="append",
        default=[],
        metavar="FILE",
        help="your documents (default: the documentation of Python)",
    )
    sub.add_argument("--out", metavar="DIR", help="output directory (default: nextlong-replicate-PRESET)")
    add_set(sub, example="seeds=[0,1,2,3]")
    sub.add_argument("--dry-run", action="store_true", help="print models, tokens and runs without running")
    sub.add_argument("--force", action="store_true", help="init: overwrite an existing recipe")
    sub.add_argument("--to", metavar="DIR", help="report: folder of the page and results/ (default: beside RESULTS)")
    add_json(sub)
    sub.set_defaults(command=_replicate)


def _replicate(args: argparse.Namespace) -> None:
    from nextlong.report import tables

    if args.words[:1] == ["init"] and len(args.words) == 2:
        _init(args, Path(args.words[1]))
        return
    if args.words[:1] == ["report"] and len(args.words) > 1:
        _report(args, *map(Path, args.words[1:]))
        return
    if args.to is not None:
        raise NextlongError("--to belongs to `nextlong replicate report RESULTS`")
    if len(args.words) + (args.preset is not None) != 1:
        raise NextlongError(
            "replicate needs either a recipe or a preset, for example nextlong replicate --preset smoke"
        )
    if args.force:
        raise NextlongError("--force belongs to `nextlong replicate init`")
    recipe, shown = _recipe(args), console(stderr=args.json)
    check_installed("replicate", _NEEDED, extra="train,evaluate")
    from nextlong.replicate.run import RESULTS, plan, replicate

    if args.dry_run:
        facts = dict(plan(recipe))
        if args.json:
            print_json({"preset": recipe.preset, "facts": facts})
        else:
            tables.show_facts([*facts.items()], shown)
        return
    recipe = _with_corpus(recipe, shown)
    replicate(recipe, report=lambda line: tables.say(line, shown))
    _report(args, Path(recipe.out).expanduser() / RESULTS)


def _report(args: argparse.Namespace, *sources: Path) -> None:
    """Draw the results of an experiment."""
    check_installed("replicate", _NEEDED[-1:], extra="train,evaluate")
    from nextlong.replicate import results

    for source in sources:
        if not source.is_file():
            raise NextlongError(f"{source} does not exist; `nextlong replicate --preset mechanism` writes results.json")
    written = results.write(sources, Path(args.to).expanduser() if args.to else sources[0].parent)
    if args.json:
        print_json({"written": list(map(str, written))})
    else:
        say(f"report: {written[0]}, {len(written) - 1} files beside it")


def _recipe(args: argparse.Namespace) -> Replication:
    from nextlong.replicate.recipe import Replication, recipe_from

    if args.preset is not None:
        out = args.out or f"nextlong-replicate-{args.preset}"
        return recipe_from(args.preset, out=out, sources=args.corpus, overrides=args.overrides)
    if args.corpus:
        raise NextlongError("--corpus belongs to --preset and init; a recipe names its own (corpus.sources)")
    elsewhere = [f"out={args.out}"] if args.out else []
    return Replication.load(args.words[0], overrides=[*args.overrides, *elsewhere])


def _with_corpus(recipe: Replication, shown: Console) -> Replication:
    """Return a recipe that names its documents: the user's, else Python's own documentation, written beside the results."""
    from nextlong.cli.demo import write_demo_corpus
    from nextlong.report import tables

    corpus = recipe.corpus
    if corpus.kind == "invented" or corpus.sources:
        return recipe
    path = Path(recipe.out).expanduser() / "python-documentation.jsonl"
    if not path.exists():
        write_demo_corpus(path)
    tables.say(f"corpus: {path}, the documentation of Python (use --corpus FILE for yours)", shown)
    sources = [{"path": str(path), "name": "python-documentation"}]
    plain = corpus.model_dump(mode="json") | {"sources": sources}
    return recipe.from_dict({**recipe.model_dump(mode="json"), "corpus": plain})


def _init(args: argparse.Namespace, path: Path) -> None:
    from nextlong.replicate.recipe import recipe_from
    from nextlong.train.presets import commented_yaml

    if args.dry_run:
        raise NextlongError(
            f"init only writes the recipe; remove --dry-run, then run nextlong replicate {path} --dry-run"
        )
    if path.exists() and not args.force:
        raise NextlongError(f"{path} exists; choose another name, or add --force to overwrite it")
    name = args.preset or "smoke"
    out = args.out or f"nextlong-replicate-{name}"
    recipe = recipe_from(name, out=out, sources=args.corpus, overrides=args.overrides)
    heading = f"A replication recipe of nextlong, preset {name}.\n"
    heading += f"`nextlong replicate {path} --dry-run` shows its size, `nextlong replicate {path}` runs it."
    write(path, commented_yaml(recipe, sources={}, heading=heading))
    if args.json:
        print_json({"recipe": str(path), "out": recipe.out})
        return
    say(f"wrote {path}; next: nextlong replicate {path} --dry-run")
