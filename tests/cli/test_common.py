"""Files that commands write."""

import pytest

from nextlong.cli.common import write
from nextlong.errors import NextlongError


def test_text_is_written_as_utf_8_and_bytes_as_they_are(tmp_path):
    write(tmp_path / "a", "代码\n")
    write(tmp_path / "b", b"\xff")
    assert (tmp_path / "a").read_bytes() == "代码\n".encode()
    assert (tmp_path / "b").read_bytes() == b"\xff"


def test_a_place_that_cannot_be_is_told_with_its_cure(tmp_path):
    missing = tmp_path / "none" / "a"
    with pytest.raises(NextlongError, match="folder") as caught:
        write(missing, "")
    assert caught.value.where == str(missing)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(NextlongError, match="Is a directory") as caught:
        write(folder, "")
    assert caught.value.where == str(folder)
