"""Existing profiles: their folder, the request of a job on one of their nodes, changes of their section `machine`."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dithc.config import load_machine
from dithc.core.artifacts import atomic_write
from dithc.core.logging import user_error

PROFILES = Path("profiles")
MACHINE = re.compile(r"^(\s*- )?[\"']?machine=.*$", re.MULTILINE)


def profile_folder(name: str) -> Path:
    """Return the folder of a profile, given the folder or its name in `profiles/`."""
    return Path(name) if (Path(name) / "config.yaml").exists() else PROFILES / name


def job_options(name: str, *, minutes: int, job: str, nodes: int = 1) -> list[str]:
    """Return options of sbatch for complete nodes of a profile."""
    machine, content = load_machine(profile_folder(name))
    resources = content.get("default-resources") or {}
    options = [f"--nodes={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={machine.cpus_per_node or 1}"]
    options += [f"--time={minutes}"]
    options += [f"--mem={machine.memory_per_node_mb}"] if machine.memory_per_node_mb else []
    for key, option in (("slurm_partition", "partition"), ("slurm_account", "account")):
        options += [f"--{option}={resources[key]}"] if resources.get(key) else []
    return [*options, f"--job-name={job}"]


def update_profile(name: str, changes: Mapping[str, Any]) -> tuple[Path, list[str]]:
    """Change keys of the section `machine` of a profile; return its file and the changed values as text.

    Raises UserError if the profile has no line `machine={...}`.
    """
    path = profile_folder(name) / "config.yaml"
    machine, _ = load_machine(path.parent)
    text = path.read_text()
    if len(MACHINE.findall(text)) != 1:
        raise user_error(
            f"section `machine` of {path}",
            got="no single line of the form machine={...}",
            expected="a line as in the profiles of `dithc doctor --write-profile`",
            fix="without --write, copy the printed section into the profile",
        )
    given = {key: getattr(machine, key) for key in machine.model_fields_set} | dict(changes)
    content = {
        key: value.model_dump(mode="json") if hasattr(value, "model_dump") else value for key, value in given.items()
    }
    flow = ", ".join(f"{key}: {json.dumps(value)}" for key, value in content.items())
    indent = next(MACHINE.finditer(text))[1] or ""
    atomic_write(path, MACHINE.sub(lambda _: f"{indent}{json.dumps(f'machine={{{flow}}}')}", text))
    load_machine(path.parent)
    changed = [
        f"{key} {getattr(machine, key)} -> {value}" for key, value in changes.items() if getattr(machine, key) != value
    ]
    return path, changed
