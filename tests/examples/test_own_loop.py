"""Test of a custom training loop that resumes after a stop."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.slow
def test_loop_that_is_started_again_comes_to_the_same_images(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from own_loop import main; import torch; "
        "first, second, full = (main(f'{sys.argv[2]}/{name}', steps) for name, steps in (('a', 20), ('a', 60), ('b', 60))); "
        "assert first.shape == (16, 1, 8, 8) and torch.equal(second, full) and not torch.equal(first, second)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(EXAMPLES), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 50: loss") == 2
