"""The formula of memory gives what a step of the real model takes."""

import gc
import itertools

import pytest
from tests.support.llama_config import llama_3_8b

pytestmark = pytest.mark.heavy


CONFIGURATIONS = [
    ({"hidden_size": 64, "layers": 2}, [2048], {}),
    (
        {"hidden_size": 128, "layers": 12},
        [1024, 512, 1536],
        {"memory.checkpointing": "layers"},
    ),
    (
        {"hidden_size": 96, "layers": 10, "vocabulary": 4096},
        [700, 1348],
        {"training.precision": "bf16"},
    ),
    (
        {"hidden_size": 512, "layers": 2, "vocabulary": 4096},
        [512],
        {"memory.checkpointing": "layers", "training.precision": "bf16"},
    ),
    ({"hidden_size": 64, "layers": 1, "vocabulary": 32_000}, [1024], {}),
    ({"hidden_size": 128, "layers": 4}, [1024], {"model.lora_rank": 4}),
    (
        {"hidden_size": 128, "layers": 4},
        [1024],
        {"model.lora_rank": 4, "memory.checkpointing": "layers"},
    ),
]


def recipe_of(train_recipe, sizes, changes):
    scratch = {
        "intermediate_size": 256,
        "heads": 4,
        "key_value_heads": 2,
        "vocabulary": 512,
        **sizes,
    }
    return train_recipe(
        {"model.scratch": scratch, "memory.loss_block_tokens": 256, **changes}
    )


def measured(recipe, config, lengths):
    """Return the most bytes that the CPU's allocator held in the second step, by the profiler's record of each allocation."""
    import torch
    from transformers import AutoModelForCausalLM

    from nextlong.train.attention import register_attention
    from nextlong.train.model import autocast, optimizer_for, ready_to_train
    from nextlong.train.rows import packed_batch

    config.use_cache = False
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=register_attention()
    )
    model = ready_to_train(model, recipe)
    optimizer = optimizer_for(model.train(), recipe)
    bounds = list(itertools.accumulate([0, *lengths]))
    batch = packed_batch(torch.randint(config.vocab_size, (1, bounds[-1])), bounds)

    def step():
        with autocast(recipe, torch.device("cpu")):
            result = model(**batch, num_items_in_batch=sum(lengths)).loss
        result.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    step()
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    changes = [
        event
        for event in profile.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    changes.sort(key=lambda event: event.start_ns())
    weights = sum(
        one.numel() * one.element_size()
        for one in {id(p): p for p in model.parameters()}.values()
    )
    states = sum(
        one.numel() * one.element_size()
        for state in optimizer.state.values()
        for one in state.values()
    )
    held = itertools.accumulate(event.nbytes() for event in changes)
    return weights + states + max(held)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # 2.11
@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft asks for it
@pytest.mark.parametrize(("sizes", "lengths", "changes"), CONFIGURATIONS)
def test_the_forecast_is_within_5_percent_of_what_the_allocator_held(
    train_recipe, sizes, lengths, changes
):
    from nextlong.train import memory
    from nextlong.train.prepare import config_of
    from nextlong.train.sizes import sizes_of

    recipe = recipe_of(train_recipe, sizes, changes)
    config = config_of(recipe, vocabulary=None)
    found = memory.peak_memory(recipe, sizes_of(config), lengths, is_gpu=False)
    assert found.total == pytest.approx(measured(recipe, config, lengths), rel=0.05)


K = 1024


def test_attention_counts_within_documents():
    from nextlong.train.sizes import flops, sizes_of

    sizes = sizes_of(llama_3_8b())
    whole = flops(sizes, [512 * K])
    parts = flops(sizes, [64 * K] * 8)
    linear = 6.0 * sizes.multiplied * 512 * K
    assert (whole - linear) / (parts - linear) == pytest.approx(8)


def sharded(*, tokens, devices, ranks_per_row):
    from nextlong.train import memory
    from nextlong.train.recipe import recipe_from
    from nextlong.train.sizes import sizes_of

    recipe = recipe_from("paper-128k", out="out", data={"runs": ["a"]}, model="llama")
    sizes = sizes_of(llama_3_8b())
    return memory.sharded_memory(
        recipe, sizes, tokens, devices=devices, ranks_per_row=ranks_per_row
    )


def test_ranks_that_share_a_row_hold_its_keys_and_values_of_one_layer():
    """2.1 GB at 512K tokens for Llama-3-8B, whose keys are 1,024 wide."""
    alone = sharded(tokens=64 * K, devices=8, ranks_per_row=1)
    shared = sharded(tokens=512 * K, devices=8, ranks_per_row=8)
    gathered = shared.parts["activations"] - alone.parts["activations"]
    assert gathered == 2 * 512 * K * 1024 * 2


def test_states_are_sharded_over_all_devices():
    few = sharded(tokens=64 * K, devices=8, ranks_per_row=1)
    many = sharded(tokens=64 * K, devices=64, ranks_per_row=1)
    assert many.parts["states"] == 8 * 8_030_261_248 / 64
    assert few.parts["states"] == 8 * many.parts["states"]
    assert few.parts["activations"] == many.parts["activations"]
