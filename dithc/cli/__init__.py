"""Command line `dithc COMMAND`. Each command is a module that is imported when it is called.

Purpose: workflow rules contain one shell line each, so that a user can run every stage by hand.

Contents: `main`, and one package per group of commands.

Invariants: settings come from the configuration file (`--config`), paths from arguments. A user error, or a file that
cannot be read or written (a full disk), is logged in four lines and ends with status 2. Status 75: stopped and saved,
rerun the command. Status 76: another process works on this run or folder. DITHC_LOG_LEVEL=DEBUG adds the traceback.

Extending: a command is a module with `SUMMARY`, `EXAMPLE`, `add_arguments(parser)` and `run(args) -> int`, registered
in `GROUPS`. A command that writes a folder defines `folder(args) -> Path`; its lease excludes other writers.
"""

import argparse
import atexit
import errno
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any, NoReturn

from dithc.cli import starting
from dithc.core import openmp
from dithc.core.integrity import Altered
from dithc.core.logging import UserError, get_logger, out_of_memory, setup_logging, user_error
from dithc.core.units import format_bytes

GROUPS = {
    "experiment": {
        "init": "copy the workflow, configurations and profiles into a folder",
        "run": "run an experiment, and show its stages",
        "status": "show the progress of experiments",
        "report": "write the report",
        "reproduce": "reproduce a table or figure of the paper from its cells",
    },
    "data": {
        "synthesize": "generate small inputs with realistic structure",
        "fetch": "download scenes of a catalog into a folder",
        "ingest": "read scenes into one grid",
        "tiles": "cut scenes into tiles",
        "codec": "train an autoencoder on tiles",
        "latents": "encode tiles",
    },
    "": {
        "train": "pre-train or fine-tune a DiT",
        "launch": "start ranks with the machine's launcher",
        "bench": "run a benchmark",
    },
    "evaluation": {
        "sample": "generate images from a checkpoint",
        "restore": "restore clouded, coarse or missing pixels of scenes",
        "extractor": "train a small feature extractor on tiles",
        "features": "extract features and their statistics",
        "fid": "compare generated with real features",
        "search-guidance": "search the guidance scale of an evaluation",
    },
    "machine": {
        "doctor": "check this machine and the installation",
        "plan": "predict time and memory of a training run, and choose its settings",
        "simulate": "simulate training on a described cluster",
        "tune-kernels": "find the fastest implementation of each matrix product here",
    },
    "results": {
        "verify": "verify the hashes of files listed in manifests",
        "show": "describe and draw any output of dithc",
        "export": "export weights or images for other programs",
    },
}
"""Summary of each command, by the package of its module; the commands without a package are modules of `dithc.cli`."""
COMMANDS = {name: summary for commands in GROUPS.values() for name, summary in commands.items()}
SINGLE_FILES = {"report", "search-guidance"}  # commands with an `--out` file in a folder that may hold other files
SCHEDULED_COMMANDS = {
    *(
        "synthesize",
        "ingest",
        "tiles",
        "codec",
        "latents",
        "train",
        "sample",
        "restore",
        "extractor",
        "features",
        "fid",
    ),
    *("bench", "report"),
}
"""Commands for which the configuration can request memory."""
TORCH = {
    *("codec", "latents", "train", "bench", "sample", "restore", "search-guidance", "extractor", "features"),
    "tune-kernels",
}
"""Commands that always import torch."""

