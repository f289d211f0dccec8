"""Launches of GPU kernels: the bytes that the driver gets, threads, and launches that are left to CuPy.

No GPU is needed: a stand-in for the driver follows the pointers to the arguments as the driver does, and records the
bytes. tests/test_gpu_launches.py has tests with the driver.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gsparse.device.gpu
from gsparse.device.gpu import GpuDevice
from gsparse.device.launching import DriverKernel, Passed, driver_launch
from gsparse.kernels.gpu.launch import bind_product, launch_blocks, launch_threads

FUNCTION = 0xF0
GRID, BLOCK = (7, 1, 1), (128, 1, 1)
SCALARS = (
    np.bool_(True), np.int8(-3), np.uint8(200), np.int16(-300), np.uint16(60000), np.int32(-7), np.uint32(2**32 - 1),
    np.int64(-(2**60)), np.uint64(2**64 - 1), np.longlong(5), np.float16(0.5), np.float32(1.1), np.float64(np.pi),
    np.float32(-0.0), np.float64(np.inf), np.complex64(1 - 2j), np.complex128(complex(-0.0, np.pi)),
)  # fmt: skip
FACTORS = tuple(np.dtype(name) for name in ("float32", "float64", "complex64", "complex128", "int64"))


class StandInArray:
    """An array of the device, of which a launch reads the address only."""

    def __init__(self, address: int) -> None:
        self.data = SimpleNamespace(ptr=address)


class DriverError(RuntimeError):
    """CuPy's error for what the driver refuses."""


class StandInDriver:
    """CuPy's module of the driver's functions.

    Attributes
    ----------
    sizes : list of int
        The sizes of the arguments of the kernel, which the driver knows.
    launches : list
        For each launch its sizes, its stream, and the bytes of the arguments.
    during : callable
        Called in each launch before the arguments are read, when another thread may run.
    """

    CUDADriverError = DriverError

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.launches = list(sizes), []
        self.during: Callable[[], None] = lambda: None

    def launchKernel(self, function: int, *numbers: int) -> None:
        *shape, shared_memory, stream, pointers, extra = numbers
        assert (function, extra, len(shape)) == (FUNCTION, 0, 6)
        assert all(type(number) is int for number in numbers)
        self.during()
        addresses = (ctypes.c_void_p * len(self.sizes)).from_address(pointers)
        values = [ctypes.string_at(address, size) for address, size in zip(addresses, self.sizes, strict=True)]
        self.launches.append((tuple(shape), shared_memory, stream, values))

    @property
    def arguments(self) -> list[bytes]:
        """The arguments of the last launch."""
        return self.launches[-1][3]


class StandInCupy:
    """What launches need of CuPy, and a kernel that records the calls that are left to CuPy."""

    ndarray = StandInArray

    def __init__(self, driver: Any) -> None:
        self.streams: dict[int, int] = {}
        self.calls: list[Any] = []
        properties = {"warpSize": 32, "multiProcessorCount": 1, "name": b"stand-in"}
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                getDeviceCount=lambda: 2,
                getDevice=lambda: 0,
                getDeviceProperties=lambda index: properties,
                streamPerThread=2,
            ),
            Device=lambda index: SimpleNamespace(pci_bus_id="0"),
            get_current_stream=lambda index: SimpleNamespace(ptr=self.streams.get(index, 0)),
            memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        )
        if driver is not None:
            self.cuda.driver = driver

    def raw_kernel(self) -> Any:
        def launch(grid: Any, block: Any, args: Any, /, **options: Any) -> None:
            self.calls.append((grid, block, args, options))

        launch.kernel = SimpleNamespace(ptr=FUNCTION)  # type: ignore[attr-defined]
        return launch


@pytest.fixture
def driver() -> StandInDriver:
    return StandInDriver()


@pytest.fixture
def cupy(driver: StandInDriver) -> StandInCupy:
    return StandInCupy(driver)


