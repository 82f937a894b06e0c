"""Elements: every text escaped where it enters, and pictures that a strict policy takes."""

from nextlong.picture import elements


def test_an_element_holds_texts_before_and_behind_its_children():
    made = elements.element("p", "a<", elements.element("b", "&"), "c", class_="x", aria_label='"<')
    assert elements.document(made) == '<!doctype html>\n<p class="x" aria-label="&quot;<">a&lt;<b>&amp;</b>c</p>\n'


def test_an_svg_loses_what_a_strict_policy_refuses():
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:x="http://www.w3.org/1999/xlink"><metadata>m</metadata>'
        '<defs><style>*{}</style><path id="used" style="fill: none; stroke: #000"/></defs>'
        '<use x:href="#used" id="unused"/><g clip-path="url(#used)"/></svg>'
    )
    assert elements.document(elements.svg_element(svg, name="n")).split("\n")[1] == (
        '<svg><defs><path fill="none" stroke="#000" id="n-used"></path></defs>'
        '<use href="#n-used"></use><g clip-path="url(#n-used)"></g></svg>'
    )
