"""Place of the project files: Snakefile, workflow, configurations and profiles."""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def project_folder() -> Path:
    """Return the folder with the project files: `dithc/project` of an installed wheel, or the root of the checkout."""
    installed = PACKAGE / "project"
    return installed if installed.is_dir() else PACKAGE.parent
