"""Cases of a test that `make test` leaves to CI, which runs all: `pytest -m thorough`."""

import pytest


def thorough(*cases):
    """Return the cases as parameters that bear the marker."""
    return [pytest.param(case, marks=pytest.mark.thorough) for case in cases]
