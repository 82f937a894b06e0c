"""A run exported in every format, and again packed and divided; both are read-only."""

import shutil
from pathlib import Path

import pytest
from tests.support.exported_runs import FORMATS, OPTIONS, SIZES, TOKENS

from nextlong import pipeline
from nextlong.runs import export


@pytest.fixture(scope="session")
def exported_run(recipe_for, started, tmp_path_factory):
    """A run of twelve sequences in every format, a row each; read-only."""
    run_dir = started(tmp_path_factory.mktemp("exports") / "run")
    pipeline.run(
        recipe_for(run_dir, *SIZES, f"export.formats=[{','.join(FORMATS)}]", *OPTIONS)
    )
    return run_dir


@pytest.fixture(scope="session")
def packed_run(exported_run, tmp_path_factory):
    """The same, and all but axolotl's again as rows of two sequences, a third of these held out; read-only."""
    run_dir = Path(
        shutil.copytree(exported_run, tmp_path_factory.mktemp("packed") / "run")
    )
    asked = [*OPTIONS, f"export.pack={2 * TOKENS}", "export.validation=0.3"]
    export.export(
        [run_dir],
        formats=[name for name in FORMATS if name != "axolotl"],
        overrides=asked,
    )
    return run_dir


@pytest.fixture(scope="session")
def titan_run(recipe_for, started, tmp_path_factory):
    """A run for torchtitan, whose sequences are a token longer, packed and divided; read-only."""
    run_dir = started(tmp_path_factory.mktemp("titan") / "run")
    rows = [f"export.pack={2 * (TOKENS + 1)}", "export.validation=0.3", "workers=1"]
    pipeline.run(recipe_for(run_dir, *SIZES, "export.formats=[torchtitan]", *rows))
    return run_dir


@pytest.fixture
def titan(titan_run, tmp_path):
    """A copy of torchtitan's to damage."""
    return Path(shutil.copytree(titan_run, tmp_path / "titan"))


@pytest.fixture
def packed(packed_run, tmp_path):
    """A copy of the packed and divided rows to damage."""
    return Path(shutil.copytree(packed_run, tmp_path / "packed"))


@pytest.fixture(scope="session")
def finished(recipe_for, started, tmp_path_factory):
    """A run whose candidates are fewer than its chunks; read-only."""
    run_dir = started(tmp_path_factory.mktemp("verify") / "run")
    overrides = [
        "mine.candidates=100",
        "compose.sequences=4",
        "compose.target_tokens=1024",
        "compose.min_meta_chunks=3",
    ]
    pipeline.run(recipe_for(run_dir, *overrides, "tokenizer.eos=<|endoftext|>"))
    return run_dir


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the run `finished` of a test file, or of the one above, to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))
