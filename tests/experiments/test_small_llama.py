"""Probes of recall have one answer to every question, what a model recalls is counted as it is, and the first model looks back."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from experiments.replicate import corpora, small_llama  # noqa: E402

pytestmark = pytest.mark.heavy
MAKE = corpora.Invented().probe(None)


@pytest.fixture(scope="module")
def tokenizer():
    return corpora._word_tokenizer()


def words(tokenizer, ids):
    return [tokenizer.id_to_token(int(one)).strip() for one in ids]


@pytest.mark.parametrize("kind", small_llama.KINDS)
def test_a_question_is_answered_once_before_it_and_nowhere_else(kind, tokenizer):
    asked = small_llama.probes(MAKE, kind, negatives=5, count=6, seed=3)
    for ids, places, length in zip(
        asked.ids, asked.positions, asked.lengths, strict=True
    ):
        text = words(tokenizer, ids[:length])
        for place in places:
            assert [
                text[at + 1]
                for at in range(int(place) - 1)
                if text[at] == text[place - 1]
            ] == [text[place]]
            assert any(
                text[place] in corpora._words_of(topic)[0]
                for topic in range(corpora.TOPICS)
            )
            assert text[place - 1] in corpora._WORDS[: corpora.NAMES]
        assert len(set(places)) == corpora.FACTS
        assert places[-1] < length
        assert not ids[length:].any()


def test_hard_negatives_share_the_topic_and_random_ones_do_not(tokenizer):
    for kind, is_shared in (("hard", True), ("random", False)):
        asked = small_llama.probes(MAKE, kind, negatives=8, count=4, seed=0)
        for ids, length in zip(asked.ids, asked.lengths, strict=True):
            text = words(tokenizer, ids[:length])
            answers = (
                {text[place] for place in asked.positions[0]}
                if ids is asked.ids[0]
                else set()
            )
            first = text.index(".") + 1
            fillers = set(text[: first - 3])
            middle = set(text[120:-30])
            assert bool(fillers & middle) == is_shared
            assert is_shared or not answers & middle


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
    """Recall what stood behind the same token first."""
    return [*ids, 0][ids.index(ids[place]) + 1]


def latest_value(ids, place):
    """Recall the value that was stated last: right by chance only."""
    stops = [at for at in range(2, place) if ids[at] in STOPS]
    return ids[stops[-1] - 1] if stops else 0


STOPS = {corpora._word_tokenizer().token_to_id(stop) for stop in (". ", ".\n")}


def test_recall_is_whole_for_a_reader_of_names_and_not_for_one_of_places(tokenizer):
    asked = {
        k: small_llama.probes(MAKE, k, negatives=6, count=6, seed=0)
        for k in small_llama.KINDS
    }
    size = tokenizer.get_vocab_size()
    for probes in asked.values():
        assert small_llama.recalled(Reader(first_match, size), probes).all()
        assert small_llama.recalled(Reader(first_match, size), probes).shape == (
            6,
            corpora.FACTS,
        )
    assert small_llama.recalled(Reader(latest_value, size), asked["hard"]).mean() < 0.5


def test_thirds_of_attention_are_those_of_what_stands_before():
    asked = small_llama.probes(MAKE, "random", negatives=2, count=2, seed=0)

    class Even:
        device = "cpu"

        def __call__(self, *, input_ids, output_attentions, use_cache):
            tokens = input_ids.shape[1]
            even = (
                torch.tril(torch.ones(tokens, tokens))
                / torch.arange(1, tokens + 1)[:, None]
            )
            first = torch.zeros(tokens, tokens)
            first[:, 0] = 1.0
            return SimpleNamespace(attentions=(torch.stack([even, first])[None],))

    first, last = small_llama.attention_thirds(Even(), asked).values()
    assert first == pytest.approx((1 / 3 + 1) / 2, abs=0.01)
    assert last == pytest.approx(1 / 6, abs=0.01)


def test_losses_are_by_position_and_a_mean_over_rows():
    class Knows:
        device = "cpu"

        def __call__(self, *, input_ids, use_cache):
            logits = torch.zeros(1, input_ids.shape[1], 4)
            logits[0, 1, 2] = 100.0  # certain of token 2 at position 2
            return SimpleNamespace(logits=logits)

    losses = small_llama.losses(Knows(), np.array([[0, 1, 2, 3], [0, 1, 2, 0]]))
    assert losses == pytest.approx([np.log(4), 0.0, np.log(4)])


def test_the_first_head_of_the_first_layer_looks_one_token_back(tmp_path):
    from transformers import AutoModelForCausalLM

    small_llama.save(
        tmp_path,
        small_llama.config(
            vocabulary=100,
            row_tokens=512,
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
    for other in (first[0, 1], second[0, 0]):
        assert float(other.diagonal(-1).mean()) < 0.5, "the other heads are random"


def test_another_seed_gives_other_weights(tmp_path):
    sizes = small_llama.config(
        vocabulary=50,
        row_tokens=512,
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
