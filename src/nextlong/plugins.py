"""Plugins: the registries of methods, formats, encoders, indexes, tasks and trainers.

A built-in extension is a module (or package) in the folder of its registry that assigns
the registry's attribute (`METHOD = …`); the module's name is the extension's name. A
variant in the same module has its name in the attribute (`FORMAT_PROLONG = …` is
`prolong`). Another distribution declares an extension as an entry point of the
registry's group. A module is imported only when a recipe or command names it. A
duplicate name is an error. docs/extend.md has a complete example of each kind.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
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
    """The extensions of one kind.

    They are modules of `package` that assign `attribute`, and entry points in `group`.
    """

    kind: str  # in messages: "method"
    package: str
    attribute: str
    group: str

    @cached_property
    def built_in(self) -> Mapping[str, tuple[str, str]]:
        """The module and attribute of each built-in extension, by name in order.

        Raises PluginError for a duplicate name.
        """
        # The source text shows whether a module is an extension; importing all of them
        # would load every optional library.
        declares = re.compile(
            rf"^({self.attribute}(?:_([A-Z]+))?)\b[^=\n]*=", re.MULTILINE
        )
        package = util.find_spec(self.package)
        assert package is not None
        found: dict[str, tuple[str, str]] = {}
        for folder in map(Path, package.submodule_search_locations or ()):
            for module in pkgutil.iter_modules([str(folder)]):
                path = folder / f"{module.name}.py"
                if module.ispkg:
                    path = folder / module.name / "__init__.py"
                source = path.read_text(encoding="utf-8")
                for attribute, variant in declares.findall(source):
                    name = variant.lower() or module.name
                    declared = (f"{self.package}.{module.name}", attribute)
                    other = found.setdefault(name, declared)
                    if other != declared:
                        raise PluginError(
                            where=f"{self.kind} {name!r}",
                            problem=f"it is declared twice, by {'.'.join(other)} and "
                            f"{'.'.join(declared)}",
                            fix="rename one of them",
                        )
        return dict(sorted(found.items()))

    def names(self) -> list[str]:
        """Return all names, those of other distributions last.

        Raises PluginError for a duplicate name.
        """
        outside = sorted(self.outside())
        for name in outside:
            self._check_unique(name)
        return [*self.built_in, *outside]

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self.outside()

    def origin(self, name: str) -> str:
        """Return the origin of an extension: "nextlong", or another distribution.

        The latter with its version. Raises KeyError for an unknown name.
        """
        if name in self.built_in:
            return "nextlong"
        return _distribution(self.outside()[name][0])

    def load(self, name: str, expected: type[_DeclaredT]) -> _DeclaredT:
        """Return the object that an extension declares.

        Raises KeyError for an unknown name, PluginError if the extension cannot be
        imported, is not an `expected`, has a different name itself, or is declared
        twice.
        """
        declared = self._declared(name)
        if not isinstance(declared, expected):
            raise self.broken(
                name, f"is not a nextlong {self.kind} but {declared!r:.80}"
            )
        own_name = getattr(declared, "name", name)
        if own_name != name:
            raise self.broken(
                name,
                f"calls itself {own_name!r}, but the module or entry point must have "
                "that name",
            )
        return declared

    def declarations(self, *expected: type[Any]) -> dict[str, Any]:
        """Return all declarations by their own names.

        A module may declare several in a tuple. Raises PluginError if one is not of an
        `expected` type, or two have the same name.
        """
        found: dict[str, Any] = {}
        modules: dict[str, str] = {}
        for name in self.names():
            declared = self._declared(name)
            # A NamedTuple is one declaration.
            several = declared if type(declared) is tuple else (declared,)
            for declaration in several:
                if not isinstance(declaration, expected):
                    raise self.broken(
                        name,
                        f"declares {declaration!r:.80}, which is not a nextlong "
                        f"{self.kind}",
                    )
                own_name = getattr(declaration, "name", name)
                if own_name in found:
                    other = modules[own_name]
                    raise self.broken(
                        name,
                        f"declares the {self.kind} {own_name!r}, which {other!r} of "
                        f"{self.origin(other)} declares, too",
                    )
                found[own_name] = declaration
                modules[own_name] = name
        return found

    def broken(self, name: str, reason: str) -> PluginError:
        """Return the error for a broken extension, with its origin and the fix.

        `reason` is a predicate of the extension, such as "has no name".
        """
        if name in self.built_in:
            module, _ = self.built_in[name]
            return PluginError(
                where=f"{self.kind} {name!r} of {module}",
                problem=f"it {reason}",
                fix="correct that module",
            )
        return PluginError(
            where=f"{self.kind} {name!r} of the distribution {self.origin(name)}",
            problem=f"it {reason}",
            fix="install a version that is compatible with this nextlong, or uninstall "
            "it",
        )

    def _declared(self, name: str) -> Any:
        self._check_unique(name)
        if name in self.built_in:
            module, attribute = self.built_in[name]
            return getattr(importlib.import_module(module), attribute)
        point = self.outside()[name][0]
        # A foreign module may raise anything when it is imported.
        try:
            return point.load()
        except Exception as error:
            raise self.broken(
                name, f"cannot be loaded: {type(error).__name__}: {error}"
            ) from error

    def _check_unique(self, name: str) -> None:
        owners = [_distribution(point) for point in self.outside().get(name, ())]
        others = " and ".join(owners)
        if name in self.built_in and owners:
            raise PluginError(
                where=f"{self.kind} {name!r}",
                problem=f"it is built in, but {others} provides another",
                fix="uninstall that distribution, or let it use another name",
            )
        if len(owners) > 1:
            raise PluginError(
                where=f"{self.kind} {name!r}",
                problem=f"it is provided by {others}",
                fix="uninstall all but one of them",
            )

    def outside(self) -> Mapping[str, list[EntryPoint]]:
        """Return the entry points of other distributions by name."""
        return _entry_points(self.group, tuple(sys.path))


# Reading the metadata of all distributions takes 4 ms, and recipes are read by the
# dozen.
@lru_cache
def _entry_points(group: str, path: tuple[str, ...]) -> Mapping[str, list[EntryPoint]]:
    del path  # part of the cache key: where distributions are found
    found: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=group):
        # Only the first of a distribution counts: it may be on the path twice, as in an
        # editable installation.
        by_distribution = found.setdefault(point.name, {})
        by_distribution.setdefault(_distribution(point), point)
    points_by_name = {}
    for name, points in found.items():
        points_by_name[name] = [points[owner] for owner in sorted(points)]
    return points_by_name


def _distribution(point: EntryPoint) -> str:
    if point.dist is None:
        return "of unknown name"
    return f"{point.dist.name} {point.dist.version}"


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
KNOWN_ANSWERS: Final = Registry(
    "task with known answers",
    "nextlong.sequences.tasks",
    "TASK",
    "nextlong.known_answers",
)
TASKS: Final = Registry(
    "evaluation task", "nextlong.evaluate.tasks", "TASKS", "nextlong.tasks"
)
TRAINERS: Final = Registry("trainer", "nextlong.train", "TRAINER", "nextlong.trainers")
_REGISTRIES: Final = (
    METHODS,
    FORMATS,
    INPUT_FORMATS,
    ENCODERS,
    INDEXES,
    KNOWN_ANSWERS,
    TASKS,
    TRAINERS,
)


def fault_of(error: Exception) -> PluginError | None:
    """Return the error for an exception in the code of another distribution.

    None for any other exception. The place is that of the innermost frame of an
    extension, because the library that it called is seldom at fault.
    """
    frames = traceback.extract_tb(error.__traceback__)
    modules = [
        str(frame.f_globals.get("__name__", ""))
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    for frame, module in zip(reversed(frames), reversed(modules), strict=True):
        owner = next(_extensions_in(module.partition(".")[0]), None)
        if owner is not None:
            fault = PluginError(
                where=owner,
                problem=(
                    f"{type(error).__name__}: {error} ({frame.filename}, line "
                    f"{frame.lineno}, in {frame.name})"
                ),
                fix="report it to the authors of that distribution; -v shows the "
                "traceback",
            )
            fault.traceback = "".join(traceback.format_exception(error))
            return fault
    return None


def _extensions_in(package: str) -> Iterator[str]:
    """Yield the extensions that other distributions declare in a package."""
    for registry in _REGISTRIES:
        for name, points in registry.outside().items():
            if points[0].module.partition(".")[0] == package:
                distribution = _distribution(points[0])
                yield f"{registry.kind} {name!r} of the distribution {distribution}"
