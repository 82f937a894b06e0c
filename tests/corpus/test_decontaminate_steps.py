import json
from pathlib import Path

import pytest

import nextlong
from counted import total
from nextlong import pipeline
from nextlong.errors import CorpusError
from nextlong.recipe import Decontaminate
from nextlong.report import summary
from nextlong.runs.stats import measure
from nextlong.verify.checks import verify

QUESTION = (
    "Which of the seven captains of the northern harbour kept a brass telescope beside the tide tables in winter?"
)


def rows_of(corpus):
    return [json.loads(line) for path in sorted(corpus.glob("*.jsonl")) for line in path.read_text().splitlines()]


def write(folder, rows):
    folder.mkdir()
    (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"ingest.sources=[{{path: {folder}, name: small}}]"


def breaches(run_dir):
    return {outcome.check: outcome.examples[0] for outcome in verify(run_dir) if outcome.breaches}


@pytest.fixture(scope="module")
def contaminated(recipe_for, small_corpus, tmp_path_factory):
    """A recipe whose corpus holds a question in the middle of three documents and alone in a fourth, and a clean run of it."""
    tmp_path = tmp_path_factory.mktemp("contaminated")
    rows = [row for row in rows_of(small_corpus) if len(row["text"]) > 600][:60]
    for row in rows[:3]:
        lines = row["text"].split("\n")
        row["text"] = "\n".join([*lines[:3], QUESTION, *lines[3:]])
    sources = write(tmp_path / "corpus", [*rows, {"id": "alone", "text": QUESTION}])
    (tmp_path / "eval.jsonl").write_text(json.dumps({"question": QUESTION}) + "\n")
    return recipe_for(
        tmp_path / "run",
        sources,
        f"decontaminate=[{tmp_path / 'eval.jsonl'}]",
        "compose.sequences=all",
        "compose.target_tokens=1024",
    )


def test_chunks_with_evaluation_text_are_nowhere(contaminated):
    (evaluation,) = contaminated.decontaminate.files
    run = nextlong.run(contaminated)
    assert not any("brass telescope" in sequence.text for sequence in run.sequences())
    assert measure(run).contaminated == {evaluation: 4}
    told = dict(summary.lines(run.recipe, run.steps, folder=run.data))["contaminated"]
    assert told == f"4 chunks left out (4 of them with {evaluation})"
    assert breaches(Path(contaminated.run_dir)) == {}


def test_a_document_that_lost_a_chunk_is_no_meta_document(contaminated):
    run = nextlong.run(contaminated)
    clean = nextlong.run(contaminated.model_copy(update={"decontaminate": Decontaminate()}))
    metas = [
        {s.source_id for sequence in found.sequences() for s in sequence.spans if s.role == "meta"}
        for found in (run, clean)
    ]
    assert len(metas[1] - metas[0]) >= 3
    assert metas[0] < metas[1]


@pytest.mark.parametrize("method", ["standard", "knn", "iclm", "quest"])
def test_other_methods_never_see_them_either(contaminated, method):
    changed = {"method": method, "sequences": 3}
    compose = contaminated.compose.model_copy(update=changed)
    run = nextlong.run(contaminated.model_copy(update={"compose": compose}))
    assert len(run) > 0
    assert not any("brass telescope" in sequence.text for sequence in run.sequences())


def test_an_evaluation_file_that_changed_is_read_again(contaminated, tmp_path):
    evaluation = tmp_path / "eval.jsonl"
    recipe = contaminated.model_copy(update={"decontaminate": Decontaminate(files=(str(evaluation),))})
    evaluation.write_text(json.dumps({"question": QUESTION}))
    first = pipeline.run(recipe)
    evaluation.write_text(json.dumps({"question": "Nothing of this kind stands in any document here."}))
    second = pipeline.run(recipe)
    assert first["eval_ngrams"].folder != second["eval_ngrams"].folder
    assert total(first["contaminated"], "contaminated") == 4
    assert total(second["contaminated"], "contaminated") == 0


def test_an_evaluation_file_that_is_missing_is_told_before_anything_runs(contaminated, tmp_path):
    missing = Decontaminate(files=(str(tmp_path / "eval.jsonl"),))
    changed = {"run_dir": str(tmp_path / "run"), "decontaminate": missing}
    with pytest.raises(
        CorpusError, match=r"decontaminate: .*eval\.jsonl does not exist; correct the path or remove it"
    ):
        pipeline.run(contaminated.model_copy(update=changed))
    assert not [*(tmp_path / "run").glob("[0-9]*")]
