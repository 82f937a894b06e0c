"""What context parallelism wants of documents: their borders, and a multiple of 2 · ranks tokens each."""

import pytest

from nextlong import pipeline
from nextlong.errors import RecipeError

pytestmark = pytest.mark.heavy

EVERYTHING = (
    "input_ids",
    "labels",
    "position_ids",
    "cu_seqlens",
    "cu_seqlens_padded",
    "max_seqlen",
    "seq_lengths",
)


@pytest.fixture(scope="module")
def concatenated(recipe_for, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("concatenated") / "run"
    pipeline.run(
        recipe_for(
            run_dir,
            "compose.method=standard",
            "tokenizer.bos=<|endoftext|>",
            "export.boundaries=document",
        )
    )
    return run_dir


def dataset(run, **options):
    from nextlong.torch import SequenceDataset

    return SequenceDataset(run, **options)


def test_documents_are_those_of_the_export(concatenated):
    import pyarrow.parquet as pq

    (folder,) = concatenated.glob("*-parquet-*")
    exported = (
        pq.read_table(sorted(folder.glob("*.parquet")))
        .column("seq_lengths")
        .to_pylist()
    )
    rows = dataset(concatenated, boundaries="document", columns=["seq_lengths"])
    assert [row["seq_lengths"].tolist() for row in rows] == exported


@pytest.mark.parametrize("multiple", [1, 4, 16, 48])
def test_each_document_is_padded_to_the_multiple(concatenated, multiple):
    import torch

    options = {"boundaries": "document", "pack": 4096}
    plain = dataset(concatenated, **options, columns=["input_ids", "seq_lengths"])
    padded = dataset(
        concatenated, **options, pad_documents_to=multiple, pad_id=7, columns=EVERYTHING
    )
    for row, wide in zip(plain, padded, strict=True):
        assert wide["seq_lengths"].tolist() == row["seq_lengths"].tolist()
        assert wide["cu_seqlens"].diff().tolist() == row["seq_lengths"].tolist()
        rooms = wide["cu_seqlens_padded"].diff()
        assert (rooms % multiple == 0).all()
        assert ((rooms - row["seq_lengths"]) < multiple).all()
        assert wide["max_seqlen"] == rooms.max()
        documents = zip(
            *(
                wide[name].split(rooms.tolist())
                for name in ("input_ids", "labels", "position_ids")
            ),
            strict=True,
        )
        for (ids, labels, positions), true in zip(
            documents, row["input_ids"].split(row["seq_lengths"].tolist()), strict=True
        ):
            beyond = len(ids) - len(true)
            assert torch.equal(ids, torch.nn.functional.pad(true, (0, beyond), value=7))
            assert torch.equal(labels[1 : len(true)], true[1:])
            assert set(labels[[0, *range(len(true), len(ids))]].tolist()) == {-100}
            assert positions.tolist() == list(range(len(ids)))


@pytest.mark.parametrize("eos", ["<|endoftext|>", "null"])
def test_rows_are_padded_like_those_of_an_export(recipe_for, tmp_path, eos):
    import pyarrow.parquet as pq

    run_dir = tmp_path / "run"
    settings = ["compose.method=standard", f"tokenizer.eos={eos}"]
    padding = [
        "export.formats=[parquet]",
        "export.boundaries=document",
        "export.pad_documents_to=48",
    ]
    pipeline.run(recipe_for(run_dir, *settings, *padding))
    files = sorted(run_dir.glob("*-parquet-*/*.parquet"))
    columns = ["input_ids", "labels", "seq_lengths"]
    exported = pq.read_table(files, columns=columns).to_pylist()
    padded = dataset(
        run_dir, boundaries="document", pad_documents_to=48, columns=columns
    )
    rows = [{name: row[name].tolist() for name in columns} for row in padded]
    assert rows == exported
    longest_row = max(rows, key=lambda row: len(row["input_ids"]))
    is_padding = len(longest_row["input_ids"]) > sum(longest_row["seq_lengths"])
    assert is_padding
    assert longest_row["input_ids"][-1] == padded.pad_id


def test_labels_alone_are_padded_too(concatenated):
    import torch

    options = {"boundaries": "document", "pad_documents_to": 16}
    together, alone = (
        dataset(concatenated, **options),
        dataset(concatenated, **options, columns=["labels"]),
    )
    assert torch.equal(together[3]["labels"], alone[3]["labels"])


def test_rows_of_padded_documents_are_laid_out_flat(concatenated):
    from nextlong.torch import collate

    rows = [
        row
        for _, row in zip(
            range(3),
            dataset(concatenated, pad_documents_to=5, columns=EVERYTHING),
            strict=False,
        )
    ]
    batch = collate(rows, layout="flat")
    assert batch["cu_seqlens_padded"][-1] == batch["input_ids"].shape[1]
    assert batch["cu_seqlens"].diff().tolist() == batch["seq_lengths"].tolist()
    assert len(batch["cu_seqlens"]) == len(batch["cu_seqlens_padded"])
    shorter = dataset(
        concatenated, boundaries="document", pad_documents_to=48, columns=EVERYTHING
    )
    with pytest.raises(RecipeError, match="different lengths"):
        collate([shorter[number] for number in range(4)])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"boundaries": "chunk"}, "boundaries='chunk'"),
        ({"pad_documents_to": 0}, "2 · the"),
    ],
)
def test_mistakes(concatenated, options, told):
    with pytest.raises(RecipeError, match=told):
        dataset(concatenated, **options)
