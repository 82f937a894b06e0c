"""Choose columns: sampled records → the column with the text, and the one with ids.

In:  records of a file as dictionaries, drawn from all of it.
Out: the columns that can be the text, the best first, and the id column.

A column is judged by type, name and content. Its score is the mean size of its texts,
times the square of the share of records that have one, times the share of texts that
differ, times factors for its name and for what its values are like. So a usual name
wins over a longer column, but not a language code over an article, nor a license that
every record repeats over a description. Addresses, paths, codes, numbers and encoded
data are never text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from nextlong.reading.document_text import EACH, conversation_text, paths_of, text_of

# Names are compared in lower case, without underscores, hyphens and blanks.
_USUAL: Final = frozenset({
    "text", "content", "contents", "body", "document", "article", "fulltext",
    "bodytext", "maintext", "pagecontent", "plaintext", "cleantext", "textcontent",
    "articletext", "articlebody", "documenttext",
})  # fmt: skip
_LIKELY: Final = frozenset({
    "rawcontent", "rawtext", "markdown", "story", "passage", "transcript", "paragraphs",
    "sentences", "lines", "pages", "sections", "chapters", "passages", "messages",
    "conversations", "conversation", "turns", "dialogue", "dialog", "chat",
})  # fmt: skip
_SHORTENED: Final = frozenset({
    "title", "subtitle", "headline", "heading", "subject", "name", "summary",
    "abstract", "excerpt", "snippet", "teaser", "caption", "highlights", "tldr",
    "prompt", "question",
})  # fmt: skip
# What may stand above a text: columns to join with it, the most usual first.
_TITLES: Final = ("title", "headline", "heading", "subject", "question")
# Texts that a model should not learn: the worse answers of preference data.
_WORSE: Final = frozenset({
    "rejected", "negative", "hardnegative", "negatives", "loser",
})  # fmt: skip
_ABOUT: Final = frozenset({
    "meta", "metadata", "extra", "info", "attributes", "html", "rawhtml", "xml",
    "license", "licensetext", "copyright", "system", "systemprompt", "keywords", "tags",
    "categories", "authors", "references", "source", "tokens", "filename", "filepath",
    "path", "file", "link", "href", "image",
})  # fmt: skip
_IDS: Final = (
    "id", "docid", "documentid", "uid", "docuid", "uuid", "guid", "warcrecordid",
    "recordid", "paperid", "articleid", "pageid", "corpusid", "pmid", "pmcid",
    "arxivid", "doi", "blobid", "hexsha", "key", "url", "uri",
)  # fmt: skip

_USUAL_FACTOR: Final = 10.0
_LIKELY_FACTOR: Final = 3.0
_SHORTENED_FACTOR: Final = 0.5
_ABOUT_FACTOR: Final = 0.1
_LIST_FACTOR: Final = 0.3  # most lists hold tags, comments or references
_MARKUP_FACTOR: Final = 0.1  # HTML or JSON in strings: a column with text is better
_ONE_WORD_FACTOR: Final = 0.05

# Share of the values that decides what a column holds.
_MAJORITY: Final = 0.5
_MAX_COLUMNS: Final = 1_000  # objects may have a key for each id
_MIN_BYTES: Final = 40  # mean size of the texts under an unusual name
_MIN_ITEM_BYTES: Final = 20  # mean size of strings in lists: shorter ones are tags
_MAX_ID_CHARS: Final = 300
# Mean length of words in text; encoded data has longer ones.
_MAX_WORD_CHARS: Final = 40
_MIN_ENCODED_CHARS: Final = 100
_MAX_WORD_OF_SCRIPT: Final = 12  # characters without a blank that may be one word
_RIVAL_SHARE: Final = 0.01  # of the best score: others compete
_HEAD_CHARS: Final = 4_000  # of a text: enough to see what it is like

_ADDRESS: Final = re.compile(r"(\w+://|www\.|/|~/|\.\.?/|[A-Za-z]:\\|\\\\)\S*")
_FILE_PATH: Final = re.compile(r"[^\n]*[/\\][^\n/\\]*\.\w{1,5}")  # may have blanks
_MAX_PATH_CHARS: Final = 400
_CODE: Final = re.compile(r"(?=\S*\d)[\w:.+/=-]+", re.ASCII)  # one word with a digit
_TAG: Final = re.compile(r"</?[A-Za-z][^<>]{0,300}>")
_PAGE: Final = re.compile(r"(<\?xml[^>]*>\s*)?<(!doctype|html|body)\b", re.IGNORECASE)
_MIN_TAG_SHARE: Final = 0.1  # of the characters of a page

_Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class TextCandidate:
    """A column that can be the text of the documents."""

    name: str
    mean_chars: float
    score: float
    is_usual: bool  # whether it has a usual name of a text
    holds: str  # what it holds if not plain strings, as the end of a sentence


@dataclass(frozen=True)
class ColumnChoice:
    """The columns of some records: candidates for the text, best first, and the id."""

    candidates: tuple[TextCandidate, ...] = ()
    id: str | None = None
    # A column with the name of an id, and a value that it has twice.
    repeating: tuple[str, Any] | None = None
    # Columns with the name of a text that hold none, and what they hold.
    not_text: tuple[tuple[str, str], ...] = ()
    # Columns with the name of a title that hold texts, the most usual first.
    titles: tuple[str, ...] = ()

    @property
    def text(self) -> str | None:
        """The column that holds the text, None if none looks like text."""
        return self.candidates[0].name if self.candidates else None

    def preferring(self, text: str) -> ColumnChoice:
        """Return the choice with the column `text` first, if it is a candidate."""
        first = [column for column in self.candidates if column.name == text]
        others = [column for column in self.candidates if column.name != text]
        own_id = None if self.id == text else self.id
        return replace(self, candidates=(*first, *others), id=own_id)

    def rivals(self, text: str) -> list[TextCandidate]:
        """Return the columns that could be the text instead of the column `text`."""
        best = max((column.score for column in self.candidates), default=0.0)
        rivals = []
        for column in self.candidates:
            competes = column.is_usual or column.score >= _RIVAL_SHARE * best
            if competes and not _is_within(column.name, text):
                rivals.append(column)
        return rivals

    def title(self, text: str) -> str | None:
        """Return the title beside the column `text` that is no rival of it."""
        rivals = {rival.name for rival in self.rivals(text)}
        if text in self.titles:
            return None
        for title in self.titles:
            if title not in rivals and _parent(title) == _parent(text):
                return title
        return None


def choose_columns(records: _Records) -> ColumnChoice:
    """Return the columns for text and id of records sampled from a whole file."""
    columns = _columns_of(records)
    candidates = [column.candidate for column in columns if column.can_be_text]
    # Of equal scores, the first column.
    candidates.sort(key=lambda candidate: -candidate.score)
    text = candidates[0].name if candidates else ""
    own_id, repeating = _choose_id(
        [column for column in columns if column.name != text]
    )
    titles = [column.name for column in columns if column.is_title]
    titles.sort(key=lambda title: _TITLES.index(_bare(_last_part(title))))
    return ColumnChoice(
        candidates=tuple(candidates),
        id=own_id,
        repeating=repeating,
        not_text=tuple(_named_but_no_text(columns, text)),
        titles=tuple(titles),
    )


def _named_but_no_text(
    columns: Sequence[_Column], text: str
) -> Iterator[tuple[str, str]]:
    """Yield the columns with the name of a text that hold none, and what they hold."""
    for column in columns:
        # A field of it may be the text.
        is_around_text = _is_within(text, column.name)
        if column.has_usual_name and not column.can_be_text and not is_around_text:
            yield column.name, column.kind


def _columns_of(records: _Records) -> list[_Column]:
    values_by_column: dict[str, list[Any]] = {}
    for record in records:
        for path, value in paths_of(record):
            if path in values_by_column or len(values_by_column) < _MAX_COLUMNS:
                values_by_column.setdefault(path, []).append(value)
    return [
        _Column(name, values, len(records)) for name, values in values_by_column.items()
    ]


def _choose_id(
    columns: Sequence[_Column],
) -> tuple[str | None, tuple[str, Any] | None]:
    """Return the column with ids, and one whose ids repeat with the first such value.

    Both have a usual name of an id.
    """
    distinct = []
    repeated = {}
    for column in columns:
        if column.can_be_id:
            value, count = column.most_common
            if count == 1:
                distinct.append(column.name)
            else:
                repeated[column.name] = value
    own_id = _first_named(distinct)
    name = _first_named(list(repeated))
    return own_id, None if name is None else (name, repeated[name])


def _first_named(columns: Sequence[str]) -> str | None:
    """Return the column with the first name of `_IDS`.

    Of nested columns the last part counts, and they come after the others.
    """

    def rank(name: str) -> tuple[bool, int]:
        return "." in name, _IDS.index(_bare(_last_part(name)))

    return min(columns, key=rank, default=None)


class _Column:
    """The sampled values of one column, and what they are like."""

    def __init__(self, name: str, values: Sequence[Any], records: int) -> None:
        self.name = name
        self._values = [value for value in values if value is not None]
        self._records = records
        found = [text_of(value) for value in self._values]
        texts = [text for text in found if isinstance(text, str)]
        self._has_texts = len(texts) > _MAJORITY * len(found)
        self._texts = [text for text in texts if text.strip()]
        self._heads = [text[:_HEAD_CHARS].strip() for text in self._texts]

    @property
    def has_usual_name(self) -> bool:
        return EACH not in self.name and _bare(_last_part(self.name)) in _USUAL

    @property
    def is_title(self) -> bool:
        """Whether it has the name of a title, and texts that differ."""
        is_named = EACH not in self.name and _bare(_last_part(self.name)) in _TITLES
        return is_named and self._has_texts and len(set(self._texts)) > 1

    @cached_property
    def can_be_text(self) -> bool:
        if not self._has_texts or not self._texts or self._is_named_as_id:
            return False
        if self._is_mostly(_is_reference) or self._is_encoded or self._is_list_of_words:
            return False
        if self.has_usual_name:
            return True
        is_long = self._mean_bytes * self._distinct_share >= _MIN_BYTES
        return is_long and not self._is_mostly(_is_one_word)

    @cached_property
    def can_be_id(self) -> bool:
        is_scalar = {*map(type, self._values)} <= {str, int, bool}
        if not self._is_named_as_id or not is_scalar or not self._values:
            return False
        mean_chars = sum(len(str(value)) for value in self._values) / len(self._values)
        return (
            mean_chars <= _MAX_ID_CHARS
            and len(self._values) > _MAJORITY * self._records
        )

    @cached_property
    def most_common(self) -> tuple[Any, int]:
        """A value that occurs most often, and how often."""
        [value_and_count] = Counter(self._values).most_common(1)
        return value_and_count

    @property
    def candidate(self) -> TextCandidate:
        """The column as a candidate for the text."""
        filled_share = len(self._texts) / self._records
        # Squared, because a record without a text is not only short: it is rejected.
        size = self._mean_bytes * filled_share**2 * self._distinct_share
        return TextCandidate(
            self.name,
            mean_chars=sum(map(len, self._texts)) / len(self._texts),
            score=size * self._name_factor * self._form_factor,
            is_usual=_bare(_last_part(self.name)) in _USUAL | _LIKELY,
            holds=self._holds,
        )

    @property
    def kind(self) -> str:
        """What most of its values are, in words."""
        kinds = Counter(map(_kind_of, self._values))
        if not kinds:
            return "nothing but null"
        [(kind, _)] = kinds.most_common(1)
        return kind

    @property
    def _is_named_as_id(self) -> bool:
        return EACH not in self.name and _bare(_last_part(self.name)) in _IDS

    @property
    def _name_factor(self) -> float:
        factor = _factor_of(_last_part(self.name))
        parents = self.name.partition(EACH)[0].split(".")[:-1]
        is_about = any(_bare(parent) in _ABOUT for parent in parents)
        if is_about:
            factor *= _ABOUT_FACTOR
        return factor

    @property
    def _form_factor(self) -> float:
        if self._is_mostly(_is_html) or self._is_mostly(_is_json):
            return _MARKUP_FACTOR
        if self._is_mostly(_is_one_word):
            return _ONE_WORD_FACTOR
        if self._is_list and not self._is_conversation:
            return _LIST_FACTOR
        return 1.0

    @property
    def _holds(self) -> str:
        if EACH in self.name:
            return "is a field of the objects in a list, joined by blank lines"
        if self._is_conversation:
            return "holds conversations: a paragraph `role: content` for each turn"
        if self._is_list:
            return "holds lists of strings, joined by blank lines"
        if self._is_mostly(_is_html):
            return "holds HTML, whose tags stay in the text: extract the text before"
        if self._is_mostly(_is_json):
            return "holds JSON, whose keys stay in the text: extract the text before"
        return ""

    @cached_property
    def _is_list(self) -> bool:
        lists = [value for value in self._values if isinstance(value, list)]
        return len(lists) > _MAJORITY * len(self._values)

    @cached_property
    def _is_conversation(self) -> bool:
        # A list without turns, or with empty ones only, may stand among conversations.
        conversations = [value for value in self._values if conversation_text(value)]
        return len(conversations) > _MAJORITY * len(self._values)

    @cached_property
    def _mean_bytes(self) -> float:
        # Bytes, because Chinese says in 100 characters what English says in 300.
        sizes = [len(text.encode(errors="replace")) for text in self._texts]
        return sum(sizes) / len(sizes)

    @cached_property
    def _distinct_share(self) -> float:
        """The share of texts that differ from another one: 0 if all are the same."""
        others = len(self._texts) - 1
        if others == 0:
            return 1.0
        return (len(set(self._texts)) - 1) / others

    @property
    def _is_encoded(self) -> bool:
        """Whether the texts are ASCII without words: base64, keys, genes."""
        words = sum(len(head.split()) for head in self._heads)
        chars = sum(map(len, self._heads))
        is_long = chars > _MIN_ENCODED_CHARS * len(self._heads)
        is_ascii = all(map(str.isascii, self._heads))
        return is_long and is_ascii and chars > _MAX_WORD_CHARS * words

    @property
    def _is_list_of_words(self) -> bool:
        if not self._is_list or self._is_conversation:
            return False
        items: list[str] = []
        for value in self._values:
            if isinstance(value, list):
                items += [str(item) for item in value if item is not None]
        item_bytes = sum(len(item.encode(errors="replace")) for item in items)
        is_short = item_bytes < _MIN_ITEM_BYTES * len(items)
        return is_short or _are_mostly(items, _is_reference)

    def _is_mostly(self, is_such: Callable[[str], bool]) -> bool:
        return _are_mostly(self._heads, is_such)


def _are_mostly(texts: Sequence[str], is_such: Callable[[str], bool]) -> bool:
    return sum(map(is_such, texts)) > _MAJORITY * len(texts)


def _is_reference(text: str) -> bool:
    """Return whether a text is an address, a path, a code or a number."""
    if not any(map(str.isalpha, text)):
        return True
    if _ADDRESS.fullmatch(text) or _CODE.fullmatch(text):
        return True
    return len(text) <= _MAX_PATH_CHARS and _FILE_PATH.fullmatch(text) is not None


def _is_one_word(text: str) -> bool:
    # Chinese and Thai have no blanks between words.
    has_blank = len(text.split(maxsplit=1)) > 1
    return not has_blank and (text.isascii() or len(text) <= _MAX_WORD_OF_SCRIPT)


def _is_html(text: str) -> bool:
    # The page of a long article has few tags for its text.
    if _PAGE.match(text):
        return True
    tag_chars = sum(map(len, _TAG.findall(text)))
    return tag_chars > _MIN_TAG_SHARE * len(text)


def _is_json(text: str) -> bool:
    # Only the head of a long text is known: its first key must do.
    return re.match(r'\{\s*"[^"\n]{0,100}"\s*:|\[\s*[\[{"\d]', text) is not None


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "booleans"
    if isinstance(value, int | float):
        return "numbers"
    if isinstance(value, dict):
        return "objects"
    if isinstance(value, bytes):
        return "binary data"
    if isinstance(value, list):
        item = next((item for item in value if item is not None), None)
        return "empty lists" if item is None else f"lists of {_kind_of(item)}"
    if isinstance(value, str):
        return "strings without sentences" if value.strip() else "empty strings"
    return f"values of type {type(value).__name__}"


def _factor_of(name: str) -> float:
    bare_name = _bare(name)
    if bare_name in _USUAL:
        return _USUAL_FACTOR
    if bare_name in _LIKELY:
        return _LIKELY_FACTOR
    if bare_name in _SHORTENED:
        return _SHORTENED_FACTOR
    return _ABOUT_FACTOR if bare_name in _ABOUT | _WORSE else 1.0


def _bare(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _last_part(name: str) -> str:
    """Return the part of a name that says what it holds: of `a.b` b, of `a[].b` a."""
    return name.partition(EACH)[0].rpartition(".")[2]


def _parent(name: str) -> str:
    """Return the column that a column is a field of, "" for none."""
    return name.partition(EACH)[0].rpartition(".")[0]


def _is_within(name: str, column: str) -> bool:
    """Return whether a column is another one, or a field inside it."""
    return name == column or name.startswith((f"{column}.", f"{column}{EACH}"))
