"""The command `nextlong replicate`: the experiments that compare methods, and the report of their results."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from nextlong.cli.common import check_installed, console, print_json, say, write
from nextlong.errors import NextlongError
from nextlong.replicate.recipe import Replication, recipe_from
from nextlong.report import tables

_EXTRA = "train,evaluate"


def replicate_command(args: argparse.Namespace) -> None:
    """Run a replication, write its recipe, or draw the results of some."""
    words = args.words
    if words[:1] == ["report"] and len(words) > 1:
        _report(args, *map(Path, words[1:]))
        return
    if args.to is not None:
        raise NextlongError("--to belongs to `nextlong replicate report RESULTS`")
    is_init = words[:1] == ["init"] and len(words) == 2
    if not is_init and len(words) + (args.preset is not None) != 1:
        raise NextlongError("replicate needs either a recipe or a preset, such as nextlong replicate --preset smoke")
    if is_init or args.preset is not None:
        name = args.preset or "smoke"
        out = args.out or f"nextlong-replicate-{name}"
        recipe = recipe_from(name, out=out, sources=args.corpus, overrides=args.overrides)
    elif args.corpus:
        raise NextlongError("--corpus belongs to --preset and init; a recipe names its own (corpus.sources)")
    else:
        elsewhere = [f"out={args.out}"] if args.out else []
        recipe = Replication.load(words[0], overrides=[*args.overrides, *elsewhere])
    if is_init:
        _write_recipe(args, recipe, Path(words[1]))
        return
    if args.force:
        raise NextlongError("--force belongs to `nextlong replicate init`")
    check_installed("replicate", "torch", "transformers", "matplotlib", extra=_EXTRA)
    from nextlong.replicate.run import RESULTS, plan, replicate

    shown = console(stderr=args.json)
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


def _with_corpus(recipe: Replication, shown: Console) -> Replication:
    """Return a recipe that names its documents: the user's, else Python's own documentation, written beside the results."""
    corpus = recipe.corpus
    if corpus.kind == "invented" or corpus.sources:
        return recipe
    from nextlong.cli.demo import write_demo_corpus

    path = Path(recipe.out).expanduser() / "python-documentation.jsonl"
    if not path.exists():
        write_demo_corpus(path)
    tables.say(f"corpus: {path}, the documentation of Python (use --corpus FILE for yours)", shown)
    sources = [{"path": str(path), "name": "python-documentation"}]
    plain = corpus.model_dump(mode="json") | {"sources": sources}
    return recipe.from_dict({**recipe.model_dump(mode="json"), "corpus": plain})


def _report(args: argparse.Namespace, *sources: Path) -> None:
    """Draw the results of an experiment."""
    check_installed("replicate", "matplotlib", extra=_EXTRA)
    from nextlong.replicate import results

    for source in sources:
        if not source.is_file():
            raise NextlongError(f"{source} does not exist; `nextlong replicate --preset mechanism` writes results.json")
    written = results.write(sources, Path(args.to).expanduser() if args.to else sources[0].parent)
    if args.json:
        print_json({"written": list(map(str, written))})
    else:
        say(f"report: {written[0]}, {len(written) - 1} files beside it")


def _write_recipe(args: argparse.Namespace, recipe: Replication, path: Path) -> None:
    from nextlong.train.recipe import commented_yaml

    if args.dry_run:
        raise NextlongError(f"init only writes the recipe; remove --dry-run; then: nextlong replicate {path} --dry-run")
    heading = f"A replication recipe of nextlong, preset {recipe.preset}.\n"
    heading += f"`nextlong replicate {path} --dry-run` shows its size, `nextlong replicate {path}` runs it."
    write(path, commented_yaml(recipe, sources={}, heading=heading), overwrite=args.force)
    if args.json:
        print_json({"recipe": str(path), "out": recipe.out})
        return
    say(f"wrote {path}; next: nextlong replicate {path} --dry-run")
