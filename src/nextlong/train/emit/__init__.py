"""Emit: the same training for another trainer: its config, its data set, its launch script.

In:  a training recipe over finished runs; axolotl, prolong or megatron.
Out: a folder with `data/` (what the trainer reads, exported), its config and `launch.sh`.

A trainer is one module here: the format that it reads, the recipe's keys that it expresses, and the text of its files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.report import tables
from nextlong.runs import export
from nextlong.runs.opened import Run
from nextlong.train.emit import axolotl, expressed, megatron, prolong
from nextlong.train.emit.facts import Facts
from nextlong.train.recipe import TrainRecipe


class Trainer(NamedTuple):
    """The export format that a trainer reads, whether rows can be packed for it, the keys it expresses, its files by name.

    `attends_across`: whether it can be told to attend across the sequences of a packed row.
    """

    format: str
    packs: bool
    keys: expressed.Keys
    files: Callable[[Facts], Mapping[str, str]]
    attends_across: bool = False


TRAINERS: Final = {
    "axolotl": Trainer("axolotl", False, axolotl.KEYS, axolotl.files),
    "prolong": Trainer("prolong", True, prolong.KEYS, prolong.files),
    "megatron": Trainer("megatron", True, megatron.KEYS, megatron.files, attends_across=True),
}


_CROSSING: Final = tuple(name for name, trainer in TRAINERS.items() if trainer.attends_across)


def emit(recipe: TrainRecipe, name: str, folder: Path, console: Console) -> None:
    """Write `folder` for the trainer `name`. Raises RecipeError for a trainer that is none, and for what it cannot do."""
    if name not in TRAINERS:
        engine = "; torchtitan is an engine: --engine torchtitan" if name == "torchtitan" else ""
        raise RecipeError(f"--emit {name!r} is not known; choose from {', '.join(TRAINERS)}{engine}")
    trainer, facts = TRAINERS[name], _facts(recipe, folder.absolute())
    cure = "leave these as they are there, or use another trainer"
    expressed.check(recipe, {**expressed.DATA, **trainer.keys}, trainer=f"--emit {name}", cure=cure)
    if recipe.attention == "row" and recipe.data.pack and not trainer.attends_across:
        raise RecipeError(
            f"attention: row with data.pack is not what {name} can be told; use sequence, or {' or '.join(_CROSSING)}"
        )
    facts.check_shares()
    folder.mkdir(parents=True, exist_ok=True)
    data = recipe.data
    export.export(
        data.runs,
        formats=[trainer.format],
        overrides=_overrides(recipe, facts, trainer),
        mix=data.mix or (),
        by=data.by if data.mix else "sequences",
        stale="replace",
    )
    for file, text in trainer.files(facts).items():
        with store.explained(folder / file):
            store.write_text(folder / file, text)
    (folder / "launch.sh").chmod(0o755)
    store.write_text(folder / "recipe.yaml", recipe.dump())
    tables.say(f"wrote {folder}; look at launch.sh, then run it there", console)


def _overrides(recipe: TrainRecipe, facts: Facts, trainer: Trainer) -> list[str]:
    data = recipe.data
    asked = [f"export.push={json.dumps(str(facts.data))}"]
    if data.pack and trainer.packs:
        asked.append(f"export.pack={data.pack}")
    if data.validation:
        asked += [f"export.validation={data.validation}", f"export.shared_chunks={data.shared_chunks}"]
        asked.append(f"export.split_seed={data.split_seed}")
    return asked


def _facts(recipe: TrainRecipe, folder: Path) -> Facts:
    if not recipe.data.runs:
        raise RecipeError("--emit exports finished runs; name them under data.runs")
    if recipe.model.path is None:
        raise RecipeError("--emit needs a model that other trainers can load; set model.path instead of model.scratch")
    here = Path(recipe.model.path).expanduser()  # launch.sh runs in a folder of its own
    model = recipe.model.model_copy(update={"path": str(here.absolute()) if here.exists() else recipe.model.path})
    recipe = recipe.model_copy(update={"model": model})
    longest = max(Run(run).recipe.sequence_tokens for run in recipe.data.runs)
    return Facts(recipe=recipe, folder=folder, sequence_tokens=longest, row_tokens=recipe.data.pack or longest)
