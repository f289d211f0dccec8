"""What a library of factorizations tells about itself (`gsparse.linalg.direct.libraries` lists all of them)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gsparse.device.base import Device
from gsparse.linalg.direct.factors import FactorOptions, Factors, MatrixKind
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix


@dataclass(frozen=True)
class FactorLibrary:
    """A library that computes factorizations.

    Attributes
    ----------
    name : str
        The value of the argument `library`.
    title : str
        The name that its authors use.
    obstacle : callable
        ``obstacle(device, kind)`` returns why the library cannot factorize a matrix of this kind on this device, with
        a remedy if there is one. The text is empty if it can.
    runs_on_host : bool
        Whether the factors are computed on the host, where large ones take long.
    factorize : callable
        ``factorize(matrix, kind, options)`` returns the factors.
    """

    name: str
    title: str
    runs_on_host: bool
    obstacle: Callable[[Device, MatrixKind], str]
    factorize: Callable[[SquareMatrix, MatrixKind, FactorOptions], Factors]
