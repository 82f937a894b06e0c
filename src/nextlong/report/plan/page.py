"""Plan: what would run, what is done, and what it will take, before anything runs.

In:  a recipe. Out: a table: documents, chunks, and for every step its state, time, disk and memory.
What is not done yet is estimated (`costs.py`) from a small sample of the user's own files, on which the steps are tried here
and now (`sample.py`, `trial.py`), in a temporary folder; nothing stays. The same for other machines, or a larger corpus.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from nextlong import pipeline
from nextlong.artifacts.record import name_for, run_dir_of, store_of, variant_names
from nextlong.corpus.ingest import check_named_ids
from nextlong.corpus.splits import shard_bytes_for, shard_bytes_of, whole_files
from nextlong.engine import runner
from nextlong.engine.estimate import Amounts
from nextlong.engine.step import Step
from nextlong.errors import CorpusError, EncoderError, RunError
from nextlong.methods.base import described
from nextlong.reading.files import InputFile
from nextlong.reading.known_files import recognise_inputs
from nextlong.recipe import Recipe
from nextlong.report import tables
from nextlong.report.plan import assumed, warnings
from nextlong.report.plan import costs as plan_costs
from nextlong.report.plan.amounts import Corpus, amounts_of, of_trial
from nextlong.report.plan.cluster import Asked
from nextlong.report.plan.costs import Cost, Machines, Sample
from nextlong.report.plan.earlier import earlier_rates, shares_to_do
from nextlong.report.plan.sample import Measured, measure
from nextlong.report.plan.trial import Trial, try_route
from nextlong.retrieval.encoders.base import kind_of
from nextlong.sequences.corpus_size import check_enough
from nextlong.sequences.token_chars import lossy_tokenizer
from nextlong.text import Json, counted

_MB = 1_000_000


class Plan(NamedTuple):
    """What is to be done, how much of it, and what it takes on each of the machines that are asked for."""

    amounts: Amounts  # as the last of the machines does it
    corpus: Corpus
    measured: Measured
    on: list[tuple[Machines, dict[str, Cost]]]  # this machine first


class Planned(NamedTuple):
    """A plan as it is shown; `plan` is None where everything is done and nothing else was asked for."""

    recipe: Recipe
    steps: Sequence[Step]
    states: Sequence[str]
    plan: Plan | None
    columns: Sequence[tuple[Machines, Mapping[str, Cost]]]  # of what is to do
    notes: Sequence[str]
    warnings: Sequence[str]
    loses: str
    missing: str

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists; costs are those of this machine first."""
        corpus = self.plan and self.plan.corpus
        notes = (self.loses, *self.warnings, self.missing)
        return {
            "run_dir": self.recipe.run_dir,
            "method": described(self.recipe),
            "workers": pipeline.worker_count(self.recipe),
            "push": self.recipe.export.push,
            "documents": corpus and corpus.documents,
            "kept_documents": corpus and corpus.kept_documents,
            "chunks": corpus and corpus.chunks,
            "eligible": corpus and corpus.eligible,
            "too_long": corpus and corpus.too_long,
            "too_little_room": corpus and corpus.too_little_room,
            "text_bytes": corpus and corpus.text_bytes,
            "chars_per_token": self.plan and self.plan.measured.tokenizing.chars_per_token,
            "steps": [
                {
                    "step": step.name,
                    "state": state,
                    "costs": [
                        _plain(costs[step.name], machines) for machines, costs in self.columns if step.name in costs
                    ],
                }
                for step, state in zip(self.steps, self.states, strict=True)
            ],
            "all_to_do": [
                machines._asdict() | plan_costs.total(self.steps, costs, machines)._asdict()
                for machines, costs in self.columns
            ],
            "assumed": list(self.notes),
            "warnings": [one for one in notes if one],
        }


def _plain(cost: Cost, machines: Machines) -> Json:
    return {
        "seconds": cost.wall(machines),
        "disk_bytes": cost.disk_bytes,
        "memory_bytes": plan_costs.memory_of(cost, machines),
        "unknown": cost.unknown if cost.seconds is None else None,
    }


