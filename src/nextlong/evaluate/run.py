"""Run: tasks × lengths, one at a time, each sample answered once; or a dry run, without the model.

In:  a model and settings. Out: a results directory (`results.py`). Interrupted at any time, it resumes with the first sample
that is not on the disk; a finished evaluation does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType

import nextlong
from nextlong.engine import store
from nextlong.engine.executor import memory_bytes
from nextlong.errors import EvaluateError
from nextlong.evaluate import engines, required, results
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.engines import SHARDED, HuggingFaceModel
from nextlong.evaluate.prompts import ModelOptions, Prompts
from nextlong.evaluate.task import ALL_SAMPLES, Probe, Task, TaskRequest, short
from nextlong.report import tables
from nextlong.runs.run import Run
from nextlong.text import Json, first_sentence

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
_SILENCE_S: Final = 60.0  # at most, where there is no terminal


_Model = engines.HuggingFaceModel | engines.VllmModel | engines.ServerModel


class IncompleteError(EvaluateError):
    """A task's data, or a length without room for it, give no samples; the results directory holds the other tasks."""


@dataclass(frozen=True)
class EvaluationSettings:
    """What an evaluation measures: `samples` at most per task, None for what its benchmark defines.

    `names_lengths` says whether the user named the lengths. `label` and `negatives_cosine` (of the run that the model was trained
    on) are for reports alone.
    """

    tasks: Sequence[Task | Probe]
    lengths: Sequence[int]
    out: Path
    data: DataFiles
    model: ModelOptions
    samples: int | None = None
    seed: int = 42
    label: str | None = None
    run: Path | None = None
    negatives_cosine: float | None = None
    names_lengths: bool = True

    def missing(self, task: Task | Probe, length: int | None) -> list[str]:
        """Return the files that a task reads at a length and that are not in the data folder."""
        return [
            name
            for name in task.needs(length)
            if not self.data.has(self.data.source(name))
        ]


def _pairs(settings: EvaluationSettings) -> list[tuple[Task | Probe, int | None]]:
    """Return the tasks with their lengths. Raises EvaluateError for a task defined at none of the lengths."""
    for task in settings.tasks:
        if task.lengths and not set(task.lengths) & set(settings.lengths):
            known = ", ".join(map(str, task.lengths))
            raise EvaluateError(
                f"--lengths: {task.name} is defined at {known} only; add one of them or leave it out"
            )

    def lengths_of(task: Task | Probe) -> Sequence[int | None]:
        if task.lengths is None:
            return [None]
        if task.usual_length is not None and not settings.names_lengths:
            return [task.usual_length]
        return task.lengths or settings.lengths

    # Short lengths first: mistakes in the setup show after minutes rather than hours.
    lengths = [*sorted(settings.lengths), None]
    return [
        (task, length)
        for length in lengths
        for task in settings.tasks
        if length in lengths_of(task)
    ]


def check(settings: EvaluationSettings, *, context: int | None) -> None:
    """Raise EvaluateError for a missing run, a probe of a server, a length beyond the model's context, or missing files."""
    for task in settings.tasks:
        if task.reads == "run" and settings.run is None:
            raise EvaluateError(
                f"{task.name}: add --run RUN, the run whose sequences are read"
            )
        if isinstance(task, Probe) and settings.model.url:
            _local(None, task)
    for _, length in _pairs(settings):
        if context is not None and length is not None and length > context:
            cure = "leave the length out, or give a model with a longer one (--context overrides it, at your own risk)"
            raise EvaluateError(
                f"--lengths {length:,}: the model's context is {context:,} tokens; {cure}"
            )
    if missing := dict.fromkeys(
        name for pair in _pairs(settings) for name in settings.missing(*pair)
    ):
        raise settings.data.missing(list(missing))


def _local(model: _Model | None, probe: Probe) -> HuggingFaceModel:
    """Return the local model that a probe measures. Raises EvaluateError for a model on a server."""
    if isinstance(model, HuggingFaceModel):
        return model
    cure = "name the model's folder or hub name, without --url, or leave the probe out"
    raise EvaluateError(
        f"{probe.name}: a server gives no access to the inside of its model; {cure}"
    )


