"""Plugins: the registries by which everything that a recipe or a command names is found, here or in another package.

A built-in extension is a module, or a package, of its registry's folder that assigns the registry's attribute (`METHOD = …`);
its name is the module's. A variant of it beside it has its name in the attribute (`FORMAT_PROLONG = …` is `prolong`). Another
distribution brings one by an entry point of the registry's group, whose name recipes use.
Nothing is imported before it is named. A name that is brought twice is an error. CONTRIBUTING.md has a complete file for each.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, TypeVar

from nextlong.errors import PluginError

_DeclaredT = TypeVar("_DeclaredT")


@dataclass(frozen=True)
class Registry:
    """The extensions of one kind: modules of `package` that assign `attribute`, and entry points of `group`."""

    kind: str  # in messages: "method"
    package: str
    attribute: str
    group: str

    @property
    def built_in(self) -> tuple[str, ...]:
        """The names of the extensions of this package, in alphabetical order."""
        return tuple(self._modules)

    @cached_property
    def _modules(self) -> Mapping[str, tuple[str, str]]:
        """Which module declares each extension of this package, as which attribute."""
        # The source says whether a module is an extension or a helper: importing all would load every optional library.
        declares = re.compile(rf"^({self.attribute}(?:_([A-Z]+))?)\b[^=\n]*=", re.MULTILINE)
        package = util.find_spec(self.package)
        assert package is not None
        found = {}
        for folder in map(Path, package.submodule_search_locations or ()):
            for module in pkgutil.iter_modules([str(folder)]):
                source = folder / module.name / "__init__.py" if module.ispkg else folder / f"{module.name}.py"
                for attribute, variant in declares.findall(source.read_text(encoding="utf-8")):
                    found[variant.lower() or module.name] = (f"{self.package}.{module.name}", attribute)
        return dict(sorted(found.items()))

    def names(self) -> list[str]:
        """Return all names, those of other distributions last. Raises PluginError if one is brought twice."""
        outside = sorted(self._brought())
        for name in outside:
            self._check_unique(name)
        return [*self.built_in, *outside]

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self._brought()

    def origin(self, name: str) -> str:
        """Return where an extension comes from: "nextlong", or a distribution with its version. Raises KeyError."""
        return "nextlong" if name in self.built_in else _distribution(self._brought()[name][0])

    def load(self, name: str, expected: type[_DeclaredT]) -> _DeclaredT:
        """Return what an extension declares.

        Raises KeyError for an unknown name, PluginError if the extension cannot be imported, is not an `expected`, calls itself
        by another name, or is brought twice.
        """
        declared = self._declared(name)
        if not isinstance(declared, expected):
            raise self.broken(name, f"is not a nextlong {self.kind}, but {declared!r:.80}")
        if (own := getattr(declared, "name", name)) != name:
            cure = "the module or entry point must have that name"
            raise self.broken(name, f"is called {own!r} by its own module; {cure}")
        return declared

    def declarations(self, *expected: type[Any]) -> dict[str, Any]:
        """Return every declaration, of an `expected` type, by its own name; a module may declare several in a tuple.

        Raises PluginError if one is of another type, or two have the same name.
        """
        found: dict[str, Any] = {}
        for name in self.names():
            declared = self._declared(name)
            for one in declared if type(declared) is tuple else (declared,):  # a NamedTuple is one declaration
                if not isinstance(one, expected):
                    raise self.broken(name, f"declares {one!r:.80}, which is not a nextlong {self.kind}")
                if (own := getattr(one, "name", name)) in found:
                    raise self.broken(name, f"declares a second {own!r}")
                found[own] = one
        return found

    def broken(self, name: str, reason: str) -> PluginError:
        """Return the error that says what is wrong with an extension, and which distribution it belongs to."""
        cure = "install a version of it that fits this nextlong, or uninstall it"
        return PluginError(f"{self.kind} {name!r} of the distribution {self.origin(name)} {reason}; {cure}")

    def _declared(self, name: str) -> Any:
        self._check_unique(name)
        if name in self.built_in:
            module, attribute = self._modules[name]
            return getattr(importlib.import_module(module), attribute)
        point = self._brought()[name][0]
        try:
            return point.load()
        except Exception as error:  # whatever a foreign module raises when it is imported
            raise self.broken(name, f"cannot be loaded: {type(error).__name__}: {error}") from error

    def _check_unique(self, name: str) -> None:
        owners = [_distribution(point) for point in self._brought().get(name, ())]
        others = " and ".join(owners)
        where = f"brought by {others}; uninstall all of them but one"
        if name in self.built_in:
            where = f"built in, and {others} also brings one; uninstall that distribution, or have it use another name"
        if len(owners) + (name in self.built_in) > 1:
            raise PluginError(f"{self.kind} {name!r} is {where}")

    def _brought(self) -> Mapping[str, list[EntryPoint]]:
        return _entry_points(self.group, tuple(sys.path))


@lru_cache  # reading the metadata of all distributions takes 4 ms, and recipes are read by the dozen
def _entry_points(group: str, path: tuple[str, ...]) -> Mapping[str, list[EntryPoint]]:
    del path  # where distributions are looked for
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        # Of one distribution only the first counts: it may lie on the path twice, as in an editable installation.
        found.setdefault(point.name, {}).setdefault(_distribution(point), point)
    return {name: [point for _, point in sorted(points.items())] for name, points in found.items()}


def _distribution(point: EntryPoint) -> str:
    return "of unknown name" if point.dist is None else f"{point.dist.name} {point.dist.version}"


METHODS: Final = Registry("method", "nextlong.methods", "METHOD", "nextlong.methods")
FORMATS: Final = Registry("format", "nextlong.export.formats", "FORMAT", "nextlong.formats")
INPUT_FORMATS: Final = Registry("input format", "nextlong.reading", "FORMAT", "nextlong.input_formats")
ENCODERS: Final = Registry("encoder", "nextlong.retrieval.encoders", "ENCODER", "nextlong.encoders")
INDEXES: Final = Registry("index", "nextlong.retrieval.indexes", "INDEX", "nextlong.indexes")
TASKS: Final = Registry("evaluation task", "nextlong.evaluate.tasks", "TASKS", "nextlong.tasks")
TRAINERS: Final = Registry("trainer", "nextlong.train", "TRAINER", "nextlong.trainers")
