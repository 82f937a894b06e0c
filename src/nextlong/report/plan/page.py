"""Plan: the state of every step, and its time, disk space and memory, before it runs.

Unfinished steps are estimated from a trial: they run on a small sample of the user's
own files (`trial.py`), and the measured costs are scaled to the size of the corpus
(`costs.py`), also for other machines or a larger corpus.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from rich.console import Console
from rich.table import Table

from nextlong import pipeline
from nextlong.checks import NOT_PLANNED, Corpus, check, check_encoder, is_new
from nextlong.corpus.splits import shard_bytes_of, whole_files
from nextlong.engine import runner
from nextlong.engine.step import Step
from nextlong.errors import EncoderError, RunError
from nextlong.methods.base import described
from nextlong.reading.files import InputFile
from nextlong.recipe import Recipe
from nextlong.report import tables
from nextlong.report.plan import warnings
from nextlong.report.plan.amounts import Amounts
from nextlong.report.plan.costs import Cost, Machines, Total, total
from nextlong.report.plan.measure import Measured, measure
from nextlong.report.plan.sample import CorpusSample, sample
from nextlong.report.plan.scenario import HERE, Scenario, assumed, costs_on
from nextlong.report.plan.texts import TEXTS
from nextlong.sequences.tokenizer import lossy_tokenizer
from nextlong.text import Json, counted

_MB: Final = 1_000_000
_AMOUNTS: Final = ("documents", "kept_documents", "chunks", "eligible")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps to run and their cost in each scenario, this machine first.

    Without `measured` everything is done. `states` are those of the steps. `missing` is
    a package that running needs and planning does not; `loses` says that the tokenizer
    loses characters. `amounts` are those on the last of the machines; `lost` counts the
    documents longer than a sequence, and those with too little room. `on` has the costs
    of the unfinished steps on each machine, and `notes` the assumptions behind figures
    for other machines.
    """

    recipe: Recipe
    steps: Sequence[Step]
    states: Sequence[str]
    missing: str = ""
    loses: str = ""
    measured: Measured | None = None
    amounts: Amounts | None = None
    lost: Sequence[float | None] = (None, None)
    on: Sequence[tuple[Machines, Mapping[str, Cost]]] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def taken(self, step: Step) -> list[Total]:
        """Return the cost of an unfinished step, run alone, on each of the machines."""
        taken = []
        for machines, cost_of in self.on:
            if step.name in cost_of:
                # A step alone is not charged for the start of a run, nor for handing
                # over tasks.
                alone = machines._replace(head_s=0.0, start_s=0.0)
                taken.append(total([step], {step.name: cost_of[step.name]}, alone))
        return taken

    @property
    def totals(self) -> list[Total]:
        """The cost of all unfinished steps together, on each of the machines."""
        return [total(self.steps, cost_of, machines) for machines, cost_of in self.on]

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists."""
        amounts = self.amounts
        steps = []
        for step, state in zip(self.steps, self.states, strict=True):
            costs = [taken._asdict() for taken in self.taken(step)]
            steps.append({"step": step.name, "state": state, "costs": costs})
        all_to_do = []
        for (machines, _), sums in zip(self.on, self.totals, strict=True):
            values = machines._asdict() | sums._asdict()
            all_to_do.append(values)
        # In the order in which the page prints them.
        messages = (self.loses, *self.warnings, self.missing)
        return {
            "run_dir": self.recipe.run_dir,
            "method": described(self.recipe),
            "workers": pipeline.worker_count(self.recipe),
            "push": self.recipe.export.push,
            **{name: amounts and getattr(amounts, name) for name in _AMOUNTS},
            "too_long": self.lost[0],
            "too_little_room": self.lost[1],
            "text_bytes": amounts and amounts.text_bytes,
            "chars_per_token": (
                self.measured and self.measured.tokenizing.chars_per_token
            ),
            "steps": steps,
            "all_to_do": all_to_do,
            "assumed": list(self.notes),
            "warnings": [message for message in messages if message],
        }


def plan(
    recipe: Recipe,
    scenario: Scenario = HERE,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Return the plan of a recipe; `tell` gets notes on its inputs.

    Raises the errors that `run` would raise before it starts.
    """
    corpus = Corpus(recipe, tell=tell)
    missing = ""
    try:
        check_encoder(recipe, corpus)
    except EncoderError as error:
        missing = str(error)
    # As a run does before its first step.
    check(recipe, corpus, "before the lock", skip=NOT_PLANNED)
    check(recipe, corpus, "in the run directory", skip=NOT_PLANNED)
    files = corpus.files
    steps = pipeline.route(pipeline.sized(recipe, files), files)
    is_other_corpus = scenario.chunks is not None
    states = [""] * len(steps)
    if not is_other_corpus:
        states = [_state(step, recipe) for step in steps]
    todo = [
        step.name
        for step, state in zip(steps, states, strict=True)
        if not state.startswith("done")
    ]
    known = Plan(
        recipe=recipe,
        steps=steps,
        states=states,
        missing=missing,
    )
    # Nothing is left to estimate here.
    if not todo and not scenario.is_elsewhere:
        return known
    _check_writable(recipe)
    if not is_other_corpus and is_new(recipe):
        check(recipe, corpus, "of documents")
    corpus_sample = sample(recipe, corpus)
    if not is_other_corpus and corpus_sample.is_whole:
        refusal = warnings.none_extended(recipe, corpus_sample)
        if refusal is not None:
            raise refusal
    measured = measure(recipe, corpus_sample)
    return _with_costs(
        known,
        files,
        measured,
        scenario,
        todo=todo,
    )


