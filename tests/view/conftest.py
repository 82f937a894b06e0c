import pytest

import nextlong
from nextlong.view.variants import Variants


@pytest.fixture(scope="module")
def variants(shared_run):
    """The variants of the shared run, as the pages are asked for them."""
    return Variants(nextlong.open(shared_run))
