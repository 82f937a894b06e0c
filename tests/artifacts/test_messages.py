"""The wording of errors about the records of a run directory."""

import pytest

import nextlong
from nextlong.errors import RunError


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("@best", "it has no variant 'best'; name one that it has: base (`nextlong "),
        ("/nowhere", "it does not exist; name the run_dir of a finished recipe"),
        ("/run.json", "it is a file, not a run directory; name the run_dir of the rec"),
    ],
)
def test_what_cannot_be_opened_is_told_with_what_can(shared_run, name, message):
    with pytest.raises(RunError) as error:
        nextlong.open(f"{shared_run}{name}")
    assert message in str(error.value)


def test_a_damaged_record_is_told_with_what_to_delete(own_run):
    record = own_run / "variants" / "base.json"
    record.write_text("[]")
    with pytest.raises(RunError) as error:
        nextlong.open(own_run)
    assert str(error.value) == (
        f"{record}: it is not the record of a variant; delete this file and run its "
        "recipe again"
    )
