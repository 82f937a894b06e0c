"""Corrected p-values; intervals are tested where results use them."""

import pytest

from nextlong.significance import holm


def test_holm_multiplies_the_smallest_by_the_number_of_tests_and_keeps_the_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
