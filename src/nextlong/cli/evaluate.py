"""The command `nextlong evaluate`, of a model or with report, judge, import or data: its options, passed on to that room."""

from __future__ import annotations

import argparse
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nextlong.cli.common import console, present
from nextlong.errors import EvaluateError

if TYPE_CHECKING:
    from rich.console import Console

    from nextlong.evaluate.prompts import ModelOptions


def evaluate_command(args: argparse.Namespace) -> None:
    """Evaluate a model, or work on the results of evaluations."""
    if args.model not in ("report", "judge", "import", "data") and args.files:
        raise EvaluateError(f"{args.files[0]} follows the model; evaluate one model at a time")
    for name in ("samples", "chunk_tokens", "batch_tokens", "concurrency", "max_attempts", "context", "gpus"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise EvaluateError(f"--{name.replace('_', '-')} {value} is below 1; give a positive number")
    shown = console(stderr=args.json)
    if args.model == "report":
        from nextlong.evaluate import report

        results = report.read(args.files, protocols=args.protocols)
        if args.output or args.figures:
            report.write(results, outputs=args.output, figures=args.figures, console=shown)
        is_written = args.output or args.figures is not None
        present(args, partial(report.as_json, results), None if is_written else partial(report.show, results))
    elif args.model == "judge":
        from nextlong.evaluate import judge

        model = _model(args, args.judge) if args.judge and args.url else None
        judged = judge.run(args.files, model=model, nli=args.nli, data=args.data, console=shown)
        present(args, [{"file": str(path), "score": score} for path, score in judged])
    elif args.model == "import":
        from nextlong.evaluate import judge, report

        imported = judge.import_helmet(args.files, out=args.out, label=args.label, console=shown)
        present(args, partial(report.as_json, [imported]))
    elif args.model == "data":
        _download(args, shown)
    else:
        _measure(args, shown)


def _download(args: argparse.Namespace, shown: Console) -> None:
    from nextlong.evaluate.data import download
    from nextlong.evaluate.task import chosen

    suites = [suite.strip() for listed in args.files for suite in str(listed).split(",") if suite.strip()]
    if not suites or args.out is None:
        raise EvaluateError("data: run nextlong evaluate data SUITE… --out FOLDER, the folder that --data then names")
    names = [name for task in chosen(suites, []) for files in (task.files, *task.files_at.values()) for name in files]
    present(args, download(list(dict.fromkeys(names)), args.out, shown))


def _measure(args: argparse.Namespace, shown: Console) -> None:
    from nextlong.evaluate import report, results, run
    from nextlong.evaluate.data import DataFiles
    from nextlong.evaluate.task import chosen, parse_lengths

    similarity = None
    if args.trained_on is not None:
        from nextlong.runs import stats
        from nextlong.runs.run import Run

        similarity = stats.measure(Run(args.trained_on)).similarity
    settings = run.EvaluationSettings(
        tasks=chosen(args.suite or ([] if args.tasks else ["ruler"]), args.tasks),
        lengths=parse_lengths(args.lengths or "8k..128k"),
        names_lengths=args.lengths is not None,
        out=args.out or Path(f"evaluation-{Path(args.model.rstrip('/')).name}"),
        data=DataFiles(args.data),
        samples=args.samples,
        seed=args.seed,
        label=args.label,
        run=args.run,
        negatives_cosine=None if similarity is None else similarity.p50,
        model=_model(args, args.model),
    )
    if args.dry_run:
        planned, context = run.planned(settings)
        present(args, planned, partial(run.show, planned))
        run.check(settings, context=context)
        return
    try:
        measured = run.evaluate(lambda: run.opened(settings), settings, progress=run.TaskProgress(shown))
    except run.IncompleteError:
        present(args, lambda: report.as_json([results.read_results(settings.out)]))
        raise
    present(args, partial(report.as_json, [measured]), partial(report.show, [measured]))


def _model(args: argparse.Namespace, name: str) -> ModelOptions:
    """Return the options of a model: its fields are the options of the command."""
    from nextlong.evaluate.prompts import ModelOptions

    given = {field.name: getattr(args, field.name) for field in fields(ModelOptions) if hasattr(args, field.name)}
    return ModelOptions(**{**given, "name": name})
