"""The command line: `dithc <verb>`, one module a verb, loaded only when it is called.

Why: the rule files of the workflow hold one shell line each; everything a rule does is a verb a person can run by hand.
Invariants: settings come from the configuration file (`--config`), paths from arguments; a user's mistake, and a file that
cannot be read or written (a full disk), is printed in four lines (what, got, expected, fix) and ends with status 2;
status 75 means "stopped and saved, run me again", 76 "another process works on this run, or this folder". DITHC_LOG=DEBUG adds
the traceback.
How to change it: a verb is a module with `SUMMARY`, `EXAMPLE`, `add_arguments(parser)` and `run(args) -> int`, a name in
`VERBS`, and one in `ROOMS` where it is in a room; one that writes a folder says which by `folder(args) -> Path`, and no other
process writes to it meanwhile.
"""

import argparse
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import NoReturn, Protocol, cast

from dithc import openmp
from dithc.cli import starting
from dithc.log import UserError, logger, problem, refusal, setup
from dithc.sealed import documents

VERBS = {
    "run": "run an experiment, and show its stages",
    "status": "say how far experiments are",
    "synthesize": "generate small inputs of true structure",
    "fetch": "bring scenes of a catalogue into a folder",
    "stage": "read scenes onto one grid",
    "tiles": "cut scenes into tiles",
    "codec": "train an autoencoder on tiles",
    "latents": "encode tiles",
    "train": "pre-train or fine-tune a DiT",
    "sample": "generate images from a checkpoint",
    "search-sampler": "search the timesteps of a sampler of few steps",
    "extractor": "train a small feature extractor on tiles",
    "features": "extract features and their statistics",
    "fid": "compare generated with real features",
    "report": "write the report",
    "doctor": "say what this machine is and what will hurt",
    "bench": "time operators or a training step",
    "simulate": "play training steps on a described machine of many nodes",
    "paper": "make a table or figure of the paper again, of its cells",
    "tune": "find the fastest way to make each matrix product here",
    "verify": "re-hash what a manifest lists",
    "show": "describe and draw any output of dithc",
    "export": "write weights, or images, for other programs",
    "launch": "start ranks with the machine's launcher",
}
ROOMS = {
    "experiment": ("run", "status", "report", "paper"),
    "data": ("synthesize", "fetch", "stage", "tiles", "codec", "latents"),
    "images": ("sample", "search-sampler", "extractor", "features", "fid"),
    "machine": ("doctor", "simulate", "tune"),
    "outputs": ("verify", "show", "export"),
}
"""In which room a verb's module is; that of others is in none."""

FOLDERS = {"export"}  # verbs of which `--out` may be a folder
SINGLE_FILE_OPTIONS = ("json", "png", "describe")
SINGLE_FILES = {"report", "search-sampler"}
"""Commands of which `--out` is a file that other files may surround."""
NO_STAGES = {
    *("run", "status", "fetch", "search-sampler", "doctor", "simulate", "paper", "tune", "verify", "show", "export"),
    "launch",
}
"""Verbs that are no stage of an experiment, for which a configuration could ask for memory."""

FULL = "free space there (or raise the quota), or write to another file system (temporary files: set TMPDIR); then start again"
DENIED = "change its permissions or owner, or choose another folder; then start again"
FIXES = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EFBIG: "raise the limit on the size of files (`ulimit -f`), or write to another file system; then start again",
    errno.EROFS: "write to a file system that is not mounted read-only, or mount it again; then start again",
    errno.EACCES: DENIED,
    errno.EPERM: DENIED,
    errno.EIO: "look at the disk or the network file system (`dmesg`); when it is well, start again",
    errno.ESTALE: "look at the network file system; when it is well, start again",
    errno.EISDIR: "name the file, not the folder that it is in",
    errno.ENOENT: "check the path; if an earlier stage makes the file, run that first",
    errno.EMFILE: "raise the number of open files (`ulimit -n`), then start again",
}
"""What to do about an error of the operating system, by its number."""
FIX = "check that the path is right and its file system is well, then start again"

__all__ = ["VERBS", "main", "module_of"]


class Verb(Protocol):
    """What a verb's module offers."""

    SUMMARY: str
    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the verb's arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Does it; returns the exit status."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of dithc."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong with the words of the command line, and ends."""
        from dithc.comm import ending

        told = problem(
            self.prog,
            got=message,
            expected=f"arguments as `{self.prog} --help` lists them",
            fix="correct the command line",
        )
        logger(f"dithc.{self.prog.split()[1]}").error(ending.once(str(told)))
        self.exit(2)


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in VERBS.items()]
    return (
        "usage: dithc <verb> [arguments]\n\nverbs:\n" + "\n".join(lines) + "\n\n`dithc <verb> --help` has an example.\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit status."""
    if arguments is None:
        starting.use_utf8()
    starting.open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_overview(), end="")
        return 0 if words else 2
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"dithc {version('dithc')}")
        return 0
    if words[0] not in VERBS:
        print(f"dithc: there is no verb {words[0]!r}\n\n{_overview()}", file=sys.stderr, end="")
        return 2
    # Threads that wait for each other spin. Beside another busy process libgomp's default, milliseconds, makes a training
    # step 20 times slower; 10,000 turns (tens of microseconds) cost nothing measurable on cores of its own.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    setup(level=getattr(logging, os.environ.get("DITHC_LOG", "INFO").upper(), logging.INFO))
    starting.choose_folders()
    openmp.report()
    status = 1
    with starting.supervised(words[0]) if arguments is None else nullcontext():
        try:
            status = _ended(words)
        except SystemExit as end:  # argparse's: help, or a word that no verb has
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            raise
        finally:
            if status:
                from dithc.comm import ending

                ending.tell_of_end(status)
    return status


