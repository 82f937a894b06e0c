"""A tiny Llama learns the same from SequenceDataset as from the exported files."""

import pytest

import nextlong

pytestmark = pytest.mark.heavy

STEPS, VOCABULARY = 20, 512


@pytest.fixture(scope="module")
def expected(shared_run):
    from datasets import load_dataset
    from tiny_llama import losses

    files = [str(path) for path in nextlong.open(shared_run).exported("parquet")]
    rows = load_dataset("parquet", data_files=files, split="train", streaming=True)
    return losses(rows.select_columns(["input_ids"]), steps=STEPS, vocabulary=VOCABULARY)


def test_twenty_steps_from_parquet_bring_the_loss_down(expected):
    assert len(expected) == STEPS
    assert expected[-1] < expected[0] - 1


def test_the_same_losses_row_by_row(shared_run, expected):
    from tiny_llama import losses

    from nextlong.torch import SequenceDataset

    dataset = SequenceDataset(shared_run)
    rows = (dataset[number] for number in range(len(dataset)))
    assert losses(rows, steps=STEPS, vocabulary=VOCABULARY) == expected


def test_the_same_losses_through_a_loader_with_workers(shared_run, expected):
    from tiny_llama import losses
    from torch.utils.data import DataLoader

    from nextlong.torch import SequenceDataset

    stream = SequenceDataset(shared_run).stream(order="arranged")
    assert losses(DataLoader(stream, batch_size=None, num_workers=2), steps=STEPS, vocabulary=VOCABULARY) == expected


def test_the_trainer_of_transformers_reads_it(shared_run, expected, tmp_path):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    from nextlong.torch import SequenceDataset, collate

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True, save_steps=1
    )
    trainer = Trainer(
        LlamaForCausalLM(config), arguments, train_dataset=SequenceDataset(shared_run), data_collator=collate
    )
    assert trainer.train().training_loss < expected[0] + 1
    assert (tmp_path / "checkpoint-2").is_dir()
