"""The viewer over a real socket: who may ask, what may not happen, and that every page is whole."""

import http.client
import json
import re
import socket
from html.parser import HTMLParser
from urllib.parse import quote, urlencode, urlsplit

import pytest
from tests.support.hand_made_spans import HOSTILE
from tests.support.viewer import viewer

import nextlong
from nextlong import pipeline
from nextlong.cli import main as cli_main
from nextlong.view import documents

pytestmark = pytest.mark.heavy


class Page(HTMLParser):
    """The tags of a page, and its links."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "a":
            self.links.append(dict(attrs)["href"])

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def run(recipe_for, small_corpus, tmp_path_factory):
    """A run of two variants over documents whose ids and source do their worst."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "corpus").mkdir()
    for path in small_corpus.iterdir():
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        lines = [
            json.dumps(
                {"id": HOSTILE + row["id"], "text": row["text"] + "\n" + HOSTILE}
            )
            + "\n"
            for row in rows
        ]
        (folder / "corpus" / path.name).write_text("".join(lines), encoding="utf-8")
    sources = json.dumps([{"path": str(folder / "corpus"), "name": HOSTILE}])
    pipeline.run(recipe_for(folder / "run", f"ingest.sources={sources}", "name=first"))
    pipeline.run(
        recipe_for(
            folder / "run",
            f"ingest.sources={sources}",
            "name=other",
            "compose.method=standard",
        )
    )
    return folder / "run"


@pytest.fixture(scope="module")
def address(run):
    with viewer(f"{run}@first") as address:
        yield address


