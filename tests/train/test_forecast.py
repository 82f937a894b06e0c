"""The dry run gives the paper's hours, and says what does not fit."""

import json
from pathlib import Path

import pytest
from tests.support.llama_config import llama_3_8b

pytestmark = pytest.mark.heavy


K = 1024


SEQUENCES_512K = [[512 * K], [64 * K] * 8, [64 * K] * 8]  # 1 : 2


def recipe(preset, *overrides):
    from nextlong.train.recipe import recipe_from

    runs = ["a", "b"] if "512k" in preset else ["a"]
    return recipe_from(
        preset, out="out", data={"runs": runs}, model="llama", overrides=overrides
    )


@pytest.mark.parametrize(
    ("preset", "documents", "hours"),
    [("paper-128k", [[128 * K]], 15), ("paper-512k", SEQUENCES_512K, 20)],
)
def test_the_papers_hours_within_a_quarter(preset, documents, hours):

    from nextlong.train.forecast import estimate

    found = estimate(recipe(preset), llama_3_8b(), documents)
    assert found.sizes.parameters == 8_030_261_248
    assert found.seconds / 3600 == pytest.approx(hours, rel=0.25)


def test_the_time_of_a_long_row_on_a_cpu_follows_from_a_cut_one(monkeypatch):
    from nextlong.train import forecast
    from nextlong.train.sizes import flops

    timed = []
    monkeypatch.setattr(
        forecast,
        "measure_row",
        lambda recipe, config, lengths: timed.append(list(lengths)) or 2.0,
    )
    small = recipe(
        "paper-128k",
        "hardware.device=this",
        "hardware.count=1",
        "hardware.ranks_per_row=1",
    )
    row = [5 * K, 6 * K, 117 * K]
    found = forecast.estimate(small, llama_3_8b(), [row])
    assert timed == [[512], [2 * K], [5 * K, 3 * K]]
    sizes, rows = (
        found.sizes,
        small.training.tokens_per_step // sum(row) * small.training.steps,
    )
    assert found.seconds == pytest.approx(
        2.0 * rows * flops(sizes, row) / flops(sizes, [5 * K, 3 * K])
    )


def test_a_slow_machine_is_timed_on_fewer_tokens(monkeypatch):
    """A clock that advances by 1 second in each measurement: the next would take 4 times as long."""
    from nextlong.train import forecast

    timed, clock = [], []

    def measured(recipe, config, lengths):
        timed.append(list(lengths))
        clock.append(1.0)
        return 2.0

    monkeypatch.setattr(forecast, "measure_row", measured)
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: sum(clock))
    small = recipe("paper-128k", "hardware.device=this")
    sizes = forecast.sizes_of(llama_3_8b())
    found = forecast._time_row_start(small, llama_3_8b(), [128 * K], sizes=sizes)
    assert timed == [[512]]
    assert found == ([512], 2.0)


def test_a_row_shorter_than_what_is_timed_is_timed_once(monkeypatch):
    from nextlong.train import forecast

    timed = []
    monkeypatch.setattr(
        forecast,
        "measure_row",
        lambda recipe, config, lengths: timed.append(list(lengths)) or 2.0,
    )
    small = recipe("paper-128k", "hardware.device=this")
    sizes = forecast.sizes_of(llama_3_8b())
    forecast._time_row_start(small, llama_3_8b(), [100, 200], sizes=sizes)
    assert timed == [[100, 200]]


def test_devices_that_cannot_share_a_step():
    from nextlong.errors import RecipeError
    from nextlong.train.forecast import estimate

    with pytest.raises(RecipeError) as error:
        estimate(recipe("paper-128k", "hardware.count=60"), llama_3_8b(), [[128 * K]])
    assert (error.value.where, error.value.value) == ("hardware.count", "60")


def test_nothing_is_loaded(train_recipe, quiet):
    """The dry run reads config and index: a model folder without weights will do."""
    from nextlong.train import forecast

    made = forecast.forecast(train_recipe())
    forecast.show(made, quiet)
    assert made.as_json()["sizes"]["parameters"] == made.cost.sizes.parameters
    assert not Path(train_recipe().out).exists()


def test_the_command_prints_the_plan(train_recipe, command, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(train_recipe().dump())
    said = command("train", path, "--dry-run").stdout
    for word in (
        "parameters:",
        "memory:",
        "one layer:",
        "feed-forward",
        "operations:",
        "time:",
        "measured here",
    ):
        assert word in said
    assert json.dumps(said).isascii() or said


def test_steps_that_training_refuses_are_refused(train_recipe):
    from nextlong.errors import RecipeError
    from nextlong.train import forecast

    with pytest.raises(
        RecipeError,
        match=r"tokens_per_step=5,000 is not a multiple of a row's 2,048 tokens; use 4096",
    ):
        forecast.forecast(train_recipe({"training.tokens_per_step": 5000}))


def test_many_passes_over_the_data_are_warned_of(train_recipe):
    from nextlong.train import forecast

    few = forecast.forecast(train_recipe())
    epochs = few.ready.epochs
    assert epochs == 6 / (len(few.ready.rows) // 2)
    assert f"read {epochs:g} times" in " ".join(few.ready.notes())
    assert few.warning == ""
    many = forecast.forecast(train_recipe({"training.steps": 6000}))
    assert many.ready.epochs == 1000 * epochs
    assert many.warning == many.as_json()["notes"][-1]
    assert many.warning.startswith(f"the data are read {many.ready.epochs:g} times")


def test_what_does_not_fit_is_said(train_recipe):
    """A row of 1M tokens keeps more than a GPU has, and says what to set next."""
    from nextlong.train import forecast

    def advice(*overrides):
        planned = recipe("paper-128k", "hardware.count=1", *overrides)
        cost = forecast.estimate(planned, llama_3_8b(), [[1024 * K]])
        return forecast._too_large(planned, cost.memory)

    one_device = ("hardware.ranks_per_row=1", "hardware.device=H200")
    assert "H200 has 141 GB" in advice(*one_device)
    assert "memory.checkpointing=offload" in advice(*one_device)
