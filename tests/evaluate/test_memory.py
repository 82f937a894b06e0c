"""Memory: the device that a model would be loaded onto, and what it has."""

from types import SimpleNamespace

import pytest

from nextlong.errors import EvaluateError
from nextlong.evaluate.memory import device_memory


@pytest.fixture
def gpus(monkeypatch):
    """Return what gives the machine so many GPUs of 80 GiB; torch asserts for those that it lacks."""
    import torch

    def give(count):
        def properties(device):
            if (torch.device(device).index or 0) >= count:
                raise AssertionError(
                    "Invalid device id"
                    if count
                    else "Torch not compiled with CUDA enabled"
                )
            return SimpleNamespace(total_memory=80 * 2**30)

        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)

    return give


@pytest.mark.heavy
def test_the_memory_is_that_of_the_device(gpus, monkeypatch):
    from nextlong.evaluate import memory

    monkeypatch.setattr(memory, "memory_bytes", lambda: 1)
    gpus(2)
    assert [device_memory(name) for name in ("auto", "cuda:1", "cpu")] == [
        ("cuda", 80 * 2**30),
        ("cuda:1", 80 * 2**30),
        ("this machine", 1),
    ]
    gpus(0)
    assert device_memory("auto") == ("this machine", 1)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("count", "device", "told"),
    [
        (
            2,
            "cuda:7",
            "--device cuda:7: Invalid device id; choose from auto, cpu, cuda:0, cuda:1",
        ),
        (
            0,
            "cuda",
            "--device cuda: Torch not compiled with CUDA enabled; choose from auto, cpu",
        ),
        (0, "gpu", "--device gpu: Expected one of cpu, cuda, "),
    ],
)
def test_a_device_that_is_not_there_is_told_with_those_that_are(
    gpus, count, device, told
):
    gpus(count)
    with pytest.raises(EvaluateError) as error:
        device_memory(device)
    assert str(error.value).startswith(told)
