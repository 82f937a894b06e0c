"""Run HELMET's own eval.py on invented files and predictions, and record what it feeds to a model and how it scores.

    python -m tests.evaluate.reference.record_helmet CHECKOUT OUT.json

CHECKOUT is princeton-nlp/HELMET at the commit that helmet_runs.json names, with its
requirements. Every run has the arguments of a configuration file of the checkout; only
what cannot be had is replaced: the model by predictions, Llama 2's tokenizer by bytes,
the data of the hub by those of `tests.support`, 100 test samples by 12.
"""

import contextlib
import hashlib
import json
import sys
import tempfile
from pathlib import Path

from tests.support.evaluation_data import RULER_TASKS
from tests.support.helmet_runs import (
    LENGTH,
    SAMPLES,
    helmet_folder,
    instruct_tokenizer,
    predictions,
)

# Names of our tasks: a configuration of HELMET, its name of the data set, and its file.
RUNS = {
    "nq": ("rag_short", "kilt_nq", "kilt/nq-dev-multikilt_1000_k50_dep6.jsonl"),
    "msmarco": (
        "rerank_short",
        "msmarco_rerank_psg",
        "msmarco/test_reranking_data_k50_dep3.jsonl",
    ),
    "trec_coarse": ("icl_short", "icl_trec_coarse_400shot_balance", ""),
    "narrativeqa": ("longqa_short", "narrativeqa_7892", ""),
    "infbench_qa": ("longqa_short", "infbench_qa_eng_7982", ""),
    "infbench_mc": ("longqa_short", "infbench_choice_eng_7982", ""),
    "ruler_mk_needle": ("recall_short", "ruler_niah_mk_2", ""),
    "ruler_mk_uuid": ("recall_short", "ruler_niah_mk_3", ""),
    "ruler_mv": ("recall_short", "ruler_niah_mv", ""),
}
SHORT = {"single": "s", "multikey": "mk", "multivalue": "mv", "multiquery": "mq"}
for task in RULER_TASKS:
    name = "_".join(SHORT.get(part, part) for part in task.split("_"))
    RUNS[f"helmet_{task}"] = ("ruler_short", f"ruler_{name}", "")


def record(checkout, folder):
    sys.path.insert(0, str(checkout))
    import arguments
    import data as helmet_data
    import datasets
    import eval as helmet_eval
    import model_utils

    llama2 = helmet_tokenizer(folder)
    helmet_data.AutoTokenizer.from_pretrained = lambda _: llama2
    from_files = datasets.load_dataset

    def load_dataset(name, **more):
        if name == "json":
            return from_files(name, **more)
        return hub_data(name, folder)

    # Every story of InfiniteBench is long enough, by HELMET's own comment; ours are short.
    helmet_data.filter_length = lambda data, *_: data
    # One of its functions imports the name again.
    helmet_data.load_dataset = datasets.load_dataset = load_dataset
    runs = {}
    for task, (config, dataset, file) in RUNS.items():
        sys.argv = ["eval.py", "--config", str(checkout / f"configs/{config}.yaml")]
        sys.argv += ["--model_name_or_path", "instruct", "--no_cuda"]
        args = arguments.parse_arguments()
        runs[task] = recorded_run(
            args,
            (helmet_eval, model_utils),
            dataset,
            files_of(args, dataset, file, folder),
        )
    return runs


def files_of(args, dataset, file, folder):
    """Return the test and the example file of a data set, at our length, and its budget."""
    names = args.datasets.split(",")
    lengths = args.input_max_length.split(",")
    index = next(
        index
        for index, (name, length) in enumerate(zip(names, lengths, strict=True))
        if name == dataset and int(length) == LENGTH
    )
    test_file = args.test_files.split(",")[index]
    demo_file = args.demo_files.split(",")[index]
    assert not file or test_file == f"data/{file}"
    args.generation_max_length = int(args.generation_max_length.split(",")[index])
    args.input_max_length = LENGTH
    places = [
        str(folder / "helmet" / name.removeprefix("data/"))
        for name in (test_file, demo_file)
    ]
    return [
        place if name else ""
        for place, name in zip(places, (test_file, demo_file), strict=True)
    ]


