import pytest

import nextlong
from nextlong.view.states import States


@pytest.fixture(scope="module")
def states(shared_run):
    """The states of the shared run, as the pages are asked for them."""
    return States(nextlong.open(shared_run))
