"""Models that know the answers, as base and as chat models write them: both must score the maximum in every task.

`scores(task, request, kind)` works for any task: one of another package, too, if its first reference is a right answer.
"""

from nextlong.evaluate.answers import scored_answers
from nextlong.evaluate.prompts import Prompts
from nextlong.evaluate.results import Shard
from tests.support.answering_models import READERS, Blind, Oracle


class Template:
    """A chat template without special tokens, as a tokenizer of transformers applies it."""

    bos_token_id = None
    chat_template = "roles and contents"

    def apply_chat_template(self, turns, **_):
        told = [f"<{turn['role']}>{turn['content']}" for turn in turns]
        return "".join(told) + "<assistant>"


def right_answer(sample):
    """Return an answer that was read from the prompt, or else the first reference."""
    for sign, reader in READERS.items():
        if sign in sample.text:
            return reader(sample.text)
    return sample.references[0]


class KnowingModel(Oracle):
    """One whose generated texts end as those of the engines do."""

    def __init__(self, prompts):
        self.prompts = prompts
        self.tokenizer = prompts.tokenizer

    def answer(self, sample):
        return self.prompts.answer(self.generated(sample), sample)

    def generated(self, sample):
        return right_answer(sample)


class BaseModel(KnowingModel):
    """One that begins with a space, and goes on with a question of its own invention."""

    def generated(self, sample):
        answer = right_answer(sample)
        if sample.stop == "]":
            answer = answer.rpartition("[")[2]
        asked = sample.prompt.rsplit("\n\n", 1)[-1][-300:]
        return f" {answer}\n\n{asked}{sample.answer_prefix} Atlantis"


class BlindModel(KnowingModel):
    def generated(self, sample):
        return Blind.read(self, sample.text)


def scores(task, request, kind):
    """Return the score of each sample that is not refused."""
    chat = Prompts(request.tokenizer, "chat", template=Template()).under(task.chat)
    models = {
        "base": BaseModel(Prompts(request.tokenizer)),
        "chat": KnowingModel(chat),
        "blind": BlindModel(chat),
        "blind base": BlindModel(Prompts(request.tokenizer)),
    }
    lines = scored_answers(models[kind], task, request, shard=Shard(), done=())
    return [line["scores"][task.metric] for _, line in lines if not line.get("refused")]
