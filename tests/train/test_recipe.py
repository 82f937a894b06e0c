"""What a training recipe refuses, and how it says so."""

import pytest

from nextlong.errors import RecipeError
from nextlong.train.recipe import Training, TrainRecipe

PLAIN = {"out": "out", "data": {"runs": ["run"]}, "model": {"path": "model"}}


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.learning_rate=1", "unknown key 'training.learning_rate'; known here: "),
        ("training.step=1", "unknown key 'training.step'; did you mean 'steps'"),
        ("training.lr=0", r"training\.lr must be greater than 0 \(it is 0\)"),
        ("training.warmup_steps=100", r"training\.warmup_steps=100 is not less than training\.steps=100"),
        (
            "data.parquet=[rows]",
            r"name one of data\.runs, data\.parquet and data\.chat \(set: data\.runs and data\.parquet\)",
        ),
        ("data.mix=[1,2]", r"data\.mix has 2 proportions for 1 runs"),
        ("model.scratch={}", r"name either model\.path .* or model\.scratch"),
        ("attention=causal", "attention must be 'sequence', 'document' or 'row'"),
        ("nothing", "is not KEY=VALUE"),
    ],
)
def test_mistakes_name_key_value_and_cure(override, told):
    with pytest.raises(RecipeError, match=told):
        TrainRecipe.from_dict(PLAIN, overrides=[override])


def test_chat_needs_a_length():
    with pytest.raises(RecipeError, match=r"data\.chat needs data\.pack"):
        TrainRecipe.from_dict({**PLAIN, "data": {"chat": "chat.jsonl"}})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", r"recipe\.yaml:2: not YAML"),
        ("- 1", "is a YAML list, not a mapping of keys; `nextlong train init` writes a recipe"),
        ("out: a\nout: b", "stands twice"),
    ],
)
def test_files_that_are_no_recipe(tmp_path, text, told):
    (tmp_path / "recipe.yaml").write_text(text + "\n")
    with pytest.raises(RecipeError, match=told):
        TrainRecipe.load(tmp_path / "recipe.yaml")


def test_only_keys_that_decide_the_weights_are_kept_with_a_checkpoint():
    one = TrainRecipe.from_dict(PLAIN).trained_keys()
    for override in ("checkpoints.every_steps=7", "held_out.rows=3", "memory.checkpointing=offload", "watch.spike=9"):
        assert TrainRecipe.from_dict(PLAIN, overrides=[override]).trained_keys() == one
    for override in ("seed=1", "training.lr=1", "attention=row", "data.pack=4096", "model.rope_base=1e6"):
        assert TrainRecipe.from_dict(PLAIN, overrides=[override]).trained_keys() != one


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
    assert {step: training.lr_at(step) for step in rates} == pytest.approx(rates)


def test_without_warm_up_the_first_step_is_nearly_the_highest():
    assert Training(steps=100, lr=1.0).lr_at(1) == pytest.approx(0.99975, abs=1e-4)
