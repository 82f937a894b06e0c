"""A tiny Llama learns the same from SequenceDataset as from the exported files."""

import pytest

import nextlong

pytestmark = pytest.mark.heavy

STEPS, VOCABULARY = 20, 512


@pytest.fixture(scope="module")
def expected(shared_run):
    from datasets import load_dataset
    from tests.support.tiny_llama import losses

    files = [str(path) for path in nextlong.open(shared_run).exported("parquet")]
    rows = load_dataset("parquet", data_files=files, split="train", streaming=True)
    return losses(
        rows.select_columns(["input_ids"]), steps=STEPS, vocabulary=VOCABULARY
    )


def test_twenty_steps_from_parquet_bring_the_loss_down(expected):
    assert len(expected) == STEPS
    assert expected[-1] < expected[0] - 0.2


def test_the_same_losses_row_by_row(shared_run, expected):
    from tests.support.tiny_llama import losses

    from nextlong.torch import SequenceDataset

    dataset = SequenceDataset(shared_run)
    rows = (dataset[number] for number in range(len(dataset)))
    assert losses(rows, steps=STEPS, vocabulary=VOCABULARY) == expected


def test_the_same_losses_through_a_loader_with_workers(shared_run, expected):
    from tests.support.tiny_llama import losses
    from torch.utils.data import DataLoader

    from nextlong.torch import SequenceDataset

    stream = SequenceDataset(shared_run).stream(order="arranged")
    assert (
        losses(
            DataLoader(stream, batch_size=None, num_workers=2),
            steps=STEPS,
            vocabulary=VOCABULARY,
        )
        == expected
    )


def test_a_packed_row_costs_what_its_sequences_cost(shared_run):
    """transformers keeps attention within a sequence by `position_ids`, and no loss is taken from one to the next."""
    import torch
    from tests.support.tiny_llama import tiny_llama

    from nextlong.torch import SequenceDataset, collate

    model = tiny_llama(VOCABULARY)
    alone, packed = (
        SequenceDataset(shared_run),
        SequenceDataset(shared_run, pack=3 * 2048),
    )
    with torch.no_grad():
        each = [model(**collate([alone[number]])).loss.item() for number in range(3)]
        together = model(**collate([packed[0]], layout="flat")).loss.item()
    assert together == pytest.approx(sum(each) / 3, abs=1e-5)


def test_the_trainer_of_transformers_reads_it(shared_run, expected, tmp_path):
    from tests.support.tiny_llama import tiny_llama
    from transformers import Trainer, TrainingArguments

    from nextlong.torch import SequenceDataset, collate

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        save_steps=1,
    )
    trainer = Trainer(
        tiny_llama(VOCABULARY),
        arguments,
        train_dataset=SequenceDataset(shared_run),
        data_collator=collate,
    )
    assert trainer.train().training_loss < expected[0] + 1
    assert (tmp_path / "checkpoint-2").is_dir()
