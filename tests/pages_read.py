"""A page of the viewer, read for what a person sees of it."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Cells by row, links, what the inputs hold, and every text."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.links, self.fields, self.texts, self.cell = [], [], {}, [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.cell = tag
            self.rows[-1].append([tag, ""])
        if tag == "a":
            self.links.append(attributes["href"])
        if tag == "input" and "name" in attributes:
            self.fields[attributes["name"]] = attributes.get("value", "")

    def handle_endtag(self, tag):
        self.cell = "" if tag == self.cell else self.cell

    def handle_data(self, data):
        self.texts.append(data)
        if self.cell:
            self.rows[-1][-1][1] += data

    @property
    def body(self):
        """The rows below the headings of their columns."""
        return [[text for _, text in row] for row in self.rows if any(tag == "td" for tag, _ in row)]