def evaluate(
    open_model: Callable[[], _Model],
    settings: EvaluationSettings,
    *,
    progress: TaskProgress,
) -> results.ModelResults:
    """Answer what is missing and return all results. Files are looked for before the model is loaded.

    Raises EvaluateError, before the first task begins, for a probe that cannot be measured on this model, and IncompleteError at
    the end for tasks that no sample could be made for; the others are measured.
    """
    # First without the model, which may take minutes to load, then with its context.
    check(settings, context=None)
    model = open_model()
    check(settings, context=model.context)
    if model.prompts.format == "completion" and getattr(
        model.prompts.template, "chat_template", None
    ):
        progress.note(
            "the model has a chat template, but is given plain text; add --prompt-format chat to use it"
        )
    todo = [
        (task, length, results.place_of(settings.out, task.name, length))
        for task, length in _pairs(settings)
    ]
    for task, _, place in todo:
        if isinstance(task, Probe) and not place.exists():
            task.check_model(_local(model, task), settings.run)
    with store.explained(settings.out):
        settings.out.mkdir(parents=True, exist_ok=True)
    with store.locked(settings.out):
        about = {"label": settings.label, "negatives_cosine": settings.negatives_cosine}
        results.write_index(settings.out, {**model.identity(), **about})
        # The tokens that remain to be read of each: none of a finished one, nor of one without length.
        progress.tokens = [
            0
            if place.is_file()
            else (length or 0)
            * max((settings.samples or task.samples) - results.answered(place), 0)
            for task, length, place in todo
        ]
        failed = []
        for task, length, _ in todo:
            try:
                _one(model, task, length, settings, progress)
            except IncompleteError as error:
                progress.note(f"{task.name}: {error}")
                failed.append(str(error))
            except RuntimeError as error:
                if (
                    type(error).__name__ != "OutOfMemoryError"
                ):  # torch's, which this module does not import
                    raise
                where = (
                    task.name if length is None else f"{task.name} at {length:,} tokens"
                )
                raise EvaluateError(
                    f"{where}: the device is out of memory; lower --chunk-tokens or --batch-tokens, give --dtype bfloat16, or "
                    f"leave the length out (finished answers are kept): {str(error).partition('. ')[0]}"
                ) from None
    if failed:
        more = f" (and {len(failed) - 1} more, see above)" if len(failed) > 1 else ""
        rest = (
            f"; the others: nextlong evaluate report {settings.out}"
            if len(failed) < len(todo)
            else ""
        )
        raise IncompleteError(
            f"{len(failed)} of {len(todo)} not measured: {failed[0]}{more}{rest}"
        )
    return results.read_results(settings.out)


def opened(settings: EvaluationSettings) -> _Model:
    """Load the model, or connect to its server."""
    options = settings.model
    if options.url is not None:
        return engines.ServerModel(options, Prompts.read(options))
    if options.engine == "vllm":
        return engines.VllmModel(options, longest=max(settings.lengths))
    return HuggingFaceModel(options)


