"""Words and stop words of texts in many scripts, and what a document without either gives."""

import sys

import pytest

from nextlong.errors import RecipeError
from nextlong.methods.quest import quest
from nextlong.methods.quest.words import find_words, letters, spaced, stop_words, stop_words_of

CHINESE = "水循环描述了水在地球表面、地下和大气中的持续运动。蒸发使海洋中的水变成水蒸气。"
JAPANESE = "水循環とは、太陽エネルギーを主因として引き起こされる地球における継続的な水の循環のことである。"
THAI = "วัฏจักรของน้ำ หมายถึงการเปลี่ยนแปลงสถานะของน้ำระหว่าง ของเหลว ของแข็ง และก๊าซ"
KHMER = "រាជធានីភ្នំពេញជារាជធានីនិងទីក្រុងធំបំផុតរបស់ប្រទេសកម្ពុជា"
LAO = "ປະເທດລາວຕັ້ງຢູ່ໃນອາຊີຕະເວັນອອກສຽງໃຕ້ ແລະ ມີປະຊາກອນ"
BURMESE = "မြန်မာနိုင်ငံသည် အရှေ့တောင်အာရှတွင် တည်ရှိသည်"
UNSPACED = (CHINESE, JAPANESE, THAI, KHMER, LAO, BURMESE)


@pytest.mark.parametrize("text", UNSPACED)
def test_scripts_without_blanks_give_keywords_of_several_words(text):
    keywords = quest.candidate_keywords(quest.extract_queries(text))
    assert keywords
    assert all(len(keyword.split()) >= 2 for keyword in keywords)
    assert "".join(spaced(text).split()) == "".join(text.split())


def test_keywords_of_chinese_are_words_between_its_stop_words():
    keywords = quest.candidate_keywords(quest.extract_queries(CHINESE))
    assert "地球 表面" in keywords
    assert not any({"了", "在", "和"} & set(keyword.split()) for keyword in keywords)
    assert quest.extract_queries(CHINESE)[1].startswith("蒸发 使 海洋")


def test_a_few_words_of_another_script_leave_a_text_as_it_is():
    text = "The word 水 means water, as in 水循环, and stands in many names of rivers, lakes and places along their shores."
    assert spaced(text) is text


def test_what_finds_words_is_named_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "icu4py", None)
    monkeypatch.setitem(sys.modules, "icu4py.breakers", None)
    with pytest.raises(RecipeError, match=r"水循环描述.*pip install 'nextlong\[languages\]'"):
        quest.extract_queries(CHINESE)
    assert quest.extract_queries("Rye bread is dense.") == ["Rye bread is dense."]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("the state of the water cycle and its parts", "en"),
        ("unter dem wasserkreislauf versteht man die bewegung des wassers auf der erde", "de"),
        ("l' eau de la terre est dans les mers et dans les rivières", "fr"),
        ("вода на земле это то что мы видим как облака и реки", "ru"),
        ("जल चक्र पृथ्वी की सतह पर और उसके ऊपर और नीचे पानी की गति का वर्णन करता है", "hi"),
        ("x = 1 ; y = 2", "en"),
        ("la mi", "en"),
    ],
)
def test_stop_words_are_those_of_the_texts_language(text, language):
    assert stop_words_of(find_words(text)) == stop_words(language)


def test_words_keep_their_marks_and_english_contractions_are_stop_words():
    assert find_words("पानी की गति, don't!") == ["पानी", "की", "गति", ",", "don't", "!"]
    assert find_words("cafe\u0301 noir") == ["cafe\u0301", "noir"]
    assert {"don't", "don’t", "it's", "the"} <= stop_words("en")


def test_an_ideograph_counts_as_three_letters():
    assert letters("循环") == 6
    assert letters("water") == 5
