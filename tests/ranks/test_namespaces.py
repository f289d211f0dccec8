"""A cluster over several hosts, which are network namespaces: started by hand, and with a cable that is pulled out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

pytestmark = pytest.mark.timed

ROOT = Path(__file__).parents[2]
# The scheduler and the client are on the first host, a worker on each of the others.
HOSTS = 3
SCHEDULER = "tcp://10.77.0.1:8786"
# Seconds until the error: the allowed silence, the time for the other rank's reason to arrive, and a busy machine.
SOON = 30

# Seconds of silence after which dask considers a worker lost, long after gsparse does.
PATIENCE = {
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "60s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "30s",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "120s",
}

# This program runs on the first host. While the ranks solve, it disconnects the last host. After the error it connects
# the host again, and prints its observations. Packets are lost without notice: no connection is reset.
CLIENT = """
import json, subprocess, sys, time
from distributed import Client
import gsparse.linalg as gla
from gsparse.distributed import distribute
from tests.linalg.problems import residual
from tests.ranks.faults import B, S, TIMEOUT, start_solve

def turn(state):
    subprocess.run(["ip", "link", "set", sys.argv[2], state], check=True)

seen = {}
with Client(sys.argv[1], timeout=60) as client:
    client.wait_for_workers(2, timeout=60)
    A = distribute(S, client=client, timeout=TIMEOUT)
    seen["hosts"] = sorted(address.split("/")[2].split(":")[0] for address in A.workers)
    seen["product"] = float(abs(A @ B - S @ B).max())
    seen["before"] = float(residual(S, gla.cg(A, B, rtol=1e-10)[0], B))
    solve = start_solve(client, A)  # an endless one
    turn("down")
    began = time.monotonic()
    try:
        error = solve.wait(60)
        seen["seconds"] = time.monotonic() - began
    finally:
        turn("up")
    seen["error"], seen["text"] = [kind.__name__ for kind in type(error).__mro__], str(error)
    seen["after"] = float(residual(S, gla.cg(A, B, rtol=1e-10)[0], B))
    A.close()
print(json.dumps(seen))
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def own_of(host: int) -> str:
    return f"gsparse-{os.getpid()}-{host}"


def port_of(host: int) -> str:
    """Return the name of the switch's end of a host's cable, which is on the first host."""
    return f"port{host}"


@contextmanager
def hosts() -> Iterator[None]:
    """Make the hosts, from 10.77.0.1 on, and a switch between them; remove all of it afterwards."""
    with ExitStack() as stack:
        for host in range(HOSTS):
            ip("netns", "add", own_of(host))
            stack.callback(ip, "netns", "del", own_of(host))
            ip("-n", own_of(host), "link", "set", "lo", "up")
        first = own_of(0)
        ip("-n", first, "link", "add", "switch", "type", "bridge")
        ip("-n", first, "addr", "add", "10.77.0.1/24", "dev", "switch")
        ip("-n", first, "link", "set", "switch", "up")
        for host in range(1, HOSTS):
            ip("-n", first, "link", "add", port_of(host), "type", "veth", "peer", "name", "net", "netns", own_of(host))
            ip("-n", first, "link", "set", port_of(host), "master", "switch", "up")
            ip("-n", own_of(host), "addr", "add", f"10.77.0.{host + 1}/24", "dev", "net")
            ip("-n", own_of(host), "link", "set", "net", "up")
        yield


@pytest.fixture
def network() -> Iterator[None]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2's ip")
    with ExitStack() as stack:
        try:
            stack.enter_context(hosts())
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no network namespaces: {error.stderr.strip()}")
        yield


def start(host: int, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, **PATIENCE, "PYTHONPATH": str(ROOT), "GSPARSE_DEVICE": "cpu"}
    command = ["ip", "netns", "exec", own_of(host), sys.executable, *arguments]
    return subprocess.Popen(command, env=environment, cwd=ROOT, text=True, **options)


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def test_a_network_failure_during_a_solve_is_an_error_and_the_next_solve_works(network: None, tmp_path: Path) -> None:
    log = (tmp_path / "log").open("w+")
    dask: Any = {"stdout": log, "stderr": log}
    with log, ExitStack() as stack:
        scheduler = ["--host", "10.77.0.1", "--no-dashboard"]
        stack.enter_context(ended(start(0, "-m", "dask", "scheduler", *scheduler, **dask)))
        for host in range(1, HOSTS):
            worker = ["--host", f"10.77.0.{host + 1}", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
            worker += ["--local-directory", str(tmp_path)]
            stack.enter_context(ended(start(host, "-m", "dask", "worker", SCHEDULER, *worker, **dask)))
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        client = start(0, "-c", CLIENT, SCHEDULER, port_of(HOSTS - 1), **pipes)
        with ended(client):
            out, errors = client.communicate(timeout=150)
        log.seek(0)
        assert client.returncode == 0, errors + log.read()
    seen = json.loads(out.splitlines()[-1])
    assert seen["hosts"] == ["10.77.0.2", "10.77.0.3"]
    assert seen["product"] < 1e-12
    assert max(seen["before"], seen["after"]) < 1e-9
    assert "CommunicationError" in seen["error"], seen
    assert seen["seconds"] < SOON, seen
