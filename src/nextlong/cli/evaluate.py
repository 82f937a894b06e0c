"""The command `nextlong evaluate`: its options, passed on to `nextlong.evaluate`.

nextlong evaluate MODEL --suite ruler,needle --lengths 8k..128k --data FOLDER --out RESULTS
nextlong evaluate report RESULTS… -o table.html
nextlong evaluate judge RESULTS… --judge MODEL --url URL
nextlong evaluate import HELMET-RESULT.json… --out RESULTS
nextlong evaluate data SUITE… --out FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nextlong.cli.common import Commands, add_json, console, print_json, words
from nextlong.errors import EvaluateError

if TYPE_CHECKING:
    from rich.console import Console

    from nextlong.evaluate.plan import EvaluationSettings
    from nextlong.evaluate.prompts import ModelOptions


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    sub = commands.add_parser(
        "evaluate",
        help="Evaluate a model on RULER, HELMET, needles, LongBench v2, short text and probes, and report the scores",
        description="nextlong evaluate MODEL …  ·  nextlong evaluate report RESULTS… -o table.html  ·  "
        "nextlong evaluate import HELMET-RESULT.json… --out RESULTS",
    )
    sub.add_argument(
        "model",
        metavar="MODEL",
        help="a model folder or hub name; with --url its name on the server; or: report, judge, import, data",
    )
    sub.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="RESULTS",
        help="for report and judge: results; for import: HELMET's files; for data: suites",
    )
    _add_what(sub)
    _add_how(sub)
    _add_server(sub)
    sub.add_argument(
        "-o", "--output", type=Path, action="append", default=[], metavar="FILE", help="report: .html, .md, .tex"
    )
    sub.add_argument(
        "--figures", type=Path, metavar="FOLDER", help="report: also write the figures there, as SVG and PNG"
    )
    sub.add_argument(
        "--mixed",
        dest="protocols",
        action="store_const",
        const="mixed",
        default="same",
        help="report: compare results with different n, seeds or protocols",
    )
    add_json(sub, about="print JSON: the score of every task, or the plan of --dry-run")
    sub.set_defaults(command=_evaluate)


def _add_what(sub: argparse.ArgumentParser) -> None:
    what = sub.add_argument_group("tasks and data")
    what.add_argument(
        "--suite",
        type=words,
        default=[],
        metavar="NAME,…",
        help="ruler, helmet, needle, nolima, babilong, mrcr, graphwalks, longbench-v2, short, attention … (default: ruler)",
    )
    what.add_argument("--tasks", type=words, default=[], metavar="NAME,…", help="only these, e.g. niah_single_1,vt")
    what.add_argument(
        "--lengths", metavar="L,…", help="tokens, answer included (default: 8k..128k; longbench-v2: 128k)"
    )
    what.add_argument("--samples", type=int, metavar="N", help="maximum per task (default: that of the benchmark)")
    what.add_argument("--seed", type=int, default=42, help="seed of the samples (default: 42, as in RULER and HELMET)")
    what.add_argument("--data", type=Path, metavar="FOLDER", help="folder with your copies of the benchmark files")
    what.add_argument(
        "--run", type=Path, metavar="RUN", help="dependency, mrcr-mined: the run whose sequences are read"
    )
    what.add_argument(
        "--trained-on", type=Path, metavar="RUN", help="the run that the model was trained on, for reports"
    )
    what.add_argument("--out", type=Path, metavar="RESULTS", help="output folder (default: evaluation-MODEL)")
    what.add_argument("--label", metavar="NAME", help="name of the model in reports")
    what.add_argument(
        "--dry-run", action="store_true", help="print the tasks, missing files and required memory without running"
    )


def _add_how(sub: argparse.ArgumentParser) -> None:
    how = sub.add_argument_group("how the model is run")
    how.add_argument(
        "--prompt-format",
        choices=("completion", "chat", "messages"),
        default="completion",
        help="base model, chat model, or a server's own template (default: completion)",
    )
    how.add_argument(
        "--thinking",
        type=int,
        default=0,
        metavar="N",
        help="chat: let the model reason first, in N tokens beyond the length",
    )
    how.add_argument(
        "--engine",
        choices=("transformers", "vllm"),
        default="transformers",
        help="inference engine (default: transformers)",
    )
    how.add_argument("--gpus", type=int, default=1, metavar="N", help="vllm: split the model over N GPUs (default: 1)")
    how.add_argument(
        "--context", type=int, metavar="N", help="maximum number of tokens (default: from the model's configuration)"
    )
    how.add_argument("--device", default="auto", help="auto, cpu, cuda:1; sharded: over all GPUs (default: auto)")
    how.add_argument(
        "--dtype",
        choices=("auto", "bfloat16", "float16", "float32"),
        default="auto",
        help="of weights and cache (default: auto, as in the checkpoint)",
    )
    how.add_argument("--attention", default="sdpa", help="transformers' name: sdpa, flash_attention_2 (default: sdpa)")
    how.add_argument(
        "--chunk-tokens", type=int, default=2048, metavar="N", help="tokens per prefill step (default: 2048)"
    )
    how.add_argument(
        "--batch-tokens",
        type=int,
        default=16_384,
        metavar="N",
        help="maximum number of tokens in a batch (default: 16384)",
    )
    how.add_argument("--revision", metavar="REV", help="revision of a hub model")


def _add_server(sub: argparse.ArgumentParser) -> None:
    server = sub.add_argument_group("a server with an OpenAI-compatible API")
    server.add_argument("--url", metavar="URL", help="e.g. http://localhost:8000/v1")
    server.add_argument("--judge", metavar="NAME", help="for judge: the server's name for the model that judges")
    server.add_argument(
        "--nli",
        metavar="NAME",
        help="for judge: an entailment model, which rates citations (HELMET: google/t5_xxl_true_nli_mixture)",
    )
    server.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json, a folder or a hub name (default: MODEL)")
    server.add_argument(
        "--api-key-env", default="OPENAI_API_KEY", metavar="VAR", help="environment variable with the API key"
    )
    server.add_argument("--concurrency", type=int, default=8, metavar="N", help="concurrent requests (default: 8)")
    server.add_argument("--max-attempts", type=int, default=8, metavar="N", help="attempts per request (default: 8)")


def _evaluate(args: argparse.Namespace) -> None:
    if args.model not in ("report", "judge", "import", "data") and args.files:
        raise EvaluateError(f"{args.files[0]} follows the model; evaluate one model at a time")
    for name in ("samples", "chunk_tokens", "batch_tokens", "concurrency", "max_attempts", "context", "gpus"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise EvaluateError(f"--{name.replace('_', '-')} {value} is below 1; give a positive number")
    command = {"report": _report, "judge": _judge, "import": _import, "data": _data}.get(args.model, _measure)
    command(args, console(stderr=args.json))


def _report(args: argparse.Namespace, shown: Console) -> None:
    from nextlong.evaluate import report

    results = report.read(args.files, protocols=args.protocols)
    if args.output or args.figures:
        report.write(results, outputs=args.output, figures=args.figures, console=shown)
    if args.json:
        print_json(report.as_json(results))
    elif not args.output and args.figures is None:
        report.show(results, shown)


def _judge(args: argparse.Namespace, shown: Console) -> None:
    from nextlong.evaluate import judge

    model = _model(args, args.judge) if args.judge and args.url else None
    judged = judge.run(args.files, model=model, nli=args.nli, data=args.data, console=shown)
    if args.json:
        print_json([{"file": str(path), "score": score} for path, score in judged])


def _import(args: argparse.Namespace, shown: Console) -> None:
    from nextlong.evaluate import import_helmet, report

    results = import_helmet.read_into(args.files, out=args.out, label=args.label, console=shown)
    if args.json:
        print_json(report.as_json([results]))


def _data(args: argparse.Namespace, shown: Console) -> None:
    from nextlong.evaluate.data import download
    from nextlong.evaluate.task import chosen

    suites = [suite for listed in args.files for suite in words(str(listed))]
    if not suites or args.out is None:
        raise EvaluateError("data: run nextlong evaluate data SUITE… --out FOLDER, the folder that --data then names")
    names = [name for task in chosen(suites, []) for files in (task.files, *task.files_at.values()) for name in files]
    done = download(list(dict.fromkeys(names)), args.out, shown)
    if args.json:
        print_json(done)


def _measure(args: argparse.Namespace, shown: Console) -> None:
    from nextlong.evaluate import plan, report
    from nextlong.evaluate.run import IncompleteError, TaskProgress, evaluate, opened

    settings = _settings(args)
    if args.dry_run:
        planned, context = plan.planned(settings)
        if args.json:
            print_json(planned)
        else:
            plan.show(planned, shown)
        plan.check(settings, context=context)
        return
    try:
        measured = evaluate(lambda: opened(settings), settings, progress=TaskProgress(shown))
    except IncompleteError as error:
        if args.json:
            print_json(report.as_json([error.measured]))
        raise
    if args.json:
        print_json(report.as_json([measured]))
    else:
        report.show([measured], shown)


def _settings(args: argparse.Namespace) -> EvaluationSettings:
    from nextlong.evaluate.data import DataFiles
    from nextlong.evaluate.plan import EvaluationSettings
    from nextlong.evaluate.task import chosen, parse_lengths

    similarity = None
    if args.trained_on is not None:
        from nextlong.runs import run, stats

        similarity = stats.measure(run.Run(args.trained_on)).similarity
    return EvaluationSettings(
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


def _model(args: argparse.Namespace, name: str) -> ModelOptions:
    """Return the options of a model: its fields are the options of the command."""
    from dataclasses import fields

    from nextlong.evaluate.prompts import ModelOptions

    given = {field.name: getattr(args, field.name) for field in fields(ModelOptions) if hasattr(args, field.name)}
    return ModelOptions(**{**given, "name": name})
