"""HELMET's result files: scores as its collect_results.py reads them, with each question's."""

import json

import pytest
from tests.evaluate.importing.conftest import read_into

from nextlong.errors import EvaluateError
from nextlong.evaluate import results, tables
from nextlong.evaluate.importing import helmet
from nextlong.evaluate.registry import scored_tasks


def helmet_result(path, dataset, length, **metrics):
    arguments = {
        "datasets": dataset,
        "input_max_length": length,
        "model_name_or_path": "org/model-8B",
    }
    path.write_text(
        json.dumps({"args": arguments, "averaged_metrics": metrics, "data": [{}, {}]})
    )
    return path


def test_helmet_results_are_read_by_their_content(tmp_path):
    files = [
        helmet_result(
            tmp_path / "a.json",
            "kilt_nq",
            8192,
            substring_exact_match=55.5,
            rougeL_f1=3.0,
        ),
        helmet_result(
            tmp_path / "b.json",
            "narrativeqa_130772",
            131_072,
            **{"gpt-4-score": 1.5, "rougeL_f1": 20.0},
        ),
        helmet_result(
            tmp_path / "c.json", "icl_nlu_510shot_balance", 8192, exact_match=70.0
        ),
        helmet_result(tmp_path / "d.json", "ruler_niah_mk_2", 8192, ruler_recall=99.0),
    ]
    found = read_into(files, out=tmp_path / "out", label=None)
    assert found.name == "model-8B"
    got = {(one.task, one.length): one.score for one in found.finished}
    assert got == {
        ("nq", 8192): 55.5,
        ("narrativeqa", 131_072): 50.0,
        ("nlu", 8192): 70.0,
        ("ruler_mk_needle", 8192): 99.0,
        (
            "helmet_niah_multikey_2",
            8192,
        ): 99.0,  # HELMET's averages count it under its RULER too
    }


def test_each_questions_score_is_read_where_it_is_there_and_gives_the_interval(
    tmp_path,
):
    arguments = {
        "datasets": "kilt_nq",
        "input_max_length": 8192,
        "model_name_or_path": "m",
        "seed": 42,
    }
    rows = [
        {"id": f"q{number // 2}", "substring_exact_match": number < 6}
        for number in range(8)
    ]
    record = {
        "args": arguments | {"use_chat_template": True},
        "averaged_metrics": {"substring_exact_match": 75.0},
    }
    (tmp_path / "a.json").write_text(json.dumps(record | {"data": rows}))
    read_into([tmp_path / "a.json"], out=tmp_path / "out", label=None)
    (result,) = results.read_results(tmp_path / "out").finished
    assert (result.score, result.values["n"], result.values["interval"]) == (
        75.0,
        8,
        [25.0, 100.0],
    )
    assert result.protocol == {
        "n": 8,
        "seed": 42,
        "prompt format": "chat",
        "scored by": "substring_exact_match",
    }


def test_what_is_no_helmet_result_is_told(tmp_path):
    (tmp_path / "x.json").write_text('{"exact_match": 5}')
    with pytest.raises(EvaluateError) as error:
        read_into([tmp_path / "x.json"], out=tmp_path / "out", label=None)
    assert error.value.where == str(tmp_path / "x.json")
    other = helmet_result(tmp_path / "y.json", "qmsum", 8192, rougeL_recall=1.0)
    with pytest.raises(EvaluateError, match="'qmsum'"):
        read_into([other], out=tmp_path / "out", label=None)
    files = [
        helmet_result(tmp_path / f"{n}.json", "kilt_nq", 8192, substring_exact_match=n)
        for n in (1, 2)
    ]
    with pytest.raises(EvaluateError, match=r"1\.json.+2\.json.+8192"):
        read_into(files, out=tmp_path / "out", label=None)


