"""SequenceStream: every row once over ranks and workers, in one order; interrupted epochs go on exactly."""

import json
import os
import shutil
import subprocess
import sys
from itertools import chain, islice, zip_longest

import pytest

from nextlong.errors import RecipeError, RunError

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create"
    ),  # more workers than this machine has cores
]

ROWS = 12
TORCHDATA_WARNS = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated"
)  # torchdata 0.11 beside torch 2.13


@pytest.fixture(scope="module")
def dataset(shared_run):
    from nextlong.torch import SequenceDataset

    return SequenceDataset(shared_run, columns=["input_ids"])


@pytest.fixture(scope="module")
def number_of(dataset):
    """A function of a row's token ids that returns its number."""
    numbers = {dataset[row]["input_ids"].numpy().tobytes(): row for row in range(ROWS)}
    assert len(numbers) == ROWS
    return lambda ids: numbers[ids.numpy().tobytes()]


@pytest.fixture
def loaded(number_of):
    """A function that returns the row numbers of each batch of a plain DataLoader, or of the loader given."""
    from torch.utils.data import DataLoader

    def numbers(stream, *, workers=0, batch_size=1, loader=DataLoader, **options):
        return batches_of(
            loader(stream, batch_size=batch_size, num_workers=workers, **options)
        )

    def batches_of(batches):
        return [[number_of(ids) for ids in batch["input_ids"]] for batch in batches]

    numbers.batches_of = batches_of
    return numbers


@pytest.mark.parametrize("batch_size", [1, 5])
def test_the_order_does_not_depend_on_the_workers(dataset, loaded, batch_size):
    expected = loaded(dataset.stream(batch_size=batch_size), batch_size=batch_size)
    flat = list(chain.from_iterable(expected))
    assert sorted(flat) == list(range(ROWS))
    assert flat != sorted(flat)
    for workers in (1, 2, 3):
        assert (
            loaded(
                dataset.stream(batch_size=batch_size),
                workers=workers,
                batch_size=batch_size,
            )
            == expected
        )


def test_spawned_workers_read_the_same(dataset, loaded):
    expected = loaded(dataset.stream())
    assert (
        loaded(dataset.stream(), workers=2, multiprocessing_context="spawn") == expected
    )


def test_arranged_rows_come_as_they_are(dataset, loaded):
    assert loaded(dataset.stream(order="arranged")) == [[row] for row in range(ROWS)]


def test_ranks_share_the_rows(dataset, loaded):
    whole = list(chain.from_iterable(loaded(dataset.stream())))
    ranks = [
        chain.from_iterable(loaded(dataset.stream(rank=rank, world_size=5), workers=2))
        for rank in range(5)
    ]
    dealt = [row for step in zip_longest(*ranks) for row in step if row is not None]
    assert dealt == whole


@pytest.mark.parametrize(
    ("remainder", "rows"),
    [("keep", [3, 3, 2, 2, 2]), ("drop", [2] * 5), ("repeat", [3] * 5)],
)
def test_what_does_not_go_evenly_into_the_ranks(dataset, loaded, remainder, rows):
    streams = [
        dataset.stream(remainder=remainder, rank=rank, world_size=5)
        for rank in range(5)
    ]
    assert [len(stream) for stream in streams] == rows
    assert [len(loaded(stream)) for stream in streams] == rows


def test_the_dropped_rows_are_others_in_each_shuffled_epoch_and_else_the_last_ones(
    dataset, loaded
):
    def dropped(order, epoch):
        used = set()
        for rank in range(5):
            stream = dataset.stream(
                order=order, remainder="drop", rank=rank, world_size=5
            )
            stream.set_epoch(epoch)
            used |= set(chain.from_iterable(loaded(stream)))
        return set(range(ROWS)) - used

    shuffled = [frozenset(dropped("shuffled", epoch)) for epoch in range(4)]
    assert len(set(shuffled)) > 1
    assert [dropped("arranged", epoch) for epoch in range(2)] == [{10, 11}] * 2


