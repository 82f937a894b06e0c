"""Plan: the state of every step, and its time, disk space and memory, before anything runs.

Unfinished steps are estimated from a trial: they run on a small sample of the user's own files (`trial.py`), and the measured
costs are scaled to the size of the corpus (`costs.py`), also for other machines or a larger corpus.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import yaml
from rich.console import Console

from nextlong import pipeline
from nextlong.checks import (
    NOT_PLANNED,
    Corpus,
    check,
    check_encoder,
    is_new,
    too_short,
)
from nextlong.corpus.ingest import allowing
from nextlong.corpus.splits import shard_bytes_of, whole_files
from nextlong.engine import runner
from nextlong.engine.executor import memory_bytes
from nextlong.engine.step import Step
from nextlong.errors import CorpusError, EncoderError, RunError
from nextlong.methods.base import described, method_of
from nextlong.reading.files import InputFile
from nextlong.recipe import Recipe
from nextlong.recipe.keys import EXACT, TYPICAL_CHARS_PER_TOKEN
from nextlong.report import tables
from nextlong.report.plan import costs as of_costs
from nextlong.report.plan.amounts import Amounts, amounts_of, different
from nextlong.report.plan.costs import Cost, Machines, Rate, Total, costs, total
from nextlong.report.plan.estimates import estimates_of
from nextlong.report.plan.search_estimates import read_bytes
from nextlong.report.plan.trial import CorpusSample, Measured, measure, sample
from nextlong.retrieval import index as search_index
from nextlong.retrieval.encoders.base import kind_of
from nextlong.retrieval.indexes.base import index_kind
from nextlong.retrieval.sample import none_long_enough
from nextlong.runs.statistics import warnings
from nextlong.runs.statistics.stats import DataWarning
from nextlong.runs.statistics.thresholds import THRESHOLDS
from nextlong.schemas import Layout
from nextlong.sequences.shortfall import (
    LONGER,
    MOST_DROPPED,
    is_extended,
    uses_a_chunk_once,
)
from nextlong.sequences.tokenizer import lossy_tokenizer
from nextlong.text import Json, counted

_MB = 1_000_000
_WORDS: Final[dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("words.yaml").read_text("utf-8")
)
GPU_TFLOP_PER_S = 120.0  # of a data-centre GPU in half precision at some 500 tokens a text: a third of an A100's 312


@dataclass(frozen=True)
class Scenario:
    """The machines and the corpus size to plan for, from the command line; None: those of this machine and the recipe."""

    workers: int | None = None  # processes a node
    nodes: int = 1
    gpus: int = 0  # a node
    chunks: float | None = None  # plan for a corpus of this many chunks
    gpu_tflops: float = GPU_TFLOP_PER_S
    start_s: float = 0.0  # what a run takes before its first task

    @property
    def is_elsewhere(self) -> bool:
        """Whether the scenario includes other machines than this one."""
        return self.workers is not None or self.nodes > 1 or self.gpus > 0


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The steps to run and their cost in each scenario, this machine first; without `measured` everything is done."""

    recipe: Recipe
    steps: Sequence[Step]
    states: Sequence[str]  # of each step
    missing: str = ""  # a package that running needs and planning does not
    loses: str = ""  # the message that the tokenizer loses characters
    measured: Measured | None = None
    amounts: Amounts | None = (
        None  # on the last of the machines; None if nothing was measured
    )
    lost: Sequence[float | None] = (
        None,
        None,
    )  # documents longer than a sequence, and those with too little room
    on: Sequence[
        tuple[Machines, Mapping[str, Cost]]
    ] = ()  # the costs of the unfinished steps on each machine
    notes: Sequence[str] = ()  # the assumptions behind figures for other machines
    warnings: Sequence[str] = ()

    def taken(self, step: Step) -> list[Total]:
        """Return the cost of an unfinished step, run alone, on each of the machines."""
        on = [
            (machines._replace(head_s=0.0, start_s=0.0), of)
            for machines, of in self.on
            if step.name in of
        ]
        return [
            total([step], {step.name: of[step.name]}, machines) for machines, of in on
        ]

    @property
    def totals(self) -> list[Total]:
        """The cost of all unfinished steps together, on each of the machines."""
        return [total(self.steps, costs, machines) for machines, costs in self.on]

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists."""
        amounts = self.amounts and vars(self.amounts)
        return {
            "run_dir": self.recipe.run_dir,
            "method": described(self.recipe),
            "workers": pipeline.worker_count(self.recipe),
            "push": self.recipe.export.push,
            **{
                name: amounts and amounts[name]
                for name in ("documents", "kept_documents", "chunks", "eligible")
            },
            "too_long": self.lost[0],
            "too_little_room": self.lost[1],
            "text_bytes": amounts and amounts["text_bytes"],
            "chars_per_token": self.measured
            and self.measured.tokenizing.chars_per_token,
            "steps": [
                {
                    "step": step.name,
                    "state": state,
                    "costs": [taken._asdict() for taken in self.taken(step)],
                }
                for step, state in zip(self.steps, self.states, strict=True)
            ],
            "all_to_do": [
                machines._asdict() | sums._asdict()
                for (machines, _), sums in zip(self.on, self.totals, strict=True)
            ],
            "assumed": list(self.notes),
            "warnings": [
                one for one in (self.loses, *self.warnings, self.missing) if one
            ],
        }


def plan(
    recipe: Recipe,
    scenario: Scenario = Scenario(),
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> _Plan:
    """Return the plan of a recipe; `tell` gets notes on its inputs. Raises the errors that `run` would raise before it starts."""
    corpus = Corpus(recipe, tell=tell)
    missing = ""
    try:
        check_encoder(recipe, corpus)
    except EncoderError as error:
        missing = str(error)
    check(recipe, corpus, "before the lock", skip=NOT_PLANNED)
    check(recipe, corpus, "in the run directory", skip=NOT_PLANNED)
    run_dir = recipe.run_path
    files = corpus.files
    steps = pipeline.route(pipeline.sized(recipe, files), files)
    is_other_corpus = scenario.chunks is not None
    states = []
    for step in steps:
        begun = runner.begun_tasks(step, run_dir)
        state = f"begun, {counted(begun, 'task')} done" if begun else "to do"
        if (done := runner.find_done(step, run_dir)) is not None:
            state = f"done, {done.manifest['bytes'] / _MB:,.1f} MB in {done.manifest['seconds']:,.1f} s"
        states.append("" if is_other_corpus else state)
    todo = {
        step.name
        for step, state in zip(steps, states, strict=True)
        if not state.startswith("done")
    }
    known = _Plan(recipe=recipe, steps=steps, states=states, missing=missing)
    if not todo and not scenario.is_elsewhere:
        return known
    parent = next(
        path
        for path in (run_dir.absolute(), *run_dir.absolute().parents)
        if path.exists()
    )
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise RunError(
            f"run_dir={run_dir} cannot be written: {parent} is not a folder that you may write to"
        )
    if not is_other_corpus and is_new(recipe):
        check(recipe, corpus, "of documents")
    corpus_sample = sample(recipe, corpus)
    if not is_other_corpus and corpus_sample.is_whole:
        refusal = _none_extended(recipe, corpus_sample)
        if refusal is not None:
            raise refusal
    measured = measure(recipe, corpus_sample)
    chars_per_token = measured.tokenizing.chars_per_token
    places = costs_on(recipe, files, steps, measured, scenario)
    on = [
        (machines, {name: of[name] for name in of if name in todo})
        for machines, _, of in places
    ]
    _, amounts, _ = places[-1]
    factor = amounts.chunks / max(1.0, corpus_sample.size.chunks)
    lost = [
        factor * count
        for count in corpus_sample.dropped(recipe, chars_per_token=chars_per_token)
    ]
    on_this_machine = (
        None if scenario.is_elsewhere else total(steps, on[0][1], on[0][0])
    )
    shard_bytes, workers = (
        shard_bytes_of(recipe.ingest, files),
        scenario.workers or pipeline.worker_count(recipe),
    )
    is_assumed, loses = (
        scenario.is_elsewhere or is_other_corpus,
        lossy_tokenizer(measured.tokenizing.lost_share),
    )
    return replace(
        known,
        measured=measured,
        loses=f"the tokenizer {loses}" if loses else "",
        amounts=amounts,
        lost=lost,
        on=on,
        notes=assumed(recipe, amounts, on[-1], scenario, product_s=measured.product_s)
        if is_assumed
        else (),
        warnings=[
            *_warn_of_run(recipe, amounts, corpus_sample, on_this_machine),
            *_warn_of_data(recipe, amounts, measured, dropped=sum(lost)),
            *whole_files(
                recipe.ingest.sources, files, shard_bytes=shard_bytes, workers=workers
            ),
        ],
    )


def costs_on(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    steps: Sequence[Step],
    measured: Measured,
    scenario: Scenario,
) -> list[tuple[Machines, Amounts, dict[str, Cost]]]:
    """Return the amount of work and the cost of each step on this machine, and on the machines of the scenario."""
    corpus, workers = measured.sample.size, pipeline.worker_count(recipe)
    least, shard_bytes = len(files), shard_bytes_of(recipe.ingest, files)
    if scenario.chunks is not None:
        corpus = corpus.times(scenario.chunks / max(1.0, corpus.chunks))
        least, shard_bytes = (
            1,
            shard_bytes_of(recipe.ingest, text_bytes=corpus.text_bytes),
        )
    shards = max(least, math.ceil(corpus.text_bytes / shard_bytes))
    corpus = replace(corpus, dimensions=measured.dimensions, shards=shards)
    places = [(workers, pipeline.count_gpus_for(recipe), of_costs.HEAD_S)]
    if scenario.is_elsewhere:
        head_s = of_costs.RAY_HEAD_S if scenario.nodes > 1 else of_costs.HEAD_S
        places.append(
            (
                scenario.nodes * (scenario.workers or workers),
                scenario.nodes * scenario.gpus,
                head_s,
            )
        )
    encoding, shape, on = (
        measured.encoding,
        kind_of(recipe.encoder).shape(recipe.encoder),
        [],
    )
    estimates = estimates_of(recipe, steps)
    for processes, gpus, head_s in places:
        own_bytes = (
            0.0 if recipe.executor == "serial" else of_costs.WORKER_BYTES * processes
        )
        machines = Machines(
            processes,
            gpus,
            head_s,
            scenario.start_s,
            measured.process_bytes + own_bytes,
        )
        has_gpu = gpus > 0 and recipe.search.device != "cpu"
        amounts = amounts_of(
            recipe,
            corpus,
            chars_per_token=measured.tokenizing.chars_per_token,
            has_gpu=has_gpu,
        )
        on_gpu, tokens = encoding.chunk_s, amounts.chunk_chars / TYPICAL_CHARS_PER_TOKEN
        if scenario.gpus:
            on_gpu = (
                shape.operations(tokens) / (scenario.gpu_tflops * 1e12)
                if shape
                else None
            )
        # Of work that the trial does not measure, by the names in `Estimate.rate`.
        encoder = Rate(encoding.chunk_s, encoding.unknown, on_gpu)
        products = Rate(measured.product_s, on_gpu=search_index.GPU_PRODUCT_S)
        rates = {
            "encoder": encoder,
            "queries": Rate(None),
            "products": products,
            **measured.tokenizing.rates,
        }
        on.append(
            (
                machines,
                amounts,
                costs(
                    steps,
                    amounts,
                    measured.trial,
                    rates,
                    estimates=estimates,
                    machines=machines,
                ),
            )
        )
    return on


def assumed(
    recipe: Recipe,
    amounts: Amounts,
    on: tuple[Machines, Mapping[str, Cost]],
    scenario: Scenario,
    *,
    product_s: float,
) -> Sequence[str]:
    """Return the lines with the assumptions behind the costs `on` other machines or for another corpus."""
    machines, cost_of = on
    lines = ["", "assumed:"]
    if scenario.is_elsewhere:
        gigabytes = sum(cost.disk_bytes for cost in cost_of.values()) / 1e9
        values = {
            "scenario": scenario,
            "s": "s" * (scenario.nodes > 1),
            "gigabytes": gigabytes,
        }
        values |= {
            "workers": machines.workers // scenario.nodes,
            "head_ms": machines.head_s * 1e3,
        }
        lines.append("  " + _WORDS["machines"].format(**values))
    on_gpus = {name for name, cost in cost_of.items() if cost.on_gpus}
    if (
        "embed" in on_gpus
        and scenario.gpus
        and (shape := kind_of(recipe.encoder).shape(recipe.encoder)) is not None
    ):
        tokens = amounts.chunk_chars / TYPICAL_CHARS_PER_TOKEN
        operations = shape.operations(tokens)
        values = {
            "chunks": amounts.chunks,
            "tokens": tokens,
            "parameters": shape.parameters / 1e6,
            "shape": shape,
        }
        values |= {
            "operations": amounts.chunks * operations,
            "tflops": scenario.gpu_tflops,
        }
        lines.append(
            "  "
            + _WORDS["embed"].format(
                **values, rate=scenario.gpu_tflops * 1e12 / operations
            )
        )
    if amounts.queries:
        pairs = (
            2
            * amounts.queries
            * amounts.vectors
            * amounts.dimensions
            * amounts.visited_share
        )
        where = f"{2 / product_s / 1e9:,.0f} GFLOP/s per core (measured)"
        if on_gpus & {"mine", "neighbours"}:
            where = f"{2 / search_index.GPU_PRODUCT_S / 1e12:,.0f} TFLOP/s per GPU (assumed)"
        is_built = index_kind(amounts.index).is_built
        visited = f" × {amounts.visited_share:.1%} visited" if is_built else ""
        values = {
            "size": amounts,
            "visited": visited,
            "operations": pairs,
            "where": where,
        }
        lines.append(
            "  "
            + _WORDS["search"].format(**values, gigabytes=read_bytes(amounts) / 1e9)
        )
        lines += [
            "  " + _WORDS["recall"].format(recall=recipe.search.recall)
        ] * is_built
    return lines


def show(recipe: Recipe, console: Console, scenario: Scenario = Scenario()) -> None:
    """Print the plan of a recipe. Raises the user's errors that `run` would raise before its first step."""
    say = partial(tables.say, console=console)
    page = plan(recipe, scenario, tell=say)
    if (measured := page.measured) is not None and (corpus := page.amounts) is not None:
        longer = (
            f"are longer than a sequence (the longest: {measured.sample.longest()})"
        )
        reasons = zip(
            page.lost, (longer, "leave too little room for negatives"), strict=True
        )
        dropped = ", ".join(
            f"{count:,.0f} {why}" for count, why in reasons if count and round(count)
        )
        is_exact = (
            measured.sample.is_whole
            and corpus.documents == measured.sample.size.documents
        )
        is_kept = round(corpus.kept_documents) == round(corpus.documents)
        stay = "" if is_kept else f", of which {corpus.kept_documents:,.0f} are kept"
        lost = (
            f"{corpus.eligible:,.0f} can be extended, but about {dropped}; "
            if dropped
            else ""
        )
        values = {
            "about": "" if is_exact else "about ",
            "size": corpus,
            "mb": corpus.text_bytes / _MB,
            "stay": stay,
        }
        values |= {
            "chars_per_token": measured.tokenizing.chars_per_token,
            "method": described(recipe),
            "lost": lost,
        }
        say(
            _WORDS["summary"].format(
                **values, workers=counted(pipeline.worker_count(recipe), "worker")
            )
        )
    if page.loses:
        say(page.loses, style="yellow")
    has_gpus = any(machines.gpus for machines, _ in page.on)
    others = [
        f"{place.workers} workers{f', {place.gpus} GPUs' if place.gpus else ''}"
        for place, _ in page.on[1:]
    ]
    figures = (
        ["time", *others, *(["GPU-hours"] if has_gpus else []), "disk", "memory"]
        if page.on
        else []
    )
    table = tables.table()
    for heading in ("step", "state", *figures):
        table.add_column(
            heading,
            justify="left" if heading in ("step", "state") else "right",
            no_wrap=True,
        )
    rows = [
        (step.name, state, page.taken(step), "")
        for step, state in zip(page.steps, page.states, strict=True)
    ]
    if any(of for _, of in page.on):
        rows.append(("all to do", "", page.totals, "bold"))
    for name, state, taken, style in rows:
        cells = [_time(one.seconds, one.unknown) for one in taken]
        if taken:
            cells += [
                f"{taken[-1].gpu_seconds / 3600:,.1f}" if taken[-1].gpu_seconds else ""
            ] * has_gpus
            cells += [
                _size(taken[0].disk_bytes, 1, 1e10),
                _size(taken[0].memory_bytes, 0, 1e11),
            ]
        table.add_row(name, state, *cells, style=style)
    tables.show(table, console)
    for line in page.notes:
        say(line)
    if page.measured is not None and recipe.export.push is not None:
        say(f"the exported files are also copied to {recipe.export.push} (export.push)")
    for line in page.warnings:
        say(line, style="bold red")
    if page.missing:
        say(f"before `nextlong run`: {page.missing}")


