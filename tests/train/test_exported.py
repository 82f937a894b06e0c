"""Rows of Parquet are those of the run that they were exported from."""

import shutil

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


def test_too_few_rows_for_a_side(tmp_path):
    rows = (written(tmp_path / "rows.parquet", [4, 4]),)
    with pytest.raises(CorpusError, match=r"data\.parquet leaves no row for train; change data\.validation, or export"):
        rows_of("", "row", runs=(), parquet=rows, validation=0.999999)


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
