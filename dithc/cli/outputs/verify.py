"""`dithc verify`: looks at everything that was written, byte by byte, and has made again what is not as it was."""

import argparse
import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.log import escaping, logger, problem

if TYPE_CHECKING:
    from dithc.cli.outputs.findings import Finding

SUMMARY = (
    "Finds every file that is missing or not as it was written, says what makes it again, and with --repair does so."
)
EXAMPLE = "dithc verify results/demo store\ndithc verify results/demo store --repair --profile profiles/local"
CONFIG = "config.json"
log = logger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    parser.add_argument(
        "paths", type=Path, nargs="+", metavar="PATH", help="a document, or a folder: results/NAME, the store"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was found to this file")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="delete what is not as it was written, and run the workflow of each results/NAME among the paths",
    )
    parser.add_argument("--profile", metavar="FOLDER", help="with --repair: the machine, such as profiles/local")
    parser.add_argument(
        "--configfile",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="with --repair: the experiment (default: config.json of the results)",
    )


def run(args: argparse.Namespace) -> int:
    """Verifies; status 1 when anything is missing or altered, and was not made again."""
    from dithc.cli import main
    from dithc.cli.outputs.findings import find
    from dithc.config import experiment_of
    from dithc.runs import outputs

    files = _config_of(args) if args.repair else []
    folders = [path if path.is_dir() else path.parent for path in args.paths]
    with ExitStack() as alone:
        if files:  # before anything is deleted
            experiment = experiment_of(files)
            _keep_out_others(alone, [Path(experiment.results, experiment.name), *folders])
        finding = find(args.paths)
        _tell(finding)
        if finding.faults and args.repair:
            _remove(finding, within=folders)
    if finding.faults and args.repair:
        status = main(["run", "--profile", args.profile, "--configfile", *map(str, files)])
        if status:
            return status
        finding = find(args.paths)
        _tell(finding)
    elif finding.faults:
        log.warning("with --repair --profile FOLDER these are deleted, and the workflow makes them again")
    if args.json:
        outputs.write(args.json, json.dumps(asdict(finding), indent=1) + "\n")
    return 1 if finding.faults else 0


def _keep_out_others(alone: ExitStack, folders: list[Path]) -> None:
    """Takes the driver's lease, and every other that lies in the folders, until all that is wrong is deleted.

    Args:
        alone: gives them back, before the workflow makes things again.
        folders: the experiment's results, and those that were named.

    Raises:
        UserError: somebody works there; also Snakemake, whose `dithc run` was killed, or a training, whose Snakemake was.
    """
    from dithc.runs import Lease

    leases = [Lease(folder, wait_seconds=0.0) for folder in folders[:1] if folder.is_dir()]
    leases += [lease for folder in folders for lease in (Lease.beside(folder), *Lease.below(folder))]
    for lease in {lease.path.resolve(): lease for lease in leases}.values():
        alone.enter_context(lease)


def _tell(finding: "Finding") -> None:
    for fault in finding.faults:
        print(f"{escaping.escaped(fault.what)}\n  {escaping.escaped(fault.fix)}")
    verdict = f"{len(finding.faults)} faults" if finding.faults else "all as they were written"
    print(f"{finding.files} files ({finding.bytes:,} bytes) of {finding.documents} documents: {verdict}")


def _config_of(args: argparse.Namespace) -> list[Path]:
    """The files of the experiment that is run to make things again.

    Raises:
        UserError: they are not known; nothing was deleted.
    """
    files = args.configfile or [path / CONFIG for path in args.paths if (path / CONFIG).is_file()]
    if args.profile is None or not files or (len(files) > 1 and not args.configfile):
        raise problem(
            "it is not said what makes things again",
            got=f"--profile {args.profile}, configuration {', '.join(map(str, files)) or 'none'}",
            expected="the profile of this machine, and one results/NAME with its config.json, or --configfile",
            fix=EXAMPLE,
        )
    if not Path(args.profile).is_dir():
        raise problem(
            "`--profile` is not a folder",
            got=args.profile,
            expected="the profile of this machine, such as profiles/local",
            fix="correct the path; no file was deleted",
        )
    return files


def _remove(finding: "Finding", *, within: list[Path]) -> None:
    """Deletes what is not as it was written, in the folders that were named: elsewhere a document of others has no say."""
    from dithc.runs import atomic_write, outputs
    from dithc.sealed import seal_line, unseal_lines

    folders = [folder.resolve() for folder in within]
    for fault in finding.faults:
        path = Path(fault.path)
        if not any(path.parent.resolve().is_relative_to(folder) for folder in folders):
            log.warning(f"{path} stays: it is outside of {', '.join(map(str, within))}; name its folder too")
            continue
        if not outputs.owns(path) and path.exists():
            log.warning(
                f"{path} is kept: no marker and no manifest lists it with its size; delete it if it is no longer needed"
            )
            continue
        if fault.goes == "lines":
            rows, _ = unseal_lines(path.read_text(errors="replace"))
            atomic_write(path, "".join(map(seal_line, rows)))
        elif fault.goes == "folder":
            outputs.remove(path.parent, manifest=path.name)
        else:
            path.unlink(missing_ok=True)
        log.info(f"{path}: the {fault.goes} that {'are' if fault.goes == 'lines' else 'is'} not as written: deleted")
