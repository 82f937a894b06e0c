"""Command: what `nextlong evaluate MODEL` does once its options are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from nextlong.errors import EvaluateError
from nextlong.evaluate import plan
from nextlong.evaluate.data import download
from nextlong.evaluate.huggingface import HuggingFaceModel, VllmModel
from nextlong.evaluate.plan import Settings
from nextlong.evaluate.prompts import Model, Prompts
from nextlong.evaluate.report import show
from nextlong.evaluate.run import IncompleteError, Progress, evaluate
from nextlong.evaluate.server import ServerModel
from nextlong.evaluate.task import Probe, Task, registered
from nextlong.text import why_no_model

Form = Literal["text", "json"]


def measure(settings: Settings, *, console: Console, form: Form = "text") -> None:
    """Evaluate a model and show its tables, or print JSON."""
    _check_names(settings)
    try:
        measured = evaluate(lambda: opened(settings), settings, progress=Progress(console))
    except IncompleteError as error:
        if form == "json":
            print_json(show.as_json([error.measured]))
        raise
    if form == "json":
        print_json(show.as_json([measured]))
    else:
        show.tables([measured], console)


def dry_run(settings: Settings, *, console: Console, form: Form = "text") -> None:
    """Show what would be measured, what is missing, and the memory it takes."""
    _check_names(settings)
    if form == "json":
        print_json(plan.as_json(settings))
    else:
        plan.show(settings, console)
    plan.check_plan(settings)


def _check_names(settings: Settings) -> None:
    if settings.server is None and (why := why_no_model(settings.model)):
        raise EvaluateError(f"{settings.model} {why}, or the --url of a server")
    folder = settings.data.folder
    if folder is not None and not folder.is_dir():
        raise EvaluateError(f"--data {folder} is not a folder; docs/evaluate/data.md lists the files that it holds")


def print_json(plain: Any) -> None:
    """Print a value as JSON to standard output."""
    print(json.dumps(plain, indent=1, ensure_ascii=False))


def negatives_cosine(run_dir: Path | None) -> float | None:
    """Return the median cosine of a run's negatives to their meta-chunks; None for a run without negatives, or for no run."""
    if run_dir is None:
        return None
    from nextlong.runs import run as opened
    from nextlong.runs import stats

    similarity = stats.measure(opened.Run(run_dir)).similarity
    return None if similarity is None else similarity.p50


def chosen(suites: Sequence[str], names: Sequence[str]) -> list[Task | Probe]:
    """Return the tasks and probes of some suites, or the named ones. Raises EvaluateError for a name that is neither."""
    every = registered().values()
    known = {one.suite for one in every}
    for suite in suites:
        if suite not in known:
            raise EvaluateError(f"--suite {suite}: there is no such suite; choose from {', '.join(sorted(known))}")
    within = {one.name: one for one in every if not suites or one.suite in suites}
    for name in names:
        if name not in within:
            raise EvaluateError(f"--tasks {name}: there is no such task; choose from {', '.join(within)}")
    return [one for name, one in within.items() if not names or name in names]


def opened(settings: Settings) -> Model:
    """Load the model, or connect to its server."""
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
    model.context = settings.context or model.context
    return model


def data(suites: Sequence[str], *, out: Path | None, console: Console, form: Form = "text") -> None:
    """Download the public data files of some suites, and name those that must be fetched by hand."""
    if not suites or out is None:
        raise EvaluateError("data: run nextlong evaluate data SUITE… --out FOLDER, the folder that --data then names")
    names = [
        name
        for one in chosen(suites, [])
        if isinstance(one, Task)
        for name in (*one.files, *(name for files in one.files_at.values() for name in files))
    ]
    done = download(list(dict.fromkeys(names)), out, console)
    if form == "json":
        print_json(done)
