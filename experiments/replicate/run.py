"""Run: which sequences teach retrieval across distance and among negatives?

In:  a recipe.
Out: `OUT/results.json`, which `python -m experiments.replicate report` draws, and every
     run, model and measurement below OUT.

One base model learns retrieval on short rows; from it, one model per arm is extended on
that arm's sequences, made by ordinary runs of the package, with equal tokens. All are
measured on probes of a form that no arm trains on (`small_llama.py`). A killed
experiment resumes at the first model that is not finished. Seeds are the outer loop, so
finished seeds compare all arms.
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
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

import nextlong
from experiments.replicate import small_llama
from experiments.replicate.corpora import Negatives
from experiments.replicate.recipe import ARMS, CRITERION_NEGATIVES, Arm, Replication
from nextlong.engine import store
from nextlong.errors import RecipeError, RunError
from nextlong.recipe import Recipe
from nextlong.runs.run import Run
from nextlong.text import Json
from nextlong.train import forecast, loop, metrics
from nextlong.train.checkpoints import CHECKPOINTS
from nextlong.train.model import accelerator
from nextlong.train.recipe import TrainRecipe

RESULTS: Final = "results.json"
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

    @cached_property
    def corpus(self) -> _Stage:
        corpus = self.recipe.corpus
        stage = _Stage(self.out / "corpus", corpus.kind, corpus.identity())
        if not stage.is_finished:
            with store.explained(stage.folder):
                stage.finish(corpus.write(stage.folder))
        return stage

    def run(self, source: str, compose: Mapping[str, Any], *, chunks: int = 1) -> str:
        """Make a run over one file of the corpus with `nextlong.run`.

        Return it as `FOLDER@NAME`.
        """
        max_chars = chunks * self.recipe.corpus.chunk_chars
        parts = [str(value) for value in compose.values()]
        if chunks > 1:
            parts.append(str(max_chars))
        name = "-".join(parts)
        run_dir = self.out / "runs" / f"{source}-{self.corpus.fingerprint}"
        named = f"{run_dir}@{name}"
        if named in self.composed:
            return named
        if not self.corpus.record.get(source, 1):
            raise RecipeError(
                where="corpus",
                problem=f"it has no document for arms of {source!r} documents",
                fix="lower corpus.long_chars",
            )
        keys = {
            "run_dir": str(run_dir),
            "name": name,
            "executor": "serial",
            **self._data_keys(source),
            "chunk": {"max_chars": max_chars},
            "compose": dict(compose),
        }
        nextlong.run(Recipe.from_dict(keys, origin=f"data of {name}"))
        manifest = Run(named).steps["compose"].manifest
        self.composed[named] = str(manifest["fingerprint"])
        return named

    def _data_keys(self, source: str) -> Json:
        """Return the keys of a data recipe that depend on the corpus alone."""
        corpus = self.recipe.corpus
        folder = self.corpus.folder
        path = str(folder / f"{source}.jsonl")
        keys: Json = {
            "ingest": {"sources": [{"path": path, "name": source}]},
            "tokenizer": {"source": str(folder / "tokenizer.json")},
            "encoder": {"model": corpus.encoder},
        }
        if corpus.kind == "documents" and source != "held-out":
            keys["decontaminate"] = {"files": [str(folder / "held-out.jsonl")]}
        return keys

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
            "first": self._plain_run("echoes", pretrain.echo_tokens, "all"),
            "held-out": self._plain_run("held-out", held_out_tokens, held_out_rows),
        }

    def _plain_run(self, source: str, tokens: int, sequences: int | str) -> str:
        compose = {
            "method": "standard",
            "target_tokens": tokens,
            "sequences": sequences,
        }
        return self.run(source, compose)

    def data_of(self, arm: Arm) -> Json:
        """Return the `data` section of the training recipe of an arm, its runs made."""
        extend = self.recipe.extend
        lengths = arm.lengths or extend.lengths
        replay = extend.replay if arm.replay is None else arm.replay
        runs = []
        if replay < 1:
            for length in lengths:
                # All lengths have the same number of tokens.
                count = -(-extend.data_tokens // (len(lengths) * length))
                compose = {**arm.compose, "target_tokens": length, "sequences": count}
                runs.append(self.run(arm.source, compose, chunks=arm.chunks))
        # Shares of the runs in tokens: equal ones for the lengths, and the replay in
        # halves for documents and echoes.
        mix = [(1 - replay) / len(lengths)] * len(runs)
        if replay:
            runs += [self.plain_runs["train"], self.plain_runs["echoes"]]
            mix += [replay / 2, replay / 2]
        return {"runs": runs, "mix": mix, "by": "tokens", "pack": extend.row_tokens}

    def base_seed(self, seed: int) -> int:
        return seed if self.recipe.pretrain.models == "seed" else self.recipe.seeds[0]

    def base(self, seed: int, *, trains: bool = True) -> list[_Stage]:
        """Return the legs of a base model, trained until the last one retrieves.

        Empty if retrieval does not form or, where `trains` is false, if one of them is
        not finished.
        """
        pretrain = self.recipe.pretrain
        legs: list[_Stage] = []
        while len(legs) < pretrain.most_legs:
            leg = self._next_leg(seed, legs)
            legs.append(leg)
            if trains:
                self.train(leg, criterion=True)
            elif not leg.is_finished:
                return []
            if leg.record["recall"] >= pretrain.recall:
                return legs
        if trains:
            recall = 100 * legs[-1].record["recall"]
            self.report(
                f"seed {seed}: after {len(legs)} legs of {pretrain.steps} steps the base "
                f"model recalls {recall:.0f} % of the values, not "
                f"{100 * pretrain.recall:.0f} %; the seed is left out"
            )
        return []

    def _next_leg(self, seed: int, legs: Sequence[_Stage]) -> _Stage:
        """Return the leg after some legs of a base model; trains nothing."""
        pretrain = self.recipe.pretrain
        before = legs[-1] if legs else None
        if before is None:
            # The first leg is of echoes alone, in shorter rows.
            parts = ["first"]
            row_tokens = pretrain.echo_tokens
            start = self.initial(seed)
        else:
            parts = ["train", "echoes"]
            row_tokens = pretrain.tokens
            start = before.final
        training = _training(
            pretrain.steps, pretrain.tokens_per_step, row_tokens, pretrain.lr
        )
        is_constant = len(legs) < pretrain.constant_legs
        training["schedule"] = "constant" if is_constant else "cosine"
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
        return self._trained(f"base-seed{seed}-leg{len(legs) + 1}", keys, before)

    def initial(self, seed: int) -> Path:
        sizes = self.recipe.model.model_dump()
        depends_on = {"model": sizes, "seed": seed}
        stage = _Stage(self.out / "models", f"initial-seed{seed}", depends_on)
        if not stage.is_finished:
            tokenizer = Tokenizer.from_file(str(self.corpus.folder / "tokenizer.json"))
            config = small_llama.config(
                vocabulary=tokenizer.get_vocab_size(),
                row_tokens=self.recipe.extend.row_tokens,
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
            probes_seed = self.recipe.corpus.seed + 1
            probes = self.probes("hard", CRITERION_NEGATIVES, probes_seed)
            is_recalled = small_llama.recalled(_loaded(stage), probes)
            record["recall"] = float(is_recalled.mean())
            line += f", recall {100 * record['recall']:.1f} %"
        stage.finish(record)
        self.report(line)

    @cached_property
    def probes(self) -> Callable[[Negatives, int, int], small_llama.Probes]:
        """Return the probes of a kind, a number of negatives and a seed.

        They are made once.
        """
        make = self.recipe.corpus.probe(self.corpus.folder)
        count = self.recipe.measure.probes

        @cache
        def probes(kind: Negatives, negatives: int, seed: int) -> small_llama.Probes:
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
        }
        return _Stage(self.out / "measured", model.name, depends_on)

    def measure(self, model: _Stage) -> None:
        """Measure recall, losses by position and attention, in percent and nats."""
        stage = self.measured(model)
        if stage.is_finished:
            return
        loaded = _loaded(model)
        record: Json = {"recall": {}, "loss": self._losses(loaded), "attention": {}}
        # Only this attention returns its weights.
        eager = _loaded(model, attention="eager")
        counts = self.recipe.measure.negatives
        seed = self.recipe.corpus.seed
        for kind in small_llama.KINDS:
            recall = {}
            for count in counts:
                probes = self.probes(kind, count, seed)
                share = float(small_llama.recalled(loaded, probes).mean())
                recall[str(count)] = round(100 * share, 3)
            record["recall"][kind] = recall
            farthest = self.probes(kind, max(counts), seed)
            thirds = small_llama.attention_thirds(eager, farthest)
            record["attention"][kind] = {
                name: round(100 * share, 3) for name, share in thirds.items()
            }
        stage.finish(record)

    def _losses(self, loaded: PreTrainedModel) -> dict[str, float]:
        """Return the mean loss of parts of a row, by the last position of each."""
        losses = small_llama.losses(loaded, self.held_out_rows)  # (T - 1,)
        row_tokens = self.recipe.extend.row_tokens
        inner_edges = [edge for edge in (256, 512, 1024, 2048) if edge < row_tokens]
        parts = {}
        for first, last in pairwise([1, *inner_edges, row_tokens]):
            mean = float(losses[first - 1 : last - 1].mean())
            parts[str(last)] = round(mean, 5)
        return parts

    def finish(self, seed: int) -> None:
        """Train and measure all models of a seed whose base model is trained."""
        *_, base = self.base(self.base_seed(seed))
        if seed == self.base_seed(seed):
            self.measure(base)
        for name in self.recipe.arms:
            model = self.extended(seed, name, base)
            self.train(model)
            self.measure(model)

    def in_another_process(self) -> _Experiment:
        """Return what a process that trains is given.

        It knows the runs that are made by now, while this one makes others.
        """
        report = partial(print, flush=True)
        return replace(self, report=report, composed=dict(self.composed))


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
    leg_tokens = pretrain.steps * pretrain.tokens_per_step
    bases = len(recipe.seeds) if pretrain.models == "seed" else 1
    models = len(recipe.seeds) * len(recipe.arms)
    yield "models", f"{bases} pretrained, {models} extended: {', '.join(recipe.arms)}"
    yield (
        "training",
        f"legs of {leg_tokens:,} tokens until a base model recalls "
        f"{100 * pretrain.recall:.0f} % of the values, then "
        f"{extend.trained_tokens:,} tokens an arm",
    )
    lengths = ", ".join(map(str, extend.lengths))
    yield "runs", f"sequences of {lengths} tokens an arm, from {recipe.corpus.about}"
    # Of a base model, three legs are counted.
    tokens_by_row = {
        pretrain.tokens: bases * 3 * leg_tokens,
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
        vocabulary=recipe.corpus.vocabulary,
        row_tokens=recipe.extend.row_tokens,
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
    seconds = 0.0
    for row_tokens, tokens in tokens_by_row.items():
        rows = tokens / row_tokens
        seconds += rows * forecast.measure_row(timed, config, [row_tokens])
    return seconds


def replicate(recipe: Replication, *, report: Callable[[str], None]) -> Json:
    """Run or resume the experiment and return `results.json`.

    The file is rewritten after each seed.
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
                base_seed = experiment.base_seed(seed)
                if base_seed not in bases:
                    given = experiment.in_another_process()
                    bases[base_seed] = processes.submit(given.base, base_seed)
            # The runs of every arm are made beside the training of the base models.
            for name in recipe.arms:
                began = time.monotonic()
                experiment.data_of(ARMS[name])
                report(f"data of {name}: {time.monotonic() - began:.0f} s")
            formed = {seed for seed, base in bases.items() if base.result()}
            finishing = []
            for seed in recipe.seeds:
                if experiment.base_seed(seed) in formed:
                    given = experiment.in_another_process()
                    finishing.append(processes.submit(given.finish, seed))
            if not finishing:
                raise RunError(
                    where=experiment.out,
                    problem="retrieval formed in no base model",
                    fix="raise pretrain.most_legs, or choose other seeds",
                )
            for finished in as_completed(finishing):
                finished.result()
                results = _collect(experiment)
                store.write_json(experiment.out / RESULTS, results)
    return results


def _collect(experiment: _Experiment) -> Json:
    """Return the finished models, and what they were made from; trains nothing."""
    models: list[Json] = []
    for seed in experiment.recipe.seeds:
        legs = experiment.base(experiment.base_seed(seed), trains=False)
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
    return {
        "version": nextlong.__version__,
        "recipe": experiment.recipe.model_dump(mode="json", exclude={"out", "workers"}),
        "corpus": experiment.corpus.fingerprint,
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
