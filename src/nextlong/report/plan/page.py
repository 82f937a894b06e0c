"""Plan: what would run, what is done, and what it will take, before anything runs.

In:  a recipe. Out: a table: documents, chunks, and for every step its state, time, disk and memory.
What is not done yet is estimated (`costs.py`) from a small sample of the user's own files, read, chunked, encoded and
tokenized here and now (`sample.py`); nothing is written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from nextlong import pipeline
from nextlong.artefacts.record import run_dir_of
from nextlong.corpus import steps as corpus_steps
from nextlong.engine import runner
from nextlong.engine.step import Step
from nextlong.errors import EncoderError, RunError
from nextlong.inputs.files import InputFile
from nextlong.inputs.remembered import check_apart, input_files, recognise_inputs
from nextlong.methods.base import described
from nextlong.recipe import Recipe
from nextlong.report import tables
from nextlong.report.plan import costs as plan_costs
from nextlong.report.plan import sample as plan_sample
from nextlong.report.plan.costs import Cost
from nextlong.report.plan.earlier import earlier_rates
from nextlong.tokens import lost
from nextlong.tokens.enough import too_short, uses_a_chunk_once

_MB = 1_000_000


@dataclass(frozen=True)
class Planned:
    """What would run: each step with its state and, where it is not done, its cost; what there is to say before and after.

    `corpus` and `rates` are None where everything is done and nothing had to be measured.
    """

    recipe: Recipe
    steps: Sequence[Step]
    states: Sequence[str]
    costs: Mapping[str, Cost]
    corpus: plan_sample.Corpus | None
    rates: plan_sample.Rates | None
    too_long: str
    lost: str
    missing: str

    @property
    def total(self) -> Cost | None:
        """The cost of all that is to do, None where nothing is."""
        if not self.costs:
            return None
        waves = (
            [self.costs[step.name] for step in wave if step.name in self.costs] for wave in plan_costs.waves(self.steps)
        )
        return plan_costs.total(waves, workers=pipeline.worker_count(self.recipe))

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain dictionaries and lists."""
        costs = {name: asdict(cost) for name, cost in self.costs.items()}
        return {
            "run_dir": self.recipe.run_dir,
            "method": described(self.recipe),
            "workers": pipeline.worker_count(self.recipe),
            "documents": self.corpus and self.corpus.documents,
            "kept_documents": self.corpus and self.corpus.kept_documents,
            "chunks": self.corpus and self.corpus.chunks,
            "text_bytes": self.corpus and self.corpus.text_bytes,
            "chars_per_token": self.rates and self.rates.chars_per_token,
            "steps": [
                {"step": step.name, "state": state, "cost": costs.get(step.name)}
                for step, state in zip(self.steps, self.states, strict=True)
            ],
            "all_to_do": self.total and asdict(self.total),
            "warnings": [told for told in (self.too_long, self.lost, self.missing) if told],
        }


def planned(recipe: Recipe, *, tell: Callable[[str], None]) -> Planned:
    """Return the plan of a recipe; `tell` is told of inputs. Raises the user's errors that `run` would raise first."""
    missing = _missing_package(recipe)
    pipeline.check_beforehand(recipe, encoder="any" if missing else "installed")
    run_dir = run_dir_of(recipe)
    check_apart(recipe, run_dir)
    files = recognise_inputs(recipe, input_files(recipe), run_dir, tell=tell)
    steps = pipeline.route(recipe, files)
    states = [_state(step, run_dir) for step in steps]
    if all(state.startswith("done") for state in states):
        return Planned(recipe, steps, states, {}, None, None, "", "", missing)
    _check_writable(run_dir)
    corpus, rates = plan_sample.measure(recipe, files)
    shards = _shards(recipe, files, corpus.text_bytes)
    found = plan_costs.estimate(recipe, corpus, rates, shards=shards, earlier=earlier_rates(recipe, run_dir))
    todo = {step.name for step, state in zip(steps, states, strict=True) if not state.startswith("done")}
    costs = {step.name: found[step.name] for step in steps if step.name in todo and step.name in found}
    loses = lost.warning(rates.lost_share)
    too_long = _too_long(recipe, corpus, rates)
    return Planned(
        recipe, steps, states, costs, corpus, rates, too_long, f"the tokenizer {loses}" if loses else "", missing
    )


