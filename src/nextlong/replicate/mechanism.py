"""Mechanism: does training on negatives teach retrieval among negatives? An experiment on an invented corpus.

In:  a recipe. Out: `OUT/results.json`, which `nextlong replicate report` draws, and every run, model and measurement below OUT.

One base model a seed learns retrieval on short rows; from it, one model an arm is extended on that arm's sequences, made by
ordinary runs of the package, with equal tokens. All are measured on probes of a form that no arm trains on (`recall.py`).
A killed experiment resumes at the first model that is not finished. Seeds are the outer loop, so the seeds that are finished
compare all arms.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator

import nextlong
from nextlong.engine import store
from nextlong.errors import RecipeError, RunError
from nextlong.plain_data import Json
from nextlong.recipe import Recipe
from nextlong.recipe.keys import Named, Positive, Section
from nextlong.recipe.lengths import PositiveLength
from nextlong.replicate import invented, recall
from nextlong.replicate.invented import Invented
from nextlong.replicate.stage import Stage
from nextlong.runs.opened import Run
from nextlong.train.recipe import RecipeFile, Scratch, TrainRecipe

RESULTS: Final = "results.json"
CRITERION_NEGATIVES: Final = 2  # of the probes that end the training of a base model; they fit a short row


@dataclass(frozen=True)
class Arm:
    """What a model is extended on: keys of the data recipe, and where it departs from the others, replay and lengths."""

    keys: Mapping[str, Any]
    replay: float | None = None
    lengths: tuple[int, ...] | None = None


def _method(name: str, **compose: Any) -> Arm:
    return Arm({"compose": {"method": name, **compose}})


ARMS: Final[Mapping[str, Arm]] = {
    "nextlong": _method("nextlong"),
    "random negatives": _method("nextlong", negatives="random-corpus"),
    "standard": _method("standard"),
    "knn": _method("knn"),
    "iclm": _method("iclm"),
    "quest": _method("quest"),
    "splice": _method("splice"),
    "self-repeat": _method("nextlong", negatives="self-repeat"),
    "nextlong, no replay": Arm({"compose": {"method": "nextlong"}}, replay=0.0),
    "random negatives, no replay": Arm({"compose": {"method": "nextlong", "negatives": "random-corpus"}}, replay=0.0),
    "nextlong, 2K only": Arm({"compose": {"method": "nextlong"}}, lengths=(2048,)),
    "nextlong, chunks of 2 paragraphs": Arm({"compose": {"method": "nextlong"}, "chunk": {"max_chars": 320}}),
}


class Base(Section):
    """Short rows until retrieval has formed: legs of `steps` steps, until a leg ends with the recall."""

    tokens: PositiveLength = Field(256, description="of a row")
    tokens_per_step: PositiveLength = 4096
    steps: Positive = Field(200, description="of a leg")
    most_legs: Positive = 12
    recall: Annotated[float, Field(gt=0, le=1)] = Field(
        0.95, description=f"of values across {CRITERION_NEGATIVES} hard negatives"
    )
    lr: Annotated[float, Field(gt=0)] = 4e-3


class Extend(Section):
    """Long rows."""

    row_tokens: PositiveLength = Field(2048, description="of a row, which packs sequences of the lengths and short ones")
    lengths: tuple[PositiveLength, ...] = Field((512, 1024, 2048), description="of sequences, equal tokens of each")
    replay: Annotated[float, Field(ge=0, lt=1)] = Field(0.5, description="share of short rows, in tokens")
    steps: Positive = 100
    tokens_per_step: PositiveLength = 8192
    lr: Annotated[float, Field(gt=0)] = 2e-3

    @property
    def trained_tokens(self) -> int:
        """Tokens of all steps."""
        return self.steps * self.tokens_per_step


class Measure(Section):
    """What is measured of each model."""

    negatives: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0, 2, 4, 8, 16, 32, 60), description="paragraphs between the facts and the questions"
    )
    probes: Positive = Field(48, description="of each kind and number of negatives; each asks for eight values")
    rows: Positive = Field(24, description="held-out rows whose loss is measured")


class Mechanism(RecipeFile):
    """The experiment."""

    INIT: ClassVar[str] = "nextlong replicate init {} --preset mechanism"

    out: Named = Field(description="where everything goes")
    preset: Literal["mechanism"] = "mechanism"
    seeds: tuple[int, ...] = Field((0, 1, 2, 3, 4), description="of weights and of the order of rows")
    arms: tuple[str, ...] = Field(tuple(ARMS), description="what is compared")
    corpus: Invented = Invented()
    model: Scratch = Scratch(hidden_size=64, intermediate_size=128, layers=2, heads=2, key_value_heads=2)
    base: Base = Base()
    extend: Extend = Extend()
    measure: Measure = Measure()
    threads: Positive = Field(1, description="of PyTorch; models this small gain nothing from more")

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name, values in (("seeds", self.seeds), ("arms", self.arms)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name}={list(values)} is empty or names one twice; name each once")
        if unknown := [name for name in self.arms if name not in ARMS]:
            raise ValueError(f"arms: {unknown[0]!r} is not known; choose from {', '.join(ARMS)}")
        if self.extend.row_tokens < max(*self.extend.lengths, self.base.tokens):
            raise ValueError(f"extend.row_tokens={self.extend.row_tokens} is shorter than a sequence; raise it")
        for phase, row in ((self.base, self.base.tokens), (self.extend, self.extend.row_tokens)):
            if phase.tokens_per_step % row:
                raise ValueError(f"tokens_per_step={phase.tokens_per_step} is not a multiple of a row's {row}; make it one")
        return self


@dataclass
class Experiment:
    """A recipe and where its parts lie. Everything is made when it is asked for, and found again later."""

    recipe: Mechanism
    report: Callable[[str], None]
    _runs: dict[str, str] = field(default_factory=dict)

    @cached_property
    def out(self) -> Path:
        """Where everything goes."""
        return Path(self.recipe.out).expanduser().absolute()

    @cached_property
    def corpus(self) -> Stage:
        """The documents and the tokenizer."""
        stage = Stage(self.out / "corpus", "invented", self.recipe.corpus.model_dump(mode="json"))
        if not stage.is_finished:
            invented.write(self.recipe.corpus, stage.folder)
            stage.finish({"documents": self.recipe.corpus.documents})
        return stage

    def run(self, source: str, **keys: Any) -> str:
        """Return the run, `FOLDER@NAME`, of a data recipe over one file of the corpus, made by `nextlong.run`."""
        compose = keys["compose"]
        name = "-".join(
            str(part) for part in (*compose.values(), *(keys[key]["max_chars"] for key in ("chunk",) if key in keys))
        )
        run_dir = self.out / "runs" / f"{source}-{self.corpus.fingerprint}"
        named = f"{run_dir}@{name}"
        if named not in self._runs:
            folder = self.corpus.folder
            everything = {
                "run_dir": str(run_dir),
                "name": name,
                "executor": "serial",
                "ingest": {"sources": [{"path": str(folder / f"{source}.jsonl"), "name": source}]},
                "tokenizer": {"source": str(folder / "tokenizer.json")},
                "encoder": {"model": "lsa"},
                "chunk": {"max_chars": 160},
                **keys,
            }
            nextlong.run(Recipe.from_dict(everything, origin=f"data of {name}"))
            self._runs[named] = str(Run(named).steps["compose"].manifest["fingerprint"])
        return named

    def short_runs(self) -> list[str]:
        """Return the runs of short rows: documents, and echoes."""
        compose = {"method": "standard", "target_tokens": self.recipe.base.tokens, "sequences": "all"}
        return [self.run(source, compose=compose) for source in ("train", "echoes")]

    def data_of(self, arm: Arm) -> Json:
        """Return the `data` section of the training recipe of an arm, its runs made."""
        extend = self.recipe.extend
        lengths = arm.lengths or extend.lengths
        replay = extend.replay if arm.replay is None else arm.replay
        # Enough for an arm without replay, so that the same runs serve with and without it.
        wanted = [-(-extend.trained_tokens // (len(lengths) * length)) for length in lengths]
        runs = [
            self.run("train", **{**arm.keys, "compose": {**arm.keys["compose"], "target_tokens": length, "sequences": count}})
            for length, count in zip(lengths, wanted, strict=True)
        ]
        mix = [(1 - replay) / len(runs)] * len(runs)
        if replay:
            runs, mix = [*runs, *self.short_runs()], [*mix, replay / 2, replay / 2]
        return {"runs": runs, "mix": mix, "by": "tokens", "pack": extend.row_tokens}

    def base(self, seed: int) -> Stage:
        """Return the base model of a seed, trained leg by leg until retrieval has formed. Raises RunError if it does not."""
        asked, last = self.recipe.base, None
        for leg in range(1, asked.most_legs + 1):
            last = self._leg(seed, leg, last)
            if last.record["recall"] >= asked.recall:
                return last
        raise RunError(
            f"seed {seed}: after {asked.most_legs} legs of {asked.steps} steps the base model recalls "
            f"{100 * last.record['recall'] if last else 0:.0f} % of the values, not {100 * asked.recall:.0f} %; raise base.most_legs"
        )

    def _leg(self, seed: int, leg: int, before: Stage | None) -> Stage:
        asked, runs = self.recipe.base, self.short_runs()
        model = {"path": str(before.folder / "final")} if before else {"scratch": self.recipe.model.model_dump()}
        keys = {
            "seed": 1000 * seed + leg,  # a leg reads the rows in another order
            "data": {"runs": runs, "mix": [0.5, 0.5], "by": "tokens"},
            "model": model,
            "training": _training(asked.steps, asked.tokens_per_step, asked.tokens, asked.lr, schedule="constant"),
        }
        stage = self._stage(f"base-seed{seed}-leg{leg}", keys, runs, before)
        if not stage.is_finished:
            made = self._train(stage, keys)
            probes = recall.probes(
                "hard",
                negatives=CRITERION_NEGATIVES,
                count=self.recipe.measure.probes,
                seed=self.recipe.corpus.seed + 1,
                tokenizer=self.tokenizer,
            )
            made["recall"] = float(recall.recalled(_loaded(stage), probes).mean())
            stage.finish(made)
            self.report(f"{stage.name}: loss {made['loss']:.3f}, recall {100 * made['recall']:.1f} %, {made['seconds']:.0f} s")
        return stage

    def extended(self, seed: int, name: str, base: Stage) -> Stage:
        """Return the model of a seed that is extended on an arm."""
        extend, data = self.recipe.extend, self.data_of(ARMS[name])
        keys = {
            "seed": seed,
            "data": data,
            "model": {"path": str(base.folder / "final")},
            "training": _training(extend.steps, extend.tokens_per_step, extend.row_tokens, extend.lr, schedule="cosine"),
        }
        stage = self._stage(f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}", keys, data["runs"], base)
        if not stage.is_finished:
            made = self._train(stage, keys)
            stage.finish(made)
            self.report(f"{stage.name}: loss {made['loss']:.3f}, {made['seconds']:.0f} s")
        return stage

    def _stage(self, name: str, keys: Json, runs: list[str], before: Stage | None) -> Stage:
        """Return the stage of a training, known by what it is trained on and not by where that lies."""
        about = {**keys, "data": {**keys["data"], "runs": [self._runs[run] for run in runs]}, "threads": self.recipe.threads}
        about["model"] = {"from": before.fingerprint} if before else keys["model"]
        return Stage(self.out / "models", name, about)

    def _train(self, stage: Stage, keys: Json) -> Json:
        """Train a model and return its last loss, tokens, seconds and the hash of its weights."""
        import torch
        from rich.console import Console

        from nextlong.train import checkpoint, metrics, start

        torch.set_num_threads(self.recipe.threads)
        never = 1_000_000
        recipe = TrainRecipe.from_dict(
            {
                **keys,
                "data": {**keys["data"], "validation": 0.0},
                "out": str(stage.folder),
                "memory": {"checkpointing": "none", "loss_block_tokens": keys["training"]["tokens_per_step"]},
                "checkpoints": {"every_steps": never, "keep_last": 1},
                "watch": {"spike": None},
            },
            origin=stage.name,
        )
        start.train(recipe, Console(quiet=True))
        steps = metrics.read(stage.folder / metrics.STEPS)
        shutil.rmtree(stage.folder / checkpoint.FOLDER, ignore_errors=True)
        weights = (stage.folder / "final" / "model.safetensors").read_bytes()
        return {
            "loss": float(np.mean([step["loss"] for step in steps[-10:]])),
            "tokens": sum(step["tokens"] for step in steps),
            "seconds": round(sum(step["seconds"] for step in steps), 1),
            "sha256": hashlib.sha256(weights).hexdigest(),
        }

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the corpus."""
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.corpus.folder / "tokenizer.json"))

    @cached_property
    def probes(self) -> dict[tuple[str, int], recall.Probes]:
        """Every probe, by kind and number of negatives."""
        asked = self.recipe.measure
        return {
            (kind, count): recall.probes(
                kind, negatives=count, count=asked.probes, seed=self.recipe.corpus.seed, tokenizer=self.tokenizer
            )
            for kind in recall.KINDS
            for count in asked.negatives
        }

    @cached_property
    def held_out_rows(self) -> Any:
        """Rows of held-out documents, as the standard method lays them, (rows, T)."""
        compose = {"method": "standard", "target_tokens": self.recipe.extend.row_tokens, "sequences": self.recipe.measure.rows}
        run = Run(self.run("held-out", compose=compose))
        return np.array([np.asarray(sequence.input_ids, np.int64) for sequence in run.sequences()])

    def measured(self, model: Stage) -> Json:
        """Return what is measured of a model."""
        about = {"model": model.fingerprint, "measure": self.recipe.measure.model_dump(mode="json")}
        stage = Stage(self.out / "measured", model.name, about | {"corpus": self.corpus.fingerprint})
        if not stage.is_finished:
            stage.finish(self._measure(model))
        return stage.record

    def _measure(self, model: Stage) -> Json:
        loaded, longest = _loaded(model), max(self.recipe.measure.negatives)
        curves: Json = {kind: {} for kind in recall.KINDS}
        for (kind, count), probes in self.probes.items():
            curves[kind][str(count)] = round(100 * float(recall.recalled(loaded, probes).mean()), 3)
        eager = _loaded(model, attention="eager")
        thirds = {kind: recall.attention_thirds(eager, self.probes[kind, longest]) for kind in recall.KINDS}
        losses, bins = recall.losses(loaded, self.held_out_rows), {}
        edges = [1, *(length for length in (256, 512, 1024, 2048) if length < self.recipe.extend.row_tokens)]
        for first, last in zip(edges, [*edges[1:], self.recipe.extend.row_tokens], strict=True):
            bins[str(last)] = round(float(losses[first - 1 : last - 1].mean()), 5)
        attention = {
            kind: {"first": round(100 * first, 3), "last": round(100 * last, 3)} for kind, (first, last) in thirds.items()
        }
        return {"recall": curves, "loss": bins, "attention": attention}


