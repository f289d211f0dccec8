"""Operations whose operands or results are sparse, and the names of `scipy.sparse` for them.

The modules of this folder compute with CSR arrays. The public names return matrices, which live in an upper layer
(`gsparse.matrix.assembly`); `gsparse/__init__.py` enters them in `PUBLIC_NAMES` when the package is imported.
"""

from __future__ import annotations

from typing import Any

PUBLIC_NAMES: dict[str, Any] = {}


def __getattr__(name: str) -> Any:
    if name in PUBLIC_NAMES:
        return PUBLIC_NAMES[name]
    if name == "__all__":  # the names are entered after this module has been imported
        return sorted(PUBLIC_NAMES)
    raise AttributeError(f"module 'gsparse.sparse' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(PUBLIC_NAMES)
