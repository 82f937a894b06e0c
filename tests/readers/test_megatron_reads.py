"""megatron-core: its `IndexedDataset` reads the pairs, its `IndexedDatasetBuilder` writes the same bytes."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.exported_rows import documents_in, exported
from tests.support.random_rows import documents_of, options, random_blocks

from nextlong.export.formats import megatron

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"

pytestmark = [
    pytest.mark.readers,
    pytest.mark.filterwarnings("ignore"),
]  # not ours to mend


@pytest.fixture(scope="module")
def indexed():
    from megatron.core.datasets import indexed_dataset

    return indexed_dataset


@pytest.fixture(params=[1, 4], ids=["single", "packed"])
def per_row(request):
    return request.param


@pytest.mark.parametrize("eod", [None, 2])
@pytest.mark.parametrize("vocab_size", [300, 65_499, 65_500, 128_256])
def test_its_dataset_reads_the_same_documents(
    indexed, per_row, tmp_path, vocab_size, eod
):
    blocks = random_blocks(vocab_size, rows=50, vocabulary=vocab_size, per_row=per_row)
    counts = megatron.FORMAT.write(
        tmp_path / "part-00000",
        blocks,
        options(vocab_size=vocab_size, megatron_eod=eod),
    )
    expected = [
        ids + [eod] * (eod is not None and ids[-1] != eod)
        for ids in documents_of(blocks)
    ]
    for mmap in (True, False):
        dataset = indexed.IndexedDataset(str(tmp_path / "part-00000"), mmap=mmap)
        assert dataset.index.dtype == indexed.DType.optimal_dtype(vocab_size)
        assert [dataset[number].tolist() for number in range(len(dataset))] == expected
        assert dataset.sequence_lengths.tolist() == [len(ids) for ids in expected]
        assert dataset.document_indices.tolist() == list(range(len(expected) + 1))
        assert counts.tokens == dataset.sequence_lengths.sum()


@pytest.mark.parametrize("vocab_size", [300, 128_256])
def test_its_builder_writes_the_same_bytes(indexed, per_row, tmp_path, vocab_size):
    import torch

    blocks = random_blocks(7, rows=50, vocabulary=vocab_size, per_row=per_row)
    megatron.FORMAT.write(tmp_path / "ours", blocks, options(vocab_size=vocab_size))
    builder = indexed.IndexedDatasetBuilder(
        str(tmp_path / "theirs.bin"), indexed.DType.optimal_dtype(vocab_size)
    )
    for ids in documents_of(blocks):
        builder.add_document(torch.tensor(np.array(ids)), [len(ids)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (
            tmp_path / f"theirs{suffix}"
        ).read_bytes()


def test_it_takes_the_blend(indexed, tmp_path):
    from megatron.core.datasets.utils import get_blend_from_list

    blocks = random_blocks(3, rows=30)
    shards = [(f"part-{shard:05}", blocks[shard::3]) for shard in range(3)]
    counts = [
        megatron.FORMAT.write(tmp_path / name, own, options()) for name, own in shards
    ]
    megatron.FORMAT.close(tmp_path, counts)
    prefixes, weights = get_blend_from_list(
        (tmp_path / "blend.txt").read_text().split()
    )
    found = [indexed.IndexedDataset(str(tmp_path / prefix)) for prefix in prefixes]
    assert weights == [dataset.sequence_lengths.sum() for dataset in found]
    in_shards = [block for _, own in shards for block in own]
    assert [
        dataset[number].tolist() for dataset in found for number in range(len(dataset))
    ] == documents_of(in_shards)


def opened(indexed, folder):
    """Return every pair of an export as Megatron reads it, in the order of its blend."""
    lines = (folder / "blend.txt").read_text().split("\n")[:-1]
    return [indexed.IndexedDataset(str(folder / line.split()[1])) for line in lines]


@exported("megatron")
def test_its_dataset_reads_the_exports_of_a_run(indexed, folder, reference):
    datasets = opened(indexed, folder)
    found = [
        dataset[number].tolist()
        for dataset in datasets
        for number in range(len(dataset))
    ]
    assert found == documents_in(reference)


@exported("megatron", splits=["train"])
def test_each_of_its_training_samples_is_one_document(indexed, folder, reference):
    """As docs/train/megatron.md says: whole, with nothing learnt at its EOS, and the last in the shuffled order left out."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.utils import Split

    expected = documents_in(reference)
    eos = expected[0][-1]
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=len(expected[0]),
        tokenizer=SimpleNamespace(
            eod=eos, pad=eos, vocab_size=128_256, unique_identifiers={}
        ),
        split="1,0,0",
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=True,
        create_attention_mask=False,
    )
    datasets = opened(indexed, folder)
    assert max(map(len, datasets)) > 1
    for dataset in datasets:
        documents = np.arange(len(dataset), dtype=np.int32)
        samples = (
            list(GPTDataset(dataset, str(folder), documents, None, Split.train, config))
            if len(documents) > 1
            else []
        )
        found = [sample["tokens"].tolist() for sample in samples]
        own = [dataset[number].tolist() for number in documents]
        assert len(found) == len(own) - 1
        assert all(ids in own for ids in found)
        assert len(set(map(tuple, found))) == len(found)
        assert [sample["loss_mask"].tolist().index(0) for sample in samples] == [
            len(own[0]) - 1
        ] * len(samples)


@exported("megatron", splits=["train"])
def test_every_file_of_an_export_has_a_sample(indexed, folder, reference):
    """Megatron asserts that each prefix it is given without a weight has one."""
    datasets = opened(indexed, folder)
    for dataset in datasets:
        tokens = int(dataset.sequence_lengths.sum())
        assert (tokens - 1) // dataset.sequence_lengths[0] > 0


@exported("megatron", splits=["train"])
def test_it_reads_an_export_as_the_page_says(
    indexed, folder, reference, monkeypatch, tmp_path
):
    blocks = re.findall(
        r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL
    )
    (block,) = [block for block in blocks if "RUN/data/megatron" in block]
    (tmp_path / "RUN" / "data").mkdir(parents=True)
    (tmp_path / "RUN" / "data" / "megatron").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block, names)
    assert names["documents"][0].tolist() == documents_in(reference)[0]
