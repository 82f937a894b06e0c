"""Run `nextlong` with torchtitan's own trainer on a CPU: torchrun … on_cpu.py train T.yaml.

torchtitan is for GPUs and a torch newer than 2.13. What it misses here is supplied, and
nothing of what is trained is changed but flex attention, which has no backward pass on
a CPU: a dense mask stands for it, made of the BlockMask's blocks and, apart from them,
of its mask function, and the two must agree.
"""

import os
import signal
import sys
import types

import torch
import torch._utils
import torch.distributed.distributed_c10d as c10d

torch._utils._get_available_device_type = lambda: "cpu"
for name, value in {
    "get_device_name": lambda device=None: "CPU",
    "get_device_properties": lambda device=None: types.SimpleNamespace(
        total_memory=1 << 30
    ),
    "reset_peak_memory_stats": lambda device=None: None,
    "empty_cache": lambda: None,
    "memory_stats": lambda device=None: {},
    "current_device": lambda: 0,
}.items():
    setattr(torch.cpu, name, value)
if not hasattr(torch.distributed, "set_timeout"):
    torch.distributed.set_timeout = c10d._set_pg_timeout


def dense_mask(block_mask):
    """Return the mask of (batch, heads, queries, keys); raise if its blocks and its mask function differ."""
    from torch.nn.attention.flex_attention import create_mask

    if (kept := getattr(block_mask, "_dense", None)) is not None:
        return kept
    batch, heads, queries, keys = block_mask.shape
    inside = create_mask(block_mask.mask_mod, batch, heads, queries, keys, device="cpu")

    def spread(numbers, indices):
        columns = indices.shape[-1]
        named = torch.arange(columns) < numbers[..., None]
        blocks = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool)
        blocks.scatter_(-1, torch.where(named, indices, columns).long(), value=True)
        high, wide = block_mask.BLOCK_SIZE
        tokens = (
            blocks[..., :columns]
            .repeat_interleave(high, -2)
            .repeat_interleave(wide, -1)
        )
        return tokens[..., :queries, :keys]

    dense = inside & spread(block_mask.kv_num_blocks, block_mask.kv_indices)
    if block_mask.full_kv_num_blocks is not None:
        dense = dense | spread(
            block_mask.full_kv_num_blocks, block_mask.full_kv_indices
        )
    assert (dense == inside).all(), "the blocks of the mask and its function differ"
    block_mask._dense = dense
    return dense


def dense_attention(
    q, k, v, *, score_mod, block_mask, scale, enable_gqa, return_aux, kernel_options
):
    assert score_mod is None
    assert not return_aux.lse
    mask = dense_mask(block_mask)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
    ), None


def plain_sums():
    """Gloo has no PREMUL_SUM, which FSDP's gradient divide factor of 1 asks for."""
    from torch.distributed.fsdp import FSDPModule

    set_factor = FSDPModule.set_gradient_divide_factor

    def set_and_force(self, factor):
        set_factor(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_and_force


def watch_steps():
    """Say after the first step which parameters are DTensors, and die after step NEXTLONG_TEST_KILL."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor
    from torchtitan.trainer import Trainer

    step, kill = Trainer.train_step, int(os.environ.get("NEXTLONG_TEST_KILL", "0"))

    def train_step(self, data_iterator):
        if kill and self.step > kill:
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, data_iterator)
        if self.step == 1:
            (model,) = self.model_parts
            held = {type(parameter) for parameter in model.parameters()}
            states = {
                type(state["exp_avg"])
                for optimizer in self.optimizers
                for state in optimizer.state.values()
            }
            sharded = held == states == {DTensor} and isinstance(model, FSDPModule)
            print(
                f"SHARDED {sharded} {self.parallel_dims.dp_shard} {self.parallel_dims.cp}",
                flush=True,
            )

    Trainer.train_step = train_step


def measure_leak():
    """A planted fault: positions that go on through the documents of a packed row, so that these see each other."""
    from nextlong.train.titan import config

    whole = config._batch_of

    def leaking(rows, **options):
        inputs, labels = whole(rows, **options)
        inputs["positions"] = (
            torch.arange(inputs["positions"].shape[-1])
            .expand_as(inputs["positions"])
            .clone()
        )
        return inputs, labels

    config._batch_of = leaking


if __name__ == "__main__":
    plain_sums()
    from torchtitan.models.common.attention import FlexAttention

    FlexAttention._compiled_flex_attn = staticmethod(dense_attention)
    watch_steps()
    if os.environ.get("NEXTLONG_TEST_LEAK"):
        measure_leak()
    if os.environ.get("NEXTLONG_TEST_SPIKE"):  # after one step, not twenty
        from nextlong.train import metrics

        metrics._SPIKE_WINDOW = 1
    from nextlong.cli.main import main

    sys.exit(main())
