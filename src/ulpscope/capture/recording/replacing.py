"""Things of ours in the place of a framework's: put there, taken away, and left where a script has wrapped them."""

from collections.abc import Callable
from typing import Any

_NOTHING = object()


class Replacement:
    """What stands in for one attribute of a class or module while a capture runs.

    A script may put a wrapper of its own over it at any time. Then that wrapper stays where it is, and ours below it,
    which hands on to the original for as long as `is_on` is False.
    """

    def __init__(self, owner: Any, name: str, make: Callable[["Replacement"], Any]) -> None:
        """`make` gives what stands in; it asks the replacement for the original, once, and whether it is on."""
        self.is_on = False
        self.original: Any = None
        """What the attribute gave before."""
        self.found: Any = _NOTHING
        """What the owner itself held, if anything."""
        self._owner = owner
        self._name = name
        self._make = make
        self._stand_in: Any = None
        self._is_covered = False
        """Whether somebody's wrapper was over it when it was last taken away."""

    def install(self) -> None:
        self.is_on = True
        present = self._present()
        if present is self._stand_in or (self._is_covered and present is not self.found):
            return
        if self._stand_in is None or present is not self.found:
            self.found, self.original = present, getattr(self._owner, self._name)
            self._stand_in = self._make(self)
        setattr(self._owner, self._name, self._stand_in)

    def uninstall(self) -> None:
        self.is_on = False
        self._is_covered = self._present() is not self._stand_in
        if self._is_covered:
            return
        if self.found is _NOTHING:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self.found)

    def _present(self) -> Any:
        return vars(self._owner).get(self._name, _NOTHING)


class Replacements:
    """Several that are put there and taken away together."""

    def __init__(self, *entries: Replacement) -> None:
        self._entries = entries

    @property
    def are_on(self) -> bool:
        return all(entry.is_on for entry in self._entries)

    def install(self) -> None:
        for entry in self._entries:
            entry.install()

    def uninstall(self) -> None:
        for entry in self._entries:
            entry.uninstall()
