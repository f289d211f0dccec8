"""The two backends implement one contract: the same names with the same signatures, which compute the same."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gsparse.kernels import contract, cpu, gpu
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.gpu.catalogue import instantiations
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.solve_state import SolveState

BACKENDS = [pytest.param(cpu, id="cpu"), pytest.param(gpu, id="gpu")]
MEMBERS = {
    name: member
    for family in contract.Kernels.__mro__
    for name, member in vars(family).items()
    if family.__module__.startswith("gsparse.kernels.") and not name.startswith("_")
}
FUNCTIONS = {name: member for name, member in MEMBERS.items() if inspect.isfunction(member)}


def parameters(function) -> list[tuple[str, inspect._ParameterKind, object]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values() if p.name != "self"]


def test_the_contract_lists_every_family_of_kernels():
    assert {"SPMV", "csr_spmm", "survey", "factorize_ilu0", "scatter_add", "bind_step", "LONG_LENGTH"} <= set(MEMBERS)
    assert len(FUNCTIONS) >= 20
    files = sorted(Path(contract.__file__).parent.glob("*.py"))
    families = {name for path in files for name in re.findall(r"^class (\w+Kernels)\(", path.read_text(), re.MULTILINE)}
    assert families <= {family.__name__ for family in contract.Kernels.__mro__}
    assert len(families) >= 10


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_exports_the_contract_and_its_formats_and_nothing_else(backend: ModuleType):
    assert set(backend.__all__) == set(MEMBERS) | set(backend.SPMV)
    assert all(hasattr(backend, name) for name in backend.__all__)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_kernel_has_the_signature_that_the_contract_gives_it(name: str, backend: ModuleType):
    assert parameters(getattr(backend, name)) == parameters(FUNCTIONS[name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_products_are_bound_in_the_same_way_in_every_format(backend: ModuleType):
    assert list(cpu.SPMV) == list(gpu.SPMV)
    for bind in backend.SPMV.values():
        assert parameters(bind) == parameters(contract.BindProduct.__call__)


def test_the_catalogue_lists_a_kernel_for_every_format_of_the_contract():
    templates = {name.partition("<")[0] for _, name in instantiations(32)}
    assert set(gpu.SPMV) <= templates


def test_constants_have_the_same_types_in_both_backends():
    names = set(MEMBERS) - set(FUNCTIONS) - {"SPMV", "Arnoldi", "Decomposition"}
    assert {name: type(getattr(cpu, name)) for name in names} == {name: type(getattr(gpu, name)) for name in names}


def test_scatter_add_leaves_partial_sums_that_add_up_to_the_dot_product(device):
    kernels, rng = kernels_of(device), np.random.default_rng(0)
    x, values, y = rng.standard_normal(500), rng.standard_normal(200), rng.standard_normal(500)
    numbers = rng.permutation(500)[:200].astype(np.int32)
    arrays = [device.upload(array.copy()) for array in (values, numbers, y, x)]
    dots = device.empty(kernels.num_scatter_dots(values.size), np.dtype(np.float64))
    with device.active():
        kernels.scatter_add(device, *arrays, dots)
    expected = y.copy()
    expected[numbers] += values
    np.testing.assert_allclose(device.download(arrays[2]), expected, rtol=1e-15)
    np.testing.assert_allclose(device.download(dots).sum(), x[numbers] @ values, rtol=1e-12)


PROGRAM = Program(
    "contract_dots",
    "x y",
    (
        Step("product", each="y = 2 * x", sums="xy = conj(x) * y"),
        Step("use", before="half = xy / 2", each="y = half * x"),
    ),
)


@pytest.mark.parametrize("num_dots", [1, 700, 5000])
def test_later_steps_read_the_sum_that_a_product_left_in_parts(device, num_dots: int):
    kernels, rng = kernels_of(device), np.random.default_rng(1)
    parts, x = rng.standard_normal(num_dots), rng.standard_normal(64)
    with device.active():
        state = SolveState(device, PROGRAM, np.dtype(np.float64), 1)
        dots, finish = kernels.bind_dots(device, state, "xy", num_dots)
        vectors = {"x": device.upload(x), "y": device.empty(x.size, x.dtype)}
        step = kernels.bind_step(device, PROGRAM, PROGRAM.steps[1], vectors, state)
        dots[...] = device.upload(parts)
        if finish is not None:
            finish()
        step()
        np.testing.assert_allclose(device.download(vectors["y"]), parts.sum() / 2 * x, rtol=1e-10, atol=1e-12)
