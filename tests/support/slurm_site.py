"""Where the parts of a loopback SLURM cluster are, and the configuration files that its daemons read."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

# Set for everything that runs in or for a cluster, so that its processes are told from all others.
MARK = "PREFECT_TAO_CLUSTER"
CLUSTER = "loopback"
# The account of the user, and one that the user has no part in.
ACCOUNT = "tao"
OTHER_ACCOUNT = "others"
DATABASE = "slurm_acct_db"
# Of the database, which only the loopback reaches.
PASSWORD = "loopback"
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Site:
    """What is chosen once for a cluster, and the paths and ports that follow from it."""

    base: Path
    user: str
    accounting: bool
    nodes: int
    gpus: int
    min_job_age: int
    ports: tuple[int, ...]

    def save(self) -> None:
        """Keep it in the base folder, for whoever comes later to stop or ask this cluster."""
        self.saved(self.base).write_text(json.dumps(asdict(self), default=str))

    @classmethod
    def load(cls, base: Path) -> Site:
        kept = json.loads(cls.saved(base).read_text())
        return cls(**{**kept, "base": Path(kept["base"]), "ports": tuple(kept["ports"])})

    @staticmethod
    def saved(base: Path) -> Path:
        return base / "site.json"

    @staticmethod
    def ports_needed(nodes: int) -> int:
        return 4 + nodes

    @property
    def ssh_port(self) -> int:
        return self.ports[0]

    @property
    def database_port(self) -> int:
        return self.ports[1]

    @property
    def slurmdbd_port(self) -> int:
        return self.ports[2]

    @property
    def slurmctld_port(self) -> int:
        return self.ports[3]

    @property
    def node_names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    def node_port(self, name: str) -> int:
        return self.ports[4 + self.node_names.index(name)]

    def folder(self, name: str) -> Path:
        return self.base / name

    @property
    def slurm_conf(self) -> Path:
        return self.base / "etc" / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.base / "run" / "munge" / "socket"

    @property
    def database_socket(self) -> Path:
        return self.base / "run" / "mariadb.sock"

    @property
    def pyxis_record(self) -> Path:
        return self.base / "log" / "pyxis.jsonl"

    @property
    def enroot_calls(self) -> Path:
        return self.base / "log" / "enroot.calls"

    @property
    def finished_jobs(self) -> Path:
        return self.base / "log" / "jobcomp.txt"

    @property
    def sshd_log(self) -> Path:
        return self.base / "log" / "sshd.log"

    @property
    def user_env(self) -> dict[str, str]:
        """What a process of the user has in its environment, without the shims that tests put before the programs."""
        return {
            MARK: str(self.base),
            "SLURM_CONF": str(self.slurm_conf),
            "ENROOT_CALLS": str(self.enroot_calls),
            "PATH": f"{self.base / 'bin'}:{SYSTEM_PATH}",
        }

    @property
    def login_env(self) -> dict[str, str]:
        """The same for those who come over ssh: shims first."""
        return {**self.user_env, "PATH": f"{self.base / 'shims'}:{self.user_env['PATH']}"}

    @property
    def admin_env(self) -> dict[str, str]:
        """What daemons and the administrator's commands have in their environment."""
        return {MARK: str(self.base), "SLURM_CONF": str(self.slurm_conf), "PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8"}


