"""List every kernel instantiation that may be needed at run time, for the tests that compile all of them."""

from __future__ import annotations

from gsparse.kernels.gpu import KERNELS


def instantiations(lanes: int) -> list[tuple[str, str]]:
    """List (source file, name expression) of every kernel for a warp of `lanes` lanes; each module lists its own."""
    return [kernel for module in vars(KERNELS).values() for kernel in module.instantiations(lanes)]
