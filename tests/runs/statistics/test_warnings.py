"""Each warning on an invented corpus that deserves it, and none on one that does not, nor on the same one mended."""

import json
import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.support.changed_stats import changed
from tests.support.exported_runs import exported
from tests.support.larger_cases import thorough
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import nextlong
from nextlong import pipeline
from nextlong.export.arrange import SplitResult
from nextlong.recipe import Recipe
from nextlong.report import summary
from nextlong.runs.exported import Exported
from nextlong.runs.statistics import warnings
from nextlong.runs.statistics.after_last import enough_meta_chunks, shares_after_last
from nextlong.runs.statistics.measure import measure
from nextlong.runs.statistics.row_warnings import of_rows
from nextlong.runs.statistics.stats import AfterLast, MetaChunks, WithKeywords
from nextlong.runs.statistics.tally import Bin, Distribution
from nextlong.runs.statistics.texts import CHECKS
from nextlong.schemas import DropReason

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Writer:
    """Writes documents on topics: each topic has words of its own, and each document draws from one."""

    def __init__(self, seed, *, topics=12):
        self.draw = random.Random(seed)
        self.topics = [[self._word() for _ in range(120)] for _ in range(topics)]
        self.common = [self._word() for _ in range(60)]

    def _word(self):
        return "".join(self.draw.choices(LETTERS, k=self.draw.randint(3, 9)))

    def document(self, *, sentences, topic=None):
        """Return a text of so many sentences, one a line."""
        words = (
            self.topics[topic] if topic is not None else self.draw.choice(self.topics)
        ) * 2 + self.common
        return "\n".join(
            " ".join(self.draw.choices(words, k=self.draw.randint(7, 13)))
            for _ in range(sentences)
        )

    def documents(self, count, *, sentences=(6, 20)):
        """Return documents of various lengths."""
        return [
            self.document(sentences=self.draw.randint(*sentences)) for _ in range(count)
        ]


def write(path, texts):
    path.write_text(
        "".join(
            json.dumps({"id": f"{path.stem}-{n}", "text": text}) + "\n"
            for n, text in enumerate(texts)
        )
    )
    return {"path": str(path), "name": path.stem}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A byte-level tokenizer that knows the words of the first corpus."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        Writer(1).documents(200),
        trainers.BpeTrainer(
            vocab_size=2000, initial_alphabet=alphabet, show_progress=False
        ),
    )
    made.save(str(path))
    return path


@pytest.fixture(scope="module")
def measured_in(tokenizer):
    """A function that runs texts in a folder, by name of their source, with overrides, and returns the statistics."""

    def run(folder, sources, *overrides):
        plain = {
            "run_dir": str(folder / "run"),
            "executor": "serial",
            "ingest": {
                "sources": [
                    write(folder / f"{name}.jsonl", texts)
                    for name, texts in sources.items()
                ]
            },
            "chunk": {"max_chars": 256},
            "encoder": {"lsa": {"dimensions": 64}},
            "tokenizer": {"source": str(tokenizer)},
            "compose": {"sequences": 8, "target_tokens": 2048},
            "export": {"formats": ["jsonl"]},
        }
        recipe = Recipe.from_dict(plain, overrides=overrides)
        pipeline.run(recipe)
        return measure(nextlong.open(folder / "run"))

    return run


@pytest.fixture
def measured(measured_in, tmp_path):
    """The same, in a folder of the test's own."""
    return partial(measured_in, tmp_path)


@pytest.fixture(scope="module")
def sound(measured_in, tmp_path_factory):
    """A function of overrides that runs a corpus without reproach, in one run directory."""
    folder = tmp_path_factory.mktemp("sound")
    return partial(measured_in, folder, {"one": Writer(1).documents(400)})


def names(measured):
    return [warned.name for warned in measured.warnings]


def said(measured, name):
    (message,) = [warned.message for warned in measured.warnings if warned.name == name]
    return message


