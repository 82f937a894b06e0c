"""Results: what tasks tell stands in manifests as JSON and comes back as it was, also of versions that told less."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nextlong.artifacts import results
from nextlong.artifacts.results import DraftResult
from nextlong.engine.step import TaskResult
from nextlong.export.arrange import RowsResult, SplitResult

KINDS = [kind for kind in vars(results).values() if isinstance(kind, type) and issubclass(kind, TaskResult)]
KINDS += [SplitResult, RowsResult]
NUMBERS = {float: st.floats(allow_nan=False, allow_infinity=False)}


def of_field(annotation):
    return NUMBERS.get(annotation, st.from_type(annotation))


@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_every_result_comes_back_from_a_manifest_as_it_was(data, kind):
    fields = {name: of_field(field.annotation) for name, field in kind.model_fields.items()}
    told = data.draw(st.builds(kind, **fields))
    assert kind.model_validate(json.loads(json.dumps(told.model_dump(mode="json")))) == told


def test_results_cannot_be_changed():
    told = SplitResult(rows=1, sequences=2, documents=3, tokens=4)
    with pytest.raises(ValidationError, match="frozen"):
        told.rows = 2


def test_what_a_later_version_adds_is_passed_over():
    assert DraftResult.model_validate({"drafts": 3, "dropped": {}, "moods": [1]}) == DraftResult(drafts=3, dropped={})