@pytest.fixture
def kernel(cupy: StandInCupy, driver: StandInDriver) -> DriverKernel:
    return DriverKernel(cupy, cupy.raw_kernel(), 0, driver.launchKernel)


def bytes_of(arg: Any) -> bytes:
    """Return an argument as a kernel reads it."""
    if arg is None or isinstance(arg, StandInArray):
        return np.uintp(0 if arg is None else arg.data.ptr).tobytes()
    return arg.tobytes()


ARGUMENTS = st.lists(
    st.sampled_from(SCALARS) | st.none() | st.integers(0, 2**63).map(StandInArray), min_size=0, max_size=40
)


@given(args=ARGUMENTS)
def test_the_driver_gets_the_bytes_of_all_kinds_of_arguments(args: list[Any]) -> None:
    driver = StandInDriver(*(len(bytes_of(arg)) for arg in args))
    cupy = StandInCupy(driver)
    kernel = DriverKernel(cupy, cupy.raw_kernel(), 0, driver.launchKernel)
    kernel(GRID, BLOCK, tuple(args))
    kernel.bind(GRID, BLOCK, args)()
    changed = [StandInArray(8) if isinstance(arg, StandInArray) else arg and type(arg)(1) for arg in args]
    kernel(GRID, BLOCK, changed)
    assert [values for *_, values in driver.launches] == [list(map(bytes_of, call)) for call in (args, args, changed)]
    assert not cupy.calls


def test_each_launch_runs_on_the_stream_that_is_current_on_its_device(cupy: Any, driver: StandInDriver) -> None:
    kernel = DriverKernel(cupy, cupy.raw_kernel(), 1, driver.launchKernel)
    driver.sizes = [8, 8]
    array = StandInArray(64)
    launches = [
        lambda: kernel(GRID, BLOCK, (array, array)),
        kernel.bind(GRID, BLOCK, (array, array)),
        lambda product=kernel.bind_product(GRID, BLOCK, (Passed.X, Passed.Y), np.dtype(float)): product(array, array),
    ]
    for stream in (0, 1, 2, 0xABC0):  # the default streams have these small numbers
        cupy.streams = {0: 0xDEAD, 1: stream}
        for launch in launches:
            launch()
            assert driver.launches[-1][2] == stream


@pytest.mark.parametrize("dtype", FACTORS, ids=str)
def test_a_bound_product_packs_what_a_call_passes_and_keeps_the_rest(dtype: Any, cupy: Any) -> None:
    driver, slots = cupy.cuda.driver, list(Passed)
    passed = {
        Passed.ALPHA: dtype.itemsize,
        Passed.BETA: dtype.itemsize,
        Passed.READ_Y: 4,
        Passed.CONJUGATE: 4,
    }
    factors = [0, -0.0, 1, 3, -2.5] if dtype.kind != "i" else [0, 1, -7]
    factors += [float("nan")] if dtype.kind == "f" else []
    for turn in range(len(slots)):
        order = slots[turn:] + slots[:turn]
        args = [SCALARS[turn], *order[:2], None, StandInArray(24), *order[2:], SCALARS[-turn], SCALARS[1]]
        driver.sizes = [passed.get(arg, 8) if isinstance(arg, Passed) else len(bytes_of(arg)) for arg in args]
        kernel = DriverKernel(cupy, cupy.raw_kernel(), 0, driver.launchKernel)
        product = kernel.bind_product(GRID, BLOCK, args, dtype)
        for alpha, beta, conjugate in itertools.product(map(dtype.type, factors), map(dtype.type, factors), (0, True)):
            x, y = StandInArray(2**40 + turn), StandInArray(16)
            product(x, y, alpha, beta, conjugate)
            values = x, y, alpha, beta, np.int32(beta != 0), np.int32(conjugate)
            assert driver.arguments == [bytes_of(values[a.value] if isinstance(a, Passed) else a) for a in args]
    assert not cupy.calls


