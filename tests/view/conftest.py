import shutil

import pytest

import nextlong
from nextlong.view.variants import Variants


@pytest.fixture(scope="session")
def shared_run(shared_run, tmp_path_factory):
    """A copy of the shared run: the viewer keeps its index in it."""
    return shutil.copytree(shared_run, tmp_path_factory.mktemp("viewed") / "run")


@pytest.fixture(scope="module")
def variants(shared_run):
    """The variants of the shared run, as the pages are asked for them."""
    return Variants(nextlong.open(shared_run))
