"""Costs: how much each step has to do, and what that will take, from what it declares and what it took in a trial.

Out: the `Amounts` of a corpus, a `Cost` a step, and when each step runs on so many workers and GPUs. Times assume that every
worker is as fast as one core was on the trial.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nextlong.engine.step import TRIED, Amounts, Step
from nextlong.methods.base import DocumentMethod, Need, method_of
from nextlong.recipe import Recipe, keys
from nextlong.recipe.keys import AUTO, SURE_SHARE, candidates_of, draws, sequence_limit
from nextlong.retrieval import index as search_index
from nextlong.retrieval.indexes.base import index_kind
from nextlong.retrieval.shortlist import CONTROL_SHARE
from nextlong.schemas import Layout

WORKER_BYTES = 130e6  # a worker with its libraries, measured (bench/README.md)
_TELLING_SECONDS = 0.03  # a step that takes less in a trial tells little: part of it is the same for any size
HEAD_S = 0.004  # a task, assumed: handing it over and taking it back is 0.5 ms (docs/scale.md), the rest is its files
RAY_HEAD_S = 0.01  # through Ray 3.6 ms


@dataclass(frozen=True)
class Trial:
    """How much there was to do in a trial, and what each step that finished took, by name: processor seconds, bytes written."""

    amounts: Amounts
    seconds: Mapping[str, float]
    bytes: Mapping[str, float]
    # Documents of a sequence, over those that it would have if every chunk of the trial were as likely as any other.
    documents_share: float = 1.0


class Rate(NamedTuple):
    """Seconds a unit of work; None: not known, for the reason given. `start_s`: what a worker takes besides for so much."""

    seconds: float | None
    unknown: str = "not known"
    on_gpu: float | None = None
    start_s: Callable[[float], float] = lambda _: 0.0


class Machines(NamedTuple):
    """Worker processes and GPUs; `start_s` passes before the first task; processes hold `process_bytes` beside tasks."""

    workers: int
    gpus: int = 0
    head_s: float = HEAD_S
    start_s: float = 0.0
    process_bytes: float = 0.0


class Total(NamedTuple):
    """What one step, or all, take on some machines; seconds None: not known, for the reason given."""

    seconds: float | None
    disk_bytes: float
    memory_bytes: float
    gpu_seconds: float
    unknown: str = ""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a step takes: `seconds` of one worker, or GPU, all tasks together, and `start_s` more for each worker that takes part.

    `seconds` is None where they are unknown, for the reason given. `read_bytes` of its input files, `disk_bytes` are written;
    `memory_bytes` are those of one task, beyond what each worker holds.
    """

    seconds: float | None
    disk_bytes: float
    read_bytes: float = 0.0
    memory_bytes: float = 0.0
    start_s: float = 0.0
    tasks: int = 1
    on_gpus: bool = False
    at_once: int | None = None
    unknown: str = "not known"


