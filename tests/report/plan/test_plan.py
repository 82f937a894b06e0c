"""What `plan` says before and after a run; and that it writes nothing."""

import io
import json

import pytest
from rich.console import Console

import nextlong
from counted import total
from nextlong import pipeline
from nextlong.corpus import look as plan_look
from nextlong.errors import CorpusError, ExportError, RunError, TokenizerError
from nextlong.inputs.remembered import input_files
from nextlong.recipe import Recipe
from nextlong.report.plan import costs as plan_costs
from nextlong.report.plan import page, sample
from nextlong.report.plan.earlier import earlier_rates

STEPS = [
    "ingest", "select", "chunk", "tokenizer", "meta_documents", "encoder", "embed",
    "index", "lists", "tune", "mine", "shingles", "weights", "draft", "named_chunks", "tokens", "compose", "rows", "parquet",
]  # fmt: skip
TEXTS = ["\n".join(f"Line {n}.{k} of a text about tides and gulls." for k in range(n % 9 + 1)) for n in range(80)]


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return recipe_in(tmp_path)


def recipe_in(folder, *overrides):
    plain = {
        "run_dir": str(folder / "runs/x"),
        "workers": 1,
        "ingest": {"sources": [{"path": str(folder / "c.jsonl")}]},
        "chunk": {"max_chars": 128},
        "encoder": {"lsa": {"dimensions": 8}},
        "mine": {"near_copies": 1.0},  # the texts are much the same
        "tokenizer": {"train": 300},
        "compose": {"sequences": 5, "target_tokens": 512},
    }
    return Recipe.from_dict(plain, overrides=overrides)


def shown(recipe):
    """Return (what stands above the table, cells of each row)."""
    file = io.StringIO()
    page.show(recipe, Console(file=file, width=40))
    lines = file.getvalue().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("step "))
    return lines[:start], [line.split() for line in lines[start + 1 :]]


def state_of(row):
    return " ".join(row[1:3]) if row[1] in ("to", "begun,") else row[1]


def test_before_a_run_everything_is_to_do_and_costs_something(recipe):
    (summary,), rows = shown(recipe)
    assert summary.startswith("80 documents, 0.0 MB of text, ")
    assert summary.endswith(" characters per token; method nextlong; 1 workers")
    *steps, whole = rows
    assert [row[0] for row in steps] == STEPS
    assert {state_of(row) for row in steps} == {"to do"}
    assert {tuple(row[4::2]) for row in steps} == {("s", "MB", "MB")}
    assert whole[:3] == ["all", "to", "do"]
    seconds = [float(row[3]) for row in rows]
    assert seconds[-1] >= max(seconds[:-1]) > 0


def test_the_steps_that_leave_something_out_are_estimated(recipe, tmp_path):
    (tmp_path / "eval.txt").write_text("What is the airspeed of an unladen swallow?\n")
    sets = [f"decontaminate=[{tmp_path / 'eval.txt'}]", "ingest.dedup=minhash"]
    _, rows = shown(recipe_in(tmp_path, *sets))
    told = {row[0]: row[3:] for row in rows}
    for step in ("minhash", "near_duplicates", "eval_ngrams", "contaminated", "clean"):
        assert told[step][1::2] == ["s", "MB", "MB"]


def test_a_target_that_the_whole_corpus_does_not_reach_is_flagged(recipe, tmp_path):
    assert len(shown(recipe)[0]) == 1
    _, warning = shown(recipe_in(tmp_path, "compose.target_tokens=1000000"))[0]
    assert warning.startswith(
        "no sequence can be made: compose.target_tokens=1,000,000, but all documents together are"
    )