def _with_costs(
    known: Plan,
    files: Sequence[Sequence[InputFile]],
    measured: Measured,
    scenario: Scenario,
    *,
    todo: Collection[str],
) -> Plan:
    """Return a plan with the costs of the steps that are to do, and its warnings."""
    recipe = known.recipe
    on_each = costs_on(
        recipe,
        files,
        known.steps,
        measured,
        scenario,
    )
    on = []
    for machines, _, cost_of in on_each:
        unfinished = {name: cost_of[name] for name in cost_of if name in todo}
        on.append((machines, unfinished))
    amounts = on_each[-1].amounts
    lost = _lost(recipe, amounts, measured)
    notes: list[str] = []
    if scenario.is_elsewhere or scenario.chunks is not None:
        product_s = measured.product_s
        notes = assumed(
            recipe,
            amounts,
            on[-1],
            scenario,
            product_s=product_s,
        )

    messages = warnings.of_run(recipe, amounts, measured.sample)
    if not scenario.is_elsewhere:
        machines, unfinished = on[0]
        needed = total(known.steps, unfinished, machines)
        messages += warnings.of_this_machine(recipe, needed)
    messages += warnings.of_data(
        recipe,
        amounts,
        measured,
        dropped=sum(lost),
    )
    messages += whole_files(
        recipe.ingest.sources,
        files,
        shard_bytes=shard_bytes_of(recipe.ingest, files),
        workers=scenario.workers or pipeline.worker_count(recipe),
    )
    loses = lossy_tokenizer(measured.tokenizing.lost_share)
    return replace(
        known,
        measured=measured,
        loses=f"the tokenizer {loses}" if loses else "",
        amounts=amounts,
        lost=lost,
        on=on,
        notes=notes,
        warnings=messages,
    )


def _state(step: Step, recipe: Recipe) -> str:
    """Return how far a step is."""
    done = runner.find_done(step, recipe.run_path)
    if done is not None:
        megabytes = done.manifest["bytes"] / _MB
        return f"done, {megabytes:,.1f} MB in {done.manifest['seconds']:,.1f} s"
    begun = runner.begun_tasks(step, recipe.run_path)
    return f"begun, {counted(begun, 'task')} done" if begun else "to do"


def _check_writable(recipe: Recipe) -> None:
    run_dir = recipe.run_path.absolute()
    parents = (path for path in (run_dir, *run_dir.parents) if path.exists())
    parent = next(parents)
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise RunError(
            where="run_dir",
            value=recipe.run_path,
            problem=(
                f"cannot be written: {parent} is not a folder that you may write to"
            ),
            fix="set run_dir to another folder",
        )


def _lost(recipe: Recipe, amounts: Amounts, measured: Measured) -> list[float]:
    """Return the documents of the planned corpus that are dropped, by reason."""
    corpus_sample = measured.sample
    # Of a corpus of another size, the same shares are dropped.
    factor = amounts.chunks / max(1.0, corpus_sample.size.chunks)
    dropped = corpus_sample.dropped(
        recipe, chars_per_token=measured.tokenizing.chars_per_token
    )
    return [factor * count for count in dropped]