def change(measured, name):
    """Return the setting that the report names to build the data again."""
    (setting,) = [warned.change for warned in measured.warnings if warned.name == name]
    return setting


# a corpus without reproach, in many settings


@pytest.mark.parametrize(
    "overrides",
    [[], *thorough(["compose.method=knn"], ["compose.method=standard"])],
    ids=str,
)
def test_a_sound_corpus_is_warned_of_nothing(sound, overrides):
    assert sound(*overrides).warnings == ()


def test_a_control_that_repeats_itself_is_not_told_that_it_does(sound):
    found = sound("compose.negatives=self-repeat")
    assert found.chunks.repeated > 0
    assert found.warnings == ()
    exported([found.run], formats=["jsonl"])
    run = nextlong.open(found.run)
    ((name, told),) = summary.warned(
        Exported(run.recipe, [run], run.steps), named="RUN"
    )
    assert (name, told) == ("only as a control", found.control)


def spread(**parts):
    nothing = dict.fromkeys(("mean", "p10", "p50", "p90", "max"), 0.0)
    return Distribution(**{"count": 9, "histogram": (), **nothing, **parts})


def meta_chunks(counts=None, *, share=0.1, short=0):
    """Meta-chunks by number of sequences, and what follows the last, of 40 sequences."""
    bins = tuple(Bin(value, value, count) for value, count in (counts or {}).items())
    return MetaChunks(
        per_sequence=spread(count=40, p50=2.0, histogram=bins),
        after_last=AfterLast(
            tokens=1, share=share, short=short, short_share=short / 40, short_tokens=64
        ),
    )


def test_the_share_after_the_last_meta_chunk_follows_from_the_documents():
    shares = shares_after_last([(1, 90), (2, 4), (3, 4), (6, 2)])
    assert shares[2] == (pytest.approx((4 / 2 + 4 / 3 + 2 / 6) / 10), 1.0)
    assert shares[3] == (pytest.approx((4 / 3 + 2 / 6) / 6), pytest.approx(0.6))
    assert sorted(shares) == [2, 3, 4, 5, 6]
    assert enough_meta_chunks(shares) == 4
    assert enough_meta_chunks({}) is None


