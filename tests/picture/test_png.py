import sys

import pytest

from hand_made_spans import DOCUMENTS, EXTENDED
from nextlong.errors import NextlongError
from nextlong.picture import png


@pytest.mark.heavy
@pytest.mark.parametrize("spans", [EXTENDED, DOCUMENTS])
def test_png_has_the_magic_of_png(spans):
    assert png.png(spans, tokens=402, name="n").startswith(b"\x89PNG\r\n")


def test_without_matplotlib_png_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(NextlongError, match=r"pip install 'nextlong\[report\]'"):
        png.png(EXTENDED, tokens=402, name="n")
