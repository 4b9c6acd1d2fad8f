"""Empty modules in the place of some that ComfyUI and DiffSynth import at once and that have no part in these tests.

The wheels of torchvision and torchaudio do not load beside torch 2.13 for CPUs; the others are large.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types

MISSING = ("torchvision", "torchaudio", "modelscope", "pandas")


class Placeholder(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        missing = name.partition(".")[0] in MISSING
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if missing else None

    def create_module(self, spec):
        return Placeholder(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())
