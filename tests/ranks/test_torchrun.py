"""Ranks that torchrun starts: they find each other by environment variables, and refuse strangers."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse.linalg as gla
from gsparse.distributed import from_torchrun
from gsparse.distributed.ranks import construction, torchrun
from gsparse.distributed.ranks.handshake import Deadline, join
from gsparse.errors import CommunicationError, SettingsError, ShapeError
from tests.linalg.problems import laplacian, residual
from tests.ranks.groups import LONG, SECRET, SOON

ROOT = Path(__file__).parents[2]
PROGRAM = "tests.ranks.torchrun_program"


def free_port() -> int:
    """Return a port that nobody uses, and that the system does not choose for the connections of other programs."""
    while True:
        port = random.randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def variables(rank: int, size: int, port: int, **others: str) -> dict[str, str]:
    """Return what torchrun sets, for a port at which rank 0 is to listen."""
    numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "MASTER_PORT": port - 1}
    names = {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "tests"}
    return {**{name: str(number) for name, number in numbers.items()}, **names, **others}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the variables of one rank of this process, and removes all others."""

    def set_variables(rank: int = 0, size: int = 2, port: int = 0, **others: str) -> None:
        for name in ("GSPARSE_SECRET", "TORCHELASTIC_RUN_ID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables(rank, size, port or free_port(), **others).items():
            if value:
                monkeypatch.setenv(name, value)
            else:
                monkeypatch.delenv(name, raising=False)

    return set_variables


def check(output: str, size: int) -> None:
    found = json.loads(output)
    assert found["ranks"] == size
    for product, solution, info in found["errors"]:
        assert (product < 1e-12, solution < 1e-8, info) == (True, True, 0)


@pytest.mark.parametrize(("size", "host"), [(2, "127.0.0.1"), (3, socket.gethostname())], ids=["loopback", "name"])
@pytest.mark.few(1)
def test_processes_find_each_other_and_solve(size: int, host: str) -> None:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        pytest.skip("this host does not know its own name")
    port = free_port()
    others = {"MASTER_ADDR": host, "GSPARSE_SECRET": "random characters", "PYTHONPATH": str(ROOT)}
    command, pipe = [sys.executable, "-m", PROGRAM], subprocess.PIPE
    environments = [{**os.environ, **variables(rank, size, port, **others)} for rank in range(size)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, env=environments[rank], stdout=pipe, text=True)
        for rank in reversed(range(size))  # rank 0 comes last, and the others wait for it
    ]
    outputs = [process.communicate(timeout=2 * LONG)[0] for process in processes]
    assert [process.returncode for process in processes] == size * [0]
    check(outputs[-1], size)


@pytest.mark.whole
def test_processes_of_torchrun_solve() -> None:
    if find_spec("torch") is None:
        pytest.skip("needs PyTorch: pip install torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port", str(free_port())]
    options: Any = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "capture_output": True, "timeout": 2 * LONG}
    completed = subprocess.run([*command, "-m", PROGRAM], cwd=ROOT, text=True, check=False, **options)
    assert completed.returncode == 0, completed.stderr
    check(completed.stdout, 2)


def test_one_process_needs_no_port(environment: Any) -> None:
    environment(size=1, TORCHELASTIC_RUN_ID="")
    S = laplacian(6)
    x, info = gla.cg(from_torchrun(S, device="cpu"), np.ones(36), rtol=1e-10)
    assert info == 0 and residual(S, x, np.ones(36)) < 1e-8
    with pytest.raises(ShapeError, match="add up to 3, the rows have 36 columns"):
        from_torchrun(S, own_columns=3, device="cpu")


