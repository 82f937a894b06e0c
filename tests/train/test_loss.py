"""The loss in blocks is the loss: in value, in gradients, and however rows are shared out."""

from types import SimpleNamespace

import pytest
from tests.support.packed_llama import BOUNDS, llama, packed

pytestmark = pytest.mark.heavy


def labelled(row, bounds):
    labels = row["input_ids"].clone()
    labels[:, bounds[:-1]] = -100
    return {**row, "labels": labels}


@pytest.mark.parametrize("block_tokens", [7, 128, 4096])
def test_blocks_give_the_loss_and_the_gradients_of_the_whole(block_tokens):
    import torch

    from nextlong.train.loss import install_loss

    stock, ours = llama("auto"), llama("auto")
    install_loss(ours, block_tokens=block_tokens)
    row = labelled(packed(BOUNDS), BOUNDS)
    expected, found = stock(**row).loss, ours(**row).loss
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    expected.backward()
    found.backward()
    for one, other in zip(ours.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-5)


def test_float32_whatever_the_model_computes_in():
    import torch

    from nextlong.train.loss import install_loss

    model = llama("auto").bfloat16()
    row = labelled(packed(BOUNDS), BOUNDS)
    with torch.no_grad():
        logits = model(**packed(BOUNDS)).logits
    expected = torch.nn.functional.cross_entropy(
        logits[0, :-1].float(), row["labels"][0, 1:], ignore_index=-100
    )
    install_loss(model)
    found = model(**row).loss
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def head_loss(head, hidden, labels, *, blocks, scale=1.0):
    """Return the losses of tokens of one row, computed in this many blocks."""
    from nextlong.train.loss import _token_losses

    block_tokens = (labels.shape[1] - 1) // blocks
    return _token_losses(
        hidden, labels, head=head, scale=scale, block_tokens=block_tokens
    )


def invented(tokens, *, bias=False):
    import torch

    torch.manual_seed(0)
    head = torch.nn.Linear(64, 512, bias=bias)
    hidden = torch.randn(1, tokens + 1, 64, requires_grad=True)
    return head, hidden, torch.randint(512, (1, tokens + 1))


@pytest.mark.parametrize("blocks", [1, 64, 256])
def test_the_gradient_of_the_head_in_bfloat16_is_that_of_float32(blocks):
    import torch

    gradients = []
    for is_mixed in (False, True):
        head, hidden, labels = invented(4096)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_mixed):
            losses = head_loss(head, hidden, labels, blocks=blocks)
        losses.sum().backward()
        gradients.append(head.weight.grad)
    exact, mixed = gradients
    assert mixed.dtype == torch.float32
    assert (mixed - exact).norm() <= 0.0025 * exact.norm()
    assert float(mixed.norm()) == pytest.approx(float(exact.norm()), rel=1e-3)


def test_a_head_with_bias_scale_ignored_labels_and_weighted_losses():
    import torch

    head, hidden, labels = invented(60, bias=True)
    labels[0, 10:30] = -100
    weights = torch.linspace(-1, 2, 61)
    (head_loss(head, hidden, labels, blocks=7, scale=0.5)[0] * weights).sum().backward()
    found = [one.grad for one in (hidden, head.weight, head.bias)]

    head, hidden, labels = invented(60, bias=True)
    labels[0, 10:30] = -100
    logits = head(hidden)[0, :-1] * 0.5
    losses = torch.nn.functional.cross_entropy(logits, labels[0, 1:], reduction="none")
    (losses * weights[1:]).sum().backward()
    for one, other in zip(found, (hidden, head.weight, head.bias), strict=True):
        torch.testing.assert_close(one, other.grad, atol=1e-5, rtol=1e-5)


def test_a_frozen_head_gets_no_gradient_and_passes_one_on():
    import torch

    head, hidden, labels = invented(60)
    head.weight.requires_grad_(False)
    head_loss(head, hidden, labels, blocks=2).sum().backward()
    assert head.weight.grad is None
    assert torch.isfinite(hidden.grad).all()


