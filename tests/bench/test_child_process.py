"""Child processes of a benchmark end with it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dithc.bench.child_process import run_child

SLEEP = [sys.executable, "-c", "import time; time.sleep(3600)"]
BENCH = f"""
import sys
from dithc.bench.child_process import run_child
with run_child({SLEEP!r}) as child:
    sys.stdout.write(f"{{child.pid}}\\n")
    sys.stdout.flush()
    child.wait()
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_sigterm_terminates_the_child_and_sets_the_exit_status():
    with subprocess.Popen([sys.executable, "-c", BENCH], stdout=subprocess.PIPE, text=True) as bench:
        child = int(bench.stdout.readline())
        assert is_alive(child)
        bench.terminate()
        assert bench.wait(timeout=600) == 128 + signal.SIGTERM
    deadline = time.monotonic() + 600
    while is_alive(child):
        assert time.monotonic() < deadline, "the child outlived its benchmark"
        time.sleep(0.02)


def test_error_terminates_the_child_and_restores_the_handler():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="spoiled"), run_child(SLEEP) as child:
        raise ValueError("spoiled")
    assert child.returncode == -signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
