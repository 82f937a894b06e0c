"""The command `nextlong replicate`: the paper on a small scale, the mechanism experiment, and the page of its results."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nextlong.cli.asked import add_json, print_json, write
from nextlong.errors import NextlongError
from nextlong.report import tables
from nextlong.report.tables import PipeConsole as Console

if TYPE_CHECKING:
    from nextlong.replicate.mechanism_recipe import Mechanism
    from nextlong.replicate.recipe import Replication

_NEEDED = ("torch", "transformers", "matplotlib")
_MECHANISM = "mechanism"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    sub = commands.add_parser(
        "replicate",
        help="the paper on a small scale: five methods, a small model each, its tables and figures",
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
        help="your documents (default: Python's own documentation)",
    )
    sub.add_argument("--out", metavar="DIR", help="where everything goes (default: nextlong-replicate-PRESET)")
    sub.add_argument(
        "--ablate",
        action="append",
        default=[],
        choices=("granularity", "position", "negatives"),
        help="compare these settings of nextlong too (paper, Figures 5 to 7); again: another",
    )
    sub.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="e.g. seeds=[0,1,2,3]"
    )
    sub.add_argument("--dry-run", action="store_true", help="print models, tokens, hours and disk; run nothing")
    sub.add_argument("--force", action="store_true", help="init: overwrite the recipe if it is there")
    sub.add_argument("--to", metavar="DIR", help="report: where results.md and results/ go (default: beside RESULTS)")
    add_json(sub)
    sub.set_defaults(command=_replicate)


def _replicate(asked: argparse.Namespace) -> None:
    if asked.words[:1] == ["init"] and len(asked.words) == 2:
        _init(asked, Path(asked.words[1]))
        return
    if asked.words[:1] == ["report"] and len(asked.words) == 2:
        _report(asked, Path(asked.words[1]))
        return
    if asked.to is not None:
        raise NextlongError("--to belongs to `nextlong replicate report RESULTS`")
    if len(asked.words) + (asked.preset is not None) != 1:
        raise NextlongError(
            "replicate needs a recipe or a preset, one of the two; say nextlong replicate --preset smoke"
        )
    if asked.force:
        raise NextlongError("--force belongs to `nextlong replicate init`")
    if _is_mechanism(asked):
        _mechanism(asked)
        return
    from nextlong.replicate.presets import is_only_planned

    recipe = _recipe(asked)
    console = Console(stderr=asked.json)
    if asked.dry_run or is_only_planned(recipe):
        from nextlong.replicate import plan

        _check_installed(_NEEDED[:2])
        if asked.json:
            print_json(plan.as_json(recipe))
        else:
            plan.show(recipe, console)
        return
    _check_installed(_NEEDED)
    from nextlong.replicate import report
    from nextlong.replicate.carry_out import replicate

    recipe = _with_corpus(recipe, console)
    done = replicate(recipe, report=lambda line: tables.say(line, console))
    report.write(done, console)
    if asked.json:
        print_json(report.as_json(done))


def _is_mechanism(asked: argparse.Namespace) -> bool:
    """Say whether the preset, or the recipe file, is the mechanism experiment."""
    from nextlong.recipe.read import read_file
    from nextlong.replicate.recipe import Replication

    if asked.preset is not None or asked.corpus:
        return bool(asked.preset == _MECHANISM)
    return read_file(Path(asked.words[0]), init=Replication.INIT).get("preset") == _MECHANISM


def _mechanism_recipe(asked: argparse.Namespace) -> Mechanism:
    from nextlong.replicate.mechanism_recipe import Mechanism

    if asked.corpus or asked.ablate:
        raise NextlongError(
            "--preset mechanism invents its corpus and compares its own arms; leave out --corpus and --ablate"
        )
    if asked.preset is None:
        elsewhere = [f"out={asked.out}"] if asked.out else []
        return Mechanism.load(asked.words[0], overrides=[*asked.overrides, *elsewhere])
    out = asked.out or f"nextlong-replicate-{_MECHANISM}"
    return Mechanism.from_dict({"out": out}, overrides=asked.overrides, origin=f"--preset {_MECHANISM}")


def _mechanism(asked: argparse.Namespace) -> None:
    """Run or resume the mechanism experiment, then write its results."""
    from nextlong.replicate.mechanism_recipe import plan

    recipe = _mechanism_recipe(asked)
    console = Console(stderr=asked.json)
    if asked.dry_run:
        if asked.json:
            print_json({"preset": _MECHANISM, "facts": dict(plan(recipe))})
        else:
            tables.show_facts([*plan(recipe)], console)
        return
    _check_installed(_NEEDED)
    from nextlong.replicate.mechanism import RESULTS, mechanism

    mechanism(recipe, report=lambda line: tables.say(line, console))
    _report(asked, Path(recipe.out).expanduser() / RESULTS)


def _report(asked: argparse.Namespace, source: Path) -> None:
    """Draw the results of the mechanism experiment."""
    _check_installed(_NEEDED[-1:])
    from nextlong.replicate import results

    if not source.is_file():
        raise NextlongError(f"{source} does not exist; `nextlong replicate --preset mechanism` writes results.json")
    written = results.write(source, Path(asked.to).expanduser() if asked.to else source.parent)
    if asked.json:
        print_json({"written": list(map(str, written))})
    else:
        tables.say(f"report: {written[0]}, {len(written) - 1} files beside it", Console())


def _recipe(asked: argparse.Namespace) -> Replication:
    from nextlong.replicate import presets
    from nextlong.replicate.recipe import Replication

    if asked.preset is None:
        if asked.corpus:
            raise NextlongError("--corpus belongs to --preset and init; a recipe names its own (corpus.sources)")
        elsewhere = [f"out={asked.out}"] if asked.out else []
        recipe = Replication.load(asked.words[0], overrides=[*asked.overrides, *elsewhere])
    else:
        out = asked.out or f"nextlong-replicate-{asked.preset}"
        recipe = presets.recipe_from(asked.preset, out=out, sources=asked.corpus, overrides=asked.overrides)
    return _with_ablations(recipe, asked.ablate)


def _with_ablations(recipe: Replication, ablations: Sequence[str]) -> Replication:
    experiments = tuple(dict.fromkeys([*recipe.experiments, *ablations]))
    return recipe.from_dict({**recipe.model_dump(mode="json"), "experiments": experiments})


def _with_corpus(recipe: Replication, console: Console) -> Replication:
    """Return a recipe that names its documents: the user's, else Python's own documentation, written beside the results."""
    if recipe.corpus.sources:
        return recipe
    from nextlong.cli.demo_corpus import write_demo_corpus

    path = Path(recipe.out).expanduser() / "python-documentation.jsonl"
    if not path.exists():
        write_demo_corpus(path)
    tables.say(f"corpus: {path}, Python's own documentation (--corpus FILE: yours)", console)
    corpus = recipe.corpus.model_dump(mode="json") | {"sources": [{"path": str(path), "name": "python-documentation"}]}
    return recipe.from_dict({**recipe.model_dump(mode="json"), "corpus": corpus})


def _check_installed(names: tuple[str, ...]) -> None:
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise NextlongError(f"replicate needs {', '.join(missing)}; pip install 'nextlong[train,evaluate]'")


def _init(asked: argparse.Namespace, path: Path) -> None:
    from nextlong.replicate import presets
    from nextlong.train import template

    recipe: Replication | Mechanism
    if asked.dry_run:
        raise NextlongError(
            f"init only writes the recipe; leave out --dry-run, then say nextlong replicate {path} --dry-run"
        )
    if path.exists() and not asked.force:
        raise NextlongError(f"{path} exists; choose another name, or say --force to overwrite it")
    name = asked.preset or "smoke"
    out = asked.out or f"nextlong-replicate-{name}"
    if name == _MECHANISM:
        recipe = _mechanism_recipe(asked)
    else:
        made = presets.recipe_from(name, out=out, sources=asked.corpus, overrides=asked.overrides)
        recipe = _with_ablations(made, asked.ablate)
    heading = f"A replication recipe of nextlong, preset {name}.\n"
    heading += f"`nextlong replicate {path} --dry-run` says what it will take, `nextlong replicate {path}` does it."
    write(path, template.commented(recipe, sources={}, heading=heading))
    if asked.json:
        print_json({"recipe": str(path), "out": recipe.out})
        return
    tables.say(f"wrote {path}; next: nextlong replicate {path} --dry-run", Console())
