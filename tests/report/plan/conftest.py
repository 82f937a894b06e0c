"""The recipe that most plans are made of."""

import json

import pytest
from tests.support.planned import TEXTS, recipe_in


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    )
    return recipe_in(tmp_path)