def _ended(words: Sequence[str]) -> int:
    """Run a command and log the error that ended it. Return the exit status."""
    try:
        return _run(words)
    except KeyboardInterrupt:  # also while the verb is imported
        if starting.has_parent:
            raise
        logger(f"dithc.{words[0]}").error("interrupted")
        return 128 + signal.SIGINT
    except UserError as error:
        from dithc.comm import ending

        logger(f"dithc.{words[0]}").error(ending.once(str(error)))
        return error.status
    except BrokenPipeError:
        return 141
    except documents.Altered as error:
        fix = "delete it and run the command again that writes it"
        told = problem(
            f"dithc {words[0]} reads a changed file", got=error, expected="the bytes under its seal", fix=fix
        )
        logger(f"dithc.{words[0]}").error(str(told))
        return UserError.status
    except Exception as error:
        log, said = logger(f"dithc.{words[0]}"), _told(words[0], error)
        if said is None:
            raise
        log.error(str(said), exc_info=error if log.isEnabledFor(logging.DEBUG) else None)
        return 2


def module_of(verb: str) -> str:
    """The name of the module that a verb of `VERBS` is."""
    room = next((f"{room}." for room, verbs in ROOMS.items() if verb in verbs), "")
    return f"dithc.cli.{room}{verb.replace('-', '_')}"


def _run(words: Sequence[str]) -> int:
    """Runs the verb that the first word names with the others as its arguments."""
    verb = cast(Verb, import_module(module_of(words[0])))
    parser = _Parser(
        prog=f"dithc {words[0]}",
        description=verb.SUMMARY,
        epilog=f"example:\n{indent(verb.EXAMPLE, '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_arguments(parser)
    args = parser.parse_args(words[1:])
    _refuse_folders(words[0], args)
    folder: Callable[[argparse.Namespace], Path] | None = getattr(verb, "folder", None)
    if folder is None:
        return verb.run(args)
    from dithc.runs import Lease

    with Lease.beside(folder(args)):
        return verb.run(args)


def _refuse_folders(verb: str, args: argparse.Namespace) -> None:
    """Reject a folder in place of an output file, and a file that dithc did not write, before work starts."""
    for option in (*SINGLE_FILE_OPTIONS, *(() if verb in FOLDERS else ("out",))):
        path = getattr(args, option, None)
        if isinstance(path, Path) and path.is_dir():
            raise problem(
                f"dithc {verb} --{option}",
                got=f"{path}, which is a folder",
                expected="the file to write",
                fix=f"name a file, such as one in {path}",
            )
        if isinstance(path, Path) and (option != "out" or verb in SINGLE_FILES):
            from dithc.runs import outputs

            outputs.check_file(path)


def _told(verb: str, error: Exception) -> UserError | None:
    """An error of the operating system, memory that it refused among them, in the words of a user error; None for others."""
    if isinstance(error, UnicodeEncodeError):
        return problem(
            f"dithc {verb} cannot write a name that is no UTF-8",
            got=ascii(error.object)[:200],
            expected="names of files and folders in UTF-8",
            fix="rename that file or folder",
        )
    wanted = refusal.asked(error)
    if wanted is None:
        return _unwritable(verb, error) if isinstance(error, OSError) else None
    if (limit := starting.limit_bytes()) is not None:
        return refusal.out_of_memory(
            f"dithc {verb}",
            wanted=wanted,
            there_is=f"more than {refusal.gib(limit)} of addresses (`ulimit -v`)",
            fix=starting.RAISE_LIMIT,
        )
    from dithc.hardware import Limits

    available = Limits.read().memory_available_bytes
    asks = f" (`resources: {{{verb}: {{mem_mb}}}}` asks for it)" if verb not in NO_STAGES else ""
    return refusal.out_of_memory(
        f"dithc {verb}",
        wanted=wanted,
        there_is="more memory" if available is None else f"{refusal.gib(available)} free now",
        fix=f"take more memory{asks}, or a smaller `batch` or `size`",
    )


def _unwritable(verb: str, error: OSError) -> UserError:
    """An error of the operating system, in the words of a user error."""
    if error.filename is None and "temporary directory" in str(error):
        return problem(
            f"dithc {verb} needs a folder for temporary files",
            got=str(error.strerror),
            expected="a writable folder with free space",
            fix="set TMPDIR to one",
        )
    name = error.filename2 or error.filename  # of a renaming, the second is the file that was wanted
    return problem(
        f"dithc {verb} could not read or write {'its files' if name is None else name}",
        got=str(error) if error.strerror is None else error.strerror,
        expected="a readable, writable place with room; what was complete before is untouched",
        fix=FIXES.get(error.errno or 0, FIX),
    )
