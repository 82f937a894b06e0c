"""A tiny Llama, trained on any iterable of rows: that two ways to read a data set give the same losses."""

from itertools import cycle, islice

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def tiny_llama(vocabulary):
    """Return the model, always with the same weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=1 << 17,
        use_cache=False,  # with a cache, position_ids do not keep attention within a sequence
    )
    return LlamaForCausalLM(config)


def losses(rows, *, steps, vocabulary):
    """Train a new one, one row a step, again from the first when they end; return the loss of each step.

    A row is a mapping with `input_ids`, and `labels` where these differ.
    """
    torch.set_num_threads(
        1
    )  # sums of several threads may differ in their last bits from run to run
    model = tiny_llama(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return [_step(model, optimizer, row) for row in islice(cycle(rows), steps)]


def _step(model, optimizer, row):
    input_ids = torch.as_tensor(row["input_ids"], dtype=torch.int64)[None]
    labels = (
        torch.as_tensor(row["labels"], dtype=torch.int64)[None]
        if "labels" in row
        else input_ids
    )
    loss = model(input_ids=input_ids, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
