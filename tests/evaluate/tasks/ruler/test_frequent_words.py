from collections import Counter
from itertools import islice

import pytest

from evaluation_data import word_tokenizer
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request
from nextlong.evaluate.tasks.ruler.frequent_words import samples

pytestmark = pytest.mark.heavy  # SciPy's zeta


def test_the_answers_are_the_most_frequent_words_behind_the_dots():
    request = Request(2048, TextTokenizer(word_tokenizer()), None)
    for sample in islice(samples(request), 3):
        text = sample.prompt.partition("coded words. ")[2].partition("\nQuestion")[0]
        counts = Counter(text.split()).most_common(4)
        assert counts[0][0] == "..."
        assert {word for word, _ in counts[1:]} == set(sample.references)
        assert request.fits(sample)
