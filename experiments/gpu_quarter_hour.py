"""Does hardness help a pretrained model? Trained and measured in a quarter-hour of a GPU.

    python experiments/gpu_quarter_hour.py --data .quarter_hour --out results
    python experiments/gpu_quarter_hour.py --device cpu --tiny    # that all of it works

In:  the bundle that `quarter_hour_data.py` makes. Without one, `--tiny` makes its own,
     with two layers and invented weights.
Out: `quarter-hour.json`, rewritten after every model: recall of the probes, loss of
     their answers, and how much the model needs the earlier chunks of a document
     (`sequences/dependence.py`), before training and for each arm and data seed.

Every arm trains on the same number of tokens, a third of them short documents with a
document mask, by nextlong's own loop. How many is set by the speed of the first steps,
so that all arms fit in `--seconds`. Seeds are the outer loop: what is done when the
time is over compares all arms of a seed.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

# It is run as a script, by bench/gpu.sh too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments import quarter_hour_data as bundles
from nextlong.cli.demo import write_demo_corpus
from nextlong.engine import store
from nextlong.errors import NextlongError, RecipeError
from nextlong.recipe.keys import Scorer
from nextlong.runs.run import Run
from nextlong.runs.statistics.dependence import measure_dependence
from nextlong.text import Json
from nextlong.train import loop, metrics
from nextlong.train.recipe import TrainRecipe

RESULTS: Final = "quarter-hour.json"
# SmolLM2 was trained on 8,192 tokens with a base of 100,000.
_ROPE_BASE: Final = 500_000.0
_LR: Final = 3e-4
_ROWS_PER_STEP: Final = 8
_TRIAL_STEPS: Final = 20
_MEASURED_STEPS: Final = 10  # the last of the trial, which do not compile or allocate
_RESERVE: Final = 0.9  # share of the time that is planned for


@dataclass
class Experiment:
    """A bundle that is unpacked, and what is known of the time."""

    bundle: Json
    arrays: Mapping[str, NDArray[Any]]
    run: Run
    model: Path
    scratch: Path
    device: torch.device
    ends_at: float

    @property
    def row_tokens(self) -> int:
        return int(self.bundle["size"]["row_tokens"])

    @property
    def rows_per_step(self) -> int:
        """Rows of a step, all of an arm's where it has only a few."""
        return min(_ROWS_PER_STEP, int(self.bundle["size"]["rows"]))

    @property
    def left_s(self) -> float:
        """Seconds until the end."""
        return self.ends_at - time.monotonic()

    def data_of(self, arm: str, seed: int) -> Path:
        """Write an arm's rows and the short documents beside them, as Parquet."""
        path = self.scratch / f"rows-{arm}-{seed}.parquet"
        rows = self.arrays[f"rows-{arm}-{seed}"].tolist()
        lengths: list[list[int]] = [[self.row_tokens] for _ in rows]
        # Lengths of documents stand end to end over the rows that they tile.
        replay = self.arrays[f"rows-replay-{seed}"].tolist()
        documents = self.arrays[f"lengths-replay-{seed}"]
        row_of_document = (documents.cumsum(dtype=np.int64) - 1) // self.row_tokens
        for row in range(len(replay)):
            lengths.append(documents[row_of_document == row].tolist())
        columns = {
            "input_ids": pa.array([*rows, *replay], pa.list_(pa.int32())),
            "seq_lengths": pa.array(lengths, pa.list_(pa.int32())),
        }
        pq.write_table(pa.table(columns), path)
        return path

    def train(self, name: str, data: Path, *, seed: int, steps: int) -> Path:
        """Train by nextlong's own loop; return its folder."""
        out = self.scratch / name
        is_on_gpu = self.device.type == "cuda"
        keys: Json = {
            "out": str(out),
            "seed": seed,
            "data": {"parquet": [str(data)], "validation": 0.0},
            "model": {"path": str(self.model), "rope_base": _ROPE_BASE},
            "training": {
                "steps": steps,
                "tokens_per_step": self.rows_per_step * self.row_tokens,
                "lr": _LR,
                "min_lr_ratio": 0.1,
                "warmup_steps": min(steps - 1, max(1, steps // 10)),
                "precision": "bf16" if is_on_gpu else "fp32",
            },
            "memory": {"checkpointing": "none"},
            "checkpoints": {"every_steps": steps, "keep_last": 1},
        }
        loop.train(TrainRecipe.from_dict(keys, origin=name), Console(quiet=True))
        shutil.rmtree(out / "checkpoints")
        return out

    def measure(self, folder: Path) -> Json:
        """Return what a model knows.

        Recall and loss of each kind and length of probes, in percent and nats; and the
        gain of the earlier meta-chunks, in nats per token of a word that only they have.
        """
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        model = AutoModelForCausalLM.from_pretrained(
            str(folder), attn_implementation="sdpa", dtype=dtype
        )
        model = model.to(self.device).eval()
        measured: Json = {}
        for tokens, kind in product(self.bundle["size"]["probe_tokens"], bundles.KINDS):
            ids = self.arrays[f"probe-{kind}-{tokens}"].astype(np.int64)
            parts = self.arrays[f"parts-{kind}-{tokens}"].tolist()
            ends = accumulate((length for length, _ in parts), initial=0)
            answers = [
                answer_loss(model, ids[start:end], answer_tokens)
                for (start, end), (_, answer_tokens) in zip(
                    pairwise(ends), parts, strict=True
                )
            ]
            recalled = [is_recalled for is_recalled, _ in answers]
            losses = [loss for _, loss in answers]
            measured[f"{kind}-{tokens}"] = {
                "recall": round(100 * float(np.mean(recalled)), 2),
                "loss": round(float(np.mean(losses)), 4),
                "probes": len(answers),
            }
        del model
        scorer = Scorer(model=str(folder), device=self.device.type)
        dependence = measure_dependence(self.run, scorer)
        gain = None
        if dependence.gain is not None:
            gain = dependence.gain.mean
        measured["dependence"] = {"gain": gain, "sequences": dependence.sequences}
        return measured


@torch.no_grad()  # type: ignore[untyped-decorator]
def answer_loss(
    model: PreTrainedModel, ids: NDArray[np.int64], answer_tokens: int
) -> tuple[bool, float]:
    """Return whether every token of the answer is the likeliest, and its mean loss.

    The answer is the end of `ids` (T,); the tokens before are given (teacher forcing),
    which agrees with greedy generation wherever all are the likeliest.
    """
    inputs = torch.from_numpy(ids)[None].to(model.device)
    # The logits of the last tokens alone: those of all would take gigabytes.
    output = model(inputs, logits_to_keep=answer_tokens + 1, use_cache=False)
    logits = output.logits[0, :-1].float()
    targets = inputs[0, -answer_tokens:]
    is_recalled = bool((logits.argmax(dim=-1) == targets).all())
    loss = float(torch.nn.functional.cross_entropy(logits, targets))
    return is_recalled, loss


@torch.no_grad()  # type: ignore[untyped-decorator]
def dequantized(gguf: Path, out: Path) -> Path:
    """Write the model of a GGUF file as a folder that `from_pretrained` loads.

    Its own `save_pretrained` refuses weights that were quantized.
    """
    loaded = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    plain = AutoModelForCausalLM.from_config(loaded.config)
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.save_pretrained(out)
    return out


def run(experiment: Experiment, out: Path) -> Json:
    """Measure the model, then train and measure each arm; return the results."""
    results: Json = {
        "bundle": experiment.bundle,
        "device": str(experiment.device),
        "torch": torch.__version__,
        "arms": dict(bundles.ARMS),
        "models": [],
    }
    began = time.monotonic()
    base = experiment.measure(experiment.model)
    measure_s = time.monotonic() - began
    results["models"].append({"arm": "base", "seed": None, "probes": base})
    store.write_json(out / RESULTS, results)

    rate, around_s = _trial(experiment)
    runs = [(seed, arm) for seed in bundles.SEEDS for arm in bundles.ARMS]
    steps = _steps(experiment, rate=rate, other_s=measure_s + around_s, runs=len(runs))
    results |= {"tokens_per_s": round(rate), "steps": steps}
    print(f"{rate:,.0f} tokens/s: {steps} steps for each of {len(runs)} models")
    slowest_s = 0.0
    for seed, arm in runs:
        if experiment.left_s < slowest_s:
            print(f"no time is left for {arm}, seed {seed}, and those after it")
            break
        began = time.monotonic()
        folder = experiment.train(
            f"{arm}-{seed}", experiment.data_of(arm, seed), seed=seed, steps=steps
        )
        losses = [step["loss"] for step in metrics.read(folder / metrics.STEPS)]
        record: Json = {
            "arm": arm,
            "seed": seed,
            "tokens": steps * experiment.rows_per_step * experiment.row_tokens,
            "loss": round(float(np.mean(losses[-4:])), 4),
            "probes": experiment.measure(folder / "final"),
        }
        slowest_s = max(slowest_s, time.monotonic() - began)
        record["seconds"] = round(time.monotonic() - began, 1)
        results["models"].append(record)
        store.write_json(out / RESULTS, results)
        print(f"{arm}, seed {seed}: {record['probes']}", flush=True)
        shutil.rmtree(folder)
    return results


def _trial(experiment: Experiment) -> tuple[float, float]:
    """Train a few steps; return tokens per second, and the seconds beside the steps."""
    began = time.monotonic()
    is_small = experiment.row_tokens < _TRIAL_STEPS * _ROWS_PER_STEP
    steps = 2 if is_small else _TRIAL_STEPS
    first_arm = next(iter(bundles.ARMS))
    data = experiment.data_of(first_arm, bundles.SEEDS[0])
    folder = experiment.train("trial", data, seed=0, steps=steps)
    taken = metrics.read(folder / metrics.STEPS)
    shutil.rmtree(folder)
    all_s = time.monotonic() - began
    around_s = all_s - sum(step["seconds"] for step in taken)
    measured = taken[-_MEASURED_STEPS:]
    seconds = sum(step["seconds"] for step in measured)
    return sum(step["tokens"] for step in measured) / seconds, around_s


def _steps(experiment: Experiment, *, rate: float, other_s: float, runs: int) -> int:
    """Return the steps of each model that fit in the time, at most all rows once."""
    all_rows = int(experiment.bundle["size"]["rows"])
    most = max(1, all_rows // experiment.rows_per_step)
    training_s = _RESERVE * experiment.left_s / runs - other_s
    tokens_per_step = experiment.rows_per_step * experiment.row_tokens
    fitting = math.floor(training_s * rate / tokens_per_step)
    if fitting < 1:
        raise RecipeError(
            where="--seconds",
            problem=f"it leaves no step for each of {runs} models",
            fix="give more time",
        )
    return min(most, fitting)


def tiny_bundle(scratch: Path) -> Path:
    """Make a bundle of two layers from the demo's documents; return its folder."""
    corpus = scratch / "corpus.jsonl"
    write_demo_corpus(corpus)
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train([str(corpus)], trainer)
    tokenizer_file = scratch / "tokenizer.json"
    tokenizer.save(str(tokenizer_file))
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=bundles.TINY.row_tokens,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = scratch / "tiny-llama"
    LlamaForCausalLM(config).save_pretrained(model)
    end = "<|endoftext|>"
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)
    fast.save_pretrained(model)
    # What is measured on a CPU means nothing, so the documents need not differ.
    sources = bundles.Sources((corpus,), (corpus,), tokenizer_file)
    folder = scratch / "bundle"
    bundles.write_bundle(folder, sources=sources, model=model, size=bundles.TINY)
    return folder


def main() -> int:
    """Run the experiment; return the exit status, 2 where it cannot run here."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(
        description="Train and measure every arm in a quarter-hour of a GPU."
    )
    parser.add_argument("--data", type=Path, default=Path(".quarter_hour"))
    parser.add_argument("--out", type=Path, default=Path(".bench"))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--tiny", action="store_true", help="two layers, one step")
    asked = parser.parse_args()
    logging.disable_progress_bar()
    try:
        if asked.device == "cuda" and not torch.cuda.is_available():
            raise RecipeError(
                where="--device",
                value="cuda",
                problem="there is no GPU here; the experiment waits for one",
                fix="run it on a machine with a GPU, or try --device cpu --tiny",
            )
        asked.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="quarter-hour-") as folder:
            scratch = Path(folder)
            data = tiny_bundle(scratch) if asked.tiny else asked.data
            bundle = bundles.check(data)
            model = bundles.read_model(data, bundle["model"]["kind"], scratch)
            if model.is_file():
                model = dequantized(model, scratch / "dequantized")
            experiment = Experiment(
                bundle=bundle,
                arrays=bundles.read_arrays(data / bundles.ARRAYS),
                run=bundles.read_run(data, scratch),
                model=model,
                scratch=scratch,
                device=torch.device(asked.device),
                ends_at=began + asked.seconds,
            )
            run(experiment, asked.out)
    except NextlongError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"results: {asked.out / RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
