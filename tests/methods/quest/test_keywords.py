from __future__ import annotations

import sys

import pytest

from nextlong.engine.executor import Capacity, Resources
from nextlong.errors import EncoderError
from nextlong.methods.quest import quest


def test_extracted_queries_are_the_first_line_and_the_central_sentences_in_reading_order():
    text = (
        "Rye bread\nNothing here counts. Rye flour makes rye bread dense. See example.org for 3.5 more! Bread of rye."
    )
    assert quest.extract_queries(text, max_queries=3) == [
        "Rye bread",
        "Rye flour makes rye bread dense.",
        "Bread of rye.",
    ]
    assert quest.extract_queries(text, max_queries=1) == ["Rye bread"]
    assert "See example.org for 3.5 more!" in quest.extract_queries(text, max_queries=9)
    assert quest.extract_queries(" \n\t") == []


def test_missing_transformers_names_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EncoderError, match=r"quest.queries=some/model: .*pip install 'nextlong\[quest\]'"):
        quest.Doc2Query("some/model")


WORDS = ["bread", "flour", "moon", "rye", "sea", "star", "tide", "wave"]


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory):
    """The folder of a small T5 over a vocabulary of words, taught in two seconds to say the first in the alphabet that it reads."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = str(tmp_path_factory.mktemp("t5"))
    vocabulary = {word: place for place, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=len(vocabulary), d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2,
        decoder_start_token_id=0, dropout_rate=0.0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(200):
        texts = torch.randint(3, len(vocabulary), (64, 4))
        lengths = torch.randint(1, 4, (64, 1))
        places = torch.arange(4)
        first = torch.where(places < lengths, texts, len(vocabulary)).amin(1, keepdim=True)
        texts = torch.where(places < lengths, texts, torch.where(places == lengths, 1, 0))
        labels = torch.cat([first, torch.ones(64, 1, dtype=torch.int64)], dim=1)
        model(input_ids=texts, attention_mask=(places <= lengths).long(), labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


@pytest.mark.heavy
def test_doc2query_gives_a_query_a_segment(tiny_t5):
    texts = ["rye bread sea tide star", "moon", "", "wave star flour flour moon bread sea", "sea tide sea sea wave"]
    # Segments of three words, at most two of them; equal queries of a document count once.
    expected = [["bread", "star"], ["moon"], [], ["flour", "bread"], ["sea"]]
    for batch_size in (1, 2, 100):
        options = {"segment_tokens": 4, "max_segments": 2, "query_tokens": 6, "batch_size": batch_size}
        assert quest.Doc2Query(tiny_t5, device="cpu", **options).queries(texts) == expected


@pytest.mark.heavy
def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(
        EncoderError, match=r"quest.queries=.* cannot be loaded: .*; give the path of a folder with a T5"
    ):
        quest.Doc2Query(str(tmp_path))


@pytest.mark.heavy
def test_a_worker_loads_a_model_once_for_all_shards(tiny_t5, monkeypatch):
    quest.doc2query.cache_clear()
    loaded = quest.doc2query(tiny_t5)
    monkeypatch.setattr(quest, "_load_t5", lambda *_: pytest.fail("loaded again"))
    assert quest.doc2query(tiny_t5) is loaded
    quest.doc2query.cache_clear()


def test_a_model_takes_a_gpu_for_itself_where_there_is_one():
    none, two = (Capacity(cpus=4, count_gpus=lambda count=count: count) for count in (0, 2))
    assert quest.query_resources("doc2query/model", two) == Resources(gpus=1)
    assert quest.query_resources("doc2query/model", none) == Resources()
    assert quest.query_resources("extractive", two) == Resources()
