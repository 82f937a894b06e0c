"""Run: which sequences teach retrieval across distance and among negatives? From a recipe to measured models.

In:  a recipe. Out: `OUT/results.json`, which `python -m experiments.replicate report`
     draws, and every run, model and measurement below OUT.

One base model learns retrieval on short rows; from it, one model an arm is extended on that arm's sequences, made by ordinary
runs of the package, with equal tokens. All are measured on probes of a form that no arm trains on (`small_llama.py`). A killed
experiment resumes at the first model that is not finished. Seeds are the outer loop, so finished seeds compare all arms.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
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
    """A folder `ABOVE/NAME-<fingerprint>`, named after everything that determines its content, as plain data.

    `stage.json` is written last: a stage without it is not finished. Another recipe makes other folders and keeps these.
    `keys` are those of the training recipe, if the stage is a training.
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
        """What `finish` recorded. Raises RunError if the stage is not finished, or the file is damaged."""
        return dict(store.read_json(self.folder / _RECORD)["made"])

    def finish(self, made: Mapping[str, Any]) -> None:
        with store.explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            plain = json.loads(json.dumps(self.depends_on, default=str))
            store.write_json(
                self.folder / _RECORD, {"depends_on": plain, "made": dict(made)}
            )


@dataclass
class _Experiment:
    """A recipe and the stages of its experiment, each of which is made when it is first needed and reused later."""

    recipe: Replication
    report: Callable[[str], None]
    composed: dict[str, str] = field(
        default_factory=dict
    )  # by run, the fingerprint of its sequences

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
        """Make a run over one file of the corpus with `nextlong.run`; return it as `FOLDER@NAME`."""
        corpus, folder = self.recipe.corpus, self.corpus.folder
        max_chars = chunks * corpus.chunk_chars
        name = "-".join(
            map(str, [*compose.values(), *([max_chars] if chunks > 1 else [])])
        )
        run_dir = self.out / "runs" / f"{source}-{self.corpus.fingerprint}"
        named = f"{run_dir}@{name}"
        if named not in self.composed:
            if not self.corpus.record.get(source, 1):
                raise RecipeError(
                    f"corpus: no document for arms of {source!r} documents; lower corpus.long_chars"
                )
            keys = {"run_dir": str(run_dir), "name": name, "executor": "serial"} | {
                "ingest": {
                    "sources": [
                        {"path": str(folder / f"{source}.jsonl"), "name": source}
                    ]
                },
                "tokenizer": {"source": str(folder / "tokenizer.json")},
                "chunk": {"max_chars": max_chars},
                "compose": dict(compose),
                "encoder": {"model": corpus.encoder},
            }
            if corpus.kind == "documents" and source != "held-out":
                keys["decontaminate"] = {"files": [str(folder / "held-out.jsonl")]}
            nextlong.run(Recipe.from_dict(keys, origin=f"data of {name}"))
            self.composed[named] = str(
                Run(named).steps["compose"].manifest["fingerprint"]
            )
        return named

    @cached_property
    def plain_runs(self) -> dict[str, str]:
        """The runs of the standard method: short rows of documents and of echoes, those of the first leg, and held-out rows."""
        pretrain, held_out = (
            self.recipe.pretrain,
            (self.recipe.extend.row_tokens, self.recipe.measure.rows),
        )
        short = {part: (part, pretrain.tokens, "all") for part in ("train", "echoes")}
        rows = {
            **short,
            "first": ("echoes", pretrain.echo_tokens, "all"),
            "held-out": ("held-out", *held_out),
        }
        return {
            name: self.run(
                source,
                {"method": "standard", "target_tokens": tokens, "sequences": count},
            )
            for name, (source, tokens, count) in rows.items()
        }

    def data_of(self, arm: Arm) -> Json:
        """Return the `data` section of the training recipe of an arm, its runs made."""
        extend = self.recipe.extend
        lengths = arm.lengths or extend.lengths
        replay = extend.replay if arm.replay is None else arm.replay
        runs = []
        for length in lengths if replay < 1 else ():
            count = -(
                -extend.data_tokens // (len(lengths) * length)
            )  # all lengths have the same number of tokens
            compose = {**arm.compose, "target_tokens": length, "sequences": count}
            runs.append(self.run(arm.source, compose, chunks=arm.chunks))
        # Shares of the runs in tokens: equal ones for the lengths, and the replay in halves for documents and echoes.
        mix = [(1 - replay) / len(lengths)] * len(runs)
        if replay:
            runs, mix = (
                [*runs, self.plain_runs["train"], self.plain_runs["echoes"]],
                [*mix, replay / 2, replay / 2],
            )
        return {"runs": runs, "mix": mix, "by": "tokens", "pack": extend.row_tokens}

    def base_seed(self, seed: int) -> int:
        return seed if self.recipe.pretrain.models == "seed" else self.recipe.seeds[0]

    def base(self, seed: int, *, trains: bool = True) -> list[_Stage]:
        """Return the legs of a seed's base model, trained until retrieval has formed in the last one.

        Empty if it does not form or, where `trains` is false, if one of them is not finished.
        """
        pretrain, legs = self.recipe.pretrain, list[_Stage]()
        while len(legs) < pretrain.most_legs:
            # The first leg is of echoes alone, in shorter rows.
            parts, row = (
                (("train", "echoes"), pretrain.tokens)
                if legs
                else (("first",), pretrain.echo_tokens)
            )
            runs = [self.plain_runs[part] for part in parts]
            schedule = {
                "schedule": "constant"
                if len(legs) < pretrain.constant_legs
                else "cosine"
            }
            keys: Json = {
                "seed": 1000 * seed
                + len(legs),  # a leg reads the rows in another order
                "data": {"runs": runs, "by": "tokens", "mix": [1.0] * len(runs)},
                "model": {"path": str(legs[-1].final if legs else self.initial(seed))},
                "training": _training(
                    pretrain.steps, pretrain.tokens_per_step, row, pretrain.lr
                )
                | schedule,
            }
            legs.append(
                self._trained(
                    f"base-seed{seed}-leg{len(legs) + 1}",
                    keys,
                    legs[-1] if legs else None,
                )
            )
            if trains:
                self.train(legs[-1], criterion=True)
            elif not legs[-1].is_finished:
                return []
            if legs[-1].record["recall"] >= pretrain.recall:
                return legs
        if trains:
            self.report(
                f"seed {seed}: after {len(legs)} legs of {pretrain.steps} steps the base model recalls "
                f"{100 * legs[-1].record['recall']:.0f} % of the values, not {100 * pretrain.recall:.0f} %; the seed is left out"
            )
        return []

    def initial(self, seed: int) -> Path:
        keys = self.recipe.model.model_dump()
        stage = _Stage(
            self.out / "models", f"initial-seed{seed}", {"model": keys, "seed": seed}
        )
        if not stage.is_finished:
            vocabulary = Tokenizer.from_file(
                str(self.corpus.folder / "tokenizer.json")
            ).get_vocab_size()
            config = small_llama.config(
                vocabulary=vocabulary, row_tokens=self.recipe.extend.row_tokens, **keys
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
        return self._trained(
            f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}", keys, base
        )

    def _trained(self, name: str, keys: Json, before: _Stage | None) -> _Stage:
        # A model is named by what it depends on, not by paths, so that the folder may be moved.
        data = {
            **keys["data"],
            "runs": [self.composed[run] for run in keys["data"]["runs"]],
        }
        origin = before.fingerprint if before else self.recipe.model.model_dump()
        return _Stage(
            self.out / "models", name, {**keys, "data": data, "model": origin}, keys
        )

    def train(self, training: _Stage, *, criterion: bool = False) -> None:
        """Train a model if it is not finished; with `criterion`, measure the recall that ends the training of a base model."""
        if training.is_finished:
            return
        # Seeds are trained in parallel, a core each; and one thread adds its sums in the same order every time.
        torch.set_num_threads(1)
        keys, trained = training.keys, training.keys["training"]
        recipe = {
            **keys,
            "data": {**keys["data"], "validation": 0.0},
            "out": str(training.folder),
        }
        recipe["memory"] = {
            "checkpointing": "none",
            "loss_block_tokens": trained["tokens_per_step"],
        }
        recipe |= {
            "checkpoints": {"every_steps": trained["steps"], "keep_last": 1},
            "watch": {"spike": None},
        }
        loop.train(
            TrainRecipe.from_dict(recipe, origin=training.name), Console(quiet=True)
        )
        steps = metrics.read(training.folder / metrics.STEPS)
        shutil.rmtree(training.folder / CHECKPOINTS, ignore_errors=True)
        made: Json = {
            "loss": float(np.mean([step["loss"] for step in steps[-10:]])),
            "tokens": sum(step["tokens"] for step in steps),
            "seconds": round(sum(step["seconds"] for step in steps), 1),
            "sha256": hashlib.sha256(
                (training.final / "model.safetensors").read_bytes()
            ).hexdigest(),
        }
        line = f"{training.name}: loss {made['loss']:.3f}, {made['seconds']:.0f} s"
        if criterion:
            probes = self.probes(
                "hard", CRITERION_NEGATIVES, self.recipe.corpus.seed + 1
            )
            made["recall"] = float(
                small_llama.recalled(_loaded(training), probes).mean()
            )
            line += f", recall {100 * made['recall']:.1f} %"
        training.finish(made)
        self.report(line)

    @cached_property
    def probes(self) -> Callable[[Negatives, int, int], small_llama.Probes]:
        """Return the probes of a kind, a number of negatives and a seed; they are made once."""
        make, count = (
            self.recipe.corpus.probe(self.corpus.folder),
            self.recipe.measure.probes,
        )
        return cache(
            lambda kind, n, seed: small_llama.probes(
                make, kind, negatives=n, count=count, seed=seed
            )
        )

    @cached_property
    def held_out_rows(self) -> NDArray[np.int64]:
        """Rows of held-out documents, (rows, T)."""
        return np.array(
            [one.input_ids for one in Run(self.plain_runs["held-out"]).sequences()],
            np.int64,
        )

    def measured(self, model: _Stage) -> _Stage:
        about = {
            "model": model.fingerprint,
            "measure": self.recipe.measure.model_dump(mode="json"),
        }
        return _Stage(
            self.out / "measured",
            model.name,
            about | {"corpus": self.corpus.fingerprint},
        )

    def measure(self, model: _Stage) -> None:
        if (stage := self.measured(model)).is_finished:
            return
        loaded, row_tokens = _loaded(model), self.recipe.extend.row_tokens
        counts, seed = self.recipe.measure.negatives, self.recipe.corpus.seed
        # Losses of shape (T - 1,), averaged between these positions.
        losses = small_llama.losses(loaded, self.held_out_rows)
        edges = [
            1,
            *(length for length in (256, 512, 1024, 2048) if length < row_tokens),
            row_tokens,
        ]
        parts = {
            str(last): round(float(losses[first - 1 : last - 1].mean()), 5)
            for first, last in pairwise(edges)
        }
        made: Json = {"recall": {}, "loss": parts, "attention": {}}
        eager = _loaded(
            model, attention="eager"
        )  # only this attention returns its weights
        for kind in small_llama.KINDS:
            recalled = {
                n: small_llama.recalled(loaded, self.probes(kind, n, seed)).mean()
                for n in counts
            }
            made["recall"][kind] = {
                str(n): round(100 * float(share), 3) for n, share in recalled.items()
            }
            thirds = small_llama.attention_thirds(
                eager, self.probes(kind, max(counts), seed)
            )
            made["attention"][kind] = {
                name: round(100 * share, 3) for name, share in thirds.items()
            }
        stage.finish(made)

    def finish(self, seed: int) -> None:
        """Train the models of a seed whose base model is trained, and measure all of them."""
        *_, base = self.base(self.base_seed(seed))
        if seed == self.base_seed(seed):
            self.measure(base)
        for name in self.recipe.arms:
            model = self.extended(seed, name, base)
            self.train(model)
            self.measure(model)

    def in_another_process(self) -> _Experiment:
        """Return what a process that trains is given: the runs that are known now, while this one makes others."""
        return replace(
            self, report=partial(print, flush=True), composed=dict(self.composed)
        )


