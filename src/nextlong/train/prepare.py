"""Prepare: what every engine needs before a model is loaded: rows, tokenizer, config, and which rows each step reads.

Everything about the data that can be wrong is found here, before a device is touched.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nextlong.errors import CorpusError, RecipeError, RunError
from nextlong.plain_data import Json
from nextlong.runs.opened import Run
from nextlong.train import model
from nextlong.train.batches import Plan, plan_batches
from nextlong.train.recipe import Data, TrainRecipe
from nextlong.train.rows import Source, TrainingRows, source_of


@dataclass(frozen=True)
class Prepared:
    """`config` and `tokenizer` of transformers, `row_tokens` of the longest row, `data` the fingerprint of what is trained on."""

    recipe: TrainRecipe
    config: Any
    tokenizer: Any
    rows: TrainingRows
    held_out_rows: TrainingRows | None
    row_tokens: int
    plan: Plan
    data: str

    def said(self) -> list[str]:
        """Return what the data are, in words."""
        plan, held = self.plan, self.held_out_rows
        epochs = math.ceil(plan.epoch(self.recipe.training.steps) * 100) / 100
        rows = f"{len(self.rows):,} rows of up to {self.row_tokens:,} tokens"
        return [
            f"data: {rows}, {plan.rows_per_step} a step, read {epochs:g} times",
            f"held out: {len(held):,} rows" if held else "held out: nothing (data.validation=0)",
        ]


def prepare(recipe: TrainRecipe) -> Prepared:
    """Open the data and check them against the model. Raises NextlongError."""
    run_tokenizer = run_tokenizer_of(recipe.data)
    config = model.config_of(recipe, vocabulary=vocabulary_of(run_tokenizer))
    tokenizer = model.tokenizer_of(recipe, run_tokenizer=run_tokenizer)
    if run_tokenizer is not None:
        name = recipe.model.path or "model.scratch"
        model.check_tokenizer(tokenizer, run_tokenizer=run_tokenizer, model=name, vocabulary=config.vocab_size)
    rows = source_of(recipe.data, split="train", tokenizer=tokenizer)
    held_out = _held_out(recipe, rows, tokenizer, vocabulary=config.vocab_size)
    row_tokens = recipe.data.pack or rows.row_tokens
    plan = plan_batches(
        rows=len(rows),
        row_tokens=row_tokens,
        tokens_per_step=recipe.training.tokens_per_step,
        micro_batch_rows=recipe.training.micro_batch_rows,
        seed=recipe.seed,
    )
    training_rows = TrainingRows(rows, attention=recipe.attention, vocabulary=config.vocab_size)
    fingerprint = _fingerprint(recipe.data, rows)
    return Prepared(recipe, config, tokenizer, training_rows, held_out, row_tokens, plan, fingerprint)


def vocabulary_of(run_tokenizer: Path | None) -> int | None:
    """Return how many ids a tokenizer has."""
    if run_tokenizer is None:
        return None
    from tokenizers import Tokenizer

    return int(Tokenizer.from_file(str(run_tokenizer)).get_vocab_size())


def run_tokenizer_of(data: Data) -> Path | None:
    """Return the tokenizer file of the first run. Raises RunError for a folder that is no finished run."""
    if not data.runs:
        return None
    return Run(data.runs[0]).steps["tokenizer"].file(".tokenizer.json")


def check_same(recipe: TrainRecipe, data: str, record: Json, saved: Path) -> None:
    """Raise RunError if `record`, of what was `saved`, holds another `recipe` or another fingerprint of the `data`."""
    check_same_recipe(recipe, record["recipe"], saved)
    if record["data"] != data:
        raise RunError(
            f"what is trained on has changed since {saved} was saved: the runs hold other sequences; make them as they were, or "
            "choose another `out` to start over"
        )


def check_same_recipe(recipe: TrainRecipe, before: Json, saved: Path) -> None:
    """Raise RunError if what was `saved` was trained with other keys than the recipe's `trained_keys()`."""
    then, now = _flat(before), _flat(recipe.trained_keys())
    changed = [key for key in now if then.get(key) != now[key]]
    if changed:
        differences = "; ".join(f"{key} was {then.get(key)!r} and is {now[key]!r}" for key in changed[:3])
        raise RunError(f"{saved} is of another recipe: {differences}; put that back, or choose another `out`")


def _flat(nested: Json, above: str = "") -> Json:
    flat: Json = {}
    for key, value in nested.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat


def _held_out(recipe: TrainRecipe, rows: Source, tokenizer: Any, *, vocabulary: int) -> TrainingRows | None:
    if not recipe.data.validation:
        return None
    try:
        held_out = source_of(recipe.data, split="validation", tokenizer=tokenizer)
    except CorpusError as error:
        raise CorpusError(f"data.validation={recipe.data.validation:g}: {error}") from None
    if held_out.row_tokens > rows.row_tokens and not recipe.data.pack:
        raise RecipeError("held-out rows are longer than those trained on; use runs of one length, or set data.pack")
    return TrainingRows(held_out, attention=recipe.attention, vocabulary=vocabulary)


def _fingerprint(data: Data, rows: Source) -> str:
    composed = [Run(run).steps["compose"].manifest["fingerprint"] for run in data.runs]
    return hashlib.blake2b(" ".join([*composed, rows.fingerprint]).encode(), digest_size=8).hexdigest()
