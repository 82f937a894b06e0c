"""torchtitan and axolotl read the configs that `nextlong train --emit` writes, by their own parsers, and torchtitan its data."""

import os
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.readers, pytest.mark.filterwarnings("ignore")]  # not ours to mend

CONFIGS = Path(os.environ.get("READER_CONFIGS", ""))
SEQUENCE, PACKED = 2048, 3 * 2048


@pytest.fixture(params=[("torchtitan", SEQUENCE), ("torchtitan-packed", PACKED)], ids=["plain", "packed"])
def titan(request, monkeypatch):
    """The config as torchtitan's command line resolves it, and the tokens of its rows."""
    from torchtitan.config import ConfigManager

    name, row_tokens = request.param
    monkeypatch.syspath_prepend(str(CONFIGS / name))
    monkeypatch.delitem(sys.modules, "nextlong_titan", raising=False)
    return ConfigManager().parse_args(["--module", "nextlong_titan", "--config", "nextlong"]), row_tokens


def test_torchtitan_takes_the_numbers(titan):
    config, row_tokens = titan
    assert config.training.seq_len == row_tokens
    assert config.training.global_batch_size * row_tokens == 393_216
    assert config.training.steps == 1000
    assert config.parallelism.context_parallel_degree == 4
    assert {layer.attention.rope.theta for layer in config.model_spec.model.layers} == {200_000_000.0}
    assert len(config.model_spec.model.layers) == 32


def test_torchtitan_loads_the_rows(titan):
    config, row_tokens = titan
    loader = config.dataloader.build(dp_world_size=1, dp_rank=0, seq_len=row_tokens, local_batch_size=1)
    inputs, labels = next(iter(loader))
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (1, row_tokens)
    starts = (inputs["positions"][0] == 0).nonzero().flatten().tolist()
    assert starts == list(range(0, row_tokens, SEQUENCE))
    known = labels[0] != -100
    assert (labels[0, :-1][known[:-1]] == inputs["input"][0, 1:][known[:-1]]).all()
    assert (~known).sum() == row_tokens // SEQUENCE  # the last token of each predicts nothing


@pytest.mark.parametrize(("name", "row_tokens"), [("axolotl", SEQUENCE), ("axolotl-packed", PACKED)])
def test_axolotl_knows_every_key(name, row_tokens):
    from axolotl.utils.schemas.config import AxolotlInputConfig

    config = yaml.safe_load((CONFIGS / name / "axolotl.yaml").read_text())
    fields = AxolotlInputConfig.model_fields
    assert set(config) <= set(fields) | {field.alias for field in fields.values()}
    read = AxolotlInputConfig(**config)
    assert (read.sequence_len, read.context_parallel_size, read.micro_batch_size) == (row_tokens, 4, 1)
    assert read.overrides_of_model_config["rope_parameters"]["rope_theta"] == 200_000_000.0
    assert (read.learning_rate, read.warmup_steps, read.max_steps) == (4e-5, 200, 1000)
