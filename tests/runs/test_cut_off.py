"""What sequences leave away of the documents that stand in them; a whole run's figures are tried in test_warnings.py."""

import nextlong
from nextlong.runs.cut_off import CutOff, measure_cut_off
from nextlong.runs.tally import Tally


def test_a_share_is_of_all_that_was_taken():
    assert CutOff(3, 12).share == 0.25
    assert CutOff(0, 0).share == 0


def test_a_method_that_counts_no_whole_documents_cuts_none_off(shared_run):
    taken = Tally()
    taken.add([1, 2])
    assert measure_cut_off(nextlong.open(shared_run), taken, tokens=5) is None
