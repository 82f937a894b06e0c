"""axolotl reads the config that `nextlong train --emit` writes by its own schema."""

import os
from pathlib import Path

import pytest
import yaml

pytestmark = [
    pytest.mark.readers,
    pytest.mark.filterwarnings("ignore"),
]  # not ours to mend

CONFIGS = Path(os.environ.get("READER_CONFIGS", ""))
SEQUENCE, PACKED = 2048, 3 * 2048


@pytest.mark.parametrize(
    ("name", "row_tokens"), [("axolotl", SEQUENCE), ("axolotl-packed", PACKED)]
)
def test_axolotl_knows_every_key(name, row_tokens):
    from axolotl.utils.schemas.config import AxolotlInputConfig

    config = yaml.safe_load((CONFIGS / name / "axolotl.yaml").read_text())
    fields = AxolotlInputConfig.model_fields
    assert set(config) <= set(fields) | {field.alias for field in fields.values()}
    read = AxolotlInputConfig(**config)
    assert (read.sequence_len, read.context_parallel_size, read.micro_batch_size) == (
        row_tokens,
        4,
        1,
    )
    assert (
        read.overrides_of_model_config["rope_parameters"]["rope_theta"] == 200_000_000.0
    )
    assert (read.learning_rate, read.warmup_steps, read.max_steps) == (4e-5, 200, 1000)
