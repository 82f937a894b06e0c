"""What `--lengths` accepts."""

import pytest

from nextlong.errors import EvaluateError
from nextlong.evaluate.lengths import parse_lengths, short


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("8k", [8192]),
        ("8k..64k", [8192, 16_384, 32_768, 65_536]),
        ("32k, 8k,8192", [8192, 32_768]),
        ("6000..13000", [6000, 12_000]),
        ("1M", [1_048_576]),
    ],
)
def test_lengths(text, lengths):
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "8x", "8k..", "64k..8k", "0", "-8k", "8k;16k"])
def test_what_is_no_length_is_refused(text):
    with pytest.raises(EvaluateError, match="--lengths"):
        parse_lengths(text)


def test_lengths_are_written_as_people_do():
    assert [short(length) for length in (8192, 1_048_576, 6000, None)] == ["8K", "1M", "6,000", "–"]
