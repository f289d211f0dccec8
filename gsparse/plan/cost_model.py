"""The constants of a class of device that do not depend on the storage format.

Those of each format stand in the format's own file (`gsparse.formats.costs` says how they were measured).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CPU_MODEL", "GPU_MODEL", "MACHINE_MODELS", "MachineModel"]


@dataclass(frozen=True)
class MachineModel:
    """The constants of one class of device; the ratios between kernels matter more than the absolute times.

    Attributes
    ----------
    kind : str
        The kind of device, by which `StorageFormat.costs` has the constants of each kernel.
    long_length : int
        Number of entries above which slices keep a row apart.
    cache : (float, float)
        Bytes of a product up to which all of them stay in the last-level cache, and from which on none does.
    examination : float
        Products multiplied by entries, from which on it pays to look for a way to read less. Small matrices gain
        little, because their products are bound by the launch.
    """

    kind: str
    long_length: int
    cache: tuple[float, float]
    examination: float


GPU_MODEL = MachineModel(
    kind="gpu",
    long_length=64,
    cache=(30e6, 55e6),
    examination=2.5e8,  # The examination takes 0.5 ms, and a product with 500 000 entries gains 0.2 µs.
)
CPU_MODEL = MachineModel(kind="cpu", long_length=128, cache=(30e6, 60e6), examination=6.5e7)

# By the kind of device.
MACHINE_MODELS = {"cpu": CPU_MODEL, "gpu": GPU_MODEL}
