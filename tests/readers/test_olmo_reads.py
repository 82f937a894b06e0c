"""OLMo-core: its data sets and its document sources read our token files, and it trains on what `train --emit olmo` writes."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.exported_rows import documents_in, exported
from tests.support.random_rows import documents_of, ended, options, random_blocks

from nextlong.export.formats import olmo

pytestmark = [
    pytest.mark.readers,
    pytest.mark.filterwarnings("ignore"),
]  # not ours to mend

EOS = 0
CONFIGS = Path(os.environ.get("READER_CONFIGS", ""))
PAGE = Path(__file__).parents[2] / "docs" / "train" / "olmo.md"


@pytest.fixture(scope="module")
def data():
    import olmo_core.data
    import olmo_core.data.composable
    import olmo_core.data.utils

    return olmo_core.data


def written(folder, vocabulary, *, shards=2, per_row=1):
    """Write rows to files, and return their paths, the documents in them and the type of the ids."""
    blocks = ended(
        random_blocks(vocabulary, rows=40, vocabulary=vocabulary, per_row=per_row),
        eos=EOS,
    )
    paths = []
    for shard in range(shards):
        olmo.FORMAT.write(
            folder / f"part-{shard:05}",
            blocks[shard::shards],
            options(vocab_size=vocabulary, eos_id=EOS),
        )
        paths.append(folder / f"part-{shard:05}.npy")
    of_shards = [documents_of(blocks[shard::shards]) for shard in range(shards)]
    return paths, of_shards, np.uint16 if vocabulary <= 65_536 else np.uint32


@pytest.mark.parametrize("per_row", [1, 4])
@pytest.mark.parametrize("vocabulary", [300, 65_536, 65_537, 128_256])
def test_it_finds_the_same_documents_in_the_array_and_in_the_offsets(
    data, tmp_path, vocabulary, per_row
):
    paths, of_shards, dtype = written(tmp_path, vocabulary, per_row=per_row)
    for path, documents in zip(paths, of_shards, strict=True):
        ends = np.cumsum([len(ids) for ids in documents]).tolist()
        expected = list(zip([0, *ends], ends, strict=False))
        for source in (True, False):
            found = data.utils.iter_document_indices(
                path, use_array_if_local=source, eos_token_id=EOS, dtype=dtype
            )
            assert [(int(start), int(end)) for start, end in found] == expected
        assert [
            data.utils.load_array_slice(path, *place, dtype).tolist()
            for place in expected
        ] == documents


@pytest.mark.parametrize("vocabulary", [300, 128_256])
def test_its_document_source_chooses_the_type_and_reads_them(
    data, tmp_path, vocabulary
):
    paths, of_shards, dtype = written(tmp_path, vocabulary)
    tokenizer = data.TokenizerConfig(
        vocab_size=vocabulary, eos_token_id=EOS, pad_token_id=EOS
    )
    config = data.composable.NumpyDocumentSourceConfig(
        source_paths=[str(path) for path in paths], tokenizer=tokenizer, dtype=None
    )
    assert config.get_dtype() == dtype
    sources = config.build(tmp_path / "work")
    found = [
        _ids(source, start, end)
        for source in sources
        for start, end in source.get_document_offsets()
    ]
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
    assert [
        rows[number]["input_ids"].tolist() for number in range(len(rows))
    ] == documents
    assert [rows[number]["doc_lens"].tolist() for number in range(len(rows))] == [
        [length]
    ] * len(documents)


@exported("olmo", splits=["train"])
def test_the_configuration_of_the_page_reads_an_export(
    data, folder, reference, tmp_path
):
    (block,) = re.findall(
        r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL
    )
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
    assert [
        dataset[number]["input_ids"].tolist() for number in range(len(dataset))
    ] == documents


def emitted(name):
    """Return the emitted `train.py` as a module, and the config that it reads."""
    spec = importlib.util.spec_from_file_location(
        "emitted_train", CONFIGS / name / "train.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module.Training, json.loads((CONFIGS / name / "olmo.json").read_text())


def test_it_knows_every_key_of_an_emitted_config():
    training, plain = emitted("olmo")
    config = training.from_dict(plain)
    assert config.model.num_params == sum(
        [
            2 * 512 * 4096,
            4096,
            32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096),
        ]
    )
    module, rope = config.train_module, config.model.block.sequence_mixer.rope
    assert (rope.theta, rope.scaling, config.dataset.sequence_length) == (
        200_000_000,
        None,
        2048,
    )
    assert (
        module.cp_config.degree,
        module.max_grad_norm,
        config.data_loader.global_batch_size,
    ) == (4, 1.0, 393_216)
    assert (module.optim.betas, module.optim.weight_decay) == ((0.9, 0.95), 0.1)
    assert module.optim.group_overrides[0].opts == {"weight_decay": 0.0}
    assert (config.trainer.max_duration.value, config.trainer.load_strategy) == (
        1000,
        "always",
    )
    for section in ([], ["model"], ["dataset"], ["train_module", "optim"], ["trainer"]):
        broken = json.loads(json.dumps(plain))
        place = broken
        for key in section:
            place = place[key]
        place["no_key"] = 1
        with pytest.raises(Exception, match="no_key"):
            training.from_dict(broken)


@pytest.mark.parametrize("step", [1, 100, 200, 201, 600, 1000])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_its_learning_rates_are_ours(schedule, step):
    from nextlong.train.recipe import Training

    training, plain = emitted("olmo")
    name = {
        "cosine": "CosWithWarmup",
        "linear": "LinearWithWarmup",
        "constant": "ConstantWithWarmup",
    }[schedule]
    least = {} if schedule == "constant" else {"alpha_f": 0.1, "t_max": 1001}
    plain["train_module"]["scheduler"] = {
        "_CLASS_": f"olmo_core.optim.{name}",
        "warmup": 200,
        **least,
    }
    theirs = training.from_dict(plain).train_module.scheduler.get_lr(4e-5, step, 1000)
    ours = Training(
        steps=1000, warmup_steps=200, lr=4e-5, schedule=schedule, min_lr_ratio=0.1
    )
    assert theirs == pytest.approx(ours.lr_at(step))


def test_it_trains_on_what_is_emitted():
    """Two processes that share each row start at the loss of the source model with the recipe's RoPE base."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = CONFIGS / "olmo-tiny"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    subprocess.run(
        [sys.executable, "train.py", "convert"], cwd=folder, env=environment, check=True
    )
    two = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "train.py",
    ]
    log = subprocess.run(
        two, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    (loss,) = re.findall(r"train/CE loss=([0-9.]+)", log.stdout + log.stderr)
    assert (folder / "out" / "step2" / "model_and_optim").is_dir()
    ids = np.concatenate(
        [np.fromfile(path, "<u2") for path in sorted((folder / "data").glob("*.npy"))]
    )
    rows = torch.from_numpy(ids.astype(np.int64)).view(-1, 2048)
    assert (
        rows.numel()
        == json.loads((folder / "olmo.json").read_text())["data_loader"][
            "global_batch_size"
        ]
    )

    def source_loss(base):
        config = AutoConfig.from_pretrained(CONFIGS / "tiny")
        config.rope_parameters["rope_theta"] = base
        model = AutoModelForCausalLM.from_pretrained(CONFIGS / "tiny", config=config)
        with torch.no_grad():
            return float(
                np.mean(
                    [
                        float(model(input_ids=row[None], labels=row[None]).loss)
                        for row in rows
                    ]
                )
            )

    expected, other = source_loss(2e8), source_loss(1e4)
    assert abs(float(loss) - expected) < 0.2 * abs(other - expected)
