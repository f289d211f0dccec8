"""SciPy's own tests, from the installed SciPy, with GpuSparseMatrix in place of csr_array."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any
from unittest import mock


def load_test_module(name: str, replacements: Mapping[str, Any]) -> ModuleType:
    """Import a copy of a SciPy test module that sees other objects under some public names.

    Parameters
    ----------
    name : str
        Such as "scipy.sparse.tests.test_common1d".
    replacements : mapping
        From dotted public names ("scipy.sparse.csr_array") to what the copy shall import there.
    """
    found = importlib.util.find_spec(name)
    assert found is not None and found.origin is not None, f"the installed SciPy has no {name}"
    copied_name = f"gsparse_copy_of_{name.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(copied_name, found.origin)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[copied_name] = module
    with contextlib.ExitStack() as stack:
        for target, replacement in replacements.items():
            stack.enter_context(mock.patch(target, replacement))
        spec.loader.exec_module(module)
    return module


def suite_of(module: ModuleType) -> dict[str, Any]:
    """Give what pytest has to find of a loaded test module: tests, test classes and fixtures."""
    return {
        name: value
        for name, value in vars(module).items()
        if name.startswith(("test_", "Test")) or getattr(value, "_fixture_function", None) is not None
    }
