"""Run: base models, arms and measurements of an experiment, resumable.

In:  a recipe.
Out: `OUT/PRESET.json`, which `python -m experiments.replicate report` draws, and every
     run, model and measurement below OUT.

One base model learns retrieval on short rows; from it, one model per arm is extended on
that arm's sequences, made by ordinary runs of the package, with equal tokens. All are
measured on the same probes (`small_llama.py`). A killed experiment resumes at the first
model that is not finished. Seeds are the outer loop, so finished seeds compare all
arms.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

import nextlong
from experiments.replicate import small_llama
from experiments.replicate.corpus import (
    CHUNK_CHARS,
    ECHO_TOKENS,
    Kind,
    probe_maker,
    topic_of,
    word_tokenizer,
)
from experiments.replicate.recipe import ARMS, CRITERION_NEGATIVES, Arm, Replication
from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.recipe import Recipe
from nextlong.runs.run import Run
from nextlong.text import Json
from nextlong.train import forecast, loop, metrics
from nextlong.train.checkpoints import CHECKPOINTS
from nextlong.train.model import accelerator
from nextlong.train.recipe import TrainRecipe

_RECORD: Final = "stage.json"


@dataclass(frozen=True)
class _Stage:
    """A folder `ABOVE/NAME-<fingerprint>`, named after all that determines its content.

    depends_on: what determines it, as plain data
    keys: those of the training recipe, if the stage is a training

    `stage.json` is written last: a stage without it is not finished. Another recipe
    makes other folders and keeps these.
    """

    above: Path
    name: str
    depends_on: Mapping[str, Any]
    keys: Json = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        depends_on = json.dumps(self.depends_on, sort_keys=True, default=str)
        return hashlib.blake2b(depends_on.encode(), digest_size=6).hexdigest()

    @property
    def folder(self) -> Path:
        return self.above / f"{self.name}-{self.fingerprint}"

    @property
    def final(self) -> Path:
        """The folder of a trained model, which `from_pretrained` loads."""
        return self.folder / "final"

    @property
    def is_finished(self) -> bool:
        return (self.folder / _RECORD).is_file()

    @property
    def record(self) -> Json:
        """What `finish` recorded.

        Raises RunError if the stage is not finished, or the file is damaged.
        """
        return dict(store.read_json(self.folder / _RECORD)["made"])

    def finish(self, record: Mapping[str, Any]) -> None:
        depends_on = json.dumps(self.depends_on, default=str)
        with store.explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            content = {"depends_on": json.loads(depends_on), "made": dict(record)}
            store.write_json(self.folder / _RECORD, content)


@dataclass
class _Experiment:
    """A recipe and the stages of its experiment.

    Each stage is made when it is first needed and reused later. `composed` holds, by
    run, the fingerprint of its sequences.
    """

    recipe: Replication
    report: Callable[[str], None]
    composed: dict[str, str] = field(default_factory=dict)

    @cached_property
    def out(self) -> Path:
        return Path(self.recipe.out).expanduser().absolute()

    @property
    def results(self) -> Path:
        return self.out / f"{self.recipe.preset}.json"

    @cached_property
    def corpus(self) -> _Stage:
        corpus = self.recipe.corpus
        stage = _Stage(self.out / "corpus", "invented", corpus.model_dump())
        if not stage.is_finished:
            with store.explained(stage.folder):
                stage.finish(corpus.write(stage.folder))
        return stage

    def run(self, source: str, arm: Arm) -> str:
        """Make a run over one file of the corpus with `nextlong.run`.

        Return it as `FOLDER@NAME`.
        """
        name = "-".join(map(str, [*arm.compose.values(), *arm.mine.values()]))
        run_dir = self.out / "runs" / f"{source}-{self.corpus.fingerprint}"
        named = f"{run_dir}@{name}"
        if named in self.composed:
            return named
        folder = self.corpus.folder
        path = str(folder / f"{source}.jsonl")
        candidates = self.recipe.corpus.candidates
        keys = {
            "run_dir": str(run_dir),
            "name": name,
            "executor": "serial",
            "ingest": {"sources": [{"path": path, "name": source}]},
            "tokenizer": {"source": str(folder / "tokenizer.json")},
            "encoder": {"model": "lsa"},
            "chunk": {"max_chars": CHUNK_CHARS[source]},
            "mine": {
                "candidates": candidates,
                "reorder_top": candidates,
                **arm.mine,
            },
            "compose": dict(arm.compose),
        }
        nextlong.run(Recipe.from_dict(keys, origin=f"data of {name}"))
        manifest = Run(named).steps["compose"].manifest
        self.composed[named] = str(manifest["fingerprint"])
        return named

    @cached_property
    def plain_runs(self) -> dict[str, str]:
        """The runs of the standard method.

        Short rows of documents and of echoes, those of the first leg, and held-out
        rows.
        """
        pretrain = self.recipe.pretrain
        held_out_tokens = self.recipe.extend.row_tokens
        held_out_rows = self.recipe.measure.rows
        return {
            "train": self._plain_run("train", pretrain.tokens, "all"),
            "echoes": self._plain_run("echoes", pretrain.tokens, "all"),
            "first": self._plain_run("echoes", ECHO_TOKENS, "all"),
            "held-out": self._plain_run("held-out", held_out_tokens, held_out_rows),
        }

    def _plain_run(self, source: str, tokens: int, sequences: int | str) -> str:
        compose: Json = {
            "method": "standard",
            "target_tokens": tokens,
            "sequences": sequences,
        }
        return self.run(source, Arm(compose))

    def data_of(self, arm: Arm) -> Json:
        """Return the `data` section of the training recipe of an arm, its runs made."""
        extend = self.recipe.extend
        compose = {
            "target_tokens": extend.row_tokens,
            "sequences": extend.sequences,
            **arm.compose,
        }
        runs = [self.run("train", replace(arm, compose=compose))]
        mix = [1 - extend.replay]
        # The replay: halves of documents and echoes.
        if extend.replay:
            runs += [self.plain_runs["train"], self.plain_runs["echoes"]]
            mix += [extend.replay / 2, extend.replay / 2]
        return {"runs": runs, "mix": mix, "by": "tokens", "pack": extend.row_tokens}

    def look_alikes(self, arm: Arm) -> float | None:
        """Return the share of an arm's negatives that are look-alikes, in percent.

        None if it has no negatives.
        """
        named, *_ = self.data_of(arm)["runs"]
        depends_on = {"sequences": self.composed[named]}
        stage = _Stage(self.out / "measured", "look-alikes", depends_on)
        if not stage.is_finished:
            stage.finish({"percent": _look_alikes_in(Run(named))})
        percent: float | None = stage.record["percent"]
        return percent

    def base(self, seed: int, *, trains: bool = True) -> list[_Stage]:
        """Return the legs of a base model, until the recall of the last one suffices.

        Empty if it does not, or is above the recipe's limit, or, where `trains` is
        false, if one of them is not finished.
        """
        pretrain = self.recipe.pretrain
        lowest, highest = pretrain.recall
        legs: list[_Stage] = []
        recall = 0.0
        while len(legs) <= pretrain.most_legs:
            leg = self._next_leg(seed, legs)
            legs.append(leg)
            if trains:
                self.train(leg, criterion=True)
            elif not leg.is_finished:
                return []
            recall = leg.record["recall"]
            if len(legs) > 1 and recall >= lowest:
                break
        if lowest <= recall <= highest:
            return legs
        if trains:
            self.report(
                f"seed {seed}: after {len(legs)} legs the base model recalls "
                f"{100 * recall:.0f} % of the values, not {100 * lowest:.0f} to "
                f"{100 * highest:.0f} %; the seed is left out"
            )
        return []

    def _next_leg(self, seed: int, legs: Sequence[_Stage]) -> _Stage:
        """Return the leg after some legs of a base model; trains nothing."""
        pretrain = self.recipe.pretrain
        tokens = pretrain.tokens_per_step
        if not legs:
            # The first leg is of echoes alone, in shorter rows.
            parts = ["first"]
            start = self.initial(seed)
            training = _training(
                pretrain.echo_steps, tokens, ECHO_TOKENS, pretrain.echo_lr
            )
            training["schedule"] = "constant"
        else:
            parts = ["train", "echoes"]
            start = legs[-1].final
            training = _training(pretrain.steps, tokens, pretrain.tokens, pretrain.lr)
        keys: Json = {
            # A leg reads the rows in another order.
            "seed": 1000 * seed + len(legs),
            "data": {
                "runs": [self.plain_runs[part] for part in parts],
                "by": "tokens",
                "mix": [1.0] * len(parts),
            },
            "model": {"path": str(start)},
            "training": training,
        }
        before = legs[-1] if legs else None
        return self._trained(f"base-seed{seed}-leg{len(legs) + 1}", keys, before)

    def initial(self, seed: int) -> Path:
        sizes = self.recipe.model.model_dump()
        depends_on = {"model": sizes, "seed": seed}
        stage = _Stage(self.out / "models", f"initial-seed{seed}", depends_on)
        if not stage.is_finished:
            config = small_llama.config(
                vocabulary=word_tokenizer().get_vocab_size(),
                **sizes,
            )
            small_llama.save(stage.final, config, seed=seed)
            stage.finish({})
        return stage.final

    def extended(self, seed: int, name: str, base: _Stage) -> _Stage:
        """Return the model of a seed that is extended on an arm; trains nothing."""
        extend = self.recipe.extend
        keys = {
            "seed": seed,
            "data": self.data_of(ARMS[name]),
            "model": {"path": str(base.final)},
            "training": _training(
                extend.steps, extend.tokens_per_step, extend.row_tokens, extend.lr
            ),
        }
        arm = name.replace(", ", "-").replace(" ", "-")
        return self._trained(f"{arm}-seed{seed}", keys, base)

    def _trained(self, name: str, keys: Json, before: _Stage | None) -> _Stage:
        # A model is named by what it depends on, not by paths, so that the folder may
        # be moved.
        sequences = [self.composed[run] for run in keys["data"]["runs"]]
        origin: str | Json = self.recipe.model.model_dump()
        if before is not None:
            origin = before.fingerprint
        depends_on = {
            **keys,
            "data": {**keys["data"], "runs": sequences},
            "model": origin,
        }
        return _Stage(self.out / "models", name, depends_on, keys)

    def train(self, stage: _Stage, *, criterion: bool = False) -> None:
        """Train a model if it is not finished.

        With `criterion`, measure the recall that ends the training of a base model.
        """
        if stage.is_finished:
            return
        # Seeds are trained in parallel, a core each; and one thread adds its sums in
        # the same order every time.
        torch.set_num_threads(1)
        loop.train(_train_recipe(stage), Console(quiet=True))
        steps = metrics.read(stage.folder / metrics.STEPS)
        shutil.rmtree(stage.folder / CHECKPOINTS, ignore_errors=True)
        weights = (stage.final / "model.safetensors").read_bytes()
        last_losses = [step["loss"] for step in steps[-10:]]
        seconds = sum(step["seconds"] for step in steps)
        record: Json = {
            "loss": float(np.mean(last_losses)),
            "tokens": sum(step["tokens"] for step in steps),
            "seconds": round(seconds, 1),
            "sha256": hashlib.sha256(weights).hexdigest(),
        }
        line = f"{stage.name}: loss {record['loss']:.3f}, {record['seconds']:.0f} s"
        if criterion:
            # Other probes than those of the measurements.
            probes = self.probes("same", CRITERION_NEGATIVES, 1)
            is_recalled = small_llama.recalled(_loaded(stage), probes)
            record["recall"] = float(is_recalled.mean())
            line += f", recall {100 * record['recall']:.1f} %"
        stage.finish(record)
        self.report(line)

    @cached_property
    def probes(self) -> Callable[[Kind, int, int], small_llama.Probes]:
        """Return the probes of a kind, a number of negatives and a seed.

        They are made once.
        """
        make = probe_maker()
        count = self.recipe.measure.probes

        @cache
        def probes(kind: Kind, negatives: int, seed: int) -> small_llama.Probes:
            return small_llama.probes(
                make, kind, negatives=negatives, count=count, seed=seed
            )

        return probes

    @cached_property
    def held_out_rows(self) -> NDArray[np.int64]:
        """Rows of held-out documents, (rows, T)."""
        sequences = Run(self.plain_runs["held-out"]).sequences()
        return np.array([sequence.input_ids for sequence in sequences], np.int64)

    def measured(self, model: _Stage) -> _Stage:
        depends_on = {
            "model": model.fingerprint,
            "measure": self.recipe.measure.model_dump(mode="json"),
            "corpus": self.corpus.fingerprint,
            "held-out": self.composed[self.plain_runs["held-out"]],
        }
        return _Stage(self.out / "measured", model.name, depends_on)

    def measure(self, model: _Stage) -> None:
        """Measure recall, in percent, and the loss of held-out documents, in nats."""
        stage = self.measured(model)
        if stage.is_finished:
            return
        loaded = _loaded(model)
        held_out_loss = small_llama.loss(loaded, self.held_out_rows)
        record: Json = {"recall": {}, "loss": round(held_out_loss, 5)}
        for kind in small_llama.KINDS:
            recall = {}
            for count in self.recipe.measure.negatives:
                probes = self.probes(kind, count, 0)
                share = float(small_llama.recalled(loaded, probes).mean())
                recall[str(count)] = round(100 * share, 3)
            record["recall"][kind] = recall
        stage.finish(record)
        farthest = str(max(self.recipe.measure.negatives))
        recalls = ", ".join(
            f"{kind} {recall[farthest]:.0f} %"
            for kind, recall in record["recall"].items()
        )
        self.report(f"{model.name}: recall across {farthest}: {recalls}")

    def extend(self, seed: int, name: str) -> None:
        """Train and measure the model of an arm, from a base model that is trained."""
        *_, base = self.base(seed)
        model = self.extended(seed, name, base)
        self.train(model)
        self.measure(model)

    def measure_base(self, seed: int) -> bool:
        """Train and measure a base model; tell whether it has the recall."""
        legs = self.base(seed)
        if legs:
            self.measure(legs[-1])
        return bool(legs)

    def in_another_process(self) -> _Experiment:
        """Return what a process that trains is given.

        It knows the runs that are made by now, while this one makes others.
        """
        report = partial(print, flush=True)
        return replace(self, report=report, composed=dict(self.composed))


def _look_alikes_in(run: Run) -> float | None:
    """Return which percent of a run's negatives are of other documents of the topic."""
    are_look_alikes = []
    for sequence in run.sequences():
        documents = {}
        for role in ("meta", "negative"):
            documents[role] = [
                span.source_id for span in sequence.spans if span.role == role
            ]
        for negative in documents["negative"]:
            own = documents["meta"][0]
            is_other = negative != own
            are_look_alikes.append(is_other and topic_of(negative) == topic_of(own))
    if not are_look_alikes:
        return None
    return round(100 * float(np.mean(are_look_alikes)), 1)


