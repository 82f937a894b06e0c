"""Command: what `nextlong evaluate` does once its options are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from nextlong.errors import EvaluateError
from nextlong.evaluate.asked import Asked
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import Model
from nextlong.evaluate.models.huggingface import HuggingFaceModel, LoadOptions
from nextlong.evaluate.models.prompts import Prompts
from nextlong.evaluate.models.server import Server, ServerModel, ServerOptions
from nextlong.evaluate.models.vllm import VllmModel
from nextlong.evaluate.probe import Probe, all_probes
from nextlong.evaluate.progress import Progress
from nextlong.evaluate.run import IncompleteError, evaluate
from nextlong.evaluate.task import Task, all_tasks
from nextlong.model_names import why_no_model
from nextlong.report import tables

Form = Literal["text", "json"]


@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    model: str
    suites: Sequence[str]
    tasks: Sequence[str]
    lengths: Sequence[int]
    out: Path
    load: LoadOptions
    samples: int | None = None
    seed: int = 42
    data: Path | None = None
    run: Path | None = None
    trained_on: Path | None = None
    label: str | None = None
    context: int | None = None
    tokenizer: str | None = None
    server: ServerOptions | None = None
    names_lengths: bool = True
    purpose: Literal["measure", "plan"] = "measure"


def measure(settings: Settings, *, console: Console, form: Form = "text") -> None:
    """Measure what was asked for, or say what that would take; then show the table, or print JSON."""
    from nextlong.evaluate import plan
    from nextlong.evaluate.report import show

    if settings.server is None and (why := why_no_model(settings.model)):
        raise EvaluateError(f"{settings.model} {why}, or the --url of a server")
    if settings.data is not None and not settings.data.is_dir():
        raise EvaluateError(f"--data {settings.data} is not a folder; docs/evaluate/data.md says what goes into it")
    asked = Asked(
        tasks=chosen(settings.suites, settings.tasks),
        lengths=settings.lengths,
        out=settings.out,
        data=DataFiles(settings.data),
        samples=settings.samples,
        seed=settings.seed,
        label=settings.label,
        run=settings.run,
        negatives_cosine=_negatives_cosine(settings.trained_on),
        names_lengths=settings.names_lengths,
    )
    if settings.purpose == "plan":
        if form == "json":
            _print_json(plan.as_json(settings, asked))
        else:
            plan.show(settings, asked, console)
        plan.check(settings, asked)
        return
    try:
        measured = evaluate(lambda: opened(settings), asked, progress=Progress(console))
    except IncompleteError as error:
        if form == "json":
            _print_json(show.as_json([error.measured]))
        raise
    if form == "json":
        _print_json(show.as_json([measured]))
    else:
        show.tables([measured], console)


def _print_json(plain: Any) -> None:
    print(json.dumps(plain, indent=1, ensure_ascii=False))


def _negatives_cosine(run_dir: Path | None) -> float | None:
    """Return the median cosine of a run's negatives to their meta-chunks; None of a run without negatives, or of no run."""
    if run_dir is None:
        return None
    from nextlong.runs import opened, stats

    similarity = stats.measure(opened.Run(run_dir)).similarity
    return None if similarity is None else similarity.p50


def chosen(suites: Sequence[str], names: Sequence[str]) -> list[Task | Probe]:
    """Return the tasks and probes of some suites, or those named. Raises EvaluateError for a name that is neither."""
    every: dict[str, Task | Probe] = {**all_tasks(), **{probe.name: probe for probe in all_probes().values()}}
    known = {one.suite for one in every.values()}
    for suite in suites:
        if suite not in known:
            raise EvaluateError(f"--suite {suite}: there is no such suite; choose from {', '.join(sorted(known))}")
    within = [one for one in every.values() if not suites or one.suite in suites]
    for name in names:
        if name not in {one.name for one in within}:
            raise EvaluateError(
                f"--tasks {name}: there is no such task; choose from {', '.join(one.name for one in within)}"
            )
    return [one for one in within if not names or one.name in names]


def opened(settings: Settings) -> Model:
    """Return the model that is asked."""
    load, server = settings.load, settings.server
    if server is not None:
        source = settings.tokenizer or settings.model
        prompts = Prompts.read(source, prompt_format=server.prompt_format, thinking=server.thinking)
        return ServerModel(settings.model, prompts, server)
    if load.prompt_format == "messages":
        raise EvaluateError(
            "--prompt-format messages is for a server (--url); give chat, or completion for a base model"
        )
    if load.engine == "vllm":
        return VllmModel(settings.model, load, longest=max(settings.lengths), context=settings.context)
    if load.gpus > 1:
        raise EvaluateError(
            f"--gpus {load.gpus} is for --engine vllm; --device sharded spreads a model of transformers"
        )
    model = HuggingFaceModel(settings.model, load)
    if settings.context is not None:
        model.context = settings.context
    return model


def report(
    folders: Sequence[Path],
    *,
    outputs: Sequence[Path],
    figures: Path | None,
    console: Console,
    form: Form = "text",
    protocols: Literal["same", "mixed"] = "same",
) -> None:
    """Print the tables of some results, or write them, and their figures; as JSON, every finished task."""
    from nextlong.evaluate.report import show

    if not folders:
        raise EvaluateError("report: no results are named; say nextlong evaluate report RESULTS… -o table.html")
    reported = show.report(folders, outputs=outputs, figures=figures, console=console, form=form, protocols=protocols)
    if form == "json":
        _print_json(show.as_json(reported))


def data(suites: Sequence[str], *, out: Path | None, console: Console, form: Form = "text") -> None:
    """Fetch the data files of some suites that are public on the hub, and say which of them must be fetched by hand."""
    from nextlong.evaluate.download import download

    if not suites or out is None:
        raise EvaluateError("data: say nextlong evaluate data SUITE… --out FOLDER, the folder that --data then names")
    done = download([one for one in chosen(suites, []) if isinstance(one, Task)], out, console)
    if form == "json":
        _print_json(done)


def judge(
    folders: Sequence[Path],
    *,
    name: str | None,
    server: ServerOptions | None,
    nli: str | None = None,
    data: Path | None = None,
    console: Console,
    form: Form = "text",
) -> None:
    """Have answers in some results judged by a model behind a server, or citations by an entailment model (`nli`)."""
    from nextlong.evaluate import judge as judges

    if folders and nli is not None:
        judged = judges.entailed(folders, nli, DataFiles(data), console)
    elif not folders or name is None or server is None:
        raise EvaluateError(
            "judge: say nextlong evaluate judge RESULTS… --judge MODEL --url http://HOST:PORT/v1, or of citations --nli MODEL "
            "--data FOLDER"
        )
    else:
        judged = judges.judge(folders, Server(name, server), console)
    if form == "json":
        _print_json([{"file": str(path), "score": score} for path, score in judged])


def import_helmet(
    files: Sequence[Path], *, out: Path | None, label: str | None, console: Console, form: Form = "text"
) -> None:
    """Read results that HELMET wrote into a results directory of ours."""
    from nextlong.evaluate.import_helmet import read_into

    if not files or out is None:
        raise EvaluateError("import: say nextlong evaluate import HELMET-RESULT.json… --out RESULTS")
    report = read_into(files, out=out, label=label)
    tables.say(report, console)
    if form == "json":
        from nextlong.evaluate.report import show
        from nextlong.evaluate.results import read_results

        _print_json(show.as_json([read_results(out)]))
