"""The viewer in a real browser: searched, filtered, clicked through, for every reader."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

import nextlong

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def opened(run):
    return nextlong.open(f"{run}@extended")


def test_sequences_come_as_they_are_asked_for(open_page, address, opened):
    page = open_page(address)
    rows = page.locator("#rows tr")
    expect(rows).to_have_count(25)
    page.get_by_role("link", name="Show more").click()
    expect(rows).to_have_count(len(opened))
    expect(page.get_by_role("status")).to_contain_text("That is all")
    assert page.evaluate("document.activeElement.textContent") == "25"


def test_a_filter_finds_the_sequences_of_a_topic(open_page, address, opened):
    page = open_page(f"{address}/extended/sequences")
    page.get_by_label("Document's name holds").fill("sea-")
    page.get_by_role("button", name="Search").click()
    own = [next(span for span in one.spans if span.role == "meta").source_id for one in opened.sequences()]
    expect(page.locator("#rows tr")).to_have_count(sum("sea-" in name for name in own))
    expect(page.get_by_label("Document's name holds")).to_have_value("sea-")
    page.get_by_label("Mean cosine at least").fill("1")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#rows tr")).to_have_count(0)


def test_a_document_is_found_by_its_text_and_leads_to_its_sequences(open_page, address):
    page = open_page(f"{address}/extended/documents")
    page.get_by_label("Text holds").fill("<svg onload=alert(3)>")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#rows mark").first).to_have_text("<svg onload=alert(3)>")
    page.locator("#rows a").first.click()
    expect(page.locator(".text").first).to_contain_text("</p></article>")
    page.get_by_role("link", name="Sequences that take text from it").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Sequences")


def test_a_sequence_is_walked_through(open_page, address, opened):
    page = open_page(f"{address}/extended/sequence/3")
    sequence = opened.sequence(3)
    cards = page.locator(".pair article")
    expect(cards).to_have_count(2)
    page.get_by_role("button", name="The chunk behind").click()
    first = next(n for n, span in enumerate(sequence.spans) if span.role == "negative")
    place = first + 1
    expect(page.locator(".told")).to_contain_text(f"tokens {sequence.spans[place].token_start:,} to")
    expect(cards.first.locator(".words")).to_contain_text((sequence.texts[place].split() or [""])[-1])
    page.get_by_label("What").select_option("negative")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#chunks tr")).to_have_count(min(100, sum(span.role == "negative" for span in sequence.spans)))
    expect(page.locator("#chunks td:nth-child(2)").first).to_have_text("negative")


def test_each_variant_draws_the_same_document(open_page, address, opened):
    lead = next(span.doc_id for span in opened.sequence(0).spans if span.role == "meta")
    page = open_page(f"{address}/extended/document/{lead}/beside")
    expect(page.locator("section h2")).to_have_text(["standard", "extended"])
    expect(page.locator("section").nth(1).locator("svg.strip")).to_be_visible()
    expect(page.locator("[data-searching]")).to_have_count(0)


def test_what_was_left_out_is_told_by_reason(open_page, address):
    page = open_page(f"{address}/extended/left-out")
    page.locator("#reasons a").first.click()
    expect(page.get_by_role("heading", level=2)).to_be_visible()
    expect(page.locator("#rows tr").first).to_be_visible()


@pytest.mark.parametrize(("width", "colours"), [(1440, "light"), (1440, "dark"), (360, "light"), (360, "dark")])
def test_every_page_is_for_every_reader(open_page, address, width, colours):
    rooms = ("sequences", "sequence/0", "documents?text=sea", "document/1", "document/1/beside", "left-out")
    for room in rooms:
        page = open_page(f"{address}/extended/{room}", width=width, colours=colours)
        expect(page.locator("[data-searching]")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, room
        found = Axe().run(page).response["violations"]
        assert [(room, own["id"], own["nodes"][0]["html"]) for own in found] == []


def test_without_scripts_every_link_still_leads_on(chromium, address):
    context = chromium.new_context(java_script_enabled=False, extra_http_headers=address.headers)
    page = context.new_page()
    page.goto(f"{address}/extended/sequences")
    page.get_by_role("link", name="Show more").click()
    expect(page.locator("#rows tr").first).to_contain_text("25")
    context.close()
