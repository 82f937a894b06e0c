import math

import pytest

from nextlong.errors import EvaluateError
from nextlong.evaluate.extra import required


def test_a_module_that_is_there_is_returned():
    assert required("math") is math


@pytest.mark.parametrize(
    ("name", "extra"), [("no_such_package.inside", "evaluate"), ("lm_eval", "short-text"), ("vllm", "vllm")]
)
def test_one_that_is_missing_is_named_with_its_extra(name, extra, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(EvaluateError, match=rf"is not installed; say: pip install 'nextlong\[{extra}\]'"):
        required(name)
