"""Found first on PYTHONPATH by every Python that `ulpscope run` starts: waits for a framework, starts its capture.

Runs in any interpreter from 3.8 on, also one without ulpscope and one that never needs torch: so it imports nothing
that costs time, and hands on to the sitecustomize that would have been found without it.
"""

import os
import sys

FRAMEWORKS = ("torch", "tensorflow")
"""Those that have a room of their name beside this one; an earlier one takes the place of a later one."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _append(line: str) -> None:
    directory = os.environ.get("ULPSCOPE_EVENTS")
    if not directory:
        # No `ulpscope run` listens.
        return
    try:
        with open(os.path.join(directory, "%d.jsonl" % os.getpid()), "a") as file:
            file.write(line + "\n")
    except OSError:
        pass


def _emit(event: str, **fields: str) -> None:
    import json

    _append(json.dumps(dict(fields, event=event, pid=os.getpid(), interpreter=sys.executable)))


def _start(framework: str) -> None:
    try:
        from ulpscope.capture.processes import start_capture
    except Exception as error:
        _emit("no_ulpscope", reason="%s: %s" % (type(error).__name__, error))
        return
    start_capture(framework)


class _FrameworkWatch:
    """Lets the usual finders find a framework, and learns when its module has been executed."""

    def __init__(self) -> None:
        self._awaited = list(FRAMEWORKS)

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in self._awaited:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            spec = find_spec(name, path, target) if finder is not self and find_spec else None
            if spec is not None:
                self._watch(name, spec.loader)
                return spec
        return None

    def _watch(self, name: str, loader: "Any") -> None:
        execute = loader.exec_module

        def exec_module(module: "Any") -> None:
            del loader.exec_module
            execute(module)
            self._executed(name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            _emit("message", text="%s is loaded by %r, which cannot be watched" % (name, loader))

    def _executed(self, name: str, module: "Any") -> None:
        if name in self._awaited:
            self._awaited = list(FRAMEWORKS[: FRAMEWORKS.index(name)])
            if not self._awaited:
                sys.meta_path.remove(self)
            _start(name)


class _ModuleWatch(_FrameworkWatch):
    """Calls a function of ours with a module once it has been executed: `module=module:function module=...`."""

    def __init__(self, wanted: str) -> None:
        self._wanted = dict(each.split("=", 1) for each in wanted.split())
        self._awaited = list(self._wanted)

    def _executed(self, name: str, module: "Any") -> None:
        place, _, function = self._wanted[name].partition(":")
        try:
            from importlib import import_module

            getattr(import_module(place), function)(module)
        except Exception as error:
            sys.stderr.write("ulpscope: %s stays as it is: %s: %s\n" % (name, type(error).__name__, error))


def _hand_on() -> None:
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _install() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    if os.environ.get("ULPSCOPE_SETTINGS"):
        _append('{"event": "python", "pid": %d}' % os.getpid())
        sys.meta_path.insert(0, _FrameworkWatch())
    if os.environ.get("ULPSCOPE_AFTER_IMPORT"):
        sys.meta_path.insert(0, _ModuleWatch(os.environ["ULPSCOPE_AFTER_IMPORT"]))
    _hand_on()


_install()
