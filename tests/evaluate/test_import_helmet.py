import json

import pytest
from rich.console import Console

from nextlong.errors import EvaluateError
from nextlong.evaluate import import_helmet, results, tables
from nextlong.evaluate.registry import all_tasks


def read_into(files, **where):
    return import_helmet.import_helmet(files, console=Console(quiet=True), **where)


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
    other = helmet_result(tmp_path / "y.json", "alce_asqa_700", 8192, str_em=1.0)
    with pytest.raises(EvaluateError, match="'alce_asqa_700'"):
        read_into([other], out=tmp_path / "out", label=None)
    files = [
        helmet_result(tmp_path / f"{n}.json", "kilt_nq", 8192, substring_exact_match=n)
        for n in (1, 2)
    ]
    with pytest.raises(EvaluateError, match=r"1\.json.+2\.json.+8,192"):
        read_into(files, out=tmp_path / "out", label=None)


def test_every_helmet_name_is_a_task_of_ours():
    tasks = all_tasks()
    for name in (one for ours in import_helmet._TASKS.values() for one in ours.split()):
        assert tasks[name].category in {*tables.CATEGORIES, "HELMET-RULER"} - {"RULER"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"args": []}, "hold no fields"),
        ({"averaged_metrics": {"substring_exact_match": "high"}}, "no number in"),
        ({"args": {"datasets": "kilt_nq"}}, "no number in"),
        (
            {"data": ["a"]},
            r"data\[0\] is 'a', not a question with its substring_exact_match; give a file",
        ),
        (
            {"data": [{"substring_exact_match": "x"}]},
            r"data\[0\] is {.*'x'}, not a question",
        ),
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
    with pytest.raises(EvaluateError, match=rf"result\.json.* {told}"):
        read_into([file], out=tmp_path / "r", label=None)
