"""Plug-ins: things that the recipe names, from this package or from another; nothing is imported before it is named.

A built-in one is a module, or a package, of the folder that `package` names: its name is the module's. Another
distribution brings one by an entry point of `group`, whose name is the one that recipes use. Either way the object itself
is what the module calls `attribute`, or what the entry point refers to.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cached_property
from importlib import util
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from nextlong.errors import PluginError


@dataclass(frozen=True)
class Plugins:
    """The plug-ins of one kind; `shared` are the modules of the folder that serve several and are none themselves."""

    kind: str  # what messages call one: "method"
    package: str
    attribute: str
    group: str
    shared: frozenset[str]

    @cached_property
    def built_in(self) -> tuple[str, ...]:
        """The names of those that come with this package, in alphabetical order."""
        folder = util.find_spec(self.package)
        assert folder is not None
        assert folder.submodule_search_locations is not None
        modules = pkgutil.iter_modules(folder.submodule_search_locations)
        return tuple(sorted(module.name for module in modules if module.name not in self.shared))

    def names(self) -> list[str]:
        """Return the names of all, those of other distributions last."""
        others = {point.name for point in entry_points(group=self.group)}
        return [*self.built_in, *sorted(others.difference(self.built_in))]

    def __contains__(self, name: object) -> bool:
        # To look for other distributions takes ten milliseconds, and recipes are read by the dozen.
        return name in self.built_in or any(point.name == name for point in entry_points(group=self.group))

    def origin(self, name: str) -> str:
        """Return where the plug-in comes from, as messages say it. Raises KeyError if there is none of that name."""
        return "nextlong" if name in self.built_in else _distribution(self._entry_point(name))

    def load(self, name: str) -> Any:
        """Return the plug-in. Raises KeyError if there is none of that name, PluginError if its package is broken."""
        if name in self.built_in:
            return getattr(importlib.import_module(f"{self.package}.{name}"), self.attribute)
        point = self._entry_point(name)
        try:
            return point.load()
        except Exception as error:  # whatever a stranger's module raises when it is imported
            raise self.broken(name, f"cannot be loaded: {type(error).__name__}: {error}") from error

    def broken(self, name: str, reason: str) -> PluginError:
        """Return the error that says what is wrong with a plug-in, and whose it is."""
        return PluginError(
            f"{self.kind} {name!r} of the distribution {self.origin(name)} {reason}; install a version of it that fits "
            "this nextlong, or uninstall it"
        )

    def _entry_point(self, name: str) -> EntryPoint:
        points = list(entry_points(group=self.group, name=name))
        if not points:
            raise KeyError(name)
        owners = sorted({_distribution(point) for point in points})
        if len(owners) > 1:
            raise PluginError(
                f"{self.kind} {name!r} is brought by {' and '.join(owners)}; uninstall all of them but one"
            )
        return points[0]


def _distribution(point: EntryPoint) -> str:
    return "of unknown name" if point.dist is None else f"{point.dist.name} {point.dist.version}"
