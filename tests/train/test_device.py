"""The learning rate of single steps, by hand."""

import pytest

pytest.importorskip("torch")
from nextlong.train.device import learning_rate
from nextlong.train.recipe import Training

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("cosine", {1: 0.25, 4: 1.0, 8: 0.55, 12: 0.1}),
        ("linear", {2: 0.5, 4: 1.0, 8: 0.55, 12: 0.1}),
        ("constant", {4: 1.0, 12: 1.0}),
    ],
)
def test_up_then_down_to_the_least(schedule, rates):
    training = Training(steps=12, warmup_steps=4, lr=1.0, min_lr_ratio=0.1, schedule=schedule)
    assert {step: learning_rate(step, training) for step in rates} == pytest.approx(rates)


def test_without_warm_up_the_first_step_is_nearly_the_highest():
    assert learning_rate(1, Training(steps=100, lr=1.0)) == pytest.approx(0.99975, abs=1e-4)
