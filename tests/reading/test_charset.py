"""The encoding of web pages: byte order marks, declarations that are wrong, and none."""

import pytest

from nextlong.reading.charset import decode_page

TEXTS = {
    "russian": "Прилив приходит дважды в день, и гавань наполняется лодками, которые ждали снаружи. ",
    "german": "Die Flut kommt zweimal am Tag, und der Hafen füllt sich mit Booten. Größe, Übung. ",
    "french": "La marée arrive deux fois par jour, et l’eau s’élève à l’entrée. Été, garçon. ",
    "polish": "Przypływ przychodzi dwa razy dziennie, a port wypełnia się łodziami. Żółć, gęś. ",
    "japanese": "潮は一日に二度満ち、港は水位が上がるのを外で待っていた船でいっぱいになる。",
    "chinese": "潮水每天来两次，港口里挤满了在外面等待水位上涨的船只。这是一个中文的句子。",
    "korean": "밀물은 하루에 두 번 들어오고, 항구는 밖에서 기다리던 배들로 가득 찬다.",
    "greek": "Η παλίρροια έρχεται δύο φορές την ημέρα και το λιμάνι γεμίζει με βάρκες. ",
    "hebrew": "הגאות מגיעה פעמיים ביום, והנמל מתמלא בסירות שחיכו בחוץ. ",
    "arabic": "يأتي المد مرتين في اليوم، ويمتلئ الميناء بالقوارب. ",
    "thai": "น้ำขึ้นวันละสองครั้ง และท่าเรือก็เต็มไปด้วยเรือ ",
}
# Labels of the HTML standard.
ENCODINGS = [
    ("russian", "windows-1251"),
    ("russian", "koi8-r"),
    ("russian", "iso-8859-5"),
    ("german", "iso-8859-1"),
    ("french", "windows-1252"),
    ("polish", "iso-8859-2"),
    ("polish", "windows-1250"),
    ("japanese", "shift_jis"),
    ("japanese", "euc-jp"),
    ("japanese", "iso-2022-jp"),
    ("chinese", "gb18030"),
    ("chinese", "big5"),
    ("korean", "euc-kr"),
    ("greek", "iso-8859-7"),
    ("hebrew", "windows-1255"),
    ("arabic", "windows-1256"),
    ("thai", "tis-620"),
]
NOT_LATIN = [
    (language, encoding)
    for language, encoding in ENCODINGS
    if language not in ("german", "french", "polish")
]


def page(language, encoding, *, head=""):
    """Return the text of a page, and its bytes."""
    kept = TEXTS[language].encode(encoding, "ignore").decode(encoding)
    text = f"<html><head>{head}</head><body><p>{kept * 2}</p></body></html>"
    return text, text.encode(encoding)


@pytest.mark.parametrize(("language", "encoding"), ENCODINGS)
def test_the_header_names_the_encoding(language, encoding):
    text, raw = page(language, encoding)
    assert decode_page(raw, encoding.upper()) == text


@pytest.mark.parametrize("header", [None, "no-such-charset", ""])
@pytest.mark.parametrize(
    "meta",
    [
        '<meta charset="{}">',
        "<META CHARSET={} />",
        '<meta http-equiv="Content-Type" content="text/html; charset={}">',
        '<meta content="text/html;charset={}" http-equiv=content-type>',
        "<!-- <meta charset=utf-8> --><meta charset='{}'>",
        f"<script>{'x' * 3000}</script><meta charset='{{}}'>",
    ],
)
def test_the_page_names_the_encoding(header, meta):
    for language, encoding in ENCODINGS:
        text, raw = page(language, encoding, head=meta.format(encoding))
        assert decode_page(raw, header) == text


def test_an_xml_declaration_names_the_encoding():
    text, _ = page("polish", "iso-8859-2")
    text = f'<?xml version="1.0" encoding="iso-8859-2"?>{text}'
    assert decode_page(text.encode("iso-8859-2")) == text


@pytest.mark.parametrize("declared", [None, "utf-8", "iso-8859-1", "windows-1251"])
@pytest.mark.parametrize("language", TEXTS)
def test_valid_utf_8_is_utf_8_whatever_the_server_says(language, declared):
    text, raw = page(language, "utf-8", head=f"<meta charset={declared}>")
    assert decode_page(raw, declared) == text


def test_some_invalid_bytes_do_not_make_a_utf_8_page_another_one():
    text, raw = page("german", "utf-8")
    broken = raw.replace(b"Boot", b"B\xf6\xf6t")
    expected = text.replace("Boot", "B\ufffd\ufffdt")
    assert decode_page(broken, "iso-8859-1") == expected
    # The last character is cut.
    assert decode_page("größer und größ".encode()[:-1]) == "größer und gr" + "ö\ufffd"


@pytest.mark.parametrize("declared", [None, "utf-8", "no-such-charset", "iso-8859-1"])
@pytest.mark.parametrize(
    ("language", "encoding"),
    [pair for pair in NOT_LATIN if pair[1] not in ("iso-2022-jp", "big5")],
)
def test_a_wrong_declaration_gives_way_to_the_bytes(language, encoding, declared):
    text, raw = page(language, encoding)
    assert decode_page(raw, declared) == text


def test_of_two_declarations_the_one_that_fits_the_bytes_counts():
    text, raw = page("greek", "windows-1253", head="<meta charset=windows-1253>")
    assert decode_page(raw, "iso-8859-1") == text
    text, raw = page("russian", "koi8-r", head="<meta charset=windows-1251>")
    assert decode_page(raw, "koi8-r") == text


def test_a_declared_latin_encoding_is_not_doubted_for_another_latin_one():
    text, raw = page("polish", "windows-1252")
    assert decode_page(raw, "iso-8859-1") == text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_a_byte_order_mark_decides(encoding):
    text, _ = page("russian", "utf-8", head="<meta charset=koi8-r>")
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    assert decode_page(f"{mark}{text}".encode(encoding), "windows-1251") == text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("declared", [None, "utf-16", "utf-8"])
def test_utf_16_without_a_mark_is_recognized(encoding, declared):
    text, raw = page("japanese", encoding)
    assert decode_page(raw, declared) == text


def test_a_page_in_ascii_that_declares_utf_16_is_ascii():
    text = "<html><head><meta charset=utf-16></head><p>plain</p></html>"
    assert decode_page(text.encode(), "utf-16le") == text


def test_an_empty_page_has_no_text():
    assert decode_page(b"") == ""


def test_a_comment_without_an_end_hides_a_declaration():
    _, raw = page("german", "windows-1252")
    hidden = b"<!-- <meta charset=koi8-r>"
    assert decode_page(hidden + raw) == hidden.decode() + raw.decode("cp1252")
