"""The viewer in a real browser: searched, filtered, clicked through, for every reader."""

import shutil

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from tests.support.viewer import viewer

import nextlong
from nextlong.cli.main import main
from nextlong.picture import pieces

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def opened(run):
    return nextlong.open(f"{run}@extended")


def rows(page):
    return page.locator("#rows tr")


def test_sequences_come_a_page_at_a_time_with_their_count(open_page, address, opened):
    page = open_page(address)
    expect(rows(page)).to_have_count(25)
    expect(page.get_by_role("status")).to_contain_text(f"{len(opened)} sequences.")
    page.get_by_role("link", name="Next ›").click()
    expect(rows(page)).to_have_count(len(opened) - 25)
    expect(rows(page).first).to_contain_text("25")
    page.get_by_role("link", name="‹ Previous").click()
    expect(rows(page)).to_have_count(25)


def test_a_filter_finds_the_sequences_of_a_topic(open_page, address, opened):
    page = open_page(f"{address}/extended/sequences")
    page.get_by_label("Document name contains").fill("sea-")
    page.get_by_role("button", name="Search").click()
    own = [
        next(span for span in one.spans if span.role == "meta").source_id
        for one in opened.sequences()
    ]
    expect(rows(page)).to_have_count(sum("sea-" in name for name in own))
    expect(page.get_by_label("Document name contains")).to_have_value("sea-")
    page.get_by_label("Mean cosine at least").fill("1")
    page.get_by_role("button", name="Search").click()
    expect(rows(page)).to_have_count(0)
    expect(page.get_by_role("status")).to_contain_text("0 sequences of 40 match")


def test_sequences_are_searched_by_words_and_phrases_and_sorted(open_page, address):
    page = open_page(f"{address}/extended/sequences")
    page.get_by_label("Text of a chunk contains").fill('sail "<svg onload=alert(3)>"')
    page.get_by_role("button", name="Search").click()
    expect(page.locator("[data-searching]")).to_have_count(0)
    expect(
        page.locator(".preview mark", has_text="<svg onload=alert(3)>").first
    ).to_be_visible()
    page.get_by_role("link", name="mean cosine").click()
    cosines = [
        float(text)
        for text in page.locator("#rows td:last-child").all_inner_texts()
        if "%" not in text
    ]
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("mean cosine ▲")
    page.get_by_role("link", name="mean cosine").click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("mean cosine ▼")
    assert cosines == sorted(cosines)
    expect(page.get_by_label("Text of a chunk contains")).to_have_value(
        'sail "<svg onload=alert(3)>"'
    )


def test_the_first_search_makes_an_index_and_says_how_far_it_is(
    open_page, chromium, address, run
):
    page = open_page(f"{address}/standard/sequences?text=sail")
    expect(page.locator("[data-searching]")).to_have_count(0)
    whole = page.locator(".count").inner_text()
    assert " of 31 match" in whole
    assert list(run.glob("search-index/*/words.arrow"))
    # Another viewer, as one without scripts: each link continues until all is found.
    shutil.rmtree(run / "search-index")
    with viewer(f"{run}@standard") as other:
        context = chromium.new_context(
            java_script_enabled=False, extra_http_headers=other.headers
        )
        plain = context.new_page()
        plain.goto(f"{other}/standard/sequences?text=sail")
        while plain.get_by_role("link", name="Continue").count():
            expect(plain.get_by_role("progressbar")).to_be_visible()
            plain.get_by_role("link", name="Continue").click()
        assert plain.locator(".count").inner_text() == whole
        context.close()


def test_a_run_that_cannot_be_written_to_is_searched_and_says_so(
    open_page, run, tmp_path
):
    copy = shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(copy / "search-index", ignore_errors=True)
    (copy / "search-index").write_text("in which no folder can be made")
    with viewer(f"{copy}@extended") as other:
        page = open_page(f"{other}/extended/sequences?text=sail", headers=other.headers)
        expect(page.locator("[data-searching]")).to_have_count(0)
        expect(rows(page).first).to_be_visible()
        expect(page.get_by_role("status")).to_contain_text("cannot be written to")


def test_columns_are_chosen_and_histograms_stand_in_their_headings(open_page, address):
    page = open_page(f"{address}/extended/sequences")
    expect(page.locator("thead .spark")).to_have_count(4)
    page.get_by_text("Columns", exact=True).click()
    for name in ("text", "chunks", "source"):
        page.get_by_role("checkbox", name=name, exact=True).uncheck()
    page.get_by_role("button", name="Search").click()
    expect(page.locator("thead th")).to_have_count(5)
    page.get_by_role("link", name="mean cosine").click()
    expect(page.locator("thead th")).to_have_count(5)


def test_a_random_sample_and_a_random_sequence(open_page, address):
    page = open_page(f"{address}/extended/sequences")
    page.get_by_role("link", name="Random sample").click()
    expect(rows(page)).to_have_count(25)
    expect(page.get_by_role("status")).to_contain_text("A random sample is shown.")
    rows(page).first.get_by_role("link").first.click()
    page.wait_for_load_state(
        "networkidle"
    )  # leaving aborts the requests for the pairs of texts, which counts as a failure
    page.get_by_role("link", name="Random sequence").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Sequence")
    page.wait_for_load_state("networkidle")


