"""Plan: what would run, what is done, and what it will take, before anything runs.

In:  a recipe. Out: a table: documents, chunks, and for every step its state, time, disk and memory.
What is not done yet is estimated from a trial: the steps run here and now on a small sample of the user's own files
(`sample.py`, `trial.py`), in a temporary folder that is deleted, and what they took is scaled by the size of the corpus
(`costs.py`). The same for other machines, or a larger corpus.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from nextlong import pipeline
from nextlong.artifacts.record import name_for, run_dir_of, store_of, variant_names
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
from nextlong.report.plan import warnings
from nextlong.report.plan.amounts import amounts_of
from nextlong.report.plan.costs import HEAD_S, RAY_HEAD_S, Cost, Machines, Rate, Total, costs, total
from nextlong.report.plan.elsewhere import Asked, assumed, operations_of, shape_of
from nextlong.report.plan.sample import sample
from nextlong.report.plan.trial import Measured, measure
from nextlong.retrieval.encoders.base import kind_of
from nextlong.retrieval.indexes.costs import GPU_PRODUCT_S
from nextlong.sequences.token_chars import lossy_tokenizer
from nextlong.text import Json, counted

_MB = 1_000_000


class Plan(NamedTuple):
    """What is to be done, how much of it, and what it takes on each of the machines that are asked for."""

    amounts: Amounts  # as the last of the machines does it
    too_long: float  # documents of those that may be extended, …
    too_little_room: float
    measured: Measured
    on: list[tuple[Machines, dict[str, Cost]]]  # this machine first


@dataclass(frozen=True)
class Planned:
    """A plan as it is shown; `plan` is None where everything is done and nothing else was asked for."""

    recipe: Recipe
    steps: Sequence[Step]
    states: Sequence[str]
    plan: Plan | None = None
    columns: Sequence[tuple[Machines, Mapping[str, Cost]]] = ()  # of what is to do
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    loses: str = ""
    missing: str = ""

    @property
    def totals(self) -> list[Total]:
        """What all that is to do takes, on each of the machines."""
        return [total(self.steps, costs, machines) for machines, costs in self.columns]

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists; costs are those of this machine first."""
        plan, amounts = self.plan, self.plan and self.plan.amounts
        notes = (self.loses, *self.warnings, self.missing)
        sizes = ("documents", "kept_documents", "chunks", "eligible")
        return {
            "run_dir": self.recipe.run_dir,
            "method": described(self.recipe),
            "workers": pipeline.worker_count(self.recipe),
            "push": self.recipe.export.push,
            **{name: amounts and getattr(amounts, name) for name in sizes},
            "too_long": plan and plan.too_long,
            "too_little_room": plan and plan.too_little_room,
            "text_bytes": amounts and amounts.text_bytes,
            "chars_per_token": plan and plan.measured.tokenizing.chars_per_token,
            "steps": [
                {
                    "step": step.name,
                    "state": state,
                    "costs": [_plain(of[step.name], machines) for machines, of in self.columns if step.name in of],
                }
                for step, state in zip(self.steps, self.states, strict=True)
            ],
            "all_to_do": [
                machines._asdict() | sums._asdict()
                for (machines, _), sums in zip(self.columns, self.totals, strict=True)
            ],
            "assumed": list(self.notes),
            "warnings": [one for one in notes if one],
        }


def _plain(cost: Cost, machines: Machines) -> Json:
    return {
        "seconds": cost.wall(machines),
        "disk_bytes": cost.disk_bytes,
        "memory_bytes": cost.held_bytes(machines),
        "unknown": cost.unknown if cost.seconds is None else None,
    }


