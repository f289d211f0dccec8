"""What products take on a class of device: the constants `gsparse.plan` predicts with, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CPU_MODEL", "GPU_MODEL", "KernelModel", "MachineModel"]


@dataclass(frozen=True)
class KernelModel:
    """What one product takes: a sum of these, each in seconds, times how often it comes.

    Attributes
    ----------
    fixed : float
        However small the matrix.
    byte : float
        A byte moved.
    position : float
        A stored position, padding included: instructions, and the gather from x.
    row : float
        A row.
    thread : float
        A thread, where several share a row.
    step : float
        A round of loads on the longest path of one thread, when nothing hides it.
    long_rows : float
        Once, where rows are kept apart.
    coded, narrow : float
        A position whose value is looked up in a table; whose column counts from a base.
    setup : float
        The conversion from CSR, in products.
    """

    fixed: float
    byte: float
    position: float = 0.0
    row: float = 0.0
    thread: float = 0.0
    step: float = 0.0
    long_rows: float = 0.0
    coded: float = 0.0
    narrow: float = 0.0
    setup: float = 0.0


@dataclass(frozen=True)
class MachineModel:
    """The constants of one class of device; the ratios between kernels matter more than the absolute times.

    Attributes
    ----------
    kernels : dict
        `KernelModel` by format name.
    long_length : int
        Entries above which slices keep a row apart.
    """

    kernels: dict[str, KernelModel]
    long_length: int


_US = 1e-6
# Fitted by non-negative least squares of relative errors to `python -m gsparse bench --all`: one NVIDIA H200, float64.
GPU_MODEL = MachineModel(
    kernels={
        "csr_scalar": KernelModel(
            fixed=0.98 * _US, byte=2.01e-13, position=1.98e-12, step=0.22 * _US, long_rows=1.35 * _US, narrow=2.36e-12
        ),
        "csr_vector": KernelModel(
            fixed=2.06 * _US, byte=1.65e-13, position=1.34e-12, thread=1.27e-12, step=0.12 * _US, long_rows=1.15 * _US
        ),
        "csr_adaptive": KernelModel(
            fixed=2.95 * _US, byte=0.3e-13, position=4.4e-12, step=0.003 * _US, long_rows=0.9 * _US, setup=20.0
        ),
        "csr_split": KernelModel(fixed=6.1 * _US, byte=0.7e-13, position=3.4e-12, row=5.1e-12, setup=20.0),
        "ellpack": KernelModel(
            fixed=0.98 * _US, byte=2.11e-13, step=0.42 * _US, coded=0.74e-12, narrow=0.6e-12, setup=6.0
        ),
        "blocked_ellpack": KernelModel(
            fixed=1.74 * _US,
            byte=1.81e-13,
            position=0.83e-12,
            step=0.39 * _US,
            coded=0.66e-12,
            narrow=0.07e-12,
            setup=8.0,
        ),
        "row_pattern": KernelModel(
            fixed=2.0 * _US, byte=1.79e-13, position=0.53e-12, row=0.83e-12, step=0.37 * _US, setup=20.0
        ),
    },
    long_length=64,
)
# Fitted in the same way to two cores of an AMD EPYC (Zen 4), float64: 7-point 100³, 27-point 64³, banded, R-MAT 18,
# G3_circuit, cnr-2000, USA-road-FLA, armadillo13k_elast_P1.
CPU_MODEL = MachineModel(
    kernels={
        "csr_scalar": KernelModel(fixed=2e-6, byte=2.6e-11, position=0.33e-9, narrow=0.1e-9),
        "csr_vector": KernelModel(fixed=2e-6, byte=2.6e-11, position=0.31e-9, row=0.6e-9, narrow=0.1e-9),
        "csr_adaptive": KernelModel(fixed=3e-6, byte=2.6e-11, position=0.33e-9, row=0.1e-9, setup=2.0),
        "csr_split": KernelModel(fixed=3e-6, byte=2.6e-11, position=0.34e-9, setup=2.0),
        "ellpack": KernelModel(fixed=2e-6, byte=2.9e-11, position=0.25e-9, row=0.3e-9, setup=20.0),
        "blocked_ellpack": KernelModel(fixed=2e-6, byte=2.6e-11, position=0.1e-9, coded=0.13e-9, setup=20.0),
        "row_pattern": KernelModel(fixed=2e-6, byte=2.6e-11, position=0.03e-9, coded=0.2e-9, setup=60.0),
    },
    long_length=128,
)
