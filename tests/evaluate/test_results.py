"""Intervals against scipy's bootstrap, and the test of differences against all sign patterns."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.answering_models import Oracle, asked, evaluated
from tests.support.evaluation_data import word_tokenizer

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.results import (
    JUDGED,
    Result,
    Score,
    _p_value,
    best_p_value,
    significant,
)


def test_answers_with_any_line_separator_are_kept(tmp_path):
    odd = [{"answer": "one\u2028two\u2029three\u0085four"}, {"answer": "five"}]
    first = results.Partial(tmp_path / "a.partial.jsonl", "mark")
    for number, sample in enumerate(odd):
        first.append(number, sample)
    first.close()
    again = results.Partial(tmp_path / "a.partial.jsonl", "mark")
    again.close()
    assert again.samples == dict(enumerate(odd))


class Local(Oracle, HuggingFaceModel):
    """One that probes may look into."""


def test_a_run_counts_by_its_sequences_not_by_its_place(tmp_path, monkeypatch):
    from nextlong.evaluate import run
    from nextlong.evaluate.probe import Probe

    composed = {"value": "abc"}
    steps = SimpleNamespace(
        steps={"compose": SimpleNamespace(manifest={"fingerprint": ""})}
    )

    def run_at(_):
        steps.steps["compose"].manifest["fingerprint"] = composed["value"]
        return steps

    monkeypatch.setattr(run, "Run", run_at)
    measured = []
    measure = lambda *_: measured.append("once") or {"scores": {"x": 1.0}, "n": 1}  # noqa: E731
    probe = Probe("p", "p", "P", "x", 1, measure, lengths=None)
    what = replace(asked(tmp_path / "r", run=tmp_path / "one"), tasks=[probe])
    evaluated(Local(word_tokenizer()), what)
    evaluated(Local(word_tokenizer()), replace(what, run=tmp_path / "two"))
    assert measured == ["once"]
    composed["value"] = "def"
    with pytest.raises(EvaluateError) as error:
        evaluated(Local(word_tokenizer()), what)
    assert error.value.where == str(tmp_path / "r/p/any.json")


def test_what_is_no_results_directory_is_told(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(EvaluateError) as error:
            results.read_results(folder)
        assert error.value.where == str(folder)


def score(outcomes, *, task="vt", groups=None, **depends_on):
    groups = range(len(outcomes)) if groups is None else groups
    samples = [
        {"scores": {"m": one / 100}, "details": {"group": f"{group}"}}
        for one, group in zip(outcomes, groups, strict=True)
    ]
    about = {
        "task": task,
        "length": 8192,
        "metric": "m",
        "n": len(samples),
        "depends_on": depends_on,
    }
    return Result(
        Path(), {**about, "score": np.mean(outcomes), "samples": samples}
    ).measured


def drawn(share, n, seed=0):
    return 100.0 * (np.random.default_rng(seed).random(n) < share)


def test_the_interval_is_the_percentile_bootstraps():
    from scipy.stats import bootstrap

    outcomes = drawn(0.7, 300)
    expected = bootstrap(
        (outcomes,), np.mean, method="percentile", rng=1
    ).confidence_interval
    assert score(outcomes).interval == pytest.approx(
        (expected.low, expected.high), abs=0.7
    )


def test_the_interval_of_a_mean_is_narrower_than_those_of_its_parts():
    parts = [score(drawn(0.5, 100, seed), task=str(seed)) for seed in range(4)]
    mean = Score.mean(parts)
    widths = [high - low for low, high in (one.interval for one in (*parts, mean))]
    assert mean.value == pytest.approx(np.mean([part.value for part in parts]))
    assert mean.n == 400
    assert widths[-1] == pytest.approx(np.mean(widths[:-1]) / 2, rel=0.15)


def test_questions_of_one_group_are_resampled_together():
    repeated = np.repeat(drawn(0.5, 100), 6)
    low, high = score(repeated, groups=np.repeat(np.arange(100), 6)).interval
    assert (low, high) == pytest.approx(score(drawn(0.5, 100)).interval, abs=2)
    narrow = score(repeated).interval
    assert narrow[1] - narrow[0] < 0.5 * (high - low)


@given(st.lists(st.sampled_from([-100.0, 0.0, 100.0]), min_size=1, max_size=9))
def test_the_p_value_is_the_share_of_sign_patterns_that_are_as_extreme(differences):
    exact = np.mean(
        [
            abs(np.dot(signs, differences)) >= abs(sum(differences))
            for signs in product((-1, 1), repeat=len(differences))
        ]
    )
    ours = _p_value(
        score([max(one, 0) for one in differences]),
        score([max(-one, 0) for one in differences]),
    )
    assert ours == pytest.approx(exact, abs=0.05)


def test_five_right_answers_against_five_wrong_ones_are_not_significant_and_fifty_are():
    few = score([100.0] * 5)
    many = score([100.0] * 50)
    none = score([0.0] * 50)
    assert best_p_value(few, [score([0.0] * 5)]) > 0.05
    assert best_p_value(many, [none]) < 0.001
    assert best_p_value(many, [none, many]) == 1.0
    assert best_p_value(none, [many]) == 1.0
    assert best_p_value(many, []) == 1.0


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        # 0.05 / 4, / 3, / 2 and / 1 in turn; the first that is too great ends it.
        ([0.012, 0.016, 0.024, 0.049], 4),
        ([0.013, 0.001, 0.001, 0.001], 4),
        ([0.001, 0.017, 0.018, 0.019], 1),
        ([0.013, 0.013, 0.013, 0.013], 0),
        ([], 0),
    ],
)
def test_holms_procedure_rejects_from_the_least_p_value_on(p_values, rejected):
    found = significant(dict(enumerate(p_values)))
    assert found == set(
        sorted(range(len(p_values)), key=p_values.__getitem__)[:rejected]
    )


@pytest.mark.parametrize(
    "other",
    [
        score([0.0] * 40),
        score([0.0] * 50, task="cwe"),
        score([0.0] * 50, seed=1),
        Score(0.0),
    ],
)
def test_other_numbers_tasks_and_protocols_are_not_compared(other):
    assert _p_value(score([100.0] * 50, seed=2), other) is None
    assert best_p_value(score([100.0] * 50, seed=2), [other]) == 1.0


def test_judgements_that_cannot_be_read_never_shift_the_pairs():
    """Two models with one unreadable judgement each, at different questions: no pair of other questions is compared."""

    def judged(shares):
        samples = [{"judged": {"share": share}} for share in shares]
        about = {"task": "narrativeqa", "length": 1024, "metric": JUDGED, "score": 0.0}
        return Result(Path(), {**about, "samples": samples}).measured

    assert judged([1.0, None, 0.5]).parts[0][1].outcomes[1].tolist() == [0, 2]
    assert (
        _p_value(judged([1.0, None, 0.5, 0.0]), judged([None, 1.0, 0.5, 0.0])) is None
    )
    assert _p_value(judged([1.0, None, 0.5]), judged([0.5, None, 0.0])) is not None


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("evaluation.json", []),
        ("evaluation.json", {"format": 2}),
        ("vt/8192.json", {"format": 2, "task": "vt", "length": 8192, "score": "high"}),
        ("vt/8192.json", {"format": 2, "task": "vt", "score": 5.0}),
    ],
)
def test_a_file_of_another_form_in_a_results_folder_is_named(name, values, tmp_path):
    store.write_json(
        tmp_path / "evaluation.json", {"format": 2, "model": {"name": "m"}}
    )
    (tmp_path / "vt").mkdir()
    store.write_json(tmp_path / name, values)
    with pytest.raises(EvaluateError) as error:
        results.read_results(tmp_path)
    assert error.value.where == str(tmp_path / name)
