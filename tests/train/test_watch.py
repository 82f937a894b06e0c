"""What is shown of a training says nothing that is not known."""

import pytest

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(("name", "peak"), [("NVIDIA H200", 989e12), ("NVIDIA GeForce RTX 4090", None)])
def test_a_gpu_without_a_known_data_sheet_has_no_peak(monkeypatch, name, peak):
    import torch

    from nextlong.train.watch import peak_flops

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    assert peak_flops(torch.device("cuda")) == peak


def test_an_unknown_peak_is_shown_as_unknown(train_recipe, monkeypatch):
    from io import StringIO

    from rich.console import Console

    from nextlong.train import watch
    from nextlong.train.start import train

    monkeypatch.setattr(watch, "peak_flops", lambda _: None)
    told = StringIO()
    train(train_recipe(), Console(file=told))
    assert "MFU – " in told.getvalue()
