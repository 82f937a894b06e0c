"""Cases of a test that `make test` leaves to CI, which runs all: `pytest -m thorough`."""

import pytest


def thorough(*cases):
    """Return the cases as parameters that bear the marker; a tuple is one case of several parameters."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough
        )
        for case in cases
    ]