def _training(steps: int, tokens: int, row: int, lr: float) -> Json:
    return {
        "min_lr_ratio": 0.1,
        "schedule": "cosine",
        "warmup_steps": steps // 20,
        "precision": "fp32",
        "steps": steps,
        "tokens_per_step": tokens,
        "micro_batch_rows": tokens // row,
        "lr": lr,
    }


def _train_recipe(stage: _Stage) -> TrainRecipe:
    training = stage.keys["training"]
    keys = {
        **stage.keys,
        "data": {**stage.keys["data"], "validation": 0.0},
        "out": str(stage.folder),
        "memory": {
            "checkpointing": "none",
            "loss_block_tokens": training["tokens_per_step"],
        },
        "checkpoints": {"every_steps": training["steps"], "keep_last": 1},
        "watch": {"spike": None},
    }
    return TrainRecipe.from_dict(keys, origin=stage.name)


def _loaded(model: _Stage, *, attention: str = "sdpa") -> PreTrainedModel:
    logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(
        str(model.final), attn_implementation=attention, dtype=torch.float32
    )
    return loaded.to(accelerator()).eval()


def plan(recipe: Replication) -> Iterator[tuple[str, str]]:
    """Yield what the experiment will take, as facts.

    A training step is timed on a row here.
    """
    pretrain = recipe.pretrain
    extend = recipe.extend
    bases = len(recipe.seeds)
    models = bases * len(recipe.arms)
    echo_tokens = pretrain.echo_steps * pretrain.tokens_per_step
    leg_tokens = pretrain.steps * pretrain.tokens_per_step
    lowest, highest = pretrain.recall
    yield "models", f"{bases} pretrained, {models} extended: {', '.join(recipe.arms)}"
    yield (
        "training",
        f"{echo_tokens:,} tokens of echoes and legs of {leg_tokens:,} tokens until a "
        f"base model recalls {100 * lowest:.0f} to {100 * highest:.0f} % of the values, "
        f"then {extend.trained_tokens:,} tokens an arm",
    )
    yield (
        "runs",
        f"{extend.sequences:,} sequences of {extend.row_tokens} tokens an arm, from "
        f"{recipe.corpus.documents:,} invented documents",
    )
    # Of a base model, four later legs are counted.
    tokens_by_row = {
        pretrain.tokens: bases * (echo_tokens + 4 * leg_tokens),
        extend.row_tokens: models * extend.trained_tokens,
    }
    hours = _training_seconds(recipe, tokens_by_row) / 3600
    yield (
        "time",
        f"{hours:.1f} core-hours of training steps, measured here; runs and "
        "measurements come on top",
    )
    yield "out", recipe.out


