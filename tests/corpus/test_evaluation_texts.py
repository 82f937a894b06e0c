import pytest

from nextlong.corpus.evaluation_texts import read_evaluation
from nextlong.errors import CorpusError


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.parquet", b"", "is of no known format; name files that end in json, jsonl"),
        ("a", b"", "is of no known format"),
        ("a.json", b'{"x": ', "cannot be read as json"),
        ("a.jsonl", b'{"x": 1}\n{', "cannot be read as jsonl"),
        ("a.txt", b"\xff\xfe", "cannot be read as txt"),
        ("a.txt.gz", b"no gzip", "cannot be read as txt"),
        ("a.json", b'["short text"]', "holds no text of 8 words or more and no question of 3"),
        ("a.csv", b"", "so there is nothing to look for"),
    ],
)
def test_a_file_that_cannot_serve_is_refused(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CorpusError) as error:
        read_evaluation([str(path)], ngram=13)
    assert str(path) in str(error.value)
    assert words in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CorpusError, match=r"nowhere\.json does not exist; correct the path"):
        read_evaluation([str(tmp_path / "nowhere.json")], ngram=13)
