from dataclasses import replace

from nextlong.export.formats import mds, prolong


def test_it_is_mds_by_another_name():
    assert replace(mds.FORMAT, name="prolong") == prolong.FORMAT
    assert mds.FORMAT.name == "mds"
