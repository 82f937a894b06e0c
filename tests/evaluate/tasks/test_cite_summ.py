"""HELMET's Cite and Summ: prompts, scores and judgements are the reference's; judged from end to end."""

import hashlib
import json
import re
import shutil
from itertools import islice
from pathlib import Path

import pytest
from tests.support.answering_models import Blind, asked, evaluated
from tests.support.evaluation_data import bpe_tokenizer, word_tokenizer

from nextlong.cli.main import main
from nextlong.errors import EvaluateError
from nextlong.evaluate import judge, results
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import Sample, TaskRequest, TextTokenizer, prompt_of
from nextlong.evaluate.tasks.helmet import longqa, passages

pytestmark = pytest.mark.heavy  # ROUGE and sentences are in the extra
PASSAGES = [
    {"title": f"Reef {n}", "text": f"Fish {n} lives in reef {n}."} for n in range(40)
]


def recorded(name):
    return json.loads(
        (Path(__file__).parents[1] / f"reference/{name}.json").read_text()
    )


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = value if isinstance(value, list) and path.suffix == ".jsonl" else None
    path.write_text("\n".join(map(json.dumps, lines)) if lines else json.dumps(value))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files of ALCE, InfiniteBench's summaries and Multi-LexSum, made up in the published form."""
    shots = [
        {"question": f"Q{n}?", "answer": f"A{n} [1].", "docs": PASSAGES[:2]}
        for n in range(3)
    ]
    form = {
        "demo_prompt": "{instruction}\n\nQuestion: {question}\n\n{context}\n\nAnswer: {answer}"
    }
    form |= {
        "instruction": "Cite.",
        "doc_prompt": "Document [{ID}](Title: {title}): {text}",
        "demos": shots,
    }
    rows = {
        "asqa": [
            {
                "question": f"Which fish live in {n}?",
                "qa_pairs": [{"short_answers": [f"Fish {n}"]}],
            }
            for n in range(4)
        ],
        "qampari": [
            {"question": f"Fish of {n}?", "answers": [[f"Fish {n}"], ["Cod"]]}
            for n in range(4)
        ],
    }
    for name in rows:
        questions, prompts = passages._alce_files(name)
        write(tmp_path / questions, [{**row, "docs": PASSAGES} for row in rows[name]])
        write(tmp_path / prompts, form)
    books = [
        {
            "id": n,
            "context": f"Book {n}. " * 400,
            "input": "",
            "answer": [f"About {n}."],
        }
        for n in range(4)
    ]
    write(tmp_path / "infinitebench/longbook_sum_eng.jsonl", books)
    points = [{"id": n, "keypoints": ["One.", "Two."]} for n in range(4)]
    write(tmp_path / "helmet/infbench/longbook_sum_eng_keypoints.jsonl", points)
    short = "summary/short"
    cases = [
        {
            "id": f"c{n}",
            "sources": [f"Writ {n}. " * 300],
            short: f"S{n}",
            "summary/long": f"L{n}",
        }
        for n in range(4)
    ]
    write(
        tmp_path / "multi_lexsum/validation.jsonl",
        [*cases, {"id": "x", "sources": ["y"], short: None}],
    )
    write(tmp_path / "multi_lexsum/train.jsonl", cases)
    points = [{"id": f"c{n}", "summary/short_keypoints": ["One."]} for n in range(4)]
    write(tmp_path / "helmet/multi_lexsum/multi_lexsum_val.jsonl", points)
    word_tokenizer().save(str(tmp_path / "llama2.json"))
    (tmp_path / "helmet/llama2").mkdir()
    shutil.move(tmp_path / "llama2.json", tmp_path / "helmet/llama2/tokenizer.json")
    monkeypatch.setattr(longqa, "_MIN_CASE_TOKENS", 500)
    return tmp_path


def made(name, folder, length):
    request = TaskRequest(length, TextTokenizer(word_tokenizer()), DataFiles(folder), 4)
    return [
        one for one in islice(all_tasks()[name].make(request), 4) if one is not None
    ]


