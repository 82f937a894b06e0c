"""A tiny Llama learns the same from a run itself, from `datasets` and from MDS."""

import numpy as np
import pytest
from tests.support.exported_rows import EXPORTS

pytestmark = [
    pytest.mark.readers,
    pytest.mark.filterwarnings("ignore"),
]  # not ours to mend

STEPS, VOCABULARY = 20, 512


def test_twenty_steps_from_each_reader_have_the_same_losses(streaming, tmp_path):
    from datasets import load_dataset
    from tests.support.tiny_llama import losses

    from nextlong.torch import SequenceDataset

    run = SequenceDataset(EXPORTS / "demo" / "run@plain")
    plain = EXPORTS / "demo" / "plain"
    parquet = load_dataset(
        str(plain / "parquet"),
        split="train",
        streaming=True,
        cache_dir=str(tmp_path / "datasets"),
    )
    mds = streaming.StreamingDataset(
        remote=str(plain / "mds"),
        local=str(tmp_path / "mds"),
        batch_size=1,
        shuffle=False,
    )
    ways = {
        "run": [run[number] for number in range(len(run))],
        "datasets": list(parquet.select_columns(["input_ids"])),
        "mds": [{"input_ids": sample["input_ids"].astype(np.int64)} for sample in mds],
    }
    ids = {
        name: [np.asarray(row["input_ids"]).tolist() for row in rows]
        for name, rows in ways.items()
    }
    assert ids["run"] == ids["datasets"] == ids["mds"]
    found = {
        name: losses(rows, steps=STEPS, vocabulary=VOCABULARY)
        for name, rows in ways.items()
    }
    # Where memory lies may change the last bit of a sum, and each step carries that on.
    assert found["datasets"] == pytest.approx(found["run"], rel=1e-3)
    assert found["mds"] == pytest.approx(found["run"], rel=1e-3)
    assert len(found["run"]) == STEPS
    assert found["run"][-1] < found["run"][0] - 0.2