def test_arrays_that_are_bound_live_as_long_as_the_launch(kernel: DriverKernel) -> None:
    arrays = [StandInArray(8) for _ in range(2)]
    references = [weakref.ref(array) for array in arrays]
    launches: list[Any] = [kernel.bind(GRID, BLOCK, arrays[:1])]
    launches.append(kernel.bind_product(GRID, BLOCK, (*arrays[1:], Passed.X, Passed.Y), np.dtype(float)))
    del arrays
    gc.collect()
    assert all(reference() is not None for reference in references)
    launches.clear()
    assert all(reference() is None for reference in references), "freed at once, without the garbage collector"


# ------------------------------------------------------------------------------------------------------------- threads


LAUNCHES: dict[str, Callable[[DriverKernel], Callable[[int], None]]] = {
    "call": lambda kernel: lambda n: kernel(GRID, BLOCK, (StandInArray(n), np.float64(n), StandInArray(-n % 2**64))),
    "bound product": lambda kernel: (
        lambda n,
        product=kernel.bind_product(  # type: ignore[misc]
            GRID, BLOCK, (Passed.X, Passed.ALPHA, Passed.Y), np.dtype(float)
        ): product(StandInArray(n), StandInArray(-n % 2**64), np.float64(n), np.float64(0), False)
    ),
}


def expected(n: int) -> list[bytes]:
    return [np.uint64(n).tobytes(), np.float64(n).tobytes(), np.uint64(-n % 2**64).tobytes()]


@pytest.mark.parametrize("name", LAUNCHES)
def test_threads_that_launch_at_the_same_time_have_memory_of_their_own(name: str, kernel: Any, driver: Any) -> None:
    num_threads = 8
    driver.sizes = [8, 8, 8]
    launch, inside = LAUNCHES[name](kernel), threading.Barrier(num_threads)
    driver.during = lambda: inside.wait(60) and None  # No thread reads its arguments before all have packed theirs.
    with ThreadPoolExecutor(num_threads) as pool:
        for first in range(1, 60, num_threads):
            driver.launches.clear()
            numbers = range(first, first + num_threads)
            list(pool.map(launch, numbers))
            assert sorted(values for *_, values in driver.launches) == sorted(map(expected, numbers))


# --------------------------------------------------------------------------------------- launches that are left to CuPy


def refuse(*_: Any) -> None:
    raise DriverError("CUDA_ERROR_INVALID_CONTEXT")


def test_what_the_driver_refuses_is_left_to_cupy(
    cupy: StandInCupy, driver: StandInDriver, kernel: DriverKernel
) -> None:
    driver.sizes = [8, 8, 4]
    array, x, y = (StandInArray(n) for n in (1, 2, 3))
    product = kernel.bind_product(GRID, BLOCK, (Passed.Y, Passed.X, Passed.READ_Y, Passed.CONJUGATE), np.dtype(complex))
    bound = kernel.bind(GRID, (64,), (array, None, np.int32(3)))
    driver.during = refuse
    kernel((1,), BLOCK, (array,), shared_mem=8)
    bound()
    product(x, y, np.complex128(1), np.complex128(2), True)
    assert cupy.calls == [
        ((1,), BLOCK, (array,), {"shared_mem": 8}),
        (GRID, (64,), (array, None, np.int32(3)), {}),
        (GRID, BLOCK, (y, x, np.int32(1), np.int32(1)), {}),
    ]
    assert [type(arg) for arg in cupy.calls[-1][2][2:]] == [np.int32] * 2
    driver.during, driver.sizes = lambda: None, [8, 8, 4, 4]
    product(x, y, np.complex128(1), np.complex128(0), False)
    assert driver.arguments == list(map(bytes_of, (y, x, np.int32(0), np.int32(0))))
    assert len(cupy.calls) == 3, "the next launch is the driver's again"


