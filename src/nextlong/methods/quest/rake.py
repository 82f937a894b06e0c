"""RAKE: the key phrases of a text, by how its words keep company.

In:  a text. Out: phrases with scores, best first.
Rose, Engel, Cramer, Cowley: "Automatic Keyword Extraction from Individual Documents" (2010). A phrase is a run of words
between stop words and punctuation; a word scores degree / frequency, its degree the sum of the lengths of the phrases
that it stands in; a phrase scores the sum of its words. A phrase of two words that stand nowhere else scores 4, a lone
word 1. Numbers stay in a phrase but score nothing, else every year would make a keyword. Without the paper's joining of
phrases over inner stop words.

Why our own: of the libraries, rake-nltk (last release 2021-09), python-rake (2020-11), multi-rake and rake-spacy (2021)
are not maintained; RAKEkeywords (0.3.1, 2026-09) is, but counts only ASCII letters as words ("величина дома" scores 0) and
takes 4.8 ms for 600 characters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nextlong.methods.quest.words import find_words, is_word, stop_words_of


def key_phrases(text: str, *, stop_words: frozenset[str] | None = None) -> list[tuple[str, float]]:
    """Return (phrase, score) of every distinct phrase, in lower case, descending; equal scores in alphabetical order.

    Without `stop_words` those of the text's language are taken.
    """
    words = find_words(text.lower())
    phrases = _phrases(words, stop_words_of(words) if stop_words is None else stop_words)
    frequency: Counter[str] = Counter()
    degree: Counter[str] = Counter()
    for phrase in phrases:
        words = [word for word in phrase if not word.isnumeric()]
        for word in words:
            frequency[word] += 1
            degree[word] += len(words)
    word_score = {word: degree[word] / frequency[word] for word in frequency}
    scores = {" ".join(phrase): sum(word_score.get(word, 0.0) for word in phrase) for phrase in phrases}
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def _phrases(words: Sequence[str], stop_words: frozenset[str]) -> list[tuple[str, ...]]:
    phrases: list[tuple[str, ...]] = []
    run: list[str] = []
    for word in [*words, "\n"]:
        if is_word(word) and word not in stop_words:
            run.append(word)
        elif run:
            phrases.append(tuple(run))
            run = []
    return phrases
