"""Trainings of a model so small that a step takes a fraction of a second."""

import pytest
import yaml

from nextlong import pipeline

SMALL = {
    "model.scratch": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "layers": 2,
        "heads": 2,
        "key_value_heads": 1,
    },
    "training.tokens_per_step": 4096,
    "training.steps": 6,
    "training.warmup_steps": 2,
    "training.lr": 1e-2,
    "training.precision": "fp32",
    "data.validation": 0.3,
    "checkpoints.every_steps": 2,
    "held_out.every_steps": 3,
    "held_out.rows": 2,
    "memory.checkpointing": "none",
}


@pytest.fixture(scope="session")
def ended_run(recipe_for, started, tmp_path_factory):
    """A run whose sequences end in EOS, which Megatron wants."""
    run_dir = started(tmp_path_factory.mktemp("ended") / "run")
    pipeline.run(
        recipe_for(run_dir, "tokenizer.eos=<|endoftext|>", "export.formats=[parquet]")
    )
    return run_dir


@pytest.fixture(scope="session")
def standard_run(recipe_for, started, tmp_path_factory):
    run_dir = started(tmp_path_factory.mktemp("standard") / "run")
    pipeline.run(recipe_for(run_dir, "compose.method=standard"))
    return run_dir


@pytest.fixture
def train_recipe(shared_run, tmp_path):
    """A function of keys and values that returns a small training recipe over the shared run."""
    from nextlong.train.recipe import TrainRecipe

    def recipe(changes=None, *, out="trained"):
        keys = {**SMALL, **(changes or {})}
        data = {"out": str(tmp_path / out), "data": {"runs": [str(shared_run)]}}
        overrides = [
            f"{key}={yaml.safe_dump(value, default_flow_style=True, width=10_000).split(chr(10))[0]}"
            for key, value in keys.items()
        ]
        return TrainRecipe.from_dict(data, overrides=overrides)

    return recipe


@pytest.fixture
def quiet():
    """A console that says nothing."""
    from rich.console import Console

    return Console(quiet=True)


@pytest.fixture(autouse=True)
def one_thread():
    """As in the processes that are compared with this one: sums of floats depend on the number of threads."""
    try:
        import torch
    except ImportError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def llama(tmp_path, shared_run):
    """A folder with a small Llama and the run's tokenizer, which writes conversations."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = LlamaConfig(vocab_size=512, max_position_embeddings=1024, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "llama")
    (path,) = shared_run.glob("*-tokenizer-*/*.tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
    tokenizer.chat_template = (
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path / "llama")
    return str(tmp_path / "llama")
