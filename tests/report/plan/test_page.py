"""What `plan` says before and after a run; and that it writes nothing."""

import io
import json
import re
from dataclasses import replace

import pytest
import zstandard
from rich.console import Console
from tests.support.counted import total
from tests.support.larger_cases import thorough
from tests.support.planned import STEPS, TEXTS, recipe_in, shown, written

import nextlong
from nextlong import checks, pipeline
from nextlong.checks import count_tokens
from nextlong.corpus import look as plan_look
from nextlong.errors import CorpusError, ExportError, RunError, TokenizerError
from nextlong.reading.listing import input_files
from nextlong.report.plan import measure as measuring
from nextlong.report.plan import page
from nextlong.report.plan.costs import Rate
from nextlong.report.plan.scenario import Scenario
from nextlong.sequences.tokenizer import train_bpe

CHEAP = "compose.method=standard"  # for what is told before any step: nothing is embedded, mined or drafted on trial


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What one cheap trial measured."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "c.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    )
    return page.plan(recipe_in(folder, CHEAP)).measured


@pytest.fixture
def tried(monkeypatch, measured):
    """That trial stands for those of all cheap recipes: what is read is told of the corpus or the recipe."""
    monkeypatch.setattr(
        page, "measure", lambda recipe, sample: replace(measured, sample=sample)
    )


def state_of(row):
    return " ".join(row[1:3]) if row[1] in ("to", "begun,") else row[1]


def test_the_destination_is_named_and_left_alone(recipe, tried, tmp_path):
    recipe, there = recipe_in(tmp_path, CHEAP), tmp_path / "there"
    asked = recipe.model_copy(
        update={"export": recipe.export.model_copy(update={"push": str(there)})}
    )
    assert f"{there} (export.push)" in written(asked)
    assert not there.exists()
    assert "export.push" not in written(recipe)


def test_before_a_run_everything_is_to_do_and_costs_something_and_nothing_is_written(
    recipe, tmp_path
):
    before = sorted(tmp_path.rglob("*"))
    (summary,), rows = shown(recipe)
    assert sorted(tmp_path.rglob("*")) == before
    assert summary.startswith("80 documents, 0.0 MB of text, ")
    assert summary.endswith(" characters per token; method nextlong; 1 worker")
    *steps, whole = rows
    assert [row[0] for row in steps] == STEPS
    assert {state_of(row) for row in steps} == {"to do"}
    assert {tuple(row[4::2]) for row in steps} == {("s", "MB", "MB")}
    assert whole[:3] == ["all", "to", "do"]
    assert float(whole[3]) > 0


def test_a_target_that_the_whole_corpus_does_not_reach_is_flagged(
    recipe, tried, tmp_path
):
    warning = "compose.target_tokens=1,000,000 is more than the corpus has: all documents together have"
    too_long = recipe_in(tmp_path, CHEAP, "compose.target_tokens=1000000")
    with pytest.raises(CorpusError, match=warning):  # as a run does
        shown(too_long)
    file = io.StringIO()
    page.show(too_long, Console(file=file, width=400), Scenario(chunks=100))
    assert warning in file.getvalue()


def test_a_sequence_too_long_for_the_corpus_is_refused_by_plan_and_run_alike(
    recipe, tmp_path
):
    (tmp_path / "tokenizer.json").write_text(train_bpe(TEXTS, vocab_size=300).to_str())
    sets = (
        CHEAP,
        f"tokenizer.source={tmp_path}/tokenizer.json",
        "tokenizer.train=null",
    )
    files = input_files(recipe.ingest)
    looks = plan_look.look_at(recipe.ingest, files)
    tokens = count_tokens(recipe_in(tmp_path, *sets), looks, which="all")
    for share, is_enough in ((0.97, True), (1.03, False)):
        asked = recipe_in(
            tmp_path, *sets, f"compose.target_tokens={int(share * tokens)}"
        )
        if is_enough:
            assert "compose.target_tokens" not in written(asked)
            continue
        for refusing in (shown, pipeline.run):
            with pytest.raises(CorpusError) as refused:
                refusing(asked)
            assert refused.value.where == "compose.target_tokens"