def measured(name, folder, length):
    out = folder / "results"
    evaluated(
        Summarizer(bpe_tokenizer()),
        asked(out, name, lengths=[length], samples=3, data=folder),
    )
    return out


class Summarizer(Blind):
    def read(self, text):
        number = re.findall(r"Which fish live in (\d+)|(?:Writ|Book) (\d+)", text)[-1]
        return f"Fish {''.join(number)} lives in reef {''.join(number)} [{int(''.join(number)) + 1}]."


@pytest.mark.parametrize("name", ["asqa", "qampari"])
def test_alces_scores_are_the_references(name):
    reference = recorded("alce")
    sample = Sample("", (), 1, details=reference[name])
    for one in (one for one in reference["scores"] if one["task"] == name):
        for metric, value in (
            all_tasks()[f"alce_{name}"].score(one["answer"], sample).items()
        ):
            assert value == pytest.approx(float(one[metric])), (metric, one)


def test_a_prompt_of_cite_has_two_examples_and_as_many_passages_as_the_length_takes(
    folder,
):
    sample = made("alce_asqa", folder, 8192)[0]
    assert sample.prompt.count("Cite.") == 3
    assert sample.prompt.count("Document [") == 2 * 2 + 30
    assert sample.prompt.rsplit("Document [", 1)[1].startswith("30](Title: Reef 29)")
    assert sample.answer_prefix == "\n\nAnswer:"
    assert len({one.prompt for one in made("alce_asqa", folder, 8192)}) == 4


@pytest.mark.parametrize("name", ["infbench_sum", "multi_lexsum"])
def test_prompts_and_judgements_of_summ_are_the_references(name, folder):
    reference = recorded("helmet_summ")
    prompt = prompt_of(name).format(
        demo=reference["demo"], context=reference["context"]
    )
    assert sha(prompt) == reference["prompt_sha256"][name]
    details = {"keypoints": reference["keypoints"], "expert": reference["expert"]}
    asked = judge._RUBRICS[name].prompts(
        {"answer": reference["summary"], "details": details}
    )
    assert [sha(one) for one in asked] == reference["judge_sha256"][name]
    for one in reference["judgements"]:
        found = judge._RUBRICS[name].read({"details": details}, one["said"])["share"]
        assert found == (None if one["f1"] is None else pytest.approx(one["f1"])), one
    for sample in made(name, folder, 2048):
        assert sample.details["keypoints"]
        assert sample.answer_prefix == "\n\nSummary:"


def test_short_cases_are_not_summarized(folder, monkeypatch):
    monkeypatch.setattr(longqa, "_MIN_CASE_TOKENS", 65_536)
    with pytest.raises(EvaluateError) as error:
        made("multi_lexsum", folder, 2048)
    assert error.value.where == str(folder / "multi_lexsum/validation.jsonl")
    assert "65,536 tokens" in error.value.problem


def test_a_summary_is_judged_by_three_questions(folder, served, capsys):
    out = measured("multi_lexsum", folder, 2048)
    said = {
        "fluency": '{"fluency": 1}',
        "recall": '{"recall": 1}',
        "precision": '{"precision": 1, "sentence_count": 2}',
    }

    def kind(text):
        return (
            "precision"
            if "Expert summary" in text[-900:]
            else "recall"
            if "ey points" in text[-900:]
            else "fluency"
        )

    served.answer = lambda body: {
        "choices": [
            {"message": {"content": said[kind(body["messages"][0]["content"])]}}
        ]
    }
    assert (
        main(["evaluate", "judge", str(out), "--model", "gpt-x", "--url", served.url])
        == 0
    )
    (result,) = results.read_results(out).finished
    assert len(served.asked) == 9
    assert result.score == pytest.approx(100 * 2 * 1 * 0.5 / 1.5)
    assert result.scored_by == "judge gpt-x"
    assert main(["evaluate", "report", str(out)]) == 0
    assert "Summ" in capsys.readouterr().out
