"""A run of shorter sequences, and data sets of runs."""

import shutil

import pytest

from nextlong import pipeline

SHORT = 512


@pytest.fixture(scope="session")
def short_run(recipe_for, shared_run, tmp_path_factory):
    """More and shorter sequences from the same corpus, steps and tokenizer."""
    run_dir = shutil.copytree(shared_run, tmp_path_factory.mktemp("short") / "run")
    pipeline.run(
        recipe_for(
            run_dir,
            f"compose.target_tokens={SHORT}",
            "compose.sequences=30",
            "name=short",
        )
    )
    return f"{run_dir}@short"


@pytest.fixture(scope="session")
def other_runs(recipe_for, shared_run, tmp_path_factory):
    """Variants with as many sequences of the same lengths as the shared run."""
    run_dir = shutil.copytree(shared_run, tmp_path_factory.mktemp("other") / "run")
    settings = {
        "tail": "compose.position=tail",
        "tokenizer": "tokenizer.train=400",
        "seed": "seed=9",
    }
    for name, setting in settings.items():
        pipeline.run(recipe_for(run_dir, setting, f"name={name}"))
    return {name: f"{run_dir}@{name}" for name in settings}


@pytest.fixture(scope="session")
def dataset_of():
    from nextlong.torch import SequenceDataset

    return SequenceDataset