def _training(steps: int, tokens: int, row: int, lr: float, *, schedule: str) -> Json:
    return {
        "steps": steps,
        "tokens_per_step": tokens,
        "micro_batch_rows": tokens // row,
        "lr": lr,
        "min_lr_ratio": 0.1,
        "schedule": schedule,
        "warmup_steps": max(1, steps // 20),
        "precision": "fp32",
    }


def _loaded(model: Stage, *, attention: str = "sdpa") -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = str(model.folder / "final")
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32).eval()


def mechanism(recipe: Mechanism, *, report: Callable[[str], None]) -> Json:
    """Run or resume the experiment; write and return `results.json`, anew after each model."""
    experiment = Experiment(recipe, report)
    with store.locked(experiment.out):
        store.write_text(experiment.out / "replicate.yaml", recipe.dump())
        models: list[Json] = []
        for seed in recipe.seeds:
            base = experiment.base(seed)
            legs = sum(path.name.startswith(f"base-seed{seed}-") for path in (experiment.out / "models").iterdir())
            models.append(_result("base", seed, base, experiment) | {"legs": legs})
            for name in recipe.arms:
                models.append(_result(name, seed, experiment.extended(seed, name, base), experiment))
                results = _results(experiment, models)
                store.write_json(experiment.out / RESULTS, results)
    return results


def _result(name: str, seed: int, model: Stage, experiment: Experiment) -> Json:
    return {"arm": name, "seed": seed, **model.record, "measured": experiment.measured(model)}


def _results(experiment: Experiment, models: list[Json]) -> Json:
    recipe = experiment.recipe.model_dump(mode="json", exclude={"out"})
    return {"version": nextlong.__version__, "recipe": recipe, "corpus": experiment.corpus.fingerprint, "models": models}