def test_another_epoch_is_another_order_also_for_workers_that_live_on(dataset, loaded):
    from torch.utils.data import DataLoader

    expected = []
    for epoch in range(3):
        stream = dataset.stream(seed=1)
        stream.set_epoch(epoch)
        expected.append(loaded(stream))
    assert sorted(map(sorted, expected)) == [[[row] for row in range(ROWS)]] * 3
    assert expected[0] != expected[1] != expected[2]
    stream = dataset.stream(seed=1)
    loader = DataLoader(stream, batch_size=1, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        stream.set_epoch(epoch)
        assert loaded.batches_of(loader) == expected[epoch]


# going on


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 3), (3, 0)])
@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_a_plain_loader_goes_on_with_any_number_of_workers(
    dataset, loaded, before, after, taken
):
    from torch.utils.data import DataLoader

    def stream_of_epoch_4():
        stream = dataset.stream(batch_size=4)
        stream.set_epoch(4)
        return stream

    expected = loaded(stream_of_epoch_4(), batch_size=4)
    stream = stream_of_epoch_4()
    loader = DataLoader(stream, batch_size=4, num_workers=before)
    assert loaded.batches_of(islice(loader, taken)) == expected[:taken]
    state = json.loads(json.dumps(stream.state_dict(rows=taken * 4)))
    resumed = dataset.stream(batch_size=4)
    resumed.load_state_dict(state)
    resumed.set_epoch(4)  # as a training loop says at the top of an epoch
    assert loaded(resumed, workers=after, batch_size=4) == expected[taken:]
    resumed.set_epoch(5)
    assert len(loaded(resumed, batch_size=4)) == 3


def test_a_state_of_a_resumed_epoch_counts_on(dataset, loaded):
    whole = loaded(dataset.stream())
    stream = dataset.stream()
    for _ in range(3):
        resumed = dataset.stream()
        resumed.load_state_dict(stream.state_dict(rows=2))
        stream = resumed
    assert loaded(stream) == whole[6:]


def test_without_workers_the_stream_counts_by_itself(dataset, loaded, number_of):
    whole = loaded(dataset.stream())
    stream = dataset.stream()
    rows = iter(stream)
    assert [[number_of(row["input_ids"])] for row in islice(rows, 5)] == whole[:5]
    resumed = dataset.stream()
    resumed.load_state_dict(stream.state_dict())
    assert loaded(resumed) == whole[5:]


def test_another_number_of_ranks_goes_on(dataset, loaded):
    whole = list(chain.from_iterable(loaded(dataset.stream())))
    first = dataset.stream(rank=1, world_size=3)
    states = first.state_dict(rows=2)  # all three have taken two
    ranks = []
    for rank in range(2):
        stream = dataset.stream(rank=rank, world_size=2)
        stream.load_state_dict(states)
        ranks.append(chain.from_iterable(loaded(stream)))
    assert [
        row for step in zip_longest(*ranks) for row in step if row is not None
    ] == whole[6:]


