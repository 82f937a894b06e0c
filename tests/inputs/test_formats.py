from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.inputs.formats import FORMATS, KNOWN, format_by_name, format_of, known_format
from nextlong.recipe import Source

SUFFIXES = {suffix: made for made in FORMATS.values() for suffix in made.suffixes}


def test_the_recipe_names_every_format_that_is_read():
    assert set(get_args(Source.model_fields["format"].annotation)) == {"auto", *FORMATS}


def test_no_two_formats_claim_a_suffix():
    assert len(SUFFIXES) == sum(len(made.suffixes) for made in FORMATS.values())


@given(
    stem=st.text(max_size=8).filter(lambda stem: "/" not in stem),
    suffix=st.sampled_from(sorted(SUFFIXES)),
    compression=st.sampled_from(["", ".gz", ".zst"]),
    upper=st.booleans(),
)
def test_a_name_tells_its_format_by_its_ending_alone(stem, suffix, compression, upper):
    ending = suffix + compression
    made = SUFFIXES[suffix]
    expected = made if not compression or made.compression == "around" else None
    assert format_by_name(f"a{stem}{ending.upper() if upper else ending}") is expected


@pytest.mark.parametrize("name", ["", "a", "a.gz", ".jsonl", "a.docx", "jsonl"])
def test_other_names_tell_none(name):
    assert format_by_name(name) is None
    assert known_format(name, Source(path="x")) is None


def test_the_recipe_goes_before_the_name():
    assert format_of("a.csv", Source(path="x", format="jsonl")) is FORMATS["jsonl"]
    assert format_of("a.csv", Source(path="x")) is FORMATS["csv"]


def test_messages_list_every_suffix():
    assert KNOWN.startswith(", ".join(SUFFIXES))
    assert "parquet" not in KNOWN.partition("(")[2]
