"""The command that measures models on suites of tasks, and what it reports."""

from __future__ import annotations

import argparse
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nextlong.cli.common import console, present
from nextlong.runs.run import Run

if TYPE_CHECKING:
    from nextlong.evaluate.prompts import ModelOptions


def report_command(args: argparse.Namespace) -> None:
    from nextlong.evaluate import report

    shown = console(stderr=args.json)
    results = report.read(args.files, protocols=args.protocols)
    if args.output or args.figures:
        report.write(results, outputs=args.output, figures=args.figures, console=shown)
    is_written = args.output or args.figures is not None
    table = None if is_written else partial(report.show, results)
    present(args, partial(report.as_json, results), table)


def judge_command(args: argparse.Namespace) -> None:
    from nextlong.evaluate import judge

    shown = console(stderr=args.json)
    judged = judge.run(args.files, model=_model(args, args.model), console=shown)
    present(args, [{"file": str(path), "score": score} for path, score in judged])


def import_command(args: argparse.Namespace) -> None:
    from nextlong.evaluate import report
    from nextlong.evaluate.importing.files import import_results

    shown = console(stderr=args.json)
    imported = import_results(args.files, out=args.out, label=args.label, console=shown)
    present(args, partial(report.as_json, [imported]))


def data_command(args: argparse.Namespace) -> None:
    from nextlong.evaluate import fetch
    from nextlong.evaluate.registry import chosen
    from nextlong.evaluate.task import parse_lengths

    tasks = chosen(args.suite, [])
    names = fetch.files_of(tasks, parse_lengths(args.lengths))
    files = fetch.fetch(names, args.out, console(stderr=args.json))
    present(args, [file.as_json() for file in files], partial(fetch.show, files))
    fetch.check_failures(files, args.out)


def run_command(args: argparse.Namespace) -> None:
    from nextlong.evaluate import dry_run, report, results, run
    from nextlong.evaluate.data import DataFiles
    from nextlong.evaluate.engines import check_model
    from nextlong.evaluate.progress import TaskProgress
    from nextlong.evaluate.registry import chosen
    from nextlong.evaluate.results import Shard
    from nextlong.evaluate.settings import EvaluationSettings, check
    from nextlong.evaluate.task import parse_lengths

    negatives_cosine = None
    if args.trained_on is not None:
        from nextlong.runs.statistics.measure import measure

        similarity = measure(Run(args.trained_on)).similarity
        if similarity is not None:
            negatives_cosine = similarity.cosine.p50
    suites = args.suite
    if not suites and not args.tasks:
        suites = ["ruler"]
    model_name = Path(args.model.rstrip("/")).name
    settings = EvaluationSettings(
        tasks=chosen(suites, args.tasks),
        lengths=parse_lengths(args.lengths),
        out=args.out or Path(f"evaluation-{model_name}"),
        data=DataFiles(args.data),
        samples=args.samples,
        seed=args.seed,
        label=args.label,
        run=args.run,
        negatives_cosine=negatives_cosine,
        shard=Shard.parse(args.shard),
        model=_model(args, args.model),
    )
    if args.dry_run:
        planned, context = dry_run.planned(settings)
        present(args, planned, partial(dry_run.show, planned))
        check(settings, context=context)
        return
    # Before the data are asked for, which a wrong model does not need.
    check_model(settings.model)
    try:
        measured = run.evaluate(
            lambda: run.opened(settings),
            settings,
            progress=TaskProgress(console(stderr=args.json)),
        )
    except run.IncompleteError:
        present(args, lambda: report.as_json([results.read_results(settings.out)]))
        raise
    present(args, partial(report.as_json, [measured]), partial(report.show, [measured]))


def _model(args: argparse.Namespace, name: str) -> ModelOptions:
    """Return the options of a model: its fields are the options of the command."""
    from nextlong.evaluate.prompts import ModelOptions

    names = [field.name for field in fields(ModelOptions)]
    options = {name: getattr(args, name) for name in names if hasattr(args, name)}
    return ModelOptions(**{**options, "name": name})
