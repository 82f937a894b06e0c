"""Prepare: what every engine needs before a model is loaded: rows, tokenizer, config, and which rows each step reads.

All errors in the data are found here, before a device is touched.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nextlong.errors import CorpusError, RecipeError, RunError
from nextlong.runs.run import Run
from nextlong.text import Json
from nextlong.train import model
from nextlong.train.recipe import Data, TrainRecipe
from nextlong.train.rows import BatchPlan, TrainingRows, plan_batches, source_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prepared:
    """`config` and `tokenizer` of transformers, `row_tokens` of the longest row, `data` the fingerprint of the training data."""

    recipe: TrainRecipe
    config: PretrainedConfig
    tokenizer: PreTrainedTokenizerBase | None
    rows: TrainingRows
    held_out_rows: TrainingRows | None
    row_tokens: int
    plan: BatchPlan
    data: str

    def notes(self) -> list[str]:
        """Return the data in words."""
        plan, held_out = self.plan, self.held_out_rows
        epochs = math.ceil(plan.epoch(self.recipe.training.steps) * 100) / 100
        rows = f"{len(self.rows):,} rows of up to {self.row_tokens:,} tokens"
        return [
            f"data: {rows}, {plan.rows_per_step} a step, read {epochs:g} times",
            f"held out: {len(held_out):,} rows" if held_out else "held out: nothing (data.validation=0)",
        ]


def prepare(recipe: TrainRecipe) -> Prepared:
    """Open the data and check them against the model. Raises NextlongError."""
    data, run_tokenizer = recipe.data, run_tokenizer_of(recipe.data)
    config = model.config_of(recipe, vocabulary=vocabulary_of(run_tokenizer))
    tokenizer = model.tokenizer_of(recipe, run_tokenizer=run_tokenizer)
    if run_tokenizer is not None:
        name = recipe.model.path or "model.scratch"
        model.check_tokenizer(tokenizer, run_tokenizer=run_tokenizer, model=name, vocabulary=config.vocab_size)
    source, held_out = source_of(data, split="train", tokenizer=tokenizer), None
    if data.validation:
        try:
            held_out_source = source_of(data, split="validation", tokenizer=tokenizer)
        except CorpusError as error:
            raise CorpusError(f"data.validation={data.validation:g}: {error}") from None
        if held_out_source.row_tokens > source.row_tokens and not data.pack:
            raise RecipeError(
                "held-out rows are longer than those trained on; use runs of one length, or set data.pack"
            )
        held_out = TrainingRows(held_out_source, attention=recipe.attention, vocabulary=config.vocab_size)
    rows = TrainingRows(source, attention=recipe.attention, vocabulary=config.vocab_size)
    row_tokens = data.pack or source.row_tokens
    plan = plan_batches(recipe, rows=len(rows), row_tokens=row_tokens)
    composed = [Run(run).steps["compose"].manifest["fingerprint"] for run in data.runs]
    fingerprint = hashlib.blake2b(" ".join([*composed, source.fingerprint]).encode(), digest_size=8).hexdigest()
    return Prepared(recipe, config, tokenizer, rows, held_out, row_tokens, plan, fingerprint)


def run_tokenizer_of(data: Data) -> Path | None:
    """Return the tokenizer file of the first run. Raises RunError for a folder that is no finished run."""
    return Run(data.runs[0]).steps["tokenizer"].file(".tokenizer.json") if data.runs else None


def vocabulary_of(run_tokenizer: Path | None) -> int | None:
    """Return how many ids a tokenizer has."""
    if run_tokenizer is None:
        return None
    from tokenizers import Tokenizer

    return int(Tokenizer.from_file(str(run_tokenizer)).get_vocab_size())


def check_same_data(data: str, before: str, saved: object) -> None:
    """Raise RunError if the fingerprint of the training data is not the one `before`, when `saved` was written."""
    if data != before:
        raise RunError(
            f"the training data have changed since {saved} was saved: the runs hold other sequences; restore them, or choose "
            "another `out` to start over"
        )


def check_same_recipe(recipe: TrainRecipe, before: Json, saved: Path) -> None:
    """Raise RunError if what was `saved` was trained with other keys than the recipe's `trained_keys()`."""
    then, now = _flat(before), _flat(recipe.trained_keys())
    changed = [key for key in now if then.get(key) != now[key]]
    if changed:
        differences = "; ".join(f"{key} was {then.get(key)!r} and is {now[key]!r}" for key in changed[:3])
        raise RunError(f"{saved} is of another recipe: {differences}; restore that, or choose another `out`")


def _flat(nested: Json, above: str = "") -> Json:
    flat: Json = {}
    for key, value in nested.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat
