"""The table of machines says what `memory.forecast` says at each length, and what does not fit."""

import pytest

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def planned():
    """A recipe and config of a small model that 1M tokens do not fit on one GPU with, and its table."""
    from transformers import LlamaConfig

    from nextlong.train import machines
    from nextlong.train.presets import recipe_from

    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_key_value_heads": 4}
    config = LlamaConfig(vocab_size=2048, num_hidden_layers=2, **sizes)
    recipe = recipe_from("paper-128k", out="out", data={"runs": ["a"]}, model="llama")
    return recipe, config, {(one.count, one.row_tokens): one for one in machines.cases(recipe, config)}


def test_a_length_that_is_not_run_lies_on_the_line(planned):
    from nextlong.train import memory

    recipe, config, cases = planned
    for tokens in (1 << 17, 1 << 19):
        assert cases[1, tokens].memory.total == pytest.approx(memory.forecast(recipe, config, [tokens]).total, rel=0.02)


def test_what_does_not_fit_is_said_and_shared_rows_take_less(planned):
    _, _, cases = planned
    assert [cases[1, 1 << power].fits for power in (16, 17, 19, 20)] == [True, True, True, False]
    assert cases[1, 1 << 20].memory.total > 0.95 * 141e9
    assert cases[8, 1 << 20].ranks_per_row == 4  # the fewest that fit
    assert cases[64, 1 << 20].ranks_per_row == 16  # 4 rows of 1M tokens a step keep no more than 4 groups busy
    for case in cases.values():
        gigabytes = {"H200": 141, "H100": 80}[case.device]
        assert case.fits == (case.memory.total <= 0.95e9 * gigabytes)


def test_states_are_sharded_and_hours_fall_with_the_devices(planned):
    from nextlong.train import costs

    _, config, cases = planned
    parameters = costs.sizes_of(config).parameters
    assert cases[64, 1 << 16].memory.states == 8 * parameters / 64
    assert cases[64, 1 << 16].hours == pytest.approx(cases[8, 1 << 16].hours / 8)
