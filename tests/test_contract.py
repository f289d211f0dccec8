"""The two backends implement one contract: the same names with the same signatures, which compute the same."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import get_type_hints

import numpy as np
import pytest

from gsparse.kernels import contract, cpu, gpu
from gsparse.kernels.backends import kernels_of
from gsparse.kernels.gpu import instantiations
from gsparse.kernels.steps import Program, Step
from gsparse.linalg.krylov.solve_state import SolveState

NAMESPACES = get_type_hints(contract.Kernels)
FUNCTIONS = {
    (namespace, name): member
    for namespace, protocol in NAMESPACES.items()
    for name, member in vars(protocol).items()
    if inspect.isfunction(member) and not name.startswith("_")
}
BACKENDS = pytest.mark.parametrize("backend", [pytest.param(cpu, id="cpu"), pytest.param(gpu, id="gpu")])


def parameters(function) -> list[tuple[str, inspect._ParameterKind, object]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values() if p.name != "self"]


@BACKENDS
def test_a_namespace_of_kernels_is_the_module_of_its_name(backend: ModuleType):
    modules = {namespace: module.__name__ for namespace, module in vars(backend.KERNELS).items()}
    assert modules == {namespace: f"{backend.__name__}.{namespace}" for namespace in NAMESPACES}


@BACKENDS
def test_a_kernel_has_the_signature_that_the_contract_gives_it(backend: ModuleType):
    """mypy compares the types of parameters, but neither their names nor their default values."""
    assert len(FUNCTIONS) > 80
    kernels = {key: getattr(getattr(backend.KERNELS, key[0]), key[1]) for key in FUNCTIONS}
    assert {key: parameters(kernels[key]) for key in FUNCTIONS} == {
        key: parameters(FUNCTIONS[key]) for key in FUNCTIONS
    }
    for bind in backend.KERNELS.spmv.PRODUCTS.values():
        assert parameters(bind) == parameters(contract.BindProduct.__call__)


def test_the_catalogue_lists_a_kernel_for_every_format_of_the_contract():
    formats = list(gpu.KERNELS.spmv.PRODUCTS)
    assert list(cpu.KERNELS.spmv.PRODUCTS) == formats
    kernels = {name.partition("<")[0] for _, name in instantiations(32)}
    assert {*formats} - kernels == {"csr_scalar"}, "it is csr_vector with one thread for each row"


def test_scatter_add_leaves_partial_sums_that_add_up_to_the_dot_product(device):
    kernels, rng = kernels_of(device), np.random.default_rng(0)
    x, values, y = rng.standard_normal(500), rng.standard_normal(200), rng.standard_normal(500)
    numbers = rng.permutation(500)[:200].astype(np.int32)
    arrays = [device.upload(array.copy()) for array in (values, numbers, y, x)]
    dots = device.empty(kernels.exchange.num_scatter_dots(values.size), np.dtype(np.float64))
    with device.active():
        kernels.exchange.scatter_add(device, *arrays, dots)
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
        dots, finish = kernels.steps.bind_dots(device, state, "xy", num_dots)
        vectors = {"x": device.upload(x), "y": device.empty(x.size, x.dtype)}
        step = kernels.steps.bind_step(device, PROGRAM, PROGRAM.steps[1], vectors, state)
        dots[...] = device.upload(parts)
        if finish is not None:
            finish()
        step()
        np.testing.assert_allclose(device.download(vectors["y"]), parts.sum() / 2 * x, rtol=1e-10, atol=1e-12)
