import pytest

from nextlong.plural import counted


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [
        (0, "chunk", "0 chunks"),
        (1, "chunk", "1 chunk"),
        (2, "query", "2 queries"),
        (1, "query", "1 query"),
        (2, "key", "2 keys"),
        (1024, "sequence", "1,024 sequences"),
    ],
)
def test_a_number_and_its_noun_agree(count, noun, expected):
    assert counted(count, noun) == expected
