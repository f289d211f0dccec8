"""The constants of a kind of device that do not depend on the storage format.

`gsparse.formats.measured_costs` has the constants of each format, and says how they were measured.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CPU_MODEL", "GPU_MODEL", "MACHINE_MODELS", "MachineModel"]


@dataclass(frozen=True)
class MachineModel:
    """The constants of one kind of device.

    Attributes
    ----------
    kind : str
        The kind of device, which is the key of `StorageFormat.costs`.
    long_length : int
        Rows with more entries than this are not stored in slices.
    cache : (float, float)
        Up to the first number of bytes, everything that a product reads stays in the last-level cache until the next
        product. From the second number on, nothing does.
    min_analysis_work : float
        Expected products multiplied by entries, from which on the plan analyzes the matrix in order to store it in
        fewer bytes. A small matrix gains little, because the launch takes most of the time of its products.
    """

    kind: str
    long_length: int
    cache: tuple[float, float]
    min_analysis_work: float


GPU_MODEL = MachineModel(
    kind="gpu",
    long_length=64,
    cache=(30e6, 55e6),
    min_analysis_work=2.5e8,  # The analysis takes 0.5 ms, and a product with 500 000 entries gains 0.2 µs.
)
CPU_MODEL = MachineModel(kind="cpu", long_length=128, cache=(30e6, 60e6), min_analysis_work=2e7)

# The models by the kind of device.
MACHINE_MODELS = {"cpu": CPU_MODEL, "gpu": GPU_MODEL}
