"""The shared run, opened and measured once."""

import pytest

import nextlong
from nextlong import pipeline
from nextlong.runs.statistics.measure import measure

CHUNKY = ("meta", "negative", "document")


@pytest.fixture(scope="session")
def standard_run(recipe_for, started, tmp_path_factory):
    """A run of whole documents, two sequences a row; read-only."""
    run_dir = tmp_path_factory.mktemp("standard") / "run"
    pipeline.run(
        recipe_for(started(run_dir), "compose.method=standard", "export.pack=4096")
    )
    return nextlong.open(run_dir)


@pytest.fixture(scope="session")
def run(shared_run):
    return nextlong.open(shared_run)


@pytest.fixture(scope="session")
def measured(run):
    return measure(run)


@pytest.fixture(scope="session")
def sequences(run):
    """The chunk spans of every sequence, as objects."""
    return [
        [span for span in sequence.spans if span.role in CHUNKY]
        for sequence in run.sequences()
    ]
