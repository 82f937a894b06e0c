"""Where Liger's loss cannot be used, ours is, and it says why."""

import importlib.util

import pytest

from nextlong.errors import RecipeError
from packed_llama import llama

pytestmark = pytest.mark.heavy


def choose(kernel, model):
    import torch

    from nextlong.train import fused_loss

    return fused_loss.choose(kernel, model, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture
def installed(monkeypatch):
    """A function that says whether liger-kernel is there, whatever is installed here."""
    real = importlib.util.find_spec

    def pretend(is_there):
        found = importlib.util.find_spec("json") if is_there else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name == "liger_kernel" else real(name))
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    return pretend


def test_not_installed(installed):
    from nextlong.train import loss

    installed(False)
    choice = choose("auto", llama("sdpa"))
    assert (choice.sum_of_losses, choice.why) == (
        loss.sum_of_losses,
        "loss: in blocks (liger-kernel is not installed)",
    )
    with pytest.raises(RecipeError, match="loss_kernel=liger: liger-kernel is not installed; set loss_kernel=auto"):
        choose("liger", llama("sdpa"))


def test_not_on_a_processor(installed):
    installed(True)
    assert "Liger's kernels do not run on a cpu device" in choose("auto", llama("sdpa")).why
    assert choose("blocks", llama("sdpa")).why == "loss: in blocks (loss_kernel=blocks)"


def test_not_where_logits_are_scaled(installed, monkeypatch):
    installed(True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    model = llama("sdpa")
    model.config.logits_scaling = 4.0
    assert "makes its logits in another way" in choose("auto", model).why


def test_a_checkout_that_is_no_installed_package(installed, monkeypatch):
    from importlib.metadata import PackageNotFoundError

    from nextlong.train import fused_loss

    def version(name):
        raise PackageNotFoundError(name)

    installed(True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(fused_loss, "version", version)
    monkeypatch.setattr(fused_loss, "sum_of_losses", fused_loss.loss.sum_of_losses)
    assert "liger-kernel of no version, on 64 tokens" in choose("auto", llama("sdpa")).why


def test_a_training_says_which(train_recipe, tmp_path, capsys):
    from rich.console import Console

    from nextlong.train.start import train

    train(train_recipe({"loss_kernel": "blocks", "training.steps": 3}), Console(width=200))
    assert "loss: in blocks (loss_kernel=blocks)" in capsys.readouterr().out