def show(recipe: Recipe, console: Console, scenario: Scenario = HERE) -> None:
    """Print the plan of a recipe.

    Raises the user's errors that `run` would raise before its first step.
    """
    say = partial(tables.say, console=console)
    planned = plan(recipe, scenario, tell=say)
    if planned.measured is not None and planned.amounts is not None:
        say(_summary(planned, planned.measured, planned.amounts))
    if planned.loses:
        say(planned.loses, style="yellow")
    tables.show(_table(planned), console)
    for line in planned.notes:
        say(line)
    if planned.measured is not None and recipe.export.push is not None:
        say(f"the exported files are also copied to {recipe.export.push} (export.push)")
    for line in planned.warnings:
        say(line, style="bold red")
    if planned.missing:
        say(f"before `nextlong run`: {planned.missing}")


def _summary(planned: Plan, measured: Measured, corpus: Amounts) -> str:
    """Return the size of the corpus and what is lost of it, in a sentence."""
    recipe = planned.recipe
    corpus_sample = measured.sample
    is_planned = corpus.documents == corpus_sample.size.documents
    is_exact = corpus_sample.is_whole and is_planned
    stay = ""
    if round(corpus.kept_documents) != round(corpus.documents):
        stay = f", of which {corpus.kept_documents:,.0f} are kept"
    lost = ""
    dropped = _dropped(planned, corpus_sample)
    if dropped:
        lost = f"{corpus.eligible:,.0f} can be extended, but about {dropped}; "
    return TEXTS["summary"].format(
        about="" if is_exact else "about ",
        size=corpus,
        mb=corpus.text_bytes / _MB,
        stay=stay,
        chars_per_token=measured.tokenizing.chars_per_token,
        method=described(recipe),
        lost=lost,
        workers=counted(pipeline.worker_count(recipe), "worker"),
    )


def _dropped(planned: Plan, corpus_sample: CorpusSample) -> str:
    """Return which documents are dropped, and why."""
    reasons = (
        f"are longer than a sequence (the longest: {corpus_sample.longest()})",
        "leave too little room for negatives",
    )
    parts = []
    for count, reason in zip(planned.lost, reasons, strict=True):
        if count and round(count):
            parts.append(f"{count:,.0f} {reason}")
    return ", ".join(parts)


def _table(planned: Plan) -> Table:
    """Return a row per step, and one for all steps that are to do."""
    table = tables.table()
    for heading in ("step", "state"):
        table.add_column(heading, justify="left", no_wrap=True)
    for heading in _headings(planned):
        table.add_column(heading, justify="right", no_wrap=True)
    for step, state in zip(planned.steps, planned.states, strict=True):
        cells = _cells(planned, planned.taken(step))
        table.add_row(step.name, state, *cells)
    if any(cost_of for _, cost_of in planned.on):
        cells = _cells(planned, planned.totals)
        table.add_row("all to do", "", *cells, style="bold")
    return table


def _headings(planned: Plan) -> list[str]:
    """Return the headings of the figures; none if everything is done."""
    if not planned.on:
        return []
    others = []
    for machines, _ in planned.on[1:]:
        gpus = f", {machines.gpus} GPUs" if machines.gpus else ""
        others.append(f"{machines.workers} workers{gpus}")
    headings = ["time", *others]
    if _has_gpus(planned):
        headings.append("GPU-hours")
    return [*headings, "disk", "memory"]


def _has_gpus(planned: Plan) -> bool:
    return any(machines.gpus for machines, _ in planned.on)


def _cells(planned: Plan, taken: Sequence[Total]) -> list[str]:
    """Return the figures of a row: times on each machine, disk and memory here."""
    if not taken:
        return []
    cells = [_time(on_machines.seconds, on_machines.unknown) for on_machines in taken]
    if _has_gpus(planned):
        gpu_hours = taken[-1].gpu_seconds / 3600
        cells.append(f"{gpu_hours:,.1f}" if gpu_hours else "")
    # Of other machines, the table shows the time only.
    here = taken[0]
    disk = _size(here.disk_bytes, decimals=1, min_gb_bytes=1e10)
    memory = _size(here.memory_bytes, decimals=0, min_gb_bytes=1e11)
    return [*cells, disk, memory]


def _time(seconds: float | None, unknown: str) -> str:
    if seconds is None:
        return unknown
    if seconds < 120:
        return f"{max(0.1, seconds):,.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:,.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 86_400:,.1f} days"


def _size(count: float, *, decimals: int, min_gb_bytes: float) -> str:
    if count < min_gb_bytes:
        return f"{count / _MB:,.{decimals}f} MB"
    return f"{count / 1e9:,.0f} GB"
