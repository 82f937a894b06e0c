"""What HELMET's eval.py was run on to record its prompts and scores: files, an instruction-tuned tokenizer, predictions."""

from tokenizers import processors

from tests.support.evaluation_data import (
    byte_tokenizer,
    write_data,
    write_helmet,
    write_ruler,
)

LENGTH = 8192
SAMPLES = 12
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]\n{% endif %}"
)


def helmet_folder(folder):
    return write_ruler(write_helmet(write_data(folder)))


def instruct_tokenizer():
    """Return a tokenizer of bytes with BOS and a chat template, as transformers has it."""
    import transformers

    backend = byte_tokenizer()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        chat_template=CHAT,
    )


def predictions(right):
    """Return answers that begin with line breaks, run on after them, or repeat what was asked."""
    return [
        f" {right}",
        f"\n{right}",
        f"\n\n {right}\n",
        f" {right}\n\nQuestion: Where does Rye 9 lie?\nAnswer: Atlantis",
        f" Atlantis\n\nQuestion: Where does Rye 9 lie?\nAnswer: {right}",
        f"Answer: {right}\nlabel: {right}",
        f"\nlabel: {right}\n\ntext\nlabel: 999",
        f"I think that\nRanking: {right}",
        right,
        "",
        "\n",
    ]
