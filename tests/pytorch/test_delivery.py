"""What ranks and workers deliver is what the plan says, however epochs are stopped, resumed and mixed.

The plan is made of plain lists: which sequences of the runs are in which row, the order
of the epoch, and a slice of it for each rank. Rows are compared by all their token ids.
"""

import json
from fractions import Fraction
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

import nextlong
from nextlong.export.arrange import packed
from nextlong.rng import keyed_hash

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:the mix takes no sequence"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


# A drawn data set is made on the spot, which may take long on a busy machine.
UNHURRIED = settings(suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def runs(shared_run, short_run):
    """The directory of each run, and the token ids of its sequences."""
    return {
        str(named): [row.input_ids.tolist() for row in nextlong.open(named).sequences()]
        for named in (shared_run, short_run)
    }


def mixed(runs, weights, by):
    """Return the rows of runs, lists of sequences, in the proportions of `weights`."""
    sizes = [
        [len(ids) if by == "tokens" else 1 for ids in sequences] for sequences in runs
    ]
    # The run with the least for its weight is used completely.
    scale = min(
        Fraction(sum(size), weight) for size, weight in zip(sizes, weights, strict=True)
    )
    moments = []
    for number, (size, weight) in enumerate(zip(sizes, weights, strict=True)):
        ends = np.cumsum(size).tolist()
        taken = [end for end in ends if end <= scale * weight]
        for place, end in enumerate(taken):
            middle = end - Fraction(size[place], 2)
            moments.append((middle / taken[-1], number, place))
    return [runs[number][place] for _, number, place in sorted(moments)]


def planned_rows(runs, *, weights, by, pack):
    """Return the token ids of each row."""
    if len(runs) == 1:
        sequences = runs[0]
    elif weights is None:
        sequences = mixed(runs, [len(run) for run in runs], "sequences")
    else:
        sequences = mixed(runs, weights, by)
    lengths = [(number, len(ids)) for number, ids in enumerate(sequences)]
    index = np.array(lengths, [("number", "i8"), ("length", "i8")])
    index, offsets = packed(index, row_tokens=pack)
    groups = np.split(index["number"], offsets[1:-1])
    return [list(chain(*(sequences[number] for number in group))) for group in groups]


@st.composite
def datasets(draw, runs):
    """Draw a data set and its planned rows."""
    from nextlong.torch import SequenceDataset

    names = draw(st.sampled_from([[0], [1], [0, 1], [1, 0]]))
    named = [list(runs)[number] for number in names]
    weights = None
    by = "sequences"
    if len(named) > 1:
        weights = draw(st.none() | st.tuples(*[st.integers(1, 9)] * len(named)))
        by = draw(st.sampled_from(["sequences", "tokens"])) if weights else by
    pack = draw(st.sampled_from([None, None, 2048, 5000]))
    dataset = SequenceDataset(
        named, mix=weights, by=by, pack=pack, columns=["input_ids"]
    )
    rows = planned_rows(
        [runs[name] for name in named], weights=weights, by=by, pack=pack
    )
    return dataset, rows


def planned_order(rows, *, order, seed, epoch):
    numbers = np.arange(rows, dtype=np.uint64)
    if order == "shuffled":
        hashes = keyed_hash(numbers, seed=seed, stage=f"epoch {epoch}")
        return np.argsort(hashes).tolist()
    return numbers.tolist()


def planned_numbers(order, *, start, rank, world, remainder):
    """Return the row numbers that a rank reads after all ranks have read `start` rows."""
    left = order[start:]
    uneven = len(left) % world
    if remainder == "drop":
        left = left[: len(left) - uneven]
    elif remainder == "repeat" and uneven:
        left = left + (order * world)[: world - uneven]
    return left[rank::world]


class Delivery(RuleBasedStateMachine):
    """Streams of all ranks, and where the plan says that they are."""

    runs = None  # set by each test
    most_workers = 0

    @initialize(data=st.data())
    def begin(self, data):
        self.dataset, self.rows = data.draw(datasets(self.runs))
        self.options = {
            "order": data.draw(st.sampled_from(["shuffled", "arranged"])),
            "seed": data.draw(st.integers(0, 3)),
            "remainder": data.draw(st.sampled_from(["keep", "drop", "repeat"])),
        }
        self.epoch = 0
        self.start = 0
        self.is_resumed = False  # whether the next iteration begins at `start`
        self.taken = 0  # rows of each rank in the last iteration
        self.make_streams(data)

    def make_streams(self, data):
        most_ranks = 5
        if self.options["remainder"] == "drop":
            most_ranks = min(5, len(self.rows))
        self.world = data.draw(st.integers(1, most_ranks), "ranks")
        self.batch_size = data.draw(st.integers(1, 5), "batch size")
        self.workers = data.draw(st.integers(0, self.most_workers), "workers")
        self.streams = [
            self.dataset.stream(
                **self.options,
                batch_size=self.batch_size,
                rank=rank,
                world_size=self.world,
            )
            for rank in range(self.world)
        ]

    def planned(self, rank, start):
        order = planned_order(
            len(self.rows),
            order=self.options["order"],
            seed=self.options["seed"],
            epoch=self.epoch,
        )
        numbers = planned_numbers(
            order,
            start=start,
            rank=rank,
            world=self.world,
            remainder=self.options["remainder"],
        )
        return [self.rows[number] for number in numbers]

    @rule(epoch=st.integers(0, 3))
    def set_epoch(self, epoch):
        for stream in self.streams:
            stream.set_epoch(epoch)
        if epoch != self.epoch:
            self.epoch = epoch
            self.start = 0
            self.taken = 0

    @rule(stop=st.none() | st.integers(0, 4))
    def read(self, stop):
        """Read some batches, or all, by every rank."""
        start = self.start if self.is_resumed else 0
        plans = [self.planned(rank, start) for rank in range(self.world)]
        whole_batches = min(map(len, plans)) // self.batch_size
        batches = None if stop is None else min(stop, whole_batches)
        for plan, stream in zip(plans, self.streams, strict=True):
            assert len(stream) == len(plan)
            delivered = self.batches_of(stream, batches)
            rows = len(plan) if batches is None else batches * self.batch_size
            assert list(chain(*delivered)) == plan[:rows]
            assert {len(batch) for batch in delivered[:-1]} <= {self.batch_size}
        self.start = start
        self.is_resumed = False
        self.taken = len(plans[0]) if batches is None else batches * self.batch_size

    def batches_of(self, stream, batches):
        from torch.utils.data import DataLoader

        loader = DataLoader(
            stream,
            batch_size=self.batch_size,
            num_workers=self.workers,
            collate_fn=list,
        )
        taken = islice(loader, batches)
        return [[row["input_ids"].tolist() for row in batch] for batch in taken]

    @rule(data=st.data())
    def resume(self, data):
        """Save the state of a rank, and load it with other ranks, workers and batches."""
        rank = data.draw(st.integers(0, self.world - 1), "rank that saves")
        saving = 0 if self.is_at_an_uneven_end() else rank
        state = self.streams[saving].state_dict(rows=self.taken)
        state = json.loads(json.dumps(state))
        self.start = min(self.start + self.taken * self.world, len(self.rows))
        self.make_streams(data)
        for stream in self.streams:
            stream.load_state_dict(state)
            assert stream.epoch == self.epoch
        self.is_resumed = True
        self.taken = 0

    def is_at_an_uneven_end(self):
        return self.start + self.taken * self.world > len(self.rows)


def test_what_ranks_read_is_planned_wherever_they_stop(runs):
    class InProcess(Delivery):
        pass

    InProcess.runs = runs
    run_state_machine_as_test(InProcess, settings=settings(UNHURRIED))


def test_what_workers_read_is_planned_wherever_they_stop(runs):
    class WithWorkers(Delivery):
        pass

    WithWorkers.runs = runs
    WithWorkers.most_workers = 3
    few = settings(UNHURRIED, max_examples=6, stateful_step_count=12)
    run_state_machine_as_test(WithWorkers, settings=few)


@given(data=st.data())
@settings(UNHURRIED, max_examples=8)
def test_a_stateful_loader_delivers_the_plan_and_then_whole_epochs(runs, data):
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset, rows = data.draw(datasets(runs))
    seed = data.draw(st.integers(0, 3), "seed")
    world = data.draw(st.integers(1, 3), "ranks")
    rank = data.draw(st.integers(0, world - 1), "rank")
    batch_size = data.draw(st.integers(1, 4), "batch size")
    workers = data.draw(st.integers(0, 3), "workers")
    lives_on = workers > 0 and data.draw(st.booleans(), "workers live on")

    def loader():
        stream = dataset.stream(
            seed=seed, batch_size=batch_size, rank=rank, world_size=world
        )
        return StatefulDataLoader(
            stream,
            batch_size=batch_size,
            num_workers=workers,
            persistent_workers=lives_on,
            collate_fn=list,
        )

    def planned(epoch):
        order = planned_order(len(rows), order="shuffled", seed=seed, epoch=epoch)
        numbers = planned_numbers(
            order, start=0, rank=rank, world=world, remainder="keep"
        )
        return [rows[number] for number in numbers]

    def delivered(batches):
        return [row["input_ids"].tolist() for batch in batches for row in batch]

    epoch = data.draw(st.integers(0, 2), "epoch")
    reading = loader()
    reading.dataset.set_epoch(epoch)
    start = 0
    for _ in range(data.draw(st.integers(1, 3), "stops")):
        left = len(planned(epoch)) - start
        batches = data.draw(st.integers(0, left // batch_size), "batches")
        stop = start + batches * batch_size
        assert delivered(islice(reading, batches)) == planned(epoch)[start:stop]
        state = reading.state_dict()
        reading = loader()
        reading.load_state_dict(state)
        start = stop
    assert delivered(reading) == planned(epoch)[start:]
    assert delivered(reading) == planned(epoch)
    reading.dataset.set_epoch(epoch + 1)
    assert delivered(reading) == planned(epoch + 1)