def _time(seconds: float | None, unknown: str) -> str:
    if seconds is None:
        return unknown
    if seconds < 7200:
        return (
            f"{max(0.1, seconds):,.1f} s"
            if seconds < 120
            else f"{seconds / 60:,.0f} min"
        )
    return (
        f"{seconds / 3600:,.1f} h"
        if seconds < 172_800
        else f"{seconds / 86_400:,.1f} days"
    )


def _size(count: float, decimals: int, in_gigabytes: float) -> str:
    return (
        f"{count / _MB:,.{decimals}f} MB"
        if count < in_gigabytes
        else f"{count / 1e9:,.0f} GB"
    )


def _none_extended(recipe: Recipe, sample: CorpusSample) -> CorpusError | None:
    """Return the error that no document has enough chunks to be extended, if so."""
    if method_of(recipe).layout != Layout.EXTENDED or sample.size.eligible:
        return None
    size, looked_at = sample.size, len(sample.looked_at)
    documents = (
        f"{size.kept_documents:,.0f} documents"
        if sample.is_whole
        else f"{looked_at:,} documents of a sample"
    )
    return none_long_enough(
        documents, recipe.compose.min_meta_chunks, max_chars=recipe.chunk.max_chars
    )


def _warn_of_run(
    recipe: Recipe, amounts: Amounts, sample: CorpusSample, needed: Total | None
) -> list[str]:
    """Return why the run is likely to fail, would be faster with another index, or does not fit this machine."""
    messages, count = [], sum(sample.rejects.values())
    share = count / max(1.0, count + sample.size.documents)
    if share > recipe.ingest.max_reject_share:
        kinds = ", ".join(
            sorted(sample.rejects, key=lambda kind: (-sample.rejects[kind], kind))[:3]
        )
        most = recipe.ingest.max_reject_share
        messages.append(
            _WORDS["rejects"].format(
                share=share, kinds=kinds, most=most, allowing=allowing(share)
            )
        )
    refusal = _none_extended(recipe, sample)
    if refusal is not None:
        messages.append(f"the run is likely to stop: {refusal}")
    if (
        recipe.search.index == EXACT
        and recipe.mine.shortlist is None
        and amounts.queries
    ):
        has_gpu = search_index.has_gpu(recipe.search)
        index, _ = search_index.choose(amounts.search, has_gpu=has_gpu)
        exact_h, approximate_h = (
            seconds / 3600
            for seconds in search_index.seconds(amounts.search, has_gpu=has_gpu)
        )
        if index_kind(index).is_built:
            messages.append(
                _WORDS["index"].format(
                    exact_h=exact_h, index=index, approximate_h=approximate_h
                )
            )
    if needed is None:  # on other machines
        return messages
    run_dir = recipe.run_path.absolute()
    free = shutil.disk_usage(
        next(path for path in (run_dir, *run_dir.parents) if path.exists())
    ).free
    if needed.disk_bytes > free:
        messages.append(
            _WORDS["disk"].format(
                needed=needed.disk_bytes / 1e9, run_dir=recipe.run_path, free=free / 1e9
            )
        )
    if needed.memory_bytes > (memory := memory_bytes()):
        fewer = (
            ""
            if recipe.workers == 1 or (os.cpu_count() or 1) == 1
            else "fewer workers (--set workers=1), or "
        )
        messages.append(
            _WORDS["memory"].format(
                needed=needed.memory_bytes / 1e9, memory=memory / 1e9, fewer=fewer
            )
        )
    return messages