@TORCHDATA_WARNS
@pytest.mark.parametrize("of_loader", [1, 4, None])
@pytest.mark.parametrize("name", ["torch", "torchdata"])
def test_a_loader_with_several_workers_and_another_batch_size_is_refused(
    dataset, loaded, name, of_loader
):
    from torch.utils.data import DataLoader
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = DataLoader if name == "torch" else StatefulDataLoader
    stream = dataset.stream(batch_size=2)
    with pytest.raises(RecipeError, match=rf"batch_size={of_loader}, num_workers=2"):
        loaded(stream, workers=2, batch_size=of_loader, loader=loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_another_batch_size_without_several_workers_resumes_exactly(
    dataset, loaded, workers
):
    whole = list(chain.from_iterable(loaded(dataset.stream())))
    stream = dataset.stream()
    loader_rows = loaded(stream, workers=workers, batch_size=5)
    assert list(chain.from_iterable(loader_rows)) == whole
    resumed = dataset.stream(batch_size=3)
    resumed.load_state_dict(stream.state_dict(rows=5))
    after = loaded(resumed, workers=2, batch_size=3)
    assert list(chain.from_iterable(after)) == whole[5:]


def test_a_loader_without_batches_reads_single_rows(dataset, loaded, number_of):
    from torch.utils.data import DataLoader

    whole = list(chain.from_iterable(loaded(dataset.stream())))
    loader = DataLoader(dataset.stream(), batch_size=None, num_workers=2)
    assert [number_of(row["input_ids"]) for row in loader] == whole


@pytest.mark.parametrize("seeded", ["differently", "alike"])
@pytest.mark.parametrize(
    ("workers", "options"),
    [(0, {}), (2, {}), (2, {"persistent_workers": True})],
    ids=["no-workers", "workers", "persistent-workers"],
)
def test_each_iteration_after_a_resumed_one_reads_the_whole_epoch(
    dataset, loaded, workers, options, seeded
):
    import torch
    from torch.utils.data import DataLoader

    whole = loaded(dataset.stream(batch_size=2), batch_size=2)
    stream = dataset.stream(batch_size=2)
    stream.load_state_dict(stream.state_dict(rows=8))
    loader = DataLoader(stream, batch_size=2, num_workers=workers, **options)
    iterations = []
    rows_announced = []
    for _ in range(3):
        if seeded == "alike":
            torch.manual_seed(0)
        rows_announced.append(len(stream))
        iterations.append(loaded.batches_of(loader))
    assert iterations == [whole[4:], whole, whole]
    assert rows_announced == [ROWS - 8, ROWS, ROWS]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_iteration_that_is_broken_off_is_not_repeated(
    dataset, loaded, workers
):
    from torch.utils.data import DataLoader

    whole = loaded(dataset.stream(batch_size=2), batch_size=2)
    stream = dataset.stream(batch_size=2)
    stream.load_state_dict(stream.state_dict(rows=4))
    loader = DataLoader(stream, batch_size=2, num_workers=workers)
    assert loaded.batches_of(islice(loader, 1)) == whole[2:3]
    assert loaded.batches_of(loader) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_a_later_iteration_counts_from_its_beginning(
    dataset, loaded, workers
):
    from torch.utils.data import DataLoader

    whole = loaded(dataset.stream(batch_size=2), batch_size=2)
    stream = dataset.stream(batch_size=2)
    stream.load_state_dict(stream.state_dict(rows=4))
    loader = DataLoader(stream, batch_size=2, num_workers=workers)
    assert loaded.batches_of(loader) == whole[2:]
    assert loaded.batches_of(islice(loader, 3)) == whole[:3]
    resumed = dataset.stream(batch_size=2)
    resumed.load_state_dict(stream.state_dict(rows=6))
    assert loaded(resumed, batch_size=2) == whole[3:]


@TORCHDATA_WARNS
@pytest.mark.parametrize("seeded", ["differently", "alike"])
@pytest.mark.parametrize(
    ("workers", "options"),
    [(0, {}), (2, {}), (2, {"persistent_workers": True})],
    ids=["no-workers", "workers", "persistent-workers"],
)
def test_each_iteration_of_torchdata_after_a_resumed_one_reads_the_whole_epoch(
    dataset, loaded, workers, options, seeded
):
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        stream = dataset.stream(batch_size=2)
        return StatefulDataLoader(stream, batch_size=2, num_workers=workers, **options)

    whole = loaded.batches_of(loader())
    interrupted = loader()
    assert loaded.batches_of(islice(interrupted, 4)) == whole[:4]
    resumed = loader()
    resumed.load_state_dict(interrupted.state_dict())
    iterations = []
    for _ in range(3):
        if seeded == "alike":
            torch.manual_seed(0)
        iterations.append(loaded.batches_of(resumed))
    assert iterations == [whole[4:], whole, whole]
    at_the_end = loader()
    at_the_end.load_state_dict(resumed.state_dict())
    assert loaded.batches_of(at_the_end) == whole


@TORCHDATA_WARNS
@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("taken", [1, 3, 5])
def test_torchdata_keeps_the_state(dataset, loaded, workers, taken):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        return StatefulDataLoader(
            dataset.stream(batch_size=2), batch_size=2, num_workers=workers
        )

    expected = loaded.batches_of(loader())
    interrupted = loader()
    assert loaded.batches_of(islice(interrupted, taken)) == expected[:taken]
    state = interrupted.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert loaded.batches_of(resumed) == expected[taken:]
    resumed.dataset.set_epoch(1)
    assert sorted(chain.from_iterable(loaded.batches_of(resumed))) == list(range(ROWS))


@TORCHDATA_WARNS
def test_torchdata_keeps_the_state_of_the_map_style_set(dataset, loaded):
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        generator = torch.Generator().manual_seed(3)
        return StatefulDataLoader(
            dataset, batch_size=2, shuffle=True, num_workers=2, generator=generator
        )

    expected = loaded.batches_of(loader())
    interrupted = loader()
    assert loaded.batches_of(islice(interrupted, 2)) == expected[:2]
    state = interrupted.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert loaded.batches_of(resumed) == expected[2:]


# where the ranks come from


RANK = """
import json, os, sys
import torch.distributed as dist
from nextlong.torch import SequenceDataset
run, meeting = sys.argv[1:]
before = SequenceDataset(run).stream()
place = [before.rank, before.world_size]
os.environ.update(RANK="7", WORLD_SIZE="9")
dist.init_process_group("gloo", init_method="file://" + meeting, rank=place[0], world_size=place[1])
after = SequenceDataset(run).stream()
print(json.dumps([place, [after.rank, after.world_size]]))
dist.destroy_process_group()
"""


def test_ranks_come_from_torchrun_or_torch_distributed(shared_run, tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(shared_run), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"},
            text=True,
        )
        for rank in range(2)
    ]
    assert [json.loads(one.communicate()[0]) for one in started] == [
        [[0, 2], [0, 2]],
        [[1, 2], [1, 2]],
    ]


