"""What `plan` says before and after a run; and that it writes nothing."""

import io
import json
import re
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from rich.console import Console

import nextlong
from counted import total
from larger_cases import thorough
from nextlong import pipeline
from nextlong.corpus import look as plan_look
from nextlong.embed import sentence_transformers
from nextlong.errors import CorpusError, ExportError, RunError, TokenizerError
from nextlong.inputs.remembered import input_files
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import Amounts
from nextlong.report.plan import cluster, page, sample, warnings
from nextlong.report.plan.cluster import Asked
from nextlong.report.plan.earlier import earlier_rates, shares_to_do
from nextlong.runs import warnings as run_warnings
from nextlong.tokens.enough import count_tokens
from nextlong.tokens.tokenizer import train_bpe

STEPS = [
    "ingest", "select", "chunk", "left_out", "tokenizer", "meta_documents", "encoder", "shingles", "weights",
    "embed", "index", "lists", "tune", "mine", "draft", "named_chunks", "tokens", "compose", "rows", "parquet",
]  # fmt: skip
TEXTS = ["\n".join(f"Line {n}.{k} of a text about tides and gulls." for k in range(n % 9 + 1)) for n in range(80)]


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return recipe_in(tmp_path)


def recipe_in(folder, *overrides):
    plain = {
        "run_dir": str(folder / "runs/x"),
        "executor": "serial",
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
    rows = [line.split() for line in lines[start + 1 :]]
    end = next((number for number, row in enumerate(rows, start=1) if row[0] == "all"), len(rows))
    return lines[:start], rows[:end]


def written(recipe, asked=Asked()):  # noqa: B008
    """Return all that a plan says."""
    file = io.StringIO()
    page.show(recipe, Console(file=file, width=200), asked)
    return file.getvalue()


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
    assert float(whole[3]) > 0


def test_the_steps_that_leave_something_out_are_estimated(recipe, tmp_path):
    (tmp_path / "eval.txt").write_text("What is the airspeed of an unladen swallow?\n")
    sets = [f"decontaminate=[{tmp_path / 'eval.txt'}]", "ingest.dedup=minhash"]
    _, rows = shown(recipe_in(tmp_path, *sets))
    told = {row[0]: row[3:] for row in rows}
    for step in ("minhash", "near_duplicates", "eval_ngrams", "contaminated", "clean"):
        assert told[step][1::2] == ["s", "MB", "MB"]


def test_a_target_that_the_whole_corpus_does_not_reach_is_flagged(recipe, tmp_path):
    warning = "no sequence can be made: compose.target_tokens=1,000,000, but all documents together are"
    too_long = recipe_in(tmp_path, "compose.target_tokens=1000000")
    with pytest.raises(CorpusError, match=warning):  # as a run does
        shown(too_long)
    file = io.StringIO()
    page.show(too_long, Console(file=file, width=400), Asked(chunks=100))
    assert warning in file.getvalue()


def test_a_sequence_too_long_for_the_corpus_is_refused_by_plan_and_run_alike(recipe, tmp_path):
    (tmp_path / "tokenizer.json").write_text(train_bpe(TEXTS, vocab_size=300).to_str())
    sets = (f"tokenizer.source={tmp_path}/tokenizer.json", "tokenizer.train=null")
    files = input_files(recipe)
    looks = plan_look.look_at(recipe, files)
    tokens = count_tokens(recipe_in(tmp_path, *sets), looks, of="all")
    for share, is_enough in ((0.97, True), (1.03, False)):
        asked = recipe_in(tmp_path, *sets, f"compose.target_tokens={int(share * tokens)}")
        if is_enough:
            assert "no sequence can be made" not in written(asked)
            continue
        with pytest.raises(CorpusError, match="no sequence can be made"):
            shown(asked)
        with pytest.raises(CorpusError, match="no sequence can be made"):
            pipeline.run(asked)


@pytest.mark.parametrize("kind", ["whole", "sampled", "compressed"])
def test_rejects_that_will_end_the_run_are_foreseen(tmp_path, monkeypatch, kind):
    lines = [json.dumps({"text": text}) + "\n" for text in TEXTS * 40]
    lines[::20] = ["{broken\n"] * len(lines[::20])
    if kind != "whole":
        monkeypatch.setattr(plan_look, "_READ_BYTES", 100_000)
        monkeypatch.setattr(plan_look, "_LEAST_READ_BYTES", 100)
    path = tmp_path / ("c.jsonl.zst" if kind == "compressed" else "c.jsonl")
    path.write_bytes(zstandard.compress("".join(lines).encode()) if kind == "compressed" else "".join(lines).encode())
    recipe = recipe_in(tmp_path, f"ingest.sources.0.path={path}")
    said = written(recipe)
    assert "ingest would stop the run: about " in said
    share = float(re.search(r"about ([\d.]+)% of the records cannot be used \(broken JSON\)", said)[1])
    assert share == pytest.approx(5, abs=0.001 if kind == "whole" else 2)
    cure = re.search(r"say --set (ingest\.max_reject_share=[\d.]+)", said)[1]
    assert "would stop" not in written(recipe_in(tmp_path, f"ingest.sources.0.path={path}", cure))


def test_a_source_of_nothing_but_rejects_counts_beside_another(recipe, tmp_path):
    (tmp_path / "d.jsonl").write_text('{"text": " "}\n' * 20)
    sources = json.dumps([{"path": str(tmp_path / name)} for name in ("c.jsonl", "d.jsonl")])
    said = written(recipe_in(tmp_path, f"ingest.sources={sources}"))
    assert "about 20.00% of the records cannot be used (empty)" in said
    assert "--set ingest.max_reject_share=0.2" in said


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
    kept = [name for name in STEPS[: STEPS.index("draft")] if name != "tokenizer"]
    assert [row[0] for row in retrained if row[1] == "done,"] == kept


def test_an_endpoint_is_not_asked(recipe, tmp_path):
    _, rows = shown(recipe_in(tmp_path, "encoder.model='openai:x'", "encoder.openai.base_url=http://127.0.0.1:9"))
    told = {row[0]: row for row in rows}
    assert told["embed"][3:5] == ["the", "endpoint's"]
    assert told["all"][3:5] == ["the", "endpoint's"]


@pytest.mark.parametrize("content", ["", "\n \n", '{"text": ""}\n', "\x00junk\n"])
def test_files_without_a_document(recipe, tmp_path, content):
    (tmp_path / "c.jsonl").write_text(content)
    with pytest.raises(CorpusError, match=r"no document was found in a sample of .*c\.jsonl"):
        shown(recipe)


def test_mistakes_that_a_run_would_find_hours_later(recipe, tmp_path):
    with pytest.raises(TokenizerError, match=r"tokenizer\.eos='</s>' is not in the tokenizer"):
        shown(recipe_in(tmp_path, "tokenizer.eos=</s>"))
    with pytest.raises(RunError, match=r"c\.jsonl is not a folder that you may write to"):
        shown(recipe_in(tmp_path, f"run_dir={tmp_path}/c.jsonl/run"))
    (tmp_path / "plain").touch()
    with pytest.raises(RunError, match=r"plain is not a folder that you may write to"):
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


def test_times_of_steps_whose_manifests_count_no_work_are_not_carried_over(recipe, tmp_path):
    pipeline.run(recipe)
    for path in (tmp_path / "runs/x").glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        for part in manifest["parts"]:
            part["seconds"] = 100.0
        path.write_text(json.dumps(manifest))
    assert set(earlier_rates(recipe, tmp_path / "runs/x")) == {"ingest", "chunk", "encoder", "embed", "tokens"}


def test_chunks_that_another_length_has_tokenized_are_not_counted_again(recipe, tmp_path):
    pipeline.run(recipe)
    manifest = next((tmp_path / "runs/x").glob("*-tokens-*/manifest.json"))
    known = sum(part["counts"]["chunks"] for part in json.loads(manifest.read_text())["parts"])
    amounts = Amounts(chunks=10 * known, named_chunks=2 * known)
    for overrides, left in (
        (["compose.target_tokens=600"], 0.5),
        (["compose.seed=3"], 0.9),  # other documents are drawn
        (["tokenizer.train=301"], 1.0),
    ):
        other = recipe_in(tmp_path, *overrides)
        steps = pipeline.route(other, input_files(other))
        assert shares_to_do(steps, amounts, tmp_path / "runs/x") == {"tokens": pytest.approx(left)}


def test_a_plan_says_what_the_run_will_warn_of(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(run_warnings, "STAND_IN_TOKENS", 512)
    told = " ".join(written(recipe_in(tmp_path, "compose.sequences=60")).split())
    assert "the tokenizer is a stand-in trained on this corpus (tokenizer.train=300), whose ids no model knows" in told
    assert "[stand-in-tokenizer]" in told
    assert re.search(r"a sequence takes chunks from \d+ of the corpus's 80 documents, \d\d%: with so few", told)
    assert "times on average: what is read so often is learned by heart; add documents, make fewer sequences" in told


def test_a_plan_for_a_large_corpus_warns_of_none_of_it(recipe, tmp_path):
    told = written(recipe_in(tmp_path, "compose.target_tokens=512"), Asked(chunks=1e8))
    assert "[small-corpus]" not in told
    assert "[heavy-reuse]" not in told
    assert "[stand-in-tokenizer]" not in told


@pytest.mark.parametrize("method", ["knn", "quest", *thorough("standard", "iclm", "splice", "untie_the_knots")])
def test_every_step_of_other_methods_has_its_cost(recipe, tmp_path, method):
    _, rows = shown(recipe_in(tmp_path, f"compose.method={method}"))
    assert all(len(row) >= 6 for row in rows)
    assert not [row[0] for row in rows if row[3:5] == ["not", "known"]]


def test_a_model_that_writes_queries_is_not_asked(recipe, tmp_path):
    _, rows = shown(recipe_in(tmp_path, "compose.method=quest", "quest.queries=castorini/doc2query-t5-base-msmarco"))
    assert [row[0] for row in rows if row[3:5] == ["not", "known"]] == ["keywords", "all"]


def sources_in(folder, *sources):
    plain = recipe_in(folder).model_dump(mode="json")
    plain["ingest"]["sources"] = [{"path": str(folder / name), **caps} for name, caps in sources]
    return Recipe.from_dict(plain)


def measured(recipe):
    return sample.measure(recipe, input_files(recipe)).corpus


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


def test_what_a_plan_says_of_sizes_is_what_the_run_writes(recipe_for, tmp_path):
    asked = recipe_for(tmp_path / "run", "ingest.sources.0.max_documents=200")
    files = input_files(asked)
    plan = page.make(asked, files, pipeline.route(asked, files))
    ((_, costs),) = plan.on
    done = pipeline.run(asked)
    assert plan.corpus.documents == total(done["ingest"], "documents")
    assert plan.corpus.kept_documents == pytest.approx(total(done["chunk"], "documents"))
    assert plan.corpus.chunks == pytest.approx(total(done["chunk"], "chunks"), rel=0.3)
    for name in ("ingest", "chunk", "embed", "shingles", "tokens"):
        assert costs[name].disk_bytes == pytest.approx(done[name].manifest["bytes"], rel=0.5), name


def test_other_machines_and_a_larger_corpus(recipe):
    elsewhere = Asked(workers=16, nodes=4, chunks=1e6)
    told = written(recipe, elsewhere)
    assert " 1,000,000 chunks of " in told
    assert "64 workers" in told
    assert "4 nodes of 16 workers and 0 GPUs" in told
    assert "search, exact: 2 × " in told


def test_a_transformer_on_gpus_by_its_formula(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(sentence_transformers, "is_installed", lambda: False)
    model = "encoder.model='sentence-transformers:jinaai/jina-embeddings-v3'"
    told = written(recipe_in(tmp_path, model), Asked(nodes=2, gpus=4, chunks=1e8, gpu_tflops=1))
    assert "(2 × 302 M parameters + 4 × 24 layers × 1,024 × " in told
    row = next(line for line in told.splitlines() if line.startswith("embed "))
    tokens = float(re.search(r"100,000,000 chunks × ([\d,]+) tokens", told)[1])
    hours = 1e8 * cluster.Shape(24, 1024, 4096).operations(tokens) / 1e12 / 3600
    here, there, gpu_hours = re.search(r"embed +(.*?) {2,}([\d.,]+) (?:h|days) +([\d.,]+)  ", row).groups()
    assert here == "needs its package"
    assert float(gpu_hours.replace(",", "")) == pytest.approx(hours, rel=0.05)
    assert float(there.replace(",", "")) * (24 if "days" in row else 1) == pytest.approx(hours / 8, rel=0.05)


def test_a_run_that_cannot_fit_is_warned_of(recipe, monkeypatch):
    monkeypatch.setattr(warnings.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    monkeypatch.setattr(warnings, "memory_bytes", lambda: 1_000_000)
    told = written(recipe)
    assert "this does not fit the disk: about " in told
    assert "this does not fit the memory: about " in told


def test_exact_search_of_very_many_is_warned_of(recipe, tmp_path):
    asked = recipe_in(tmp_path, "search.index=exact", "compose.sequences=all")
    for chunks, warned in ((1e3, False), (1e7, True)):
        told = written(asked, Asked(workers=2, chunks=chunks))
        assert ("an approximate index would pay: search.index=exact takes about" in told) is warned


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


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.zst", "parquet", "arrow"])
@pytest.mark.parametrize("order", ["short first", "long first"])
def test_files_sorted_by_length_are_seen_in_all_places(tmp_path, monkeypatch, kind, order):
    """4,000 short documents and 400 long ones, one kind after the other in a single file."""
    texts = [f"s{n} " + "word " * 20 for n in range(4000)] + [f"l{n} " + "word " * 400 for n in range(400)]
    if order == "long first":
        texts.reverse()
    write_texts(tmp_path / f"c.{kind}", texts)
    source = sources_in(tmp_path, (f"c.{kind}", {}))
    monkeypatch.setattr(plan_look, "_READ_BYTES", 300_000)
    monkeypatch.setattr(plan_look, "_LEAST_READ_BYTES", 100)
    (look,) = plan_look.look_at(source, input_files(source))
    assert not look.is_whole
    assert look.read_bytes < sum(map(len, texts)) * 0.7  # less than half, and once more at places that meet
    assert look.text_bytes == pytest.approx(sum(map(len, texts)), rel=0.2)
    assert look.documents * look.scale == pytest.approx(4400, rel=0.25)


def write_texts(path, texts):
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    if path.name.endswith(".jsonl"):
        path.write_text(rows)
    elif path.name.endswith(".zst"):
        path.write_bytes(zstandard.compress(rows.encode()))
    elif path.name.endswith(".parquet"):
        pq.write_table(pa.table({"text": texts}), path, row_group_size=100, compression="none", use_dictionary=False)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, pa.schema([("text", pa.string())])) as writer:
            for first in range(0, len(texts), 100):
                writer.write_batch(pa.record_batch({"text": texts[first : first + 100]}))


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
