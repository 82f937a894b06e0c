"""The report from disk in a real browser: pointed at, walked through, printed, for every reader."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

import nextlong
from nextlong.report.page import write

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def one(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("one") / "report.html"
    path.write_text(write.page([nextlong.open(run)]), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def both(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("both") / "report.html"
    path.write_text(
        write.page(
            [nextlong.open(f"{run}@{name}") for name in ("extended", "standard")]
        ),
        encoding="utf-8",
    )
    return path.as_uri()


@pytest.fixture(scope="module")
def spans(run):
    return nextlong.open(run).sequence(0).spans


def middle(page, spans, place):
    """Return where on the screen the middle of a chunk is."""
    box = page.locator(".sequence .strip").first.bounding_box()
    tokens = spans[-1].token_end
    share = (spans[place].token_start + spans[place].token_end) / 2 / tokens
    return box["x"] + share * box["width"], box["y"] + box["height"] * 0.7


def test_pointing_at_a_chunk_tells_its_source_and_cosine(open_page, one, spans):
    page = open_page(one)
    page.locator(".sequence").first.scroll_into_view_if_needed()
    place = max(
        n
        for n, span in enumerate(spans)
        if span.role == "negative" and span.token_end - span.token_start > 40
    )
    told = page.locator(".told").first
    chosen = told.inner_text()
    page.mouse.move(*middle(page, spans, place))
    tip = page.locator(".tip")
    expect(tip).to_contain_text(f"cosine {spans[place].score:.3f}")
    expect(tip).to_contain_text(f"Negative of meta-chunk {spans[place].group + 1}")
    expect(tip).to_contain_text(spans[place].source_id[-6:])
    expect(tip).to_contain_text(
        f"tokens {spans[place].token_start:,} to {spans[place].token_end:,}"
    )
    expect(told).to_have_text(chosen)  # which the cards and the slider show
    page.mouse.move(*middle(page, spans, len(spans) - 1))
    if spans[-1].role == "eos":
        expect(tip).to_contain_text("End-of-sequence token")
        expect(tip).not_to_contain_text("cosine")


def test_a_click_shows_the_text_beside_its_meta_chunk_with_shared_words_marked(
    open_page, one, run, spans
):
    page = open_page(one)
    page.locator(".sequence").first.scroll_into_view_if_needed()
    texts = nextlong.open(run).sequence(0).texts
    place = max(
        n
        for n, span in enumerate(spans)
        if span.role == "negative" and span.token_end - span.token_start > 40
    )
    page.mouse.click(*middle(page, spans, place))
    cards = page.locator(".sequence").first.locator("article")
    expect(cards).to_have_count(2)
    group = spans[place].group
    meta = next(
        n for n, span in enumerate(spans) if span.role == "meta" and span.group == group
    )
    for card, shown in zip((cards.nth(0), cards.nth(1)), (place, meta), strict=True):
        words = re.findall(r"[a-z]{4,}", texts[shown].lower())
        assert (
            re.findall(r"[a-z]{4,}", card.locator(".words").inner_text().lower())
            == words
        )
    marks = [
        {mark.lower() for mark in card.locator("mark").all_inner_texts()}
        for card in (cards.nth(0), cards.nth(1))
    ]
    assert marks[0] == marks[1]


def test_the_keyboard_walks_along_the_sequence(open_page, one, spans):
    page = open_page(one)
    slider = page.get_by_role("slider").first
    slider.focus()
    page.keyboard.press("Home")
    expect(slider).to_have_attribute(
        "aria-valuetext", re.compile(f"tokens 0 to {spans[0].token_end}")
    )
    page.keyboard.press("ArrowRight")
    expect(slider).to_have_attribute(
        "aria-valuetext", re.compile(f"tokens {spans[1].token_start:,} to")
    )
    page.keyboard.press("End")
    expect(page.locator(".told").first).to_contain_text(f"to {spans[-1].token_end:,}")


def test_variants_stand_side_by_side_and_open_when_chosen(open_page, both):
    page = open_page(both)
    strips = page.locator(".sequence")
    expect(strips).to_have_count(2)
    expect(page.locator("article.is-own, article.is-other")).to_have_count(0)
    strips.nth(1).get_by_role("button", name="Next chunk").click()
    expect(strips.nth(1).locator("article").first).to_be_visible()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 360])
def test_the_page_is_for_every_reader(open_page, one, both, width, colours):
    for url in (one, both):
        page = open_page(url, width=width, colours=colours)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = Axe().run(page).response["violations"]
        assert [(own["id"], own["nodes"][0]["html"]) for own in found] == []


def test_charts_tell_values_and_their_legends_hide_series(open_page, both):
    page = open_page(both)
    card = page.locator("#sources")
    bar = card.locator("rect").first
    bar.scroll_into_view_if_needed()
    bar.hover()
    expect(page.locator(".tip")).to_contain_text("%")
    for name in ("nextlong", "standard"):
        expect(card.get_by_role("button", name=name)).to_have_attribute(
            "aria-pressed", "true"
        )
    card.get_by_role("button", name="standard").click()
    expect(card.locator("rect.run1").first).to_be_hidden()
    expect(card.locator("rect.run0").first).to_be_visible()
    card.get_by_role("button", name="standard").press("Enter")
    expect(card.locator("rect.run1").first).to_be_visible()


def test_the_map_marks_the_sequence_and_its_sources_can_be_hidden(open_page, one):
    page = open_page(one)
    chart = page.locator("#map")
    assert chart.locator("circle.own").count() >= 2
    chart.locator("circle.own").last.hover(force=True)
    expect(page.locator(".tip")).to_be_visible()
    chart.get_by_role("button").first.click()
    expect(chart.locator("circle[data-series='0']").first).to_be_hidden()


def test_the_decision_and_the_contents_are_in_the_first_screen(open_page, one):
    page = open_page(one)
    verdict = page.locator(".verdict").first
    contents = page.get_by_role("navigation")
    for shown in (verdict, contents):
        box = shown.bounding_box()
        assert box["y"] + box["height"] < 900
    # This corpus has four problems, which push the figures down to the edge.
    assert page.locator(".tiles").bounding_box()["y"] < 900
    assert page.evaluate("document.documentElement.scrollHeight") <= 6000
    page.get_by_role("link", name="What text does the data contain?").click()
    expect(page.get_by_role("navigation")).to_be_in_viewport()  # it is sticky
    expect(
        page.get_by_role("heading", name="What text does the data contain?")
    ).to_be_in_viewport()
    for opened in page.locator("#content summary").all():
        opened.click()
    expect(page.locator("#content data[data-path]").first).to_be_visible()


def test_the_checks_are_listed_on_request(open_page, one, both):
    page = open_page(one)
    checks = page.locator(".verdict ol li")
    expect(checks.first).to_be_hidden()
    page.locator(".verdict summary").click()
    expect(checks.first).to_be_visible()
    expect(page.get_by_text("checks every file with independent code")).to_be_visible()
    page = open_page(both)
    assert (
        page.locator(".verdict").last.bounding_box()["y"] < 300
    )  # side by side, and closed


def test_rows_of_a_table_in_a_card_are_read_as_words(open_page, both):
    page = open_page(both, width=1440)
    for head in page.locator("#near tbody th").all():
        assert head.bounding_box()["width"] > 100


def test_no_table_is_a_tab_stop_by_itself(open_page, one):
    page = open_page(one)
    page.evaluate(
        "for (const one of document.querySelectorAll('details')) one.open = true"
    )
    page.wait_for_function("document.querySelectorAll('.wide').length > 5")
    assert page.locator(".wide[tabindex]").count() == 0


def test_without_scripts_charts_and_numbers_are_there(chromium, one):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(one)
    assert page.locator(".chart svg").count() > 8
    expect(page.locator("#chunks rect title").first).to_have_count(1)
    page.locator("#chunks summary").click()
    expect(page.locator("#chunks data").first).to_be_visible()
    context.close()


def test_hostile_texts_neither_run_nor_break_the_page(open_page, one):
    page = open_page(one)
    assert page.locator("img, iframe, object, a[href^=javascript]").count() == 0
    assert page.locator("main").count() == page.locator("h1").count() == 1
    page.get_by_role("slider").first.focus()
    page.keyboard.press("Home")  # the beginning of a document
    expect(page.locator(".words").first).to_contain_text("<svg onload=alert(3)>")


def test_it_prints_on_paper_of_its_own_colours(open_page, one):
    page = open_page(one, colours="dark")
    page.emulate_media(media="print")
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor")
        == "rgb(255, 255, 255)"
    )
    expect(page.locator(".walk").first).to_be_hidden()
    assert page.pdf().startswith(b"%PDF")