@pytest.mark.parametrize(
    "arg",
    [1, 2.0, True, 1j, np.zeros(3), np.zeros((), "i4,f8")[()], np.longdouble(1), np.datetime64(1, "s"), object()],
    ids=lambda arg: type(arg).__name__,
)
def test_arguments_of_other_types_are_left_to_cupy(arg: Any, cupy: StandInCupy, kernel: Any, driver: Any) -> None:
    kernel(GRID, BLOCK, (arg,))
    kernel.bind(GRID, BLOCK, (arg,))()
    x, y = StandInArray(1), StandInArray(2)
    kernel.bind_product(GRID, BLOCK, (arg, Passed.X), np.dtype(float))(x, y)
    passed = [call[2] for call in cupy.calls]
    assert [len(args) for args in passed] == [1, 1, 2]
    assert all(args[0] is arg for args in passed)
    assert not driver.launches


# ----------------------------------------------------------------------------------------------------------- the device


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace compilation, and list what is compiled."""
    names: list[Any] = []

    def compile_kernel(cupy: Any, lanes: int, *name: str) -> Any:
        names.append(name)
        return cupy.raw_kernel()

    monkeypatch.setattr(gsparse.device.gpu, "compile_kernel", compile_kernel)
    return names


def stand_in_device(monkeypatch: pytest.MonkeyPatch, cupy: StandInCupy) -> GpuDevice:
    monkeypatch.setattr(gsparse.device.gpu, "import_cupy", lambda: cupy)
    return GpuDevice(0)


def test_empty_grids_are_not_launched(monkeypatch: Any, cupy: Any, driver: Any, compiled: Any) -> None:
    device = stand_in_device(monkeypatch, cupy)
    launch_threads(device, "a.cu", "f<int>", 0, 256, ())
    bind_product(device, "a.cu", "f<int>", 0, 32, (Passed.X,), np.float32)(
        StandInArray(9), StandInArray(1), 1, 0, False
    )
    assert not compiled
    assert not driver.launches


@pytest.mark.parametrize("driver", [None, SimpleNamespace(CUDADriverError=DriverError)], ids=["no module", "no name"])
def test_a_cupy_without_the_drivers_function_launches_itself(monkeypatch: Any, driver: Any, compiled: Any) -> None:
    cupy = StandInCupy(driver)
    assert driver_launch(cupy) is None
    device = stand_in_device(monkeypatch, cupy)
    x, y = StandInArray(9), StandInArray(10)
    launch_blocks(device, "a.cu", "f<int>", 7, 64, (x, np.int32(1)))
    device.bind_kernel("a.cu", "f<int>", (2, 3), (32,), (x, np.int32(1)))()
    product = device.bind_product(
        "a.cu", "f<int>", (5,), (32,), (Passed.Y, Passed.ALPHA, Passed.X, Passed.READ_Y), np.float32
    )
    product(x, y, np.float32(3), np.float32(2), False)
    assert [call[2] for call in cupy.calls] == [
        (x, np.int32(1)), (x, np.int32(1)), (y, np.float32(3), x, np.int32(1)),
    ]  # fmt: skip


@pytest.mark.parametrize("shared_bytes", [0, 1000, 48 * 1024, 48 * 1024 + 8])
def test_a_product_gets_shared_memory_and_large_sizes_are_allowed_first(shared_bytes: int) -> None:
    driver = StandInDriver(8, 8)
    cupy = StandInCupy(driver)
    raw = cupy.raw_kernel()
    kernel = DriverKernel(cupy, raw, 0, driver.launchKernel)
    launch = kernel.bind_product(GRID, BLOCK, (Passed.X, Passed.Y), np.dtype(float), shared_bytes)
    launch(StandInArray(1), StandInArray(2), 1.0, 0.0, False)
    assert driver.launches[-1][1] == shared_bytes
    allowed = getattr(raw, "max_dynamic_shared_size_bytes", None)
    assert allowed == (shared_bytes if shared_bytes > 48 * 1024 else None)
