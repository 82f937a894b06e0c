"""Which variant a name means, and what a directory stands for."""

from pathlib import Path

import pytest

import nextlong
from nextlong.artefacts import record
from nextlong.errors import RunError


def test_a_name_is_split_off_only_where_it_is_one(tmp_path):
    assert record.split_name(tmp_path / "run") == (tmp_path / "run", None)
    assert record.split_name(f"{tmp_path}/run@a=1,b.c=2") == (tmp_path / "run", "a=1,b.c=2")
    assert record.split_name("mail@home/run") == (Path("mail@home/run"), None)
    (tmp_path / "run@home").mkdir()
    assert record.split_name(tmp_path / "run@home") == (tmp_path / "run@home", None)
    (tmp_path / "run" / "variants").mkdir(parents=True)
    (tmp_path / "run" / "variants" / "home.json").write_text("{}")
    assert record.split_name(tmp_path / "run@home") == (tmp_path / "run", "home")


def test_a_variant_opens_by_its_name_and_alone_by_the_directory(own_run):
    run = nextlong.open(own_run)
    assert (run.variant.name, str(run)) == ("base", str(own_run))
    assert str(nextlong.open(f"{own_run}@base")) == f"{own_run}@base"
    with pytest.raises(RunError, match=r"has no variant 'best'; it has: base \(`nextlong list "):
        nextlong.open(f"{own_run}@best")


@pytest.mark.parametrize("text", ["[]", "{}", '{"recipe": {}, "steps": [], "sequences_per_part": [], "made": ""}'])
def test_a_record_that_is_none(own_run, text):
    (own_run / "variants" / "base.json").write_text(text)
    with pytest.raises(RunError, match=r"base\.json is not the record of a variant"):
        nextlong.open(own_run)
