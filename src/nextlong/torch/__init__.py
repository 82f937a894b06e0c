"""Torch: the rows of finished runs as PyTorch data sets, collated into batches.

    # Map-style: len(dataset), dataset[3]["input_ids"].
    dataset = SequenceDataset("my-run")
    # Iterable: shuffled by epoch, dealt to ranks and workers, resumable.
    stream = dataset.stream(batch_size=2)

A row is built from references and memory-mapped tokens when it is read; nothing is
exported. Splitting, mixing and packing are those of exports (`export/arrange.py`).
Needs PyTorch, which the rest of the package does not.
"""

from __future__ import annotations

import importlib

try:
    importlib.import_module("torch")
except ImportError as error:
    raise ImportError(
        f"nextlong.torch needs PyTorch ({error}); pip install torch"
    ) from None

from nextlong.torch.collate import COLUMNS, collate
from nextlong.torch.dataset import SequenceDataset
from nextlong.torch.stream import SequenceStream

__all__ = ["COLUMNS", "SequenceDataset", "SequenceStream", "collate"]