def test_a_plan_writes_nothing(recipe, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    shown(recipe)
    assert sorted(tmp_path.rglob("*")) == before


def test_after_a_run_there_is_nothing_to_do_and_a_knob_changes_what_is_below_it(recipe, tmp_path):
    pipeline.run(recipe)
    above, rows = shown(recipe)
    assert above == []
    assert [row[0] for row in rows] == STEPS
    assert {row[1] for row in rows} == {"done,"}
    _, changed = shown(recipe_in(tmp_path, "compose.position=tail"))
    assert [row[0] for row in changed if row[1] == "to"] == ["compose", "rows", "parquet", "all"]
    _, retrained = shown(recipe_in(tmp_path, "tokenizer.train=301"))
    assert [row[0] for row in retrained if row[1] == "done,"] == [*STEPS[:3], *STEPS[4:13]]


def test_an_endpoint_is_not_asked(recipe, tmp_path):
    _, rows = shown(recipe_in(tmp_path, "encoder.model='openai:x'", "encoder.openai.base_url=http://127.0.0.1:9"))
    told = {row[0]: row for row in rows}
    assert told["embed"][3:5] == ["the", "endpoint's"]
    assert told["all"][3:5] == ["the", "endpoint's"]


@pytest.mark.parametrize("content", ["", "\n \n", '{"text": ""}\n', "\x00junk\n"])
def test_files_without_a_document(recipe, tmp_path, content):
    (tmp_path / "c.jsonl").write_text(content)
    with pytest.raises(CorpusError, match=r"no document was found at the beginning of .*c\.jsonl"):
        shown(recipe)


def test_mistakes_that_a_run_would_find_hours_later(recipe, tmp_path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.eos='</s>' is not in the tokenizer"):
        shown(recipe_in(tmp_path, "tokenizer.eos=</s>"))
    with pytest.raises(RunError, match=r"c\.jsonl is no folder that you may write to"):
        shown(recipe_in(tmp_path, f"run_dir={tmp_path}/c.jsonl/run"))
    (tmp_path / "plain").touch()
    with pytest.raises(RunError, match=r"plain is no folder that you may write to"):
        shown(recipe_in(tmp_path, f"run_dir={tmp_path}/plain"))
    with pytest.raises(CorpusError, match="matches no file"):
        shown(recipe_in(tmp_path, "ingest.sources.0.path=nowhere/*.jsonl"))
    with pytest.raises(TokenizerError, match=r"no\.json does not exist"):
        shown(recipe_in(tmp_path, "tokenizer={source: no.json}"))
    with pytest.raises(ExportError, match=r"export\.push='nosuch://a/b': Protocol not known"):
        shown(recipe_in(tmp_path, "export.push=nosuch://a/b"))


def test_changed_inputs_are_refused_as_by_a_run(recipe, tmp_path):
    nextlong.run(recipe)
    (tmp_path / "c.jsonl").write_text((tmp_path / "c.jsonl").read_text() + '{"text": "one more"}\n')
    with pytest.raises(RunError, match=r"input files have changed since a run .*c\.jsonl has \d+ bytes and had \d+"):
        shown(recipe)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.01, "0.1 s"), (100.0, "100.0 s"), (600.0, "10 min"), (36_000.0, "10.0 h"), (None, "not known")],
)
def test_times_are_told_in_the_unit_that_fits(seconds, told):
    assert page._cells(page.Cost(seconds, 2_500_000, 300.4)) == (told, "2.5 MB", "300 MB")


RATES = sample.Rates(
    read_s_per_byte=1e-8, chunk_s_per_char=1e-8, encode_s_per_chunk=1e-3, fit_base_s=0.5, fit_s_per_chunk=1e-3,
    fit_terms=900, fit_measured_chunks=1024, dimensions=8, search_s_per_pair=1e-9, tokenize_s_per_char=1e-7,
    words_s_per_char=2e-8, chars_per_token=4.0, encode_unknown="",
)  # fmt: skip


def corpus_of(text_bytes):
    return sample.Corpus(
        is_whole=False, documents=text_bytes / 1000, text_bytes=text_bytes, stored_share=0.4,
        kept_documents=text_bytes / 1000, kept_chars=text_bytes, chunks=text_bytes / 100, eligible=text_bytes / 1000,
        meta_chunks=text_bytes / 100,
    )  # fmt: skip


