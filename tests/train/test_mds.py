"""Rows of MDS shards are those of the run that they were exported from."""

import itertools
import json
import shutil

import numpy as np
import pytest

import nextlong
from nextlong.errors import CorpusError, RecipeError
from nextlong.runs.export import export

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module", params=["none", "zstd"])
def exported(request, shared_run, tmp_path_factory):
    """A folder of several shards with three sequences to a row, of a run of its own."""
    run_dir = tmp_path_factory.mktemp("mds") / "run"
    shutil.copytree(shared_run, run_dir)
    keys = {"export.pack": 3 * 2048, "export.compression": request.param, "export.shard_mb": 0.06}
    export([run_dir], formats=["mds"], overrides=[f"{key}={value}" for key, value in keys.items()])
    (folder,) = {path.parent for path in run_dir.glob("*-mds-*/index.json")}
    return folder


def rows_of(*folders, split="train", **data):
    from nextlong.train.recipe import Data
    from nextlong.train.rows import TrainingRows, source_of

    keys = {"validation": 0.0, "mds": tuple(map(str, folders)), **data}
    return TrainingRows(source_of(Data(**keys), split=split, tokenizer=None), attention="sequence")


def test_rows_and_borders_are_those_of_the_run(exported, shared_run):
    rows = rows_of(exported)
    sequences = {tuple(sequence.input_ids) for sequence in nextlong.open(shared_run).sequences()}
    seen = set()
    for number in range(len(rows)):
        row = rows[number]
        ids, bounds = row.input_ids.numpy(), row.bounds.tolist()
        assert bounds[-1] == len(ids) == 3 * 2048
        seen |= {tuple(ids[first:last].tolist()) for first, last in itertools.pairwise(bounds)}
    assert len(json.loads((exported / "index.json").read_bytes())["shards"]) > 1
    assert seen
    assert seen <= sequences
    assert rows.source.row_tokens == 3 * 2048
    assert rows.source.sequence_tokens == 2048
    assert rows.source.fingerprint == rows_of(exported).source.fingerprint


def test_the_sides_of_the_split_share_nothing(exported):
    sides = [rows_of(exported, split=split, validation=0.5) for split in ("train", "validation")]
    held = [{bytes(np.asarray(side[row].input_ids)) for row in range(len(side))} for side in sides]
    assert sum(map(len, held)) == len(rows_of(exported))
    assert not held[0] & held[1]


def test_what_cannot_be_read_is_named_with_its_cure(exported, tmp_path):
    with pytest.raises(RecipeError, match=r"index\.json cannot be read \(No such file or directory\); name folders of"):
        rows_of(tmp_path)
    index = json.loads((exported / "index.json").read_bytes())
    (tmp_path / "index.json").write_text('{"shards": [1]}')
    with pytest.raises(RecipeError, match=r"it is not an index of MDS shards"):
        rows_of(tmp_path)
    index["shards"][0]["column_names"].append("more")
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(RecipeError, match=r"it is not an index of MDS shards"):
        rows_of(tmp_path)
    index["shards"][0]["column_names"].pop()
    for shard in index["shards"]:
        shard["column_encodings"] = ["pkl" for _ in shard["column_encodings"]]
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(RecipeError, match=r"input_ids encoded as pkl, .*; this reads ndarray, plain or by zstd"):
        rows_of(tmp_path)


def test_a_shard_that_was_cut_short(exported, tmp_path):
    (tmp_path / "index.json").write_bytes((exported / "index.json").read_bytes())
    for path in exported.glob("shard.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RecipeError, match=r"shard\.0000\d\.mds.*; export it again"):
        rows_of(tmp_path)[0]


def test_too_few_rows_for_a_side(exported):
    with pytest.raises(
        CorpusError, match=r"data\.mds leaves no row for validation; change data\.validation, or export more"
    ):
        rows_of(exported, split="validation", validation=1e-9)
