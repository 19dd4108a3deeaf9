"""`dithc init`: lay out the workflow, configurations and profiles in a folder."""

import argparse
import shutil
from pathlib import Path

from dithc.core.caches import project_folder
from dithc.core.logging import get_logger, user_error

SUMMARY = "Copies Snakefile, workflow, config and profiles into a folder. `dithc run` starts there."
EXAMPLE = "dithc init my-project"
CONTENTS = ("Snakefile", "workflow", "config", "profiles")
LINK, LINKED_PROFILE = "cluster", "profiles/slurm"
log = get_logger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="new folder, or a folder without these names")


def run(args: argparse.Namespace) -> int:
    folder: Path = args.folder
    existing = [name for name in (*CONTENTS, LINK) if (folder / name).exists() or (folder / name).is_symlink()]
    if existing:
        expected = f"a folder without {', '.join((*CONTENTS, LINK))}"
        fix = "choose another folder, or remove these files"
        raise user_error(f"{folder} already contains a project", got=", ".join(existing), expected=expected, fix=fix)
    source = project_folder()
    folder.mkdir(parents=True, exist_ok=True)
    for name in CONTENTS:
        copy = shutil.copytree if (source / name).is_dir() else shutil.copyfile
        copy(source / name, folder / name)
    (folder / LINK).symlink_to(LINKED_PROFILE)
    log.info("wrote %s to %s", ", ".join((*CONTENTS, LINK)), folder)
    print(f"cd {folder} && dithc run --profile profiles/local --configfile config/experiments/demo.yaml")
    return 0
