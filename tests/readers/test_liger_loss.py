"""Liger's fused loss, run by Triton's interpreter on the processor, is taken where it equals ours, and only there."""

import pytest

from nextlong.errors import RecipeError
from packed_llama import BOUNDS, llama, packed

pytestmark = [pytest.mark.readers, pytest.mark.filterwarnings("ignore")]  # not ours to mend


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """Triton looks at this when Liger's kernels are imported, which no other test here does."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def chosen(kernel, dtype):
    import torch

    from nextlong.train import loss

    return loss.choose(kernel, llama("sdpa"), device=torch.device("cpu"), dtype=dtype)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_is_taken_and_gives_loss_and_gradients_of_the_model(precision):
    import torch

    from nextlong.train import loss

    dtype = getattr(torch, precision)
    choice = chosen("auto", dtype)
    assert choice[0] is loss.liger_sum_of_losses
    assert choice[1].startswith("loss: Liger's fused kernel (liger-kernel ")
    row = packed(BOUNDS)
    labels = row["input_ids"].clone()
    labels[:, BOUNDS[:-1]] = -100
    ours, theirs = llama("sdpa"), llama("sdpa")
    loss.install(ours)
    loss.install(theirs, summed_by=choice[0])
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        expected, found = (model(**row, labels=labels, num_items_in_batch=300) for model in (ours, theirs))
    of_loss, of_gradients = loss._TOLERANCES[dtype]
    assert found.loss.item() == pytest.approx(expected.loss.item(), rel=of_loss)
    expected.loss.backward()
    found.loss.backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (one.grad - other.grad).norm() <= 2 * of_gradients * one.grad.norm()  # through two layers


def test_without_gradient_it_is_ours():
    import torch

    from nextlong.train import loss

    model, row = llama("sdpa"), packed(BOUNDS)
    hidden = torch.randn(1, BOUNDS[-1], 48)
    found, expected = (
        way(hidden, row["input_ids"], head=model.lm_head) for way in (loss.liger_sum_of_losses, loss.sum_of_losses)
    )
    assert found.item() == expected.item()


def test_one_that_is_off_is_not_taken(monkeypatch):
    import torch

    from nextlong.train import loss

    right = loss.liger_sum_of_losses
    monkeypatch.setattr(loss, "liger_sum_of_losses", lambda *given, **how: 1.02 * right(*given, **how))
    choice = chosen("auto", torch.float32)
    assert choice[0] is loss.sum_of_losses
    assert (
        "relative difference to ours 2.0e-02 of the loss and 2.0e-02 of the gradients, 1e-05 and 1e-05 allowed"
        in choice[1]
    )
    with pytest.raises(
        RecipeError, match=r"loss_kernel=liger: liger-kernel .* relative difference to ours.*set loss_kernel=auto"
    ):
        chosen("liger", torch.float32)


def test_one_that_fails_is_not_taken(monkeypatch):
    import torch

    from nextlong.train import loss

    def fails(*_, **__):
        raise RuntimeError("no kernel image\nis available")

    monkeypatch.setattr(loss, "liger_sum_of_losses", fails)
    choice = chosen("auto", torch.float32)
    assert choice[0] is loss.sum_of_losses
    assert choice[1].endswith("fails: RuntimeError: no kernel image is available)")