def amounts_of(
    recipe: Recipe, corpus: Amounts, *, chars_per_token: float, has_gpu: bool = False
) -> Amounts:
    """Return `corpus`, which holds the sizes up to `dimensions`, with what follows from them filled in.

    The same formulas serve the corpus and the trials, so a formula that is off by a factor leaves the estimate as it is.
    """
    method, compose = method_of(recipe), recipe.compose
    drawn, limit = draws(compose) or math.inf, sequence_limit(compose) or math.inf
    sequence_chars = recipe.sequence_tokens * chars_per_token
    mean_chars = max(
        1.0, corpus.kept_chars / max(1.0, corpus.kept_documents)
    )  # of a document
    vectors, queries, neighbours, embedded = (
        corpus.kept_documents,
        0.0,
        0.0,
        corpus.chunks,
    )
    if isinstance(method, DocumentMethod) and Need.DOCUMENT_NEIGHBOURS in method.needs:
        declared = method.neighbours(
            recipe.options
        )  # None: as many as fill a sequence several times
        filling = (
            4
            * keys.document_chars(recipe.sequence_tokens, chars_per_token)
            / mean_chars
        )
        neighbours = math.ceil(filling) if declared is None else declared
        queries = min(
            drawn if method.searches == "sampled documents" else math.inf,
            corpus.kept_documents,
        )
    if method.layout == Layout.EXTENDED:
        most = corpus.eligible
        meta_chunks = corpus.meta_chunks / max(1.0, corpus.eligible)  # of a document
        drawn = min(most, drawn)
        queries, named = drawn * meta_chunks, min(drawn, limit)
        # More are drafted than named, until enough are surely short enough; as if lengths fell off exponentially.
        sure = -math.expm1(
            -SURE_SHARE * sequence_chars / max(1.0, corpus.chunk_chars * meta_chunks)
        )
        drafts = min(drawn, named / max(1e-9, sure))
        draft_chars = sequence_chars * compose.draft_factor
    else:
        is_repeating = (
            Need.DOCUMENT_NEIGHBOURS in method.needs
            and method.repeats_documents(recipe.options)
        )
        most = (
            corpus.kept_documents
            if is_repeating
            else corpus.kept_chars / sequence_chars
        )
        drafts = min(most, drawn)
        named = min(drafts, limit)
        draft_chars = sequence_chars + mean_chars
    is_shortlisted = False
    if Need.CHUNK_NEIGHBOURS in method.needs:
        vectors, neighbours = (
            corpus.chunks,
            candidates_of(compose, recipe.mine, chunk_chars=corpus.chunk_chars),
        )
        if is_shortlisted := recipe.mine.shortlist is not None:
            sizes = {
                "chunks": corpus.chunks,
                "chunk_chars": corpus.chunk_chars,
                "meta_documents": drafts,
            }
            wanted = queries + drafts * keys.shortlist_chunks(
                compose, recipe.mine, **sizes
            )
            shortlisted = different(corpus.chunks, wanted)
            embedded = shortlisted + CONTROL_SHARE * (corpus.chunks - shortlisted)
    draft_chunks = min(corpus.chunks, draft_chars / max(1.0, corpus.chunk_chars))
    sequences = most if compose.sequences == "all" else min(most, compose.sequences)
    amounts = replace(
        corpus,
        vectors=vectors,
        neighbours=neighbours,
        embedded=embedded,
        queries=queries,
        drafts=drafts,
        drafted_chunks=drafts * draft_chunks,
        referenced_chunks=different(corpus.chunks, named * draft_chunks),
        sequences=sequences,
        tokens=sequences * recipe.sequence_tokens,
    )
    if is_shortlisted:
        return amounts  # searched exactly
    index = (
        search_index.choose(amounts, has_gpu=has_gpu)[0]
        if recipe.search.index == AUTO
        else recipe.search.index
    )
    share = search_index.visited_share(amounts)
    return (
        replace(amounts, index=index, visited_share=share)
        if index_kind(index).is_built
        else amounts
    )


def different(among: float, drawn: float) -> float:
    """Return the expected number of distinct items after drawing `drawn` times from `among`, with replacement."""
    # Each is missed by all draws with a probability of (1 - 1 / among) ** drawn, nearly exp(-drawn / among).
    return among * -math.expm1(-drawn / max(1.0, among))


def costs(
    steps: Sequence[Step],
    amounts: Amounts,
    trial: Trial,
    rates: Mapping[str, Rate],
    *,
    machines: Machines,
) -> dict[str, Cost]:
    """Return what each step will take: at the rate it names where that is in `rates`, else as much a unit as in the trial."""
    cost_of: dict[str, Cost] = {}
    for step in steps:
        estimate, took = step.estimate, trial.seconds.get(step.name)
        on_gpus = machines.gpus > 0 and step.resources.gpu != "unused"
        tasks = max(1, round(amounts.of(estimate.tasks)))
        work, rate, start_s = amounts.of(estimate.work), rates.get(estimate.rate), 0.0
        seconds: float | None = estimate.seconds * work
        if rate is not None:
            unit = rate.on_gpu if on_gpus else rate.seconds
            start_s = rate.start_s(work / min(tasks, machines.workers)) if work else 0.0
            seconds = 0.0 if not work else None if unit is None else unit * work
            if estimate.task_s and seconds:
                tasks = max(tasks, math.ceil(seconds / estimate.task_s))
        elif (
            estimate.rate == TRIED
            and took is not None
            and (tried := trial.amounts.of(estimate.work))
        ):
            is_telling = took > _TELLING_SECONDS or not estimate.seconds
            seconds = work * (
                took / tried if is_telling else min(took / tried, estimate.seconds)
            )
        unit_bytes, tried = estimate.bytes, trial.amounts.of(estimate.disk)
        if tried and step.name in trial.bytes:
            unit_bytes = trial.bytes[step.name] / tried
        reads = (
            sum(cost_of[one.name].disk_bytes for one in step.inputs)
            if estimate.reads is None
            else estimate.reads
        )
        cost_of[step.name] = Cost(
            seconds=seconds,
            start_s=start_s,
            disk_bytes=unit_bytes * amounts.of(estimate.disk),
            read_bytes=amounts.of(reads),
            memory_bytes=amounts.of(estimate.memory),
            tasks=tasks,
            on_gpus=on_gpus,
            at_once=step.resources.at_once,
            unknown=rate.unknown if rate is not None else "",
        )
    return cost_of