# Of each check: what is measured on either side of its threshold, what the warning
# says, and the setting that helps.
THRESHOLDS = [
    (
        "unrelated-negatives",
        *(
            {"similarity.cosine.mean": 0.3, "similarity.random.mean": mean}
            for mean in (0.3, 0.29)
        ),
        "(mean cosine 0.30) than random pairs of chunks are to each other (0.30)",
        "",
    ),
    (
        "unrelated-negatives",
        {"similarity.cosine.mean": 0.0, "similarity.random.mean": 0.0},
        {
            "similarity.cosine.mean": 0.0,
            "similarity.random.mean": 0.0,
            "setting.negatives": "random-corpus",
        },
        "",
        "",
    ),
    (
        "low-meta-share",
        {"tokens.meta_share": 0.0024},
        {"tokens.meta_share": 0.0025},
        "only 0.24% of the tokens",
        "min_meta_chunks=",
    ),
    (
        "low-meta-share",
        {"tokens.meta_share": 0.0},
        {"tokens.meta_share": None},
        "no token belongs to a meta-document",
        "",
    ),
    (
        "high-meta-share",
        {"tokens.meta_share": 0.51},
        {"tokens.meta_share": 0.5},
        "51% of the tokens belong",
        "compose.target_tokens=4096",
    ),
    (
        "high-meta-share",
        {"tokens.meta_share": 0.51},
        {"tokens.meta_share": 0.51, "setting.negatives": "self-repeat"},
        "",
        "",
    ),
    (
        "short-distances",
        *({"distance_tokens": spread(p10=p10)} for p10 in (20.0, 21.0)),
        "is 20 tokens or less, 0.98% of a sequence",
        "compose.min_gap_tokens=21",
    ),
    (
        "unshared-keywords",
        *({"corpus.unshared_keywords": count} for count in (161, 160)),
        "161 of 400 documents (40%) share no keyword with another document",
        "",
    ),
    (
        "few-meta-chunks",
        {"meta_chunks": meta_chunks({2: 5, 3: 2, 4: 3}, share=0.301)},
        {"meta_chunks": meta_chunks(share=0.3)},
        "30% of the tokens come after the last meta-chunk",
        "compose.min_meta_chunks=4",
    ),
    (
        "few-meta-chunks",
        {"meta_chunks": meta_chunks({2: 5}, share=0.5)},
        {"meta_chunks": meta_chunks(share=0.5), "setting.negatives": "self-repeat"},
        "(median 2)",
        "",
    ),
    (
        "short-last-chunks",
        *({"meta_chunks": meta_chunks(short=short)} for short in (11, 10)),
        "of 11 of 40 sequences (28%) has fewer than 64 tokens",
        "",
    ),
    (
        "one-source",
        {
            "negatives.tokens_by_source": {"a": 5, "b": 5},
            "tokens.by_source": {"a": 5, "b": 9},
        },
        {
            "negatives.tokens_by_source": {"a": 5, "b": 5},
            "tokens.by_source": {"a": 9, "b": 6},
        },
        "50% of the negatives' tokens come from a, but only 0% of the meta-documents' tokens",
        "",
    ),
    (
        "small-corpus",
        *({"documents.per_sequence": spread(mean=mean)} for mean in (41.0, 40.0)),
        "a sequence takes chunks from 41 of the corpus's 400 documents, 10%",
        "compose.target_tokens=1024",
    ),
    (
        "own-document-negatives",
        {"negatives.from_own_document": 2},
        {},
        "2 negatives come from their own",
        "",
    ),
    (
        "repeated-chunks",
        {"chunks.repeated": 3},
        {},
        "3 chunks occur twice in the same sequence",
        "",
    ),
]


@pytest.mark.parametrize(("name", "beyond", "within", "message", "setting"), THRESHOLDS)
def test_a_check_warns_beyond_its_threshold(
    sound, name, beyond, within, message, setting
):
    found = sound()
    run = nextlong.open(found.run)
    (told,) = warnings.warnings(changed(found, beyond), run)
    assert (told.name, message in told.message, setting in told.change) == (
        name,
        True,
        True,
    )
    assert bool(told.change) >= bool(setting)
    assert warnings.warnings(changed(found, within), run) == ()


# what deserves one


def test_tables_that_differ_in_numbers_alone(measured):
    draw = random.Random(4)
    form = "Area: {} square kilometres of land and {} of water, Population: {} inhabitants in year {}, Exports: {} million"
    tables = [
        "\n".join(
            form.format(*(draw.randint(10, 10**7) for _ in range(5))) for _ in range(6)
        )
        for _ in range(40)
    ]
    found = measured({"one": Writer(4).documents(120) + tables}, "compose.sequences=20")
    near = found.negatives.near_identical
    assert near.share > warnings.THRESHOLDS.max_near_identical
    told = said(found, "near-identical-negatives")
    assert (
        f"sequence {near.sequence} has {near.max_per_sequence} of them: `nextlong peek {found.run} {near.sequence}`"
        in told
    )
    mended = measured(
        {"one": Writer(4).documents(120) + tables},
        "compose.sequences=20",
        change(found, "near-identical-negatives"),
    )
    assert "near-identical-negatives" not in names(mended)


@pytest.mark.thorough
def test_one_source_that_serves_as_everybodys_negatives(measured, tmp_path):
    writer = Writer(5)
    asking = writer.documents(40)
    # Too short to be extended: they only stand between others' chunks.
    serving = [writer.document(sentences=3) for _ in range(800)]
    found = measured(
        {"books": asking, str(tmp_path / "snippets"): serving},
        "compose.sequences=20",
        "compose.min_meta_chunks=3",
    )
    share = found.negatives.tokens_by_source["snippets"] / sum(
        found.negatives.tokens_by_source.values()
    )
    assert share > warnings.THRESHOLDS.source_share
    told = said(found, "one-source")
    assert f"{share:.0%} of" in told
    assert " snippets," in told


