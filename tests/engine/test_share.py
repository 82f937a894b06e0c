"""Array jobs: shares of one step, run by several processes, meet in the bytes of one run."""

import json
from multiprocessing import get_context

import pytest
import yaml
from tests.support.killed import run_and_exit

from nextlong import pipeline
from nextlong.cli.main import main
from nextlong.errors import RunError
from nextlong.recipe import keys


@pytest.fixture
def recipe_file(recipe_for, tmp_path):
    recipe = recipe_for(tmp_path / "run", "workers=1")
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump(recipe.model_dump(mode="json", exclude_unset=True)))
    return path


def test_shares_meet_in_the_bytes_of_one_run(
    recipe_file, recipe_for, shared_run, hashes_of, tmp_path
):
    run_dir = tmp_path / "run"
    assert main(["run", str(recipe_file), "--before", "embed"]) == 0
    assert not list(run_dir.glob("*-embed-*"))
    share = ["run", str(recipe_file), "--only-step", "embed", "--tasks"]
    jobs = [
        get_context("forkserver").Process(
            target=run_and_exit, args=([*share, f"{part}/2"],)
        )
        for part in (1, 2)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0, 0]
    (folder,) = run_dir.glob("*-embed-*")
    assert not (folder / "manifest.json").exists()
    written = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.npy")}
    assert len(written) == len(list(folder.glob(".part-*.json"))) > 2
    pipeline.run(recipe_for(run_dir))
    assert hashes_of(run_dir) == hashes_of(shared_run)
    assert written == {
        path.name: path.stat().st_mtime_ns for path in folder.glob("*.npy")
    }
    assert len(json.loads((folder / "manifest.json").read_text())["parts"]) == len(
        written
    )


def test_the_steps_before_a_share_are_those_of_a_corpus_with_long_documents(
    recipe_for, hashes_of, tmp_path, monkeypatch
):
    # The tokens of every document are counted before it is sampled.
    monkeypatch.setattr(keys, "_LONG_MARGIN", 0)
    recipe = recipe_for(tmp_path / "run", "workers=1", "executor=serial")
    with pipeline.session(recipe, mode="together") as session:
        assert "tokenizer" in session.run_before("mine")
        ran, total = session.run_share("mine", job=(1, 1))
    assert ran == total > 0
    whole = recipe_for(tmp_path / "whole", "workers=1", "executor=serial")
    pipeline.run(whole)
    pipeline.run(recipe)
    assert hashes_of(tmp_path / "run") == hashes_of(tmp_path / "whole")


def test_a_share_waits_for_nothing_but_names_what_is_missing(recipe_for, tmp_path):
    recipe = recipe_for(tmp_path / "run", "workers=1")
    with pipeline.session(recipe, mode="together") as session:
        with pytest.raises(RunError) as error:
            session.run_share("embed", job=(1, 2))
        assert error.value.where == "embed"
        assert "ingest" in error.value.problem
        assert "--before embed" in error.value.fix
        with pytest.raises(RunError) as error:
            session.run_share("embedd", job=(1, 2))
        assert error.value.where == "--only-step"
        assert "embed" in error.value.fix
