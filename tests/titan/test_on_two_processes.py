"""torchtitan's own trainer on two gloo processes, against our one-device engine on the same rows.

Each run takes half a minute, so each shows several things: FSDP2, a packed row under
context parallelism, a kill and what follows.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nextlong import pipeline

pytestmark = [
    pytest.mark.titan,
    pytest.mark.filterwarnings("ignore"),
]  # of torchtitan; not ours to mend

ON_CPU = Path(__file__).with_name("on_cpu.py")
SCALING = {  # of Llama 3.2, which torchtitan's own flavours give the factor 8
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 500_000.0,
}  # fmt: skip
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
STEPS, KILLED_IN = 4, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("titan")


@pytest.fixture(scope="module")
def recipe(recipe_for, folder):
    """Rows of two sequences of 512 tokens, and a model of sizes that torchtitan has no flavour of."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    pipeline.run(
        recipe_for(folder / "run", "compose.target_tokens=512", "compose.sequences=24")
    )
    torch.manual_seed(0)
    sizes = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 256}
    config = LlamaConfig(
        vocab_size=512,
        tie_word_embeddings=True,
        rope_parameters=SCALING,
        rms_norm_eps=1e-3,
        **sizes,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "llama")
    (tokenizer,) = (folder / "run").glob("*-tokenizer-*/*.tokenizer.json")
    PreTrainedTokenizerFast(tokenizer_file=str(tokenizer)).save_pretrained(
        folder / "llama"
    )
    plain = {
        "out": str(folder / "own"),
        "seed": 3,
        "data": {"runs": [str(folder / "run")], "pack": 1024, "validation": 0.2},
        "model": {"path": str(folder / "llama"), "rope_base": 1e6},
        "training": {
            "steps": STEPS,
            "tokens_per_step": 4096,
            "lr": 0.01,
            "warmup_steps": 2,
            "precision": "fp32",
        },
        "checkpoints": {"every_steps": 2},
        "held_out": {"every_steps": 4, "rows": 3},
    }
    (folder / "T.yaml").write_text(yaml.safe_dump(plain))
    return folder / "T.yaml"


@pytest.fixture(scope="module")
def trained(recipe, folder):
    """A function that trains to `folder / name`, once; returns the folder and the output."""
    done = {}

    def train(name, *overrides, processes=2, **environment):
        if (name, *environment) in done:
            return done[name, *environment]
        sets = [
            word
            for change in (
                f"out={folder / name}",
                f"hardware.count={processes}",
                *overrides,
            )
            for word in ("--set", change)
        ]
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(processes),
        ]
        command = [
            *torchrun,
            str(ON_CPU),
            "train",
            str(recipe),
            "--engine",
            "torchtitan",
            *sets,
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        ran = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env=env,
        )
        assert ran.returncode == 0 or environment, ran.stdout[-9000:]
        done[name, *environment] = folder / name, ran.stdout
        return done[name, *environment]

    return train


@pytest.fixture(scope="module")
def own(recipe, folder):
    """The same training by our engine."""
    from rich.console import Console

    from nextlong.train.loop import train
    from nextlong.train.recipe import TrainRecipe

    train(TrainRecipe.load(recipe), Console(quiet=True))
    return folder / "own"


def lines(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def losses(folder):
    return [line["loss"] for line in lines(folder)]


def logits(folder, ids):
    import torch
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(
        folder / "final", dtype=torch.float32, output_loading_info=True
    )
    assert not any(loading.values())
    with torch.no_grad():
        return model(ids).logits


def test_fsdp2_trains_as_one_device_does(trained, own):
    both, said = trained("fsdp")
    assert (
        said.count("SHARDED True 2 1") == 2
    )  # parameters and optimizer states are DTensors on both
    assert losses(both) == pytest.approx(losses(own), abs=1e-5)
    assert [line["lr"] for line in lines(both)] == pytest.approx(
        [line["lr"] for line in lines(own)]
    )  # no lag after the warm-up
    assert [line["grad_norm"] for line in lines(both)] == pytest.approx(
        [line["grad_norm"] for line in lines(own)], rel=1e-3
    )


def test_held_out_loss_by_role_and_distance(trained, own):
    measured, expected = (
        lines(trained("fsdp")[0], "held_out.jsonl")[-1],
        lines(own, "held_out.jsonl")[-1],
    )
    for group in ("role", "position", "distance"):
        assert measured[group].keys() == expected[group].keys()
        for name, (loss, tokens) in expected[group].items():
            assert measured[group][name] == [pytest.approx(loss, abs=1e-4), tokens]


def test_transformers_loads_what_was_exported(trained, own):
    import torch

    ids = torch.arange(200)[None] % 512
    after, start = logits(trained("fsdp")[0], ids), logits(own, ids)
    assert torch.allclose(after, start, atol=1e-3)
    config = json.loads((trained("fsdp")[0] / "final" / "config.json").read_text())
    assert config["rope_parameters"] == {**SCALING, "rope_theta": 1e6}


def test_a_packed_row_shared_by_two_processes(trained, own):
    shared, said = trained("cp", "hardware.ranks_per_row=2")
    assert said.count("SHARDED True 1 2") == 2
    assert losses(shared) == pytest.approx(losses(own), abs=1e-5)
    measured, expected = (
        lines(shared, "held_out.jsonl")[-1],
        lines(own, "held_out.jsonl")[-1],
    )
    assert measured["distance"].keys() == expected["distance"].keys()
    assert measured["loss"] == pytest.approx(expected["loss"], abs=1e-4)


def test_documents_that_see_each_other_are_noticed(trained, own):
    leaking, _ = trained(
        "leaking", "training.steps=3", processes=1, NEXTLONG_TEST_LEAK="1"
    )
    assert (
        abs(losses(leaking)[1] - losses(own)[1]) > 1e-3
    )  # a hundred times what is allowed above


def test_a_killed_training_resumes_to_the_same_weights(trained, folder):
    whole, _ = trained("fsdp")
    killed, _ = trained("killed", NEXTLONG_TEST_KILL=str(KILLED_IN - 1))
    assert len(lines(killed)) == KILLED_IN - 1
    assert not (killed / "final").exists()
    resumed, _ = trained("killed")
    assert losses(resumed) == losses(whole)
    name = "final/model-00001-of-00001.safetensors"
    assert (resumed / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize(
    ("lr", "reason"),
    [(3.0, "more than 1.01 times the median"), (1e30, "not finite|is (nan|inf)")],
)
def test_all_processes_stop_where_the_loss_spikes_or_is_not_finite(trained, lr, reason):
    """Each of them by itself: one that waits for another would be ended by torchrun, on its own machine only."""
    folder, said = trained(
        f"spike-{lr}", f"training.lr={lr}", "watch.spike=1.01", NEXTLONG_TEST_SPIKE="1"
    )
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert all(
        re.search(
            f"({reason}).*; all checkpoints are from earlier steps; choose another",
            line,
        )
        for line in errors
    )
    assert not (folder / "final").exists()
