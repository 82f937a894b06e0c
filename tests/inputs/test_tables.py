"""Tables whose text column is missing or none of strings."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from files_read import read
from nextlong.errors import CorpusError


def test_table_without_the_text_column_names_the_nearest(tmp_path):
    pq.write_table(pa.table({"texts": ["x"], "meta": [{"lang": "en"}]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=r"it has texts, meta, meta\.lang; did you mean 'texts'"):
        read(tmp_path / "a.parquet")


def test_text_column_of_another_type_is_refused(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match="column 'text' holds int64, not strings"):
        read(tmp_path / "a.parquet")
