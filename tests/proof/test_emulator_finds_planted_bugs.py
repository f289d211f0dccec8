"""The emulator finds every planted bug, and finds no error in the same kernels without the bugs."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from shutil import which

import pytest

from .emulated_device import LANES
from .emulator import PROOF_FOLDER, SANITIZER, EmulationError
from .planted_bugs import BUGS, CLEAN, KERNELS, check
from .sanitized import MISSING_TOOLS, sanitized_command

pytestmark = [
    pytest.mark.skipif(
        not which("g++") or not sys.platform.startswith("linux"), reason="the emulator needs g++, and runs on Linux"
    ),
    # Bugs that only a sanitizer finds would end this process, so they run in processes of their own.
    pytest.mark.skipif(bool(SANITIZER), reason="this process is under a sanitizer itself"),
]

MANY = max(LANES)


@dataclass(frozen=True)
class Planted:
    """A bug, the tool that finds it, and the words of its message."""

    kernel: str
    bug: str
    words: str
    sanitizer: str = ""
    lanes: tuple[int, ...] = LANES


WRONG = "not equal"
PLANTED = (
    Planted("block_sum", "NO_BARRIER_AFTER_WRITE", WRONG),
    Planted("block_sum", "NO_BARRIER_IN_TREE", WRONG),
    Planted("block_sum", "NO_BARRIER_BEFORE_REUSE", WRONG),
    Planted("block_sum", "DIVERGENT_BARRIER", "deadlock|exited|divergent"),
    Planted("block_sum", "SHARED_ONE_SHORT", "AddressSanitizer: heap-buffer-overflow", "asan"),
    Planted("swap_pairs", "SHUFFLE_FOR_BARRIER", "ThreadSanitizer: data race", "tsan"),
    Planted("row_sums", "EARLY_RETURN", "deadlock: 0 threads at __syncthreads, [0-9]+ in a warp collective"),
    Planted("row_sums", "ROW_END_OFF_BY_ONE", WRONG),
    Planted("row_sums", "NO_ROW_BOUND", WRONG),
    Planted("warp_sums", "TREE_OF_32", WRONG, lanes=(MANY,)),
    Planted("warp_sums", "LANE_OF_32", WRONG, lanes=(MANY,)),
    Planted("count_positive", "PLAIN_ADD", "ThreadSanitizer: data race", "tsan"),
    Planted("keep_block", "TOO_MUCH_SHARED", "shared memory over the limit: 65536 bytes of 49152"),
)
FOUND_PLAINLY = [(p, lanes) for p in PLANTED if not p.sanitizer for lanes in p.lanes]
FOUND_BY_SANITIZERS = [(p, lanes) for p in PLANTED if p.sanitizer for lanes in p.lanes]
HARD_CODED_32 = [p for p in PLANTED if p.lanes == (MANY,)]


def run_sanitized(sanitizer: str, lanes: int, *kernels_and_bugs: str) -> subprocess.CompletedProcess[str]:
    if sanitizer in MISSING_TOOLS:
        pytest.skip(MISSING_TOOLS[sanitizer])
    command = [sys.executable, "-m", "tests.proof.planted_bugs", str(lanes), *kernels_and_bugs]
    command, environment = sanitized_command(sanitizer, command, os.environ)
    return subprocess.run(
        command, env=environment, cwd=PROOF_FOLDER.parents[1], capture_output=True, text=True, check=False
    )


def test_the_table_lists_every_planted_bug() -> None:
    assert {(p.kernel, p.bug) for p in PLANTED} == {(kernel, bug) for kernel, bugs in BUGS.items() for bug in bugs}


@pytest.mark.parametrize(("planted", "lanes"), FOUND_PLAINLY, ids=lambda value: getattr(value, "bug", None))
def test_the_emulator_finds_the_bug(planted: Planted, lanes: int) -> None:
    with pytest.raises((EmulationError, AssertionError), match=f"(?i){planted.words}"):
        check(planted.kernel, planted.bug, lanes)


@pytest.mark.parametrize(("planted", "lanes"), FOUND_BY_SANITIZERS, ids=lambda value: getattr(value, "bug", None))
@pytest.mark.whole
def test_a_sanitizer_finds_the_bug(planted: Planted, lanes: int) -> None:
    result = run_sanitized(planted.sanitizer, lanes, f"{planted.kernel}:{planted.bug}")
    assert result.returncode != 0
    assert planted.words in result.stderr, result.stderr


@pytest.mark.parametrize("planted", HARD_CODED_32, ids=lambda planted: planted.bug)
def test_a_hard_coded_warp_size_of_32_is_correct_with_32_lanes(planted: Planted) -> None:
    check(planted.kernel, planted.bug, 32)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_without_its_bug_passes(kernel: str, lanes: int) -> None:
    check(kernel, CLEAN, lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
@pytest.mark.whole
def test_kernels_without_bugs_pass_under_sanitizers(sanitizer: str, lanes: int) -> None:
    result = run_sanitized(sanitizer, lanes, *(f"{kernel}:{CLEAN}" for kernel in KERNELS))
    assert result.returncode == 0, result.stderr
