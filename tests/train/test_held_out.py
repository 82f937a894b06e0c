"""Losses are put to the right group: by hand-written spans."""

import numpy as np
import pytest

pytestmark = pytest.mark.heavy


def row_of(spans, tokens):
    import torch

    from nextlong.artifacts.rows import SPANS
    from nextlong.train.rows import TrainingRow

    made = np.zeros(len(spans), SPANS)
    for place, (sequence, role, first, last) in enumerate(spans):
        made[place]["sequence"], made[place]["role"], made[place]["first"], made[place]["last"] = (
            sequence,
            role,
            first,
            last,
        )
    ids = torch.arange(tokens)
    labels = ids.clone()
    labels[0] = -100
    return TrainingRow(ids, labels, ids.clone(), torch.tensor([0, tokens]), made)


def test_roles_and_distances_by_hand():
    from nextlong.schemas import META, NEGATIVE
    from nextlong.train import held_out

    row = row_of(
        [
            (0, META, 0, 100),
            (0, NEGATIVE, 100, 1000),
            (0, META, 1000, 1100),
            (0, META, 1100, 1200),
            (0, NEGATIVE, 1200, 4096),
        ],
        4096,
    )
    losses = np.arange(4096, dtype=np.float64)
    found = held_out.means(held_out.tally(row, losses, longest=4096), longest=4096)
    assert found.loss == pytest.approx(np.arange(1, 4096).mean())
    assert found.role["meta"] == (pytest.approx(np.r_[1:100, 1000:1200].mean()), 299)
    assert found.role["negative"] == (pytest.approx(np.r_[100:1000, 1200:4096].mean()), 3796)
    assert found.distance == {
        "first": (pytest.approx(np.arange(1, 100).mean()), 99),
        "<512": (pytest.approx(np.arange(1100, 1200).mean()), 100),
        "512–1024": (pytest.approx(np.arange(1000, 1100).mean()), 100),
    }
    assert list(found.position) == [
        "0–512",
        "512–1024",
        "1024–1536",
        "1536–2048",
        "2048–2560",
        "2560–3072",
        "3072–3584",
        "3584–4096",
    ]
    assert found.position["512–1024"] == (pytest.approx(np.arange(512, 1024).mean()), 512)


@pytest.mark.parametrize(
    ("gap", "name"),
    [
        (0, "<512"),
        (511, "<512"),
        (512, "512–1024"),
        (1024, "1024–2048"),
        (65_535, "32768–65536"),
        (65_536, "65536–131072"),
    ],
)
def test_distance_bins(gap, name):
    from nextlong.schemas import META, NEGATIVE
    from nextlong.train import held_out

    row = row_of([(0, META, 0, 1), (0, NEGATIVE, 1, 1 + gap), (0, META, 1 + gap, 2 + gap)], 2 + gap)
    found = held_out.means(held_out.tally(row, np.ones(2 + gap), longest=2 + gap), longest=2 + gap)
    assert list(found.distance) == [name]  # the first meta-chunk is one token, which nothing predicts


def test_a_new_sequence_begins_anew():
    from nextlong.schemas import META
    from nextlong.train import held_out

    row = row_of([(0, META, 0, 10), (1, META, 10, 20)], 20)
    found = held_out.means(held_out.tally(row, np.ones(20), longest=20), longest=20)
    assert found.distance == {"first": (1.0, 19)}
