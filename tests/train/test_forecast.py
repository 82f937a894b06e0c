"""The dry run gives the paper's hours, and the table of machines the memory of each length."""

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

    timed = []
    monkeypatch.setattr(
        forecast,
        "measure_row",
        lambda recipe, config, lengths: timed.append(list(lengths)) or 2.0,
    )
    monkeypatch.setattr(forecast, "_peak_memory", lambda recipe, config, lengths: None)
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
        2.0 * rows * forecast.flops(sizes, row) / forecast.flops(sizes, [5 * K, 3 * K])
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
    found = forecast._measure_row_start(small, llama_3_8b(), [128 * K], sizes=sizes)
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
    forecast._measure_row_start(small, llama_3_8b(), [100, 200], sizes=sizes)
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

    made = forecast.forecast(train_recipe(), with_machines=True)
    forecast.show(made, quiet)
    assert len(made.cases) == len(made.as_json()["machines"]) == 12
    assert forecast.forecast(train_recipe()).as_json()["machines"] == []
    assert not Path(train_recipe().out).exists()


def test_the_command_prints_the_plan(train_recipe, command, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(train_recipe().dump())
    said = command("train", path, "--dry-run").stdout
    assert "64 × H100" not in said
    assert "add --machines" in said
    said = command("train", path, "--dry-run", "--machines").stdout
    for word in (
        "parameters:",
        "memory:",
        "one layer:",
        "LlamaMLP",
        "operations:",
        "time:",
        "measured here",
        "64 × H100",
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


@pytest.fixture(scope="module")
def planned():
    """A recipe and config of a small model that 1M tokens do not fit on one GPU with, and its table."""
    from transformers import LlamaConfig

    from nextlong.train import forecast
    from nextlong.train.recipe import recipe_from

    sizes = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
    }
    config = LlamaConfig(vocab_size=2048, num_hidden_layers=2, **sizes)
    recipe = recipe_from("paper-128k", out="out", data={"runs": ["a"]}, model="llama")
    return (
        recipe,
        config,
        {(one.count, one.row_tokens): one for one in forecast.cases(recipe, config)},
    )


def test_a_length_that_is_not_run_lies_on_the_line(planned):
    from nextlong.train import forecast

    recipe, config, cases = planned
    for tokens in (1 << 17, 1 << 19):
        assert cases[1, tokens].memory.total == pytest.approx(
            forecast._peak_memory(recipe, config, [tokens]).total, rel=0.02
        )


def test_what_does_not_fit_is_said_and_shared_rows_take_less(planned):
    _, _, cases = planned
    assert [cases[1, 1 << power].fits for power in (16, 17, 19, 20)] == [
        True,
        True,
        True,
        False,
    ]
    assert cases[1, 1 << 20].memory.total > 0.95 * 141e9
    assert cases[8, 1 << 20].ranks_per_row == 4  # the fewest that fit
    assert (
        cases[64, 1 << 20].ranks_per_row == 16
    )  # 4 rows of 1M tokens a step keep no more than 4 groups busy
    for case in cases.values():
        gigabytes = {"H200": 141, "H100": 80}[case.device]
        assert case.fits == (case.memory.total <= 0.95e9 * gigabytes)


def test_ranks_that_share_a_row_hold_its_keys_and_values_of_one_layer(planned):
    """2.1 GB at 512K tokens for Llama-3-8B, whose keys are 1,024 wide."""
    from nextlong.train import forecast

    sizes = forecast.sizes_of(llama_3_8b())
    held = forecast._PeakMemory({"activations": 1e9}, {})
    alone, shared = (
        forecast._with_gathered_keys(held, sizes, 512 * K, ranks=ranks).total
        for ranks in (1, 8)
    )
    assert alone == 1e9
    assert shared - alone == 2 * 512 * K * 1024 * 2
    _, config, cases = planned
    recipe, _, _ = planned
    case = cases[8, 1 << 20]
    without = forecast._sharded(
        forecast._on_one_rank(recipe, config, (1 << 20) // case.ranks_per_row),
        forecast.sizes_of(config),
        8,
    )
    gathered = case.memory.parts["activations"] - without.parts["activations"]
    assert gathered == pytest.approx(2 * (1 << 20) * 4 * 128 * 2, rel=0.02)


def test_states_are_sharded_and_hours_fall_with_the_devices(planned):
    from nextlong.train import forecast

    _, config, cases = planned
    parameters = forecast.sizes_of(config).parameters
    assert cases[64, 1 << 16].memory.parts["states"] == 8 * parameters / 64
    assert cases[64, 1 << 16].hours == pytest.approx(cases[8, 1 << 16].hours / 8)
