from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from streams.processes import Child, free_port
from tests.services import wait_for


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_child_is_started_again_until_it_is_stopped(tmp_path):
    async def main():
        told = []
        child = Child("worker", [sys.executable, "-c", "print('hi')"], tmp_path / "log")
        task = asyncio.create_task(child.keep(told.append))
        async with asyncio.timeout(30):
            while child.lives < 3:
                await asyncio.sleep(0.01)
            await child.stop()
            await task
        assert told[0] == "worker ended (status 0), starts again in 0.2 s: hi"
        assert child.last_lines(1) == ["hi"]

    asyncio.run(main())


def test_a_child_that_ignores_sigterm_is_killed(tmp_path):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('up', flush=True); time.sleep(60)"
    )

    async def main():
        child = Child("stubborn", [sys.executable, "-c", code], tmp_path / "log")
        task = asyncio.create_task(child.keep(lambda line: None))
        async with asyncio.timeout(30):
            while not child.log.exists() or not child.last_lines():
                await asyncio.sleep(0.01)
            await child.stop(grace=0.1)
            await task
        assert not alive(child.pid)

    asyncio.run(main())


def test_a_child_dies_with_a_parent_that_is_killed(tmp_path):
    script = f"""
import asyncio, sys
from pathlib import Path
from streams.processes import Child
async def main():
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    child = Child("c", [sys.executable, "-c", code], Path({str(tmp_path / "log")!r}))
    await child.start()
    print("started", flush=True)
    await child.ended()
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    log = tmp_path / "log"
    wait_for(lambda: log.read_bytes().endswith(b"\n"), "the child's process id")
    pid = int(log.read_bytes())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not alive(pid), "the end of the child", 10)


def test_signals_stop_a_run():
    code = """
import asyncio
from streams.processes import until_stopped
async def run(stop):
    print("up", flush=True)
    await stop.wait()
    return "stopped"
print(until_stopped(run))
"""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        out, _ = process.communicate(timeout=20)
        assert (out, process.returncode) == ("stopped\n", 0)


def test_a_taken_port_is_replaced():
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
    deadline = time.monotonic() + 5
    while free_port(port) != port:
        assert time.monotonic() < deadline
