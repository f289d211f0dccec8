"""The libraries that compute factorizations. A new one is a file like `superlu.py` and one name in `LIBRARIES`."""

from __future__ import annotations

from gsparse.device.base import Device
from gsparse.errors import FactorizationError
from gsparse.linalg.direct.cholmod import CHOLMOD
from gsparse.linalg.direct.cudss import CUDSS
from gsparse.linalg.direct.factors import MatrixKind
from gsparse.linalg.direct.registry import FactorLibrary
from gsparse.linalg.direct.superlu import SUPERLU

# By name, in the order in which they are tried: the fastest first.
LIBRARIES: dict[str, FactorLibrary] = {library.name: library for library in (CUDSS, CHOLMOD, SUPERLU)}


def choose_library(name: str | None, device: Device, kind: MatrixKind) -> tuple[FactorLibrary, str]:
    """Return the library of this name, or the first one that can factorize the matrix, and why others could not.

    Raises
    ------
    ValueError
        If no library has this name.
    FactorizationError
        If the library cannot factorize such a matrix.
    """
    if name is not None:
        if name not in LIBRARIES:
            raise ValueError(f"library must be one of {', '.join(map(repr, LIBRARIES))} or None, got {name!r}")
        obstacle = LIBRARIES[name].obstacle(device, kind)
        if obstacle:
            raise FactorizationError(f"{LIBRARIES[name].title} cannot factorize this matrix: {obstacle}")
        return LIBRARIES[name], ""
    obstacles: list[str] = []
    for library in LIBRARIES.values():
        obstacle = library.obstacle(device, kind)
        if not obstacle:
            return library, "; ".join(obstacles)
        obstacles.append(f"{library.title}: {obstacle}")
    raise FactorizationError(f"no library can factorize this matrix: {'; '.join(obstacles)}")