def ask(address, path, *, method="GET", body=None, **headers):
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {} | ({} if "Cookie" in sent else getattr(address, "headers", {})) | sent
    connection.putrequest(method, path, skip_host="Host" in sent)
    for name, value in sent.items():
        connection.putheader(name, value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_every_link_leads_to_a_page_that_holds_no_foreign_tag(address):
    waiting, seen = ["/first/sequences"], set()
    while waiting and len(seen) < 60:
        path = waiting.pop(0)
        seen.add(path)
        answer, text = ask(address, path)
        assert answer.status == 200, (path, text)
        page = Page(text)
        assert "img" not in {tag for tag, _ in page.tags}
        scripts = [own for tag, own in page.tags if tag == "script"]
        assert all(
            own.get("type") == "application/json" or own.get("src", "")[0] == "/"
            for own in scripts
        )
        assert all(
            not name.startswith("on") and name != "style"
            for _, own in page.tags
            for name in own
        )
        assert all(link.startswith(("/", "#")) for link in page.links)
        waiting += [
            link for link in page.links if link.startswith("/") and link not in seen
        ]
    assert len(seen) == 60


def test_other_users_of_the_machine_see_nothing_without_the_token(address):
    token = address.headers["Authorization"].removeprefix("token ")
    port = urlsplit(address).port
    for path, cookie in (
        ("/", "x=y"),
        ("/?token=wrong", "x=y"),
        ("/style.css", f"nextlong-view-{port}=wrong"),
    ):
        answer, text = ask(address, path, Cookie=cookie)
        assert (answer.status, "?token=" in text) == (403, True)
        assert "set-cookie" not in answer.headers
    answer, _ = ask(address, f"/?token={token}", Cookie="x=y")
    assert answer.status == 307
    cookie, *rest = answer.headers["set-cookie"].split("; ")
    assert rest == ["HttpOnly", "SameSite=Strict", "Path=/"]
    assert token not in answer.headers["location"]
    answer, text = ask(address, answer.headers["location"], Cookie=f"other=1; {cookie}")
    assert (answer.status, "<table" in text, token in text) == (200, True, False)


def test_hostile_names_are_shown_as_they_are(address):
    page = Page(ask(address, "/first/sequences")[1])
    assert any("<script>alert(1)</script>" in text for text in page.texts)


def test_filters_and_searches_answer(address, run):
    opened = nextlong.open(f"{run}@first")
    span = opened.sequence(0).spans[0]
    rows = "/first/sequences?name="
    numbers = {
        link for link in Page(ask(address, rows)[1]).links if "/sequence/" in link
    }
    assert numbers == {f"/first/sequence/{number}" for number in range(len(opened))}
    assert (
        "/first/sequence/0"
        in Page(ask(address, f"{rows}&document={span.doc_id}")[1]).links
    )
    assert not [
        link
        for link in Page(ask(address, f"{rows}&least=0.999")[1]).links
        if "/sequence/" in link
    ]
    found = Page(
        ask(address, f"/first/documents?name={quote(span.source_id)}")[1]
    ).links
    assert f"/first/document/{span.doc_id}" in found
    answer, text = ask(address, f"/first/compare?with=other&document={span.doc_id}")
    assert answer.status == 200
    assert "about it" in text or "<svg" in text


def test_a_filter_of_chunks_still_offers_the_other_roles(address):
    page = Page(ask(address, "/first/sequence/3?role=meta")[1])
    assert {own["value"] for tag, own in page.tags if tag == "option"} == {
        "",
        "meta",
        "negative",
    }


def test_a_pair_holds_both_texts_and_the_words_they_share(address, run):
    sequence = nextlong.open(f"{run}@first").sequence(3)
    place = next(n for n, span in enumerate(sequence.spans) if span.role == "negative")
    meta = max(
        n for n, span in enumerate(sequence.spans[:place]) if span.role == "meta"
    )
    pair = json.loads(ask(address, f"/first/sequence/3/pairs/{place}")[1])
    assert pair["text"] == sequence.texts[place]
    assert pair["partner"] == sequence.texts[meta]
    assert all(
        word in pair["text"].lower() and word in pair["partner"].lower()
        for word in pair["words"]
    )


def test_every_piece_has_a_text_separators_too(address, run):
    sequence = nextlong.open(f"{run}@other").sequence(0)
    texts = [
        json.loads(ask(address, f"/other/sequence/0/pairs/{n}")[1])["text"]
        for n in range(len(sequence.spans))
    ]
    assert texts == sequence.texts
    assert "separator" in {span.role for span in sequence.spans}


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("HEAD", {}, 200),
        ("GET", {"Host": "localhost:9999"}, 200),  # a tunnel's port
        ("GET", {"Host": "evil.example"}, 421),
        ("GET", {"Host": "127.0.0.1.evil.example:80"}, 421),
        ("GET", {"Host": ""}, 421),
        ("GET", {"Origin": "http://evil.example"}, 403),
        ("GET", {"Origin": "null"}, 403),
        (
            "GET",
            {"Origin": "http://127.0.0.1:1"},
            403,
        ),  # another program of this machine
        ("GET", {"Sec_Fetch_Site": "cross-site"}, 403),
        ("GET", {"Sec_Fetch_Site": "same-site"}, 403),
        ("GET", {"Sec_Fetch_Site": "same-origin"}, 200),
        ("POST", {}, 405),  # there is nothing to change at this address
        ("DELETE", {}, 405),
    ],
)
def test_only_this_machines_own_pages_may_ask(address, method, headers, status):
    answer, text = ask(address, "/first/sequences", method=method, **headers)
    assert answer.status == status
    assert status == 200 or "nextlong view" not in text


def test_the_policy_lets_nothing_inline_run(address):
    for path in ("/first/sequences", "/first/nothing", "/page.js"):
        answer, _ = ask(address, path)
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith(
            "default-src 'none'; script-src 'self'; style-src 'self'"
        )
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/none/sequences", 404),
        ("/..%2F..%2Fetc/sequences", 404),
        ("/first/sequence/99", 404),
        ("/first/sequence/0/pairs/999999", 404),
        ("/first/document/999999999999", 404),
        ("/first/sequences?least=x", 400),
        ("/first/sequences?least=nan", 400),
        ("/first/sequences?sort=colour", 400),
        ("/first/compare?with=nosuch", 404),
        ("/first/nothing", 404),
        ("/first/sequences?after=-1", 400),
        ("/first/documents?after=1.2.3.4", 400),
        ("/first/sequence?number=x", 400),
        (f"/first/sequence?number={'9' * 5000}", 400),
        ("/first/sequence/-1", 404),
    ],
)
def test_what_is_not_there_is_told(address, path, status):
    answer, text = ask(address, path)
    assert answer.status == status
    assert "Traceback" not in text
    assert '<a href="/first/sequences">All sequences</a>' in text


