"""Find the shape of a soap film in a bent frame by Newton's method: scikit-fem assembles, the device solves.

The height u of the film over the unit square minimizes its area, so that

    div( grad u / sqrt(1 + |grad u|²) ) = 0,

and the frame sets u on the boundary. In each step of Newton's method, scikit-fem computes the Jacobian, whose structure
never changes. `A.with_data` takes its values to the device, `A[free][:, free]` selects the rows and columns of the free
points there, and conjugate gradients solve for the correction. With gsparse this runs inside `gsparse.strict()`, which
raises an error if any of these operations would run on the host.

    python examples/soap_film.py
    python examples/soap_film.py --n 400
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from skfem import Basis, BilinearForm, ElementTriP1, LinearForm, MeshTri
from skfem.helpers import dot, grad

import gsparse
import gsparse.linalg


@BilinearForm
def jacobian(u: Any, v: Any, w: Any) -> Any:
    """Return the derivative of the residual at the film ``w["film"]`` in the direction u."""
    slope = grad(w["film"])
    stretch = 1 + dot(slope, slope)
    return (dot(grad(u), grad(v)) - dot(slope, grad(u)) * dot(slope, grad(v)) / stretch) / np.sqrt(stretch)


@LinearForm
def residual(v: Any, w: Any) -> Any:
    """Return the equation of the film, tested with v."""
    slope = grad(w["film"])
    return dot(slope, grad(v)) / np.sqrt(1 + dot(slope, slope))


def stretch_film(basis: Basis, make: Callable[[Any], Any], renew: Callable[..., Any], linalg: Any) -> tuple[Any, float]:
    """Return the height of the film at all points, and the seconds that the linear algebra took.

    Parameters
    ----------
    basis : Basis
    make : callable
        ``make(J)`` converts SciPy's matrix J to the kind of matrix that `linalg` solves with.
    renew : callable
        ``renew(A, values)`` returns a matrix of the structure of A with other values.
    linalg : module
        `scipy.sparse.linalg` or `gsparse.linalg`.
    """
    x, y = basis.doflocs
    free = basis.complement_dofs(basis.get_dofs())
    film = 0.5 * np.sin(np.pi * (x + y))
    film[free] = 0.0
    A, seconds = None, 0.0
    for number in range(20):
        # The first step linearizes the equation at a flat film, and so begins with the solution of Laplace's equation.
        at = basis.interpolate(film if number else 0 * film)
        entries = jacobian.coo_data(basis, film=at)
        # Unlike `jacobian.assemble`, this keeps entries that happen to be 0, so that the structure stays the same.
        J = scipy.sparse.coo_array((entries.data, tuple(entries.indices)), shape=entries.shape).tocsr()
        r = residual.assemble(basis, film=at) if number else J @ film
        begin = time.perf_counter()
        A = make(J) if A is None else renew(A, J.data)
        step, info = linalg.cg(A[free][:, free], -r[free], rtol=1e-10, atol=0.0, maxiter=10_000)
        seconds += time.perf_counter() - begin
        if info:
            raise SystemExit("conjugate gradients did not converge within 10,000 iterations: try a smaller --n")
        film[free] += step
        if abs(step).max() < 1e-9:
            return film, seconds
    raise SystemExit("Newton's method did not converge")


def plot(basis: Basis, film: Any, file: str) -> None:
    """Draw the film over the unit square."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 4), layout="constrained")
    axes: Any = figure.add_subplot(projection="3d")
    x, y = basis.doflocs
    axes.plot_trisurf(x, y, film, triangles=basis.mesh.t.T, cmap="viridis")
    axes.set_title("the film in its frame")
    figure.savefig(file, dpi=130)


def main() -> None:
    """Find the film with SciPy and with gsparse, and compare the heights and the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100, help="cells along each side")
    parser.add_argument("--device", default="auto", help="auto, cpu, gpu or gpu:N")
    parser.add_argument("--plot", metavar="FILE", help="save a picture as .png or .svg; needs matplotlib")
    options = parser.parse_args()

    line = np.linspace(0, 1, options.n + 1)
    basis = Basis(MeshTri.init_tensor(line, line), ElementTriP1())
    films = []
    for name, make, renew, linalg in (
        (
            "SciPy",
            scipy.sparse.csr_array,
            lambda A, values: scipy.sparse.csr_array((values, A.indices, A.indptr), shape=A.shape),
            scipy.sparse.linalg,
        ),
        (
            "gsparse",
            lambda J: gsparse.GpuSparseMatrix(J, device=options.device),
            lambda A, values: A.with_data(values),
            gsparse.linalg,
        ),
    ):
        with gsparse.strict() if name == "gsparse" else nullcontext():
            stretch_film(basis, make, renew, linalg)  # The first call compiles kernels.
            film, seconds = stretch_film(basis, make, renew, linalg)
        films.append(film)
        print(f"{name:8} {film.size} points, {seconds:.3f} s for linear algebra, {film.max():.4f} at the highest point")
    print(f"the films differ by {abs(films[0] - films[1]).max():.1e}")

    if options.plot:
        plot(basis, films[1], options.plot)


if __name__ == "__main__":
    main()
