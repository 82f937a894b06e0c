"""What `plan` says before and after a run; and that it writes nothing."""

import io
import json

import pytest
from rich.console import Console

from nextlong import pipeline
from nextlong.errors import CorpusError, RunError, TokenizerError
from nextlong.recipe import Recipe
from nextlong.report import plan

STEPS = [
    "ingest", "select", "chunk", "encoder", "embed", "metas", "mine",
    "tokenizer", "draft", "refer", "tokens", "compose", "parquet",
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
        "tokenizer": {"train": 300},
        "compose": {"sequences": 5, "target_tokens": 512},
    }
    return Recipe.from_dict(plain, overrides=overrides)


def shown(recipe):
    """Return (what stands above the table, cells of each row)."""
    file = io.StringIO()
    plan.show(recipe, Console(file=file, width=40))
    lines = file.getvalue().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("step "))
    return lines[:start], [line.split() for line in lines[start + 1 :]]


def state_of(row):
    return " ".join(row[1:3]) if row[1] in ("to", "begun,") else row[1]


def test_before_a_run_everything_is_to_do_and_costs_something(recipe):
    (summary,), rows = shown(recipe)
    assert summary.startswith("about 80 documents, 0.0 MB of text, ")
    assert summary.endswith(" characters per token; 1 workers")
    *steps, whole = rows
    assert [row[0] for row in steps] == STEPS
    assert {state_of(row) for row in steps} == {"to do"}
    assert {tuple(row[4::2]) for row in steps} == {("s", "MB", "MB")}
    assert whole[:3] == ["all", "to", "do"]
    seconds = [float(row[3]) for row in rows]
    assert seconds[-1] >= max(seconds[:-1]) > 0


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
    assert [row[0] for row in changed if row[1] == "to"] == ["compose", "parquet", "all"]
    assert [row[0] for row in shown(recipe_in(tmp_path, "tokenizer.train=301"))[1] if row[1] == "done,"] == STEPS[:7]


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
    with pytest.raises(RunError, match=r"c\.jsonl is no folder that you may write to"):
        shown(recipe_in(tmp_path, f"run_dir={tmp_path}/c.jsonl"))
    with pytest.raises(CorpusError, match="matches no file"):
        shown(recipe_in(tmp_path, "ingest.sources.0.path=nowhere/*.jsonl"))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.01, "0.1 s"), (100.0, "100.0 s"), (600.0, "10 min"), (36_000.0, "10.0 h"), (None, "the endpoint's")],
)
def test_times_are_told_in_the_unit_that_fits(seconds, told):
    assert plan._cells(plan.Cost(seconds, 2_500_000, 300.4)) == (told, "2.5 MB", "300 MB")


def test_costs_grow_with_the_corpus_and_shrink_with_workers():
    sample = plan.Sample(
        documents=100, chars=100_000, chunk_chars=100.0, queries_per_meta=4.0, read_s_per_char=1e-8, chunk_s_per_char=1e-8,
        encode_s_per_chunk=1e-3, fit_s_per_chunk=1e-3, dimensions=8, search_s_per_pair=1e-9, tokenize_s_per_char=1e-7,
        chars_per_token=4.0,
    )  # fmt: skip
    recipe = Recipe.from_dict(
        {"run_dir": "r", "ingest": {"sources": [{"path": "a"}]}, "tokenizer": "gpt2", "workers": 2}
    )
    small, large = plan.estimate(recipe, sample, 10e6), plan.estimate(recipe, sample, 20e6)
    assert small["embed"].seconds == pytest.approx(10e6 / 100 * 1e-3 / 2)
    assert small["embed"].disk_bytes == pytest.approx(10e6 / 100 * 8 * 2)
    assert large["embed"].seconds == pytest.approx(2 * small["embed"].seconds)
    assert large["mine"].seconds == pytest.approx(2 * small["mine"].seconds)
    assert large["encoder"].seconds == small["encoder"].seconds  # the sample of the fit has a fixed size
