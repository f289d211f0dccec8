"""Launches of kernels by the driver on a real GPU: the same bits as from CuPy, in graphs, threads and streams."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import gsparse.device.gpu
import gsparse.device.select
from gsparse.device.compilation import compile_kernel, compile_options
from gsparse.device.gpu import GpuDevice
from gsparse.device.launching import DriverKernel, Passed, driver_launch
from tests.conftest import make_device
from tests.support import STRUCTURES, assert_product, host, run_python
from tests.test_launching import FACTORS, SCALARS

pytestmark = pytest.mark.gpu

# A kernel that copies the bytes of its other arguments to the first one, and a kernel whose launches can be counted.
KEEP = r"""
struct complex64 { float re, im; };
struct complex128 { double re, im; };

template <class T> __device__ unsigned char *put(unsigned char *out, const T &value) {
  for (int i = 0; i < int(sizeof(T)); ++i) *out++ = reinterpret_cast<const unsigned char *>(&value)[i];
  return out;
}

template <class... Args> __global__ void keep(unsigned char *out, Args... args) { ((out = put(out, args)), ...); }

__global__ void add(long long n, double value, double *out) { *out += value * double(n); }
"""
CPP = {
    np.bool_: "bool", np.int8: "signed char", np.uint8: "unsigned char", np.int16: "short", np.uint16: "unsigned short",
    np.int32: "int", np.uint32: "unsigned int", np.int64: "long long", np.uint64: "unsigned long long",
    np.longlong: "long long", np.float16: "unsigned short", np.float32: "float", np.float64: "double",
    np.complex64: "complex64", np.complex128: "complex128",
}  # fmt: skip


class OnlyDriver:
    """A kernel of CuPy that is never to be called, because the driver launches it."""

    def __init__(self, raw: Any) -> None:
        self.kernel = raw.kernel

    def __call__(self, *args: Any, **options: Any) -> None:
        raise AssertionError("the launch was left to CuPy")


@pytest.fixture(scope="module")
def gpu() -> Any:
    return make_device("gpu")


def raw_kernel(gpu: Any, name: str) -> Any:
    options = compile_options(gpu.lanes)
    return gpu.xp.RawModule(code=KEEP, options=options, name_expressions=[name]).get_function(name)


def driver_kernel(gpu: Any, raw: Any) -> DriverKernel:
    launch = driver_launch(gpu.xp)
    assert launch is not None
    return DriverKernel(gpu.xp, raw, 0, launch)


def keep(*types: str) -> str:
    return f"keep<{', '.join(types)}>"


def device_bytes(arg: Any) -> bytes:
    """Return an argument as a kernel reads it: CuPy's arrays as addresses."""
    return arg.tobytes() if isinstance(arg, np.generic) else np.uintp(0 if arg is None else arg.data.ptr).tobytes()


def test_the_driver_and_cupy_pass_the_same_bits(gpu: Any) -> None:
    cupy = gpu.xp
    args = [*SCALARS, cupy.zeros(3), None, cupy.zeros(1, np.uint8), cupy.zeros((4, 4))[1:, 2:]]
    raw = raw_kernel(gpu, keep(*(CPP.get(type(arg), "const void *") for arg in args)))
    kernel, expected = driver_kernel(gpu, OnlyDriver(raw)), b"".join(map(device_bytes, args))
    outs = [cupy.zeros(len(expected), np.uint8) for _ in range(3)]
    raw((1,), (1,), (outs[0], *args))
    kernel((1,), (1,), (outs[1], *args))
    kernel.bind((1,), (1,), (outs[2], *args))()
    assert [out.get().tobytes() for out in outs] == [expected] * 3


@pytest.mark.parametrize("dtype", FACTORS, ids=str)
def test_a_bound_product_passes_the_same_bits(gpu: Any, dtype: Any) -> None:
    cupy, factor = gpu.xp, CPP[dtype.type]
    raw = raw_kernel(gpu, keep("int", "void *", factor, "void *", "int", factor, "int", "void *"))
    kernel, x, y = driver_kernel(gpu, OnlyDriver(raw)), cupy.zeros(3), cupy.zeros(3)
    out = cupy.zeros(100, np.uint8)
    args = (
        out,
        np.int32(7),
        Passed.X,
        Passed.ALPHA,
        Passed.Y,
        Passed.READ_Y,
        Passed.BETA,
        Passed.CONJUGATE,
        None,
    )
    product = kernel.bind_product((1,), (1,), args, dtype)
    for alpha, beta, conjugate in itertools.product((0, 1, -3), (0, 2), (False, True)):
        a, b = dtype.type(alpha), dtype.type(beta)
        product(x, y, a, b, conjugate)
        passed = np.int32(7), x, a, y, np.int32(beta != 0), b, np.int32(conjugate), None
        expected = b"".join(map(device_bytes, passed))
        assert out.get().tobytes()[: len(expected)] == expected


