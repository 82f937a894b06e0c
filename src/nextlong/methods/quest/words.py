"""Words: the words of a text in any script, and the stop words of its language.

In:  a text. Out: the same text with blanks between the words of scripts that are written without them; a set of stop words.

Chinese, Japanese, Thai, Lao, Khmer and Burmese are segmented by ICU's dictionaries (icu4py 1.2.0, October 2026, MIT, 16 MB, an
extra): one maintained library for all of them, 1.6 million characters a second. BudouX (126 KB) gives phrases, not words, and
lacks three of the six; jieba's last release is of 2020. Stop words of 57 languages come from stopwordsiso (July 2026, MIT, 75 KB).
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from nextlong.errors import RecipeError

_UNSPACED: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED_RUN: Final = re.compile(f"[{_UNSPACED}]+")
_IS_LATIN: Final = re.compile(
    "[\0-\u02ff\u2000-\u206f]*"
).fullmatch  # whose words hold no marks apart from their letters
_LATIN_TOKENS: Final = re.compile(r"\w+(?:['’\-]\w+)*|[^\w\s]|\n")
_IDEOGRAPH: Final = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_LEAST_UNSPACED: Final = 0.1  # of a text's characters; below, names and quotations in another language
_LANGUAGE_WORDS: Final = 200  # tell the language of a text
_SURELY_ENGLISH: Final = 0.2  # of the words; no list of another language needs to be looked into
_FEW_STOP_WORDS: Final = 2  # of them tell no language: titles, formulas, names
_MARGIN: Final = 1.5
_ENGLISH: Final = "en"
# The commonest function words of languages for which stopwordsiso has none.
_OTHER_STOP_WORDS: Final = {
    "km": "និង ជា របស់ នៅ ក្នុង ដែល បាន មាន ពី ទៅ នេះ នោះ ដោយ ឬ ក៏ នឹង ត្រូវ ដើម្បី ជាមួយ លើ មួយ ដល់ គឺ ការ មិន",
    "lo": "ແລະ ທີ່ ຂອງ ໃນ ເປັນ ມີ ໄດ້ ຈາກ ຢູ່ ຢູ່ໃນ ນີ້ ນັ້ນ ຫຼື ໃຫ້ ກັບ ແມ່ນ ການ ຄວາມ ຈະ ບໍ່ ໂດຍ ເພື່ອ",
    "my": "သည် က ကို နှင့် ၏ မှ တွင် ဖြစ် များ သော တို့ ရန် မှာ ပါ သို့ ၍ ခဲ့ ရှိ လည်း တစ် ဖြင့် အား ဖြစ်သည် ရှိသည်",
}


def spaced(text: str) -> str:
    """Return a text with blanks between the words of Chinese, Japanese, Thai, Lao, Khmer and Burmese, if it is written in these.

    Raises RecipeError if icu4py is not installed.
    """
    runs = _UNSPACED_RUN.findall(text)
    if sum(map(len, runs)) <= _LEAST_UNSPACED * len(text):
        return text
    try:
        from icu4py.breakers import WordBreaker
    except ImportError:
        raise RecipeError(
            f"compose.method=quest reads keywords from words, and the text {runs[0][:20]!r} … is written without blanks between "
            "them; pip install 'nextlong[languages]'"
        ) from None
    return _UNSPACED_RUN.sub(lambda run: f" {' '.join(WordBreaker(run[0], 'und'))} ", text)


def find_words(text: str) -> list[str]:
    """Return the words of a text whose words are apart, its punctuation marks and its newlines, in order."""
    return (_LATIN_TOKENS if _IS_LATIN(text) else _tokens()).findall(text)


@functools.cache
def _tokens() -> re.Pattern[str]:
    """Words begin with a letter, a digit or an underscore; vowel signs and other marks, which `\\w` leaves out, continue them."""
    is_mark = ((code, unicodedata.category(chr(code)).startswith("M")) for code in range(0x300, sys.maxunicode >> 3))
    marks = [[code for code, _ in group] for found, group in groupby(is_mark, key=lambda pair: pair[1]) if found]
    inside = "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in marks)
    word = rf"\w[\w{inside}]*"
    return re.compile(rf"{word}(?:['’\-]{word})*|[^\w\s]|\n")


def is_word(token: str) -> bool:
    """Say whether a token of `find_words` is a word."""
    return token[0].isalnum() or token[0] == "_"


def letters(phrase: str) -> int:
    """Return the length of a phrase in letters; an ideograph says as much as three."""
    return len(phrase) + 2 * len(_IDEOGRAPH.findall(phrase))


def stop_words_of(words: Iterable[str]) -> frozenset[str]:
    """Return the stop words of the language to which most of the words belong as stop words; of English where few do."""
    return stop_words(
        _language_of([word for word in words if is_word(word) and not word[0].isdigit()][:_LANGUAGE_WORDS])
    )


def _language_of(words: Sequence[str]) -> str:
    if sum(word in stop_words(_ENGLISH) for word in words) > _SURELY_ENGLISH * len(words):
        return _ENGLISH
    counts = Counter(language for word in words for language in _languages_of().get(word, ()))
    best = max(counts, key=lambda language: (counts[language], language), default=_ENGLISH)
    return best if counts[best] > max(_FEW_STOP_WORDS, _MARGIN * counts[_ENGLISH]) else _ENGLISH


@functools.cache
def _languages_of() -> dict[str, list[str]]:
    """Return the languages of which each word is a stop word."""
    import stopwordsiso

    languages: dict[str, list[str]] = {}
    for language in [*stopwordsiso.langs(), *_OTHER_STOP_WORDS]:
        for word in stop_words(language):
            languages.setdefault(word, []).append(language)
    return languages


@functools.cache
def stop_words(language: str) -> frozenset[str]:
    """Return the stop words of a language; of English scikit-learn's 318, with contractions."""
    import stopwordsiso
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    if language == _ENGLISH:
        contracted = {word.replace("’", "'") for word in stopwordsiso.stopwords(_ENGLISH) if "'" in word or "’" in word}
        return frozenset(ENGLISH_STOP_WORDS) | contracted | {word.replace("'", "’") for word in contracted}
    if language in _OTHER_STOP_WORDS:
        return frozenset(_OTHER_STOP_WORDS[language].split())
    return frozenset(stopwordsiso.stopwords(language))
