from hypothesis import given
from hypothesis import strategies as st

from nextlong.verify.outcome import Outcome, in_words

WHY = st.sampled_from(["", "there are none"])


@given(examples=st.lists(st.text(), max_size=9), skipped=WHY, not_needed=WHY)
def test_every_breach_counts_and_the_first_five_are_told(examples, skipped, not_needed):
    outcome = Outcome("c", "things", skipped=skipped, not_needed=not_needed)
    for example in examples:
        outcome.breach(example)
    assert (outcome.breaches, outcome.examples) == (len(examples), examples[:5])
    unchecked = "not needed" if not_needed else "skipped" if skipped else "pass"
    assert outcome.result == ("breach" if examples else unchecked)


def test_an_error_names_its_file_or_its_kind():
    assert in_words(FileNotFoundError(2, "No such file or directory", "/a/b")) == "/a/b: No such file or directory"
    assert in_words(ValueError("odd")) == "ValueError: odd"
    assert in_words(ValueError()) == "ValueError"
