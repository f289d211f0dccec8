"""Where gsparse keeps files between processes."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

__all__ = ["cache_folder", "cpu_code_folder"]

CACHE_VARIABLE = "GSPARSE_CACHE_DIR"
CPU_SOURCES = Path(__file__).parent / "kernels" / "cpu"


def cache_folder() -> Path:
    """Give the folder for what is kept: GSPARSE_CACHE_DIR, else the user's cache directory. It may not exist yet."""
    base = os.environ.get(CACHE_VARIABLE)
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gsparse"


def cpu_code_folder() -> Path:
    """Give the folder for compiled CPU kernels: NUMBA_CACHE_DIR, else one of these very sources in the user's cache."""
    return Path(os.environ.get("NUMBA_CACHE_DIR") or cache_folder() / "cpu" / _digest())


@cache
def _digest() -> str:
    found = hashlib.sha256()
    for path in sorted(CPU_SOURCES.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]
