"""Search for the inputs of a manifest by digest, at the recorded paths and in the folder of the results."""

from pathlib import Path

from dithc.core.artifacts import Manifest
from dithc.core.logging import user_error


def find_input(
    path: Path, manifest: Manifest, *, stage: str, name: str | None = None, hint: Path | None = None
) -> tuple[Path, Manifest] | None:
    """Return path and manifest of an input of a stage, with this name (default: any), or None.

    The digest identifies the input. The search tries `hint`, the recorded path, and the same folder of results as
    `path`, for results that were moved together.
    """
    results = path.absolute().parents[min(2, len(path.absolute().parents) - 1)]  # of RESULTS/samples/NAME/manifest.json
    for recorded, digest in manifest.inputs.items():
        for candidate in (hint or Path(recorded), Path(recorded), results.joinpath(*Path(recorded).parts[-3:])):
            if candidate.is_file():
                input_manifest = Manifest.read(candidate)
                found = input_manifest.stage, input_manifest.name, input_manifest.digest
                if found == (stage, name or input_manifest.name, digest):
                    return candidate, input_manifest
    return None


def require_input(path: Path, manifest: Manifest, *, stage: str, hint: Path | None = None) -> tuple[Path, Manifest]:
    """Return the result of `find_input`, or raise UserError if it is None."""
    stage_input = find_input(path, manifest, stage=stage, hint=hint)
    if stage_input is None:
        recorded = ", ".join(f"{path} ({digest})" for path, digest in manifest.inputs.items())
        raise user_error(
            f"the {'scenes' if stage == 'ingest' else stage} of {path} were not found",
            got="no manifest of this stage and digest",
            expected=f"one of its inputs at the recorded path or in the same folder of results: {recorded}",
            fix="start in the working folder of the stages, copy all results, or rerun the earlier stage",
        )
    return stage_input
