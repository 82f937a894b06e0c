"""OLMo-core: its data sets and its document sources read the token files and the places of their documents."""

import re
from pathlib import Path

import numpy as np
import pytest
from exported import documents_in, exported

from nextlong.export.formats.olmo import write
from random_rows import documents_of, ended, options, random_blocks

pytestmark = [pytest.mark.readers, pytest.mark.filterwarnings("ignore")]  # not ours to mend

EOS = 0
PAGE = Path(__file__).parents[2] / "docs" / "train" / "olmo.md"


@pytest.fixture(scope="module")
def data():
    import olmo_core.data
    import olmo_core.data.composable
    import olmo_core.data.utils

    return olmo_core.data


def written(folder, vocabulary, *, shards=2, per_row=1):
    """Write rows to files, and return their paths, the documents in them and the type of the ids."""
    blocks = ended(random_blocks(vocabulary, rows=40, vocabulary=vocabulary, per_row=per_row), eos=EOS)
    paths = []
    for shard in range(shards):
        write(folder / f"part-{shard:05}", blocks[shard::shards], options(vocab_size=vocabulary, eos_id=EOS))
        paths.append(folder / f"part-{shard:05}.npy")
    of_shards = [documents_of(blocks[shard::shards]) for shard in range(shards)]
    return paths, of_shards, np.uint16 if vocabulary <= 65_536 else np.uint32


@pytest.mark.parametrize("per_row", [1, 4])
@pytest.mark.parametrize("vocabulary", [300, 65_536, 65_537, 128_256])
def test_it_finds_the_same_documents_in_the_array_and_in_the_offsets(data, tmp_path, vocabulary, per_row):
    paths, of_shards, dtype = written(tmp_path, vocabulary, per_row=per_row)
    for path, documents in zip(paths, of_shards, strict=True):
        ends = np.cumsum([len(ids) for ids in documents]).tolist()
        expected = list(zip([0, *ends], ends, strict=False))
        for source in (True, False):
            found = data.utils.iter_document_indices(path, use_array_if_local=source, eos_token_id=EOS, dtype=dtype)
            assert [(int(start), int(end)) for start, end in found] == expected
        assert [data.utils.load_array_slice(path, *place, dtype).tolist() for place in expected] == documents


@pytest.mark.parametrize("vocabulary", [300, 128_256])
def test_its_document_source_chooses_the_type_and_reads_them(data, tmp_path, vocabulary):
    paths, of_shards, dtype = written(tmp_path, vocabulary)
    tokenizer = data.TokenizerConfig(vocab_size=vocabulary, eos_token_id=EOS, pad_token_id=EOS)
    config = data.composable.NumpyDocumentSourceConfig(
        source_paths=[str(path) for path in paths], tokenizer=tokenizer, dtype=None
    )
    assert config.get_dtype() == dtype
    sources = config.build(tmp_path / "work")
    found = [_ids(source, start, end) for source in sources for start, end in source.get_document_offsets()]
    assert found == [ids for documents in of_shards for ids in documents]


def _ids(source, start, end):
    return source.get_token_range(int(start), int(end))["input_ids"].tolist()


@exported("olmo")
def test_each_instance_of_its_fixed_length_is_one_document(data, folder, reference):
    """As docs/train/olmo.md says: with sequence_length = compose.target_tokens nothing is cut and nothing is left out."""
    documents = documents_in(reference)
    (length,) = {len(ids) for ids in documents}
    eos = documents[0][-1]
    paths = sorted(folder.glob("*.npy"))
    tokens = sum(map(len, documents))
    width = sum(path.stat().st_size for path in paths) // tokens
    rows = data.NumpyFSLDataset(
        *paths,
        sequence_length=length,
        pad_token_id=eos,
        eos_token_id=eos,
        vocab_size=max(map(max, documents)) + 1,
        dtype={2: np.uint16, 4: np.uint32}[width],
        generate_doc_lengths=True,
    )
    assert [rows[number]["input_ids"].tolist() for number in range(len(rows))] == documents
    assert [rows[number]["doc_lens"].tolist() for number in range(len(rows))] == [[length]] * len(documents)


@exported("olmo", splits=["train"])
def test_the_configuration_of_the_page_reads_an_export(data, folder, reference, tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    documents = documents_in(reference)
    eos, vocabulary = documents[0][-1], max(map(max, documents)) + 1
    tokens = sum(map(len, documents))
    width = sum(path.stat().st_size for path in folder.glob("*.npy")) // tokens
    settled = {
        "long-64k/*.npy": f"{folder}/*.npy",
        "=100278": f"={vocabulary}",
        "=100257": f"={eos}",
        "=100277": f"={eos}",
        "65_536": str(len(documents[0])),
        '"uint32"': f'"uint{8 * width}"',
        "/tmp/olmo-work": str(tmp_path),
    }
    for written_there, here in settled.items():
        assert written_there in block
        block = block.replace(written_there, here)
    names = {}
    exec(compile(block, PAGE.name, "exec"), names)
    dataset = names["dataset"].build()
    dataset.prepare()
    assert [dataset[number]["input_ids"].tolist() for number in range(len(dataset))] == documents
