"""Logs of a training are drawn alike each time; held-out losses are put to the right group: by hand-written spans."""

import json
import re
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.heavy


@pytest.fixture
def metrics():
    from nextlong.train import metrics

    return metrics


def log(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_metrics(folder, *, distances):
    log(
        folder / "metrics.jsonl",
        [{"step": step, "loss": 9 - step} for step in range(4)],
    )
    measured = [
        {
            "step": step,
            "loss": 8.0 - step,
            "role": {"meta": [7.0, 5], "separator": [1.0, 2]},
            "distance": distances,
        }
        for step in (0, 3)
    ]
    log(folder / "held_out.jsonl", measured)


def texts(folder):
    return re.findall(r"<!-- (.*?) -->", (folder / "loss.svg").read_text())


def test_without_what_draws_nothing_is_written(tmp_path, monkeypatch, metrics):
    write_metrics(tmp_path, distances={})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert metrics.draw(tmp_path) is None
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".jsonl", ".jsonl"]


def test_losses_are_drawn_by_step_and_by_role(tmp_path, metrics):
    write_metrics(tmp_path, distances={})
    assert metrics.draw(tmp_path) == tmp_path / "loss.svg"
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert {"Loss", "training", "held out", "Held out, by role", "meta"} <= set(
        texts(tmp_path)
    )
    assert not {"separator", "negative", "Held-out meta-chunks, by distance"} & set(
        texts(tmp_path)
    )


def test_distances_have_a_picture_of_their_own_and_the_first_and_last_measurement_a_name(
    tmp_path, metrics
):
    first, *_, last = metrics._DISTANCES
    write_metrics(tmp_path, distances={last: [3.0, 5], first: [2.0, 5]})
    metrics.draw(tmp_path)
    shown = texts(tmp_path)
    assert {"Held-out meta-chunks, by distance", "step 0", "step 3"} <= set(shown)
    assert shown.index(first) < shown.index(last)  # however the file has them


def test_a_training_that_measured_nothing_is_drawn_by_its_steps(tmp_path, metrics):
    log(tmp_path / "metrics.jsonl", [{"step": 1, "loss": 2.0}])
    metrics.draw(tmp_path)
    assert "training" in texts(tmp_path)
    assert "held out" not in texts(tmp_path)


def test_the_same_metrics_give_the_same_bytes(tmp_path, metrics):
    write_metrics(tmp_path, distances={})
    drawn = [
        (metrics.draw(tmp_path).read_bytes(), (tmp_path / "loss.png").read_bytes())
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("name", "peak"), [("NVIDIA H200", 989e12), ("NVIDIA GeForce RTX 4090", None)]
)
def test_a_gpu_without_a_known_data_sheet_has_no_peak(monkeypatch, name, peak):
    import torch

    from nextlong.train.forecast import peak_flops

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(torch.device("cuda")) == peak


def test_an_unknown_peak_is_shown_as_unknown(train_recipe, monkeypatch):
    from io import StringIO

    from rich.console import Console

    from nextlong.train import forecast
    from nextlong.train.loop import train

    monkeypatch.setattr(forecast, "peak_flops", lambda _: None)
    told = StringIO()
    train(train_recipe(), Console(file=told))
    assert "MFU – " in told.getvalue()


def train(recipe, console):
    from nextlong.train.loop import train as start

    return start(recipe, console)


def row_of(spans, tokens):
    import torch

    from nextlong.artifacts.rows import SPANS
    from nextlong.train.rows import TrainingRow

    made = np.zeros(len(spans), SPANS)
    for place, (sequence, role, first, last) in enumerate(spans):
        (
            made[place]["sequence"],
            made[place]["role"],
            made[place]["first"],
            made[place]["last"],
        ) = (
            sequence,
            role,
            first,
            last,
        )
    ids = torch.arange(tokens)
    labels = ids.clone()
    labels[0] = -100
    return TrainingRow(ids, labels, ids.clone(), torch.tensor([0, tokens]), made)


def test_the_mfu_is_of_the_operations_of_the_last_steps():
    from io import StringIO

    from rich.console import Console

    from nextlong.train.metrics import TrainedStep, shown_progress

    told = StringIO()
    console = Console(file=told, width=300)
    with shown_progress(console, steps=2, peak_flops=1e12) as show:
        for step, flops in ((1, 1e11), (2, 5e11)):
            show(TrainedStep(step, 5.0, 1.0, 1e-3, 100, seconds=1.0), flops)
    first, last = told.getvalue().splitlines()
    assert "MFU 10.0%" in first
    assert "MFU 30.0%" in last


def test_roles_and_distances_by_hand():
    from nextlong.schemas import META, NEGATIVE
    from nextlong.train import metrics

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
    found = metrics.means(metrics.tally(row, losses, longest=4096), longest=4096)
    assert found["loss"] == pytest.approx(np.arange(1, 4096).mean())
    assert found["role"]["meta"] == (pytest.approx(np.r_[1:100, 1000:1200].mean()), 299)
    assert found["role"]["negative"] == (
        pytest.approx(np.r_[100:1000, 1200:4096].mean()),
        3796,
    )
    assert found["distance"] == {
        "first": (pytest.approx(np.arange(1, 100).mean()), 99),
        "<512": (pytest.approx(np.arange(1100, 1200).mean()), 100),
        "512–1024": (pytest.approx(np.arange(1000, 1100).mean()), 100),
    }
    assert list(found["position"]) == [
        "0–512",
        "512–1024",
        "1024–1536",
        "1536–2048",
        "2048–2560",
        "2560–3072",
        "3072–3584",
        "3584–4096",
    ]
    assert found["position"]["512–1024"] == (
        pytest.approx(np.arange(512, 1024).mean()),
        512,
    )


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
    from nextlong.train import metrics

    row = row_of(
        [(0, META, 0, 1), (0, NEGATIVE, 1, 1 + gap), (0, META, 1 + gap, 2 + gap)],
        2 + gap,
    )
    found = metrics.means(
        metrics.tally(row, np.ones(2 + gap), longest=2 + gap), longest=2 + gap
    )
    assert list(found["distance"]) == [
        name
    ]  # the first meta-chunk is one token, which nothing predicts


def test_a_new_sequence_begins_anew():
    from nextlong.schemas import META
    from nextlong.train import metrics

    row = row_of([(0, META, 0, 10), (1, META, 10, 20)], 20)
    found = metrics.means(metrics.tally(row, np.ones(20), longest=20), longest=20)
    assert found["distance"] == {"first": (1.0, 19)}
