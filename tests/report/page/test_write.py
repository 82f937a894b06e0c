"""The page of runs, parsed as a browser would: its numbers, its texts, and that it needs nothing but itself."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import nextlong
from nextlong import pipeline
from nextlong.cli import main as cli_main
from nextlong.errors import NextlongError
from nextlong.report.page import explain, write
from nextlong.report.page.cells import TEXTS
from nextlong.runs.statistics.measure import measure

MIB = 1 << 20
VOID = {"meta", "br", "hr", "link", "img", "input"}
HOSTILE = "</title></svg><script>alert(1)</script><img src=x onerror=alert(2)>&\"'`$\\frac{1}$\u202e日本 \x1b[31m"


class Page(HTMLParser):
    """Tags with their attributes, the numbers by path and column, the texts, and whether every tag is closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.open, self.texts, self.numbers, self.style, self.script = (
            [],
            [],
            [],
            [],
            "",
            "",
        )
        self.column = 0
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.column = -1
        if tag == "td":
            self.column += 1
        if tag == "data":
            self.numbers.append(
                (
                    json.loads(attributes["data-path"]),
                    self.column,
                    json.loads(attributes["value"]),
                )
            )

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.style += data
        elif self.open and self.open[-1] == "script":
            self.script += data if self.of("script")[-1] == {} else ""
        else:
            self.texts.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def value_at(plain, path):
    for key in path:
        plain = plain[key]
    return plain


@pytest.fixture(scope="module")
def other_run(recipe_for, started, tmp_path_factory):
    """A run of whole documents, another layout."""
    run_dir = tmp_path_factory.mktemp("report") / "run"
    pipeline.run(recipe_for(started(run_dir), "compose.method=knn"))
    return run_dir


@pytest.fixture(scope="module")
def text(shared_run):
    return write.page([nextlong.open(shared_run)])


def test_every_number_is_that_of_the_statistics(shared_run, text):
    plain = json.loads(json.dumps(measure(nextlong.open(shared_run)).as_json()))
    found = [(path, value) for path, _, value in Page(text).numbers]
    assert len(found) > 50
    assert found == [(path, value_at(plain, path)) for path, _ in found]
    paths = {tuple(path) for path, _ in found}
    for histogram in (
        ("similarity", "cosine", "histogram"),
        ("distance_tokens", "histogram"),
        ("chunks", "tokens", "histogram"),
        ("corpus", "document_chars", "histogram"),
    ):
        num_bins = len(value_at(plain, histogram))
        assert {(*histogram, index, "count") for index in range(num_bins)} <= paths
    assert {
        ("similarity", "by_rank", index, "mean")
        for index in range(len(plain["similarity"]["by_rank"]))
    } <= paths
    assert {
        ("steps", index, key)
        for index in range(len(plain["steps"]))
        for key in ("seconds", "bytes")
    } <= paths
    assert {("steps", 0, "peak_bytes"), ("distance_tokens", "p50")} <= paths
    by_source = ("tokens", "by_source")
    assert {(*by_source, name) for name in value_at(plain, by_source)} <= paths
    assert {
        ("yields", "kept"),
        ("near_duplicates", "chunks"),
        ("tokens", "chars_per_token"),
        ("tokens", "meta_share"),
        ("chunks", "repeated"),
    } <= paths


def test_runs_stand_side_by_side(shared_run, other_run):
    runs = [shared_run, other_run]
    page = Page(write.page([nextlong.open(run) for run in runs]))
    plain = [
        json.loads(json.dumps(measure(nextlong.open(run)).as_json())) for run in runs
    ]
    shown = [
        one
        for one in page.numbers
        if one[0][:3] != ["chunks", "reuse", "hubs"] and one[0][0] != "steps"
    ]  # a table a run
    assert {column for _, column, _ in shown} == {0, 1}
    assert [value for _, _, value in shown] == [
        value_at(plain[column], path) for path, column, _ in shown
    ]
    assert all(any(str(run) in text for text in page.texts) for run in runs)
    methods = {
        column: value
        for path, column, value in shown
        if path == ["setting", "method_name"]
    }
    assert methods == {0: "nextlong", 1: "knn"}


def test_the_page_needs_nothing_but_itself(text):
    page = Page(text)
    assert len(text.encode()) < 5 * MIB
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {
        tag for tag, _ in page.tags
    }
    for _, attributes in page.tags:
        assert not [
            name
            for name in attributes
            if name.startswith("on") or name in ("src", "style", "srcset")
        ]
        assert attributes.get("href", "#").startswith("#")
        assert all(
            found.startswith("#")
            for value in attributes.values()
            for found in re.findall(r"url\((.*?)\)", value or "")
        )
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "docs/" not in text  # the reader of a page has no checkout
    assert {own.get("type", "script") for own in page.of("script")} == {
        "application/json",
        "script",
    }
    (policy,) = [
        own["content"]
        for own in page.of("meta")
        if own.get("http-equiv") == "Content-Security-Policy"
    ]
    style, script = (
        base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        for own in (page.style, page.script)
    )
    assert policy.startswith(
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; base-uri 'none'"
    )


def test_a_page_is_made_with_one_thread(shared_run, monkeypatch):
    seen, svd = [], np.linalg.svd

    def watched(*arguments, **options):
        pools = threadpool_info()
        seen.append({one["num_threads"] for one in pools if one["user_api"] == "blas"})
        return svd(*arguments, **options)

    monkeypatch.setattr(np.linalg, "svd", watched)
    with threadpool_limits(2):
        write.page([nextlong.open(shared_run)])
    assert seen
    assert all(threads == {1} for threads in seen)


