"""What a run says of its variant when it ends."""

from pathlib import Path

import pytest

from nextlong.artefacts.names import name_of
from nextlong.cli.run import _variant

LONG = name_of({"compose.target_tokens": 262_144, "compose.position": "tail", "compose.min_meta_chunks": 3})


@pytest.mark.parametrize(
    ("name", "is_given", "is_told"), [(LONG, False, True), (LONG, True, False), ("seed=1", False, False)]
)
def test_a_long_name_that_was_made_can_be_given_otherwise(name, is_given, is_told):
    told = _variant(name, ["base", "seed=2"], Path("runs/x"), is_given=is_given)
    assert told.startswith(f"{name}, beside base, seed=2 (nextlong list runs/x)")
    assert told.endswith("; --name NAME gives it a shorter name") is is_told