def test_few_chunks_that_serve_again_and_again(measured):
    few = {"one": Writer(7).documents(20, sentences=(10, 20))}
    found = measured(few, "compose.sequences=all", "compose.target_tokens=4096")
    assert found.chunks.reuse.mean > warnings.THRESHOLDS.max_uses
    told = said(found, "heavy-reuse")
    assert f"{found.chunks.reuse.mean:.1f} times" in told
    assert f"up to {found.chunks.reuse.max} " in told
    mended = measured(
        few,
        "compose.sequences=all",
        "compose.target_tokens=4096",
        change(found, "heavy-reuse"),
    )
    assert "heavy-reuse" not in names(mended)


def test_the_share_of_a_small_corpus_is_that_of_the_numbers_told():
    told = warnings.small_corpus(11.9, 12).message
    assert re.findall(r"[\d%]+", told)[:3] == ["12", "12", "100%"]


def test_a_tokenizer_trained_on_the_corpus_in_a_long_run(measured, monkeypatch):
    monkeypatch.setattr(
        warnings, "THRESHOLDS", replace(warnings.THRESHOLDS, stand_in_tokens=4096)
    )
    texts = {"one": Writer(9).documents(200)}
    stand_in = ["tokenizer={train: 500}", "compose.sequences=1"]
    long = measured(
        texts, *stand_in, f"compose.target_tokens={warnings.THRESHOLDS.stand_in_tokens}"
    )
    assert "tokenizer.train=500" in said(long, "stand-in-tokenizer")
    assert "stand-in-tokenizer" not in names(measured(texts, *stand_in))


def test_a_tokenizer_that_loses_text(sound, tmp_path):
    words = sorted({word for text in Writer(1).documents(200) for word in text.split()})
    made = Tokenizer(
        models.WordLevel(
            {word: number for number, word in enumerate(["[UNK]", *words[::2]])},
            unk_token="[UNK]",
        )
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "lossy.json"))
    found = sound(
        f"tokenizer.source={tmp_path}/lossy.json", f"tokenizer.eos={words[0]}"
    )
    assert {"lossy-tokenizer", "ordinary-eos"} <= set(names(found))
    assert f"tokenizer.eos='{words[0]}'" in said(found, "ordinary-eos")


