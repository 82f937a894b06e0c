"""The contract of encoders: each file keeps it, and no other file knows an encoder's name."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.larger_cases import thorough

import nextlong
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.engine.executor import Resources
from nextlong.plugins import ENCODERS
from nextlong.recipe import Encoder
from nextlong.retrieval.encoders.base import EncoderKind, kind_of, preloaded

SOURCE = Path(nextlong.__file__).parent
MODELS = {
    "lsa": "lsa",
    "sentence_transformers": "sentence-transformers:some/model",
    "openai": "openai:some-model",
    "static": "static:some/model",
}


@pytest.mark.parametrize("section", MODELS)
def test_each_section_of_the_recipe_has_an_encoder_that_keeps_the_contract(section):
    config = Encoder(model=MODELS[section])
    kind = kind_of(config)
    assert isinstance(kind, EncoderKind)
    assert type(kind).__module__ == f"nextlong.retrieval.encoders.{section}"
    assert kind.fix
    assert kind.needs_fit <= bool(kind.prepare(config, CorpusFiles((), ()), seed=0))
    assert kind.resources(config) in (
        Resources(),
        Resources(gpu="optional"),
        Resources(at_once=1),
    )


def test_every_section_is_tested_here():
    assert set(ENCODERS.built_in) == MODELS.keys()


def _compared_words(path):
    """Yield every string that a file compares something with."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from (
                    leaf.value
                    for leaf in ast.walk(side)
                    if isinstance(leaf, ast.Constant)
                )


def test_no_file_branches_on_an_encoders_name():
    names = {*MODELS, "sentence-transformers"}
    for path in SOURCE.rglob("*.py"):
        assert names.isdisjoint(_compared_words(path)), path


@pytest.mark.parametrize(
    "section", ["lsa", *thorough(*(name for name in MODELS if name != "lsa"))]
)
def test_the_module_of_an_encoder_may_be_imported_first_as_a_worker_does(section):
    code = f"import nextlong.retrieval.encoders.{section}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("model", ["lsa", "sentence-transformers:m", "openai:x"])
def test_what_is_preloaded_can_be_imported(model):
    names = preloaded(Encoder(model=model))
    assert "nextlong.pipeline" in names
    assert all(
        importlib.util.find_spec(name) for name in names if name.startswith("nextlong")
    )


def test_naming_what_workers_import_does_not_import_the_pipeline():
    code = "import sys, nextlong.retrieval.encoders.base; print('nextlong.pipeline' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