def test_the_page_is_for_every_reader(text):
    page = Page(text)
    assert page.of("html") == [{"lang": "en"}]
    assert len(page.of("h1")) == 1
    assert all(own["scope"] in ("row", "col") for own in page.of("th"))
    assert len(page.of("caption")) == len(page.of("table")) > 5
    assert len(page.of("figcaption")) == len(page.of("figure")) > 10
    assert len(page.of("section")) == len(page.of("h2")) == 5
    assert all(own["role"] == "img" for own in page.of("svg"))
    ids = [own["id"] for _, own in page.tags if "id" in own]
    assert len(ids) == len(set(ids))
    targets = {own["href"][1:] for _, own in page.tags if "href" in own}
    assert targets <= set(ids)
    assert "prefers-color-scheme: dark" in page.style


def test_hostile_texts_stay_texts(small_corpus, recipe_for, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for path in small_corpus.iterdir():
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        lines = [json.dumps({**row, "id": HOSTILE + row["id"]}) + "\n" for row in rows]
        (corpus / path.name).write_text("".join(lines), encoding="utf-8")
    source = json.dumps([{"path": str(corpus), "name": HOSTILE}])
    pipeline.run(recipe_for(tmp_path / "run", f"ingest.sources={source}"))
    page = Page(write.page([nextlong.open(tmp_path / "run")]))
    assert "img" not in {tag for tag, _ in page.tags}
    assert [
        own for own in page.of("script") if own != {"type": "application/json"}
    ] == [{}]
    assert any("<script>alert(1)</script>" in own for own in page.texts)
    assert not any(mark in own for own in page.texts for mark in "\x1b\u202e")


def test_the_command_writes_the_page(shared_run, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert cli_main.main(["report", str(shared_run), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    assert Page(out.read_text(encoding="utf-8")).of("h1")
    assert list(tmp_path.iterdir()) == [out]


def test_without_a_place_the_page_lies_where_the_run_left_its_own(
    shared_run, other_run, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    one, other = nextlong.open(shared_run), nextlong.open(other_run)
    assert write.place_of([one]) == one.path / "report.html"
    name = one.variant.name
    assert (
        write.place_of([one, one]) == one.path / f"report-{name}@{name}.html"
    )  # beside the page of a sweep
    assert write.place_of([one] * 99).name.startswith(
        "report-99@variants@"
    )  # fit for a file system
    assert write.place_of([one, other]) == type(tmp_path)("report.html")
    monkeypatch.setattr(write.variant_records, "current", lambda _: "another variant")
    assert write.place_of([one]) == one.path / f"report-{one.variant.name}.html"


def test_the_command_writes_into_the_run_directory(
    other_run, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    (other_run / "report.html").unlink(missing_ok=True)
    assert cli_main.main(["report", str(other_run)]) == 0
    assert capsys.readouterr().out == f"wrote {other_run / 'report.html'}\n"
    assert (other_run / "report.html").is_file()
    assert list(tmp_path.iterdir()) == []


def test_a_page_of_whole_documents_uses_no_term_of_another_method(other_run):
    run = nextlong.open(other_run)
    page = Page(write.page([run]))
    told = " ".join(" ".join(page.texts).split())
    assert not re.search(r"meta-|[Nn]egative", told)
    assert "Are the documents related" in told
    cosines = [
        value
        for path, _, value in page.numbers
        if path[:2] == ["similarity", "cosine"] and "histogram" not in path
    ]
    assert cosines
    assert max(cosines) <= 1


def test_the_glossary_says_what_the_page_does(shared_run, other_run):
    one, other = (
        [measure(nextlong.open(run)).as_json()] for run in (shared_run, other_run)
    )
    assert set(explain.glossary(one)) == set(TEXTS["glossary"])
    assert {"meta-document", "negative"}.isdisjoint(explain.glossary(other))
    assert set(explain.glossary([*one, *other])) == set(TEXTS["glossary"])


def test_a_folder_that_is_not_there_is_named(shared_run, tmp_path, capsys):
    assert (
        cli_main.main(
            ["report", str(shared_run), "-o", str(tmp_path / "none" / "page.html")]
        )
        == 2
    )
    assert f"{tmp_path / 'none'} is not a folder" in capsys.readouterr().err


def test_more_runs_than_colours_are_refused(shared_run):
    with pytest.raises(NextlongError) as error:
        write.page([nextlong.open(shared_run)] * 7)
    assert error.value.where == "7 runs"


def runs(folder, *names):
    return [
        SimpleNamespace(path=folder, variant=SimpleNamespace(name=name))
        for name in names
    ]


@pytest.fixture
def written(monkeypatch):
    """The runs of every report that was written; the report says nothing but which they are."""
    pages = []

    def page(of):
        pages.append([run.variant.name for run in of])
        return f"<style></style>{write.identity(of)}"

    monkeypatch.setattr(
        write, "identity", lambda of: "id:" + ",".join(run.variant.name for run in of)
    )
    monkeypatch.setattr(write, "page", page)
    monkeypatch.setattr(write.variant_records, "current", lambda run_dir: "base")
    return pages


def test_a_report_that_shows_just_that_is_left_as_it_was(written, tmp_path):
    path = tmp_path / "report.html"
    assert write.leave(*runs(tmp_path, "base")) == str(path)
    assert write.leave(*runs(tmp_path, "base")) == str(path)
    assert written == [["base"]]
    path.write_text(path.read_text().replace("id:base", "id:earlier"))
    write.leave(*runs(tmp_path, "base"))
    assert written == [["base"], ["base"]]
