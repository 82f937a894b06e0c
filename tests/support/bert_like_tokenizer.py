"""A tokenizer as BERT's, of all parts of a few words and of some characters."""

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers


def bert_like(**normalizer):
    words = ["the", "tide", "The", "anchors", "café", "日", "本", ",", "[", "-", "4"]
    parts = {word[:end] for word in words for end in range(1, len(word) + 1)}
    tails = {f"##{part[1:]}" for part in parts if len(part) > 1} | {"##\u0301", "##é"}
    names = ["[PAD]", "[UNK]", "[SEP]", *sorted(parts | tails)]
    vocabulary = {name: number for number, name in enumerate(names)}
    model = models.WordPiece(vocabulary, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[SEP]"])
    return tokenizer
