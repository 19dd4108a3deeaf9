"""Temporary Slurm with several nodes on this machine: munge, slurmctld, one slurmd per node, optionally accounting.

All files are in one folder, and all daemons listen on the loopback interface only. Jobs read the configuration at the
default path, because the workflow engine's plugin removes SLURM_CONF from their environment. Therefore one instance
runs at a time, and none on a machine with an installed Slurm.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dithc.core.processes import descendants

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
ACCOUNTING = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db", "mariadb")
CONFIGURATION = Path("/etc/slurm/slurm.conf")
PREFIX = "dithc-slurm"
NODES, CPUS, MEMORY_MB = 2, 4, 6000
KILL_WAIT_SECONDS = 5


def unavailable_reason(*, accounting: bool) -> str | None:
    """Return the reason why this machine cannot start a private Slurm, or None."""
    if os.geteuid() != 0:
        return "a private Slurm requires root (its daemons start jobs for users)"
    missing = [name for name in NEEDED + (ACCOUNTING if accounting else ()) if shutil.which(name) is None]
    if missing:
        packages = "slurm-wlm munge" + (" slurmdbd mariadb-server" if accounting else "")
        return f"no {', '.join(missing)} here: apt-get install {packages}"
    if CONFIGURATION.exists() and PREFIX not in str(CONFIGURATION.resolve()):
        return f"this machine has a configured Slurm ({CONFIGURATION})"
    return None


class LocalSlurm:
    """Running Slurm. It ends with its `with` block, and with the process that started it, even if that process is killed."""

    def __init__(self, *, accounting: bool) -> None:
        self.folder, self.accounting = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-")), accounting
        self.folder.chmod(0o755)  # munge requires a socket that all users can reach, unlike pytest's folders
        self.port = _free_ports(20)
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}
        self.cleanup = start_cleanup(self.folder)

    def __enter__(self) -> "LocalSlurm":
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self) -> None:
        for name in ("run", "log", "state", "munge", *(f"spool-n{index}" for index in range(1, NODES + 1))):
            (self.folder / name).mkdir(parents=True, mode=0o755)
        (self.folder / "slurm.conf").write_text(self._configuration())
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        (self.folder / "munge" / "key").write_bytes(os.urandom(1024))
        (self.folder / "munge" / "key").chmod(0o400)
        CONFIGURATION.parent.mkdir(parents=True, exist_ok=True)
        if CONFIGURATION.is_symlink():  # left by a killed instance
            for process in processes_of(Path(os.readlink(CONFIGURATION)).parent):
                _kill(process)
        CONFIGURATION.unlink(missing_ok=True)
        CONFIGURATION.symlink_to(self.folder / "slurm.conf")
        munge = self.folder / "munge"
        self._start(
            "munged",
            *(f"--{name}-file={munge / name}" for name in ("key", "log", "seed", "pid")),
            f"--socket={munge / 'socket'}",
            "--num-threads=2",
        )
        if self.accounting:
            self._start_accounting()
        self._start("slurmctld")
        for index in range(1, NODES + 1):
            self.start_node(f"n{index}")
        self.wait(
            lambda: self.run("sinfo", "-h", "-p", "cpu", "-t", "idle", "-o", "%D").strip() == str(NODES), "idle nodes"
        )

    def __exit__(self, *_: object) -> None:
        try:
            self.run("scancel", "-u", "root", check=False)
        finally:
            self.cleanup.communicate()

    def run(self, *line: str, check: bool = True) -> str:
        done = subprocess.run(line, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0 or not check, f"{' '.join(line)}: {done.stderr}"
        return done.stdout

    def wait(self, condition: Callable[[], bool], event: str, *, seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, f"waited {seconds:.0f} s for: {event}\n{self.run('squeue', check=False)}"
            time.sleep(0.2)

    def start_node(self, name: str) -> None:
        self._start("slurmd", "-N", name)

    def kill_node(self, name: str) -> None:
        """Kill a node's daemon and all its descendants, as a power failure does."""
        lost = [process for process in self.processes() if _is_slurmd(process, name) or _is_step_of(process, name)]
        for process in [*lost, *(child for parent in lost for child in descendants(parent))]:
            _kill(process)

    def processes(self) -> list[int]:
        return processes_of(self.folder)

    def _start(self, *line: str) -> None:
        done = subprocess.run(line, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{' '.join(line)}: {done.stdout}{done.stderr}"

    def _configuration(self) -> str:
        host, folder, port = socket.gethostname().split(".")[0], self.folder, self.port
        socket_path = folder / "munge" / "socket"
        account = ["AccountingStorageType=accounting_storage/none"]
        if self.accounting:
            account = [
                "AccountingStorageType=accounting_storage/slurmdbd",
                "AccountingStorageHost=127.0.0.1",
                f"AccountingStoragePort={port + 1}",
                f"AccountingStoragePass={socket_path}",
                "AccountingStoreFlags=job_comment",
                "AccountingStorageEnforce=limits",
            ]
        nodes = [
            f"NodeName=n{index} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + 3 + index} CPUs={CPUS} RealMemory={MEMORY_MB}"
            for index in range(1, NODES + 1)
        ]
        return "\n".join(
            [
                "ClusterName=local",
                f"SlurmctldHost={host}(127.0.0.1)",
                "SlurmUser=root",
                "SlurmdUser=root",
                f"SlurmctldPort={port}",
                f"SlurmctldPidFile={folder}/run/slurmctld.pid",
                f"SlurmdPidFile={folder}/run/slurmd-%n.pid",
                f"SlurmctldLogFile={folder}/log/slurmctld.log",
                f"SlurmdLogFile={folder}/log/slurmd-%n.log",
                f"StateSaveLocation={folder}/state",
                f"SlurmdSpoolDir={folder}/spool-%n",
                "AuthType=auth/munge",
                # A requeued job restarts after the credentials of its first start have expired.
                f"AuthInfo=socket={socket_path},cred_expire=5",
                "CredType=cred/munge",
                "MpiDefault=pmi2",
                "ProctrackType=proctrack/linuxproc",
                "TaskPlugin=task/none",
                "JobAcctGatherType=jobacct_gather/linux",
                "JobAcctGatherFrequency=1",
                "JobAcctGatherParams=OverMemoryKill",
                "SelectType=select/cons_tres",
                "SelectTypeParameters=CR_CPU_Memory",
                "SchedulerParameters=sched_min_interval=100000,sched_interval=1,bf_interval=1",
                "SlurmdParameters=config_overrides",
                "PreemptType=preempt/partition_prio",
                "PreemptMode=REQUEUE",
                "ReturnToService=2",
                f"KillWait={KILL_WAIT_SECONDS}",
                "SlurmdTimeout=10",
                "MinJobAge=600",
                f"PluginDir=/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/slurm-wlm",
                *account,
                *nodes,
                f"PartitionName=cpu Nodes=n[1-{NODES}] Default=YES MaxTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE",
                f"PartitionName=cancel Nodes=n[1-{NODES}] MaxTime=60 State=UP PriorityTier=1 PreemptMode=CANCEL",
                f"PartitionName=high Nodes=n[1-{NODES}] MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF",
                "",
            ]
        )

    def _start_accounting(self) -> None:
        folder, port = self.folder, self.port
        data, sql = folder / "mysql", folder / "run" / "mysql.sock"
        data.mkdir()
        common = ["--no-defaults", "--user=root", f"--datadir={data}"]
        self._start("mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db")
        files = (f"--pid-file={folder}/run/mariadbd.pid", "--innodb-buffer-pool-size=128M")
        with (folder / "log" / "mariadbd.log").open("w") as log:
            line = ["mariadbd", *common, f"--socket={sql}", "--bind-address=127.0.0.1", f"--port={port + 2}", *files]
            subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)

        def ask(text: str) -> bool:
            line = ["mariadb", "--no-defaults", f"--socket={sql}", "-uroot", "-e", text]
            return subprocess.run(line, capture_output=True, timeout=60, check=False).returncode == 0

        self.wait(lambda: ask("select 1"), "MariaDB")
        users = (
            "create user slurm@'127.0.0.1' identified by 'slurm'; create user slurm@localhost identified by 'slurm';"
        )
        grants = "".join(f"grant all on slurm_acct_db.* to slurm@'{host}';" for host in ("127.0.0.1", "localhost"))
        assert ask(f"create database slurm_acct_db; {users} {grants}")
        (folder / "slurmdbd.conf").write_text(
            "\n".join(
                [
                    "AuthType=auth/munge",
                    f"AuthInfo=socket={folder}/munge/socket",
                    f"DbdHost={socket.gethostname().split('.')[0]}",
                    "DbdAddr=127.0.0.1",
                    f"DbdPort={port + 1}",
                    "SlurmUser=root",
                    f"PidFile={folder}/run/slurmdbd.pid",
                    f"LogFile={folder}/log/slurmdbd.log",
                    "StorageType=accounting_storage/mysql",
                    "StorageHost=127.0.0.1",
                    f"StoragePort={port + 2}",
                    "StorageUser=slurm",
                    "StoragePass=slurm",
                    "StorageLoc=slurm_acct_db",
                    f"PluginDir=/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/slurm-wlm",
                    "",
                ]
            )
        )
        (folder / "slurmdbd.conf").chmod(0o600)
        self._start("slurmdbd")
        self.wait(lambda: bool(self.run("sacctmgr", "-n", "show", "user", check=False)), "slurmdbd")
        for arguments in (["cluster", "local"], ["account", "acc"], ["user", "root", "account=acc"]):
            self.run("sacctmgr", "-i", "-Q", "add", *arguments, check=False)