def plain_recipe(*overrides):
    plain = {"run_dir": "r", "ingest": {"sources": [{"path": "a"}]}, "tokenizer": "gpt2", "workers": 2}
    return Recipe.from_dict(plain, overrides=overrides)


def test_costs_grow_with_the_corpus_and_shrink_with_workers():
    small, large = (plan_costs.estimate(plain_recipe(), corpus_of(size), RATES, shards=8) for size in (10e6, 20e6))
    assert small["embed"].seconds == pytest.approx(10e6 / 100 * 1e-3 / 2)
    assert small["embed"].disk_bytes == pytest.approx(10e6 / 100 * 8 * 2)
    assert large["embed"].seconds == pytest.approx(2 * small["embed"].seconds)
    assert large["mine"].seconds == pytest.approx(2 * small["mine"].seconds)
    assert small["encoder"].seconds == large["encoder"].seconds == pytest.approx(0.5 + 16_384 * 1e-3)


def test_one_shard_keeps_one_worker_busy():
    one, two = (plan_costs.estimate(plain_recipe(), corpus_of(1e6), RATES, shards=shards) for shards in (1, 2))
    assert one["embed"].seconds == pytest.approx(2 * two["embed"].seconds)


def test_what_earlier_runs_took_beats_the_sample():
    costs = plan_costs.estimate(plain_recipe(), corpus_of(1e6), RATES, shards=2, earlier={"embed": 0.5, "ingest": 1e-3})
    assert costs["embed"].seconds == pytest.approx(10_000 * 0.5 / 2)
    assert costs["ingest"].seconds == pytest.approx(1e6 * 1e-3 / 2)


def test_earlier_runs_are_asked_where_they_took_long_enough_and_for_the_same_encoder(recipe, tmp_path):
    pipeline.run(recipe)
    assert earlier_rates(recipe, tmp_path / "none") == {}
    for name in ("ingest", "embed"):
        (path,) = (tmp_path / "runs/x").glob(f"*-{name}-*/manifest.json")
        manifest = json.loads(path.read_text())
        manifest["parts"][0]["seconds"] = 100.0
        path.write_text(json.dumps(manifest))
        units = manifest["parts"][0]["counts"]["text_bytes" if name == "ingest" else "chunks"]
        assert earlier_rates(recipe, tmp_path / "runs/x")[name] == pytest.approx(100 / units)
    other = recipe_in(tmp_path, "encoder.model='openai:x'")
    assert set(earlier_rates(other, tmp_path / "runs/x")) & {"ingest", "embed"} == {"ingest"}


@pytest.mark.parametrize("method", ["standard", "knn", "iclm", "quest"])
def test_every_step_of_other_methods_has_its_cost(recipe, tmp_path, method):
    _, rows = shown(recipe_in(tmp_path, f"compose.method={method}"))
    assert all(len(row) >= 6 for row in rows)
    unknown = [row[0] for row in rows if row[3:5] == ["not", "known"]]
    assert unknown == (["keywords", "all"] if method == "quest" else [])


def sources_in(folder, *sources):
    plain = recipe_in(folder).model_dump(mode="json")
    plain["ingest"]["sources"] = [{"path": str(folder / name), **caps} for name, caps in sources]
    return Recipe.from_dict(plain)


def measured(recipe):
    return sample.measure(recipe, input_files(recipe))[0]


