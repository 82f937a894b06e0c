"""Whatever is passed to nextlong.torch, a NextlongError says what is wrong; torch's scalars are numbers."""

import numpy as np
import pytest
from tests.support.odd_arguments import ODD, accepted

from nextlong.errors import ArgumentError

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def odd():
    import torch

    tensors = {"fractions": torch.tensor([0.5, 1.5]), "a fraction": torch.tensor(1.5)}
    return ODD | tensors


@pytest.fixture(scope="module")
def dataset(shared_run, dataset_of):
    return dataset_of(shared_run)


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("run", set()),
        ("mix", {"None"}),
        ("by", set()),
        ("split", {"None"}),
        ("validation", {"None"}),
        ("shared_chunks", set()),
        ("split_seed", set()),
        ("pack", {"None"}),
        ("boundaries", set()),
        ("pad_documents_to", set()),
        ("pad_id", {"None"}),
        ("columns", set()),
    ],
)
def test_odd_arguments_of_a_dataset(shared_run, dataset_of, odd, name, takes):
    def call(value):
        return dataset_of(**{"run": shared_run} | {name: value})

    assert accepted(call, odd) == takes


@pytest.mark.filterwarnings("ignore:the mix takes no sequence")
def test_odd_values_within_the_arguments_of_a_dataset(
    shared_run, short_run, dataset_of, odd
):
    two = [shared_run, short_run]
    split = {"run": shared_run, "split": "train"}
    calls = {
        "run": lambda value: dataset_of([shared_run, value]),
        "mix": lambda value: dataset_of(two, mix=[1, value]),
        "validation": lambda value: dataset_of(**split, validation=value),
        "seed": lambda value: dataset_of(**split, validation=0.3, split_seed=value),
    }
    takes = {name: accepted(call, odd) for name, call in calls.items()}
    assert takes == {
        "run": set(),
        "mix": {"1.5", "2**70", "a fraction"},
        "validation": set(),
        "seed": {"-1"},
    }


def test_arrays_and_scalars_of_numpy_and_torch_are_numbers(
    shared_run, short_run, dataset_of
):
    import torch

    two = [shared_run, short_run]
    expected = dataset_of(two, mix=[1, 2], pack=4096).rows.fingerprint
    for mix in (np.array([1.0, 2.0]), torch.tensor([1, 2]), [np.int64(1), 2]):
        packed = dataset_of(two, mix=mix, pack=torch.tensor(4096))
        assert packed.rows.fingerprint == expected


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("order", set()),
        ("seed", {"-1"}),
        ("batch_size", set()),
        ("remainder", set()),
        ("rank", {"None"}),
        ("world_size", {"None"}),
    ],
)
def test_odd_arguments_of_a_stream(dataset, odd, name, takes):
    assert accepted(lambda value: dataset.stream(**{name: value}), odd) == takes


def test_a_seed_of_torch_gives_the_order_of_its_number(dataset):
    import torch

    def first_row(seed):
        return next(iter(dataset.stream(seed=seed)))["input_ids"].tolist()

    assert first_row(torch.tensor(5)) == first_row(np.int64(5)) == first_row(5)
    stream = dataset.stream(seed=torch.tensor(5))
    stream.load_state_dict(dataset.stream(seed=5).state_dict(rows=torch.tensor(4)))


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_a_rank_in_the_environment_that_is_no_number(dataset, monkeypatch, name):
    monkeypatch.setenv(name, "first")
    with pytest.raises(ArgumentError, match=f"{name}='first'"):
        dataset.stream()


def test_odd_arguments_of_the_methods_of_a_stream(dataset, odd):
    from nextlong.torch import SequenceStream

    stream = dataset.stream()
    assert accepted(SequenceStream, odd) == set()
    assert accepted(stream.set_epoch, odd) == set()
    assert accepted(stream.load_state_dict, odd) == set()
    # Nothing was read by this process, so None does not do either.
    assert accepted(lambda value: stream.state_dict(rows=value), odd) == set()


def test_a_state_with_odd_values_or_without_one(dataset, odd):
    state = dataset.stream().state_dict(rows=3)
    for key in state:
        without = {name: value for name, value in state.items() if name != key}
        with pytest.raises(ArgumentError, match=f"has no '{key}'"):
            dataset.stream().load_state_dict(without)

        def load(value, key=key):
            dataset.stream().load_state_dict(state | {key: value})

        assert accepted(load, odd) == set()
    with pytest.raises(ArgumentError, match=r"state\['position'\]=13 is above 12"):
        dataset.stream().load_state_dict(state | {"position": 13})


def test_odd_arguments_of_collate(dataset, odd):
    from nextlong.torch import collate

    rows = [dataset[0], dataset[1]]
    calls = {
        "rows": collate,
        "row": lambda value: collate([rows[0], value]),
        "layout": lambda value: collate(rows, layout=value),
        "pad_id": lambda value: collate(rows, pad_id=value),
    }
    takes = {name: accepted(call, odd) for name, call in calls.items()}
    assert takes == {name: set() for name in calls}
    other = {"input_ids": rows[1]["input_ids"]}
    with pytest.raises(ArgumentError) as error:
        collate([rows[0], other])
    assert error.value.where == "rows[1]"


def test_odd_numbers_of_a_row(dataset, odd):
    # -1 is the last row, and 2**70 an index out of range, as for a list.
    others = {name: odd[name] for name in odd if name not in ("-1", "2**70")}
    assert accepted(dataset.__getitem__, others) == set()
    assert accepted(dataset.__getitem__, {"an array": np.array(3)}) == {"an array"}
