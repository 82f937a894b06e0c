"""A recipe to emit, over a run whose sequences end in EOS."""

import json

import pytest

from llama_config import LLAMA
from nextlong.train.presets import recipe_from


@pytest.fixture
def recipe(ended_run, tmp_path):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA))

    def make(*overrides):
        changes = ["training.tokens_per_step=65536", "hardware.count=16", "hardware.ranks_per_row=4", *overrides]
        return recipe_from(
            "paper-128k",
            out=str(tmp_path / "out"),
            data={"runs": [str(ended_run)]},
            model=str(tmp_path / "llama"),
            overrides=tuple(changes),
        )

    return make


@pytest.fixture
def console():
    from rich.console import Console

    return Console(quiet=True)
