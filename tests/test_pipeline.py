"""The route: steps in an order in which they can run, and who carries them out."""

import os

import pytest

from nextlong import pipeline
from nextlong.engine import store
from nextlong.engine.executor import SerialExecutor, usable_cpus
from nextlong.engine.local import LocalExecutor
from nextlong.errors import RunError
from nextlong.plugins import FORMATS, METHODS
from nextlong.reading.listing import input_files
from nextlong.runs.phases import PHASES

EVERY = pytest.mark.parametrize("method", METHODS.built_in)
FILTERS = ("ingest.dedup=minhash", "decontaminate=[{}]")
SCORER = "scorer.model=tests/none"  # of methods that need one; it is not loaded


def route_of(recipe, **options):
    return pipeline.route(recipe, input_files(recipe.ingest), **options)


def test_steps_of_further_attempts_have_titles_and_outcomes(recipe_for, tmp_path):
    recipe = recipe_for(tmp_path / "run", "compose.method=entropy", SCORER)
    names = [step.name for step in route_of(recipe, attempt=25)]
    contexts = [name for name in names if name.startswith("contexts")]
    assert len(set(contexts)) == 26
    assert {*contexts} <= {*pipeline.STEP_TITLES}
    assert {*contexts} <= {*PHASES["search"]}


@EVERY
def test_every_step_stands_behind_what_it_reads(recipe_for, tmp_path, method):
    (tmp_path / "eval.txt").write_text("a question\n")
    filters = [one.format(tmp_path / "eval.txt") for one in FILTERS]
    chosen = (f"compose.method={method}", SCORER)
    steps = route_of(recipe_for(tmp_path / "run", *chosen, *filters))
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    for place, step in enumerate(steps):
        assert {one.name for one in step.inputs} <= set(names[:place]), step.name
    assert names[:2] == ["ingest", "select"]
    assert {*names} <= {*pipeline.STEP_TITLES, *FORMATS.names()}
    assert {step.phase for step in steps} <= {*PHASES}
    # What was cleaned is what every later step sees, the tokenizer's training, too.
    assert {
        step.name for step in steps if "chunk" in {one.name for one in step.inputs}
    } <= {
        "decontaminate",
    }
    # A typo in the tokenizer must not waste hours: what draws, embeds and searches
    # comes after it.
    assert names.index("tokenizer") == names.index("filter_report") + 1
    assert names[-3:] == ["rows", "parquet", "jsonl"]
    fingerprints = {step.name: step.fingerprint for step in steps}
    plain = {
        step.name: step.fingerprint
        for step in route_of(recipe_for(tmp_path / "run", *chosen))
    }
    assert fingerprints["ingest"] == plain["ingest"]
    assert fingerprints["chunk"] != plain["chunk"]


@EVERY
def test_a_further_attempt_drafts_more_of_the_same_corpus(recipe_for, tmp_path, method):
    recipe = recipe_for(tmp_path / "run", f"compose.method={method}", SCORER)
    first, second = (
        {step.name: step.fingerprint for step in route_of(recipe, attempt=n)}
        for n in (0, 1)
    )
    # Methods that score documents add a step for more of them.
    assert first.keys() <= second.keys()
    same = {name for name in first if first[name] == second[name]}
    assert {"ingest", "select", "chunk", "filter_report", "tokenizer"} <= same
    assert not {"referenced_chunks", "tokens", "compose"} & same


@pytest.mark.parametrize(("asked", "workers"), [("auto", 3), (5, 5)])
def test_auto_is_a_worker_a_core_that_this_process_may_use(
    recipe_for, tmp_path, monkeypatch, asked, workers
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 7}, raising=False)
    recipe = recipe_for(tmp_path / "run", f"workers={asked}")
    assert pipeline.worker_count(recipe) == workers
    with pipeline.executor_for(
        recipe.model_copy(update={"executor": "local"})
    ) as executor:
        assert executor.cpus == workers


def test_where_no_process_is_bound_to_cores_all_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cpus() == 1


def test_gpus_are_counted_for_a_model_and_not_for_what_needs_none(
    recipe_for, tmp_path, monkeypatch
):
    monkeypatch.setattr(pipeline, "count_gpus", lambda: 4)
    monkeypatch.setattr(pipeline, "has_driver", lambda: False)
    model = "encoder.model='sentence-transformers:m'"
    assert pipeline.count_gpus_for(recipe_for(tmp_path / "run")) == 0
    assert pipeline.count_gpus_for(recipe_for(tmp_path / "run", model)) == 4
    monkeypatch.setattr(pipeline, "has_driver", lambda: True)
    assert pipeline.count_gpus_for(recipe_for(tmp_path / "run")) == 4
    assert (
        pipeline.count_gpus_for(recipe_for(tmp_path / "run", "search.device=cpu")) == 0
    )


@pytest.mark.parametrize(
    ("override", "step", "gpu"),
    [
        ("search.device=auto", "mine", "optional"),
        ("search.device=cpu", "mine", "unused"),
        ("quest.queries=a/model", "keywords", "optional"),
        ("quest.queries=extractive", "keywords", "unused"),
    ],
)
def test_a_search_and_a_model_of_queries_use_a_gpu_where_there_is_one(
    recipe_for, tmp_path, override, step, gpu
):
    method = "quest" if step == "keywords" else "nextlong"
    steps = route_of(recipe_for(tmp_path / "run", f"compose.method={method}", override))
    assert {one.name: one.resources.gpu for one in steps}[step] == gpu


def test_the_executor_is_the_one_that_the_recipe_names(recipe_for, tmp_path):
    assert isinstance(
        pipeline.executor_for(recipe_for(tmp_path / "run")), SerialExecutor
    )
    with pipeline.executor_for(
        recipe_for(tmp_path / "run", "executor=local")
    ) as executor:
        assert isinstance(executor, LocalExecutor)


def test_a_session_holds_the_run_directory_until_its_end(recipe_for, own_run):
    with pipeline.session(recipe_for(own_run)) as session:
        done, variant = session.make_variant()
        assert (variant.name, _is_locked(own_run)) == ("base", True)
        assert list(session.run_steps(session.route()[:1])) == list(done)[:1]
    assert not _is_locked(own_run)


def _is_locked(run_dir):
    try:
        with store.locked(run_dir):
            return False
    except RunError:
        return True