def _one(
    model: _Model,
    task: Task | Probe,
    length: int | None,
    settings: EvaluationSettings,
    progress: TaskProgress,
) -> None:
    data, names = settings.data, (*task.needs(length), *task.optional(length or 0))
    samples, final = (
        settings.samples or task.samples,
        results.place_of(settings.out, task.name, length),
    )
    # A result depends on, among others, the hash of every file that is read (of its stand-in if the file is missing).
    read = sorted({source for name in names if data.has(source := data.source(name))})
    depends_on: Json = {
        "task": task.name,
        "version": task.version,
        "length": length,
        "samples": samples,
    }
    depends_on |= {"seed": settings.seed, "model": model.identity()}
    depends_on["data"] = {name: store.hash_file(data.path(name)) for name in read}
    if settings.run and (isinstance(task, Probe) or task.reads == "run"):
        depends_on["run"] = str(
            Run(settings.run).steps["compose"].manifest["fingerprint"]
        )
    mark = results.fingerprint(depends_on)
    if final.is_file():
        done = results.read_finished(final)
        if done.values["fingerprint"] != mark:
            cure = "delete it to measure again, or give another --out"
            raise EvaluateError(
                f"{final} was measured with other settings, samples or data; {cure}"
            )
        progress.start(task.name, length, 0, done=0)
        progress.done(f"{done.score:6.2f}  cached")
        return
    request = TaskRequest(
        length or 0,
        model.prompts.tokenizer,
        data,
        samples,
        settings.seed,
        model.prompts.overhead,
    )
    request = replace(request, run=settings.run, advance=progress.advance)
    # The time of this session alone: of a resumed task the earlier part is not counted.
    began = time.monotonic()
    with closing(results.Partial(final.with_suffix(".partial.jsonl"), mark)) as partial:
        progress.start(task.name, length, samples, done=len(partial.samples))
        if isinstance(task, Probe):
            try:
                values = task.measure(_local(model, task), request)
            except (
                EvaluateError
            ) as error:  # the other tasks and probes are measured all the same
                raise IncompleteError(str(error)) from None
            values = {"score": values["scores"][task.metric], "refused": 0, **values}
        else:
            for lines in _answered(
                model, task, request, samples, skip=len(partial.samples)
            ):
                partial.append(lines)
                progress.advance(len(lines))
            values = _means(task, partial.samples, request.length)
        about: Json = {
            name: getattr(task, name) for name in ("suite", "category", "metric")
        }
        about |= {
            "task": task.name,
            "length": length,
            "seconds": round(time.monotonic() - began, 3),
        }
        about = {"nextlong": nextlong.__version__, "engine": model.engine, **about}
        partial.finish(
            final, {**about, **values, "fingerprint": mark, "depends_on": depends_on}
        )
        took = timedelta(seconds=round(time.monotonic() - began))
        refusals = (
            f"  {values['refused']} refused: too long" if values["refused"] else ""
        )
        progress.done(
            f"{float(values['score']):6.2f}  {values['n']} samples, {took}{refusals}"
        )


def _means(task: Task, lines: Sequence[Json], length: int) -> Json:
    answered = [line for line in lines if not line.get("refused")]
    if not answered:
        raise IncompleteError(
            f"no sample of {task.name} fits {length:,} tokens of this tokenizer, {len(lines)} were refused; "
            "give a greater length, or leave the task out"
        )
    # A refused sample counts as 0: a model is not better for what does not fit.
    means = {
        name: 100.0 * sum(line["scores"][name] for line in answered) / len(lines)
        for name in answered[0]["scores"]
    }
    return {
        "score": means[task.metric],
        "scores": means,
        "n": len(lines),
        "refused": len(lines) - len(answered),
    }


def _answered(
    model: _Model, task: Task, request: TaskRequest, samples: int, *, skip: int
) -> Iterator[list[Json]]:
    """Yield the lines of the samples after the first `skip`, a batch at a time."""
    prompts = model.prompts
    # `make` is called when the first sample is taken, so that its errors are those of a sample.
    made = islice(chain.from_iterable(map(task.make, [request])), skip, samples)
    while True:
        try:
            group = list(islice(made, model.batch(request.length)))
        except EvaluateError as error:
            raise IncompleteError(str(error).removeprefix("--lengths: ")) from None
        if not group:
            return
        # A sample fits with its answer, also the model's context. Lengths count no BOS, as RULER's, and no reasoning; the last
        # token of an answer is never read, which leaves room for a BOS.
        fitting = [
            sample for sample in group if sample is not None and request.fits(sample)
        ]
        if (most := model.context) is not None:
            fitting = [
                one
                for one in fitting
                if len(prompts.ids(one)) + prompts.budget(one) - 1 <= most
            ]
        answers = list(model.answers(fitting)) if fitting else []
        if task.follow_up is not None and answers:
            # The first answers are only the reasoning; the answers to the second questions are scored.
            answers = list(
                model.answers(
                    [
                        task.follow_up(*pair)
                        for pair in zip(answers, fitting, strict=True)
                    ]
                )
            )
        remaining_answers, lines = iter(answers), []
        for sample in group:
            details = (
                {"details": sample.details}
                if sample is not None and sample.details
                else {}
            )
            # Refused samples are not sent; their lines keep their places, so that a resumed task continues at the right one.
            if sample is None or sample not in fitting:
                lines.append({"refused": True, **details})
                continue
            if prompts.thinking:  # its answer follows its reasoning, not the prefix that other models continue
                sample = replace(sample, answer_prefix="")
            answer = next(remaining_answers)
            about = {
                "prompt_sha256": prompts.hash_of(sample),
                "answer_prefix": sample.answer_prefix,
            }
            scored = {
                "references": list(sample.references),
                "scores": task.score(answer, sample),
            }
            lines.append({**about, "answer": answer, **scored, **details})
        yield lines


