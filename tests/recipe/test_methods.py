"""Which methods there are: the modules of `nextlong.methods` that are one, and nothing that serves several."""

from pathlib import Path

import nextlong.methods
from nextlong.recipe.methods import METHODS


def test_every_module_of_the_package_is_a_method_but_those_that_serve_several():
    (folder,) = nextlong.methods.__path__
    modules = {path.stem for path in Path(folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert set(METHODS.built_in) == modules - {"base", "documents", "steps", "__init__"}
    assert {"nextlong", "standard", "quest"} <= set(METHODS.names())
    assert "steps" not in METHODS


def test_a_method_is_what_its_module_calls_method_and_bears_the_modules_name():
    assert [METHODS.load(name).name for name in METHODS.built_in] == list(METHODS.built_in)
