"""The trial: which texts are tried, what of a recipe is changed for them, and what is added up."""

import numpy as np
import pytest
from tests.support.planned import TEXTS, recipe_in

from nextlong.engine.executor import Resources
from nextlong.report.plan import trial
from nextlong.report.plan.amounts import Amounts
from nextlong.report.plan.sample import CorpusSample
from nextlong.report.plan.trial import Timed


def test_texts_are_taken_from_everywhere_and_two_at_least():
    texts = [f"{number:03}-" + "x" * 96 for number in range(1000)]
    stands_for = np.repeat([3.0, 1.0], 500)  # of the second half, a third is as likely
    sizes = np.full(1000, 100), np.ones(1000, np.int64)
    seen = CorpusSample(Amounts(), True, texts, stands_for, *sizes, {})
    few, whole = seen.drawn(10_000), seen.drawn(10**9)
    assert len({*few}) == 100
    assert 10 < sum(text >= "5" for text in few) < 40
    assert {*texts[:500]} < {*whole}
    assert 500 + 130 < len({*whole}) == len(whole) < 500 + 200
    assert len(seen.drawn(1)) == 2


@pytest.fixture
def tried(tmp_path):
    """A function of overrides that returns the recipe of a trial of 40,000 characters."""
    texts = ["a text about tides and gulls, " * 40] * 33 + ["x" * 400]
    (tmp_path / "sample.jsonl").write_text(
        '{"text": "a text about tides and gulls"}\n' * 50
    )

    def changed(*overrides):
        recipe = recipe_in(tmp_path, *overrides)
        return trial.recipe_for(recipe, texts, tmp_path, chars_per_token=4.0), recipe

    return changed


def test_a_trial_runs_alone_on_its_own_files_and_sends_nothing(tried, tmp_path):
    recipe, asked = tried(
        "workers=7",
        "executor=local",
        "decontaminate=[eval.txt]",
        "export.push=s3://b/x",
        "search.index=IVF4,Flat",
    )
    assert (recipe.executor, recipe.workers, recipe.export.push) == ("serial", 1, None)
    assert recipe.run_dir == str(tmp_path / "run")
    assert [source.path for source in recipe.ingest.sources] == [
        str(tmp_path / "sample.jsonl")
    ]
    assert (recipe.decontaminate.files, recipe.search.index, recipe.search.device) == (
        (),
        "exact",
        "cpu",
    )
    assert recipe.chunk == asked.chunk
    assert recipe.mine == asked.mine


def test_sequences_are_as_long_as_a_sample_has_room_for(tried):
    recipe, _ = tried("compose.target_tokens=1000000")
    assert 256 <= recipe.compose.target_tokens <= 10_000 / 3
    assert tried("compose.target_tokens=300")[0].compose.target_tokens == 300
    assert tried("compose.sequences=all")[0].compose.sequences == 2
    assert (
        tried(
            "compose.method=standard",
            "compose.sequences=1000",
            "compose.target_tokens=300",
        )[0].compose.sequences
        == 16
    )


def test_models_and_servers_give_way_to_what_needs_none(tried, tmp_path):
    recipe, _ = tried(
        "encoder.model='openai:m'", "compose.method=quest", "quest.queries=some/model"
    )
    assert recipe.encoder.model == "lsa"
    assert recipe.options.queries == "extractive"
    recipe, _ = tried("tokenizer={source: org/model, bos: '<s>', eos: '</s>'}")
    assert recipe.tokenizer.source == str(tmp_path / "tokenizer.json")
    assert recipe.tokenizer.bos == recipe.tokenizer.eos == trial.END_OF_TEXT
    assert (tmp_path / "tokenizer.json").is_file()
    assert tried("tokenizer={source: org/model}")[0].tokenizer.bos is None


def test_seconds_are_added_up_by_step():
    executor = Timed()
    for label in ("embed task 0", "embed task 1", "filter_report task 0"):
        executor.submit(0, sum, range(1000), resources=Resources(), label=label)
        assert list(executor.ended()) == [(0, 499500)]
    assert executor.seconds.keys() == {"embed", "filter_report"}
    assert all(seconds >= 0 for seconds in executor.seconds.values())


def test_a_trial_is_counted_as_the_corpus_is(tmp_path):
    recipe = recipe_in(tmp_path, "compose.method=standard")
    less, more = (
        trial.try_route(recipe, TEXTS[:count], chars_per_token=3.0)
        for count in (20, 80)
    )
    assert (more.amounts.documents, more.amounts.text_bytes) == (
        80,
        sum(map(len, TEXTS)),
    )
    assert less.amounts.documents < more.amounts.documents
    assert less.amounts.chunks < more.amounts.chunks
    assert {"ingest", "chunk", "tokens", "compose", "parquet"} <= more.seconds.keys()
    assert more.bytes["ingest"] > less.bytes["ingest"] > 0
    assert "embed" not in more.seconds
    assert not list(tmp_path.glob("runs/*"))


def test_a_trial_that_ends_early_tells_of_the_steps_that_have_finished(tmp_path):
    ended = trial.try_route(
        recipe_in(tmp_path, "compose.min_meta_chunks=50"), TEXTS, chars_per_token=3.0
    )
    assert {"ingest", "chunk", "meta_documents"} <= ended.seconds.keys()
    assert "compose" not in ended.seconds
    assert ended.amounts.documents == 80


def test_chunks_that_come_from_few_documents_lower_the_share(tmp_path):
    shares = []
    for method in ("standard", "nextlong"):
        recipe = recipe_in(
            tmp_path, f"compose.method={method}", "mine.near_duplicates=null"
        )
        shares.append(
            trial.try_route(recipe, TEXTS, chars_per_token=3.0).documents_share
        )
    whole, mixed = shares  # standard puts all chunks of a document into one sequence
    assert 0 < whole < 0.8
    assert whole < mixed <= 1.1
