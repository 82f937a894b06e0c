"""The shared run, opened and measured once."""

import pytest

import nextlong
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
