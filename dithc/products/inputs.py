"""The inputs of a manifest, found where they were or beside it, and known by their digests."""

from pathlib import Path

from dithc.log import problem
from dithc.runs import Manifest


def input_of(path: Path, manifest: Manifest, *, stage: str) -> tuple[Path, Manifest] | None:
    """Path and manifest of the input of a stage: the one that was used, told by its digest; None where it is not found.

    Looked for where it stood, and, for results that were moved as a whole, at its place beside `path`.
    """
    results = path.absolute().parents[min(2, len(path.absolute().parents) - 1)]  # of RESULTS/samples/NAME/manifest.json
    for recorded, digest in manifest.inputs.items():
        for candidate in (Path(recorded), results.joinpath(*Path(recorded).parts[-3:])):
            if candidate.is_file():
                found = Manifest.read(candidate)
                if (found.stage, found.digest) == (stage, digest):
                    return candidate, found
    return None


def needed_input(path: Path, manifest: Manifest, *, stage: str) -> tuple[Path, Manifest]:
    """As `input_of`.

    Raises:
        UserError: it is not found.
    """
    found = input_of(path, manifest, stage=stage)
    if found is None:
        said = ", ".join(f"{recorded} ({digest})" for recorded, digest in manifest.inputs.items())
        raise problem(
            f"the {'scenes' if stage == 'stage' else stage} that {path} was made from are not found",
            got="no manifest of that stage and digest",
            expected=f"one of its inputs, where they were or beside it: {said}",
            remedy="start in the folder where the stages were run, copy the folder of results as a whole, or run the earlier "
            "stage again",
        )
    return found