def _training_seconds(recipe: Replication, tokens_by_row: Mapping[int, int]) -> float:
    """Return the seconds that training takes here, by the tokens of a row."""
    config = small_llama.config(
        vocabulary=word_tokenizer().get_vocab_size(),
        **recipe.model.model_dump(),
    )
    keys = {
        "out": "none",
        "data": {"runs": ["none"]},
        "model": {"path": "none"},
        "training": {"precision": "fp32"},
        "memory": {"checkpointing": "none"},
    }
    timed = TrainRecipe.from_dict(keys)
    # As in training: on busy cores, several threads wait for each other.
    torch.set_num_threads(1)
    seconds = 0.0
    for row_tokens, tokens in tokens_by_row.items():
        rows = tokens / row_tokens
        seconds += rows * forecast.measure_row(timed, config, [row_tokens])
    return seconds


def replicate(recipe: Replication, *, report: Callable[[str], None]) -> Json:
    """Run or resume the experiment and return the results.

    The file is rewritten after each model.
    """
    experiment = _Experiment(recipe, report)
    with store.locked(experiment.out):
        with store.explained(experiment.out):
            store.write_file(experiment.out / "replicate.yaml", recipe.dump())
        # Made here, for the processes that train.
        assert experiment.plain_runs
        # Forked processes would inherit threads of torch, which may hang.
        context = multiprocessing.get_context("spawn")
        workers = min(recipe.workers, len(recipe.seeds))
        with ProcessPoolExecutor(workers, mp_context=context) as processes:
            bases = {}
            for seed in recipe.seeds:
                given = experiment.in_another_process()
                bases[seed] = processes.submit(given.measure_base, seed)
            # The runs of every arm are made beside the training of the base models.
            for name in recipe.arms:
                began = time.monotonic()
                experiment.look_alikes(ARMS[name])
                report(f"data of {name}: {time.monotonic() - began:.0f} s")
            given = experiment.in_another_process()
            extending = []
            for seed, base in bases.items():
                if base.result():
                    for name in recipe.arms:
                        extending.append(processes.submit(given.extend, seed, name))
            if not extending:
                raise RunError(
                    where=experiment.out,
                    problem="no base model has the recall of pretrain.recall",
                    fix="raise pretrain.most_legs, or choose other seeds",
                )
            for extended in as_completed(extending):
                extended.result()
                results = _collect(experiment)
                store.write_json(experiment.results, results)
    return results


