"""Memory numbers come from the kernel and follow the actual memory of the process."""

import subprocess
import sys

import pytest

from dithc.pages import available_bytes, peak_rss_bytes, pss_bytes, reset_peak_rss

BLOCK_BYTES = 64 << 20
COUNTER_SLACK_BYTES = 4 << 20  # the kernel counts resident pages per CPU and adds them up in batches


PEAK_OF_A_BLOCK = f"""
import numpy as np
from dithc.pages import peak_rss_bytes, reset_peak_rss
before = peak_rss_bytes()
block = np.ones((before + {BLOCK_BYTES}) // 8)
peak = peak_rss_bytes()
assert peak >= before + {BLOCK_BYTES - COUNTER_SLACK_BYTES}
del block
assert peak_rss_bytes() >= peak - {COUNTER_SLACK_BYTES}
if reset_peak_rss():
    assert peak_rss_bytes() < peak - {BLOCK_BYTES // 2}
"""


PSS_OF_A_BLOCK = f"""
import numpy as np
from dithc.pages import pss_bytes
before = pss_bytes()
if before is None:
    print("none")
else:
    block = np.ones({BLOCK_BYTES // 8})
    assert pss_bytes() > before + {BLOCK_BYTES // 2}
"""


@pytest.mark.slow
def test_the_peak_stays_after_memory_is_returned_until_it_is_reset():
    # In a separate process, because the block must be larger than the previous peak of the process.
    in_a_process_of_its_own(PEAK_OF_A_BLOCK)


@pytest.mark.slow
def test_touched_pages_count_in_the_proportional_size():
    # In a separate process, because one that has retained freed memory would not grow.
    if "none" in in_a_process_of_its_own(PSS_OF_A_BLOCK):
        pytest.skip("this kernel has no smaps_rollup")


def in_a_process_of_its_own(text: str) -> str:
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_the_kernel_does_not_offer_is_none(tmp_path):
    assert pss_bytes(proc=tmp_path) is None
    assert available_bytes(root=tmp_path) is None
    assert reset_peak_rss(proc=tmp_path) is False


def test_without_procfs_the_peak_comes_from_getrusage(tmp_path):
    assert peak_rss_bytes(proc=tmp_path) > 1 << 20


def test_available_memory_is_less_than_the_machine_has():
    assert 0 < available_bytes() < 1 << 50
