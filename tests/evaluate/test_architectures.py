"""Kinds of models whose answers must be those of a plain `generate`: every type of RoPE, and models without a usual attention or cache."""

import json
import shutil

import pytest
from tests.support.answering_models import answered

from nextlong.errors import EvaluateError
from nextlong.evaluate.engines import HuggingFaceModel, context_of
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.registry import registered
from nextlong.evaluate.task import Sample

pytestmark = pytest.mark.heavy
CONTEXT = 128  # before RoPE scaling
ROPE = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": CONTEXT,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": CONTEXT,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [1.0, 2.0, 8.0, 32.0],
        "original_max_position_embeddings": CONTEXT,
        "factor": 4.0,
    },
}
TEXTS = [
    "Harbour tide " * 80,
    "Oven dough crust. " * 20,
    "Captain Moss said 12345 " * 4,
]


def saved(folder, tiny_model, config):
    """Save a random model of a configuration beside the tokenizer of the tiny one."""
    import torch
    from transformers import AutoModelForCausalLM

    shutil.copytree(
        tiny_model, folder, ignore=shutil.ignore_patterns("model*", "config*")
    )
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_matrix = weight.ndim >= 2 and "embed" not in name
            if is_matrix and "A_log" not in name and "conv" not in name:
                # Sharp enough that the greedy choice is no tie.
                weight.mul_(8)
    model.save_pretrained(folder)
    return folder


