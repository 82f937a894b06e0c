"""An approximate index in a whole run: built, tuned, said, and held to its word by verify."""

import json
import shutil

import pyarrow as pa
import pytest
from tests.support.counted import counts_of, total

from nextlong import pipeline
from nextlong.engine import store
from nextlong.errors import RecipeError
from nextlong.reading.listing import input_files
from nextlong.report import summary
from nextlong.runs.card import card_numbers
from nextlong.runs.exported import Exported
from nextlong.runs.run import Run
from nextlong.runs.statistics.measure import measure
from nextlong.verify.checks import verify

RECALL = "recall of the approximate index"


@pytest.fixture(scope="module")
def approximate(recipe_for, started, tmp_path_factory):
    """(recipe, finished steps) of a run whose index finds four fifths of the nearest."""
    recipe = recipe_for(
        started(tmp_path_factory.mktemp("approximate") / "run"),
        "search.index=IVF16,SQ8",
        "search.recall=0.8",
        "mine.candidates=40",
    )
    return recipe, pipeline.run(recipe)


def test_the_manifest_says_what_was_measured(approximate):
    _, done = approximate
    (built,), (tuned,) = counts_of(done["index"]), counts_of(done["tune"])
    assert built["index"] == "IVF16,SQ8"
    assert built["vectors"] == total(done["chunk"], "chunks")
    assert len(done["index_shards"].files(".bounds.npy")) == len(
        done["embed"].files(".vectors.npy")
    )
    assert tuned["recall"] == 0.8 <= tuned["recall_measured"]
    assert 1 <= tuned["probes"] < 16


def test_pages_say_which_index_and_what_it_finds(approximate):
    recipe, done = approximate
    told = dict(summary.lines(Exported(recipe, [Run(recipe.run_dir)], done)))["search"]
    assert "IVF16,SQ8" in told
    assert "set by search.index" in told
    stats = measure(Run(recipe.run_dir))
    assert (
        f"{counts_of(done['tune'])[0]['recall_measured']:.1%} on average"
        in stats.setting.search
    )
    assert card_numbers(stats)["search"] == stats.setting.search


def test_verify_holds_it_to_its_promise(approximate):
    recipe, _ = approximate
    outcomes = {outcome.check: outcome for outcome in verify(recipe.run_path)}
    assert {outcome.check for outcome in outcomes.values() if outcome.breaches} == set()
    assert outcomes[RECALL].checked > 10
    assert outcomes["negatives are the nearest unused"].result == "not needed"


def test_verify_notices_a_promise_that_is_not_kept(approximate, tmp_path):
    recipe, done = approximate
    run = tmp_path / "run"
    shutil.copytree(recipe.run_path, run)
    path = run / done["tune"].folder.name / store.MANIFEST
    manifest = json.loads(path.read_text())
    manifest["parts"][0]["counts"]["recall"] = 0.9999
    path.write_text(json.dumps(manifest))
    outcomes = {outcome.check: outcome for outcome in verify(run)}
    assert "the index promises 0.9999" in outcomes[RECALL].examples[0]


@pytest.mark.thorough
def test_another_number_of_workers_gives_the_same_bytes(
    approximate, started, tmp_path, hashes_of
):
    recipe, _ = approximate
    again = {"run_dir": str(started(tmp_path / "run")), "executor": "local"}
    pipeline.run(recipe.model_copy(update=again))
    assert hashes_of(tmp_path / "run") == hashes_of(recipe.run_path)


def test_documents_are_searched_for_in_an_index_too(recipe_for, started, tmp_path):
    done = pipeline.run(
        recipe_for(
            started(tmp_path / "run"), "compose.method=knn", "search.index=IVF4,Flat"
        )
    )
    assert counts_of(done["index"])[0]["index"] == "IVF4,Flat"
    queries = total(done["documents"], "drawn")
    assert total(done["neighbours"], "queries") == queries
    for path in done["neighbours"].files(".candidates.arrow"):
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for own, near in zip(
                *reader.read_all().select([0, 1]).to_pydict().values(), strict=True
            ):
                assert own not in near


@pytest.mark.parametrize("method", ["nextlong", "knn"])
def test_more_neighbours_are_another_promise(recipe_for, tmp_path, method):
    def fingerprints(index, more):
        asked = [f"search.index={index}", f"compose.method={method}", *more]
        recipe = recipe_for(tmp_path / "run", *asked)
        return {
            step.name: step.fingerprint
            for step in pipeline.route(recipe, input_files(recipe.ingest))
        }

    more = (
        ["mine.candidates=2048"]
        if method == "nextlong"
        else ["compose.target_tokens=16384"]
    )
    for index, of_neighbours in (
        ("IVF16,SQ8", {"tune"}),
        ("auto", {"index", "index_shards", "tune"}),
    ):
        before, after = fingerprints(index, []), fingerprints(index, more)
        changed = {
            name
            for name in ("embed", "index", "index_shards", "tune")
            if before[name] != after[name]
        }
        assert changed == of_neighbours


def test_auto_is_exact_where_there_is_little_to_search_and_says_so(
    recipe_for, shared_run
):
    recipe = recipe_for(shared_run)
    run = Run(shared_run)
    assert counts_of(run.steps["index"])[0]["index"] == "exact"
    assert (
        "core-seconds"
        in dict(summary.lines(Exported(recipe, [run], run.steps)))["search"]
    )
    assert measure(Run(shared_run)).setting.search is None


def test_exact_by_name_needs_no_index(recipe_for, started, tmp_path, shared_run):
    done = pipeline.run(recipe_for(started(tmp_path / "run"), "search.index=exact"))
    assert {"index", "index_shards", "tune"}.isdisjoint(done)
    named = [path.read_bytes() for path in done["mine"].files(".candidates.arrow")]
    chosen = [
        path.read_bytes()
        for path in Run(shared_run).steps["mine"].files(".candidates.arrow")
    ]
    assert named == chosen


def test_an_index_that_vectors_cannot_have_is_a_users_error(
    recipe_for, started, tmp_path
):
    recipe = recipe_for(started(tmp_path / "run"), "search.index='OPQ5,IVF4,Flat'")
    with pytest.raises(RecipeError) as error:
        pipeline.run(recipe)
    assert error.value.where == "search.index"
    assert error.value.value == "'OPQ5,IVF4,Flat'"


@pytest.mark.parametrize("index", ["HNSW32", "IVF64,PQ64x4fs", "ivf", "Flat"])
def test_an_index_without_lists_is_refused_before_anything_runs(
    recipe_for, tmp_path, index
):
    with pytest.raises(RecipeError, match=r"search: index is .*inverted lists"):
        recipe_for(tmp_path / "run", f"search.index='{index}'")
