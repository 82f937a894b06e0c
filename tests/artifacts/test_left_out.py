from hypothesis import given
from hypothesis import strategies as st

from nextlong.artifacts.results import Example, LeftOut, read_filter_report, write_filter_report

WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
EXAMPLES = st.builds(Example, *[WORDS] * 4)
REASONS = st.builds(LeftOut, WORDS, WORDS, st.integers(0, 2**40), st.lists(EXAMPLES, max_size=2).map(tuple))


@given(reasons=st.lists(REASONS, max_size=3))
def test_what_is_written_is_read(tmp_path_factory, reasons):
    path = tmp_path_factory.mktemp("left") / "a.json"
    write_filter_report(path, reasons)
    assert read_filter_report(path) == tuple(reasons)
