"""Rows of Parquet and MDS are those of the run that they were exported from."""

import itertools
import json
import shutil

import numpy as np
import pytest

import nextlong
from nextlong.errors import CorpusError, RecipeError
from nextlong.runs.export import export

pytestmark = pytest.mark.heavy


def rows_of(run, attention, **data):
    from nextlong.train.recipe import Data
    from nextlong.train.rows import TrainingRows, source_of

    keys = {"validation": 0.0, "runs": (str(run),), **data}
    return TrainingRows(source_of(Data(**keys), split="train", tokenizer=None), attention=attention)


def test_parquet_gives_the_rows_of_the_run(shared_run, standard_run):
    for run in (shared_run, standard_run):
        files = tuple(str(path) for path in nextlong.open(run).exported("parquet"))
        straight, exported = rows_of(run, "document"), rows_of(run, "document", runs=(), parquet=files)
        assert len(straight) == len(exported)
        for number in range(len(straight)):
            one, other = straight[number], exported[number]
            assert (one.input_ids == other.input_ids).all()
            assert one.bounds.tolist() == other.bounds.tolist()
            for column in ("role", "first", "last", "sequence"):
                assert (one.spans[column] == other.spans[column]).all()


def test_train_and_validation_of_parquet_share_nothing(shared_run):
    from nextlong.train.exported import ParquetRows
    from nextlong.train.recipe import Data

    data = Data(parquet=tuple(str(path) for path in nextlong.open(shared_run).exported("parquet")), validation=0.4)
    train, validation = (ParquetRows(data, split=split) for split in ("train", "validation"))
    first, second = ({part.read(row)[0].tobytes() for row in range(len(part))} for part in (train, validation))
    assert not first & second
    assert len(first | second) == 12


def written(path, rows, *, role="document"):
    """A Parquet file of rows of these lengths, one span each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    spans = [[{"doc_id": "a", "chunk_id": 0, "role": role, "token_start": 0, "token_end": length}] for length in rows]
    pq.write_table(pa.table({"input_ids": [[7] * length for length in rows], "spans": spans}), path)
    return str(path)


def test_parquet_that_cannot_be_trained_on(tmp_path):
    (tmp_path / "no.parquet").write_text("id,text")
    with pytest.raises(RecipeError, match=r"no\.parquet cannot be read as Parquet"):
        rows_of("", "row", runs=(), parquet=(str(tmp_path / "no.parquet"),))
    mixed = rows_of("", "row", runs=(), parquet=(written(tmp_path / "mixed.parquet", [4, 6]),))
    with pytest.raises(RecipeError, match="mixes rows of 4 and 6 tokens"):
        _ = mixed.source.row_tokens
    other = rows_of("", "row", runs=(), parquet=(written(tmp_path / "other.parquet", [4, 4], role="title"),))
    with pytest.raises(RecipeError, match=r"other\.parquet has spans of role 'title'; known are meta"):
        other[0]


def test_parquet_written_anew_with_as_many_bytes_has_another_fingerprint(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def fingerprint(token):
        pq.write_table(pa.table({"input_ids": [[token] * 4] * 2}), tmp_path / "rows.parquet")
        rows = rows_of("", "row", runs=(), parquet=(str(tmp_path / "rows.parquet"),))
        return (tmp_path / "rows.parquet").stat().st_size, rows.source.fingerprint

    (size, one), (same_size, other), (_, again) = fingerprint(7), fingerprint(8), fingerprint(7)
    assert size == same_size
    assert one == again != other


@pytest.fixture(scope="module", params=["none", "zstd"])
def exported(request, shared_run, tmp_path_factory):
    """A folder of several shards with three sequences to a row, of a run of its own."""
    run_dir = tmp_path_factory.mktemp("mds") / "run"
    shutil.copytree(shared_run, run_dir)
    keys = {"export.pack": 3 * 2048, "export.compression": request.param, "export.shard_mb": 0.06}
    export([run_dir], formats=["mds"], overrides=[f"{key}={value}" for key, value in keys.items()])
    (folder,) = {path.parent for path in run_dir.glob("*-mds-*/index.json")}
    return folder


def rows_of_mds(*folders, split="train", **data):
    from nextlong.train.recipe import Data
    from nextlong.train.rows import TrainingRows, source_of

    keys = {"validation": 0.0, "mds": tuple(map(str, folders)), **data}
    return TrainingRows(source_of(Data(**keys), split=split, tokenizer=None), attention="sequence")


def test_rows_and_borders_are_those_of_the_run(exported, shared_run):
    rows = rows_of_mds(exported)
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
    assert rows.source.fingerprint == rows_of_mds(exported).source.fingerprint


def test_the_sides_of_the_split_share_nothing(exported):
    sides = [rows_of_mds(exported, split=split, validation=0.5) for split in ("train", "validation")]
    held = [{bytes(np.asarray(side[row].input_ids)) for row in range(len(side))} for side in sides]
    assert sum(map(len, held)) == len(rows_of_mds(exported))
    assert not held[0] & held[1]


def test_what_cannot_be_read_is_named_with_its_cure(exported, tmp_path):
    with pytest.raises(RecipeError, match=r"index\.json cannot be read \(No such file or directory\); name folders of"):
        rows_of_mds(tmp_path)
    index = json.loads((exported / "index.json").read_bytes())
    (tmp_path / "index.json").write_text('{"shards": [1]}')
    with pytest.raises(RecipeError, match=r"index\.json is not an index of MDS shards"):
        rows_of_mds(tmp_path)
    index["shards"][0]["column_names"].append("more")
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(RecipeError, match=r"index\.json is not an index of MDS shards"):
        rows_of_mds(tmp_path)
    index["shards"][0]["column_names"].pop()
    for shard in index["shards"]:
        shard["column_encodings"] = ["pkl" for _ in shard["column_encodings"]]
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(RecipeError, match=r"input_ids encoded as pkl, .*; this reads ndarray"):
        rows_of_mds(tmp_path)


def test_a_shard_that_was_cut_short(exported, tmp_path):
    (tmp_path / "index.json").write_bytes((exported / "index.json").read_bytes())
    for path in exported.glob("shard.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RecipeError, match=r"shard\.0000\d\.mds.*; export it again"):
        rows_of_mds(tmp_path)[0]


def test_too_few_rows_for_a_side(exported):
    with pytest.raises(
        CorpusError, match=r"data\.mds leaves no row for validation; change data\.validation, or export more"
    ):
        rows_of_mds(exported, split="validation", validation=1e-9)


def test_padded_documents_are_refused_with_the_cure(shared_run, tmp_path):
    from nextlong.train.recipe import Data
    from nextlong.train.rows import source_of

    run_dir = shutil.copytree(shared_run, tmp_path / "run")
    export([run_dir], formats=["parquet"], overrides=["export.pad_documents_to=6", "workers=1"])
    data = Data(parquet=(str(run_dir / "data" / "parquet"),), validation=0.0)
    with pytest.raises(
        RecipeError, match=r"part-00000\.parquet has padded documents, .* without export\.pad_documents_to"
    ):
        source_of(data, split="train", tokenizer=None)
