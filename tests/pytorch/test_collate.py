import numpy as np
import pytest

from nextlong.errors import RecipeError


@pytest.mark.heavy
def test_a_batch_is_stacked_padded_or_flat():
    import torch

    from nextlong.torch import collate

    def row(*lengths):
        ends = np.cumsum([0, *lengths])
        positions = np.concatenate([np.arange(length) for length in lengths])
        return {
            "input_ids": torch.arange(ends[-1]) + 7,
            "labels": torch.arange(ends[-1]) + 7,
            "position_ids": torch.from_numpy(positions),
            "cu_seqlens": torch.from_numpy(ends.astype(np.int32)),
            "max_seqlen": max(lengths),
            "seq_lengths": torch.tensor(lengths),
        }

    rows = [row(2, 1), row(2), row(3)]
    padded = collate(rows, pad_id=9)
    assert padded["input_ids"].tolist() == [[7, 8, 9], [7, 8, 9], [7, 8, 9]]
    assert padded["labels"].tolist() == [[7, 8, 9], [7, 8, -100], [7, 8, 9]]
    assert padded["position_ids"].tolist() == [[0, 1, 0], [0, 1, 0], [0, 1, 2]]
    assert padded["cu_seqlens"].tolist() == [0, 2, 3, 5, 6, 9]
    assert padded["cu_seqlens"].dtype == torch.int32
    assert padded["max_seqlen"] == 3
    assert padded["seq_lengths"].tolist() == [2, 1, 2, 3]
    assert collate([row(1), row(2, 2)])["max_seqlen"] == 3  # of padding
    flat = collate(rows, layout="flat")
    assert flat["input_ids"].tolist() == [[7, 8, 9, 7, 8, 7, 8, 9]]
    assert flat["cu_seqlens"].tolist() == [0, 2, 3, 5, 8]
    with pytest.raises(RecipeError, match="layout='ragged' is not known"):
        collate(rows, layout="ragged")