def planned(recipe: Recipe, asked: Asked, *, tell: Callable[[str], None]) -> Planned:
    """Return the plan of a recipe; `tell` hears of inputs. Raises the user's errors that `run` would raise first."""
    missing = _missing_package(recipe)
    files, run_dir = pipeline.prepare(recipe, encoder="any" if missing else "installed"), run_dir_of(recipe)
    files = recognise_inputs(recipe, files, run_dir, tell=tell)
    steps = pipeline.route(recipe, files)
    states = [_state(step, run_dir, store_of(recipe)) for step in steps]
    if all(state.startswith("done") for state in states) and not asked.is_elsewhere and asked.chunks is None:
        return Planned(recipe, steps, states, None, (), (), (), "", "")
    _check_writable(run_dir)
    if asked.chunks is not None:
        states = ["" for _ in steps]  # of another corpus
    elif name_for(recipe, run_dir) not in variant_names(run_dir):  # as a run does
        check_named_ids(recipe.ingest.sources, files)
        check_enough(recipe, files)
    plan = make(recipe, files, steps, asked)
    todo = {step.name for step, state in zip(steps, states, strict=True) if not state.startswith("done")}
    columns = [
        (machines, {name: cost for name, cost in cost_of.items() if name in todo}) for machines, cost_of in plan.on
    ]
    total = plan_costs.total(steps, columns[0][1], columns[0][0])
    loses = lossy_tokenizer(plan.measured.tokenizing.lost_share)
    return Planned(
        recipe,
        steps,
        states,
        plan,
        columns,
        [*assumed.lines(recipe, plan.amounts, columns, plan.measured, asked)],
        [
            *warnings.lines(recipe, plan.amounts, plan.measured, total, run_dir, asked=asked),
            *whole_files(
                recipe.ingest.sources,
                files,
                shard_bytes=shard_bytes_of(recipe, files),
                workers=asked.workers or pipeline.worker_count(recipe),
            ),
        ],
        f"the tokenizer {loses}" if loses else "",
        missing,
    )


def show(recipe: Recipe, console: Console, asked: Asked = Asked()) -> None:  # noqa: B008 - frozen
    """Print the plan of a recipe. Raises the user's errors that `run` would raise before its first step."""
    say = partial(tables.say, console=console)
    page = planned(recipe, asked, tell=say)
    if page.plan is None:
        _print(page.steps, page.states, [], console)
        return
    say(_summary(recipe, page.plan))
    if page.loses:
        say(page.loses, style="yellow")
    _print(page.steps, page.states, page.columns, console)
    for line in page.notes:
        say(line)
    if recipe.export.push is not None:
        say(f"the files are put to {recipe.export.push}, too (export.push)")
    for line in page.warnings:
        say(line, style="bold red")
    if page.missing:
        say(f"before `nextlong run`: {page.missing}")


def make(recipe: Recipe, files: Sequence[Sequence[InputFile]], steps: Sequence[Step], asked: Asked = Asked()) -> Plan:  # noqa: B008
    """Return what each step will take here, and on other machines where these are asked for.

    Raises CorpusError where no document of a corpus that was seen whole can be extended, as its run would.
    """
    measured = measure(recipe, files)
    if asked.chunks is None and measured.corpus.is_whole and (refused := warnings.none_extended(recipe, measured)):
        raise CorpusError(refused)
    trials = try_route(recipe, measured.texts, chars_per_token=measured.tokenizing.chars_per_token)
    return plan_for(recipe, files, steps, measured, trials, asked)


def plan_for(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    steps: Sequence[Step],
    measured: Measured,
    trials: tuple[Trial, Trial],
    asked: Asked,
) -> Plan:
    """Return the plan that follows from what was measured and tried."""
    corpus = measured.corpus
    if asked.chunks is not None:
        corpus = corpus.times(asked.chunks / max(1.0, corpus.chunks))
    here = Machines(pipeline.worker_count(recipe), pipeline.capacity_here(recipe).gpus, start_s=measured.start_s)
    machines = [here]
    if asked.is_elsewhere:
        each = asked.workers or pipeline.worker_count(recipe)
        machines.append(Machines(asked.nodes * each, asked.nodes * asked.gpus, _head_s(asked), measured.start_s))
    amounts = [
        amounts_of(
            recipe,
            corpus,
            dimensions=measured.dimensions
            or min(getattr(recipe.encoder.options, "dimensions", 256), max(1, trials[1].dimensions)),
            chars_per_token=measured.tokenizing.chars_per_token,
            shards=_shards(recipe, files, corpus.text_bytes, asked),
            has_gpu=place.gpus > 0 and recipe.search.device != "cpu",
        )
        for place in machines
    ]
    samples = (Sample(of_trial(trials[0]), trials[0].steps), Sample(of_trial(trials[1]), trials[1].steps))
    rates = assumed.rates(recipe, amounts[0], measured, asked)
    run_dir = run_dir_of(recipe)
    earlier = earlier_rates(recipe, run_dir)
    to_do = {} if asked.chunks is not None else shares_to_do(steps, amounts[0], run_dir)  # those are of another corpus
    on = [
        (place, plan_costs.costs(steps, there, samples, rates, machines=place, earlier=earlier, to_do=to_do))
        for place, there in zip(machines, amounts, strict=True)
    ]
    return Plan(amounts[-1], corpus, measured, on)


def _head_s(asked: Asked) -> float:
    return plan_costs.RAY_HEAD_S if asked.nodes > 1 else plan_costs.HEAD_S


def _missing_package(recipe: Recipe) -> str:
    """Say which package running needs and planning does not, "" if it is there."""
    try:
        kind_of(recipe.encoder).check_installed(recipe.encoder)
    except EncoderError as error:
        return str(error)
    return ""