def planned(recipe: Recipe, asked: Asked, *, tell: Callable[[str], None], start_s: float = 0.0) -> Planned:
    """Return the plan of a recipe; `tell` hears of inputs, `start_s` is what a run takes before its first task.

    Raises the user's errors that `run` would raise before its first step.
    """
    missing = _missing_package(recipe)
    files, run_dir = pipeline.prepare(recipe, encoder="any" if missing else "installed"), run_dir_of(recipe)
    files = recognise_inputs(recipe, files, run_dir, tell=tell)
    steps = pipeline.route(recipe, files)
    states = [_state(step, run_dir, store_of(recipe)) for step in steps]
    if all(state.startswith("done") for state in states) and not asked.is_elsewhere and asked.chunks is None:
        return Planned(recipe, steps, states)
    _check_writable(run_dir)
    if asked.chunks is not None:
        states = ["" for _ in steps]  # of another corpus
    elif name_for(recipe, run_dir) not in variant_names(run_dir):  # as a run does
        pipeline.check_corpus(recipe, files)
    plan = make(recipe, files, steps, asked, start_s=start_s)
    todo = {step.name for step, state in zip(steps, states, strict=True) if not state.startswith("done")}
    columns = [(machines, {name: cost for name, cost in of.items() if name in todo}) for machines, of in plan.on]
    tokenizing, seen = plan.measured.tokenizing, plan.measured.sample
    is_other = asked.is_elsewhere or asked.chunks is not None
    shard_bytes, workers = shard_bytes_of(recipe.ingest, files), asked.workers or pipeline.worker_count(recipe)
    loses = lossy_tokenizer(tokenizing.lost_share)
    return Planned(
        recipe,
        steps,
        states,
        plan,
        columns,
        assumed(recipe, plan.amounts, columns[-1], asked, product_s=plan.measured.product_s) if is_other else (),
        [
            *warnings.of_the_sample(recipe, seen),
            *warnings.of_the_index(recipe, plan.amounts),
            *(
                []
                if asked.is_elsewhere
                else warnings.of_this_machine(recipe, total(steps, columns[0][1], columns[0][0]), run_dir)
            ),
            *warnings.of_the_data(
                recipe,
                plan.amounts,
                seen,
                plan.too_long + plan.too_little_room,
                chars_per_token=tokenizing.chars_per_token,
                documents_share=plan.measured.trial.documents_share,
            ),
            *whole_files(recipe.ingest.sources, files, shard_bytes=shard_bytes, workers=workers),
        ],
        f"the tokenizer {loses}" if loses else "",
        missing,
    )


def show(recipe: Recipe, console: Console, asked: Asked = Asked(), *, start_s: float = 0.0) -> None:  # noqa: B008 - frozen
    """Print the plan of a recipe. Raises the user's errors that `run` would raise before its first step."""
    say = partial(tables.say, console=console)
    page = planned(recipe, asked, tell=say, start_s=start_s)
    if page.plan is not None:
        say(_summary(recipe, page.plan))
    if page.loses:
        say(page.loses, style="yellow")
    _print(page, console)
    for line in page.notes:
        say(line)
    if page.plan is not None and recipe.export.push is not None:
        say(f"the files are put to {recipe.export.push}, too (export.push)")
    for line in page.warnings:
        say(line, style="bold red")
    if page.missing:
        say(f"before `nextlong run`: {page.missing}")


def make(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    steps: Sequence[Step],
    asked: Asked = Asked(),  # noqa: B008
    *,
    start_s: float = 0.0,
) -> Plan:
    """Return what each step will take here, and on other machines where these are asked for.

    Raises CorpusError where no document of a corpus that was seen whole can be extended, as its run would.
    """
    seen = sample(recipe, files)
    if asked.chunks is None and seen.is_whole and (refused := warnings.none_extended(recipe, seen)):
        raise CorpusError(refused)
    return plan_for(recipe, files, steps, measure(recipe, seen), asked, start_s=start_s)


def plan_for(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    steps: Sequence[Step],
    measured: Measured,
    asked: Asked,
    *,
    start_s: float = 0.0,
) -> Plan:
    """Return the plan that follows from what was measured."""
    factor = 1.0 if asked.chunks is None else asked.chunks / max(1.0, measured.sample.size.chunks)
    corpus = measured.sample.size.times(factor)
    corpus = replace(
        corpus,
        dimensions=measured.dimensions,
        shards=_shards(recipe, files, corpus.text_bytes, asked),
    )
    workers = pipeline.worker_count(recipe)
    machines = [Machines(workers, pipeline.count_gpus_for(recipe), start_s=start_s)]
    if asked.is_elsewhere:
        head_s = RAY_HEAD_S if asked.nodes > 1 else HEAD_S
        machines.append(Machines(asked.nodes * (asked.workers or workers), asked.nodes * asked.gpus, head_s, start_s))
    chars_per_token = measured.tokenizing.chars_per_token
    on = []
    for place in machines:
        has_gpu = place.gpus > 0 and recipe.search.device != "cpu"
        amounts = amounts_of(recipe, corpus, chars_per_token=chars_per_token, has_gpu=has_gpu)
        rates = _rates(recipe, amounts, measured, asked)
        on.append((place, costs(steps, amounts, measured.trial, rates, machines=place)))
    too_long, too_little_room = measured.sample.dropped(recipe, chars_per_token=chars_per_token)
    return Plan(amounts, factor * too_long, factor * too_little_room, measured, on)