def test_a_tokenizer_whose_end_of_text_is_not_used(sound, tokenizer, tmp_path):
    made = Tokenizer.from_file(str(tokenizer))
    made.add_special_tokens(["<|end_of_text|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    source = f"tokenizer.source={tmp_path / 'tokenizer.json'}"
    found = sound(source)
    assert " <|end_of_text|> " in said(found, "no-eos")
    assert "no-eos" not in names(sound(source, change(found, "no-eos")))


@pytest.mark.thorough
def test_a_special_token_ends_documents(sound):
    assert "ordinary-eos" not in names(
        sound('tokenizer={train: 500, eos: "<|endoftext|>"}')
    )


@pytest.mark.thorough
def test_a_tokenizer_of_another_script(measured):
    ideographs = [chr(0x4E00 + number) for number in range(3000)]
    draw = random.Random(10)
    texts = [
        "\n".join(
            "".join(draw.choices(ideographs, k=40)) for _ in range(draw.randint(6, 20))
        )
        for _ in range(200)
    ]
    found = measured({"one": texts}, "chunk.max_chars=64")
    assert found.tokens.chars_per_token < 1
    assert said(found, "small-tokens").startswith("a token has 1.0")


def test_the_bytes_of_a_token_are_those_of_every_sequence(measured):
    draw = random.Random(10)
    ideographs = [
        "".join(chr(draw.randint(0x4E00, 0x5800)) for _ in range(300))
        for _ in range(30)
    ]
    texts = {"one": ideographs, "two": Writer(1).documents(8, sentences=(60, 70))}
    options = [
        "compose.method=standard",
        "compose.target_tokens=1024",
        "compose.sequences=12",
        "chunk.max_chars=64",
    ]
    found = measured(texts, *options)
    weighed = [
        (len(each.text.encode()), len(each.input_ids))
        for each in nextlong.open(found.run).sequences()
    ]
    shares = [text_bytes / tokens for text_bytes, tokens in weighed]
    assert max(shares) > warnings.THRESHOLDS.min_bytes_per_token > min(shares)
    mean = sum(text_bytes for text_bytes, _ in weighed) / sum(
        tokens for _, tokens in weighed
    )
    assert said(found, "small-tokens").startswith(f"a token has {mean:.2f} bytes")


def test_fewer_than_asked_and_most_drafts_dropped(measured):
    found = measured(
        {"one": Writer(11).documents(60)}, "compose.sequences=60", "compose.max_uses=1"
    )
    yields = found.yields
    fewer = said(found, "fewer-sequences")
    assert re.findall(r"\d+", fewer)[:2] == [str(found.sequences), "60"]
    dropped = sum(yields.dropped.values())
    assert said(found, "many-dropped").startswith(f"{dropped} of {yields.drafts} ")


def test_drafts_dropped_for_the_most_uses_of_a_chunk_are_told_to_raise_it(measured):
    texts = {"one": Writer(11).documents(60)}
    found = measured(texts, "compose.sequences=60", "compose.max_uses=1")
    assert found.chunks.reuse.max == 1
    for name in ("fewer-sequences", "many-dropped"):
        told = said(found, name)
        assert "raise compose.max_uses" in told
        assert "compose.target_tokens" not in told
    assert "compose.max_uses=1" in said(found, "fewer-sequences")
    assert "too small" not in said(found, "fewer-sequences")
    # With fewer drafts than requested sequences, documents are missing too.
    run = nextlong.open(found.run)
    for asked, is_small in ((found.yields.drafts, False), (61, True)):
        yields = replace(found.yields, asked=asked)
        told = warnings.warnings(replace(found, yields=yields), run)
        (fewer,) = [one.message for one in told if one.name == "fewer-sequences"]
        assert ("add documents" in fewer) == is_small
    mended = measured(texts, "compose.sequences=60", "compose.max_uses=60")
    assert "many-dropped" not in names(mended)


def test_a_maximum_of_uses_that_no_chunk_reaches_is_not_blamed(sound):
    found = sound()
    run = nextlong.open(found.run)
    dropped = {DropReason.TOO_FEW_NEGATIVES: found.yields.drafts}
    yields = replace(found.yields, dropped=dropped, asked=found.sequences + 1)
    max_uses = found.chunks.reuse.max + 1
    lacking = changed(found, {"yields": yields, "setting.max_uses": max_uses})
    for warned in warnings.warnings(lacking, run):
        assert "compose.max_uses" not in warned.message
        assert "add documents" in warned.message
    assert "fewer-sequences" in [
        warned.name for warned in warnings.warnings(lacking, run)
    ]


def test_few_long_documents_are_not_worth_more_meta_chunks_but_smaller_chunks(measured):
    writer = Writer(1)
    short = writer.documents(268, sentences=(6, 8))
    two = writer.documents(31, sentences=(13, 15))
    texts = {"one": [*short, *two, writer.document(sentences=40)]}
    options = ["compose.sequences=20", "compose.target_tokens=4096"]
    found = measured(texts, *options, "chunk.max_chars=900")
    chunks = found.meta_chunks.per_sequence.histogram
    shares = shares_after_last([(int(b.low), b.count) for b in chunks])
    assert enough_meta_chunks(shares) is not None
    assert shares[3].remaining < 0.3
    assert "lower chunk.max_chars" in said(found, "few-meta-chunks")
    setting = change(found, "few-meta-chunks")
    assert setting.startswith("chunk.max_chars=")
    mended = measured(texts, *options, setting)
    assert "few-meta-chunks" not in names(mended)
    assert mended.sequences == 20


@pytest.mark.parametrize(
    ("asked", "setting"),
    [
        (30, "compose.min_meta_chunks=4"),
        (31, "chunk.max_chars="),
        ("all", "compose.min_meta_chunks=4"),
    ],
)
def test_more_meta_chunks_are_advised_where_documents_remain_for_all_sequences(
    sound, asked, setting
):
    found = sound()
    run = nextlong.open(found.run)
    yields = replace(found.yields, eligible=100, asked=asked)
    # Three in ten have four chunks.
    chunks = meta_chunks({2: 5, 3: 2, 4: 3}, share=0.4)
    few = replace(found, yields=yields, meta_chunks=chunks)
    told = {warned.name: warned for warned in warnings.warnings(few, run)}
    assert told["few-meta-chunks"].change.startswith(setting)


@pytest.mark.parametrize("method", ["standard", *thorough("untie_the_knots")])
def test_long_documents_of_which_only_beginnings_are_read(measured, method):
    """Every document is some 5,000 characters long, twice a sequence and more."""
    texts = {"one": Writer(13).documents(12, sentences=(90, 110))}
    options = [f"compose.method={method}", "compose.sequences=all"]
    found = measured(texts, *options, "compose.target_tokens=1024")
    run = nextlong.open(found.run)
    tokens = {}
    for sequence in run.sequences():
        for span in sequence.spans:
            if span.role == "document":
                tokens[span.source_id] = (
                    tokens.get(span.source_id, 0) + span.token_end - span.token_start
                )
    encode = run.tokenizer.encode_batch
    whole = sum(
        len(encoded.ids)
        for encoded in encode([texts["one"][int(name[4:])] for name in tokens])
    )
    assert found.tokens.cut_off.of_tokens == pytest.approx(
        whole, rel=0.02
    )  # chunks are tokenized one by one
    assert found.tokens.cut_off.tokens == found.tokens.cut_off.of_tokens - sum(
        tokens.values()
    )
    assert found.tokens.cut_off.tokens > 0.5 * found.tokens.cut_off.of_tokens
    assert (
        f"{found.tokens.cut_off.tokens:,} of the {found.tokens.cut_off.of_tokens:,} tokens"
        in said(found, "much-cut-off")
    )
    mended = measured(texts, *options, change(found, "much-cut-off"))
    assert (
        0
        < mended.tokens.cut_off.tokens
        < warnings.THRESHOLDS.max_cut_off * mended.tokens.cut_off.of_tokens
    )
    assert "much-cut-off" not in names(mended)


@pytest.mark.thorough
def test_the_cure_where_most_documents_are_longer_than_a_sequence(measured):
    texts = {"one": Writer(11).documents(60)}
    found = measured(texts, "compose.sequences=60", "compose.target_tokens=512")
    assert found.yields.dropped[DropReason.TOO_LONG] > 30
    for name in ("many-dropped", "fewer-sequences"):
        assert "raise compose.target_tokens" in said(found, name)
    mended = measured(texts, "compose.sequences=60", change(found, "many-dropped"))
    assert "many-dropped" not in names(mended)


def test_a_corpus_of_which_a_method_leaves_most_out_as_copies(measured):
    texts = Writer(12).documents(60)
    altered = [f"{text}\nAltered {number}." for number in range(4) for text in texts]
    found = measured(
        {"one": texts + altered}, "compose.method=iclm", "compose.sequences=all"
    )
    assert 180 < found.near_duplicates.documents < 300
    told = said(found, "many-near-duplicates")
    copies = str(found.near_duplicates.documents)
    assert re.findall(r"\d+", told)[:2] == [copies, "300"]


def test_documents_without_keywords_by_source_and_none_of_chinese(measured):
    """A source of tables has no keywords; one of Chinese has, once its words are found."""
    draw = random.Random(3)
    tables = [
        "\n".join(f"{draw.random():.3f}, {draw.random():.3f}" for _ in range(30))
        for _ in range(40)
    ]
    firsts = ["城市", "海洋", "农业", "森林", "铁路", "火山", "陶瓷"]
    lasts = ["研究", "保护", "经济", "历史", "工程", "数据", "文化"]
    chinese = [
        f"{firsts[n % 7]}{lasts[n % 49 // 7]}\n"
        + "。".join([f"在我们的{firsts[n % 7]}{lasts[n % 49 // 7]}中"] * 20)
        + f"。{n}"
        for n in range(90)
    ]
    ports = Writer(3).topics[0][:20]
    prose = [
        f"The {port} vessels are in the {port} harbour. " * size
        for port in ports
        for size in (18, 20)
    ]
    sources = {"tables": tables, "chinese": chinese, "prose": prose}
    asked = [
        "compose.method=quest",
        "compose.sequences=all",
        "compose.target_tokens=512",
    ]
    found = measured(sources, *asked)
    assert found.corpus.keywords == {
        "tables": WithKeywords(40, 0),
        "chinese": WithKeywords(90, 90),
        "prose": WithKeywords(40, 40),
    }
    assert found.tokens.by_source["chinese"] > 0
    assert said(found, "no-keywords").startswith(
        "documents without a keyword are in no sequence: 40 of 40 of tables (100%); lower"
    )
    (line, unshared) = [value for name, value in _summary(found) if name == "keywords"]
    assert (
        line == "40 of 40 documents of tables filtered out because they have no keyword"
    )
    assert unshared.startswith(f"{found.corpus.unshared_keywords} document")
    del sources["tables"]
    assert "no-keywords" not in names(measured(sources, *asked))


def invented_words(count):
    """Return words of which no two documents share one, and which no language has."""
    syllables = ["zor", "bel", "kra", "mip", "tuv", "lox", "qua", "fen", "dyr", "hes"]
    return [
        "".join(syllables[int(digit)] for digit in f"{number:04d}")
        for number in range(count)
    ]


def test_too_few_sequences_because_documents_share_no_keyword(measured):
    apart = [
        f"The {word} vessels are in the {word} harbour. " * 9
        for word in invented_words(90)
    ]
    ports = Writer(3).topics[0][:20]
    shared = [
        f"The {port} vessels are in the {port} harbour. " * size
        for port in ports
        for size in (18, 20)
    ]
    asked = ["compose.method=quest", "compose.target_tokens=512"]
    found = measured(
        {"apart": apart, "shared": shared}, *asked, "compose.sequences=5000"
    )
    count = found.corpus.unshared_keywords
    assert count == 90
    cause = f"{count} of 130 documents (69%) share no keyword with another document"
    for name in ("fewer-sequences", "unshared-keywords"):
        assert cause in said(found, name)
    assert "too small" not in said(found, "fewer-sequences")
    few = measured({"shared": shared}, *asked, "compose.sequences=5000")
    assert "too small" in said(few, "fewer-sequences")
    assert "unshared-keywords" not in names(few)


def _summary(found):
    run = nextlong.open(found.run)
    return summary.lines(Exported(run.recipe, [run], run.steps))


def test_documents_of_one_chunk_that_cannot_be_cut(measured):
    texts = {"one": Writer(14).documents(120, sentences=(2, 3))}
    options = ["compose.method=untie_the_knots", "compose.sequences=all"]
    found = measured(texts, *options, "chunk.max_chars=2048")
    assert (
        found.documents.in_parts.documents,
        found.documents.in_parts.of_documents,
    ) == (
        0,
        found.documents.distinct,
    )
    assert said(found, "hardly-in-parts").startswith(
        f"0 of the {found.documents.distinct} documents in the sequences (0.0%)"
    )
    mended = measured(texts, *options, change(found, "hardly-in-parts"))
    assert "hardly-in-parts" not in names(mended)


def test_documents_that_share_an_id(measured_in, tmp_path):
    texts = Writer(1).documents(60)
    rows = [{"id": f"d{number}", "text": text} for number, text in enumerate(texts)]
    rows[7]["id"] = rows[9]["id"] = "d3"

    def run(folder):
        folder.mkdir()
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / "given.jsonl").write_text(lines)
        named = f"ingest.sources=[{{path: {folder / 'given.jsonl'}, name: given}}]"
        return measured_in(folder, {}, "compose.sequences=1", named)

    shared = run(tmp_path / "shared")
    assert said(shared, "same-ids").startswith("2 of 60 documents")
    assert "d3" in said(shared, "same-ids")
    rows[7]["id"], rows[9]["id"] = "d7", "d9"
    assert "same-ids" not in names(run(tmp_path / "distinct"))


def test_every_warning_has_its_place_in_the_documentation():
    text = (Path(__file__).parents[3] / "docs/warnings.md").read_text("utf-8")
    headings = [
        line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")
    ]
    assert [name for name in headings if "-" in name] == [
        *CHECKS,
        "empty-rows",
        "unused-run",
        "longer-documents",
        "read-in-train",
    ]


@pytest.mark.parametrize(("tokens", "names"), [(1900, ()), (1899, ("empty-rows",))])
def test_rows_with_room_to_spare(tokens, names):
    told = of_rows(
        {"train": SplitResult(rows=20, sequences=20, documents=9, tokens=tokens)},
        lengths={100},
        pack=None,
    )
    assert tuple(warned.name for warned in told) == names


def test_a_run_of_which_a_mix_takes_nothing():
    taken = {"train": ((20, 1000), (0, 0)), "validation": ((1, 50), (1, 50))}
    splits = {
        name: SplitResult(
            rows=20, sequences=20, documents=9, tokens=1000, of_runs=of_runs
        )
        for name, of_runs in taken.items()
    }
    (warned,) = of_rows(splits, lengths={50}, pack=None, runs=["long", "short"])
    assert warned.name == "unused-run"
    assert " short " in warned.message


def test_one_run_is_no_mix_that_could_take_nothing_of_it():
    empty = SplitResult(rows=0, sequences=0, documents=0, tokens=0, of_runs=((0, 0),))
    told = of_rows({"train": empty}, lengths={50}, pack=None, runs=["only"])
    assert "unused-run" not in [warned.name for warned in told]


@pytest.mark.parametrize(("in_train", "names"), [(5, ()), (6, ("read-in-train",))])
def test_validation_that_train_reads_too(in_train, names):
    split = SplitResult(
        rows=20,
        sequences=20,
        documents=9,
        tokens=2000,
        chunks=100,
        chunks_in_train=in_train,
    )
    assert (
        tuple(
            warned.name
            for warned in of_rows({"validation": split}, lengths={100}, pack=None)
        )
        == names
    )


@pytest.mark.parametrize(
    ("lengths", "pack", "cause"),
    [
        ({400, 512}, None, "sequences of 400 and 512 tokens"),
        ({512}, None, "sequences vary in length"),
        ({512}, 2000, "export.pack=2,000 is not a multiple"),
        ({512}, 2048, "too few sequences"),
        ({256, 512}, 2048, "too few sequences"),
    ],
)
def test_the_reason_for_short_rows_is_one_that_holds(lengths, pack, cause):
    split = SplitResult(rows=20, sequences=20, documents=9, tokens=1000)
    (warned,) = of_rows({"train": split}, lengths=lengths, pack=pack)
    assert warned.name == "empty-rows"
    assert cause in warned.message


def test_documents_without_contexts_are_told_what_finds_more_of_them(sound):
    found = changed(sound(), {"yields.dropped": {DropReason.NO_CONTEXTS: 9}})
    more = warnings._more_sequences(found)
    assert "scorer.model" in more.fix_if_dropped
    assert "compose.target_tokens" not in more.fix_if_fewer
