"""The constants of a kind of device that do not depend on the storage format.

The constants of a format are in its file in `gsparse.products`; `gsparse.formats.costs` says how they were measured.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MachineModel:
    """The constants of one kind of device.

    Attributes
    ----------
    kind : str
        The kind of device, which is the key of `StorageFormat.costs`.
    Rows with more entries than this are long. They are stored outside of the slices if slices of all rows would need
    much padding.
    cache : (float, float)
        Two numbers of bytes. A product that reads at most the first number finds all of it in the last-level cache at
        the next product; a product that reads at least the second number finds nothing.
    min_analysis_work : float
        The plan looks for encodings with fewer bytes if the number of expected products times the number of entries is
        at least this. A small matrix gains little, because the launch takes most of the time of its products.
    column_byte : float
        Seconds per byte of the matrix, in products with several columns. The time for X and Y themselves is left out,
        because it is the same for all formats.
    Seconds per byte read from X, where repeated reads count each time. On a CPU, threads share this work.
    """

    kind: str
    long_length: int
    cache: tuple[float, float]
    min_analysis_work: float
    column_byte: float
    column_gather: float


# The last two constants of each model were measured with a 27-point matrix of 3 x 3 blocks and 32 columns, on an H200
# and on two cores of an EPYC (`asv_bench/measure_blocks.py`).
GPU_MODEL = MachineModel(
    kind="gpu",
    long_length=64,
    cache=(30e6, 55e6),
    min_analysis_work=2.5e8,  # 250 000 entries, for the default of 1000 products
    column_byte=2.5e-13,
    column_gather=1.5e-14,
)
CPU_MODEL = MachineModel(
    kind="cpu", long_length=128, cache=(30e6, 60e6), min_analysis_work=2e7, column_byte=6e-11, column_gather=5e-11
)

# The models by the kind of device.
MACHINE_MODELS = {"cpu": CPU_MODEL, "gpu": GPU_MODEL}