def _training(steps: int, tokens: int, row: int, lr: float) -> Json:
    usual = {
        "min_lr_ratio": 0.1,
        "schedule": "cosine",
        "warmup_steps": steps // 20,
        "precision": "fp32",
    }
    return usual | {
        "steps": steps,
        "tokens_per_step": tokens,
        "micro_batch_rows": tokens // row,
        "lr": lr,
    }


def _loaded(model: _Stage, *, attention: str = "sdpa") -> PreTrainedModel:
    logging.disable_progress_bar()
    loaded = AutoModelForCausalLM.from_pretrained(
        str(model.final), attn_implementation=attention, dtype=torch.float32
    )
    return loaded.to(accelerator()).eval()


def plan(recipe: Replication) -> Iterator[tuple[str, str]]:
    """Yield what the experiment will take, as facts; a training step is timed on a row here."""
    pretrain, extend = recipe.pretrain, recipe.extend
    leg, models = (
        pretrain.steps * pretrain.tokens_per_step,
        len(recipe.seeds) * len(recipe.arms),
    )
    bases = len(recipe.seeds) if pretrain.models == "seed" else 1
    yield "models", f"{bases} pretrained, {models} extended: {', '.join(recipe.arms)}"
    until = f"until a base model recalls {100 * pretrain.recall:.0f} % of the values"
    yield (
        "training",
        f"legs of {leg:,} tokens {until}, then {extend.trained_tokens:,} tokens an arm",
    )
    lengths = ", ".join(map(str, extend.lengths))
    yield "runs", f"sequences of {lengths} tokens an arm, from {recipe.corpus.about}"
    sizes = recipe.model.model_dump()
    config = small_llama.config(
        vocabulary=recipe.corpus.vocabulary, row_tokens=extend.row_tokens, **sizes
    )
    keys = {
        "out": "none",
        "data": {"runs": ["none"]},
        "model": {"path": "none"},
        "training": {"precision": "fp32"},
    }
    timed = TrainRecipe.from_dict({**keys, "memory": {"checkpointing": "none"}})
    # Of a base model, three legs are counted.
    rows = {
        pretrain.tokens: bases * 3 * leg,
        extend.row_tokens: models * extend.trained_tokens,
    }
    seconds = sum(
        tokens / row * forecast.measure_row(timed, config, [row])
        for row, tokens in rows.items()
    )
    yield (
        "time",
        f"{seconds / 3600:.1f} core-hours of training steps, measured here; runs and measurements come on top",
    )
    yield "out", recipe.out


