"""Conversations as documents: their rendering, in every format that can hold them."""

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nextlong.inputs.conversation import as_text
from nextlong.inputs.files import Part
from nextlong.inputs.listing import list_files
from nextlong.inputs.record import Record, Reject, RejectKind
from nextlong.inputs.records import read_records
from nextlong.inputs.sizes import estimate_text_bytes
from nextlong.recipe import Source

ROLES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Why?\n"},
    {"role": "assistant", "content": "So."},
]
SHARED = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]
TEXT = "system: Be brief.\n\nuser: Why?\n\nassistant: So."


def test_turns_stand_one_below_the_other_under_their_roles():
    assert as_text(ROLES) == TEXT
    assert as_text(SHARED) == "user: Why?\n\nassistant: So."
    parts = [{"type": "text", "text": "See"}, {"type": "image_url"}, {"type": "text", "text": "this."}]
    assert as_text([{"role": "user", "content": parts}]) == "user: See\nthis."
    assert (
        as_text([*ROLES[:2], {"role": "assistant", "content": None, "tool_calls": [1]}]) == TEXT.rpartition("\n\n")[0]
    )


@pytest.mark.parametrize(
    "value",
    [[], "text", ["text"], [{"role": "user"}], [{"role": 1, "content": "x"}], [{"role": "user", "content": 3}], None],
)
def test_what_is_no_conversation_has_no_text(value):
    assert as_text(value) is None


def records(path, text):
    source = Source(path=str(path), text=text)
    (file,) = list_files(source, where="FILE")
    assert estimate_text_bytes([file], source) > 0
    return list(read_records(Part(file), source, max_document_chars=1000))


def test_json_lines_of_conversations_are_documents_and_other_lists_are_rejected(tmp_path):
    rows = [{"id": "a", "messages": ROLES}, {"id": "b", "messages": [1, 2]}, {"id": "c", "messages": SHARED}]
    (tmp_path / "chat.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    first, second, third = records(tmp_path / "chat.jsonl", "messages")
    assert first == Record(TEXT, "a", 1)
    assert second == Reject("chat.jsonl", 2, RejectKind.NOT_A_STRING)
    assert (third.text, third.source_id) == ("user: Why?\n\nassistant: So.", "c")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_tables_of_conversations_are_documents(tmp_path, suffix):
    table = pa.table({"id": ["a", "b"], "conversations": [SHARED, None]})
    path = tmp_path / f"chat.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    first, second = records(path, "conversations")
    assert first == Record("user: Why?\n\nassistant: So.", "a", 1)
    assert second == Reject(path.name, 2, RejectKind.NULL)