def write(site: Site) -> None:
    """Write every configuration file."""
    etc = site.folder("etc")
    (etc / "slurm.conf").write_text(_slurm(site))
    (etc / "gres.conf").write_text(_gres(site))
    # slurmd wants a cgroup plugin even when nothing uses one; v1 is the one that touches nothing until it is asked to.
    (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    plugin = site.folder("lib") / "pyxis.so"
    (etc / "plugstack.conf").write_text(f"required {plugin} record={site.pyxis_record} refuse=no-such-image\n")
    (etc / "sshd_config").write_text(_sshd(site))
    slurmdbd = etc / "slurmdbd.conf"
    slurmdbd.touch(mode=0o600)
    slurmdbd.write_text(_slurmdbd(site))


def host() -> str:
    return socket.gethostname().split(".")[0]


def _communication() -> str:
    """Slurm binds to what the host's name resolves to, or to every address: the first only if that is loopback."""
    try:
        here = socket.gethostbyname(host()).startswith("127.")
    except OSError:
        here = False
    return "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny" if here else ""


def _slurm(site: Site) -> str:
    return f"""
ClusterName={CLUSTER}
SlurmctldHost={host()}(127.0.0.1)
SlurmctldPort={site.slurmctld_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits until its old credential has run out: 10 s instead of two minutes.
AuthInfo=socket={site.munge_socket},cred_expire=10
StateSaveLocation={site.folder("state")}
SlurmdSpoolDir={site.folder("spool")}/%n
SlurmctldPidFile={site.folder("run")}/slurmctld.pid
SlurmdPidFile={site.folder("run")}/slurmd.%n.pid
SlurmctldLogFile={site.folder("log")}/slurmctld.log
SlurmdLogFile={site.folder("log")}/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
{_communication()}
PlugStackConfig={site.folder("etc")}/plugstack.conf
MailProg=/bin/true

# The machine's cgroups are not ours.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
LaunchParameters=use_interactive_step
MpiDefault=none

SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Nodes may claim more than the machine has.
SlurmdParameters=config_overrides
GresTypes=gpu
DefMemPerCPU=100

SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,bf_max_job_test=2000,default_queue_depth=2000,nohold_on_prolog_fail
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge={site.min_job_age}
EnforcePartLimits=ALL
OverTimeLimit=0
MaxJobCount=50000
MaxArraySize=10001
JobRequeue=1
KillWait=5
CompleteWait=0
InactiveLimit=0
SlurmdTimeout=15
SlurmctldTimeout=15
ReturnToService=1
TCPTimeout=2
MessageTimeout=10
BatchStartTimeout=10
UnkillableStepTimeout=60
EpilogMsgTime=0
JobCompType=jobcomp/filetxt
JobCompLoc={site.finished_jobs}
{_accounting(site)}

{_nodes(site)}
# A job of `urgent` pushes jobs out: those of the polars wait and run again, those of grizzly end.
PartitionName=DEFAULT Nodes=ALL State=UP DefaultTime=0:30:00 MaxTime=4:00:00 PriorityTier=10 PreemptMode=OFF
PartitionName=polar Default=YES PreemptMode=REQUEUE
PartitionName=polar3 PreemptMode=REQUEUE
PartitionName=polar4 PreemptMode=REQUEUE
PartitionName=grizzly PreemptMode=CANCEL
PartitionName=cpu MaxTime=1:00:00
PartitionName=long MaxTime=7-00:00:00 DefaultTime=1-00:00:00
PartitionName=urgent PriorityTier=100
""".lstrip()


def _accounting(site: Site) -> str:
    if not site.accounting:
        return "AccountingStorageType=accounting_storage/none"
    # AccountingStoragePass is no password here: it names the munge socket that clients of slurmdbd use.
    return f"""
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={site.slurmdbd_port}
AccountingStoragePass={site.munge_socket}
AccountingStorageEnforce=associations
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
""".strip()


def _nodes(site: Site) -> str:
    shape = f"Boards=1 SocketsPerBoard=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=512000 Gres=gpu:a100:{site.gpus}"
    where = f"NodeHostname={host()} NodeAddr=127.0.0.1"
    return "\n".join(
        f"NodeName={name} {where} Port={site.node_port(name)} CPUs=64 {shape} State=UNKNOWN" for name in site.node_names
    )


def _gres(site: Site) -> str:
    devices = f"{site.folder('dev')}/nvidia[0-{site.gpus - 1}]"
    return f"AutoDetect=off\nNodeName={','.join(site.node_names)} Name=gpu Type=a100 File={devices}\n"


def _slurmdbd(site: Site) -> str:
    return f"""
DbdHost={host()}
DbdAddr=127.0.0.1
DbdPort={site.slurmdbd_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={site.munge_socket}
{_communication()}
PidFile={site.folder("run")}/slurmdbd.pid
LogFile={site.folder("log")}/slurmdbd.log
DebugLevel=info
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={site.database_port}
StorageUser=slurm
StoragePass={PASSWORD}
StorageLoc={DATABASE}
""".lstrip()


def _sshd(site: Site) -> str:
    # Only the first SetEnv line counts, so that all variables stand on one.
    variables = " ".join(f"{name}={value}" for name, value in site.login_env.items())
    return f"""
ListenAddress 127.0.0.1:{site.ssh_port}
HostKey {site.folder("ssh")}/host_key
PidFile {site.folder("run")}/sshd.pid
AuthorizedKeysFile .ssh/authorized_keys
AllowUsers {site.user}
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
UsePAM no
UseDNS no
X11Forwarding no
AllowTcpForwarding no
AllowAgentForwarding no
PrintMotd no
Banner {site.folder("etc")}/banner
MaxSessions 10
LogLevel VERBOSE
SetEnv {variables}
Subsystem sftp internal-sftp
""".lstrip()