@pytest.mark.parametrize(
    ("host", "secrets", "warns"),
    [
        ("node1", {"TORCHELASTIC_RUN_ID": "none"}, True),
        ("localhost", {"TORCHELASTIC_RUN_ID": "none"}, False),
        ("node1", {"TORCHELASTIC_RUN_ID": "a name"}, False),
        ("node1", {"TORCHELASTIC_RUN_ID": "none", "GSPARSE_SECRET": SECRET.decode()}, False),
    ],
)
def test_a_secret_that_everybody_knows_is_warned_about_where_other_hosts_can_connect(
    host: str, secrets: dict[str, str], warns: bool, environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise CommunicationError("nobody listens")

    monkeypatch.setattr(torchrun, "_collect_addresses", refuse)
    environment(MASTER_ADDR=host, **secrets)
    expected = pytest.warns(RuntimeWarning, match="GSPARSE_SECRET to the same random") if warns else nullcontext()
    with expected, pytest.raises(CommunicationError, match="nobody listens"):
        from_torchrun(laplacian(3))


def test_the_default_device_is_that_of_the_environment(environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(size=1, TORCHELASTIC_RUN_ID="")
    monkeypatch.setenv("GSPARSE_DEVICE", "nowhere")
    assert from_torchrun(laplacian(3), device="cpu").device.name == "cpu"
    with pytest.raises(SettingsError, match="unknown device 'nowhere'"):
        from_torchrun(laplacian(3))


@pytest.mark.parametrize(("device", "number"), [("auto", 1), ("gpu", 1), ("CUDA", 1), ("gpu:0", 0), (None, 1)], ids=str)
def test_ranks_of_a_host_take_its_gpus_in_turn_unless_one_is_named(
    device: str | None, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gpu:
        xp = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=lambda: 2)))

        def __init__(self, number: int) -> None:
            self.number = number

    for name, stand_in in (("GpuDevice", Gpu), ("gpu_device", Gpu), ("get_device", lambda name: Gpu(0))):
        monkeypatch.setattr(construction, name, stand_in)
    monkeypatch.setenv("GSPARSE_DEVICE", "gpu")
    ranks: Any = SimpleNamespace(world_size=4)
    assert construction._chosen_device(device, ranks, 3).number == number  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "", "MASTER_ADDR": ""}, "missing: RANK, MASTER_ADDR: start the program with torchrun"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be an integer, got 'two'"),
        ({"RANK": "2"}, "RANK must be at least 0 and less than WORLD_SIZE: got 2 of 2"),
        ({"TORCHELASTIC_RUN_ID": ""}, "GSPARSE_SECRET to the same random characters"),
    ],
    ids=["missing", "no number", "no rank", "no secret"],
)
def test_an_error_says_which_variable_is_wrong(environment: Any, changes: dict[str, str], message: str) -> None:
    environment(**changes)
    with pytest.raises(CommunicationError, match=message):
        from_torchrun(sp.csr_array((2, 2)), device="cpu")


def test_the_default_port_is_none_that_systems_choose_for_other_connections() -> None:
    assert [torchrun._default_port(port) for port in (29500, 32766, 32767, 45678)] == [29501, 32767, 22767, 25678]


def test_a_port_that_another_program_uses_is_an_error_with_the_remedy(environment: Any) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        environment(port=port)
        with pytest.raises(CommunicationError, match=r"cannot listen at port .*Pass another port="):
            from_torchrun(sp.csr_array((2, 2)), device="cpu")


@pytest.mark.timed
def test_the_wait_for_ranks_ends_at_the_timeout(environment: Any) -> None:
    environment(size=3)
    with pytest.raises(
        CommunicationError, match=r"ranks \[1, 2\] have not reached rank 0 at 127\.0\.0\.1:\d+ in 0\.5 s"
    ):
        from_torchrun(sp.csr_array((2, 2)), device="cpu", timeout=0.5)
    environment(rank=1)
    began = time.monotonic()
    with pytest.raises(CommunicationError, match="rank 1 cannot join rank 0"):
        from_torchrun(sp.csr_array((2, 2)), device="cpu", timeout=0.5)
    assert time.monotonic() - began < SOON


def test_a_rank_that_ends_before_it_has_the_addresses_is_an_error_that_names_it() -> None:
    place, options = ("127.0.0.1", free_port()), {"purpose": torchrun._PURPOSE, "waits": True}
    with ThreadPoolExecutor(2) as pool:
        collecting = pool.submit(torchrun._collect_addresses, place, 3, SECRET, LONG)
        exchanging = pool.submit(torchrun._exchange_addresses, place, 1, 3, SECRET, LONG)
        with pytest.raises(OSError, match=r"closed|reset|pipe"):  # a stranger
            join(place, 2, 0, b"guessed", Deadline(LONG), **options)  # type: ignore[arg-type]
        join(place, 2, 0, SECRET, Deadline(LONG), **options).close()  # type: ignore[arg-type]
        with pytest.raises(CommunicationError, match="rank 0 cannot exchange addresses with rank 2: the"):
            collecting.result()
        with pytest.raises(CommunicationError, match="rank 1 cannot join rank 0"):
            exchanging.result()