def test_a_captured_launch_keeps_the_arguments_that_it_was_captured_with(gpu: Any) -> None:
    cupy = gpu.xp
    kernel = driver_kernel(gpu, OnlyDriver(raw_kernel(gpu, "add")))
    out, other, stream = cupy.zeros(1), cupy.zeros(1), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    product = kernel.bind_product((1,), (1,), (np.int64(1), Passed.ALPHA, Passed.Y), np.dtype(float))
    with stream:
        stream.begin_capture()
        kernel((1,), (1,), (np.int64(2), np.float64(0.5), out))
        kernel.bind((1,), (1,), (np.int64(3), np.float64(10), out))()
        product(other, out, np.float64(100), np.float64(0), False)
        graph = stream.end_capture()
        kernel((1,), (1,), (np.int64(5), np.float64(1), other))
        product(out, other, np.float64(7), np.float64(0), False)
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
    assert (float(out[0]), float(other[0])) == (3 * 131.0, 12.0)


def test_threads_and_streams_that_launch_at_once_pass_their_own_arguments(gpu: Any) -> None:
    cupy, num_threads, count = gpu.xp, 8, 2000
    kernel = driver_kernel(gpu, raw_kernel(gpu, "add"))
    product = kernel.bind_product((1,), (1,), (np.int64(1), Passed.ALPHA, Passed.Y), np.dtype(float))
    outs = [cupy.zeros(1) for _ in range(num_threads)]
    cupy.cuda.Device().synchronize()

    def run(number: int) -> None:
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            for n in range(count):
                kernel((1,), (1,), (np.int64(n), np.float64(number), outs[number]))
                product(outs[0], outs[number], np.float64(n), np.float64(0), False)
            stream.synchronize()

    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(run, range(num_threads)))
    assert [float(out[0]) for out in outs] == [(number + 1) * sum(range(count)) for number in range(num_threads)]


def test_a_launch_that_cannot_be_raises_cupys_error(gpu: Any) -> None:
    kernel, out = driver_kernel(gpu, raw_kernel(gpu, "add")), gpu.xp.zeros(1)
    args = (np.int64(1), np.float64(1), out)
    with pytest.raises(gpu.xp.cuda.driver.CUDADriverError, match=r"(?i)invalid"):
        kernel((1,), (4096,), args)
    with pytest.raises(gpu.xp.cuda.driver.CUDADriverError, match=r"(?i)invalid"):
        kernel.bind((1,), (4096,), args)()
    kernel((1,), (1,), args)
    assert float(out[0]) == 1.0


def test_a_kernel_runs_on_another_current_device_as_cupys_does(gpu: Any) -> None:
    cupy = gpu.xp
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    kernel = driver_kernel(gpu, raw_kernel(gpu, "add"))
    with cupy.cuda.Device(1):
        out = cupy.zeros(1)
        kernel((1,), (1,), (np.int64(2), np.float64(3), out))
        kernel.bind((1,), (1,), (np.int64(2), np.float64(3), out))()
        assert float(out[0]) == 12.0


PER_THREAD = """
import threading, numpy as np, scipy.sparse as sp, cupy, gsparse
assert cupy.cuda.get_current_stream().ptr == cupy.cuda.Stream.ptds.ptr
S = sp.random_array((3000, 3000), density=0.01, format="csr", rng=0)
A, x = gsparse.GpuSparseMatrix(S), cupy.ones(3000)
expected, wrong = (A @ x).get(), []

def run(factor):
    v, y = cupy.full(3000, float(factor)), cupy.empty(3000)
    for _ in range(200):
        y.fill(cupy.nan)
        A.matvec(v, out=y)
        if not np.allclose(y.get(), factor * expected):
            wrong.append(factor)

threads = [threading.Thread(target=run, args=(n,)) for n in range(1, 5)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(wrong)
"""


def test_products_run_on_the_default_stream_of_each_thread(gpu: Any) -> None:
    assert run_python(PER_THREAD, CUPY_CUDA_PER_THREAD_DEFAULT_STREAM="1") == "[]"


@pytest.mark.parametrize("format", gsparse.FORMATS)
def test_products_are_launched_by_the_driver(gpu: Any, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gsparse.device.gpu, "compile_kernel", lambda *args: OnlyDriver(compile_kernel(*args)))
    device, S = GpuDevice(0), STRUCTURES["long rows"](np.random.default_rng(0))
    # Arrays on this GPU belong to this device object, whose kernels are compiled anew.
    monkeypatch.setattr(gsparse.device.select, "gpu_device", lambda index: device)
    A = gsparse.GpuSparseMatrix(S, device=device, format=format)
    x, X = gpu.xp.ones(S.shape[1]), gpu.xp.ones((S.shape[1], 5))
    for _ in range(3):
        assert_product(host(A @ x), S, host(x))
        assert_product(host(A @ X), S, host(X))
