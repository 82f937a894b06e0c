"""Runs that share a store, and a reporter that notes what they did."""

from contextlib import nullcontext


class Told:
    """A reporter that notes which steps ran and which were kept."""

    def __init__(self):
        self.ran, self.there, self.said = [], [], []

    def step(self, name, *, done, total):
        self.ran.append(name)
        return nullcontext(lambda seconds: None)

    def kept(self, names):
        self.there += names

    def tell(self, text):
        self.said.append(text)


CHEAP = "compose.method=standard"  # where any steps will do: nothing is embedded or mined


def stored(recipe_for, folder, name, *overrides):
    return recipe_for(folder / name, f"store={folder / 'store'}", "executor=serial", *overrides)
