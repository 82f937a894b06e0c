"""The shared run, opened and measured once."""

import pytest

import nextlong
from nextlong import pipeline
from nextlong.runs import stats

CHUNKY = ("meta", "negative", "document")


@pytest.fixture(scope="session")
def run(shared_run):
    return nextlong.open(shared_run)


@pytest.fixture(scope="session")
def measured(run):
    return stats.measure(run)


@pytest.fixture(scope="session")
def sequences(run):
    """The chunk spans of every sequence, as objects."""
    return [[span for span in sequence.spans if span.role in CHUNKY] for sequence in run.sequences()]


@pytest.fixture(scope="session")
def shorter_run(recipe_for, tmp_path_factory):
    """A run of half the length, of the same corpus and tokenizer."""
    run_dir = tmp_path_factory.mktemp("shorter") / "run"
    pipeline.run(recipe_for(run_dir, "compose.target_tokens=1024", "compose.sequences=30", "workers=1"))
    return run_dir
