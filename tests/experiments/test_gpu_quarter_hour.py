"""What a quarter-hour of a GPU will run works here, with two layers and one step."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nextlong.errors import RunError

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.heavy


def run(*options):
    return subprocess.run(
        [sys.executable, "experiments/gpu_quarter_hour.py", *map(str, options)],
        cwd=ROOT,
        # Without a GPU, also on a machine that has one.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_arm_is_trained_and_measured_on_a_cpu(tmp_path):
    from experiments.quarter_hour_data import ARMS, KINDS, SEEDS, TINY

    done = run("--device", "cpu", "--tiny", "--out", tmp_path, "--seconds", "900")
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "quarter-hour.json").read_text())
    base, *trained = results["models"]
    assert base["arm"] == "base"
    runs = [(model["seed"], model["arm"]) for model in trained]
    assert runs == [(seed, arm) for seed in SEEDS for arm in ARMS]
    probes = {f"{kind}-{tokens}" for kind in KINDS for tokens in TINY.probe_tokens}
    probes.add("dependence")
    for model in trained:
        assert model["probes"].keys() == probes
        assert model["probes"] != base["probes"]
        assert model["tokens"] == results["steps"] * TINY.rows * TINY.row_tokens


def test_without_a_gpu_it_waits(tmp_path):
    done = run("--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --device=cuda")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def probes():
    """Probes of 512 tokens in invented text, by a tokenizer of bytes."""
    from experiments.quarter_hour_data import Size, probe_arrays
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    text = " ".join(f"This is sentence number {number}." for number in range(200))
    size = Size(row_tokens=2048, rows=2, probe_tokens=(2048,), probes=6)
    return tokenizer, text, size, probe_arrays


def test_a_probe_holds_its_answer_once_before_the_question(probes, tmp_path):
    tokenizer, text, size, probe_arrays = probes
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    arrays = probe_arrays([text], tmp_path / "tokenizer.json", size)
    for kind in ("needle", "multi-key", "key-value"):
        ids = arrays[f"probe-{kind}-2048"]
        end = 0
        places = []
        for length, answer_tokens in arrays[f"parts-{kind}-2048"]:
            probe = ids[end : end + length].tolist()
            end += length
            assert length <= 2048
            answer = tokenizer.decode(probe[-answer_tokens:]).strip()
            before = tokenizer.decode(probe[:-answer_tokens])
            assert before.count(answer) == 1
            places.append(before.index(answer) / len(before))
            # Distractors have the form of the asked fact.
            facts = before.count("The access code of") - 1
            assert facts == {"needle": 1, "multi-key": 16, "key-value": -1}[kind]
        assert end == len(ids)
        assert places == sorted(places)


def test_a_bundle_survives_its_parts_and_a_lost_one_is_named(tmp_path):
    from experiments import quarter_hour_data as bundles

    arrays = {"rows": np.arange(70_000).reshape(7, -1), "few": np.array([3, 4])}
    bundles._write_arrays(tmp_path / bundles.ARRAYS, arrays)
    read = bundles.read_arrays(tmp_path / bundles.ARRAYS)
    assert {name: array.tolist() for name, array in read.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    model = tmp_path / "model.gguf"
    model.write_bytes(os.urandom(1000))
    files = {bundles.ARRAYS: bundles.sha256_of(tmp_path / bundles.ARRAYS)}
    (tmp_path / bundles.BUNDLE).write_text(json.dumps({"files": files}))
    assert bundles.check(tmp_path)["files"] == files
    shutil.move(tmp_path / bundles.ARRAYS, tmp_path / "lost")
    with pytest.raises(RunError) as error:
        bundles.check(tmp_path)
    assert error.value.where == str(tmp_path / bundles.ARRAYS)


def test_a_model_comes_back_from_its_parts(tmp_path, monkeypatch):
    from experiments import quarter_hour_data as bundles

    monkeypatch.setattr(bundles, "_PART_BYTES", 100)
    content = os.urandom(1234)
    (tmp_path / "model.gguf").write_bytes(content)
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    kind = bundles._write_model(tmp_path / "model.gguf", bundle)
    assert len(list(bundle.iterdir())) == 13
    out = tmp_path / "out"
    out.mkdir()
    assert bundles.read_model(bundle, kind, out).read_bytes() == content


def test_an_answer_is_recalled_if_each_of_its_tokens_is_the_likeliest():
    import torch
    from experiments.gpu_quarter_hour import answer_loss
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    model = LlamaForCausalLM(config).eval()
    prompt = torch.arange(20)[None]
    greedy = model.generate(prompt, max_new_tokens=3, do_sample=False)[0].numpy()
    is_recalled, loss = answer_loss(model, greedy, 3)
    assert is_recalled
    with torch.no_grad():
        logits = model(torch.from_numpy(greedy)[None]).logits[0, 19:22]
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(greedy[20:]))
    assert loss == pytest.approx(float(expected), rel=1e-5)
    wrong = greedy.copy()
    wrong[-1] = (wrong[-1] + 1) % 50
    assert not answer_loss(model, wrong, 3)[0]