@pytest.mark.parametrize("kind", ["whole", "sampled", "compressed"])
def test_rejects_that_will_end_the_run_are_foreseen(tmp_path, tried, monkeypatch, kind):
    lines = [json.dumps({"text": text}) + "\n" for text in TEXTS * 20]
    lines[::20] = ["{broken\n"] * len(lines[::20])
    if kind != "whole":
        monkeypatch.setattr(plan_look, "_READ_BYTES", 100_000)
        monkeypatch.setattr(plan_look, "_MIN_READ_BYTES", 100)
    path = tmp_path / ("c.jsonl.zst" if kind == "compressed" else "c.jsonl")
    path.write_bytes(
        zstandard.compress("".join(lines).encode())
        if kind == "compressed"
        else "".join(lines).encode()
    )
    recipe = recipe_in(tmp_path, CHEAP, f"ingest.sources.0.path={path}")
    said = written(recipe)
    share = float(re.search(r"about ([\d.]+)% of .* \(broken JSON\)", said)[1])
    assert share == pytest.approx(5, abs=0.001 if kind == "whole" else 2)
    cure = re.search(r"set (ingest\.max_reject_share=[\d.]+) in the recipe", said)[1]
    assert "would stop" not in written(
        recipe_in(tmp_path, CHEAP, f"ingest.sources.0.path={path}", cure)
    )


def test_a_source_of_nothing_but_rejects_counts_beside_another(recipe, tried, tmp_path):
    (tmp_path / "d.jsonl").write_text('{"text": " "}\n' * 20)
    sources = json.dumps(
        [{"path": str(tmp_path / name)} for name in ("c.jsonl", "d.jsonl")]
    )
    said = written(recipe_in(tmp_path, CHEAP, f"ingest.sources={sources}"))
    assert re.search(r"about 20\.00% of .* \(empty\)", said)
    assert "set ingest.max_reject_share=0.2" in said


def test_after_a_run_there_is_nothing_to_do_and_a_knob_changes_what_is_below_it(
    recipe, tmp_path
):
    pipeline.run(recipe)
    above, rows = shown(recipe)
    assert above == []
    assert [row[0] for row in rows] == STEPS
    assert {row[1] for row in rows} == {"done,"}
    _, changed = shown(recipe_in(tmp_path, "compose.position=tail"))
    assert [row[0] for row in changed if row[1] == "to"] == [
        "compose",
        "rows",
        "parquet",
        "all",
    ]
    _, retrained = shown(recipe_in(tmp_path, "tokenizer.train=301"))
    kept = [name for name in STEPS[: STEPS.index("draft")] if name != "tokenizer"]
    assert [row[0] for row in retrained if row[1] == "done,"] == kept


def test_an_endpoint_is_not_asked(recipe, tmp_path):
    _, rows = shown(
        recipe_in(
            tmp_path,
            "encoder.model='openai:x'",
            "encoder.openai.base_url=http://127.0.0.1:9",
        )
    )
    told = {row[0]: row for row in rows}
    assert told["embed"][3:5] == ["the", "endpoint's"]
    assert told["all"][3:5] == ["the", "endpoint's"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "they are empty"),
        ("\n \n", "they are empty"),
        ('{"text": ""}\n', "1 record: empty"),
        ("\x00junk\n", "1 record: broken JSON"),
        ('{"text": {"a": 1}}\n' * 2, "2 records: text is not a string"),
    ],
)
def test_files_without_a_document(recipe, tmp_path, content, why):
    (tmp_path / "c.jsonl").write_text(content)
    with pytest.raises(CorpusError) as error:
        shown(recipe)
    assert error.value.where == "ingest.sources"
    assert "c.jsonl" in error.value.problem
    assert f"({why})" in error.value.problem


def test_mistakes_that_a_run_would_find_hours_later(recipe, tmp_path):
    with pytest.raises(TokenizerError) as error:
        shown(recipe_in(tmp_path, "tokenizer.eos=</s>"))
    assert "tokenizer.eos" in str(error.value)
    (tmp_path / "plain").touch()
    for run_dir in (f"{tmp_path}/c.jsonl/run", f"{tmp_path}/plain"):
        with pytest.raises(RunError) as error:
            shown(recipe_in(tmp_path, f"run_dir={run_dir}"))
        assert (error.value.where, error.value.value) == ("run_dir", run_dir)
    for error_class, setting, where in (
        (CorpusError, "ingest.sources.0.path=nowhere/*.jsonl", "ingest.sources"),
        (TokenizerError, "tokenizer={source: no.json}", "tokenizer.source"),
        (ExportError, "export.push=nosuch://a/b", "export.push"),
    ):
        with pytest.raises(error_class) as error:
            shown(recipe_in(tmp_path, setting))
        assert where in str(error.value)


def test_changed_inputs_are_refused_as_by_a_run(recipe, tmp_path):
    recipe = recipe_in(tmp_path, CHEAP)
    nextlong.run(recipe)
    (tmp_path / "c.jsonl").write_text(
        (tmp_path / "c.jsonl").read_text() + '{"text": "one more"}\n'
    )
    with pytest.raises(RunError) as error:
        shown(recipe)
    assert "c.jsonl" in str(error.value)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.01, "0.1 s"),
        (100.0, "100.0 s"),
        (600.0, "10 min"),
        (36_000.0, "10.0 h"),
        (864_000.0, "10.0 days"),
        (None, "why"),
    ],
)
def test_times_are_told_in_the_unit_that_fits(seconds, told):
    assert page._time(seconds, "why") == told


