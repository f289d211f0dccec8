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
    long_length : int
        Rows with more entries than this are long rows. They are stored outside of slices if slices of all rows would
        need much padding.
    cache : (float, float)
        Up to the first number of bytes, everything that a product reads stays in the last-level cache until the next
        product. From the second number on, nothing does.
    min_analysis_work : float
        Smallest number of expected products times number of entries with which the plan analyzes the matrix in order to
        store it in fewer bytes. A small matrix gains little, because the launch takes most of the time of its products.
    column_byte : float
        Seconds per byte of the matrix, in products with several columns. The time for X and Y themselves is left out,
        because it is the same for all formats.
    column_gather : float
        Seconds per byte of X, counted each time that it is read. On a CPU, threads share this work.
    """

    kind: str
    long_length: int
    cache: tuple[float, float]
    min_analysis_work: float
    column_byte: float
    column_gather: float


# The constants of products with columns are those of a 27-point matrix of 3 x 3 blocks with 32 columns
# (`asv_bench/measure_blocks.py`). GPU: 48³ nodes on an H200, CSR 231 µs, blocks 122 µs. CPU: 30³ nodes on two cores of
# an EPYC, CSR 41 ms, blocks 17 ms.
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
