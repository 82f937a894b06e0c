"""Torch: the rows of finished runs as PyTorch data sets, built as the trainer asks; nothing is exported.

    from nextlong.torch import SequenceDataset

    dataset = SequenceDataset("my-run")  # map-style: len(dataset), dataset[3]["input_ids"]
    stream = dataset.stream(batch_size=2)  # iterable: shuffled by epoch, dealt to ranks and workers, resumable

Needs PyTorch (`pip install torch`), which the rest of the package does not.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"nextlong.torch needs PyTorch ({error}); pip install torch") from None

from nextlong.torch.dataset import SequenceDataset, SequenceStream, collate

__all__ = ["SequenceDataset", "SequenceStream", "collate"]