def test_every_helmet_name_is_a_task_of_ours():
    tasks = scored_tasks()
    categories = {*tables.CATEGORIES, "HELMET-RULER", "Cite", "Summ"} - {"RULER"}
    for name in (one for ours in helmet._TASKS.values() for one in ours.split()):
        assert tasks[name].category in categories


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"args": []}, "it is not a result file of a known program"),
        ({"averaged_metrics": {"substring_exact_match": "high"}}, "'high'"),
        ({"args": {"datasets": "kilt_nq"}}, "it has no 'input_max_length'"),
        ({"data": ["a"]}, "; give a file as HELMET wrote it"),
        ({"data": [{"substring_exact_match": "x"}]}, "'x'"),
    ],
)
def test_a_helmet_result_of_another_form_is_told(tmp_path, change, told):
    arguments = {
        "datasets": "kilt_nq",
        "model_name_or_path": "m",
        "input_max_length": 8192,
    }
    record = {"args": arguments, "averaged_metrics": {"substring_exact_match": 50.0}}
    file = tmp_path / "result.json"
    file.write_text(json.dumps(record | {"data": None}))
    read_into([file], out=tmp_path / "good", label=None)
    file.write_text(json.dumps(record | change))
    with pytest.raises(EvaluateError, match=rf"result\.json.*{told}"):
        read_into([file], out=tmp_path / "r", label=None)


def test_a_judged_file_replaces_that_of_eval_py(tmp_path):
    files = []
    for stem, metrics, questions in (
        ("sum", {"rougeL_f1": 20.0}, [{"id": 1}, {"id": 2}]),
        (
            "sum-gpt4eval_o",
            {"rougeL_f1": 20.0, "gpt-4-f1": 0.4},
            [{"id": n, "gpt-4-scores": {"f1": f1}} for n, f1 in ((1, 0.8), (2, 0.0))],
        ),
    ):
        file = helmet_result(
            tmp_path / f"{stem}.json", "infbench_sum_eng_129672", 131_072, **metrics
        )
        values = json.loads(file.read_text())
        file.write_text(json.dumps(values | {"data": questions}))
        files.append(file)
    with pytest.raises(EvaluateError, match="score it with HELMET's scripts first"):
        read_into(files[:1], out=tmp_path / "unjudged", label=None)
    (result,) = read_into(files, out=tmp_path / "out", label=None).finished
    assert (result.task, result.score, result.scored_by) == (
        "infbench_sum",
        40.0,
        "gpt-4-f1",
    )
    outcomes, _ = result.outcomes
    assert list(outcomes) == [80.0, 0.0]


def test_cite_is_the_mean_of_the_three_scores_of_eval_alce(tmp_path):
    file = helmet_result(tmp_path / "a.json", "alce_asqa_700", 8192, str_em=30.0)
    with pytest.raises(EvaluateError) as error:
        read_into([file], out=tmp_path / "without", label=None)
    assert error.value.where == f"{file}.score"
    scores = {"str_em": 30.0, "citation_rec": 6.0, "citation_prec": 9.0, "length": 80.0}
    (tmp_path / "a.json.score").write_text(json.dumps(scores))
    (result,) = read_into(
        [file, tmp_path / "a.json.score"], out=tmp_path / "out", label=None
    ).finished
    assert (result.task, result.score) == ("alce_asqa", pytest.approx(15.0))
    assert result.values["n"] == 2


def test_with_cite_and_summ_helmets_seven_categories_have_a_table(tmp_path):
    metrics = {"gpt-4-f1": 0.5}
    files = [
        helmet_result(tmp_path / "s.json", "infbench_sum_eng", 8192, **metrics),
        helmet_result(tmp_path / "m.json", "multi_lexsum", 8192, **metrics),
    ]
    found = read_into(files, out=tmp_path / "out", label=None)
    (table,) = [
        table
        for table in tables.all_tables([found])
        if table.title == "HELMET, all seven categories"
    ]
    (row,) = table.all_rows()
    assert dict(zip(table.columns, row[1:], strict=True))["Summ"] == "50.00"
