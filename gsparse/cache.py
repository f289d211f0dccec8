"""Where gsparse keeps files between processes."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]

CACHE_VARIABLE = "GSPARSE_CACHE_DIR"


def cache_folder() -> Path:
    """Give the folder for what is kept: GSPARSE_CACHE_DIR, else the user's cache directory. It may not exist yet."""
    base = os.environ.get(CACHE_VARIABLE)
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gsparse"
