import random
import re

import pytest

from nextlong.evaluate.tasks.ruler.niah import FORMS, _build

ESSAY = ("The tide came in. A ship sailed out. " * 60).split()
VALUES = {"numbers": r"\d{7}", "uuids": r"[0-9a-f-]{36}", "words": r"\S+"}


@pytest.mark.heavy
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("seed", [1, 42])
def test_the_answers_are_the_values_of_the_keys_that_are_asked_for(name, seed, monkeypatch):
    monkeypatch.setattr("nextlong.evaluate.tasks.ruler.words.hyphenated", lambda: [f"sea-{n}" for n in range(10_000)])
    form = FORMS[name]
    built = _build(60, form=form, draw=random.Random(seed), seed=seed, essay=ESSAY)
    context, _, question = built.prompt.rpartition("\nWhat ")
    found = re.findall(rf"special magic {form.value_kind} for (\S+) is: ({VALUES[form.value_kind]})\.", context)
    asked = [(key, value) for key, value in found if re.search(rf"\b{re.escape(key)}\b", question)]
    assert len({key for key, _ in asked}) == form.queries
    assert len(asked) == form.queries * form.values
    assert {value for _, value in asked} == set(built.references)