def test_a_document_is_found_by_its_text_and_leads_to_its_sequences(open_page, address):
    page = open_page(f"{address}/extended/documents")
    page.get_by_label("Text contains").fill('"<svg onload=alert(3)>"')
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#rows mark").first).to_have_text("<svg onload=alert(3)>")
    shown = rows(page).count()
    page.get_by_role("link", name="Show more").click()
    expect(rows(page)).to_have_count(2 * shown)
    page.locator("#rows a").first.click()
    expect(page.locator("p.text").first).to_contain_text("</p></article>")
    page.get_by_role("link", name="Sequences with text from this document").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sequences")


def test_a_sequence_is_walked_through_and_its_rows_choose_in_the_bar(
    open_page, address, opened
):
    page = open_page(f"{address}/extended/sequence/3")
    sequence = opened.sequence(3)
    lead = next(span.source_id for span in sequence.spans if span.role == "meta")
    expect(page.get_by_role("heading", level=1)).to_contain_text(lead[-6:])
    cards = page.locator(".pair article")
    expect(cards).to_have_count(2)
    page.get_by_role("button", name="Next chunk").click()
    place = pieces.example(sequence.spans) + 1
    expect(page.locator(".told")).to_contain_text(
        f"tokens {sequence.spans[place].token_start:,} to"
    )
    expect(cards.first.locator(".words")).to_contain_text(
        (sequence.texts[place].split() or [""])[-1]
    )
    place = max(int(text) for text in page.locator("#chunks .place").all_inner_texts())
    page.get_by_role("button", name=f"Show chunk {place} in the bar").press("Enter")
    expect(page.locator(".told")).to_contain_text(
        f"tokens {sequence.spans[place].token_start:,} to"
    )
    expect(page.locator("#chunks tr.chosen .place")).to_have_text(str(place))
    expect(page.get_by_role("slider")).to_have_value(str(place))
    page.get_by_label("Role").select_option("negative")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#chunks tr")).to_have_count(
        min(25, sum(span.role == "negative" for span in sequence.spans))
    )
    expect(page.locator("#chunks td:nth-child(2)").first).to_have_text("negative")


def test_two_variants_are_compared(open_page, address, opened):
    page = open_page(f"{address}/extended/sequence/0")
    page.get_by_role("link", name="Compare with another variant").click()
    expect(page.locator("#results > section > h3")).to_have_count(2)
    expect(page.locator("[data-searching]")).to_have_count(0)
    expect(page.locator("#results svg.strip")).to_have_count(2)
    expect(page.locator("#results article")).to_have_count(4)
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("combobox")).to_have_value("standard")


def test_a_document_is_marked_with_a_note_and_unmarked(open_page, address):
    page = open_page(f"{address}/extended/document/1")
    page.get_by_label("Note (optional)").first.fill("a form <letter>")
    page.get_by_role("button", name="Mark this document as bad").click()
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text("a form <letter>")
    page.get_by_role("button", name="Remove the mark of").click()
    expect(page.get_by_text("Nothing is marked yet.")).to_be_visible()


def test_what_was_filtered_out_is_told_by_reason(open_page, address):
    page = open_page(f"{address}/extended/filtered")
    page.locator("#reasons a").first.click()
    expect(page.get_by_role("heading", level=2)).to_be_visible()
    expect(rows(page).first).to_be_visible()


def test_a_static_copy_is_sorted_and_filtered_from_disk(open_page, run, tmp_path):
    assert (
        main(
            [
                "view",
                f"{run}@extended",
                "--export",
                str(tmp_path / "copy"),
                "--first",
                "6",
            ]
        )
        == 0
    )
    page = open_page((tmp_path / "copy" / "index.html").as_uri())
    expect(rows(page)).to_have_count(6)
    page.get_by_role("button", name="mean cosine").click()
    values = [
        float(text)
        for text in page.locator("#rows tr td:nth-child(7)").all_inner_texts()
    ]
    assert values == sorted(values)
    page.get_by_label("Rows that contain").fill(
        rows(page).first.locator("td").first.inner_text()[-6:]
    )
    assert page.locator("#rows tr:visible").count() < 6
    rows(page).first.get_by_role("link").first.click()
    expect(page.locator(".pair article")).to_have_count(2)


@pytest.mark.parametrize(
    ("width", "colours"),
    [(1440, "light"), (1440, "dark"), (360, "light"), (360, "dark")],
)
def test_every_page_is_for_every_reader(open_page, address, width, colours):
    rooms = (
        "sequences",
        "sequence/0",
        "documents?text=sea",
        "document/1",
        "compare",
        "filtered",
        "marks",
        "nothing",
    )
    for room in rooms:
        status = 404 if room == "nothing" else 200
        page = open_page(
            f"{address}/extended/{room}", width=width, colours=colours, status=status
        )
        expect(page.locator("[data-searching]")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, room
        found = Axe().run(page).response["violations"]
        assert [(room, own["id"], own["nodes"][0]["html"]) for own in found] == []


def test_without_scripts_every_link_still_leads_on(chromium, address):
    context = chromium.new_context(
        java_script_enabled=False, extra_http_headers=address.headers
    )
    page = context.new_page()
    page.goto(f"{address}/extended/sequences")
    page.get_by_role("link", name="Next ›").click()
    expect(rows(page).first).to_contain_text("25")
    page.get_by_role("link", name="mean cosine").click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_count(1)
    context.close()
