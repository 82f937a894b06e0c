"""Probes of recall have one answer to every question, what a model recalls is counted as it is, and the first layer looks back."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from experiments.replicate import corpus, small_llama  # noqa: E402
from experiments.replicate.corpus import VOCABULARY  # noqa: E402

pytestmark = pytest.mark.heavy
MAKE = corpus.probe_maker()


@pytest.fixture(scope="module")
def tokenizer():
    return corpus.word_tokenizer()


def words(tokenizer, ids):
    return [tokenizer.id_to_token(int(one)).strip() for one in ids]


@pytest.mark.parametrize("kind", small_llama.KINDS)
def test_a_question_is_answered_once_before_it_and_nowhere_else(kind, tokenizer):
    asked = small_llama.probes(MAKE, kind, negatives=5, count=6, seed=3)
    for ids, positions, length in zip(
        asked.ids, asked.positions, asked.lengths, strict=True
    ):
        text = words(tokenizer, ids[:length])
        for position in positions.tolist():
            key = text[position - 2 : position]
            before = [
                text[place + 2]
                for place in range(positions.min() - 2)
                if text[place : place + 2] == key
            ]
            assert before == [text[position]]
        assert len(set(positions.tolist())) == corpus.FACTS
        assert positions[-1] == length - 1
        assert not ids[length:].any()


def test_look_alikes_state_the_relations_and_unrelated_paragraphs_share_no_word(
    tokenizer,
):
    for kind, is_shared in (("same", True), ("far", False)):
        asked = small_llama.probes(MAKE, kind, negatives=4, count=6, seed=0)
        for ids, positions, length in zip(
            asked.ids, asked.positions, asked.lengths, strict=True
        ):
            text = words(tokenizer, ids[:length])
            relations = {text[position - 1] for position in positions}
            own = text.index(".") + 1
            middle = set(text[own : positions[0] - 2])
            assert bool(relations & middle) == is_shared
            assert text[positions[0] - 2] not in middle
            assert VOCABULARY.subjects.count(text[positions[0] - 2]) == 1


class Reader:
    """A stand-in for a model whose likeliest token is `answer(ids, place)`; hidden states are one-hot."""

    device = "cpu"

    def __init__(self, answer, vocabulary):
        self.answer, self.vocabulary = answer, vocabulary

    def get_decoder(self):
        return self

    def get_output_embeddings(self):
        return lambda hidden: hidden

    def __call__(self, *, input_ids, use_cache):
        hidden = torch.zeros(*input_ids.shape, self.vocabulary)
        for row, ids in enumerate(input_ids.tolist()):
            for place in range(len(ids)):
                hidden[row, place, self.answer(ids, place)] = 1.0
        return SimpleNamespace(last_hidden_state=hidden)


def first_match(ids, place):
    """Recall what stood behind the same two tokens first."""
    key = ids[place - 1 : place + 1]
    for at in range(1, place):
        if ids[at - 1 : at + 1] == key:
            return ids[at + 1]
    return 0


def by_relation(ids, place):
    """Recall what stood behind the same token last: the shortcut."""
    for at in range(place - 1, -1, -1):
        if ids[at] == ids[place]:
            return ids[at + 1]
    return 0


def test_recall_is_whole_for_a_reader_of_both_keys_and_the_shortcut_fails_on_look_alikes(
    tokenizer,
):
    size = tokenizer.get_vocab_size()
    shares = {}
    for kind in small_llama.KINDS:
        probes = small_llama.probes(MAKE, kind, negatives=6, count=6, seed=0)
        recalled = small_llama.recalled(Reader(first_match, size), probes)
        assert recalled.shape == (6, corpus.FACTS)
        assert recalled.all()
        shortcut = small_llama.recalled(Reader(by_relation, size), probes)
        shares[kind] = shortcut.mean()
    assert shares["far"] == 1.0
    assert shares["same"] < 0.3


def test_the_loss_is_a_mean_over_tokens_but_the_first():
    class Knows:
        device = "cpu"

        def __call__(self, *, input_ids, use_cache):
            logits = torch.zeros(len(input_ids), input_ids.shape[1], 4)
            logits[:, 1, 2] = 100.0  # certain of token 2 at position 2
            return SimpleNamespace(logits=logits)

    loss = small_llama.loss(Knows(), np.array([[0, 1, 2, 3], [0, 1, 2, 0]]))
    assert loss == pytest.approx(2 / 3 * np.log(4))


def test_the_heads_of_the_first_layer_look_one_and_two_tokens_back(tmp_path):
    from transformers import AutoModelForCausalLM

    small_llama.save(
        tmp_path,
        small_llama.config(
            vocabulary=100,
            hidden_size=64,
            intermediate_size=64,
            layers=2,
            heads=2,
        ),
        seed=3,
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    ids = torch.randint(100, (1, 300), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, second = model(input_ids=ids, output_attentions=True).attentions
    assert float(first[0, 0].diagonal(-1).min()) > 0.9
    assert float(first[0, 1].diagonal(-2).min()) > 0.9
    for other in second[0]:
        assert float(other.diagonal(-1).mean()) < 0.5, "the second layer is random"


def test_another_seed_gives_other_weights(tmp_path):
    sizes = small_llama.config(
        vocabulary=50,
        hidden_size=32,
        intermediate_size=32,
        layers=2,
        heads=2,
    )
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        small_llama.save(tmp_path / name, sizes, seed=seed)
    one, same, other = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"
    )
    assert one == same != other
