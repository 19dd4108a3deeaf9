"""Kernels of patched models on torch's threads: the same threads and results for any caller and number of threads."""

import gc
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from dithc.core.logging import UserError
from dithc.engine import hcops, native
from dithc.engine.native import contexts, thread_layout
from tests.engine.native.context_threads import run_on_threads
from tests.engine.native.scripts import run_script

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C library")
has_openmp = pytest.mark.skipif(isinstance(thread_layout.torch_openmp(), str), reason=str(thread_layout.torch_openmp()))
THREADS = 3


@pytest.fixture(autouse=True)
def three_threads():
    """Use more than one thread on every machine, and restore the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)
    gc.collect()


def team_threads():
    """Return the native ids of the threads that kernels run on now."""
    found = {}
    run_on_threads(lambda thread, threads: found.update({(thread, threads): threading.get_native_id()}))
    return found


def script(text):
    done = run_script(text, OMP_NUM_THREADS=str(THREADS))
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@has_openmp
@pytest.mark.slow
def test_torch_threads_option_creates_no_additional_threads():
    """Runs in a separate process and counts its threads."""
    text = """
import os, torch
torch.set_num_threads(3)
from dithc.engine import hcops
count = lambda: len(os.listdir("/proc/self/task"))
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.LayerNorm(512), torch.nn.GELU(), torch.nn.Linear(512, 256))
def step():
    model(torch.ones(256, 256)).square().sum().backward()
step()
before = count()
patched = hcops.patch(model, always=True, threads={threads!r})
step()
print(all(row.served for row in patched.table()), torch.get_num_threads(), count() - before)
"""
    assert script(text.format(threads="torch")).split() == ["True", str(THREADS), "0"]
    assert script(text.format(threads="own")).split() == ["True", str(THREADS), str(THREADS - 1)]


@pytest.mark.slow
@has_openmp
def test_torch_threads_are_used_until_the_last_model_is_unpatched(caplog):
    team, model, second = team_threads(), nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    with caplog.at_level(logging.INFO):
        hcops.patch(model)
    assert "on torch's threads" in caplog.text
    shared = team_threads()
    assert shared.keys() == team.keys() == {(thread, THREADS) for thread in range(THREADS)}
    assert set(shared.values()) & set(team.values()) == {threading.get_native_id()}
    assert team_threads() == shared  # the runtime keeps them
    hcops.patch(second)
    hcops.unpatch(model)
    assert team_threads() == shared
    hcops.unpatch(second)
    gc.collect()
    assert team_threads() == team


@has_openmp
def test_number_of_threads_follows_torch():
    model = nn.Sequential(nn.Linear(2, 2))
    hcops.patch(model)
    for threads in (1, 4, 2):
        torch.set_num_threads(threads)
        assert team_threads().keys() == {(thread, threads) for thread in range(threads)}


@has_openmp
@pytest.mark.parametrize("threads", ["torch", "own"])
def test_results_are_bitwise_equal_for_any_threads_and_callers(threads):
    """Results are equal bit for bit with several concurrent callers. A CPU graph's backward pass runs in the calling
    thread.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 64))
    x = torch.randn(65, 64)

    def gradients(*, calls=1):
        for _ in range(calls):
            found = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        return found

    hcops.patch(model, always=True, threads=threads)
    expected = gradients()
    with ThreadPoolExecutor(3) as callers:
        for result in callers.map(lambda _: gradients(calls=10), range(3)):
            assert all(torch.equal(a, b) for a, b in zip(expected, result, strict=True))
    hcops.unpatch(model)
    hcops.patch(model, always=True, threads="own")
    assert all(torch.equal(a, b) for a, b in zip(expected, gradients(), strict=True))


@has_openmp
@pytest.mark.slow
def test_forked_child_computes_without_openmp_threads():
    """libgomp's threads do not exist in the child, and a region would wait for them forever."""
    text = """
import os, torch
torch.set_num_threads(3)
from dithc.engine import hcops
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU())
hcops.patch(model, always=True)
x = torch.ones(256, 256)
with torch.no_grad():
    before, wanted = model(x), hcops.linear(x, model[0].weight, model[0].bias)
    child = os.fork()
    if child == 0:
        found = hcops.linear(x, model[0].weight, model[0].bias)
        os._exit(0 if found[7, 9].item() == wanted[7, 9].item() else 3)  # torch itself would wait for ever
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.equal(before, model(x)))
"""
    assert script(text).split() == ["0", "True"]


def test_separate_team_is_used_and_logged_without_openmp(monkeypatch, caplog):
    monkeypatch.setattr(contexts, "torch_openmp", lambda: "this torch does not run on OpenMP")
    team = team_threads()
    with caplog.at_level(logging.INFO):
        hcops.patch(nn.Sequential(nn.Linear(2, 2)))
    assert "separate team of threads: this torch does not run on OpenMP" in caplog.text
    assert team_threads() == team


def test_unknown_threads_option_is_rejected():
    with pytest.raises(UserError, match="'torch' or 'own'"):
        hcops.patch(nn.Linear(2, 2), threads="theirs")