def show(recipe: Recipe, console: Console) -> None:
    """Print the plan of a recipe. Raises the user's errors that `run` would raise before its first step."""
    told = partial(console.print, highlight=False, soft_wrap=not console.is_terminal)
    plan = planned(recipe, tell=told)
    if plan.corpus is not None and plan.rates is not None:
        told(_summary(recipe, plan.corpus, plan.rates))
    if plan.too_long:
        told(plan.too_long, style="bold red")
    if plan.lost:
        told(plan.lost, style="yellow")
    _print(plan, console)
    if plan.missing:
        told(f"before `nextlong run`: {plan.missing}", markup=False)


def _missing_package(recipe: Recipe) -> str:
    """Say which package running needs and planning does not, "" if it is there."""
    try:
        pipeline.check_encoder(recipe)
    except EncoderError as error:
        return str(error)
    return ""


def _summary(recipe: Recipe, corpus: plan_sample.Corpus, rates: plan_sample.Rates) -> str:
    kept = (
        f", of which {corpus.kept_documents:,.0f} stay"
        if round(corpus.kept_documents) < round(corpus.documents)
        else ""
    )
    return (
        f"{'' if corpus.is_whole else 'about '}{corpus.documents:,.0f} documents, {corpus.text_bytes / _MB:,.1f} MB of text"
        f"{kept}, {corpus.chunks:,.0f} chunks of {corpus.kept_chars / max(1.0, corpus.chunks):,.0f} characters on average, "
        f"{rates.chars_per_token:.2f} characters per token; method {described(recipe)}; {pipeline.worker_count(recipe)} workers"
    )


def _too_long(recipe: Recipe, corpus: plan_sample.Corpus, rates: plan_sample.Rates) -> str:
    """Say so where all documents together are shorter than one sequence; an estimate, as everything here."""
    tokens, asked = corpus.kept_chars / rates.chars_per_token, recipe.compose.target_tokens
    if tokens >= asked or not uses_a_chunk_once(recipe):
        return ""
    return too_short(recipe, tokens)


def _shards(recipe: Recipe, files: Sequence[Sequence[InputFile]], text_bytes: float) -> int:
    return max(len(files), math.ceil(text_bytes / corpus_steps.shard_bytes_of(recipe, files)))


def _check_writable(run_dir: Path) -> None:
    there = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise RunError(f"run_dir={run_dir} cannot be written: {there} is no folder that you may write to")


def _state(step: Step, run_dir: Path) -> str:
    done = runner.find_done(step, run_dir)
    if done is not None:
        return f"done, {done.manifest['bytes'] / _MB:,.1f} MB in {done.manifest['seconds']:,.1f} s"
    begun = runner.begun_tasks(step, run_dir)
    return f"begun, {begun} tasks done" if begun else "to do"


def _print(plan: Planned, console: Console) -> None:
    table = tables.table()
    for heading in ("step", "state", "time", "disk", "memory"):
        table.add_column(heading, justify="left" if heading in ("step", "state") else "right", no_wrap=True)
    for step, state in zip(plan.steps, plan.states, strict=True):
        cost = plan.costs.get(step.name)
        table.add_row(step.name, state, *(_cells(cost) if cost else ("", "", "")))
    if plan.total:
        table.add_row("all to do", "", *_cells(plan.total), style="bold")
    tables.show(table, console)


def _cells(cost: Cost) -> tuple[str, str, str]:
    if cost.seconds is None:
        told = cost.why_unknown
    elif cost.seconds < 120:
        told = f"{max(0.1, cost.seconds):,.1f} s"
    else:
        told = f"{cost.seconds / 60:,.0f} min" if cost.seconds < 7200 else f"{cost.seconds / 3600:,.1f} h"
    return told, f"{cost.disk_bytes / _MB:,.1f} MB", f"{cost.memory_mb:,.0f} MB"
