"""Prepare: open the data of a training, and check them against the model.

In:  the recipe.
Out: what every engine needs before a model is loaded: rows, tokenizer, config with the
     RoPE base set for the rows, and which rows each step reads.

All errors in the data are found here, before a device is used. The rows of a step
depend only on the seed and the step, so an interrupted training resumes at the next
row, and of the data only a fingerprint is saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import transformers
from tokenizers import Tokenizer
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from nextlong.arrays import Ints
from nextlong.artifacts.results import TokenizerFiles
from nextlong.artifacts.rows import epoch_order
from nextlong.artifacts.variant_names import flattened
from nextlong.engine import store
from nextlong.errors import CorpusError, RecipeError, RunError, TokenizerError
from nextlong.runs.run import Run
from nextlong.text import counted, first_sentence, why_no_model
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rope import set_rope_base
from nextlong.train.rows import TrainingRows, step_rows
from nextlong.train.sources import rows_of

RECORD: Final = "trainer.json"


@dataclass(frozen=True)
class Prepared:
    """The recipe of a training, and what it was checked against.

    config: the model's, with its RoPE base set
    changes: notes on what was set there
    data: the fingerprint of the rows
    """

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
    def steps_per_epoch(self) -> int:
        """Steps that read all rows once; rows that fill no step are skipped."""
        return len(self.rows) // self.rows_per_step

    @property
    def epochs(self) -> float:
        """How many times the training reads the data, rounded up to hundredths."""
        epochs = self.recipe.training.steps / self.steps_per_epoch
        return math.ceil(epochs * 100) / 100

    def micro_batches(self, step: int) -> Ints:
        """Return the row numbers of a step (from 0).

        They are (micro-batches, micro_batch_rows).
        """
        # Rows that fill no step are left over at the end of an epoch.
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)
        order = epoch_order(
            len(self.rows), order="shuffled", seed=self.recipe.seed, epoch=epoch
        )
        first = step_of_epoch * self.rows_per_step
        # The order is that of the seed and the epoch, whatever was read before.
        numbers: Ints = order[first : first + self.rows_per_step]
        return numbers.reshape(-1, self.recipe.training.micro_batch_rows)

    def notes(self) -> list[str]:
        """Describe the changes to the model's config, and the data."""
        rows = f"{counted(len(self.rows), 'row')} of up to {self.row_tokens:,} tokens"
        notes = [
            *self.changes,
            f"data: {rows}, {self.rows_per_step} per step, read {self.epochs:g} times",
        ]
        if self.held_out_rows:
            notes.append(f"held out: {counted(len(self.held_out_rows), 'row')}")
        else:
            notes.append("held out: nothing (data.validation=0)")
        if self.rows.dropped:
            notes.append(
                f"{self.rows.dropped:,} conversations were filtered out: longer than "
                "data.pack"
            )
        return notes

    def write_record(self, folder: Path) -> None:
        """Write `trainer.json`: which training the weights in `folder` are of."""
        record = {"recipe": self.recipe.trained_keys(), "data": self.data}
        store.write_json(folder / RECORD, record)

    def check_record(self, folder: Path) -> None:
        """Raise RunError if the weights in `folder` are of another training.

        They are if keys of the recipe or the data differ.
        """
        if not (folder / RECORD).is_file():
            raise RunError(
                where=folder,
                problem=f"it has checkpoints without {RECORD}, so their training is "
                "unknown",
                fix="choose another `out`",
            )
        record = store.read_json(folder / RECORD)
        # The first keys that differ are told by name.
        then = dict(flattened(record["recipe"]))
        now = dict(flattened(self.recipe.trained_keys()))
        changed = [
            f"{key} was {then.get(key)!r} and is {value!r}"
            for key, value in now.items()
            if then.get(key) != value
        ]
        if changed:
            raise RunError(
                where=folder,
                problem=f"it was trained with another recipe: {'; '.join(changed[:3])}",
                fix="restore these values, or choose another `out`",
            )
        if record["data"] != self.data:
            raise RunError(
                where=folder,
                problem="the training data have changed since it was saved: the runs "
                "hold other sequences",
                fix="restore them, or choose another `out` to start over",
            )

    def begin(self, *, resumes: bool) -> None:
        """Write recipe and record to `out`.

        Raises RunError if training `resumes` from checkpoints of another training.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        if resumes:
            self.check_record(self.out)
        self.write_record(self.out)
        store.write_file(self.out / "recipe.yaml", self.recipe.dump())


def prepare(recipe: TrainRecipe) -> Prepared:
    """Open the data and check them against the model. Raises NextlongError."""
    data = recipe.data
    run_tokenizer = None
    run_vocabulary = None
    if data.runs:
        run_tokenizer = TokenizerFiles.of(Run(data.runs[0]).steps).tokenizer
        run_vocabulary = Tokenizer.from_file(str(run_tokenizer)).get_vocab_size()
    # Only a model from scratch takes the vocabulary of the run.
    config = config_of(recipe, vocabulary=run_vocabulary)
    tokenizer = _tokenizer_of(
        recipe, run_tokenizer=run_tokenizer, vocabulary=config.vocab_size
    )
    rows = replace(
        rows_of(data, split="train", tokenizer=tokenizer),
        attention=recipe.attention,
        vocabulary=config.vocab_size,
    )
    held_out_rows = None
    if data.validation:
        held_out_rows = replace(
            _held_out_rows(recipe, tokenizer),
            attention=recipe.attention,
            vocabulary=config.vocab_size,
        )
        if held_out_rows.row_tokens > rows.row_tokens and not data.pack:
            raise RecipeError(
                where="data.runs",
                problem="held-out rows are longer than those to train on",
                fix="use runs of one length, or data.pack",
            )
    row_tokens = data.pack or rows.row_tokens
    rows_per_step = step_rows(recipe, rows=len(rows), row_tokens=row_tokens)
    # Positions count to the end of the longest document.
    longest = rows.row_tokens if recipe.attention == "row" else rows.sequence_tokens
    changes = set_rope_base(config, recipe, max_tokens=longest)
    return Prepared(
        recipe=recipe,
        config=config,
        changes=changes,
        tokenizer=tokenizer,
        rows=rows,
        held_out_rows=held_out_rows,
        row_tokens=row_tokens,
        rows_per_step=rows_per_step,
        data=rows.fingerprint,
    )


def _held_out_rows(
    recipe: TrainRecipe, tokenizer: PreTrainedTokenizerBase | None
) -> TrainingRows:
    """Return the rows of the validation split. Raises CorpusError if there are none."""
    data = recipe.data
    try:
        return rows_of(data, split="validation", tokenizer=tokenizer)
    except CorpusError as error:
        raise CorpusError(
            where=f"data.validation={data.validation:g}: {error.where}",
            value=error.value,
            problem=error.problem,
            fix=error.fix,
        ) from None


def config_of(recipe: TrainRecipe, *, vocabulary: int | None) -> PretrainedConfig:
    """Return the config of the model before anything is loaded.

    `vocabulary`: of the run's tokenizer. Raises RecipeError for a folder without a text
    model.
    """
    scratch = recipe.model.scratch
    if scratch is None:
        assert recipe.model.path is not None, "the recipe names one of them"
        return _config_in(recipe.model.path)
    if scratch.vocabulary is None and vocabulary is None:
        raise RecipeError(
            where="model.scratch.vocabulary",
            value="null",
            problem="takes the vocabulary of the run's tokenizer, and there is no run",
            fix="set the number of ids in the data",
        )
    return transformers.LlamaConfig(
        vocab_size=scratch.vocabulary or vocabulary,
        hidden_size=scratch.hidden_size,
        intermediate_size=scratch.intermediate_size,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.heads,
        num_key_value_heads=scratch.key_value_heads,
        tie_word_embeddings=True,
    )


def _config_in(path: str) -> PretrainedConfig:
    """Return the config of a folder or Hub name. Raises RecipeError."""
    no_model = why_no_model(path)
    if no_model is not None:
        raise RecipeError(
            where="model.path",
            value=repr(path),
            problem=no_model.problem,
            fix=no_model.fix,
        )
    try:
        config = transformers.AutoConfig.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise RecipeError(
            where="model.path",
            value=repr(path),
            problem="is not a model that transformers can load "
            f"({first_sentence(error)})",
            fix="use a folder with config.json and weights",
        ) from None
    if config.get_text_config() is not config:
        raise RecipeError(
            where="model.path",
            value=repr(path),
            problem=f"is a multimodal model ({config.model_type}), and this loop "
            "trains text models",
            fix="save its language model in a folder of its own",
        )
    return config


def _tokenizer_of(
    recipe: TrainRecipe, *, run_tokenizer: Path | None, vocabulary: int
) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer to save beside the weights.

    It is the model's own, or the run's for a model from scratch. Raises TokenizerError
    if an id of the runs is not one of the model's `vocabulary` ids, or stands for
    another word there.
    """
    path = recipe.model.path
    tokenizer = None
    if path is not None:
        # Not every model comes with one, and training reads ids.
        with suppress(OSError, ValueError, KeyError):
            tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    elif run_tokenizer is not None:
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(run_tokenizer)
        )
    if run_tokenizer is None:
        return tokenizer
    ids = Tokenizer.from_file(str(run_tokenizer)).get_vocab()
    known_ids = ids if tokenizer is None else tokenizer.get_vocab()
    _check_ids(ids, known_ids, vocabulary=vocabulary, model=path or "model.scratch")
    return tokenizer


def _check_ids(
    ids: Mapping[str, int], known_ids: Mapping[str, int], *, vocabulary: int, model: str
) -> None:
    """Raise TokenizerError unless the model knows the run's ids by the same words."""
    where = "the runs' tokenizer"
    fix = (
        f"run the recipe again with tokenizer.source={model}, which reuses its vectors "
        "and candidates"
    )
    highest = max(ids.values())
    if highest >= vocabulary:
        raise TokenizerError(
            where=where,
            problem=f"it has ids up to {highest:,}, {model} knows {vocabulary:,}",
            fix=fix,
        )
    differing = sorted(word for word in ids if known_ids.get(word) != ids[word])
    if differing:
        first = differing[0]
        raise TokenizerError(
            where=where,
            problem=f"it is not that of {model}: {len(differing):,} of {len(ids):,} "
            f"words have other ids ({first!r} is {ids[first]}, in the model "
            f"{known_ids.get(first, 'unknown')})",
            fix=fix,
        )
