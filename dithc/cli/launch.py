"""`dithc launch`: starts a command on several ranks with the machine's launcher, and watches over it."""

import argparse
import os

SUMMARY = (
    "Start a command on one or several ranks, pass signals and exit status on, and stop it when its driver is gone."
)
EXAMPLE = "dithc launch --launcher mpiexec --ranks 2 --cpus 1 -- dithc train --config config/experiments/demo.yaml ..."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the launcher, the size, and the command after `--`."""
    parser.add_argument("--launcher", choices=("none", "mpiexec", "srun"), default="none", help="what starts the ranks")
    parser.add_argument("--nodes", type=int, default=1, help="nodes to spread the ranks over (default 1)")
    parser.add_argument("--ranks", type=int, default=1, help="ranks in all (default 1; one needs no launcher)")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs per rank; becomes OMP_NUM_THREADS (default 1)")
    parser.add_argument("--mpiexec", metavar="PATH", help="absolute path of mpiexec (default: beside this Python)")
    parser.add_argument(
        "--grace-seconds", type=float, default=60.0, help="time to save and stop once the driver is gone (default 60)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after `--`: the program and its arguments")


def run(args: argparse.Namespace) -> int:
    """Runs the command; its exit status is ours."""
    from dithc.comm import Launcher, find_mpiexec, launch_line, supervise

    launcher: Launcher = args.launcher if args.ranks > 1 else "none"
    mpiexec = find_mpiexec(args.mpiexec) if launcher == "mpiexec" else None
    line = launch_line(
        args.command[1:] if args.command[:1] == ["--"] else args.command,
        launcher=args.launcher,
        nodes=args.nodes,
        ranks=args.ranks,
        cpus=args.cpus,
        mpiexec=mpiexec,
        srun_mpi=os.environ.get("DITHC_SRUN_MPI", "pmi2"),
        root_user=os.geteuid() == 0,
    )
    return supervise(
        line,
        environment={**os.environ, "OMP_NUM_THREADS": str(args.cpus), "DITHC_EXPECTED_RANKS": str(args.ranks)},
        launcher=launcher,
        vendor=mpiexec.vendor if mpiexec else "other",
        grace_seconds=args.grace_seconds,
    )
