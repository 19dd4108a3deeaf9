"""`dithc verify`: finds missing and altered outputs, and rebuilds them on request."""

import argparse
import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.core.logging import escaping, get_logger, user_error

if TYPE_CHECKING:
    from dithc.cli.results.verification import VerificationReport

SUMMARY = "Finds missing and altered files, prints the way to restore each, and restores them with --repair."
EXAMPLE = "dithc verify results/demo store\ndithc verify results/demo store --repair --profile profiles/local"
CONFIG = "config.json"
log = get_logger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="document, results/NAME, or store")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result to this file")
    parser.add_argument("--repair", action="store_true", help="delete altered files, and run the workflow")
    parser.add_argument("--profile", metavar="FOLDER", help="with --repair: profile, such as profiles/local")
    files = "with --repair: configuration of the experiment (default: config.json of the results)"
    parser.add_argument("--configfile", type=Path, nargs="+", default=[], metavar="FILE", help=files)


def run(args: argparse.Namespace) -> int:
    """Verify the paths. Return 1 if a file is missing or altered and was not restored."""
    from dithc.cli import main
    from dithc.cli.results.verification import find
    from dithc.config import load_experiment
    from dithc.core.artifacts import outputs

    files = _config_of(args) if args.repair else []
    folders = [path if path.is_dir() else path.parent for path in args.paths]
    with ExitStack() as stack:
        if files:  # before any file is deleted
            experiment = load_experiment(files)
            _acquire_leases(stack, [Path(experiment.results, experiment.name), *folders])
        report = find(args.paths)
        _print_report(report)
        if report.problems and args.repair:
            _remove(report, within=folders)
    if report.problems and args.repair:
        status = main(["run", "--profile", args.profile, "--configfile", *map(str, files)])
        if status:
            return status
        report = find(args.paths)
        _print_report(report)
    elif report.problems:
        log.warning("rerun with --repair --profile FOLDER to delete these and rebuild them by the workflow")
    if args.json:
        outputs.write(args.json, json.dumps(asdict(report), indent=1) + "\n")
    return 1 if report.problems else 0


def _acquire_leases(stack: ExitStack, folders: list[Path]) -> None:
    """Acquire the driver's lease of the first folder, and all leases in the folders, until altered files are deleted.

    Raises UserError if another process works there, such as Snakemake or a training run that outlived its parent.
    """
    from dithc.core.artifacts import Lease

    leases = [Lease(folder, wait_seconds=0.0) for folder in folders[:1] if folder.is_dir()]
    leases += [lease for folder in folders for lease in (Lease.for_folder(folder), *Lease.find(folder))]
    for lease in {lease.path.resolve(): lease for lease in leases}.values():
        stack.enter_context(lease)


def _print_report(report: "VerificationReport") -> None:
    for fault in report.problems:
        print(f"{escaping.escaped(fault.text)}\n  {escaping.escaped(fault.fix)}")
    count = len(report.problems)
    verdict = f"{count} fault{'s' * (count != 1)}" if count else "all intact"
    print(f"{report.files} files ({report.bytes:,} bytes) of {report.documents} documents: {verdict}")


def _config_of(args: argparse.Namespace) -> list[Path]:
    """Return the configuration files of the experiment that rebuilds the outputs; UserError without files or profile."""
    files = args.configfile or [path / CONFIG for path in args.paths if (path / CONFIG).is_file()]
    if args.profile is None or not files or (len(files) > 1 and not args.configfile):
        got = f"--profile {args.profile}, configuration {', '.join(map(str, files)) or 'none'}"
        expected = "the profile of this machine, and one results/NAME with its config.json, or --configfile"
        raise user_error("`--repair` needs a profile and a configuration", got=got, expected=expected, fix=EXAMPLE)
    if not Path(args.profile).is_dir():
        raise user_error(
            "`--profile` is not a folder",
            got=args.profile,
            expected="the profile of this machine, such as profiles/local",
            fix="correct the path; no file was deleted",
        )
    return files


def _remove(report: "VerificationReport", *, within: list[Path]) -> None:
    """Delete missing or altered outputs, only inside the folders that the user passed."""
    from dithc.core.artifacts import atomic_write, outputs
    from dithc.core.integrity import dump_checksummed_line, load_checksummed_lines

    folders = [folder.resolve() for folder in within]
    for fault in report.problems:
        path = Path(fault.path)
        if not any(path.parent.resolve().is_relative_to(folder) for folder in folders):
            log.warning(f"{path} is kept: it is outside of {', '.join(map(str, within))}; pass its folder too")
            continue
        if fault.delete != "name" and path.exists() and not outputs.owns(path):
            log.warning(f"{path} is kept: no marker or manifest lists it with its size; delete it if it is not needed")
            continue
        if fault.delete == "lines":
            rows, _ = load_checksummed_lines(path.read_text(errors="replace"))
            atomic_write(path, "".join(map(dump_checksummed_line, rows)))
        elif fault.delete == "folder":
            outputs.remove(path.parent, manifest=path.name)
        elif fault.delete == "name":
            path.rename(target := path.with_name(f"{path.name}.altered"))
            log.info(f"renamed {path} to {target.name}")
            continue
        else:
            path.unlink(missing_ok=True)
        log.info(f"deleted the altered {fault.delete} {'of' if fault.delete == 'lines' else 'at'} {path}")
