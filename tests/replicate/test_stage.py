import pytest

from nextlong.errors import RunError
from nextlong.replicate.stage import Stage


def test_a_stage_is_finished_once_it_says_what_came_of_it(tmp_path):
    stage = Stage(tmp_path, "data", {"a": 1, "path": tmp_path})
    assert not stage.is_finished
    with pytest.raises(RunError):
        _ = stage.record
    stage.finish({"loss": 0.5})
    assert stage.is_finished
    assert stage.record == {"loss": 0.5}


def test_a_folder_is_named_by_what_it_depends_on_in_whatever_order(tmp_path):
    one, same, other = (
        Stage(tmp_path, "data", keys) for keys in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2, "b": 2})
    )
    assert one.folder == same.folder != other.folder
    assert Stage(tmp_path, "model", {"a": 1, "b": 2}).folder not in (one.folder, other.folder)