def _warn_of_data(
    recipe: Recipe, amounts: Amounts, measured: Measured, *, dropped: float
) -> list[str]:
    """Return the warnings that the run will give because of the corpus's size, if all chunks are used equally often."""
    sample, chars_per_token = measured.sample, measured.tokenizing.chars_per_token
    # Exactly, as a run does before its first step.
    is_checked = sample.is_whole and amounts.chunks == sample.size.chunks
    tokens = amounts.kept_chars / chars_per_token
    if (
        not is_checked
        and uses_a_chunk_once(recipe.compose)
        and tokens < recipe.compose.target_tokens
    ):
        return [str(too_short(recipe.compose, tokens))]
    warned: list[DataWarning | None] = []
    if is_extended(recipe.compose) and dropped > MOST_DROPPED * amounts.eligible:
        values = {
            "dropped": dropped,
            "eligible": amounts.eligible,
            "share": dropped / amounts.eligible,
        }
        message = _WORDS["many-dropped"].format(
            **values, tokens=recipe.compose.target_tokens, longer=LONGER
        )
        warned.append(DataWarning("many-dropped", message))
    warned.append(warnings.stand_in_tokenizer(recipe, recipe.compose.target_tokens))
    if uses_a_chunk_once(recipe.compose):
        chunks = (
            recipe.compose.target_tokens
            * chars_per_token
            / max(1.0, amounts.chunk_chars)
        )
        if method_of(recipe).scores:
            factor = amounts.chunks / max(
                1.0, sample.size.chunks
            )  # size of the planned corpus over the present one
            in_sequence = (
                measured.trial.documents_share
                * factor
                * sample.documents_of(chunks / max(1e-9, factor))
            )
            warned.append(warnings.small_corpus(in_sequence, amounts.kept_documents))
        uses = amounts.sequences * chunks
        mean = uses / max(1.0, different(amounts.chunks, uses))
        if mean > THRESHOLDS.max_uses and recipe.compose.max_uses is None:
            warned.append(
                warnings.heavy_reuse(
                    f"about {mean:,.1f} times on average", recipe, max_uses=mean
                )
            )
    return [str(one) for one in warned if one]
