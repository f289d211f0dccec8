"""Why conjugate gradients or MINRES may have failed: operators that are not Hermitian, as a few products show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gsparse.device.dtypes import Array
from gsparse.linalg.krylov.linear_system import System
from gsparse.linalg.operators import Operator
from gsparse.linalg.result import SolveResult, more_iterations

__all__ = ["explained", "more_for_hermitian", "not_hermitian"]

# Of the vectors that an operator is multiplied by. Each pair of them misses a small asymmetry by a chance of a percent.
_FREQUENCIES = (np.sqrt(2), np.sqrt(3), np.sqrt(5))


def explained(result: SolveResult, system: System) -> SolveResult:
    """Advise by the operators that are not Hermitian, where a method that needs them to be has failed. Synchronizes.

    Within `System.solving`, and on all ranks that share the vectors.
    """
    if result.info == 0 or system.nonfinite():
        return result
    names = not_hermitian(system)
    if not names:
        return result
    word = "Hermitian" if system.dtype.kind == "c" else "symmetric"
    advice = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not {word}: use gmres or bicgstab"
    if names == ["M"]:
        advice += f", or a preconditioner that is {word}: jacobi(A), ic0(A), isai(A)"
    return replace(result, advice=f"{advice}.")


def more_for_hermitian(system: System) -> str:
    """Return the advice for a method that reached its limit and needs a Hermitian preconditioner."""
    return more_iterations("iterations (maxiter)", "jacobi(A), ic0(A), amg(A)", system.M is not None)


def not_hermitian(system: System) -> list[str]:
    """Name the operators of a system, A and M, that clearly are not Hermitian. Synchronizes."""
    operators = {"A": system.A} if system.M is None else {"A": system.A, "M": system.M}
    return [name for name, operator in operators.items() if not _is_hermitian(system, operator)]


def _probe(system: System, size: int, frequency: float) -> Array:
    """Return exp(i·frequency·k²) for k = 0, 1, ..., of which √2 times the real part serves for real systems.

    Such a chirp has all frequencies alike, as random numbers have, and is made on the device.
    """
    xp, dtype = system.device.xp, system.dtype
    phase = frequency * xp.arange(size, dtype=np.float64) ** 2
    values = xp.exp(1j * phase) if dtype.kind == "c" else np.sqrt(2) * xp.cos(phase)
    return values.astype(dtype)


def _is_hermitian(system: System, operator: Operator) -> bool:
    """Compare <u, B·v> with the conjugate of <v, B·u> for vectors that look random, with elements of variance 1.

    The difference has about the size of B - Bᴴ in the Frobenius norm, the lengths of the products that of B. A quarter
    of the digits is far above what rounding leaves, also in a preconditioner that computes in single precision.
    """
    device, dtype, size = system.device, system.dtype, operator.shape[0]
    xp, probes = device.xp, [_probe(system, size, frequency) for frequency in _FREQUENCIES]
    apply, products = operator.bind(device, dtype), [xp.zeros(size, dtype) for _ in probes]
    for probe, product in zip(probes, products, strict=True):
        apply(probe, product)
    dots = np.array([[complex(xp.vdot(u, Bv)) for Bv in products] for u in probes])  # synchronizes
    squares = np.array([float(xp.vdot(Bv, Bv).real) for Bv in products])  # synchronizes
    total = system.total(np.concatenate([dots.real.ravel(), dots.imag.ravel(), squares]))
    real, imaginary = total[: 2 * dots.size].reshape(2, *dots.shape)
    with np.errstate(invalid="ignore", over="ignore"):  # (what is not finite is not blamed on symmetry)
        gram = real + 1j * imaginary
        mismatch = float(np.abs(gram - gram.conj().T).max())
        length = float(np.sqrt(total[2 * dots.size :].mean()))
    return not mismatch > float(np.finfo(dtype).eps) ** 0.25 * length
