"""A Hugging Face model: its answers hold the likeliest tokens, however its prompts are chunked, batched or cached."""

import io
import json
import shutil
from dataclasses import replace

import pytest
from rich.console import Console
from tests.support.answering_models import answered

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.memory import needed_bytes
from nextlong.evaluate.progress import TaskProgress
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.run import evaluate
from nextlong.evaluate.settings import EvaluationSettings
from nextlong.evaluate.task import Sample

pytestmark = pytest.mark.heavy
TEXTS = [
    "Harbour tide " * 90,
    "Harbour tide " * 90 + "turns the storm",
    "Oven dough crust. " * 40,
    "Captain Moss said 12345 ",
]


@pytest.fixture(scope="module")
def model(tiny_model):
    return HuggingFaceModel(
        ModelOptions(str(tiny_model), chunk_tokens=64, batch_tokens=1)
    )


def sample(text, *, tokens=12, stop=None):
    return Sample(text, ("x",), tokens, stop=stop)


def greedily(model, text, tokens=12):
    """Return the likeliest token after the prompt, and so on: plain forward passes over everything before it."""
    import torch

    ids = model.prompts.ids(sample(text))
    start = len(ids)
    while len(ids) < start + tokens:
        with torch.no_grad():
            likeliest = int(model.model(torch.tensor([ids])).logits[0, -1].argmax())
        if likeliest == model.hub_tokenizer.eos_token_id:
            break
        ids.append(likeliest)
    return model.hub_tokenizer.decode(ids[start:], skip_special_tokens=True)


def test_answers_hold_the_likeliest_tokens(model):
    expected = [greedily(model, text) for text in TEXTS]
    assert len(set(expected)) > 1
    one_by_one = [answered(model, [sample(text)])[0] for text in TEXTS]
    assert one_by_one == expected
    assert (
        answered(model, [sample(text) for text in TEXTS]) == expected
    )  # a padded batch
    assert (
        answered(model, [sample(text) for text in TEXTS[:2]]) == expected[:2]
    )  # a shared prefix


def test_a_models_own_settings_of_sampling_change_nothing(tiny_model, model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "m")
    sampling = {
        "do_sample": True,
        "temperature": 9.0,
        "repetition_penalty": 9.0,
        "eos_token_id": [1],
        "pad_token_id": 2,
    }
    (folder / "generation_config.json").write_text(json.dumps(sampling))
    other = HuggingFaceModel(ModelOptions(str(folder), chunk_tokens=64))
    assert other.model.generation_config.repetition_penalty is None
    assert answered(other, [sample(text) for text in TEXTS]) == [
        greedily(model, text) for text in TEXTS
    ]


@pytest.mark.parametrize("chunk_tokens", [1, 7, 4096])
def test_chunks_change_nothing(tiny_model, model, chunk_tokens):
    other = HuggingFaceModel(ModelOptions(str(tiny_model), chunk_tokens=chunk_tokens))
    assert answered(other, [sample(TEXTS[2])]) == [greedily(model, TEXTS[2])]


def test_what_prompts_share_is_read_once(model, monkeypatch):
    read = []
    forward = model.forward
    monkeypatch.setattr(
        model,
        "forward",
        lambda ids, cache, **inputs: (
            read.append(ids.shape[1]) or forward(ids, cache, **inputs)
        ),
    )
    answered(model, [sample(TEXTS[2], tokens=1)])
    read.clear()
    answered(model, [sample(TEXTS[0], tokens=1)])
    first = sum(read)
    read.clear()
    answered(model, [sample(TEXTS[1], tokens=1)])
    assert sum(read) < first / 10