def test_a_mark_is_kept_in_the_run_directory_and_taken_back(address, run):
    form = urlencode(
        {
            "mark": json.dumps({"source": HOSTILE, "id": "d1"}),
            "note": "<b>",
            "action": "add",
        }
    ).encode()
    answer, _ = ask(address, "/first/marks", method="POST", body=form)
    assert (answer.status, answer.headers["location"]) == (303, "/first/marks")
    (mark,) = documents.read_marks(run)
    assert mark == documents.Mark(HOSTILE, "d1", "<b>")
    assert "&lt;b&gt;" in ask(address, "/first/marks")[1]
    assert (
        ask(address, "/first/marks", method="POST", body=b"action=add")[0].status == 400
    )
    assert (
        ask(address, "/first/marks", method="POST", body=form.replace(b"add", b"burn"))[
            0
        ].status
        == 400
    )
    assert (
        ask(
            address,
            "/first/marks",
            method="POST",
            body=form,
            Origin="http://evil.example",
        )[0].status
        == 403
    )
    assert documents.read_marks(run) == [mark]
    ask(
        address,
        "/first/marks",
        method="POST",
        body=form.replace(b"action=add", b"action=remove"),
    )
    assert documents.read_marks(run) == []


@pytest.mark.parametrize(
    "form",
    [
        {"source": "s"},
        {"source": "s", "id": ""},
        {"source": "s", "id": " "},
        {"source": "s", "kind": "document"},
        {"source": "s", "id": "d1", "kind": "source"},
        {"source": "s", "sequence": "first/0"},
        {"source": "s", "sequence": "first/0", "kind": "source"},
    ],
)
def test_a_whole_source_is_marked_only_by_its_kind(address, run, form):
    body = urlencode({"mark": json.dumps(form), "action": "add"}).encode()
    answer, text = ask(address, "/first/marks", method="POST", body=body)
    assert (answer.status, "kind=source" in text) == (400, True)
    assert documents.read_marks(run) == []


def test_the_viewers_own_form_marks_a_source_and_removes_it(address, run):
    doc = nextlong.open(f"{run}@first").sequence(0).spans[0].doc_id
    for path, action in ((f"/first/document/{doc}", "add"), ("/first/marks", "remove")):
        forms = re.findall(
            r'<form class="(?:mark|plain)".*?</form>', ask(address, path)[1], re.DOTALL
        )
        fields = [
            {
                one["name"]: one["value"]
                for tag, one in Page(form).tags
                if one.get("type") == "hidden"
            }
            for form in forms
        ]
        (source,) = [
            form for form in fields if json.loads(form["mark"])["kind"] == "source"
        ]
        ask(
            address,
            "/first/marks",
            method="POST",
            body=urlencode(source | {"action": action}).encode(),
        )
        assert [mark.kind for mark in documents.read_marks(run)] == (
            ["source"] if action == "add" else []
        )


def test_an_id_with_control_characters_is_marked_as_it_is(address, run):
    mark = documents.Mark("s", "a\nb\r\x01\x00c")
    documents.change_mark(run, mark, is_set=True)
    (form,) = re.findall(
        r'<form class="plain".*?</form>', ask(address, "/first/marks")[1], re.DOTALL
    )
    (field,) = [
        one["value"] for tag, one in Page(form).tags if one.get("type") == "hidden"
    ]
    ask(
        address,
        "/first/marks",
        method="POST",
        body=urlencode({"mark": field, "action": "remove"}).encode(),
    )
    assert documents.read_marks(run) == []


def test_a_random_sequence_is_one_of_the_run(address):
    answer, _ = ask(address, "/first/random")
    assert re.fullmatch(
        r"/first/sequence/\d", answer.headers["location"]
    ) or answer.headers["location"][-2:] in (
        "10",
        "11",
    )


def test_it_listens_on_this_machine_alone(address):
    port = urlsplit(address).port
    with pytest.raises(
        ConnectionRefusedError
    ):  # what listens everywhere answers there too
        socket.create_connection(("127.0.0.2", port), timeout=5)


def test_a_port_that_is_taken_is_named(run, address, capsys):
    port = urlsplit(address).port
    assert cli_main.main(["view", str(run), "--port", str(port)]) == 2
    assert f"--port {port}: " in capsys.readouterr().err
