"""Logs of a training are drawn alike each time, and the terminal shows nothing that is unknown."""

import json
import re
import sys

import pytest

from nextlong.train import metrics


def log(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_metrics(folder, *, distances):
    log(folder / metrics.STEPS, [{"step": step, "loss": 9 - step} for step in range(4)])
    measured = [
        {"step": step, "loss": 8.0 - step, "role": {"meta": [7.0, 5], "separator": [1.0, 2]}, "distance": distances}
        for step in (0, 3)
    ]
    log(folder / metrics.HELD_OUT, measured)


def texts(folder):
    return re.findall(r"<!-- (.*?) -->", (folder / "loss.svg").read_text())


def test_without_what_draws_nothing_is_written(tmp_path, monkeypatch):
    write_metrics(tmp_path, distances={})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert metrics.draw(tmp_path) is None
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".jsonl", ".jsonl"]


@pytest.mark.heavy
def test_losses_are_drawn_by_step_and_by_role(tmp_path):
    write_metrics(tmp_path, distances={})
    assert metrics.draw(tmp_path) == tmp_path / "loss.svg"
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert {"Loss", "training", "held out", "Held out, by role", "meta"} <= set(texts(tmp_path))
    assert not {"separator", "negative", "Held-out meta-chunks, by distance"} & set(texts(tmp_path))


@pytest.mark.heavy
def test_distances_have_a_picture_of_their_own_and_the_first_and_last_measurement_a_name(tmp_path):
    from nextlong.train.held_out import DISTANCES

    first, *_, last = DISTANCES
    write_metrics(tmp_path, distances={last: [3.0, 5], first: [2.0, 5]})
    metrics.draw(tmp_path)
    shown = texts(tmp_path)
    assert {"Held-out meta-chunks, by distance", "step 0", "step 3"} <= set(shown)
    assert shown.index(first) < shown.index(last)  # however the file has them


@pytest.mark.heavy
def test_a_training_that_measured_nothing_is_drawn_by_its_steps(tmp_path):
    log(tmp_path / metrics.STEPS, [{"step": 1, "loss": 2.0}])
    metrics.draw(tmp_path)
    assert "training" in texts(tmp_path)
    assert "held out" not in texts(tmp_path)


@pytest.mark.heavy
def test_the_same_metrics_give_the_same_bytes(tmp_path):
    write_metrics(tmp_path, distances={})
    drawn = [(metrics.draw(tmp_path).read_bytes(), (tmp_path / "loss.png").read_bytes()) for _ in range(2)]
    assert drawn[0] == drawn[1]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "peak"), [("NVIDIA H200", 989e12), ("NVIDIA GeForce RTX 4090", None)])
def test_a_gpu_without_a_known_data_sheet_has_no_peak(monkeypatch, name, peak):
    import torch

    from nextlong.train.forecast import peak_flops

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(torch.device("cuda")) == peak


@pytest.mark.heavy
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