def total(
    steps: Sequence[Step], cost_of: Mapping[str, Cost], machines: Machines
) -> Total:
    """Return what the steps in `cost_of` take together, of which those run side by side that need not wait for each other."""
    unknown = [cost.unknown for cost in cost_of.values() if cost.seconds is None]
    when = schedule(steps, cost_of, machines)
    memory = {}  # of the tasks of a step that run at once
    for name, cost in cost_of.items():
        most = machines.gpus if cost.on_gpus else machines.workers
        memory[name] = cost.memory_bytes * max(
            1, min(cost.tasks, most, cost.at_once or most)
        )
    together = [
        [name for name, (low, high) in when.items() if low <= begin < high]
        for begin, _ in when.values()
    ]
    # A step whose time is unknown takes none in `when`.
    peak = max(
        [
            *memory.values(),
            *(sum(map(memory.__getitem__, names)) for names in together),
        ],
        default=0.0,
    )
    end = machines.start_s * bool(when) + max(
        (end for _, end in when.values()), default=0.0
    )
    return Total(
        seconds=None if unknown else end,
        disk_bytes=sum(cost.disk_bytes for cost in cost_of.values()),
        memory_bytes=machines.process_bytes + peak,
        gpu_seconds=sum(
            (cost.seconds or 0.0) * cost.on_gpus for cost in cost_of.values()
        ),
        unknown=unknown[0] if unknown else "",
    )


def schedule(
    steps: Sequence[Step], cost_of: Mapping[str, Cost], machines: Machines
) -> dict[str, tuple[float, float]]:
    """Return (begin, end) of each step in `cost_of`, in seconds.

    As the runner does it: a step starts when the steps that it needs are done; what is free takes the next task, those of the
    first step first; handing tasks over takes the head a moment each, one after the other, and that is what ends scaling at last.
    """
    waiting = {
        step.name: {one.name for one in step.inputs} & cost_of.keys()
        for step in steps
        if step.name in cost_of
    }
    begins: dict[str, float] = {}
    ended: dict[str, tuple[float, float]] = {}
    running, begun = (
        dict.fromkeys(waiting, 0),
        dict.fromkeys(waiting, 0),
    )  # tasks of each step
    free = {False: machines.workers, True: machines.gpus}
    now = head = 0.0
    events: list[tuple[float, int, str]] = []  # end of a task, its number, its step
    while waiting or begins:
        for name in [name for name, needs in waiting.items() if needs <= ended.keys()]:
            del waiting[name]
            begins[name] = now
        for name in begins:
            cost = cost_of[name]
            while (
                begun[name] < cost.tasks
                and free[cost.on_gpus]
                and running[name] < (cost.at_once or math.inf)
            ):
                head = max(head, now) + machines.head_s
                is_first = (
                    begun[name] < machines.workers
                )  # of its worker, which takes the start
                taken = (cost.seconds or 0.0) / cost.tasks + (
                    cost.start_s if is_first else 0.0
                )
                heapq.heappush(events, (head + taken, sum(begun.values()), name))
                running[name] += 1
                begun[name] += 1
                free[cost.on_gpus] -= 1
        assert events, f"no worker or GPU for {', '.join(begins)}"
        now, _, name = heapq.heappop(events)
        running[name] -= 1
        free[cost_of[name].on_gpus] += 1
        if begun[name] == cost_of[name].tasks and not running[name]:
            ended[name] = (begins.pop(name), now)
    return ended
