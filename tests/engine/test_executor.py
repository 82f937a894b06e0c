import os

import pytest

from nextlong.engine.executor import Capacity, call_with_gpus, environment, granted_gpus


def fail_after(call):
    call()
    raise ZeroDivisionError


def test_variables_are_as_before_whatever_happens_meanwhile(monkeypatch):
    monkeypatch.setenv("NEXTLONG_A", "before")
    monkeypatch.delenv("NEXTLONG_B", raising=False)
    meanwhile = {}
    with pytest.raises(ZeroDivisionError), environment({"NEXTLONG_A": "1", "NEXTLONG_B": "2"}):
        fail_after(lambda: meanwhile.update(os.environ))
    assert (meanwhile["NEXTLONG_A"], meanwhile["NEXTLONG_B"]) == ("1", "2")
    assert os.environ["NEXTLONG_A"] == "before"
    assert "NEXTLONG_B" not in os.environ


def test_a_task_has_its_gpus_while_it_runs_and_no_longer():
    assert call_with_gpus((2,), lambda: (granted_gpus(), call_with_gpus((), granted_gpus), granted_gpus())) == (
        (2,),
        (),
        (2,),
    )
    with pytest.raises(ZeroDivisionError):
        call_with_gpus((1,), lambda: 1 / 0)
    assert granted_gpus() == ()


def test_gpus_are_counted_when_they_are_asked_for_and_once():
    asked = []
    capacity = Capacity(cpus=1, count_gpus=lambda: asked.append("") or 3)
    assert asked == []
    assert (capacity.gpus, capacity.gpus, asked) == (3, 3, [""])
