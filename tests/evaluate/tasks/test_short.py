"""The paper's seven short tasks: what is asked of lm-eval, and what its numbers become."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from nextlong.errors import EvaluateError
from nextlong.evaluate import results, tables
from nextlong.evaluate.registry import chosen
from nextlong.evaluate.tasks import short

NAMES = [probe.name for probe in short.TASKS]


class Harness:
    """Stands where lm-eval would: three of ten answers are right."""

    def __init__(self, error=None):
        self.asked, self.error = [], error
        self.HFLM = dict

    def simple_evaluate(self, model, **asked):
        self.asked.append(asked)
        if self.error:
            raise self.error
        (task,) = asked["tasks"]
        name = "logiqa" if task.endswith("logiqa.yaml") else task
        values = {"acc,none": 0.3, "acc_stderr,none": 9.0, "alias": name}
        if name != "lambada_openai":  # which has no such metric
            values["acc_norm,none"] = 0.35
        samples = [{"acc": float(n < 3), "acc_norm": 1.0} for n in range(10)]
        return {"results": {name: values}, "samples": {name: samples}}


@pytest.fixture
def harness(monkeypatch):
    made = Harness()
    monkeypatch.setattr(short, "required", lambda name: made)
    return made


def model(bos=0, eos=None):
    return SimpleNamespace(
        model="weights",
        hub_tokenizer=SimpleNamespace(bos_token_id=bos, eos_token_id=eos),
    )


def request(samples):
    return SimpleNamespace(samples=samples)


def measured(name, samples=None):
    (probe,) = chosen(["short"], [name])
    return probe.measure(model(), request(samples))


def test_a_task_is_scored_by_acc_as_in_the_papers_table_with_its_interval(harness):
    values = measured("piqa")
    assert values["scores"] == {"acc": pytest.approx(30.0), "acc_norm": 35.0}
    assert "acc_norm" not in measured("lambada_openai")["scores"]
    result = results.Result(
        Path("any.json"), {"task": "piqa", "length": None, "score": 30.0, **values}
    )
    low, high = result.measured.interval
    assert low < 30.0 < high


@pytest.mark.parametrize(
    ("samples", "limit"), [(None, None), (short.ALL_SAMPLES, None), (20, 20)]
)
def test_everything_is_asked_unless_there_is_a_limit(harness, samples, limit):
    for name in NAMES:
        measured(name, samples)
    asked = [(call["limit"], Path(*call["tasks"]).stem) for call in harness.asked]
    assert asked == [(limit, name) for name in NAMES]


def test_the_table_has_the_mean_only_where_every_task_was_measured(harness, tmp_path):
    results.write_index(tmp_path, {"name": "m"})

    def table():
        (found,) = [
            table
            for table in tables.all_tables([results.read_results(tmp_path)])
            if table.title == "Short text"
        ]
        ((_, cells),) = found.rows
        return dict(zip(found.columns, cells, strict=True))

    for name in NAMES:
        path = results.path_of(tmp_path, name, None)
        path.parent.mkdir()
        values = {"format": 2, "task": name, "length": None, "score": 30.0}
        results.write(path, values | measured(name))
        if name == NAMES[-2]:
            assert table()["Avg."] is None
            assert table()["Win."].value == 30.0
    assert table()["Avg."].value == pytest.approx(30.0)
    assert table()["Log."].n == 10


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (OSError("unreachable\nat line 7"), "(OSError: unreachable)"),
        (RuntimeError(), "(RuntimeError: RuntimeError)"),
    ],
)
def test_data_that_cannot_be_had_is_told_in_a_line(harness, reason, told):
    harness.error = reason
    with pytest.raises(EvaluateError) as error:
        measured("winogrande")
    assert error.value.where == "winogrande"
    assert error.value.problem.endswith(told)
    assert "HF_HOME" in error.value.fix


@pytest.mark.parametrize(
    ("bos", "eos", "is_refused"),
    [(None, None, True), (0, None, False), (None, 0, False)],
)
def test_a_text_begins_with_one_of_the_two_ids(harness, bos, eos, is_refused):
    probe = short.TASKS[0]
    if is_refused:
        with pytest.raises(EvaluateError) as error:
            probe.check_model(model(bos, eos), None)
        assert error.value.where == probe.name
    else:
        probe.check_model(model(bos, eos), None)


@pytest.mark.heavy
def test_logiqas_prompts_and_targets_are_those_of_lm_eval():
    """Its own functions were recorded; lm-eval renders templates with these options."""
    jinja2 = pytest.importorskip("jinja2")
    config = yaml.safe_load(short._FILES["logiqa"].read_text(encoding="utf-8"))
    environment = jinja2.Environment(keep_trailing_newline=True)
    reference = Path(__file__).parents[1] / "reference/lm_eval_logiqa.json"
    for row in json.loads(reference.read_text(encoding="utf-8"))["rows"]:
        prompt = environment.from_string(config["doc_to_text"]).render(**row)
        target = environment.from_string(config["doc_to_target"]).render(**row)
        assert (prompt, int(target)) == (row["prompt"], row["target"])
