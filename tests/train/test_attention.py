"""A packed row gives each document the logits and the gradients that it has alone."""

from itertools import pairwise

import pytest
from tests.support.packed_llama import BOUNDS, alone, llama, packed

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("kernel", ["auto", "sdpa"])
def test_logits_and_gradients_are_those_of_each_document_alone(kernel):
    import torch

    stock, ours = llama("stock"), llama(kernel)
    row = packed(BOUNDS)
    together = ours(**row).logits
    separate = torch.cat(
        [stock(**alone(a, b, row["input_ids"])).logits for a, b in pairwise(BOUNDS)],
        dim=1,
    )
    torch.testing.assert_close(together, separate, atol=1e-5, rtol=0)

    weights = torch.linspace(-1, 1, together.numel()).view_as(together) / BOUNDS[-1]
    (together * weights).sum().backward()
    (separate * weights).sum().backward()
    for (name, one), other in zip(
        ours.named_parameters(), stock.parameters(), strict=True
    ):
        torch.testing.assert_close(
            one.grad,
            other.grad,
            atol=1e-5,
            rtol=1e-5,
            msg=lambda told, name=name: f"{name}: {told}",
        )


@pytest.mark.parametrize("document", range(4))
def test_changing_one_document_moves_no_output_of_another(document):
    from nextlong.train.check import measure_leak

    found = measure_leak(
        llama("auto"), packed(BOUNDS)["input_ids"], BOUNDS, document=document
    )
    assert found.moved_outside == 0
    assert found.moved_inside == BOUNDS[document + 1] - BOUNDS[document]


def largest_of():
    """A mode that notes the elements of the largest tensor that any operation makes."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function, types, arguments=(), given=None):
            made = function(*arguments, **(given or {}))
            for one in made if isinstance(made, tuple) else (made,):
                if isinstance(one, torch.Tensor):
                    self.elements = max(self.elements, one.numel())
            return made

    return Largest()


def test_no_mask_is_built():
    """Stock sdpa holds T × T booleans; here nothing of that size is allocated."""
    import torch

    bounds = [0, 256, 512, 768, 1024]
    with torch.no_grad():
        with largest_of() as ours:
            llama("auto")(**packed(bounds))
        with largest_of() as stock:
            llama("stock")(
                **{
                    key: value
                    for key, value in packed(bounds).items()
                    if key != "cu_seq_lens_q"
                }
            )
    assert stock.elements >= 1024 * 1024
    assert ours.elements < 1024 * 1024 / 4


@pytest.mark.parametrize("kernel", ["auto", "varlen"])
@pytest.mark.parametrize("documents", [1, 8])
def test_a_step_at_524288_tokens_makes_no_tensor_of_t_times_t(
    train_recipe, kernel, documents
):
    """Forward and backward pass on fake tensors, of one document and of packed ones; the largest tensor grows with T alone."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from nextlong.train import forecast
    from nextlong.train.prepare import config_of
    from nextlong.train.rows import packed_batch

    recipe = train_recipe(
        {
            "attention_kernel": kernel,
            "memory.checkpointing": "layers",
            "model.scratch.vocabulary": 512,
        }
    )
    tokens = 524_288
    with FakeTensorMode():
        made = forecast.model_of_layers(
            recipe, config_of(recipe, vocabulary=None), layers=2
        )
        batch = packed_batch(
            torch.zeros(1, tokens, dtype=torch.int64),
            range(0, tokens + 1, tokens // documents),
        )
        with largest_of() as ours:
            made(**batch, num_items_in_batch=tokens).loss.backward()
    assert (
        tokens <= ours.elements <= tokens * 64
    )  # the feed-forward layers have 64 outputs a token


@pytest.mark.parametrize("shares_heads", [True, False], ids=["new", "2.11"])
def test_packed_documents_are_given_to_varlen_attention_as_it_reads_them(
    monkeypatch, shares_heads
):
    """The kernel runs on a GPU alone, so what it is given is attended to by hand here: causally, within each document."""
    import torch
    from torch.nn.attention import varlen

    from nextlong.train import attention

    def by_hand(query, key, value, bounds, *_, scale, window_size, **options):
        assert window_size == (-1, 0)
        assert options == ({"enable_gqa": True} if shares_heads else {})
        assert (query.shape[1] == key.shape[1]) != shares_heads
        parts = []
        for first, last in pairwise(bounds.tolist()):
            one = (
                part[first:last].transpose(0, 1)[None] for part in (query, key, value)
            )
            done = torch.nn.functional.scaled_dot_product_attention(
                *one, is_causal=True, scale=scale, enable_gqa=True
            )
            parts.append(done[0].transpose(0, 1))
        return torch.cat(parts)

    monkeypatch.setattr(varlen, "varlen_attn", by_hand)
    monkeypatch.setattr(attention, "_VARLEN_SHARES_HEADS", shares_heads)
    row = packed(BOUNDS)
    with torch.no_grad():
        found, expected = (llama(kernel)(**row).logits for kernel in ("varlen", "sdpa"))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings(
    "ignore:.past_key_values. is deprecated:FutureWarning"
)  # its new name is unknown to older versions of transformers
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"cu_seq_lens_q": None}, "cu_seq_lens_q is missing"),
        ({"attention_mask": "padding"}, "have no padding"),
        ({"use_cache": True, "again": True}, "use_cache=False"),
    ],
)
def test_what_would_leak_in_silence_is_refused(change, told):
    import torch

    model, row = llama("auto"), packed(BOUNDS)
    if change.pop("again", False):
        row["past_key_values"] = llama("stock")(
            **alone(0, 8, row["input_ids"]), use_cache=True
        ).past_key_values
    if change.get("attention_mask"):
        change["attention_mask"] = (torch.arange(BOUNDS[-1]) > 3)[None]
    with pytest.raises(ValueError, match=told):
        model(**{**row, **change})


def test_the_name_of_the_attention_is_not_saved(tmp_path):
    llama("auto").save_pretrained(tmp_path)
    assert "nextlong" not in (tmp_path / "config.json").read_text()


def test_queries_keys_and_values_have_one_precision_under_autocast(monkeypatch):
    """As flash-attention wants them; RoPE returns queries and keys in float32."""
    import torch

    from nextlong.train import attention

    seen = []
    kernel = attention.scaled_dot_product_attention

    def watched(query, key, value, **options):
        seen.append({query.dtype, key.dtype, value.dtype})
        return kernel(query, key, value, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", watched)
    model = llama("auto")
    with torch.autocast("cpu", torch.bfloat16):
        model(**packed(BOUNDS))
    assert seen
    assert all(dtypes == {torch.bfloat16} for dtypes in seen)
