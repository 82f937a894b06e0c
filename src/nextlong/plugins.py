"""Plugins: the registries of methods, formats, encoders, indexes, tasks and trainers, built in or from other packages.

A built-in extension is a module (or package) in the folder of its registry that assigns the registry's attribute (`METHOD = …`);
the module's name is the extension's name. A variant in the same module has its name in the attribute (`FORMAT_PROLONG = …` is
`prolong`). Another distribution declares an extension as an entry point of the registry's group. A module is imported only when
a recipe or command names it. A duplicate name is an error. docs/extend.md has a complete example of each kind.
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
    """The extensions of one kind: modules of `package` that assign `attribute`, and entry points in `group`."""

    kind: str  # in messages: "method"
    package: str
    attribute: str
    group: str

    @cached_property
    def built_in(self) -> Mapping[str, tuple[str, str]]:
        """The module and attribute of each built-in extension, by name in order. Raises PluginError for a duplicate name."""
        # The source text shows whether a module is an extension; importing all of them would load every optional library.
        declares = re.compile(
            rf"^({self.attribute}(?:_([A-Z]+))?)\b[^=\n]*=", re.MULTILINE
        )
        package = util.find_spec(self.package)
        assert package is not None
        found: dict[str, tuple[str, str]] = {}
        for folder in map(Path, package.submodule_search_locations or ()):
            for module in pkgutil.iter_modules([str(folder)]):
                source = (
                    folder / module.name / "__init__.py"
                    if module.ispkg
                    else folder / f"{module.name}.py"
                )
                for attribute, variant in declares.findall(
                    source.read_text(encoding="utf-8")
                ):
                    name, declared = (
                        variant.lower() or module.name,
                        (f"{self.package}.{module.name}", attribute),
                    )
                    if (other := found.setdefault(name, declared)) != declared:
                        twice = f"{other[0]}.{other[1]} and {declared[0]}.{declared[1]}"
                        raise PluginError(
                            f"{self.kind} {name!r} is declared twice, by {twice}; rename one of them"
                        )
        return dict(sorted(found.items()))

    def names(self) -> list[str]:
        """Return all names, those of other distributions last. Raises PluginError for a duplicate name."""
        outside = sorted(self._from_outside())
        for name in outside:
            self._check_unique(name)
        return [*self.built_in, *outside]

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self._from_outside()

    def origin(self, name: str) -> str:
        """Return the origin of an extension: "nextlong", or the name and version of a distribution. Raises KeyError."""
        return (
            "nextlong"
            if name in self.built_in
            else _distribution(self._from_outside()[name][0])
        )

    def load(self, name: str, expected: type[_DeclaredT]) -> _DeclaredT:
        """Return the object that an extension declares.

        Raises KeyError for an unknown name, PluginError if the extension cannot be imported, is not an `expected`, has a different
        name itself, or is declared twice.
        """
        declared = self._declared(name)
        if not isinstance(declared, expected):
            raise self.broken(
                name, f"is not a nextlong {self.kind} but {declared!r:.80}"
            )
        if (own := getattr(declared, "name", name)) != name:
            raise self.broken(
                name,
                f"calls itself {own!r}; the module or entry point must have that name",
            )
        return declared

    def declarations(self, *expected: type[Any]) -> dict[str, Any]:
        """Return all declarations by their own names; a module may declare several in a tuple.

        Raises PluginError if one is not of an `expected` type, or two have the same name.
        """
        found: dict[str, Any] = {}
        for name in self.names():
            declared = self._declared(name)
            for one in (
                declared if type(declared) is tuple else (declared,)
            ):  # a NamedTuple is one declaration
                if not isinstance(one, expected):
                    raise self.broken(
                        name,
                        f"declares {one!r:.80}, which is not a nextlong {self.kind}",
                    )
                if (own := getattr(one, "name", name)) in found:
                    raise self.broken(name, f"declares a second {own!r}")
                found[own] = one
        return found

    def broken(self, name: str, reason: str) -> PluginError:
        """Return the error for a broken extension, which names its distribution and the fix."""
        if name in self.built_in:
            return PluginError(
                f"{self.kind} {name!r} of {self.built_in[name][0]} {reason}; correct that module"
            )
        cure = (
            "install a version that is compatible with this nextlong, or uninstall it"
        )
        return PluginError(
            f"{self.kind} {name!r} of the distribution {self.origin(name)} {reason}; {cure}"
        )

    def _declared(self, name: str) -> Any:
        self._check_unique(name)
        if name in self.built_in:
            module, attribute = self.built_in[name]
            return getattr(importlib.import_module(module), attribute)
        point = self._from_outside()[name][0]
        try:
            return point.load()
        except (
            Exception
        ) as error:  # a foreign module may raise anything when it is imported
            raise self.broken(
                name, f"cannot be loaded: {type(error).__name__}: {error}"
            ) from error

    def _check_unique(self, name: str) -> None:
        owners = [_distribution(point) for point in self._from_outside().get(name, ())]
        others = " and ".join(owners)
        where = f"provided by {others}; uninstall all but one of them"
        if name in self.built_in:
            where = f"built in, but {others} provides another; uninstall that distribution, or let it use another name"
        if len(owners) + (name in self.built_in) > 1:
            raise PluginError(f"{self.kind} {name!r} is {where}")

    def _from_outside(self) -> Mapping[str, list[EntryPoint]]:
        return _entry_points(self.group, tuple(sys.path))


@lru_cache  # reading the metadata of all distributions takes 4 ms, and recipes are read by the dozen
def _entry_points(group: str, path: tuple[str, ...]) -> Mapping[str, list[EntryPoint]]:
    del path  # part of the cache key: where distributions are found
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        # Only the first of a distribution counts: it may be on the path twice, as in an editable installation.
        found.setdefault(point.name, {}).setdefault(_distribution(point), point)
    return {
        name: [point for _, point in sorted(points.items())]
        for name, points in found.items()
    }


def _distribution(point: EntryPoint) -> str:
    return (
        "of unknown name"
        if point.dist is None
        else f"{point.dist.name} {point.dist.version}"
    )


METHODS: Final = Registry("method", "nextlong.methods", "METHOD", "nextlong.methods")
FORMATS: Final = Registry(
    "format", "nextlong.export.formats", "FORMAT", "nextlong.formats"
)
INPUT_FORMATS: Final = Registry(
    "input format", "nextlong.reading", "FORMAT", "nextlong.input_formats"
)
ENCODERS: Final = Registry(
    "encoder", "nextlong.retrieval.encoders", "ENCODER", "nextlong.encoders"
)
INDEXES: Final = Registry(
    "index", "nextlong.retrieval.indexes", "INDEX", "nextlong.indexes"
)
TASKS: Final = Registry(
    "evaluation task", "nextlong.evaluate.tasks", "TASKS", "nextlong.tasks"
)
TRAINERS: Final = Registry("trainer", "nextlong.train", "TRAINER", "nextlong.trainers")
