"""The operators B whose Krylov spaces are built to find eigenvalues of A·x = λ·M·x, and how λ follows from them.

==============  ===========================  =====================  ============
transform       B                            inner product          λ
==============  ===========================  =====================  ============
product         A                            xᴴy                    ν
filter          p(A), p a polynomial         xᴴy                    p⁻¹(ν)
mass inverse    M⁻¹·A                        xᴴMy                   ν
shift-invert    (A - σM)⁻¹·M                 xᴴMy                   σ + 1/ν
buckling        (A - σM)⁻¹·A                 xᴴAy                   σν/(ν - 1)
Cayley          (A - σM)⁻¹·(A + σM)          xᴴMy                   σ(ν+1)/(ν-1)
==============  ===========================  =====================  ============

ν is an eigenvalue of B. SciPy's `which` and `tol` refer to ν, but for a filter they refer to λ, because the caller does
not see the filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gsparse.device.dtypes import Array
from gsparse.kernels.steps import Call
from gsparse.linalg.eigen.krylov_space import KrylovSpace
from gsparse.linalg.operators import Apply


class SingularShiftError(ArithmeticError):
    """The shift is so close to an eigenvalue that rounding errors hide the other eigenvalues.

    Attributes
    ----------
    next_distance : float
        Estimate of the distance from the shift to the next eigenvalue; infinity if unknown.
    side : {1, -1}
        1 if the next eigenvalue is probably greater than the shift, -1 if it is probably smaller.
    """

    def __init__(self, next_distance: float = np.inf, side: int = 1) -> None:
        super().__init__()
        self.next_distance, self.side = next_distance, side


@dataclass(eq=False)
class Transform:
    """The operator B = A, and the base class of the other operators.

    Attributes
    ----------
    product : Apply
        The product with A.
    is_resident : bool
        Whether products with B only queue work, without waiting for the host.
    """

    product: Apply
    is_resident: bool

    def calls(self, space: KrylovSpace) -> list[Call]:
        """Return the calls that compute u = B·w and, if the space is Hermitian, the sum `wu` = <w, u>."""
        return space.dot_calls(self.product)

    def values(self, nu: Array) -> Array:
        """Return, for eigenvalues ν of B, the values to which `which` and `tol` refer."""
        return nu

    def inverse_values(self, values: Array) -> Array:
        """Return the eigenvalues ν of B for which `values` returned `values`."""
        return values

    def errors(self, nu: Array, residuals: Array) -> Array:
        """Return the errors of `values(nu)`, from the residual norms of the eigenpairs of B."""
        return residuals

    def eigenvalues(self, values: Array) -> Array:
        """Return the eigenvalues λ of the problem for results of `values`."""
        return values

    def scale(self, scale: float) -> float:
        """Return the magnitude to which rounding errors of `values` are relative; `scale` is the norm of B."""
        return scale


@dataclass(eq=False)
class Solve(Transform):
    """An operator B that contains a solve with M or A - σM.

    Attributes
    ----------
    solve : Apply
        The product with M⁻¹, or with (A - σM)⁻¹.
    kind : {"mass", "normal", "buckling", "cayley"}
    sigma : complex
    mass : Apply or None
        The product with M, if the inner product of the space is not that of M.
    noise : float
        Eigenvalues closer to `sigma` than this may be equal to it, because of rounding errors; 0 to skip this check.
    """

    solve: Apply | None = None
    kind: str = "normal"
    sigma: complex = 0.0
    mass: Apply | None = None
    noise: float = 0.0

    def calls(self, space: KrylovSpace) -> list[Call]:
        solve, product, w, z, u = self.solve, self.product, space.w, space.z, space.u
        assert solve is not None
        if self.kind in ("normal", "buckling") and self.mass is None:  # z holds M·w or A·w already
            calls: list[Call] = [lambda: solve(z, u)]
        else:
            t = space.space.device.xp.zeros(space.space.size, space.space.dtype)
            first = product if self.mass is None else self.mass

            def right_hand_side() -> None:
                first(w, t)
                if self.kind == "cayley":
                    t[...] += space.space.dtype.type(self.sigma) * z

            calls = [right_hand_side, lambda: solve(t, u)]
        return [*calls, space.dot()] if space.hermitian else calls

    def check_shift(self, nu: Array, epsilon: float) -> None:
        """Raise SingularShiftError if an eigenvalue is so close to the shift that rounding errors hide the others.

        Parameters
        ----------
        nu : ndarray
            Eigenvalues of B.
        epsilon : float
            The machine precision.
        """
        if self.kind == "mass" or not self.noise:
            return
        factor = {"normal": 1.0, "buckling": self.sigma, "cayley": 2 * self.sigma}[self.kind]
        with np.errstate(divide="ignore", invalid="ignore"):
            offsets = np.nan_to_num(factor / (nu if self.kind == "normal" else nu - 1))  # λ - σ
        offsets = offsets[np.argsort(abs(offsets))]
        if len(offsets) > 1 and abs(offsets[0]) < epsilon**0.3 * abs(offsets[1]):
            raise SingularShiftError(float(abs(offsets[1])), -1 if offsets[1].real < 0 else 1)
        if len(offsets) == 1 and abs(offsets[0]) <= self.noise:
            raise SingularShiftError

    def eigenvalues(self, values: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.kind == "normal":
                return self.sigma + 1 / values
            if self.kind == "buckling":
                return self.sigma * values / (values - 1)
            if self.kind == "cayley":
                return self.sigma * (values + 1) / (values - 1)
        return values


@dataclass(eq=False)
class Filter(Transform):
    """A Chebyshev polynomial of A that is small on the interval of unwanted eigenvalues, and grows quickly outside.

    A step of the Krylov space then takes `degree` products, but far fewer basis vectors are needed, and for a sparse A
    most of the time is spent reading the basis. The degree is odd, so that eigenvalues below and above the interval
    have values of opposite sign.

    Attributes
    ----------
    low, high : float
        The interval of the unwanted eigenvalues.
    degree : int
        Odd, at least 3.
    ends : (float, float)
        Estimates of the smallest and the largest eigenvalue.
    """

    low: float = -1.0
    high: float = 1.0
    degree: int = 3
    ends: tuple[float, float] = (-1.0, 1.0)

    @property
    def _center(self) -> float:
        return (self.low + self.high) / 2

    @property
    def _halfwidth(self) -> float:
        return (self.high - self.low) / 2

    def calls(self, space: KrylovSpace) -> list[Call]:
        device, dtype, size = space.space.device, space.space.dtype, space.space.size
        t, b = (device.xp.zeros(size, dtype) for _ in range(2))
        inverse, product = 1 / self._halfwidth, self.product
        space.state.set(center=self._center, inverse=inverse, twice=2 * inverse)

        def term(name: str, x: Array, y: Array) -> list[Call]:
            return [lambda: product(x, t), space.step(name, t=t, x=x, y=y, w=space.w)]

        # The odd terms of the recurrence are in u, the even ones in b.
        calls = [*term("first", space.w, space.u), *term("second", space.u, b)]
        for degree in range(3, self.degree + 1):
            x, y = (b, space.u) if degree % 2 else (space.u, b)
            calls += term("last" if degree == self.degree else "next", x, y)
        return calls

    def _place(self, values: Array) -> Array:
        return (np.asarray(values) - self._center) / self._halfwidth

    def inverse_values(self, values: Array) -> Array:
        z = self._place(values)
        outside = np.sign(z) * np.cosh(self.degree * np.arccosh(np.maximum(abs(z), 1)))
        return np.where(abs(z) > 1, outside, np.cos(self.degree * np.arccos(np.clip(z, -1, 1))))

    def values(self, nu: Array) -> Array:
        """Return estimates of the eigenvalues of A; for an eigenvalue in the interval, the center of the interval."""
        z = np.sign(nu) * np.cosh(np.arccosh(np.maximum(abs(nu), 1)) / self.degree)
        return np.where(abs(nu) > 1, self._center + self._halfwidth * z, self._center)

    def errors(self, nu: Array, residuals: Array) -> Array:
        """Return estimates of the residual norms with respect to A.

        Components of nearby eigenvectors are divided by the slope of the polynomial. Components of eigenvectors in the
        interval are divided by the value of the polynomial relative to the width of the spectrum. The larger estimate
        counts.
        """
        size = np.maximum(abs(nu), 1 + 1e-12)
        angle = np.arccosh(size) / self.degree
        slope = self.degree * np.sinh(self.degree * angle) / np.sinh(angle) / self._halfwidth
        spread = max(self.ends[1], self.high) - min(self.ends[0], self.low)
        return residuals / np.minimum(slope, size / spread)

    def scale(self, scale: float) -> float:
        return max(abs(self.low), abs(self.high), *map(abs, self.ends))


Host = npt.NDArray[Any]


# Vectors that are moved: a pass of the recurrence reads three and writes one, a product reads one and writes one.
_RECURRENCE_COST, _PRODUCT_COST = 4.0, 2.0
# Smallest and largest degrees: in the first run, where the interval is a guess, and in later runs, where it is known.
_FIRST_DEGREES, _LATER_DEGREES = (3, 15), (5, 31)
# A filter must save at least this share of the time of a step.
_SMALLEST_GAIN = 0.25
# The largest value of a filter at the ends of the spectrum. It amplifies the rounding errors of eigenpairs inside.
_LARGEST_VALUE = 1e4
# The gap between the interval and the last wanted eigenvalue, divided by the distance between the first and the last
# wanted eigenvalue.
_MARGIN = 0.3


@dataclass(frozen=True)
class FilterRule:
    """The decision about filters for one problem.

    Attributes
    ----------
    transform : Transform
        The product with A.
    matrix_cost : float
        Bytes of the matrix divided by bytes of a vector.
    tol : float
        The relative tolerance of the problem.
    epsilon : float
        The relative rounding error of a vector's elements.
    """

    transform: Transform
    matrix_cost: float
    tol: float
    epsilon: float

    def _degree(self, num_vectors: int, bounds: tuple[int, int], factor: float) -> int:
        """Return the degree whose products take `factor` times as long as a step; 0 if a filter does not save time."""
        step, product = 0.75 * num_vectors + 5, self.matrix_cost + _PRODUCT_COST
        term = product + _RECURRENCE_COST
        if term > (1 - _SMALLEST_GAIN) * (step + product):
            return 0
        low, high = bounds
        return int(np.clip(factor * step / term, low, high)) // 2 * 2 + 1

    def first(self, values: Array, errors: Array, count: int, which: str) -> Filter | None:
        """Return the filter for the rest of the first run, after a cycle without a filter; None for no filter.

        Parameters
        ----------
        values, errors : array
            Ritz values from the most wanted to the least, and the norms of their residuals.
        count : int
            Number of wanted values.
        which : str
        """
        degree = self._degree(len(values), _FIRST_DEGREES, 2.0)
        unwanted = values[max(count + 2, len(values) // 3) :]
        if len(unwanted) < 2 or not degree:
            return None
        lowest, highest = np.argmin(values), np.argmax(values)
        ends = float(values[lowest] - errors[lowest]), float(values[highest] + errors[highest])
        if which == "LM":
            cut = float(abs(unwanted).max())
            return self._make((-cut, cut), ends, degree)
        interval = {"LA": (ends[0], unwanted.max()), "SA": (unwanted.min(), ends[1])}
        return self._make(interval.get(which, (unwanted.min(), unwanted.max())), ends, degree)

    def later(self, locked: Array, ends: tuple[float, float], which: str, num_vectors: int) -> Filter | None:
        """Return the filter (or None) for a later run, which searches among and beyond the locked eigenvalues."""
        degree = self._degree(num_vectors, _LATER_DEGREES, 6.0)
        if not degree:
            return None
        if which == "LM":
            sizes = abs(locked)
            cut = float(sizes.min() - _MARGIN * (sizes.max() - sizes.min()))
            return self._make((-cut, cut), ends, degree)
        low, high = ends
        upper, lower = _sides(locked, which)
        if len(upper):
            high = upper.min() - _MARGIN * (max(upper.max(), ends[1]) - upper.min())
        if len(lower):
            low = lower.max() + _MARGIN * (lower.max() - min(lower.min(), ends[0]))
        return self._make((low, high), ends, degree)

    def _make(self, interval: Sequence[float], ends: tuple[float, float], degree: int) -> Filter | None:
        """Return a filter of at most this degree whose values are not too large; None if the interval is too narrow."""
        low, high = max(float(interval[0]), ends[0]), min(float(interval[1]), ends[1])
        # The interval must not be as narrow as rounding errors.
        if not high - low > 1e-3 * (ends[1] - ends[0]):
            return None
        largest = float(np.clip(0.01 * max(self.tol, self.epsilon) / self.epsilon, 10, _LARGEST_VALUE))
        farthest = max(ends[1] - (low + high) / 2, (low + high) / 2 - ends[0]) / ((high - low) / 2)
        if farthest <= 1:
            return None
        while degree > 3 and np.cosh(degree * np.arccosh(farthest)) > largest:
            degree -= 2
        transform = self.transform
        return Filter(transform.product, transform.is_resident, low=low, high=high, degree=degree, ends=ends)


def _sides(locked: Array, which: str) -> tuple[Array, Array]:
    """Return the locked values at the upper end of the spectrum, and those at the lower end."""
    if which == "LA":
        return locked, locked[:0]
    if which == "SA":
        return locked[:0], locked
    middle = (locked.max() + locked.min()) / 2
    return locked[locked > middle], locked[locked <= middle]
