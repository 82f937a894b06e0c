from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from nextlong.engine.step import Step
from nextlong.errors import EncoderError, RecipeError
from nextlong.methods import keywords as keywords_module
from nextlong.methods.keywords import (
    _find_words,
    _key_phrases,
    _spaced,
    _stop_words,
    _stop_words_of,
    keywords_step,
)


def test_extracted_queries_are_the_first_line_and_the_central_sentences_in_reading_order():
    text = "Rye bread\nNothing here counts. Rye flour makes rye bread dense. See example.org for 3.5 more! Bread of rye."
    assert keywords_module._extract_queries(text, max_queries=3) == [
        "Rye bread",
        "Rye flour makes rye bread dense.",
        "Bread of rye.",
    ]
    assert keywords_module._extract_queries(text, max_queries=1) == ["Rye bread"]
    assert "See example.org for 3.5 more!" in keywords_module._extract_queries(
        text, max_queries=9
    )
    assert keywords_module._extract_queries(" \n\t") == []


def test_the_keywords_of_all_shards_are_read_in_order(tmp_path):
    schema = pa.schema([("keywords", pa.list_(pa.uint64()))])
    for shard, rows in enumerate([[[2**63, 7], []], [[3]]]):
        with pa.ipc.new_file(
            str(tmp_path / f"{shard}.keywords.arrow"), schema
        ) as writer:
            writer.write_batch(
                pa.record_batch([pa.array(rows, schema.field(0).type)], schema=schema)
            )
    read = keywords_module.read_keywords(sorted(tmp_path.glob("*.keywords.arrow")))
    assert read.to_pylist() == [[2**63, 7], [], [3]]


def test_missing_transformers_names_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(EncoderError) as refused:
        keywords_module._Doc2Query("some/model")
    assert refused.value.where == "quest.queries=some/model"
    assert "nextlong[quest]" in refused.value.fix


WORDS = ["bread", "flour", "moon", "rye", "sea", "star", "tide", "wave"]