def replicate(recipe: Replication, *, report: Callable[[str], None]) -> Json:
    """Run or resume the experiment; return `results.json`, which is rewritten after each seed."""
    experiment = _Experiment(recipe, report)
    with store.locked(experiment.out):
        with store.explained(experiment.out):
            store.write_file(experiment.out / "replicate.yaml", recipe.dump())
        assert experiment.plain_runs  # made here, for the processes that train
        # Forked processes would inherit threads of torch, which may hang.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            min(recipe.workers, len(recipe.seeds)), mp_context=context
        ) as processes:
            of_bases = dict.fromkeys(map(experiment.base_seed, recipe.seeds))
            bases = [
                processes.submit(experiment.in_another_process().base, seed)
                for seed in of_bases
            ]
            # The runs of every arm are made beside the training of the base models.
            for name in recipe.arms:
                began = time.monotonic()
                experiment.data_of(ARMS[name])
                report(f"data of {name}: {time.monotonic() - began:.0f} s")
            formed = {
                seed
                for seed, base in zip(of_bases, bases, strict=True)
                if base.result()
            }
            usable = [
                seed for seed in recipe.seeds if experiment.base_seed(seed) in formed
            ]
            if not usable:
                raise RunError(
                    "retrieval formed in no base model; raise pretrain.most_legs, or choose other seeds"
                )
            seeds = [
                processes.submit(experiment.in_another_process().finish, seed)
                for seed in usable
            ]
            for done in as_completed(seeds):
                done.result()
                results = _collect(experiment)
                store.write_json(experiment.out / RESULTS, results)
    return results


def _collect(experiment: _Experiment) -> Json:
    """Return the finished models, and what they were made from; trains nothing."""
    models: list[Json] = []
    for seed in experiment.recipe.seeds:
        if not (legs := experiment.base(experiment.base_seed(seed), trains=False)):
            continue
        arms = {
            name: experiment.extended(seed, name, legs[-1])
            for name in experiment.recipe.arms
        }
        for name, model in {"base": legs[-1], **arms}.items():
            measured, of_base = (
                experiment.measured(model),
                {"legs": len(legs)} if name == "base" else {},
            )
            if measured.is_finished:
                models.append(
                    {
                        "arm": name,
                        "seed": seed,
                        **model.record,
                        "measured": measured.record,
                        **of_base,
                    }
                )
    recipe = experiment.recipe.model_dump(mode="json", exclude={"out", "workers"})
    about = {
        "version": nextlong.__version__,
        "recipe": recipe,
        "corpus": experiment.corpus.fingerprint,
    }
    return {**about, "models": models}
