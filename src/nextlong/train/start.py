"""Start: from a training recipe to a finished training.

Everything that can be wrong is checked before the model is loaded; a folder is trained in by one trainer at a time; what is
there is gone on with.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

from rich.console import Console

from nextlong.engine import store
from nextlong.errors import CorpusError, RecipeError
from nextlong.report import tables
from nextlong.runs.opened import Run
from nextlong.train import checkpoint, costs, device, loop, model
from nextlong.train.batches import plan_batches
from nextlong.train.metrics import Metrics
from nextlong.train.recipe import Data, TrainRecipe
from nextlong.train.rows import Source, TrainingRows, source_of
from nextlong.train.watch import Watcher


def train(recipe: TrainRecipe, console: Console) -> Path:
    """Train as the recipe says, from the last checkpoint if there is one; return the folder of the finished model."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    device.check_alone(recipe)
    out = Path(recipe.out).expanduser()
    with store.locked(out), device.explained(recipe):
        engine, lines = _engine(recipe)
        for line in lines:
            tables.say(line, console)
        done = loop.resume(engine)
        checkpoint.remove_leftovers(out)
        store.write_text(out / "recipe.yaml", recipe.dump())
        _tell_resumed(done, recipe, console)
        metrics = Metrics(out, recipe.watch, first_step=done)
        with Watcher(engine, console) as watcher:
            loop.run(engine, metrics, first_step=done, report=watcher.step)
        metrics.close()
        _finish(engine)
        _picture(out, console)
    return out / "final"


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


def _engine(recipe: TrainRecipe) -> tuple[loop.Engine, list[str]]:
    run_tokenizer = run_tokenizer_of(recipe.data)
    vocabulary = vocabulary_of(run_tokenizer)
    config = model.config_of(recipe, vocabulary=vocabulary)
    tokenizer = model.tokenizer_of(recipe, run_tokenizer=run_tokenizer)
    if run_tokenizer is not None:
        name = recipe.model.path or "model.scratch"
        model.check_tokenizer(tokenizer, run_tokenizer=run_tokenizer, model=name, vocabulary=config.vocab_size)
    rows = source_of(recipe.data, split="train", tokenizer=tokenizer)
    kept_out = _held_out(recipe, rows, tokenizer, vocabulary=config.vocab_size)
    row_tokens = recipe.data.pack or rows.row_tokens
    plan = plan_batches(
        rows=len(rows),
        row_tokens=row_tokens,
        tokens_per_step=recipe.training.tokens_per_step,
        micro_batch_rows=recipe.training.micro_batch_rows,
        seed=recipe.seed,
    )
    training_rows = TrainingRows(rows, attention=recipe.attention, vocabulary=config.vocab_size)
    where = device.here()
    made = model.make(recipe, longest=training_rows.longest_document, vocabulary=vocabulary, device=where)
    prepared = made.model.to(where)
    sizes = costs.sizes_of(config)
    epochs = math.ceil(plan.epoch(recipe.training.steps) * 100) / 100
    lines = [
        f"model: {sizes.parameters:,} parameters",
        *made.said,
        f"data: {len(rows):,} rows of up to {row_tokens:,} tokens, {plan.rows_per_step} a step, read {epochs:g} times",
        f"held out: {len(kept_out.source):,} rows" if kept_out else "held out: nothing (data.validation=0)",
        f"device: {where}",
    ]
    engine = loop.Engine(
        recipe=recipe,
        device=where,
        model=prepared,
        optimizer=device.optimizer_for(prepared, recipe),
        tokenizer=tokenizer,
        rows=training_rows,
        held_out_rows=kept_out,
        plan=plan,
        data=_fingerprint(recipe.data, rows),
    )
    return engine, lines


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


def _tell_resumed(done: int, recipe: TrainRecipe, console: Console) -> None:
    if done >= recipe.training.steps:
        console.print(f"all {done} steps are done; choose another `out` to train from the start", highlight=False)
    elif done:
        console.print(f"going on after step {done} of {recipe.training.steps}", highlight=False)


def _finish(engine: loop.Engine) -> None:
    """Write `final/`: the weights in the precision they were trained for, adapters merged, ready for vLLM and lm-eval."""
    import shutil

    import torch

    final, work, bare = engine.out / "final", engine.out / ".final.tmp", engine.model
    if hasattr(bare, "peft_config"):
        bare = bare.merge_and_unload()
    dtype = torch.bfloat16 if engine.recipe.training.precision == "bf16" else torch.float32
    with checkpoint.explained(final):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        rounded = {name: tensor.to(dtype) for name, tensor in bare.state_dict().items()}
        checkpoint.write_model(work, model=bare, weights=rounded, tokenizer=engine.tokenizer)
        config = store.read_json(work / "config.json")  # save_pretrained wrote the precision of the weights in memory
        store.write_json(work / "config.json", config | {"dtype": str(dtype).removeprefix("torch.")})
        shutil.rmtree(final, ignore_errors=True)
        work.replace(final)


def _picture(out: Path, console: Console) -> None:
    from nextlong.train import picture

    written = picture.draw(out)
    line = f"picture: {written}" if written else "picture: none, matplotlib is missing; pip install matplotlib"
    tables.say(f"model: {out / 'final'}\n{line}", console)