def small(kind, **values):
    import transformers

    shape = {
        "vocab_size": 2000,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    return getattr(transformers, kind)(**{**shape, **values})


def plain_answer(model, ids, tokens):
    """Return what `generate` of a newly loaded model continues with."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    plain = AutoModelForCausalLM.from_pretrained(
        model.identity()["name"], dtype="float32"
    ).eval()
    plain.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=1, pad_token_id=1
    )
    read = torch.tensor([ids])
    written = plain.generate(
        read, attention_mask=torch.ones_like(read), max_new_tokens=tokens
    )
    return model.hub_tokenizer.decode(written[0, len(ids) :], skip_special_tokens=True)


def cut(model, tokens):
    """Return a sample of exactly some tokens."""
    text = TEXTS[0] + TEXTS[1] * 9
    for _, end in model.tokenizer.boundaries(text)[tokens - 2 :]:
        sample = Sample(text[:end], ("x",), 12)
        if len(model.prompts.ids(sample)) == tokens:
            return sample
    raise AssertionError(f"no part of the text has {tokens} tokens")


@pytest.fixture(params=ROPE)
def stretched(request, tiny_model, tmp_path):
    """The folder of a model with a type of RoPE, whose context is 512 tokens."""
    rope = {"rope_theta": 1e4, **ROPE[request.param]}
    is_dynamic = request.param == "dynamic"
    config = small(
        "LlamaConfig",
        max_position_embeddings=CONTEXT if is_dynamic else 4 * CONTEXT,
        rope_parameters=rope,
    )
    return saved(tmp_path / "m", tiny_model, config)


@pytest.mark.parametrize("chunk_tokens", [32, 4096])
def test_answers_are_those_of_generate_whatever_the_rope(stretched, chunk_tokens):
    model = HuggingFaceModel(
        ModelOptions(str(stretched), dtype="float32", chunk_tokens=chunk_tokens)
    )
    # Across the switch of factors, at it, and below it after a longer prompt.
    lengths = (3 * CONTEXT, CONTEXT - 4, CONTEXT, CONTEXT + 1, 40)
    samples = [cut(model, tokens) for tokens in lengths]
    expected = [plain_answer(model, model.prompts.ids(one), 12) for one in samples]
    assert len(set(expected)) > 1
    assert answered(model, samples) == expected
    assert [answered(model, [one])[0] for one in samples] == expected


def test_yarn_stretches_the_original_context(tiny_model):
    def context(**values):
        config = small("LlamaConfig", **values)
        return context_of(config, ModelOptions(str(tiny_model)))

    rope = {"rope_theta": 1e4, **ROPE["yarn"]}
    assert context(max_position_embeddings=CONTEXT, rope_parameters=rope) == 512
    assert context(max_position_embeddings=512, rope_parameters=rope) == 512
    rope["original_max_position_embeddings"] = 100
    assert context(max_position_embeddings=CONTEXT, rope_parameters=rope) == 400
    rope = {"rope_theta": 1e4, **ROPE["llama3"]}
    assert context(max_position_embeddings=4096, rope_parameters=rope) == 4096


KINDS = {
    "GptOssConfig": {
        "head_dim": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "sliding_window": 64,
    },
    "Gemma2Config": {"head_dim": 8, "sliding_window": 64},
    "MambaConfig": {"state_size": 4},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_read_with_the_attention_that_it_supports(
    kind, tiny_model, tmp_path
):
    folder = saved(tmp_path / "m", tiny_model, small(kind, **KINDS[kind]))
    model = HuggingFaceModel(
        ModelOptions(str(folder), dtype="float32", chunk_tokens=32)
    )
    samples = [Sample(text, ("x",), 12) for text in TEXTS]
    expected = [plain_answer(model, model.prompts.ids(one), 12) for one in samples]
    assert len(set(expected)) > 1
    assert answered(model, samples) == expected


def test_probes_that_read_a_text_in_parts_refuse_a_model_that_cannot(
    tiny_model, tmp_path
):
    config = small("MambaConfig", **KINDS["MambaConfig"])
    model = HuggingFaceModel(
        ModelOptions(str(saved(tmp_path / "m", tiny_model, config)))
    )
    for name in ("attention", "dependency"):
        with pytest.raises(EvaluateError) as error:
            registered()[name].check_model(model, tmp_path)
        assert error.value.where == name


def test_an_attention_that_the_model_lacks_is_named(tiny_model, tmp_path):
    config = small("GptOssConfig", **KINDS["GptOssConfig"])
    folder = saved(tmp_path / "m", tiny_model, config)
    with pytest.raises(EvaluateError, match="--attention sdpa") as error:
        HuggingFaceModel(ModelOptions(str(folder), attention="sdpa"))
    assert error.value.where == str(folder)


def changed(tiny_model, folder, change):
    """Copy the tiny model with its weights changed."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_model, folder)
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_a_weight_that_holds_nan_is_named(tiny_model, tmp_path):
    name = "model.layers.1.mlp.down_proj.weight"

    def broken(weights):
        weights[name][0, 0] = float("nan")
        return weights

    with pytest.raises(EvaluateError, match=name) as error:
        HuggingFaceModel(ModelOptions(changed(tiny_model, tmp_path / "m", broken)))
    assert error.value.where == str(tmp_path / "m")


def test_a_layer_that_is_missing_is_named(tiny_model, tmp_path):
    def lacking(weights):
        return {name: weight for name, weight in weights.items() if ".2." not in name}

    with pytest.raises(EvaluateError, match=r"lacks 9 weights .+model\.layers\.2\."):
        HuggingFaceModel(ModelOptions(changed(tiny_model, tmp_path / "m", lacking)))


def test_overflow_in_float16_is_no_answer(tiny_model, tmp_path):
    def great(weights):
        for name in ("up_proj", "down_proj"):
            weights[f"model.layers.0.mlp.{name}.weight"] *= 3000
        return weights

    folder = changed(tiny_model, tmp_path / "m", great)
    samples = [Sample(text, ("x",), 4) for text in TEXTS]
    assert len(answered(HuggingFaceModel(ModelOptions(folder)), samples)) == 3
    model = HuggingFaceModel(ModelOptions(folder, dtype="float16"))
    for asked in (samples, samples[:1]):
        with pytest.raises(EvaluateError, match="NaN or infinity in float16") as error:
            answered(model, asked)
        assert error.value.where == "--dtype float16"
        assert "--dtype bfloat16" in error.value.fix


def test_a_type_that_holds_no_such_weight_is_named(tiny_model, tmp_path):
    def great(weights):
        weights["model.layers.0.mlp.up_proj.weight"] *= 1e6
        return weights

    folder = changed(tiny_model, tmp_path / "m", great)
    with pytest.raises(EvaluateError, match=r"up_proj.+float16") as error:
        HuggingFaceModel(ModelOptions(folder, dtype="float16"))
    assert "--dtype" in error.value.fix


def test_batches_of_like_length_give_the_answers_of_one_by_one(tiny_model):
    def model(batch_tokens):
        return HuggingFaceModel(
            ModelOptions(str(tiny_model), batch_tokens=batch_tokens)
        )

    words = [
        "Harbour",
        "tide",
        "oven",
        "dough",
        "crust",
        "Captain",
        "Moss",
        "said",
        "storm",
        "turns",
    ]
    samples = [
        Sample(" ".join(words[number % 7 :] * (1 + number % 4)), ("x",), 8)
        for number in range(24)
    ]
    together = model(400)
    sizes = []
    generated = together._generated
    together._generated = lambda prompts, asked: (
        sizes.append([len(ids) for ids in prompts]) or generated(prompts, asked)
    )
    assert answered(together, samples) == answered(model(1), samples)
    assert max(map(len, sizes)) > 4
    assert all(len(batch) * max(batch) <= 400 for batch in sizes)


def test_the_batches_of_a_resumed_task_are_those_of_a_whole_one(tiny_model):
    model = HuggingFaceModel(ModelOptions(str(tiny_model), batch_tokens=100))
    samples = list(enumerate(Sample(f"{word} tide", ("x",), 3) for word in "abcdefghi"))
    first = [number for number, _, _ in model.answers(samples)]
    resumed = [number for number, _, _ in model.answers(samples, done=first[:-1])]
    assert first[-1] in resumed
    assert sorted(first) == list(range(9))
    assert not list(model.answers(samples, done=first))


def test_a_configuration_of_an_unknown_rope_is_still_read(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] = None
    (folder / "config.json").write_text(json.dumps(config))
    assert HuggingFaceModel(ModelOptions(str(folder))).context == 4096