@pytest.mark.parametrize(
    "method",
    [
        "knn",
        "litelong",
        "entropy",
        *thorough("quest", "standard", "iclm", "splice", "untie_the_knots"),
    ],
)
def test_every_step_of_other_methods_has_its_cost(
    recipe, tmp_path, monkeypatch, method
):
    # What it takes to score is a rate of its own.
    monkeypatch.setattr(measuring, "_time_scorer", lambda _: Rate(1e-3))
    monkeypatch.setattr(checks, "check_scorer", lambda *_, **__: None)
    chosen = (f"compose.method={method}", "scorer.model=tests/none")
    _, rows = shown(recipe_in(tmp_path, *chosen))
    assert all(len(row) >= 6 for row in rows)
    assert not [row[0] for row in rows if row[3:5] == ["not", "known"]]


FILTERS = (
    "minhash",
    "similar_pairs",
    "near_duplicates",
    "eval_ngrams",
    "decontaminate",
)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (
            (
                "mine.shortlist=bm25",
                "compose.sequences=4",
                "ingest.dedup=minhash",
                "decontaminate=[{eval}]",
            ),
            ("shortlist_words", "shortlist_queries", "shortlist", *FILTERS),
        ),
        (
            ("compose.method=knn", "documents.partition_size=1"),
            ("clusters", "partition"),
        ),
    ],
)
def test_steps_that_only_some_recipes_have_are_estimated(
    recipe, tmp_path, monkeypatch, settings, steps
):
    (tmp_path / "eval.txt").write_text("What is the airspeed of an unladen swallow?\n")
    monkeypatch.setattr(
        measuring, "TRIAL_CHARS", 600
    )  # a task for each partition of few documents
    _, rows = shown(
        recipe_in(
            tmp_path, *(one.format(eval=tmp_path / "eval.txt") for one in settings)
        )
    )
    told = {row[0]: row[3:] for row in rows}
    for step in steps:
        assert told[step][1::2] == ["s", "MB", "MB"]


def test_a_model_that_writes_queries_is_not_asked(recipe, tmp_path):
    _, rows = shown(
        recipe_in(
            tmp_path,
            "compose.method=quest",
            "quest.queries=castorini/doc2query-t5-base-msmarco",
        )
    )
    assert [row[0] for row in rows if row[3:5] == ["not", "known"]] == [
        "keywords",
        "all",
    ]


def test_a_cap_is_told(recipe, tried, tmp_path):
    (summary,), _ = shown(
        recipe_in(tmp_path, CHEAP, "ingest.sources.0.max_documents=10")
    )
    assert re.match("80 documents, .* 10 are kept, ", summary)


def test_what_a_plan_says_of_sizes_is_what_the_run_writes(few_recipe, tmp_path):
    asked = few_recipe(tmp_path / "run", "ingest.sources.0.max_documents=200")
    plan = page.plan(asked)
    ((_, costs),) = plan.on
    done = pipeline.run(asked)
    assert plan.amounts.documents == total(done["ingest"], "documents")
    assert plan.amounts.kept_documents == pytest.approx(
        total(done["chunk"], "documents")
    )
    assert plan.amounts.chunks == pytest.approx(total(done["chunk"], "chunks"), rel=0.3)
    for name in ("ingest", "chunk", "embed", "shingles", "tokens"):
        assert costs[name].disk_bytes == pytest.approx(
            done[name].manifest["bytes"], rel=0.5
        ), name


def test_a_source_that_is_only_sampled_is_told_as_about(
    recipe, tried, tmp_path, monkeypatch
):
    monkeypatch.setattr(plan_look, "_READ_BYTES", 1000)
    monkeypatch.setattr(plan_look, "_MIN_READ_BYTES", 2000)
    (summary,), _ = shown(recipe_in(tmp_path, CHEAP))
    assert summary.startswith("about ")
    assert 40 < int(summary.split()[1]) < 160


def test_a_source_read_whole_of_which_some_texts_are_kept_has_its_documents_counted(
    recipe, tried, tmp_path, monkeypatch
):
    recipe = recipe_in(tmp_path, CHEAP)
    monkeypatch.setattr(plan_look, "_KEPT_BYTES", 1000)
    monkeypatch.setattr(plan_look, "_MIN_KEPT_BYTES", 2000)
    (summary,), _ = shown(recipe)
    assert summary.startswith("about 80 documents, ")
    (look,) = plan_look.look_at(recipe.ingest, input_files(recipe.ingest))
    assert (look.documents, look.text_bytes) == (80, sum(map(len, TEXTS)))
    assert 0 < len(look.texts) < 80
    assert look.text_scale * sum(map(len, look.texts)) == pytest.approx(
        sum(map(len, TEXTS))
    )
