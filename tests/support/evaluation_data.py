"""Data in the form of the benchmarks' files, made up; and tokenizers of three kinds."""

import csv
import json
import random

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

NOUNS = [
    "harbour",
    "tide",
    "anchor",
    "sail",
    "current",
    "reef",
    "vessel",
    "captain",
    "storm",
    "rope",
    "deck",
    "cargo",
]
NOUNS += ["gull", "wave", "oven", "dough", "crust", "rye", "loaf"]
VERBS = [
    "carries",
    "follows",
    "crosses",
    "watches",
    "leaves",
    "meets",
    "covers",
    "turns",
    "holds",
    "finds",
    "calls",
    "moves",
]
PLACES = [
    "Ostrava",
    "Lyon",
    "Cork",
    "Turin",
    "Malmo",
    "Ghent",
    "Porto",
    "Basel",
    "Graz",
    "Varna",
    "Split",
    "Bergen",
]


def sentences(draw, count):
    """Return so many sentences of 6 to 16 words."""
    made = []
    for _ in range(count):
        words = [
            draw.choice(VERBS if number % 3 == 1 else NOUNS)
            for number in range(draw.randint(6, 16))
        ]
        made.append(
            " ".join(words).capitalize()
            + draw.choice(["", ", said Dr. Moss", ", at 3.5 knots"])
            + "."
        )
    return made


def write_data(folder, *, as_recorded_first=False):
    """Write every file that the tasks read, but HELMET's own; return the folder.

    `as_recorded_first`: books as they were when `helmet.json` was recorded, with other
    texts drawn before them.
    """
    draw = random.Random(7)
    write(
        folder / "ruler/PaulGrahamEssays.json",
        json.dumps({"text": "\n\n".join(sentences(draw, 3000))}),
    )
    write(
        folder / "ruler/english_words.json",
        json.dumps({str(n): f"word{n}" for n in range(30_000)}),
    )
    write(folder / "ruler/squad.json", json.dumps(squad(draw)))
    write(folder / "ruler/hotpotqa.json", json.dumps(hotpotqa(draw)))
    write(folder / "needle/haystack.txt", "\n".join(sentences(draw, 1500)))
    write(folder / "icl/trec/train_5500.label", "".join(trec(draw, 60)))
    write(folder / "icl/trec/TREC_10.label", "".join(trec(draw, 12)))
    for name in ("train", "test"):
        rows = labelled(draw, 90 if name == "train" else 12)
        write_csv(
            folder / f"icl/banking77/{name}.csv",
            [{"text": text, "category": label} for text, label in rows],
        )
        write_csv(
            folder / f"icl/nlu/{name}.csv",
            [{"text": t, "scenario": s, "intent": "query"} for t, s in rows],
        )
    parts = ("train", "val", "test", "oos_train", "oos_val", "oos_test")
    clinc = {
        part: [[t, "oos" if "oos" in part else s] for t, s in labelled(draw, 30)]
        for part in parts
    }
    write(folder / "icl/clinc150/data_full.json", json.dumps(clinc))
    if as_recorded_first:
        # Short and long stories of questions with four choices.
        for number, count in enumerate((20, 20, 900, 900) * 2):
            fact(draw, number)
            sentences(draw, count)
    for name in ("qa", "choice"):
        lines = [json.dumps(infinite(draw, number, name)) for number in range(8)]
        write(
            folder / f"infinitebench/longbook_{name}_eng.jsonl", "\n".join(lines) + "\n"
        )
    # Llama 2's tokenizer stands here as one of bytes, so that 131,072 tokens are a
    # short book.
    write(folder / "helmet/llama2/tokenizer.json", byte_tokenizer().to_str())
    for name, count in (("train", 20), ("test", 1900)):
        story = sentences(draw, count)
        rows = [json.dumps(narrative(draw, story)) for _ in range(6)]
        write(folder / f"narrativeqa/{name}.jsonl", "\n".join(rows) + "\n")
    return folder


def write_helmet(folder, *, length_passages=(50, 50), questions=12):
    """Write HELMET's own files for 8K tokens: RAG and re-ranking; return the folder."""
    draw = random.Random(3)
    kilt, ranked = length_passages
    for name, depths, demos in (
        ("nq-dev-multikilt", 6, "nq-train-multikilt"),
        ("triviaqa-dev-multikilt", 6, "triviaqa-train-multikilt"),
        ("hotpotqa-dev-multikilt", 3, "hotpotqa-train-multikilt"),
        ("popqa_test", 6, "popqa_test"),
    ):
        for file, passages in ((name, kilt), (demos, 3)):
            rows = kilt_rows(draw, questions)
            write_lines(
                folder / f"helmet/kilt/{file}_1000_k{passages}_dep{depths}.jsonl", rows
            )
    for passages in (ranked, 10):
        rows = [ranked_row(draw, number) for number in range(questions)]
        write_lines(
            folder / f"helmet/msmarco/test_reranking_data_k{passages}_dep3.jsonl", rows
        )
    return folder


def write_ruler(folder, *, length=8192, rows=12):
    """Write HELMET's files of RULER for a length, with contexts that are too long for bytes; return the folder."""
    draw = random.Random(11)
    for task in RULER_TASKS:
        write_lines(
            folder / f"helmet/ruler/{task}/validation_{length}.jsonl",
            [ruler_row(draw, task, number) for number in range(rows)],
        )
    return folder


RULER_TASKS = [
    *(f"niah_single_{number}" for number in (1, 2, 3)),
    *(f"niah_multikey_{number}" for number in (1, 2, 3)),
    "niah_multivalue",
    "niah_multiquery",
    "cwe",
    "fwe",
    "vt",
    "qa_1",
    "qa_2",
]


