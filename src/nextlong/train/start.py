"""Start: from a training recipe to a finished training.

Everything that can be wrong is checked before the model is loaded; a folder is trained in by one trainer at a time; what is
there is gone on with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rich.console import Console

from nextlong.engine import store
from nextlong.report import tables
from nextlong.train import checkpoint, costs, device, loop, model
from nextlong.train.check import check
from nextlong.train.metrics import Metrics
from nextlong.train.prepare import prepare
from nextlong.train.recipe import TrainRecipe
from nextlong.train.rows import TrainingRows
from nextlong.train.watch import Watcher

_LOOKED_AT: Final = 16  # rows


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
        done = loop.resume(engine, lambda line: tables.say(line, console))
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


def _engine(recipe: TrainRecipe) -> tuple[loop.Engine, list[str]]:
    ready, where = prepare(recipe), device.here()
    sizes = costs.sizes_of(ready.config)
    made = model.make(recipe, longest=ready.rows.longest_document, vocabulary=ready.config.vocab_size, device=where)
    lines = [f"model: {sizes.parameters:,} parameters", *made.said, *ready.said(), f"device: {where}"]
    prepared = made.model.to(where)
    lines.append(check(prepared, recipe, device=where, is_packed=_is_packed(recipe, ready.rows)))
    engine = loop.Engine(
        recipe=recipe,
        device=where,
        model=prepared,
        optimizer=device.optimizer_for(prepared, recipe),
        tokenizer=ready.tokenizer,
        rows=ready.rows,
        held_out_rows=ready.held_out_rows,
        plan=ready.plan,
        data=ready.data,
    )
    return engine, lines


def _is_packed(recipe: TrainRecipe, rows: TrainingRows) -> bool:
    """Return whether several documents are computed at once, by the first rows."""
    first_rows = (rows[row] for row in range(min(len(rows), _LOOKED_AT)))
    return recipe.training.micro_batch_rows > 1 or any(len(row.bounds) > 2 for row in first_rows)


def _tell_resumed(done: int, recipe: TrainRecipe, console: Console) -> None:
    if done >= recipe.training.steps:
        console.print(f"all {done} steps are done; choose another `out` to train from the start", highlight=False)
    elif done:
        console.print(f"going on after step {done} of {recipe.training.steps}", highlight=False)


def _finish(engine: loop.Engine) -> None:
    """Write `final/`: the weights in the precision they were trained for, adapters merged, ready for vLLM and lm-eval."""
    import torch

    final, work, bare = engine.out / "final", engine.out / ".work-final", engine.model
    if hasattr(bare, "peft_config"):
        bare = bare.merge_and_unload()
    dtype = torch.bfloat16 if engine.recipe.training.precision == "bf16" else torch.float32
    with checkpoint.explained(final):
        work.mkdir()
        rounded = {name: tensor.to(dtype) for name, tensor in bare.state_dict().items()}
        checkpoint.write_model(work, model=bare, weights=rounded, tokenizer=engine.tokenizer)
        config = store.read_json(work / "config.json")  # save_pretrained wrote the precision of the weights in memory
        store.write_json(work / "config.json", config | {"dtype": str(dtype).removeprefix("torch.")})
        checkpoint.publish(work, final)


def _picture(out: Path, console: Console) -> None:
    from nextlong.train import picture

    written = picture.draw(out)
    line = f"picture: {written}" if written else "picture: none, matplotlib is missing; pip install matplotlib"
    tables.say(f"model: {out / 'final'}\n{line}", console)