class TaskProgress:
    """Print what is measured: a moving line on a terminal; else a line per task, and one a minute for those that take longer.

    The time left for all tasks is estimated from tokens at the pace so far: longer prompts take longer per token, and refused
    samples and shared prefixes take almost nothing.
    """

    def __init__(self, console: Console) -> None:
        self._console, self._number, self._read, self._first_s = console, 0, 0, 0.0
        self.tokens: Sequence[int] = ()  # that remain to be read for each task

    def start(self, task: str, length: int | None, samples: int, *, done: int) -> None:
        """Begin a task, `done` of its samples answered before."""
        self._number += 1
        self._samples, self._done, self._fresh, self._length = (
            samples,
            done,
            0,
            length or 0,
        )
        size = "" if length is None else f"{length:>9,}"
        self._name = f"[{self._number}/{len(self.tokens)}] {task:<18}{size}"
        self._began_s = self._printed_s = time.monotonic()
        # The pace begins with the first task: loading the model is no part of it.
        self._first_s = self._began_s if self._number == 1 else self._first_s
        if done:
            self.note(f"{self._name} resumes after {done} of {samples} samples")

    def advance(self, samples: int) -> None:
        """Count more answered samples, and print the time left."""
        self._done, self._fresh = self._done + samples, self._fresh + samples
        self._read += samples * self._length
        now, tokens = time.monotonic(), sum(self.tokens[self._number :])
        if not self._console.is_terminal and now - self._printed_s < _SILENCE_S:
            return
        # At the pace of this session: samples that an earlier one answered took no time.
        left_s = (
            max(self._samples - self._done, 0)
            * (now - self._began_s)
            / max(self._fresh, 1)
        )
        state = f"{self._name} {self._done}/{self._samples}  {timedelta(seconds=round(left_s))} left"
        if self._read and tokens:
            left_s += tokens * (now - self._first_s) / self._read
            state += f", about {timedelta(seconds=round(left_s))} for all"
        self._printed_s = now
        if self._console.is_terminal:
            self._console.print(f"{state} ", end="\r", highlight=False)
        else:
            self.note(state)

    def done(self, outcome: str) -> None:
        self.note(f"{self._name} {outcome}")

    def note(self, line: str) -> None:
        if self._console.is_terminal:
            self._console.control(
                Control((ControlType.ERASE_IN_LINE, 2))
            )  # the moving line
        tables.say(line, self._console)


def planned(settings: EvaluationSettings) -> tuple[Json, int | None]:
    """Return the plan of an evaluation, and the context of its model where it is known; nothing is downloaded.

    For each task and length: its samples (None: all), its state, and at most how many tokens remain to be read; and a description
    of the memory that the greatest length takes, None for a server.
    """
    options = settings.model
    config = engines.local_config(options) if options.url is None else None
    context, tasks = engines.context_of(config, options), list[Json]()
    for task, length in _pairs(settings):
        missing, samples = (
            settings.missing(task, length),
            settings.samples or task.samples,
        )
        if results.place_of(settings.out, task.name, length).is_file():
            state = "done"
        elif task.reads == "run" and settings.run is None:
            state = "missing: --run RUN"
        elif context is not None and (length or 0) > context:
            state = f"too long: the model's context is {context:,}"
        else:
            state = f"missing: {', '.join(missing)}" if missing else "to do"
        tokens = (
            0 if state == "done" or samples == ALL_SAMPLES else samples * (length or 0)
        )
        about = {
            "task": task.name,
            "length": length,
            "samples": None if samples == ALL_SAMPLES else samples,
        }
        tasks.append({**about, "state": state, "tokens": tokens})
    memory = _memory(config, options, settings.lengths) if options.url is None else None
    total = sum(one["tokens"] for one in tasks)
    return {
        "model": options.name,
        "tasks": tasks,
        "tokens": total,
        "memory": memory,
    }, context


