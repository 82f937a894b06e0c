import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from damage import (
    change_array,
    files,
    first_sequence,
    spans_of,
)
from nextlong.schemas import META, ROW_MASK, SHARD_BITS
from nextlong.verify.checks import verify


@pytest.fixture
def run(finished, tmp_path):
    """A copy to damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def breaches(run, **options):
    """Return what each check that found a breach says first."""
    return {outcome.check: outcome.examples[0] for outcome in verify(run, **options) if outcome.breaches}


def test_a_changed_token(run):
    chunk = first_sequence(run)["chunk_id"][spans_of(first_sequence(run), META)[0]]
    shard, row = chunk >> SHARD_BITS, chunk & ROW_MASK
    place = np.searchsorted(np.load(files(run, "named_chunks", ".rows.npy")[shard]), row)
    at = np.load(files(run, "tokens", ".offsets.npy")[shard])[place] + 2

    def alter(ids):
        ids[at] = 5 if ids[at] != 5 else 6

    change_array(files(run, "tokens", ".ids.npy")[shard], alter)
    found = breaches(run)
    assert f"chunk {chunk}: token 2 is " in found["token ids"]
    assert f"chunk {chunk} at character" in found["decoded text"]
    assert "row 0: input_ids[" in found["parquet rows"]
    assert "hashes" not in found


def test_wrong_joints_of_the_tokenizer(run):
    path = files(run, "tokenizer", "manifest.json")[0]
    manifest = json.loads(path.read_text())
    manifest["parts"][0]["counts"]["joint_ids"] = [7]
    path.write_text(json.dumps(manifest))
    assert "joint_ids is [7]" in breaches(run)["token ids"]
