"""The paper's seven short tasks: what is asked of lm-eval, and what its numbers become."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.tasks import probes
from nextlong.evaluate.tasks.probes import _HARNESS


class Harness:
    """Stands where lm-eval would: it answers each task with shares that tell it from the others."""

    def __init__(self, error=None):
        self.asked, self.error = [], error
        self.HFLM = dict

    def simple_evaluate(self, model, **asked):
        self.asked.append(asked)
        if self.error:
            raise self.error
        results = {
            task: {
                "acc,none": place / 10,
                "acc_norm,none": place / 10 + 0.05,
                "acc_stderr,none": 9.0,
                "alias": task,
            }
            for place, task in enumerate(asked["tasks"])
        }
        del results["lambada_openai"]["acc_norm,none"]  # which has no such metric
        samples = {
            task: [{"acc": float(n < place), "acc_norm": 1.0} for n in range(10)]
            for place, task in enumerate(asked["tasks"])
        }
        return {"results": results, "samples": samples}


@pytest.fixture
def harness(monkeypatch):
    made = Harness()
    monkeypatch.setattr(probes, "required", lambda name: made)
    return made


def model(bos=0, eos=None):
    return SimpleNamespace(
        model="weights",
        hub_tokenizer=SimpleNamespace(bos_token_id=bos, eos_token_id=eos),
    )


def request(samples):
    return SimpleNamespace(samples=samples)


def test_the_score_is_the_mean_of_acc_as_in_the_papers_table_with_its_interval(harness):
    values = probes._measure_short(model(), request(None))
    assert values["scores"]["average"] == pytest.approx(100 * sum(range(7)) / 70)
    assert values["scores"]["hellaswag acc_norm"] == pytest.approx(5.0)
    assert values["scores"]["piqa acc"] == pytest.approx(40.0)
    assert "lambada_openai acc_norm" not in values["scores"]
    assert not [
        name for name in values["scores"] if "stderr" in name or "alias" in name
    ]
    assert values["answers"]["piqa"] == "1111000000"
    low, high = results.Result(Path("any.json"), values).measured.interval
    assert values["n"] == 70
    assert low < values["scores"]["average"] < high


@pytest.mark.parametrize(
    ("samples", "limit"), [(None, None), (probes.ALL_SAMPLES, None), (20, 20)]
)
def test_everything_is_asked_unless_there_is_a_limit(harness, samples, limit):
    probes._measure_short(model(), request(samples))
    (asked,) = harness.asked
    assert (asked["limit"], asked["tasks"]) == (limit, list(_HARNESS))


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
        probes._measure_short(model(), request(None))
    assert error.value.where == "short"
    assert error.value.problem.endswith(told)
    assert "HF_HOME" in error.value.fix


@pytest.mark.parametrize(
    ("bos", "eos", "is_refused"),
    [(None, None, True), (0, None, False), (None, 0, False)],
)
def test_a_text_begins_with_one_of_the_two_ids(harness, bos, eos, is_refused):
    if is_refused:
        with pytest.raises(EvaluateError) as error:
            probes._check_special(model(bos, eos), None)
        assert error.value.where == "short"
    else:
        probes._check_special(model(bos, eos), None)
