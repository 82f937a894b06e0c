"""NarrativeQA judged by a real server on loopback: HELMET's scale, resumed, labelled, never mixed with ROUGE."""

import ast
import hashlib
import json
import re
from pathlib import Path

import pytest
from tests.support.answering_models import Oracle, asked, evaluated
from tests.support.evaluation_data import bpe_tokenizer

from nextlong.cli.main import main
from nextlong.evaluate import judge, results, tables

pytestmark = pytest.mark.heavy  # ROUGE is in the extra


class Reader(Oracle):
    """Knows one answer of two."""

    def read(self, text):
        return "I do not know" if len(self.asked) % 2 else super().read(text)


@pytest.fixture
def measured(data_folder, tmp_path, served, monkeypatch):
    """A results directory with NarrativeQA at one length, and the server that judges."""
    served.answer = lambda body: {
        "choices": [{"message": {"content": judged(body["messages"][0]["content"])}}]
    }
    out = tmp_path / "results"
    evaluated(
        Reader(bpe_tokenizer()),
        asked(out, "narrativeqa", lengths=[2048], samples=6, data=data_folder),
    )
    return out


def judged(prompt):
    """Judge as the rubric says, by the words alone."""
    references = ast.literal_eval(
        re.search(r"^Correct answers: (.+)$", prompt, flags=re.MULTILINE)[1]
    )
    answer = re.search(r"^Answer: (.*)$", prompt, flags=re.MULTILINE)[1]
    is_right = any(reference in answer for reference in references)
    return f'Reasons {{"fluency": 1}}. So: {{"fluency": 1, "correctness": {2 if is_right else 0}}}'


def ask(out, served, *more):
    return main(
        ["evaluate", "judge", str(out), "--model", "gpt-x", "--url", served.url, *more]
    )


def test_the_score_is_fluency_times_correctness_as_a_share_of_three(
    measured, served, capsys
):
    before = results.read_results(measured).finished[0]
    assert before.scored_by == "rougeL_f1"
    assert ask(measured, served) == 0
    after = results.read_results(measured).finished[0]
    assert after.score == pytest.approx(
        100 * (3 * 2) / (3 * 6)
    )  # three of six are right, with 2 of 3 points
    assert after.values["scores"]["rougeL_f1"] == before.score
    assert after.scored_by == "judge gpt-x"
    assert len(served.asked) == 6
    assert {body["path"] for body in served.asked} == {"/v1/chat/completions"}
    assert ask(measured, served) == 0
    assert len(served.asked) == 6
    assert "cached" in capsys.readouterr().out
    assert main(["evaluate", "report", str(measured)]) == 0
    assert "narrativeqa (judge gpt-x)" in capsys.readouterr().out


def test_what_another_version_judged_is_judged_again(
    measured, served, monkeypatch, capsys
):
    assert ask(measured, served) == 0
    monkeypatch.setattr(judge, "_VERSION", judge._VERSION + 1)
    assert ask(measured, served) == 0
    assert len(served.asked) == 12
    found = results.read_results(measured).finished[0]
    assert found.values["judge"]["version"] == judge._VERSION
    assert found.score == pytest.approx(100 * (3 * 2) / (3 * 6))
    assert "cached" not in capsys.readouterr().out


def test_a_server_that_gives_up_keeps_what_is_judged(measured, served, capsys):
    served.fails = lambda number: 400 if number == 5 else None
    assert ask(measured, served, "--concurrency", "1", "--max-attempts", "1") == 2
    assert "HTTP 400" in capsys.readouterr().err
    asked = len(served.asked)
    served.fails = lambda number: None
    assert ask(measured, served, "--concurrency", "1") == 0
    # The answer that was refused, and no other.
    assert len(served.asked) == asked + 1
    assert not list(measured.glob("*/*.partial.jsonl"))


def test_judgements_without_scores_are_counted_and_left_out(measured, served, capsys):
    content = iter(
        [
            '{"fluency": 1, "correctness": 3}',
            '{"fluency": 1, "correctness": 9}',
            "none",
            "{",
            "[1]",
            "{}",
        ]
    )
    served.answer = lambda body: {"choices": [{"message": {"content": next(content)}}]}
    assert ask(measured, served, "--concurrency", "1") == 0
    assert "5 judgements" in capsys.readouterr().out
    assert results.read_results(measured).finished[0].score == 100


def test_a_judge_that_never_scores_is_told(measured, served, capsys):
    served.answer = lambda body: {
        "choices": [{"message": {"content": "I cannot say."}}]
    }
    assert ask(measured, served) == 2
    assert "--model gpt-x: none" in capsys.readouterr().err
    assert results.read_results(measured).finished[0].scored_by == "rougeL_f1"


def test_judged_and_rouge_are_not_one_column(measured, served, tmp_path, data_folder):

    other = tmp_path / "other"
    evaluated(
        Oracle(bpe_tokenizer()),
        asked(other, "narrativeqa", lengths=[2048], samples=6, data=data_folder),
    )
    both = [measured, other]
    assert [
        task.name
        for task in tables.shared_tasks(
            [results.read_results(one) for one in both], "LongQA"
        )
    ] == ["narrativeqa"]
    assert ask(measured, served) == 0
    assert (
        tables.shared_tasks([results.read_results(one) for one in both], "LongQA") == []
    )


def test_mistakes_are_told(measured, served, tmp_path, capsys):
    for path in measured.glob("narrativeqa/*.json"):
        values = json.loads(path.read_text())
        for sample in values["samples"]:
            del sample["details"]["question"]
        path.write_text(json.dumps(values))
    assert ask(measured, served) == 2
    assert "2048.json: it holds" in capsys.readouterr().err
    (measured / "narrativeqa" / "2048.json").unlink()
    assert ask(measured, served) == 2
    assert f"{measured}: it holds" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ('{"fluency": 1, "correctness": 3}', (1, 3)),
        (
            'first {"fluency": 0, "correctness": 3} then {"fluency": 1, "correctness": 2} end',
            (1, 2),
        ),
        ('{"fluency": 1, "correctness": 2} {not json}', (1, 2)),
        ('{"fluency": 2, "correctness": 3}', (None, None)),
        ('{"correctness": 3}', (None, None)),
        ("", (None, None)),
    ],
)
def test_the_last_scores_in_the_scale_count(text, scores):
    assert tuple(judge._scores_in(text).values())[:2] == scores


def test_the_prompt_and_the_scores_are_helmets():
    """Recorded from scripts/eval_gpt4_longqa.py at the commit of the recording."""
    reference = json.loads(
        (Path(__file__).parent / "reference/helmet_judge.json").read_text()
    )["longqa"]
    sample = {
        name: reference[name] for name in ("references", "answer", "answer_prefix")
    }
    details = {"question": reference["question"]}
    prompt = judge._judge_prompt({**sample, "details": details})
    assert hashlib.sha256(prompt.encode()).hexdigest() == reference["prompt_sha256"]
    for one in reference["judgements"]:
        assert judge._scores_in(one["said"])["share"] == one["share"], one
