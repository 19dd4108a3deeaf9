"""Search for the inputs of a manifest, identified by their digests, at the recorded paths and next to the manifest."""

from pathlib import Path

from dithc.log import problem
from dithc.runs import Manifest


def input_of(path: Path, manifest: Manifest, *, stage: str, at: Path | None = None) -> tuple[Path, Manifest] | None:
    """Return path and manifest of the input of a stage, identified by its digest; None if it is not found.

    The search tries `at`, the recorded path, and the place relative to `path` for results that were moved together.
    """
    results = path.absolute().parents[min(2, len(path.absolute().parents) - 1)]  # of RESULTS/samples/NAME/manifest.json
    for recorded, digest in manifest.inputs.items():
        for candidate in (at or Path(recorded), Path(recorded), results.joinpath(*Path(recorded).parts[-3:])):
            if candidate.is_file():
                found = Manifest.read(candidate)
                if (found.stage, found.digest) == (stage, digest):
                    return candidate, found
    return None


def needed_input(path: Path, manifest: Manifest, *, stage: str, at: Path | None = None) -> tuple[Path, Manifest]:
    """As `input_of`.

    Raises:
        UserError: it is not found.
    """
    found = input_of(path, manifest, stage=stage, at=at)
    if found is None:
        said = ", ".join(f"{recorded} ({digest})" for recorded, digest in manifest.inputs.items())
        raise problem(
            f"the {'scenes' if stage == 'stage' else stage} that {path} was made from are not found",
            got="no manifest of that stage and digest",
            expected=f"one of its inputs, where they were or beside it: {said}",
            fix="start in the folder where the stages were run, copy the folder of results as a whole, or run the earlier "
            "stage again",
        )
    return found
