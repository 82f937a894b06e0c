"""The route: steps in an order in which they can run, and who carries them out."""

import os

import pytest

from nextlong import pipeline
from nextlong.engine import store
from nextlong.engine.local import LocalExecutor
from nextlong.engine.serial import SerialExecutor
from nextlong.errors import EncoderError, ExportError, RunError
from nextlong.inputs.remembered import input_files
from nextlong.recipe.methods import METHODS

EVERY = pytest.mark.parametrize("method", METHODS.built_in)
FILTERS = ("ingest.dedup=minhash", "decontaminate=[{}]")


def route_of(recipe, **options):
    return pipeline.route(recipe, input_files(recipe), **options)


@EVERY
def test_every_step_stands_behind_what_it_reads(recipe_for, tmp_path, method):
    (tmp_path / "eval.txt").write_text("a question\n")
    filters = [one.format(tmp_path / "eval.txt") for one in FILTERS]
    steps = route_of(recipe_for(tmp_path / "run", f"compose.method={method}", *filters))
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    for place, step in enumerate(steps):
        assert {one.name for one in step.inputs} <= set(names[:place]), step.name
    assert names[:2] == ["ingest", "select"]
    # What was cleaned is what every later step sees, the tokenizer's training, too.
    assert {step.name for step in steps if "chunk" in {one.name for one in step.inputs}} <= {"contaminated", "clean"}
    # A typo in the tokenizer must not waste hours: what draws, embeds and searches comes after it.
    assert names.index("tokenizer") == names.index("left_out") + 1
    assert names[-3:] == ["rows", "parquet", "jsonl"]
    fingerprints = {step.name: step.fingerprint for step in steps}
    plain = {step.name: step.fingerprint for step in route_of(recipe_for(tmp_path / "run", f"compose.method={method}"))}
    assert fingerprints["ingest"] == plain["ingest"]
    assert fingerprints["chunk"] != plain["chunk"]


@EVERY
def test_a_further_attempt_drafts_more_of_the_same_corpus(recipe_for, tmp_path, method):
    recipe = recipe_for(tmp_path / "run", f"compose.method={method}")
    first, second = ({step.name: step.fingerprint for step in route_of(recipe, attempt=n)} for n in (0, 1))
    assert first.keys() == second.keys()
    same = {name for name in first if first[name] == second[name]}
    assert {"ingest", "select", "chunk", "left_out", "tokenizer"} <= same
    assert not {"named_chunks", "tokens", "compose"} & same


@pytest.mark.parametrize(("asked", "workers"), [("auto", 3), (5, 5)])
def test_auto_is_a_worker_a_core_that_this_process_may_use(recipe_for, tmp_path, monkeypatch, asked, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 7}, raising=False)
    recipe = recipe_for(tmp_path / "run", f"workers={asked}")
    assert pipeline.worker_count(recipe) == workers
    assert pipeline.capacity_here(recipe).cpus == workers


def test_where_no_process_is_bound_to_cores_all_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert pipeline.usable_cpus() == 1


def test_gpus_are_counted_for_a_model_and_not_for_what_needs_none(recipe_for, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "count_gpus", lambda: 4)
    monkeypatch.setattr(pipeline, "has_driver", lambda: False)
    model = "encoder.model='sentence-transformers:m'"
    assert pipeline.capacity_here(recipe_for(tmp_path / "run")).gpus == 0
    assert pipeline.capacity_here(recipe_for(tmp_path / "run", model)).gpus == 4
    monkeypatch.setattr(pipeline, "has_driver", lambda: True)
    assert pipeline.capacity_here(recipe_for(tmp_path / "run")).gpus == 4
    assert pipeline.capacity_here(recipe_for(tmp_path / "run", "search.device=cpu")).gpus == 0


def test_the_executor_is_the_one_that_the_recipe_names(recipe_for, tmp_path):
    assert isinstance(pipeline.executor_for(recipe_for(tmp_path / "run")), SerialExecutor)
    with pipeline.executor_for(recipe_for(tmp_path / "run", "executor=local")) as executor:
        assert isinstance(executor, LocalExecutor)


def test_what_a_run_would_miss_at_its_end_is_told_at_its_beginning(recipe_for, tmp_path, monkeypatch):
    with pytest.raises(ExportError, match="export.push='nosuch://a': Protocol not known"):
        pipeline.check_beforehand(recipe_for(tmp_path / "run", "export.push=nosuch://a"))
    monkeypatch.setattr("nextlong.embed.sentence_transformers.is_installed", lambda: False)
    recipe = recipe_for(tmp_path / "run", "encoder.model='sentence-transformers:m'")
    with pytest.raises(EncoderError, match="needs the package sentence-transformers"):
        pipeline.check_beforehand(recipe)
    pipeline.check_beforehand(recipe, encoder="any")


def test_whoever_asks_gets_the_finished_steps_and_may_go_on_while_the_directory_is_the_runs_own(recipe_for, own_run):
    seen = {}

    def when_done(done, variant, carry_out):
        seen.update(names=list(done), variant=variant.name, locked=_is_locked(own_run))

    done = pipeline.run(recipe_for(own_run), when_done=when_done)
    assert seen == {"names": list(done), "variant": "base", "locked": True}
    assert not _is_locked(own_run)


def _is_locked(run_dir):
    try:
        with store.locked(run_dir):
            return False
    except RunError:
        return True
