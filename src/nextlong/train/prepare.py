"""Prepare: what every engine needs before a model is loaded: rows, tokenizer, config, and which rows each step reads.

All errors in the data are found here, before a device is touched. The rows of a step are a function of the seed and the step
alone, so an interrupted training resumes at the very next row, and nothing about the data is saved but a fingerprint.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from nextlong.artifacts.record import flattened
from nextlong.artifacts.rows import epoch_order
from nextlong.engine import store
from nextlong.errors import CorpusError, RecipeError, RunError
from nextlong.runs.run import Run
from nextlong.train import model
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import TrainingRows, source_of, step_rows

RECORD: Final = "trainer.json"


@dataclass(frozen=True)
class Prepared:
    """A recipe's `config`, RoPE base set, with the `changes` in words; its rows, tokens of the longest, and their fingerprint."""

    recipe: TrainRecipe
    config: PretrainedConfig
    changes: list[str]
    tokenizer: PreTrainedTokenizerBase | None
    rows: TrainingRows
    held_out_rows: TrainingRows | None
    row_tokens: int
    rows_per_step: int
    data: str

    @property
    def out(self) -> Path:
        """The folder of everything that is written."""
        return Path(self.recipe.out).expanduser()

    @property
    def epochs(self) -> float:
        """How many times the training reads the data, rounded up to hundredths."""
        return math.ceil(self.recipe.training.steps / (len(self.rows) // self.rows_per_step) * 100) / 100

    def micro_batches(self, step: int) -> NDArray[np.int64]:
        """Return the row numbers of a step (from 0), (micro batches, micro_batch_rows); rows that fill no step are skipped."""
        epoch, place = divmod(step, len(self.rows) // self.rows_per_step)
        order = epoch_order(len(self.rows), order="shuffled", seed=self.recipe.seed, epoch=epoch)
        numbers: NDArray[np.int64] = order[place * self.rows_per_step :][: self.rows_per_step]
        return numbers.reshape(-1, self.recipe.training.micro_batch_rows)

    def notes(self) -> list[str]:
        """Return the changes and the data in words."""
        rows, held_out = f"{len(self.rows):,} rows of up to {self.row_tokens:,} tokens", self.held_out_rows
        notes = [*self.changes, f"data: {rows}, {self.rows_per_step} a step, read {self.epochs:g} times"]
        notes += [f"held out: {len(held_out):,} rows" if held_out else "held out: nothing (data.validation=0)"]
        if dropped := getattr(self.rows.source, "dropped", 0):
            notes.append(f"{dropped:,} conversations are longer than data.pack, and left out")
        return notes

    def write_record(self, folder: Path) -> None:
        """Write which training the weights in `folder` are of: `trainer.json`, for `check_record`."""
        store.write_json(folder / RECORD, {"recipe": self.recipe.trained_keys(), "data": self.data})

    def check_record(self, folder: Path) -> None:
        """Raise RunError if the weights in `folder` were trained with other keys than the recipe's, or on other data."""
        if not (folder / RECORD).is_file():
            raise RunError(f"{folder} has checkpoints without {RECORD}, of an unknown training; choose another `out`")
        record = store.read_json(folder / RECORD)
        then, now = (dict(flattened(keys)) for keys in (record["recipe"], self.recipe.trained_keys()))
        if changed := [f"{key} was {then.get(key)!r} and is {now[key]!r}" for key in now if then.get(key) != now[key]]:
            differences = "; ".join(changed[:3])
            raise RunError(f"{folder} is of another recipe: {differences}; restore that, or choose another `out`")
        if record["data"] != self.data:
            raise RunError(
                f"the training data have changed since {folder} was saved: the runs hold other sequences; restore them, or choose "
                "another `out` to start over"
            )

    def begin(self, *, resumes: bool) -> None:
        """Write recipe and record to `out`. Raises RunError if training `resumes` from checkpoints of another training."""
        self.out.mkdir(parents=True, exist_ok=True)
        if resumes:
            self.check_record(self.out)
        self.write_record(self.out)
        store.write_file(self.out / "recipe.yaml", self.recipe.dump())


def prepare(recipe: TrainRecipe) -> Prepared:
    """Open the data and check them against the model. Raises NextlongError."""
    data, run_tokenizer, vocabulary = recipe.data, None, None
    if data.runs:
        run_tokenizer = Run(data.runs[0]).steps["tokenizer"].file(".tokenizer.json")
        vocabulary = int(Tokenizer.from_file(str(run_tokenizer)).get_vocab_size())
    config = model.config_of(recipe, vocabulary=vocabulary)
    tokenizer = model.tokenizer_of(recipe, run_tokenizer=run_tokenizer, vocabulary=config.vocab_size)
    source, held_out = source_of(data, split="train", tokenizer=tokenizer), None
    if data.validation:
        try:
            held_out_source = source_of(data, split="validation", tokenizer=tokenizer)
        except CorpusError as error:
            raise CorpusError(f"data.validation={data.validation:g}: {error}") from None
        if held_out_source.row_tokens > source.row_tokens and not data.pack:
            raise RecipeError("held-out rows are longer than those to train on; use runs of one length, or data.pack")
        held_out = TrainingRows(held_out_source, attention=recipe.attention, vocabulary=config.vocab_size)
    rows = TrainingRows(source, attention=recipe.attention, vocabulary=config.vocab_size)
    row_tokens = data.pack or source.row_tokens
    rows_per_step = step_rows(recipe, rows=len(rows), row_tokens=row_tokens)
    changes = model.set_rope_base(config, recipe, max_tokens=rows.longest_document)
    composed = [Run(run).steps["compose"].manifest["fingerprint"] for run in data.runs]
    fingerprint = hashlib.blake2b(" ".join([*composed, source.fingerprint]).encode(), digest_size=8).hexdigest()
    return Prepared(recipe, config, changes, tokenizer, rows, held_out, row_tokens, rows_per_step, fingerprint)