@pytest.fixture
def two_sources(tmp_path):
    """200 documents of 100 characters, of two bytes each, in one source, 50 of 1,000 in another."""
    for name, count, text in (("small", 200, "é" * 95), ("large", 50, "b" * 995)):
        rows = [json.dumps({"text": f"{n:05d}" + text}) + "\n" for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    return tmp_path


@pytest.mark.parametrize(
    ("small", "large", "documents", "chars"),
    [
        ({}, {}, 250, 70_000),
        ({"max_documents": 10}, {}, 60, 51_000),
        ({"max_documents": 10}, {"max_chars": 5_000}, 15, 6_000),
        ({"max_documents": 900}, {"max_chars": 10}, 201, 21_000),
        ({"weight": 1.0}, {"weight": 1.0}, 220, 40_000),
        ({"weight": 1.0, "max_documents": 10}, {"weight": 3.0}, 13, 4_000),
    ],
)
def test_caps_and_weights_are_applied_to_each_source(two_sources, small, large, documents, chars):
    corpus = measured(sources_in(two_sources, ("small.jsonl", small), ("large.jsonl", large)))
    assert corpus.is_whole
    assert (corpus.documents, corpus.text_bytes) == (250, 200 * 195 + 50_000)
    assert corpus.kept_documents == pytest.approx(documents)
    assert corpus.kept_chars == pytest.approx(chars)


def test_a_cap_is_told(recipe, tmp_path):
    (summary,), _ = shown(recipe_in(tmp_path, "ingest.sources.0.max_documents=10"))
    assert summary.startswith("80 documents, 0.0 MB of text, of which 10 stay, ")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_plan_is_within_a_factor_of_three_of_the_run(recipe_for, tmp_path, workers):
    asked = recipe_for(tmp_path / "run", f"workers={workers}", "ingest.sources.0.max_documents=200")
    files = input_files(asked)
    corpus, rates = sample.measure(asked, files)
    costs = plan_costs.estimate(asked, corpus, rates, shards=page._shards(asked, files, corpus.text_bytes))
    done = pipeline.run(asked)
    assert corpus.documents == total(done["ingest"], "documents")
    assert corpus.kept_documents == pytest.approx(total(done["chunk"], "documents"))
    assert 1 / 3 < corpus.chunks / total(done["chunk"], "chunks") < 3
    for name in ("ingest", "embed", "tokens"):
        assert 1 / 3 < costs[name].disk_bytes / done[name].manifest["bytes"] < 3, name


def test_a_source_that_is_only_sampled_is_told_as_about(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_look, "_READ_BYTES", 1000)
    monkeypatch.setattr(plan_look, "_LEAST_READ_BYTES", 2000)
    (summary,), _ = shown(recipe)
    assert summary.startswith("about ")
    assert 40 < int(summary.split()[1]) < 160


def test_a_source_read_whole_of_which_some_texts_are_kept_has_its_documents_counted(recipe, monkeypatch):
    monkeypatch.setattr(plan_look, "_KEPT_BYTES", 1000)
    monkeypatch.setattr(plan_look, "_LEAST_KEPT_BYTES", 2000)
    (summary,), _ = shown(recipe)
    assert summary.startswith("about 80 documents, ")
    (look,) = plan_look.look_at(recipe, input_files(recipe))
    assert (look.documents, look.text_bytes) == (80, sum(map(len, TEXTS)))
    assert 0 < len(look.texts) < 80
    assert look.text_scale * sum(map(len, look.texts)) == pytest.approx(sum(map(len, TEXTS)))


def test_files_unlike_each_other_weigh_by_their_size(tmp_path, monkeypatch):
    """Twenty files of two long documents, twenty of twenty short ones, a tenth as large."""
    (tmp_path / "c").mkdir()
    for number in range(20):
        for kind, count, words in (("a", 2, 4000), ("b", 20, 40)):
            rows = [json.dumps({"text": f"{kind}{number}.{n} " + "word " * words}) + "\n" for n in range(count)]
            (tmp_path / "c" / f"{kind}{number:02d}.jsonl").write_text("".join(rows))
    source = sources_in(tmp_path, ("c", {}))
    monkeypatch.setattr(plan_look, "_READ_BYTES", 400_000)
    monkeypatch.setattr(plan_look, "_LEAST_READ_BYTES", 100)
    (look,) = plan_look.look_at(source, input_files(source))
    assert not look.is_whole
    assert look.read_bytes < 1_000_000
    assert look.documents * look.scale == pytest.approx(440, rel=0.25)