def test_a_batch_reads_no_more_tokens_at_a_time_than_one_prompt(tiny_model, model):
    small = HuggingFaceModel(ModelOptions(str(tiny_model), chunk_tokens=64))
    read = []
    small.model.register_forward_pre_hook(
        lambda _, __, inputs: read.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    asked = [sample(text) for text in (TEXTS[0], TEXTS[2], TEXTS[3])]
    assert answered(small, asked) == [greedily(model, one.prompt) for one in asked]
    assert max(read) <= 64
    assert sum(read) > 2 * 64


def test_the_planned_cache_is_the_one_that_stands(model):
    ids = model.prompts.ids(sample(TEXTS[0]))
    cache = model.prefilled(ids)
    held = sum(
        part.nbytes for layer in cache.layers for part in (layer.keys, layer.values)
    )
    dtype, weights, cache_bytes = needed_bytes(
        model.config, ModelOptions(model.identity()["name"]), len(ids)
    )
    assert (dtype, cache_bytes) == ("float32", held)
    assert weights == pytest.approx(
        sum(weight.nbytes for weight in model.model.parameters()), rel=0.2
    )


def test_bos_stands_once(model):
    plain = model.prompts.ids(sample("Harbour"))
    assert plain[0] == 0
    assert plain[1] != 0
    assert model.prompts.ids(sample("<bos>Harbour")) == plain


def test_answers_end_at_their_limit_and_at_a_stop(model):
    (answer,) = answered(model, [sample(TEXTS[3], tokens=30)])
    assert answer == greedily(model, TEXTS[3], tokens=30)
    letter = answer[5]
    (stopped,) = answered(model, [sample(TEXTS[3], tokens=30, stop=letter)])
    assert stopped == answer.split(letter)[0]
    # In a batch with a longer answer, too: nothing is written behind the stop.
    asked = [sample(TEXTS[3], tokens=30, stop=letter), sample(TEXTS[2], tokens=30)]
    written, longer = model._generated([model.prompts.ids(one) for one in asked], asked)
    assert len(written) < len(longer)
    assert letter in model.hub_tokenizer.decode(written[-4:])
    assert letter not in model.hub_tokenizer.decode(written[:-1])


def test_layers_can_be_spread_over_devices(tiny_model, monkeypatch):
    """On a machine without GPUs accelerate puts them all onto the CPU; the answers are the same."""
    from transformers import AutoModelForCausalLM

    asked, load = [], AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM,
        "from_pretrained",
        lambda *args, **how: asked.append(how.get("device_map")) or load(*args, **how),
    )
    plain, spread = (
        HuggingFaceModel(ModelOptions(str(tiny_model), device=device))
        for device in ("cpu", "sharded")
    )
    assert asked == [None, "auto"]
    assert answered(spread, [sample(TEXTS[0])]) == answered(plain, [sample(TEXTS[0])])


def test_the_context_is_the_configurations_unless_the_user_names_one(tiny_model):
    assert HuggingFaceModel(ModelOptions(str(tiny_model))).context == 4096
    assert HuggingFaceModel(ModelOptions(str(tiny_model), context=100)).context == 100


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(EvaluateError, match=r"config\.json") as error:
        HuggingFaceModel(ModelOptions(str(tmp_path)))
    assert error.value.where == str(tmp_path)
    for kind in ("no-such-type", "clip"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(EvaluateError, match=kind) as error:
            HuggingFaceModel(ModelOptions(str(tmp_path)))
        assert error.value.where == str(tmp_path)


def test_a_device_that_is_not_there_is_told(tiny_model, monkeypatch):
    import torch

    def to(*_):
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.nn.Module, "to", to)
    with pytest.raises(EvaluateError, match="--device cuda --dtype auto") as error:
        HuggingFaceModel(ModelOptions(str(tiny_model), device="cuda"))
    assert error.value.where == str(tiny_model)


def test_other_weights_and_another_tokenizer_are_another_model(tiny_model, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "m"
    shutil.copytree(tiny_model, folder)
    first = HuggingFaceModel(ModelOptions(str(folder))).identity()
    (folder / "README.md").write_text("no part of the model")
    assert HuggingFaceModel(ModelOptions(str(folder))).identity() == first
    trained = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        trained.lm_head.weight[0, 0] += 1
    trained.save_pretrained(folder)
    second = HuggingFaceModel(ModelOptions(str(folder))).identity()
    assert {key for key in first if first[key] != second[key]} == {"weights"}
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"<eos>"', '"<end>"'))
    (folder / "tokenizer_config.json").write_text(
        (folder / "tokenizer_config.json").read_text().replace('"<eos>"', '"<end>"')
    )
    third = HuggingFaceModel(ModelOptions(str(folder))).identity()
    assert {key for key in second if second[key] != third[key]} == {
        "weights",
        "tokenizer",
    }


def test_no_memory_left_is_told_with_its_cures(model, tmp_path, monkeypatch):
    import torch

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(model, "prefilled", full)
    task = replace(all_tasks()["json_kv"], make=lambda _: iter([sample("Harbour")]))
    asked = EvaluationSettings(
        [task],
        (4096,),
        tmp_path / "r",
        DataFiles(None),
        ModelOptions("model"),
        samples=1,
    )
    with pytest.raises(EvaluateError, match="out of memory") as error:
        evaluate(
            lambda: model, asked, progress=TaskProgress(Console(file=io.StringIO()))
        )
    assert error.value.where == "json_kv at 4,096 tokens"
    assert "--chunk-tokens" in error.value.fix
