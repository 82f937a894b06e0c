"""Training steps on packed rows: nextlong's attention and loss against transformers' Trainer with stock sdpa, on this machine.

    python bench/train_attention.py [--row 16384] [--documents 8] [--steps 2]

Each path runs in a process of its own (its peak memory is measured), in turn; both
train the same small Llama, without activation checkpointing, on the same ids.
`--growth` measures nextlong's path alone on rows of 1, 2, 4 … documents of 2,048
tokens.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

SIZES = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1 << 17,
    "use_cache": False,
}


def rows(row: int, documents: int, steps: int) -> list[dict[str, Any]]:
    """Return one row a step: ids, labels without the first token of a document, positions that begin anew in each."""
    import torch

    torch.manual_seed(0)
    length = row // documents
    made = []
    for _ in range(steps):
        ids = torch.randint(SIZES["vocab_size"], (row,))
        labels = ids.clone()
        labels[::length] = -100
        made.append(
            {
                "input_ids": ids,
                "labels": labels,
                "position_ids": torch.arange(length).repeat(documents),
            }
        )
    return made


Clocks = tuple[float, float]


def clocks() -> Clocks:
    """Return the time, and the processor seconds of all threads of this process."""
    return time.perf_counter(), time.process_time()


def between(started: Clocks, ended: Clocks) -> Clocks:
    return ended[0] - started[0], ended[1] - started[1]


def ours(row: int, documents: int, steps: int, warm_up: int) -> Clocks:
    """Return the seconds, and the processor seconds, of the steps after those to warm up."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from nextlong.train.attention import register_attention
    from nextlong.train.loss import install_loss

    model = LlamaForCausalLM._from_config(
        LlamaConfig(**SIZES), attn_implementation=register_attention()
    )
    install_loss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    bounds = torch.arange(0, row + 1, row // documents, dtype=torch.int32)
    started = clocks()
    for number, one in enumerate(rows(row, documents, steps + warm_up)):
        if number == warm_up:
            started = clocks()
        model(
            **{name: column[None] for name, column in one.items()}, cu_seq_lens_q=bounds
        ).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return between(started, clocks())


def stock(row: int, documents: int, steps: int, warm_up: int) -> Clocks:
    """Return the seconds, and the processor seconds, of the Trainer's steps after those to warm up."""
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        default_data_collator,
    )

    class Clock(TrainerCallback):  # type: ignore[misc]
        ends: list[Clocks] = []  # noqa: RUF012

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.ends.append(clocks())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(clocks())

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=steps + warm_up, per_device_train_batch_size=1, use_cpu=True, report_to=[],
            save_strategy="no",
            learning_rate=1e-4, max_grad_norm=1.0, disable_tqdm=True,
        )  # fmt: skip
        model = LlamaForCausalLM._from_config(
            LlamaConfig(**SIZES), attn_implementation="sdpa"
        )
        data = rows(row, documents, steps + warm_up)
        Trainer(
            model,
            arguments,
            train_dataset=data,
            data_collator=default_data_collator,
            callbacks=[Clock()],
        ).train()
    return between(Clock.ends[warm_up], Clock.ends[-1])


def child(
    path: str, asked: argparse.Namespace, *, documents: int, row: int
) -> dict[str, float]:
    """Measure one path in a process of its own: tokens a second, processor seconds a row, peak GB."""
    command = [
        sys.executable,
        __file__,
        "--path",
        path,
        "--row",
        str(row),
        "--documents",
        str(documents),
    ]
    for name in ("steps", "warm_up", "layers"):
        command += [f"--{name.replace('_', '-')}", str(getattr(asked, name))]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", type=int, default=16_384, help="tokens")
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="measured")
    parser.add_argument(
        "--warm-up", type=int, default=1, help="steps before those that are measured"
    )
    parser.add_argument("--rounds", type=int, default=1, help="of both paths in turn")
    parser.add_argument(
        "--layers",
        type=int,
        default=SIZES["num_hidden_layers"],
        help="fewer, where stock runs out of memory",
    )
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--path", choices=("ours", "stock"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    SIZES["num_hidden_layers"] = asked.layers
    if asked.path:
        seconds, processor = {"ours": ours, "stock": stock}[asked.path](
            asked.row, asked.documents, asked.steps, asked.warm_up
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        found = {
            "tokens_per_second": asked.row * asked.steps / seconds,
            "processor_seconds": processor / asked.steps,
        }
        print(json.dumps(found | {"peak_gb": peak}))
        return
    if asked.growth:
        for documents in (1, 2, 4, 8, 16):
            found = child("ours", asked, documents=documents, row=2048 * documents)
            each = found["processor_seconds"] / documents
            print(
                f"{documents:3} documents of 2,048 tokens: {found['processor_seconds']:6.2f} processor seconds a row, "
                f"{each:.2f} a document, {found['peak_gb']:.2f} GB",
                flush=True,
            )
        return
    for _ in range(asked.rounds):
        measured = {
            path: child(path, asked, documents=asked.documents, row=asked.row)
            for path in ("ours", "stock")
        }
        for path, found in measured.items():
            print(
                f"{path:6} {found['tokens_per_second']:8,.0f} tokens/s  {found['processor_seconds']:8.1f} processor seconds a row  "
                f"{found['peak_gb']:6.2f} GB",
                flush=True,
            )
        faster = (
            measured["stock"]["processor_seconds"]
            / measured["ours"]["processor_seconds"]
        )
        print(
            f"{faster:.1f} times as fast by processor time, "
            f"{measured['ours']['peak_gb'] / measured['stock']['peak_gb']:.0%} of the memory",
            flush=True,
        )


if __name__ == "__main__":
    main()