@pytest.fixture(scope="module")
def tiny_t5(tmp_path_factory):
    """The folder of a small T5 over a vocabulary of words, taught in two seconds to say the first in the alphabet that it reads."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = str(tmp_path_factory.mktemp("t5"))
    vocabulary = {
        word: place for place, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])
    }
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, **special
    ).save_pretrained(folder)
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
        first = torch.where(places < lengths, texts, len(vocabulary)).amin(
            1, keepdim=True
        )
        texts = torch.where(
            places < lengths, texts, torch.where(places == lengths, 1, 0)
        )
        labels = torch.cat([first, torch.ones(64, 1, dtype=torch.int64)], dim=1)
        model(
            input_ids=texts, attention_mask=(places <= lengths).long(), labels=labels
        ).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


@pytest.mark.heavy
def test_doc2query_gives_a_query_a_segment(tiny_t5, monkeypatch):
    monkeypatch.setattr(keywords_module, "_MAX_SEGMENTS", 2)
    monkeypatch.setattr(keywords_module, "_QUERY_TOKENS", 6)
    texts = [
        "rye bread sea tide star",
        "moon",
        "",
        "wave star flour flour moon bread sea",
        "sea tide sea sea wave",
    ]
    # Segments of three words, at most two of them; equal queries of a document count
    # once.
    expected = [["bread", "star"], ["moon"], [], ["flour", "bread"], ["sea"]]
    for batch_size in (1, 2, 100):
        model = keywords_module._Doc2Query(
            tiny_t5, device="cpu", segment_tokens=4, batch_size=batch_size
        )
        assert model.queries(texts) == expected


@pytest.mark.heavy
def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(EncoderError) as refused:
        keywords_module._Doc2Query(str(tmp_path))
    assert (refused.value.where, refused.value.value) == (
        "quest.queries",
        str(tmp_path),
    )


@pytest.mark.heavy
def test_a_worker_loads_a_model_once_for_all_shards(tiny_t5, monkeypatch):
    keywords_module._doc2query.cache_clear()
    loaded = keywords_module._doc2query(tiny_t5)
    monkeypatch.setattr(
        keywords_module._Doc2Query, "__init__", lambda *_: pytest.fail("loaded again")
    )
    assert keywords_module._doc2query(tiny_t5) is loaded
    keywords_module._doc2query.cache_clear()


def test_rake_scores_by_hand():
    # deep: in phrases of 3 and 2, (3 + 2) / 2; learning 3; models (3 + 1) / 2; networks
    # 2
    assert _key_phrases("Deep learning models and deep networks, models.") == [
        ("deep learning models", 7.5),
        ("deep networks", 4.5),
        ("models", 2.0),
    ]


def test_rake_knows_no_alphabet_and_gives_nothing_for_numbers():
    assert _key_phrases("величина дома") == [("величина дома", 4.0)]
    assert _key_phrases("growth rate 2023. 1999") == [
        ("growth rate 2023", 4.0),
        ("1999", 0.0),
    ]
    assert _key_phrases("It's the one that isn't.\n \u2014") == []


CHINESE = (
    "水循环描述了水在地球表面、地下和大气中的持续运动。蒸发使海洋中的水变成水蒸气。"
)
JAPANESE = "水循環とは、太陽エネルギーを主因として引き起こされる地球における継続的な水の循環のことである。"
THAI = "วัฏจักรของน้ำ หมายถึงการเปลี่ยนแปลงสถานะของน้ำระหว่าง ของเหลว ของแข็ง และก๊าซ"
KHMER = "រាជធានីភ្នំពេញជារាជធានីនិងទីក្រុងធំបំផុតរបស់ប្រទេសកម្ពុជា"
LAO = "ປະເທດລາວຕັ້ງຢູ່ໃນອາຊີຕະເວັນອອກສຽງໃຕ້ ແລະ ມີປະຊາກອນ"
BURMESE = "မြန်မာနိုင်ငံသည် အရှေ့တောင်အာရှတွင် တည်ရှိသည်"
UNSPACED = (CHINESE, JAPANESE, THAI, KHMER, LAO, BURMESE)


@pytest.mark.parametrize("text", UNSPACED)
def test_scripts_without_blanks_give_keywords_of_several_words(text):
    keywords = keywords_module._candidate_keywords(
        keywords_module._extract_queries(text), keywords_module.Keywords()
    )
    assert keywords
    assert all(len(keyword.split()) >= 2 for keyword in keywords)
    assert "".join(_spaced(text).split()) == "".join(text.split())


def test_keywords_of_chinese_are_words_between_its_stop_words():
    keywords = keywords_module._candidate_keywords(
        keywords_module._extract_queries(CHINESE), keywords_module.Keywords()
    )
    assert "地球 表面" in keywords
    assert not any({"了", "在", "和"} & set(keyword.split()) for keyword in keywords)
    assert keywords_module._extract_queries(CHINESE)[1].startswith("蒸发 使 海洋")


def test_a_few_words_of_another_script_leave_a_text_as_it_is():
    text = "The word 水 means water, as in 水循环, and stands in many names of rivers, lakes and places along their shores."
    assert _spaced(text) is text


def test_what_finds_words_is_named_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "icu4py", None)
    monkeypatch.setitem(sys.modules, "icu4py.breakers", None)
    with pytest.raises(RecipeError) as refused:
        keywords_module._extract_queries(CHINESE)
    assert (refused.value.where, refused.value.value) == ("compose.method", "quest")
    assert "水循环描述" in refused.value.problem
    assert "nextlong[languages]" in refused.value.fix
    assert keywords_module._extract_queries("Rye bread is dense.") == [
        "Rye bread is dense."
    ]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("the state of the water cycle and its parts", "en"),
        (
            "unter dem wasserkreislauf versteht man die bewegung des wassers auf der erde",
            "de",
        ),
        ("l' eau de la terre est dans les mers et dans les rivières", "fr"),
        ("вода на земле это то что мы видим как облака и реки", "ru"),
        ("जल चक्र पृथ्वी की सतह पर और उसके ऊपर और नीचे पानी की गति का वर्णन करता है", "hi"),
        ("x = 1 ; y = 2", "en"),
        ("la mi", "en"),
    ],
)
def test_stop_words_are_those_of_the_texts_language(text, language):
    assert _stop_words_of(_find_words(text)) == _stop_words(language)


def test_words_keep_their_marks_and_english_contractions_are_stop_words():
    assert _find_words("पानी की गति, don't!") == [
        "पानी",
        "की",
        "गति",
        ",",
        "don't",
        "!",
    ]
    assert _find_words("cafe\u0301 noir") == ["cafe\u0301", "noir"]
    assert {"don't", "don’t", "it's", "the"} <= _stop_words("en")


def test_an_ideograph_counts_as_three_letters():
    least = keywords_module.Keywords(min_keyword_score=1, min_keyword_chars=6)
    assert keywords_module._candidate_keywords(["循环"], least) == ["循环"]
    assert keywords_module._candidate_keywords(["water"], least) == []


def test_a_local_model_is_the_same_from_every_working_directory(tmp_path, monkeypatch):
    (tmp_path / "models" / "a").mkdir(parents=True)
    (tmp_path / "models" / "a" / "config.json").write_text("{}")
    corpus = Step("ingest", 1, {}, (), lambda done: [])

    def fingerprint(queries):
        options = keywords_module.Keywords(queries=queries)
        return keywords_step("quest", options, corpus, corpus).fingerprint

    monkeypatch.chdir(tmp_path)
    from_above = fingerprint("models/a")
    monkeypatch.chdir(tmp_path / "models")
    assert fingerprint("a") == from_above != fingerprint("extractive")
