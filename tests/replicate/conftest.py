"""A replication so small that it takes seconds: two methods, two seeds, two steps."""

import pytest

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
