import pytest
from pydantic import ValidationError

from nextlong.plugins import FORMATS
from nextlong.recipe.export import Export, terms_of


@pytest.mark.parametrize("name", FORMATS.built_in)
def test_every_format_of_the_package_may_stand_alone(name):
    export = Export(formats=name)
    assert export.formats == (name,)
    assert export.extra_tokens == terms_of(name).extra_tokens


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"formats": []}, "must name at least one format, and none of them twice"),
        (
            {"formats": ["jsonl", "jsonl"]},
            "must name at least one format, and none of them twice",
        ),
        ({"formats": "parket"}, "unknown format 'parket'; did you mean 'parquet'?"),
        (
            {"formats": ["parquet", "torchtitan"]},
            "these formats need sequences of different lengths",
        ),
        (
            {"formats": "axolotl", "pack": 8192},
            "axolotl takes a packed row for one document; set it to null",
        ),
    ],
)
def test_what_formats_cannot_take_is_refused(keys, told):
    with pytest.raises(ValidationError) as refused:
        Export(**keys)
    assert told in str(refused.value)
