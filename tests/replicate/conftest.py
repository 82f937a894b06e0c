"""A replication so small that it takes seconds: two methods, two seeds, two steps."""

from types import SimpleNamespace

import pytest

from nextlong.replicate.recipe import Replication
from scored_rows import LENGTHS, row

SMALL = {
    "seeds": [0, 1],
    "methods": ["standard", "nextlong"],
    "data": {"vocabulary": 700, "max_chars": 300, "sequences": 4, "settings": {"executor": "serial"}},
    "model": {"hidden_size": 32, "intermediate_size": 64, "layers": 2, "heads": 2, "key_value_heads": 1},
    "pretrain": {"tokens": 128, "steps": 4, "tokens_per_step": 512, "warmup_steps": 1},
    "extend": {"tokens": 1024, "steps": 2, "tokens_per_step": 1024, "warmup_steps": 1, "rope_base": 40000.0},
    "precision": "fp32",
    "granularity": [200, 300],
    "corpus": {"held_out": 0.3},
    "measure": {
        "tasks": ["needle", "niah_single_1", "key_values", "copying", "attention"],
        "lengths": [768, 1024],
        "samples": 2,
        "sequences": 2,
    },
}


@pytest.fixture
def small_replication(small_corpus):
    """A function of the folder and further keys that returns a small recipe as plain data."""

    def keys(out, **more):
        corpus = {**SMALL["corpus"], "sources": [{"path": str(small_corpus), "name": "made up"}]}
        return {**SMALL, "corpus": corpus, "out": str(out), **more}

    return keys


@pytest.fixture
def done(small_replication, tmp_path):
    recipe = Replication.from_dict(small_replication(tmp_path / "out", seeds=[0, 1, 2], measure={"lengths": LENGTHS}))
    return SimpleNamespace(recipe=recipe, out=tmp_path / "out")


@pytest.fixture
def measured(monkeypatch):
    """The rows that stand for an experiment: nextlong, ahead of standard and level with knn."""
    from nextlong.replicate import figures, report

    made = [
        row("not extended", 10.0, 11.0, 9.0),
        row("standard", 20.0, 21.0, 22.0, arm="standard"),
        row("knn", 41.0, 38.0, 43.0, arm="knn"),
        row("nextlong", 40.0, 41.0, 42.0, arm="nextlong"),
    ]
    for module in (report, figures):
        monkeypatch.setattr(module, "score_rows", lambda done, experiment: made)
    return made
