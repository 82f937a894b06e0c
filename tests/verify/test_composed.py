import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nextlong.schemas import JOINT, META, NEGATIVE, NO_CHUNK
from nextlong.verify.composed import Composed, first_rows


def composed(spans):
    """Spans are (chunk, role, tokens placed, tokens of the whole chunk)."""
    chunk, role, placed, tokens = (np.array(column) for column in zip(*spans, strict=True))
    end, zeros = np.cumsum(placed), np.zeros(len(spans), np.int64)
    return Composed(
        number=4, id="s", key=7, method="nextlong", layout="extended",
        chunk=chunk, role=role, group=zeros, start=end - placed, end=end, score=zeros,
        doc=zeros, doc_first=zeros, doc_stop=zeros, char_start=zeros, char_end=zeros, open_ended=zeros > 0, tokens=tokens,
    )  # fmt: skip


def test_a_chunk_with_fewer_tokens_than_it_has_is_truncated_and_nothing_else_is():
    sequence = composed([(5, META, 4, 4), (NO_CHUNK, JOINT, 1, NO_CHUNK), (9, NEGATIVE, 2, 3)])
    assert sequence.is_chunk.tolist() == [True, False, True]
    assert sequence.is_truncated.tolist() == [False, False, True]


def test_a_span_is_named_by_its_place_role_and_tokens_whatever_its_role():
    sequence = composed([(5, META, 4, 4), (NO_CHUNK, JOINT, 1, NO_CHUNK), (6, 99, 2, 2)])
    assert [sequence.where(span) for span in range(3)] == [
        "sequence 4 span 0 (meta ⟦chunk 5⟧, tokens 0–4)",
        "sequence 4 span 1 (joint, tokens 4–5)",
        "sequence 4 span 2 (role 99 ⟦chunk 6⟧, tokens 5–7)",
    ]


@given(batches=st.lists(st.integers(0, 4), max_size=5), take=st.integers(0, 20))
def test_the_first_rows_of_a_file_are_read_and_no_more(batches, take):
    sink, schema = pa.BufferOutputStream(), pa.schema([("row", pa.int64())])
    rows = iter(range(sum(batches)))
    with pa.ipc.new_file(sink, schema) as writer:
        for count in batches:
            writer.write_batch(pa.record_batch([pa.array([next(rows) for _ in range(count)], pa.int64())], schema))
    reader = pa.ipc.open_file(sink.getvalue())
    read = [row for batch in first_rows(reader, take) for row in batch.column("row").to_pylist()]
    assert read == list(range(min(take, sum(batches))))