# what cannot be met


@pytest.mark.parametrize(
    ("arguments", "where", "value"),
    [
        ({"rank": 2, "world_size": 2}, "rank", "2"),
        ({"rank": 0}, "rank=0 and world_size=None", None),
        ({"order": "random"}, "order", "'random'"),
        ({"remainder": "pad"}, "remainder", "'pad'"),
        ({"batch_size": 0}, "batch_size", "0"),
        (
            {"remainder": "drop", "rank": 3, "world_size": ROWS + 1},
            "world_size",
            "13",
        ),
    ],
)
def test_arguments_that_cannot_be_met(dataset, arguments, where, value):
    with pytest.raises(RecipeError) as error:
        dataset.stream(**arguments)
    assert (error.value.where, error.value.value) == (where, value)


def test_a_state_that_only_workers_know(dataset, loaded):
    stream = dataset.stream()
    loaded(stream, workers=2)
    with pytest.raises(RunError) as error:
        stream.state_dict()
    assert error.value.where == "state_dict"
    assert "state_dict(rows=batches * batch_size)" in error.value.fix


def test_a_state_of_another_order(dataset):
    with pytest.raises(RunError) as error:
        dataset.stream(seed=1).load_state_dict(dataset.stream().state_dict(rows=0))
    assert error.value.where == "state"


@pytest.mark.parametrize("name", ["tail", "tokenizer", "seed"])
def test_a_state_of_other_sequences_of_the_same_lengths_is_refused(
    dataset, dataset_of, other_runs, name
):
    other = dataset_of(other_runs[name], columns=["input_ids"])
    assert len(other) == len(dataset)
    state = dataset.stream(seed=3).state_dict(rows=10)
    with pytest.raises(RunError, match="other settings"):
        other.stream(seed=3).load_state_dict(state)


def test_a_state_of_a_mix_with_another_run_is_refused(
    shared_run, dataset_of, other_runs, short_run
):
    mixed = dataset_of([short_run, shared_run])
    other = dataset_of([short_run, other_runs["tail"]])
    assert len(other) == len(mixed)
    state = mixed.stream().state_dict(rows=10)
    with pytest.raises(RunError, match="other settings"):
        other.stream().load_state_dict(state)


def test_a_state_of_a_copy_of_the_run_is_loaded(
    dataset, dataset_of, shared_run, tmp_path, loaded
):
    copy = dataset_of(shutil.copytree(shared_run, tmp_path / "copy"))
    stream = copy.stream()
    stream.load_state_dict(dataset.stream().state_dict(rows=10))
    assert loaded(stream) == loaded(dataset.stream())[10:]


def test_a_state_of_one_of_several_workers(dataset):
    state = dataset.stream().state_dict(rows=0) | {"workers": 3}
    with pytest.raises(RunError, match="one of 3 workers, but there are 1"):
        dataset.stream().load_state_dict(state)


@TORCHDATA_WARNS
def test_a_state_of_several_workers_with_other_batches_is_refused(dataset):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader(batch_size):
        stream = dataset.stream(batch_size=batch_size)
        return StatefulDataLoader(stream, batch_size=batch_size, num_workers=2)

    interrupted = loader(2)
    next(iter(interrupted))
    resumed = loader(3)
    resumed.load_state_dict(interrupted.state_dict())
    with pytest.raises(RunError, match="batches of 2 rows, but batch_size=3"):
        next(iter(resumed))
