"""Functions of upper rooms that are methods of the matrix too: `distribute`, `accelerated`, and the notebook's table.

The matrix imports none of these rooms. The package's face (`gsparse/__init__.py`), which stands above all of them,
enters a function for each name when the package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["UPPER_ROOMS"]

UPPER_ROOMS: dict[str, Callable[..., Any]] = {}