def ruler_row(draw, task, number):
    """Return a row with the fields that HELMET's `load_ruler` reads, by the task."""
    # Every other context is cut by a tokenizer of bytes.
    context = " ".join(sentences(draw, 60 + 120 * (number % 2)))
    row = {"index": number, "context": context + " {braces}"}
    answers = [f"{draw.choice(PLACES)}-{part}" for part in range(4)]
    if task.startswith("niah"):
        count = 4 if task.endswith(("value", "query")) else 1
        kind = "numbers" if count > 1 else "number"
        row |= {
            "query": f"key {number}",
            "type_needle_v": kind,
            "outputs": answers[:count],
        }
    elif task.startswith("qa"):
        row |= {"question": f"Where is {number}?", "outputs": answers[:2]}
    elif task == "vt":
        row |= {
            "query": f"{10000 + number}",
            "num_v": 5,
            "example": "VAR A = 1",
            "answer": answers,
        }
    elif task == "cwe":
        row |= {"example": "1. oven 2. gull", "answer": answers}
    else:
        row |= {"answer": answers[:3]}
    return row


def kilt_rows(draw, questions):
    """Return questions with their gold passage first and last of three."""
    rows = []
    for number in range(questions):
        text, question, answer = fact(draw, number)
        for depth in (0.0, 1.0):
            passages = [
                {"title": f"T{n}", "text": fact(draw, 5000 + n)[0]} for n in range(3)
            ]
            passages[int(depth * 2)] = {"title": "gold", "text": text}
            row = {
                "id": f"q{number}",
                "question": question,
                "answers": [answer],
                "ctxs": passages,
                "depth": depth,
                "s_pop": 10 ** (number % 5),
            }
            rows.append(row)
    return rows


def ranked_row(draw, number):
    passages = [
        {"id": str(n), "text": sentences(draw, 1)[0], "label": n % 4}
        for n in draw.sample(range(100), 12)
    ]
    return {"qid": f"q{number}", "query": f"what {number}", "ctxs": passages}


def write_lines(path, rows):
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def fact(draw, number):
    """Return a paragraph, a question that it answers, and the answer."""
    name, place = f"{draw.choice(NOUNS).capitalize()} {number}", draw.choice(PLACES)
    text = " ".join(
        [*sentences(draw, 3), f"{name} lies in {place}.", *sentences(draw, 2)]
    )
    return text, f"Where does {name} lie?", place


def squad(draw):
    articles = []
    for article in range(12):
        paragraphs = []
        for part in range(6):
            text, question, answer = fact(draw, article * 10 + part)
            asked = [
                {
                    "question": question,
                    "answers": [{"text": answer}, {"text": answer}],
                    "is_impossible": False,
                },
                {"question": "Why?", "answers": [], "is_impossible": True},
            ]
            paragraphs.append({"context": text, "qas": asked})
        articles.append({"title": str(article), "paragraphs": paragraphs})
    return {"data": articles}


def hotpotqa(draw):
    items = []
    for number in range(20):
        facts = [fact(draw, number * 10 + part) for part in range(10)]
        context = [
            [f"Title {number}-{part}", text.split("  ")]
            for part, (text, _, _) in enumerate(facts)
        ]
        items.append(
            {"question": facts[3][1], "answer": facts[3][2], "context": context}
        )
    return items


def trec(draw, count):
    kinds = [
        "DESC:manner",
        "DESC:def",
        "ENTY:animal",
        "HUM:ind",
        "LOC:city",
        "NUM:date",
    ]
    return [f"{kinds[n % 6]} {sentences(draw, 1)[0]}\n" for n in range(count)]


def labelled(draw, count):
    return [
        (" ".join(sentences(draw, 1)[0].split()[:6]), f"label-{n % 9}")
        for n in range(count)
    ]


def infinite(draw, number, name):
    text, question, answer = fact(draw, number)
    row = {
        "id": number,
        "context": "\n".join([text, *sentences(draw, 800)]),
        "input": question,
        "answer": [answer],
    }
    return row | (
        {"options": [answer, "Rome", "Oslo", "Kyiv"]}
        if name == "choice"
        else {"options": []}
    )


def narrative(draw, story):
    text, question, answer = fact(draw, draw.randint(0, 99))
    return {
        "document": {"text": "\n".join([text, *story])},
        "question": {"text": question},
        "answers": [{"text": answer}, {"text": f"in {answer}"}],
    }


def word_tokenizer():
    """Return a tokenizer whose tokens are runs of letters and digits, and runs of punctuation; none is known."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def byte_tokenizer():
    """Return a tokenizer whose tokens are bytes."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={letter: n for n, letter in enumerate(sorted(alphabet))}, merges=[]
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def bpe_tokenizer():
    """Return a trained byte-level BPE that puts a BOS before a text, as Llama 3's does."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINING, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 0)]
    )
    return tokenizer


def unigram_tokenizer():
    """Return a trained Unigram with Metaspace, as SentencePiece's are."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(_TRAINING, trainer)
    return tokenizer


_TRAINING = [
    *sentences(random.Random(1), 400),
    "One of the special magic numbers for tidy-harbour is: 4839201. The grass is green. The sky is blue.",
    "0123456789 abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ -.,:;?!'()<>=\n",
]
TOKENIZERS = {
    "bytes": byte_tokenizer,
    "bpe": bpe_tokenizer,
    "unigram": unigram_tokenizer,
}
