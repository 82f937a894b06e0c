"""What several readers' tests need."""

import importlib.util
import sys
import types

import pytest


@pytest.fixture(scope="session")
def streaming():
    """`streaming.base`, without what `import streaming` adds to it: pictures, which need torchvision."""
    package = types.ModuleType("streaming")
    package.__path__ = list(
        importlib.util.find_spec("streaming").submodule_search_locations
    )
    sys.modules["streaming"] = package
    import streaming.base

    package.StreamingDataset = (
        streaming.base.StreamingDataset
    )  # where users import it from
    return streaming.base
