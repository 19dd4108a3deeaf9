"""Python programs in separate processes."""

import os
import subprocess
import sys


def run_script(text: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program with arguments and further environment variables, and return its output."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=600)
