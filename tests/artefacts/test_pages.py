"""Names of pages: one a variant or several, told apart, no longer than a file name may be."""

from nextlong.artefacts.pages import SWEEP, VARIANTS_META, page_name, pages_of


def test_pages_are_found_by_the_variants_that_they_show(tmp_path):
    for names in (["a"], ["a", "b"], ["b=1,c=x+y"], [f"s{n}" * 50 for n in range(6)]):
        (tmp_path / page_name(names)).touch()
    (tmp_path / "report.html").touch()
    many = page_name([f"s{n}" * 50 for n in range(6)])
    assert len(many) < 255
    assert {path.name for path in pages_of(tmp_path, {"b"})} == {"report-a@b.html", many}
    assert {path.name for path in pages_of(tmp_path, {"b=1,c=x+y"})} == {"report-b=1,c=x+y.html", many}


def test_a_sweep_s_page_is_found_by_what_its_head_names(tmp_path):
    page = tmp_path / SWEEP
    page.write_text(f'<head><meta name="{VARIANTS_META}" content="a=1 a=2"></head>')
    assert pages_of(tmp_path, {"a=2"}) == [page]
    assert pages_of(tmp_path, {"a"}) == []
    page.write_text("<head></head>")  # as earlier versions wrote it
    assert pages_of(tmp_path, {"a"}) == [page]


def test_a_variant_called_variants_is_one_like_any_other(tmp_path):
    for names in (["variants"], ["a", "variants"], ["a", "variants", "b"], ["2", "variants"], ["2", "variants", "b"]):
        (tmp_path / page_name(names)).touch()
    assert pages_of(tmp_path, {"other"}) == []