FULL = "free space (or raise the quota), or write to another file system (temporary files: set TMPDIR); then restart"
DENIED = "change its permissions or owner, or choose another folder; then restart"
FIXES = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`), or write to another file system; then restart",
    errno.EROFS: "write to a file system that is not mounted read-only, or remount it; then restart",
    errno.EACCES: DENIED,
    errno.EPERM: DENIED,
    errno.EIO: "check the disk or the network file system (`dmesg`), then restart",
    errno.ESTALE: "check the network file system, then restart",
    errno.EISDIR: "pass the file, not its folder",
    errno.ENOENT: "check the path; if an earlier stage writes the file, run that stage first",
    errno.EMFILE: "raise the number of open files (`ulimit -n`), then restart",
}
"""Fix for an operating system error, by error number."""
FIX = "check the path and its file system, then restart"

__all__ = ["COMMANDS", "command_module", "main"]


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports errors in dithc's four-line form."""

    def error(self, message: str) -> NoReturn:
        from dithc.engine.comm.launch import exit_report

        expected = f"arguments as `{self.prog} --help` lists them"
        report = user_error(self.prog, got=message, expected=expected, fix="correct the command line")
        get_logger(f"dithc.{self.prog.split()[1]}").error(exit_report.deduplicated_message(str(report)))
        self.exit(2)


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    head, end = "usage: dithc <command> [arguments]\n\ncommands:\n", "`dithc <command> --help` shows an example.\n"
    return f"{head}{lines}\n\n{end}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute one command. Return the exit status."""
    if arguments is None:
        starting.use_utf8()
        atexit.register(gc.freeze)  # the collections at exit would visit a million objects of the libraries
    starting.open_streams()
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview(), end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"dithc {version('dithc')}")
        return 0
    if argv[0] not in COMMANDS:
        print(f"dithc: unknown command {argv[0]!r}\n\n{_overview()}", file=sys.stderr, end="")
        return 2
    # Threads that wait for each other spin. With libgomp's default of milliseconds, a training step next to another
    # busy process takes 20 times longer. 10,000 spins (tens of microseconds) have no measurable cost on dedicated
    # cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Otherwise pydantic reads the metadata of every installed package to find its plugins: 400 file operations per job.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    setup_logging(level=getattr(logging, os.environ.get("DITHC_LOG_LEVEL", "INFO").upper(), logging.INFO))
    starting.choose_folders()
    openmp.report()
    status = 1
    with starting.supervised(argv[0]) if arguments is None else nullcontext():
        try:
            status = _run_logged(argv)
        except SystemExit as end:  # raised by argparse: help, or an unknown argument
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            raise
        finally:
            if status:
                from dithc.engine.comm.launch import exit_report

                exit_report.report_exit(status)
    return status


def _run_logged(argv: Sequence[str]) -> int:
    """Run a command and log the error that ended it. Return the exit status."""
    try:
        return _run(argv)
    except KeyboardInterrupt:  # also while the module of the command is imported
        if starting.has_parent:
            raise
        get_logger(f"dithc.{argv[0]}").error("interrupted")
        return 128 + signal.SIGINT
    except UserError as error:
        from dithc.engine.comm.launch import exit_report

        get_logger(f"dithc.{argv[0]}").error(exit_report.deduplicated_message(str(error)))
        return error.status
    except BrokenPipeError:
        return 141
    except Altered as error:
        fix = "delete it and rerun the command that writes it"
        altered = user_error(
            f"dithc {argv[0]} reads a changed file", got=error, expected="the checksummed bytes", fix=fix
        )
        get_logger(f"dithc.{argv[0]}").error(str(altered))
        return UserError.status
    except Exception as error:
        log, reported = get_logger(f"dithc.{argv[0]}"), _as_user_error(argv[0], error)
        if reported is None:
            raise
        log.error(str(reported), exc_info=error if log.isEnabledFor(logging.DEBUG) else None)
        return 2


def command_module(command: str) -> str:
    """Return the name of the module that implements a command of `COMMANDS`."""
    group = next(group for group, commands in GROUPS.items() if command in commands)
    return ".".join(["dithc.cli", *([group] if group else []), command.replace("-", "_")])


def _run(argv: Sequence[str]) -> int:
    module: Any = import_module(command_module(argv[0]))
    parser = _Parser(
        prog=f"dithc {argv[0]}",
        description=module.SUMMARY,
        epilog=f"example:\n{indent(module.EXAMPLE, '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    args = parser.parse_args(argv[1:])
    _check_outputs(argv[0], args)
    if argv[0] in TORCH:
        from dithc.engine import comm

        comm.watch_rank()
        starting.import_torch()
    folder: Callable[[argparse.Namespace], Path] | None = getattr(module, "folder", None)
    if folder is None:
        return int(module.run(args))
    from dithc.core.artifacts import Lease

    with Lease.for_folder(folder(args)):
        return int(module.run(args))


def _check_outputs(command: str, args: argparse.Namespace) -> None:
    """Reject a folder in place of an output file, and a file that dithc did not write, before work starts."""
    for option in ("json", "png", "describe", *(["out"] if command != "export" else [])):
        path = getattr(args, option, None)
        if isinstance(path, Path) and path.is_dir():
            got, fix = f"{path}, which is a folder", f"name a file, such as one in {path}"
            raise user_error(f"dithc {command} --{option}", got=got, expected="the file to write", fix=fix)
        if isinstance(path, Path) and (option != "out" or command in SINGLE_FILES):
            from dithc.core.artifacts import outputs

            outputs.check_file(path)


def _as_user_error(command: str, error: Exception) -> UserError | None:
    """Convert an operating system error or an allocation failure to a user error; None for other errors."""
    if isinstance(error, UnicodeEncodeError):
        return user_error(
            f"dithc {command} cannot write a name that is not valid UTF-8",
            got=ascii(error.object)[:200],
            expected="names of files and folders in UTF-8",
            fix="rename that file or folder",
        )
    requested = out_of_memory.requested_memory(error)
    if requested is None:
        return _unwritable(command, error) if isinstance(error, OSError) else None
    if (limit := starting.limit_bytes()) is not None:
        return out_of_memory.out_of_memory(
            f"dithc {command}",
            requested=requested,
            available=f"more than {format_bytes(limit)} of addresses (`ulimit -v`)",
            fix=starting.RAISE_LIMIT,
        )
    from dithc.engine.hardware import Limits

    available = Limits.read().memory_available_bytes
    hint = f" (`resources: {{{command}: {{mem_mb}}}}` requests it)" if command in SCHEDULED_COMMANDS else ""
    return out_of_memory.out_of_memory(
        f"dithc {command}",
        requested=requested,
        available="more memory" if available is None else f"{format_bytes(available)} free now",
        fix=f"provide more memory{hint}, or lower `batch_size` or `image_size`",
    )


def _unwritable(command: str, error: OSError) -> UserError:
    if error.filename is None and "temporary directory" in str(error):
        return user_error(
            f"dithc {command} needs a folder for temporary files",
            got=str(error.strerror),
            expected="a writable folder with free space",
            fix="set TMPDIR to one",
        )
    name = error.filename2 or error.filename  # the second file name of a rename is the target
    return user_error(
        f"dithc {command} could not read or write {'its files' if name is None else name}",
        got=str(error) if error.strerror is None else error.strerror,
        expected="a readable, writable path with free space; files that were complete are unchanged",
        fix=FIXES.get(error.errno or 0, FIX),
    )
