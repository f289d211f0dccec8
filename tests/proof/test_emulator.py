"""The emulator itself: each of its functions behaves as CUDA's does on a GPU, and misuse is an error as in CUDA."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest

from gsparse.kernels.gpu import instantiations

from .emulated_device import LANES, EmulatedDevice, emulated_module
from .emulator import PROOF_FOLDER, SANITIZER, EmulatedModule, EmulationError
from .sanitized import MISSING_TOOLS

pytestmark = pytest.mark.skipif(
    not which("g++") or not sys.platform.startswith("linux"), reason="the emulator needs g++, and runs on Linux"
)

KERNELS = (
    "coordinates", "shuffles<4>", "shuffles<32>", "shuffle_outside_group", "different_collectives", "votes",
    "warp_reverse", "atomics", "unwritten", "scale<float>", "scale<Complex<float>>", "scale<Complex<double>>",
)  # fmt: skip


def vocabulary(lanes: int, **options: Any) -> EmulatedModule:
    return EmulatedModule(PROOF_FOLDER / "planted" / "vocabulary.cu", KERNELS, lanes, **options)


@pytest.fixture(params=LANES)
def lanes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_every_thread_of_a_three_dimensional_launch_has_its_coordinates(lanes: int) -> None:
    grid, block = (2, 3, 4), (5, 3, 2)
    out = np.full(24 * 30, -1, np.int32)
    vocabulary(lanes).get_function("coordinates")(grid, block, (out,))
    np.testing.assert_array_equal(out, np.arange(out.size))


@pytest.mark.parametrize("width", [4, 32])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shuffles_stay_within_their_group(lanes: int, width: int, seed: int) -> None:
    size = 2 * lanes
    outputs = [np.empty(size, np.int32) for _ in range(4)]
    vocabulary(lanes).get_function(f"shuffles<{width}>")((1,), (size,), outputs, seed=seed)
    thread = np.arange(size)
    place = thread % width
    down, up, exchanged, indexed = outputs
    np.testing.assert_array_equal(down, np.where(place < width - 1, thread + 1, thread))
    np.testing.assert_array_equal(up, np.where(place > 0, thread - 1, thread))
    np.testing.assert_array_equal(exchanged, thread ^ 1)
    np.testing.assert_array_equal(indexed, thread - place + 2)


def test_a_shuffle_across_the_border_of_its_group_is_refused(lanes: int) -> None:
    with pytest.raises(EmulationError, match="crosses its group"):
        vocabulary(lanes).get_function("shuffle_outside_group")((1,), (lanes,), (np.empty(lanes, np.int32),))


def test_lanes_that_call_different_collectives_are_refused(lanes: int) -> None:
    with pytest.raises(EmulationError, match="different collectives"):
        vocabulary(lanes).get_function("different_collectives")((1,), (lanes,), (np.empty(lanes, np.int32),))


def test_a_shuffle_from_a_lane_outside_a_partial_warp_is_refused(lanes: int) -> None:
    outputs = [np.empty(lanes, np.int32) for _ in range(4)]
    with pytest.raises(EmulationError, match="does not take part"):
        vocabulary(lanes).get_function("shuffles<4>")((1,), (lanes - 3,), outputs)


def test_ballot_has_one_bit_per_lane(lanes: int) -> None:
    out = np.empty(2 * lanes, np.uint64)
    vocabulary(lanes).get_function("votes")((1,), (out.size,), (out,))
    for warp in range(2):
        expected = sum(1 << lane for lane in range(lanes) if (warp * lanes + lane) % 3 == 0)
        assert set(out[warp * lanes : (warp + 1) * lanes].tolist()) == {expected}


def test_dynamic_shared_memory_is_ordered_by_syncwarp_and_limited(lanes: int) -> None:
    values, out = np.arange(2 * lanes, dtype=np.int32), np.empty(2 * lanes, np.int32)
    function = vocabulary(lanes).get_function("warp_reverse")
    function((1,), (values.size,), (values, out), shared_mem=values.nbytes)
    np.testing.assert_array_equal(out, values.reshape(2, lanes)[:, ::-1].ravel() + 2)
    with pytest.raises(EmulationError, match="shared memory over the limit"):
        function((1,), (values.size,), (values, out), shared_mem=64 << 10)


@pytest.mark.parametrize("os_threads", [1, 2])
def test_atomics_of_all_threads_take_effect(lanes: int, os_threads: int) -> None:
    total, most, real = np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1)
    vocabulary(lanes, os_threads=os_threads).get_function("atomics")((100,), (96,), (total, most, real))
    assert (total[0], most[0], real[0]) == (9600, 95, 4800.0)


def test_shared_memory_that_was_not_written_is_nan(lanes: int) -> None:
    out = np.zeros(lanes, np.float32)
    vocabulary(lanes).get_function("unwritten")((1,), (lanes,), (out,))
    assert np.isnan(out).all()


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [("scale<float>", np.float32), ("scale<Complex<float>>", np.complex64), ("scale<Complex<double>>", np.complex128)],
)
def test_scalars_are_passed_by_value(lanes: int, kernel: str, dtype: Any) -> None:
    values = (np.arange(8) - 1j * np.ones(8)).astype(np.complex128)
    values = values.real.astype(dtype) if dtype == np.float32 else values.astype(dtype)
    factor = dtype(3) if dtype == np.float32 else dtype(3 - 2j)
    out = np.empty_like(values)
    vocabulary(lanes).get_function(kernel)((1,), (8,), (values, out, factor))
    np.testing.assert_array_equal(out, values * factor)


GOOD = (np.ones(4, np.float32), np.ones(4, np.float32), np.float32(2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (GOOD[:2], "takes 3 arguments"),
        ((*GOOD[:2], 2.0), "pass a sized NumPy scalar"),
        ((*GOOD[:2], np.float64(2)), r"argument 2 must be f4, got f8"),
        ((np.ones(4), *GOOD[1:]), r"argument 0 must be f4\*, got f8\*"),
        ((np.float32(1), *GOOD[1:]), r"argument 0 must be f4\*, got f4"),
    ],
)
def test_arguments_that_do_not_fit_the_signature_are_refused(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(EmulationError, match=words):
        vocabulary(32).get_function("scale<float>")((1,), (4,), arguments)


@pytest.mark.parametrize(
    ("grid", "block"), [((0,), (32,)), ((1, 65536), (32,)), ((1,), (0,)), ((1,), (1024,)), ((1,), (1, 1, 128))]
)
def test_launches_that_every_gpu_refuses_are_refused(grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    with pytest.raises(EmulationError, match=r"invalid configuration|more threads than GS_LARGEST_BLOCK"):
        vocabulary(32).get_function("scale<float>")(grid, block, GOOD)


@pytest.mark.whole
@pytest.mark.parametrize(
    "source", sorted({file for lanes in LANES for file, _ in instantiations(lanes) if not file.endswith("_dots.cu")})
)
def test_every_instantiation_of_the_catalogue_compiles(source: str, lanes: int) -> None:
    emulated_module(source, lanes).compile_all()


def test_kernels_are_compiled_again_after_a_header_has_changed(tmp_path: Path) -> None:
    path, header = tmp_path / "constant.cu", tmp_path / "constant.cuh"
    path.write_text('#include "port.cuh"\n#include "constant.cuh"\nGS_KERNEL give(int *out) { out[0] = CONSTANT; }\n')
    out = np.zeros(1, np.int32)
    for constant in (1, 2):
        header.write_text(f"#define CONSTANT {constant}\n")
        EmulatedModule(path, ["give"], 32).get_function("give")((1,), (1,), (out,))
        assert out[0] == constant


@pytest.mark.skipif(bool(SANITIZER), reason="the portable switch is not annotated for sanitizers")
@pytest.mark.whole
def test_the_portable_context_switch_gives_the_same_result(lanes: int) -> None:
    out = np.empty(2 * lanes, np.uint64)
    vocabulary(lanes, options=("-DGS_EMU_UCONTEXT",)).get_function("votes")((1,), (out.size,), (out,))
    assert out[0] & 0b1111 == 0b1001


@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
@pytest.mark.whole
def test_the_sanitizers_report_nothing_for_correct_kernels(sanitizer: str) -> None:
    if sanitizer in MISSING_TOOLS:
        pytest.skip(MISSING_TOOLS[sanitizer])
    if SANITIZER:
        pytest.skip("this process itself runs under a sanitizer")
    command = [
        sys.executable,
        str(PROOF_FOLDER / "sanitized.py"),
        sanitizer,
        "--",
        "-q",
        "-k",
        "syncwarp or atomics",
        __file__,
    ]
    result = subprocess.run(command, cwd=PROOF_FOLDER.parents[1], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "6 passed" in result.stdout


def test_new_memory_of_an_emulated_device_is_nan_or_minus_one() -> None:
    device = EmulatedDevice(64)
    assert np.isnan(device.empty((2, 3), np.complex128)).all()
    assert (device.empty(4, np.int32) == -1).all()