def _collect(experiment: _Experiment) -> Json:
    """Return the finished models, and what they were made from; trains nothing."""
    models: list[Json] = []
    for seed in experiment.recipe.seeds:
        legs = experiment.base(seed, trains=False)
        if not legs:
            continue
        base = legs[-1]
        base_record = _record_of(experiment, "base", seed, base)
        if base_record is not None:
            models.append({**base_record, "legs": len(legs)})
        for name in experiment.recipe.arms:
            model = experiment.extended(seed, name, base)
            record = _record_of(experiment, name, seed, model)
            if record is not None:
                models.append(record)
    look_alikes = {}
    for name in experiment.recipe.arms:
        look_alikes[name] = experiment.look_alikes(ARMS[name])
    return {
        "version": nextlong.__version__,
        "recipe": experiment.recipe.model_dump(mode="json", exclude={"out", "workers"}),
        "corpus": experiment.corpus.fingerprint,
        "look_alikes": look_alikes,
        "models": models,
    }


def _record_of(
    experiment: _Experiment, arm: str, seed: int, model: _Stage
) -> Json | None:
    """Return what was recorded of a model, None if it is not measured yet."""
    measured = experiment.measured(model)
    if not measured.is_finished:
        return None
    return {"arm": arm, "seed": seed, **model.record, "measured": measured.record}