def _summary(recipe: Recipe, plan: Plan) -> str:
    corpus = plan.corpus
    kept = (
        f", of which {corpus.kept_documents:,.0f} stay"
        if round(corpus.kept_documents) < round(corpus.documents)
        else ""
    )
    lost = {"longer than a sequence": corpus.too_long, "with too little room for negatives": corpus.too_little_room}
    dropped = ", ".join(f"{count:,.0f} {why}" for why, count in lost.items() if round(count))
    return (
        f"{'' if corpus.is_whole else 'about '}{corpus.documents:,.0f} documents, {corpus.text_bytes / _MB:,.1f} MB of text"
        f"{kept}, {corpus.chunks:,.0f} chunks of {corpus.kept_chars / max(1.0, corpus.chunks):,.0f} characters on average, "
        f"{plan.measured.tokenizing.chars_per_token:.2f} characters per token; method {described(recipe)}; "
        f"{f'of {corpus.eligible:,.0f} that may be extended about {dropped}; ' if dropped else ''}"
        f"{pipeline.worker_count(recipe)} workers"
    )


def _shards(recipe: Recipe, files: Sequence[Sequence[InputFile]], text_bytes: float, asked: Asked) -> int:
    if asked.chunks is not None:
        shard_bytes = shard_bytes_for(recipe, text_bytes)
        return max(1, math.ceil(text_bytes / shard_bytes))
    return max(len(files), math.ceil(text_bytes / shard_bytes_of(recipe, files)))


def _check_writable(run_dir: Path) -> None:
    there = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise RunError(f"run_dir={run_dir} cannot be written: {there} is not a folder that you may write to")


def _state(step: Step, run_dir: Path, stored: Path | None) -> str:
    done = runner.find_done(step, run_dir)
    if done is None and stored is not None and (done := runner.find_done(step, stored)) is not None:
        return f"done, {done.manifest['bytes'] / _MB:,.1f} MB in the store"
    if done is not None:
        return f"done, {done.manifest['bytes'] / _MB:,.1f} MB in {done.manifest['seconds']:,.1f} s"
    begun = runner.begun_tasks(step, run_dir)
    return f"begun, {counted(begun, 'task')} done" if begun else "to do"


def _print(
    steps: Sequence[Step], states: Sequence[str], on: Sequence[tuple[Machines, Mapping[str, Cost]]], console: Console
) -> None:
    table = tables.table()
    for heading in ("step", "state", *_headings(on)):
        table.add_column(heading, justify="left" if heading in ("step", "state") else "right", no_wrap=True)
    for step, state in zip(steps, states, strict=True):
        table.add_row(step.name, state, *_cells(step.name, on))
    if any(cost_of for _, cost_of in on):
        table.add_row("all to do", "", *_totals(steps, on), style="bold")
    tables.show(table, console)


def _headings(on: Sequence[tuple[Machines, Mapping[str, Cost]]]) -> list[str]:
    others = [_named(machines) for machines, _ in on[1:]]
    gpu = ["GPU-hours"] if any(machines.gpus for machines, _ in on) else []
    return ["time", *others, *gpu, "disk", "memory"] if on else []


def _named(machines: Machines) -> str:
    gpus = f", {machines.gpus} GPUs" if machines.gpus else ""
    return f"{machines.workers} workers{gpus}"


def _cells(name: str, on: Sequence[tuple[Machines, Mapping[str, Cost]]]) -> list[str]:
    costs = [(machines, cost_of[name]) for machines, cost_of in on if name in cost_of]
    if not costs:
        return ["" for _ in _headings(on)]
    here, first = costs[0]
    _, cost = costs[-1]
    gpu_s = cost.seconds if cost.on_gpus else 0.0
    gpu = [_hours(gpu_s)] if any(machines.gpus for machines, _ in on) else []
    times = [_time(cost.wall(machines), cost.unknown) for machines, cost in costs]
    return [*times, *gpu, _disk(first.disk_bytes), _memory(plan_costs.memory_of(first, here))]


def _totals(steps: Sequence[Step], on: Sequence[tuple[Machines, Mapping[str, Cost]]]) -> list[str]:
    totals = [plan_costs.total(steps, cost_of, machines) for machines, cost_of in on]
    gpu = [_hours(totals[-1].gpu_seconds)] if any(machines.gpus for machines, _ in on) else []
    times = [_time(total.seconds, total.unknown) for total in totals]
    return [*times, *gpu, _disk(totals[0].disk_bytes), _memory(totals[0].memory_bytes)]


def _time(seconds: float | None, unknown: str) -> str:
    if seconds is None:
        return unknown
    if seconds < 120:
        return f"{max(0.1, seconds):,.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:,.0f} min"
    return f"{seconds / 3600:,.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.1f} days"


def _hours(seconds: float | None) -> str:
    return "" if not seconds else f"{seconds / 3600:,.1f}"


def _disk(count: float) -> str:
    return f"{count / _MB:,.1f} MB" if count < 1e10 else f"{count / 1e9:,.0f} GB"


def _memory(count: float) -> str:
    return f"{count / _MB:,.0f} MB" if count < 1e11 else f"{count / 1e9:,.0f} GB"