def recorded_run(args, modules, dataset, files):
    """Return what a run of eval.py reads and how it scores each kind of prediction."""
    helmet_eval, model_utils = modules
    args.max_test_samples = SAMPLES
    args.num_workers = 0
    args.datasets = dataset
    shown = {}

    class Predictions(model_utils.LLM):
        tokenizer = instruct_tokenizer()

        def prepare_inputs(self, item, data):
            # As HFModel's.
            return model_utils.tokenize(
                item,
                data,
                tokenizer=self.tokenizer,
                max_length=args.input_max_length,
                generation_max_length=args.generation_max_length,
                use_chat_template=args.use_chat_template,
                system_message=args.system_message,
            )

        def generate_batch(self, inputs, **_):
            shown["ids"] = [one.input_ids[0].tolist() for one in inputs]
            return [
                {"output": text, "input_len": 0, "output_len": 0} for text in self.texts
            ]

    model = Predictions("instruct", stop_newline=args.stop_newline)
    loaded = helmet_eval.load_data
    with contextlib.ExitStack() as stack:
        args.output_dir = stack.enter_context(tempfile.TemporaryDirectory())
        args.overwrite = True
        helmet_eval.random.seed(args.seed)
        made = loaded(args, dataset, *files)
        stack.callback(setattr, helmet_eval, "load_data", loaded)
        helmet_eval.load_data = lambda *_: made
        scores = []
        for number in range(len(predictions("x"))):
            items = list(made["data"])
            model.texts = [predictions(first(item["answer"]))[number] for item in items]
            path = helmet_eval.run_test(args, model, dataset, *files)
            results = json.loads(Path(path).read_text())["data"]
            scores.append([metrics(one) for one in results])
    return {
        "use_chat_template": args.use_chat_template,
        "stops": model.stops,
        "budget": args.generation_max_length,
        "ids_sha256": [digest(ids) for ids in shown["ids"]],
        "tokens": [len(ids) for ids in shown["ids"]],
        "references": [item["answer"] for item in items],
        "scores": scores,
    }


def metrics(result):
    names = (
        "substring_exact_match",
        "exact_match",
        "rougeL_f1",
        "ruler_recall",
        "NDCG@10",
    )
    return {name: float(result[name]) for name in names if name in result}


def first(answer):
    return answer if isinstance(answer, str) else answer[0]


def digest(ids):
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def helmet_tokenizer(folder):
    import transformers

    file = folder / "helmet/llama2/tokenizer.json"
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(file))


def hub_data(name, folder):
    """Return a data set of the hub, from our files of it."""
    import datasets

    def lines(file):
        return [json.loads(line) for line in (folder / file).read_text().splitlines()]

    if name == "narrativeqa":
        return {
            part: datasets.Dataset.from_list(lines(f"narrativeqa/{part}.jsonl"))
            for part in ("train", "test")
        }
    if name == "xinrongzhang2022/infinitebench":
        parts = {"longbook_qa_eng": "qa", "longbook_choice_eng": "choice"}
        return {
            part: datasets.Dataset.from_list(
                lines(f"infinitebench/longbook_{file}_eng.jsonl")
            )
            for part, file in parts.items()
        }
    made = {}
    for part, file in (("train", "train_5500"), ("test", "TREC_10")):
        rows = [
            line.split(" ", 1)
            for line in (folder / f"icl/trec/{file}.label").read_text().splitlines()
        ]
        labels = sorted({label.split(":")[0] for label, _ in rows})
        features = datasets.Features(
            text=datasets.Value("string"),
            coarse_label=datasets.ClassLabel(names=labels),
        )
        made[part] = datasets.Dataset.from_list(
            [
                {
                    "text": text.strip(),
                    "coarse_label": labels.index(label.split(":")[0]),
                }
                for label, text in rows
            ],
            features=features,
        )
    return made


if __name__ == "__main__":
    # HELMET's parser reads sys.argv, which `record` therefore replaces.
    checkout, out = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as temporary:
        runs = record(checkout, helmet_folder(Path(temporary)))
    values = {
        "repository": "princeton-nlp/HELMET",
        "commit": "4526dfbdc512bd9ff721da336bff4e3e75ecfd27",
        "runs": runs,
    }
    out.write_text(json.dumps(values) + "\n")