def test_on_a_gpu_products_of_16_bits_give_float32():
    """On fake tensors: which operations a GPU is asked for, and of which types."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    from nextlong.train.loss import _HeadLoss

    class Products(TorchDispatchMode):
        types = frozenset()

        def __torch_dispatch__(self, function, types, arguments=(), given=None):
            made = function(*arguments, **(given or {}))
            if "mm" in function.__name__:
                of_product = (*(one.dtype for one in arguments[:2]), made.dtype)
                self.types |= {of_product}
            return made

    saved = SimpleNamespace(needs_input_grad=[True] * 3)
    saved.save_for_backward = lambda *tensors: setattr(saved, "saved_tensors", tensors)
    with FakeTensorMode(), Products() as products, torch.no_grad():
        states, weight = (torch.empty(n, 64, device="cuda") for n in (60, 512))
        targets = torch.zeros(60, dtype=torch.int64, device="cuda")
        options = (None, targets, 0.5, torch.bfloat16, 30)
        losses = _HeadLoss.forward(saved, states, weight, *options)
        gradients = _HeadLoss.backward(saved, torch.ones_like(losses))
    assert products.types == {(torch.bfloat16, torch.bfloat16, torch.float32)}
    assert [(one.shape, one.dtype) for one in gradients[:2]] == [
        (states.shape, torch.float32),
        (weight.shape, torch.float32),
    ]


def test_parts_of_a_step_add_up_to_it():
    """Documents of different lengths in two micro batches count by their tokens, not by half each."""
    from nextlong.train.loss import install_loss

    model = llama("auto")
    install_loss(model)
    whole = labelled(packed(BOUNDS), BOUNDS)
    items = int((whole["labels"][:, 1:] != -100).sum())
    assert items == BOUNDS[-1] - len(BOUNDS) + 1
    parts = []
    for first, last, bounds in ((0, 300, [0, 130, 131, 300]), (300, 520, [0, 220])):
        part = {
            key: value[:, first:last]
            for key, value in whole.items()
            if key != "cu_seq_lens_q"
        }
        part["cu_seq_lens_q"] = whole["cu_seq_lens_q"].new_tensor(bounds)
        parts.append(model(**part, num_items_in_batch=items).loss.item())
    assert sum(parts) == pytest.approx(model(**whole).loss.item(), abs=1e-5)


def test_losses_of_single_tokens_sum_to_the_loss():
    import torch

    from nextlong.train.loss import _token_losses

    model, row = llama("auto"), labelled(packed(BOUNDS), BOUNDS)
    with torch.no_grad():
        hidden = model.model(
            **{key: row[key] for key in ("input_ids", "position_ids", "cu_seq_lens_q")}
        ).last_hidden_state
        (each,) = _token_losses(
            hidden, row["labels"], head=model.lm_head, scale=1.0, block_tokens=100
        )
        expected = model(**row).loss * int(
            (row["labels"][:, 1:] != -100).sum()
        )  # by the stock forward pass
    assert (each[row["labels"][0] == -100] == 0).all()
    assert each.sum().item() == pytest.approx(expected.item(), rel=1e-5)


def test_logits_never_stand_whole():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from nextlong.train.loss import install_loss

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, arguments=(), given=None):
            made = function(*arguments, **(given or {}))
            for one in made if isinstance(made, tuple | list) else (made,):
                if isinstance(one, torch.Tensor):
                    self.elements = max(self.elements, one.numel())
            return made

    model, row = llama("auto"), labelled(packed(BOUNDS), BOUNDS)
    install_loss(model, block_tokens=64)
    with Largest() as seen:
        model(**row).loss.backward()
    assert seen.elements <= 520 * 96  # the widest layer's, and not 520 × 97 logits


def test_bent_logits_are_refused():
    from nextlong.train.loss import _logit_scale

    model = llama("auto")
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ValueError, match="final_logit_softcapping"):
        _logit_scale(model)
