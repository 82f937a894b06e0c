"""Data: training documents → the runs that models are trained and measured on, by the package's own `run` and `sweep`.

OUT/runs/pretraining    standard, short; trains the tokenizer
OUT/runs/extension      a variant for every method and setting; what they have in common is made once
OUT/runs/held-out       of held-out documents: hard negatives, and random ones, for the dependency probe
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nextlong.engine import store
from nextlong.errors import CorpusError
from nextlong.plain_data import Json
from nextlong.recipe import Recipe
from nextlong.recipe.text import merge
from nextlong.replicate import corpus
from nextlong.replicate.recipe import KEYS, Experiment, Replication
from nextlong.replicate.stage import Stage
from nextlong.report import sweep
from nextlong.runs import export
from nextlong.runs.opened import Run
from nextlong.runs.stats import Stats

HELD_OUT_NEGATIVES: Final = ("top", "random-corpus")


@dataclass(frozen=True)
class Arm:
    """One thing compared: a value of an experiment, the run that stands for it, and what that holds."""

    experiment: Experiment
    value: Any
    run: str
    composed: str  # fingerprint of its sequences: two arms of the same are trained once
    stats: Stats

    @property
    def name(self) -> str:
        """The value, as tables show it."""
        return f"{self.value:,}" if isinstance(self.value, int) else str(self.value)


@dataclass(frozen=True)
class Runs:
    """Everything that is trained or measured on."""

    pretraining: str
    composed: str
    tokenizer: Path
    arms: tuple[Arm, ...]
    held_out: tuple[Arm, ...]


def make(recipe: Replication, documents: Stage, out: Path) -> Runs:
    """Carry out every data recipe; what is there is kept."""
    pretraining = _pretraining(recipe, documents, out)
    tokenizer = str(pretraining.steps["tokenizer"].file(".tokenizer.json"))
    extension = _arms(recipe, documents, out, tokenizer)
    held_out = _held_out(recipe, documents, out, tokenizer)
    return Runs(str(pretraining.path), composed_of(pretraining), Path(tokenizer), extension, held_out)


def composed_of(run: Run) -> str:
    """Return what names a run's sequences."""
    return str(run.steps["compose"].manifest["fingerprint"])


def _pretraining(recipe: Replication, documents: Stage, out: Path) -> Run:
    keys = _common(recipe, documents, "train", tokenizer=_tokenizer(recipe))
    keys |= {"run_dir": str(out / "runs" / f"pretraining-{documents.fingerprint}")}
    keys["compose"] = {"method": "standard", "target_tokens": recipe.pretrain.tokens, "sequences": "all"}
    made = export.run(Recipe.from_dict(_with_settings(recipe, keys), origin="data of pretraining"))
    return made.runs[0]


def _arms(recipe: Replication, documents: Stage, out: Path, tokenizer: str) -> tuple[Arm, ...]:
    keys = _common(recipe, documents, "train", tokenizer={"source": tokenizer})
    keys |= {"run_dir": str(out / "runs" / f"extension-{documents.fingerprint}")}
    keys["compose"] = {"target_tokens": recipe.extend.tokens, "sequences": recipe.data.sequences}
    arms: list[Arm] = []
    for experiment in recipe.experiments:
        arms += _swept(recipe, keys, experiment, recipe.values(experiment), out / "runs" / "extension.yaml")
    return tuple(arms)


def _held_out(recipe: Replication, documents: Stage, out: Path, tokenizer: str) -> tuple[Arm, ...]:
    keys = _common(recipe, documents, "held-out", tokenizer={"source": tokenizer})
    keys |= {"run_dir": str(out / "runs" / f"held-out-{documents.fingerprint}")}
    keys["decontaminate"] = {"files": []}
    keys["compose"] = {"target_tokens": recipe.extend.tokens, "sequences": recipe.measure.sequences}
    return tuple(_swept(recipe, keys, "negatives", HELD_OUT_NEGATIVES, out / "runs" / "held-out.yaml"))


def _swept(
    recipe: Replication, keys: Mapping[str, Any], experiment: Experiment, values: Sequence[Any], path: Path
) -> list[Arm]:
    """Sweep a data recipe over the values of an experiment. Raises CorpusError if one of them cannot be made."""
    with store.explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        store.write_text(path, Recipe.from_dict(_with_settings(recipe, keys), origin=path.stem).dump())
    arms = []
    variants = sweep.variants(path, [sweep.Axis(KEYS[experiment], tuple(values))])
    for outcome in sweep.run_variants(variants, when_done=export.complete):
        variant = outcome.variant
        if outcome.stats is None:
            raise CorpusError(f"{variant.name}: {outcome.error}")
        run = Run(f"{variant.recipe.run_dir}@{variant.name}")
        arms.append(
            Arm(experiment, variant.settings[KEYS[experiment]], str(run.variant.named), composed_of(run), outcome.stats)
        )
    return arms


def _tokenizer(recipe: Replication) -> Json:
    return {"source": recipe.data.tokenizer} if recipe.data.tokenizer else {"train": recipe.data.vocabulary}


def _common(recipe: Replication, documents: Stage, side: str, *, tokenizer: Mapping[str, Any]) -> Json:
    return {
        "ingest": {"sources": [corpus.source_of(documents, side).model_dump(mode="json")]},
        "chunk": {"max_chars": recipe.data.max_chars},
        "decontaminate": {"files": [str(documents.folder / "held-out.jsonl")]},
        "encoder": {"model": recipe.data.encoder},
        "tokenizer": dict(tokenizer),
    }


def _with_settings(recipe: Replication, keys: Mapping[str, Any]) -> Json:
    return merge(keys, [f"{key}={json.dumps(value)}" for key, value in recipe.data.settings.items()])
