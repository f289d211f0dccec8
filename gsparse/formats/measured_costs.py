"""The measured constants of every built-in format: one `KernelModel` for each format and kind of device.

All formats were timed in all encodings (``python asv_bench/fit_costs.py measure``), and the constants were fitted to
these times (``fit_costs.py fit``): non-negative least squares of relative errors, in which a format far from the best
one of its matrix counts little, and then small changes that let the choices lose less time. Gathers from x that miss
the cache take additional time. It is about the same for all formats, so the model has no term for it.

GPU
    One NVIDIA H200, float64 and float32: 36 assembled matrices (``gsparse bench --assembled``), 59 matrices from
    applications and 13 model problems. The choices are within 5 % of the best storage in 191 of 216 cases, and in 66 of
    72 for assembled matrices.
CPU
    Three cores of an Intel Xeon (Emerald Rapids) with one and two threads, float64: the assembled matrices, 31 matrices
    from applications and twelve model problems, and seven larger ones with two threads. All but the assembled and the
    larger ones were measured once more without gathers in hardware (`gsparse.kernels.cpu.vectors`), and one set of
    constants was fitted to all times. The choices are within 5 % of the best storage in 107 of 141 cases with gathers
    and in 73 of 86 without. Narrow columns take no time with gathers: with `narrow` = 0 for blocked ELLPACK, it would
    be 125 of 141, and 50 of 86.
"""

from __future__ import annotations

from gsparse.formats.costs import MICROSECOND, KernelModel

# By the name of the format, and by the kind of device.
MEASURED_COSTS: dict[str, dict[str, KernelModel]] = {
    "csr_scalar": {
        "gpu": KernelModel(
            fixed=1.81 * MICROSECOND,
            byte=4.44e-14,
            stream=1.61e-13,
            row=5.7e-12,
            step=0.299 * MICROSECOND,
            stride=3.42e-14,
            chunk=1.06e-10,
            coded=1.12e-13,
            narrow=5.32e-13,
            table=1.24e-12,
        ),
        "cpu": KernelModel(
            fixed=17.7 * MICROSECOND,
            byte=3.8e-11,
            stream=2.93e-11,
            position=2.02e-10,
            row=2.47e-09,
        ),
    },
    "csr_vector": {
        "gpu": KernelModel(
            fixed=1.85 * MICROSECOND,
            byte=6.1e-14,
            stream=1.81e-13,
            row=5.59e-12,
            step=0.567 * MICROSECOND,
            stride=4.51e-14,
            chunk=1.36e-10,
            coded=6.51e-13,
            narrow=2.36e-13,
            table=6.44e-13,
        ),
        "cpu": KernelModel(
            fixed=9.33 * MICROSECOND,
            byte=2.21e-11,
            stream=3.31e-11,
            position=9.15e-11,
            row=3.17e-09,
            chunk=6.54e-08,
            coded=3.79e-10,
            table=2.02e-11,
        ),
    },
    "ellpack": {
        "gpu": KernelModel(
            fixed=1.71 * MICROSECOND,
            byte=4.96e-14,
            stream=1.67e-13,
            row=3.1e-12,
            step=0.344 * MICROSECOND,
            coded=2.32e-13,
            narrow=3.95e-13,
            table=9.1e-13,
            setup=6.0,
        ),
        "cpu": KernelModel(
            fixed=8.64 * MICROSECOND,
            byte=1.32e-11,
            stream=3.21e-11,
            position=3.64e-10,
            stride=7.19e-13,
            coded=2.51e-10,
            narrow=6.48e-11,
            setup=20.0,
        ),
    },
    "blocked_ellpack": {
        "gpu": KernelModel(
            fixed=2.45 * MICROSECOND,
            byte=9.61e-14,
            stream=1.33e-13,
            step=0.166 * MICROSECOND,
            chunk=7.23e-10,
            sorted=5.43e-12,
            coded=4.38e-13,
            narrow=3.86e-13,
            table=2.88e-12,
            setup=8.0,
        ),
        "cpu": KernelModel(
            fixed=9.5 * MICROSECOND,
            byte=1.16e-11,
            stream=3.86e-11,
            position=2.71e-10,
            row=3.92e-10,
            chunk=2.73e-08,
            sorted=1.16e-09,
            coded=1.9e-10,
            narrow=3.33e-11,
            table=1.82e-10,
            setup=20.0,
        ),
    },
    "row_pattern": {
        "gpu": KernelModel(
            fixed=2 * MICROSECOND,
            byte=4.15e-14,
            stream=1.44e-13,
            position=2.39e-13,
            row=2.59e-12,
            step=0.278 * MICROSECOND,
            coded=6.58e-13,
            table=3.34e-13,
            setup=20.0,
        ),
        "cpu": KernelModel(
            fixed=8.26 * MICROSECOND,
            byte=3.19e-11,
            stream=3.76e-11,
            stride=2.69e-12,
            coded=3.12e-10,
            table=4.61e-11,
            run=5.17e-09,
            run_entry=6.33e-10,
            setup=60.0,
        ),
    },
}

# The constants of dense blocks on a GPU were fitted on an H100 and an H200 (``asv_bench/fit_costs.py blocks``):
# 27-point cubes with 2 to 8 unknowns a node, elasticity on tetrahedra and hexahedra, and armadillo13k_elast_P1, 39
# matrices in float64 and float32. Of 77 choices, 64 are within 5 % of the best format. The set-up is that of matrices
# of 5 million entries and more (21 to 37 products); those of 300 000 take 100 to 350, because the conversion is a dozen
# launches. On a CPU, the constants were chosen for the 25 matrices of these kinds with up to 4 million entries: 16 of
# the choices are within 5 % of the best format.
MEASURED_COSTS["bsr"] = {
    "gpu": KernelModel(
        fixed=3.9 * MICROSECOND,
        byte=1.14e-13,
        stream=1.25e-13,
        position=1.18e-13,
        row=2.51e-11,
        coded=4.18e-13,
        narrow=5.48e-13,
        table=1.5e-12,
        setup=30.0,
    ),
    "cpu": KernelModel(
        fixed=7 * MICROSECOND, byte=2.2e-11, stream=2.93e-11, position=1e-10, row=9e-09, coded=1e-09, setup=30.0
    ),
}

# The constants of row lanes on a GPU let the choices lose least time among 74 matrices of all kinds (H200): 65 of the
# choices are within 5 % of the best format. None of the constants counts the gathers from x, which take longest in
# matrices with hubs. On a CPU they were measured with the other formats.
MEASURED_COSTS["row_lanes"] = {
    "gpu": KernelModel(
        fixed=2.51 * MICROSECOND,
        byte=1.39e-13,
        stream=1.4e-13,
        position=3.21e-13,
        row=1.12e-11,
        coded=3.3e-13,
        table=8.76e-13,
        setup=40.0,
    ),
    "cpu": KernelModel(
        fixed=21.3 * MICROSECOND, byte=2.77e-12, stream=4.93e-11, position=5.24e-10, row=3.16e-09, setup=40.0
    ),
}
