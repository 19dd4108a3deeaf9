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
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--ranks", type=int, default=1, help="ranks in all (default 1; one needs no launcher)")
    size.add_argument(
        "--strategy",
        choices=("cftp", "dp", "dp+tp"),
        help="instead of --ranks: a rank for each die (cftp) or cluster (dp, dp+tp) of this machine, on every node",
    )
    parser.add_argument(
        "--cpus",
        type=int,
        help="CPUs per rank; becomes OMP_NUM_THREADS (default 1; with --strategy its share of this machine)",
    )
    parser.add_argument("--node-cpus", type=int, help="CPUs that the ranks of a node share, instead of --cpus")
    parser.add_argument("--mpiexec", metavar="PATH", help="absolute path of mpiexec (default: beside this Python)")
    parser.add_argument(
        "--grace-seconds", type=float, default=60.0, help="time to save and stop once the driver is gone (default 60)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="after `--`: the program and its arguments")


def run(args: argparse.Namespace) -> int:
    """Runs the command; its exit status is ours."""
    from typing import Literal

    from dithc.comm import find_mpiexec, launch_line, supervise

    ranks, cores = _counted(args) if args.strategy else (args.ranks, None)
    node_cpus = args.node_cpus or cores
    cpus = args.cpus or (max(1, node_cpus * args.nodes // ranks) if node_cpus else 1)
    launcher: Literal["none", "mpiexec", "srun"] = args.launcher if ranks > 1 else "none"
    mpiexec = find_mpiexec(args.mpiexec) if launcher == "mpiexec" else None
    line = launch_line(
        args.command[1:] if args.command[:1] == ["--"] else args.command,
        launcher=args.launcher,
        nodes=args.nodes,
        ranks=ranks,
        cpus=cpus,
        mpiexec=mpiexec,
        srun_mpi=os.environ.get("DITHC_SRUN_MPI", "pmi2"),
        root_user=os.geteuid() == 0,
    )
    return supervise(
        line,
        environment={**os.environ, "OMP_NUM_THREADS": str(cpus), "DITHC_EXPECTED_RANKS": str(ranks)},
        launcher=launcher,
        vendor=mpiexec.vendor if mpiexec else "other",
        grace_seconds=args.grace_seconds,
    )


def _counted(args: argparse.Namespace) -> tuple[int, int]:
    """Ranks over all nodes, which are taken to be like this one, and the cores of a node."""
    from dithc.config import Machine
    from dithc.hardware import discover
    from dithc.log import logger

    cores = discover().visible_cores
    dies, clusters = {core.die for core in cores}, {core.cluster for core in cores}
    per_node = Machine(strategy=args.strategy).ranks_on(num_dies=len(dies) or 1, num_clusters=len(clusters) or 1)
    said = "%d rank(s) a node for strategy %s: this machine has %d die(s) and %d cluster(s)"
    logger("dithc.launch").info(said, per_node, args.strategy, len(dies), len(clusters))
    return int(per_node * args.nodes), len(cores)