def show(plan: Json, console: Console) -> None:
    """Print the tasks with their samples and tokens, what is missing, and the memory at the greatest length."""
    table = tables.table()
    for heading in ("task", "length", "samples", "tokens to read", "state"):
        table.add_column(
            heading,
            justify="left" if heading in ("task", "state") else "right",
            overflow="fold",
        )
    for one in plan["tasks"]:
        tokens = f"{one['tokens']:,}" if one["length"] else "–"
        samples = "all" if one["samples"] is None else f"{one['samples']:,}"
        table.add_row(
            one["task"],
            short(one["length"]),
            samples,
            tokens,
            tables.cell(one["state"]),
        )
    tables.show(table, console)
    tables.say(
        f"to read: {plan['tokens']:,} tokens at most; shared prefixes are read once",
        console,
    )
    if plan["memory"]:
        tables.say(plan["memory"], console)


def _memory(
    config: PreTrainedConfig | None, options: ModelOptions, lengths: Sequence[int]
) -> str:
    """Describe the memory of weights, cache and activations at the length that needs the most."""
    place, capacity = _device_memory(
        options.device
    )  # refuses a device that does not exist
    if config is None:
        return (
            f"{options.name} is no local folder and not in the cache of the Hugging Face hub, which a dry run does not contact: "
            f"whether it exists, its context and its memory are unknown; `hf download {options.name}`, or name its folder, and try "
            "again"
        )
    # Short prompts are answered together, so the longest need not take the most memory.
    length = max(
        lengths,
        key=lambda length: (max(options.batch_tokens // length, 1) * length, length),
    )
    dtype, weights, cache = _needed_bytes(
        config, options, max(1, options.batch_tokens // length) * length
    )
    sizes = f"key-value cache {cache / 2**30:.2f} GiB"
    if weights is None:
        sizes = f"weights: not on this machine, {sizes}"
    else:
        both = f"together {(weights + cache) / 2**30:.2f} GiB and the activations of {options.chunk_tokens:,} tokens"
        sizes = f"weights {weights / 2**30:.2f} GiB, {sizes}, {both}"
    sizes += f"; {place} has {capacity / 2**30:.2f} GiB"
    if (weights or 0) + cache > capacity:
        sizes += ", which is too little: lower --batch-tokens, give --dtype bfloat16, or leave the length out"
    return f"memory at {short(length)} in {dtype}: {sizes}"


def _needed_bytes(
    config: PreTrainedConfig, options: ModelOptions, tokens: int
) -> tuple[str, int | None, int]:
    """Return the type that a model is loaded in, the bytes of its weights (None if elsewhere), and of the cache of some tokens."""
    # The files hold one type and the model may be loaded in another; bytes are scaled by the ratio of the two.
    saved = str(getattr(config, "dtype", None) or "float32").split(".")[-1]
    dtype, weights = options.dtype if options.dtype in _BYTES else saved, None
    size, folder = _BYTES.get(dtype, 4), Path(options.name).expanduser()
    if folder.is_dir():
        # Folders may hold both formats of the same weights; transformers reads the first.
        files = list(folder.glob("*.safetensors")) or list(
            folder.glob("pytorch_model*.bin")
        )
        if not files:
            raise EvaluateError(
                f"{options.name} has no weights (*.safetensors); save the model with `save_pretrained`"
            )
        weights = (
            sum(file.stat().st_size for file in files) * size // _BYTES.get(saved, 4)
        )
    # 2 × layers × key-value heads × head size × tokens.
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = (
        getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads
    )
    return (
        dtype,
        weights,
        int(2 * config.num_hidden_layers * heads * head_size * tokens * size),
    )


def _device_memory(device: str) -> tuple[str, int]:
    """Return the device that a model would be loaded onto, and its bytes. Raises EvaluateError for one that does not exist."""
    torch, cuda = required("torch"), required("torch.cuda")
    place = device if device != "auto" else "cuda" if cuda.is_available() else "cpu"
    if place == SHARDED and cuda.is_available():
        # Layers are spread over all GPUs, so their memory adds up.
        capacities = [
            cuda.get_device_properties(number).total_memory
            for number in range(cuda.device_count())
        ]
        return f"{len(capacities)} GPUs", int(sum(capacities))
    try:
        if place != SHARDED and torch.device(place).type == "cuda":
            return place, int(cuda.get_device_properties(place).total_memory)
    except (RuntimeError, AssertionError) as error:  # torch asserts for CUDA
        known = ", ".join(
            [
                "auto",
                "cpu",
                *(f"cuda:{number}" for number in range(cuda.device_count())),
            ]
        )
        raise EvaluateError(
            f"--device {device}: {first_sentence(error)}; choose from {known}"
        ) from None
    return "this machine", memory_bytes()
