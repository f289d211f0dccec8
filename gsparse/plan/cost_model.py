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
    stream : float
        The same once more where it does not stay in the cache between products (`MachineModel.cache`).
    position : float
        A stored position, padding included: instructions, and the gather from x.
    row : float
        A row.
    step : float
        A round of loads on the longest path of one thread, when nothing hides it.
    stride : float
        An entry, times its row's entries: neighbouring threads read so far apart.
    chunk : float
        A chunk of a row that is kept apart.
    sorted : float
        A row where rows are sorted: it is looked up, and written out of turn.
    coded, narrow : float
        A position whose value is looked up in a table; whose column counts from a base.
    run, run_entry : float
        A row whose pattern is not that of the row before, and an entry of it: what rows that follow share.
    setup : float
        The conversion from CSR, in products.
    """

    fixed: float
    byte: float
    stream: float = 0.0
    position: float = 0.0
    row: float = 0.0
    step: float = 0.0
    stride: float = 0.0
    chunk: float = 0.0
    sorted: float = 0.0
    coded: float = 0.0
    narrow: float = 0.0
    run: float = 0.0
    run_entry: float = 0.0
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
    cache : (float, float)
        Bytes of a product up to which all of them stay in the last cache, and from which on none does.
    examination : float
        Products times entries from which on looking for a way to read less pays: small matrices gain little, because
        their products are bound by the launch.
    """

    kernels: dict[str, KernelModel]
    long_length: int
    cache: tuple[float, float]
    examination: float


_US = 1e-6
# Fitted by non-negative least squares of relative errors, those near the best weighing most, to every format's times on
# the 50 matrices of `python -m gsparse bench --all`, float64 and float32 together, one NVIDIA H200. What gathers from x
# take beyond that, the same for all formats, was a term of each matrix there and is none here. `chunk` of csr_vector
# and blocked_ellpack and `fixed` of csr_vector are set by hand, for R-MAT and bfly_G. With any one matrix left out of
# the fit, the choice was within 5 % of the best candidate on 89 of 100.
GPU_MODEL = MachineModel(
    kernels={
        "csr_scalar": KernelModel(
            fixed=1.51 * _US, byte=1.98e-13, row=1.13e-12, step=0.113 * _US, stride=0.0783e-12, chunk=0.085e-9
        ),
        "csr_vector": KernelModel(
            fixed=1.45 * _US, byte=2.18e-13, position=0.413e-12, row=3.94e-12, step=0.0986 * _US, chunk=0.21e-9
        ),
        "csr_adaptive": KernelModel(fixed=2.19 * _US, byte=2.13e-13, position=2.06e-12, chunk=0.248e-9, setup=20.0),
        "csr_split": KernelModel(fixed=4.78 * _US, byte=1.39e-13, position=1.82e-12, row=6.64e-12, setup=20.0),
        "ellpack": KernelModel(
            fixed=1.42 * _US, byte=0.3e-13, stream=1.6e-13, row=3.59e-12, step=0.304 * _US, coded=0.182e-12, setup=6.0
        ),
        "blocked_ellpack": KernelModel(
            fixed=2.01 * _US,
            byte=0.49e-13,
            stream=1.8e-13,
            step=0.202 * _US,
            chunk=0.21e-9,
            sorted=6.01e-12,
            coded=0.483e-12,
            setup=8.0,
        ),
        "row_pattern": KernelModel(
            fixed=1.74 * _US, byte=1.02e-13, stream=0.98e-13, row=2.59e-12, step=0.231 * _US, setup=20.0
        ),
    },
    long_length=64,
    cache=(30e6, 55e6),
    examination=2.5e8,  # 0.5 ms of looking; 0.2 µs a product are gained at 500k entries
)
# Fitted in the same way to two cores of an AMD EPYC (Zen 4), float64: 7-point 100³, 27-point 64³, banded, R-MAT 18,
# G3_circuit, cnr-2000, USA-road-FLA, armadillo13k_elast_P1. `run` and `run_entry` by hand, for two patterns of seven
# entries in turns of 1 to 128 rows, bcsstk16 and bfly_G.
CPU_MODEL = MachineModel(
    kernels={
        "csr_scalar": KernelModel(fixed=2e-6, byte=2.6e-11, position=0.33e-9, narrow=0.1e-9),
        "csr_vector": KernelModel(fixed=2e-6, byte=2.6e-11, position=0.31e-9, row=0.6e-9, narrow=0.1e-9),
        "csr_adaptive": KernelModel(fixed=3e-6, byte=2.6e-11, position=0.33e-9, row=0.1e-9, setup=2.0),
        "csr_split": KernelModel(fixed=3e-6, byte=2.6e-11, position=0.34e-9, setup=2.0),
        "ellpack": KernelModel(fixed=2e-6, byte=2.9e-11, position=0.25e-9, row=0.3e-9, setup=20.0),
        "blocked_ellpack": KernelModel(fixed=2e-6, byte=2.6e-11, position=0.1e-9, coded=0.13e-9, setup=20.0),
        "row_pattern": KernelModel(
            fixed=2e-6, byte=2.6e-11, position=0.03e-9, coded=0.2e-9, run=3e-9, run_entry=0.6e-9, setup=60.0
        ),
    },
    long_length=128,
    cache=(30e6, 60e6),
    examination=6.5e7,
)