def _rates(recipe: Recipe, amounts: Amounts, measured: Measured, asked: Asked) -> dict[str, Rate]:
    """Return the rates of what is not tried, by their names in `Estimate.rate`."""
    tokenizing, encoding = measured.tokenizing, measured.encoding
    on_gpu, shape = encoding.chunk_s, shape_of(recipe.encoder)
    if asked.gpus:
        on_gpu = operations_of(shape, amounts) / (asked.gpu_tflops * 1e12) if shape else None
    return {
        "encoder": Rate(encoding.chunk_s, encoding.unknown, on_gpu),
        "queries": Rate(None),
        "tokens": Rate(tokenizing.char_s, start_s=tokenizing.start_s),
        "tokenizer": Rate(tokenizing.slow_s, start_s=lambda _: tokenizing.read_s),
        "products": Rate(measured.product_s, on_gpu=GPU_PRODUCT_S),
    }


def _missing_package(recipe: Recipe) -> str:
    """Say which package running needs and planning does not, "" if it is there."""
    try:
        kind_of(recipe.encoder).check_installed(recipe.encoder)
    except EncoderError as error:
        return str(error)
    return ""


def _summary(recipe: Recipe, plan: Plan) -> str:
    corpus = plan.amounts
    is_kept = round(corpus.kept_documents) == round(corpus.documents)
    lost = {"longer than a sequence": plan.too_long, "with too little room for negatives": plan.too_little_room}
    dropped = ", ".join(f"{count:,.0f} {why}" for why, count in lost.items() if round(count))
    is_exact = plan.measured.sample.is_whole and corpus.documents == plan.measured.sample.size.documents
    return (
        f"{'' if is_exact else 'about '}{corpus.documents:,.0f} documents, {corpus.text_bytes / _MB:,.1f} MB of text"
        f"{'' if is_kept else f', of which {corpus.kept_documents:,.0f} stay'}, {corpus.chunks:,.0f} chunks of "
        f"{corpus.chunk_chars:,.0f} characters on average, {plan.measured.tokenizing.chars_per_token:.2f} characters per token; "
        f"method {described(recipe)}; "
        f"{f'of {corpus.eligible:,.0f} that may be extended about {dropped}; ' if dropped else ''}"
        f"{pipeline.worker_count(recipe)} workers"
    )


def _shards(recipe: Recipe, files: Sequence[Sequence[InputFile]], text_bytes: float, asked: Asked) -> int:
    if asked.chunks is not None:
        return max(1, math.ceil(text_bytes / shard_bytes_for(recipe.ingest, text_bytes)))
    return max(len(files), math.ceil(text_bytes / shard_bytes_of(recipe.ingest, files)))


def _check_writable(run_dir: Path) -> None:
    parent = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise RunError(f"run_dir={run_dir} cannot be written: {parent} is not a folder that you may write to")


def _state(step: Step, run_dir: Path, stored: Path | None) -> str:
    done = runner.find_done(step, run_dir)
    if done is None and stored is not None and (done := runner.find_done(step, stored)) is not None:
        return f"done, {done.manifest['bytes'] / _MB:,.1f} MB in the store"
    if done is not None:
        return f"done, {done.manifest['bytes'] / _MB:,.1f} MB in {done.manifest['seconds']:,.1f} s"
    begun = runner.begun_tasks(step, run_dir)
    return f"begun, {counted(begun, 'task')} done" if begun else "to do"


def _print(page: Planned, console: Console) -> None:
    columns = page.columns
    has_gpus = any(machines.gpus for machines, _ in columns)
    table = tables.table()
    others = [f"{place.workers} workers{f', {place.gpus} GPUs' if place.gpus else ''}" for place, _ in columns[1:]]
    figures = ["time", *others, *(["GPU-hours"] if has_gpus else []), "disk", "memory"] if columns else []
    for heading in ("step", "state", *figures):
        table.add_column(heading, justify="left" if heading in ("step", "state") else "right", no_wrap=True)
    for step, state in zip(page.steps, page.states, strict=True):
        on = [(machines, of[step.name]) for machines, of in columns if step.name in of]
        if not on:
            table.add_row(step.name, state, *("" for _ in figures))
            continue
        (here, first), (_, last) = on[0], on[-1]
        times = [_time(cost.wall(machines), cost.unknown) for machines, cost in on]
        gpu_hours = [_hours(last.seconds if last.on_gpus else None)] if has_gpus else []
        table.add_row(step.name, state, *times, *gpu_hours, _disk(first.disk_bytes), _memory(first.held_bytes(here)))
    if any(of for _, of in columns):
        totals = page.totals
        times = [_time(sums.seconds, sums.unknown) for sums in totals]
        gpu_hours = [_hours(totals[-1].gpu_seconds)] if has_gpus else []
        sizes = _disk(totals[0].disk_bytes), _memory(totals[0].memory_bytes)
        table.add_row("all to do", "", *times, *gpu_hours, *sizes, style="bold")
    tables.show(table, console)


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
