"""Results of two models."""

import pytest

from written_results import SCORES, write_results


@pytest.fixture
def two(tmp_path):
    return [
        write_results(tmp_path / "one", SCORES, label="first & best"),
        write_results(tmp_path / "two", {**SCORES, "RAG": 65.0, "Recall": 70.0}, label="second"),
    ]