def start_cleanup(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that ends a Slurm and removes its folder after its standard input closes, also by the owner's death."""
    return subprocess.Popen(
        [sys.executable, __file__, "clean-up", str(folder)], stdin=subprocess.PIPE, start_new_session=True
    )


def _clean_up(folder: Path) -> None:
    sys.stdin.read()
    for process in processes_of(folder):
        _end(process)
    if CONFIGURATION.is_symlink() and Path(os.readlink(CONFIGURATION)).parent == folder:
        CONFIGURATION.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> list[int]:
    return [number for number in process_numbers() if f"{folder}/" in _open_files(number)]


def _free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    for first in range(21_000 + os.getpid() % 2000, 32_000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def process_numbers() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and int(path.name) != os.getpid()]


def command_of(number: int) -> str:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _open_files(number: int) -> str:
    """Return the open files of a Slurm daemon as one text; empty for other programs."""
    try:
        if not os.readlink(f"/proc/{number}/exe").rpartition("/")[2].startswith(("slurm", "munge", "mariadb")):
            return ""
        files = [os.readlink(path) for path in Path(f"/proc/{number}/fd").iterdir()]
        return " ".join([*files, os.readlink(f"/proc/{number}/cwd") + "/", command_of(number)])
    except OSError:
        return ""


def _is_slurmd(number: int, node: str) -> bool:
    arguments = command_of(number).split()
    return bool(arguments) and arguments[0].endswith("slurmd") and arguments[-1] == node


def _is_step_of(number: int, node: str) -> bool:
    """Return whether a process manages a job step on a node: the environment of its children has the node's name."""
    if not command_of(number).startswith("slurmstepd:"):
        return False
    return any(f"SLURMD_NODENAME={node}\0" in environment_of(child) for child in descendants(number))


def environment_of(number: int) -> str:
    try:
        return Path(f"/proc/{number}/environ").read_text(errors="replace")
    except OSError:
        return ""


def _kill(number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)


def _end(number: int) -> None:
    try:
        os.kill(number, signal.SIGTERM)
    except ProcessLookupError:
        return
    for _ in range(30):
        if not Path(f"/proc/{number}").exists() or " Z " in Path(f"/proc/{number}/stat").read_text():
            return
        time.sleep(0.1)
    _kill(number)


if __name__ == "__main__" and sys.argv[1:2] == ["clean-up"]:
    _clean_up(Path(sys.argv[2]))
elif __name__ == "__main__":  # manual use: python -m tests.slurm.local_slurm [accounting]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with LocalSlurm(accounting="accounting" in sys.argv) as slurm:
        sys.stdout.write(f"export SLURM_CONF={slurm.environment['SLURM_CONF']}\n")
        sys.stdout.flush()
        signal.pause()
