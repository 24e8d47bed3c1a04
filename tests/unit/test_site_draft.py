"""`hpc-amp site draft` with the outputs of real schedulers' commands (tests/unit/clients)."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from support import commands
from support.environment import clean_environ
from support.waiting import wait_until

from hpc_amp.clients import Clients, run_in_time
from hpc_amp.config.site import Site
from hpc_amp.config.site_draft import SiteDraft
from hpc_amp.config.sites import load_site
from hpc_amp.config.tree import plain
from hpc_amp.draft import machine, site
from hpc_amp.draft.node import add_seen, prepare_look
from hpc_amp.errors import UsageError
from hpc_amp.schedulers import SCHEDULERS
from hpc_amp.schedulers.cobalt.draft import table
from hpc_amp.schedulers.slurm import reports

ORDINARY_PATH = os.environ["PATH"]
OUTPUTS = Path(__file__).parent / "clients"


class Cluster:
    """A folder with the commands of a cluster, and the rest of PATH that they need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.cases: dict[str, list[str]] = {}
        for name in ("cat", "sh", "sleep"):
            (self.bin / name).symlink_to(f"/bin/{name}")
        self.runs("bash", "")  # no modules: this machine's login shell is none of the cluster's

    def answers(self, command: str, text: str, status: int = 0) -> None:
        """A command, and whatever follows it, prints a text."""
        name = command.split()[0]
        self.cases.setdefault(name, [])
        number = sum(map(len, self.cases.values()))
        file = self.folder / f"{name}-{number}"
        file.write_text(text)
        out = ">&2" if status else ""
        act = f"cat {shlex.quote(str(file))} {out}; exit {status}"
        quoted = shlex.quote(command)
        self.cases[name].append(f"{quoted}|{quoted}' '*) {act} ;;")
        self._write(name)

    def runs(self, name: str, script: str) -> None:
        """A command is a script."""
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def _write(self, name: str) -> None:
        cases = "\n".join(self.cases[name])
        self.runs(
            name, f'case "{name} $*" in\n{cases}\n*) echo "{name}: what?" >&2; exit 1 ;; esac'
        )

    def has(self, file: str) -> None:
        """All outputs of a file."""
        for block in (OUTPUTS / file).read_text().split("=== ")[1:]:
            command, _, text = block.partition("\n")
            status = 1 if command.endswith(" !1") else 0
            self.answers(command.removesuffix(" !1"), text, status)

    def clients(self, seconds: float = 60) -> Clients:
        """Clients that find only these commands."""

        def which(name: str) -> str | None:
            path = self.bin / name
            return str(path) if path.exists() else None

        return Clients(seconds=seconds, which=which)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.setattr(site, "host_names", lambda: ["login03.cluster.example.org"])
    monkeypatch.setattr(machine, "interfaces", lambda root: ["eth0"])
    return made


def drafted(
    clients: Clients, scheduler: str, folder: Path, queue: str | None = None
) -> tuple[Site, str, dict[str, Any]]:
    """The drafted site, its text, and its defaults of a job."""
    draft = site.read_cluster(clients, scheduler, queue)
    made = site.finish(draft, "here")
    path = folder / "here.yaml"
    path.write_text(made.text)
    found = load_site(path)
    defaults: Any = plain(found.defaults)
    return found, made.text, defaults.get("job") or {}


def flat(text: str) -> str:
    """Text in one line, without the marks of comments at the beginning of its lines."""
    return " ".join(re.sub(r"(?m)^ *#(?!\w+:)[ ?]", "", text).split())


# -- Slurm ----------------------------------------------------------------------------------------


def test_the_test_cluster(cluster: Cluster) -> None:
    cluster.has("slurm_test_cluster.txt")
    found, text, job = drafted(cluster.clients(), "slurm", cluster.folder)
    assert (found.scheduler, found.gpu_request, found.srun_mpi) == (
        "slurm",
        "gpus-per-node",
        "pmix",
    )
    assert found.hosts == ["login*.cluster.example.org"]
    assert job == {"queue": "batch", "gpus_per_node": "4", "cpus_per_gpu": "2"}
    for fact in (
        "partition urgent: time limit 1-00:00:00; nodes: 4 x 8 CPUs, 4 GiB, gpu:4",
        "KillWait is 5 sec",
        "no accounts (scontrol show config: AccountingStorageType is none)",
        "Jobs share nodes here: OverSubscribe=NO of batch,",
        "#? Which container runtime do the nodes have?",
    ):
        assert fact in text
    # Every key has a comment above it.
    lines = text.splitlines()
    for before, line in itertools.pairwise(lines):
        if line and not line.lstrip().startswith("#") and line not in ("defaults:", "  job:"):
            assert before.lstrip().startswith("#"), line


def test_several_kinds_of_nodes(cluster: Cluster) -> None:
    """Types of GPUs, cores that Slurm keeps, accounts, a time limit below an hour, names with
    blanks, and a `Reason` that looks like a field."""
    cluster.has("slurm_kinds.txt")
    draft = site.read_cluster(cluster.clients(), "slurm", None)
    assert site.name_of_cluster(draft) == "aris-ii"
    found, text, job = drafted(cluster.clients(), "slurm", cluster.folder)
    assert found.gpu_request == "gres"  # select/cons_res refuses --gpus-per-node
    assert found.gpu_type == "nvidia_h100_80gb_hbm3"
    assert found.srun_mpi == "cray_shasta"
    assert job == {
        "queue": "gpu",
        "walltime": "00:45:00",
        "gpus_per_node": "4",
        "cpus_per_gpu": "31",  # 126 of 128 CPUs
        "account": "projB",
    }
    assert "v100 (2 in a node)" in text
    text = flat(text)
    assert "MaxNodes=2, AllowAccounts=projA,projB, AllowQos=normal,long" in text
    assert "#directives: [--qos=normal]" in text
    assert "have the features a100, ib (scontrol show nodes): --constraint=a100 chooses" in text
    assert "3900 MiB for each CPU (DefMemPerCPU)" in text
    assert "2 x 126 CPUs" in text and "gpu:9" not in text
    # The default partition has no GPUs, and one that is down is not chosen.
    assert "The nodes of mig differ: draft its own site" in text


def test_a_chosen_partition(cluster: Cluster) -> None:
    cluster.has("slurm_kinds.txt")
    found, text, job = drafted(cluster.clients(), "slurm", cluster.folder, "mig")
    assert job["queue"] == "mig" and job["gpus_per_node"] == "7"
    assert found.gpu_type is None and "#gpu_type: 1g.5gb" in text
    assert "a job gets whole nodes (OverSubscribe=EXCLUSIVE of mig" in text
    found, _, job = drafted(cluster.clients(), "slurm", cluster.folder, "compute")
    assert (found.gpu_request, job["gpus_per_node"]) == ("none", "0")
    with pytest.raises(UsageError, match=r"there is no partition nix.*compute, gpu, mig, shut"):
        drafted(cluster.clients(), "slurm", cluster.folder, "nix")


def test_sinfo_where_scontrol_does_not_answer(cluster: Cluster) -> None:
    """Rows as sinfo 22.05 prints them with `--exact`."""
    cluster.answers("scontrol", "slurm_load_ctl_conf error: Access/permission denied", 1)
    rows = "batch*|up|1-00:00:00|4|8|1|4000|gpu:a100:4(S:0-1)|(null)|NO\n"
    rows += "x|up|infinite|1|8|1|1|a|b|c|d\n"
    cluster.answers("sinfo --noheader", rows)
    cluster.answers("sinfo --version", "slurm-wlm 22.05.8\n")
    found, text, job = drafted(cluster.clients(), "slurm", cluster.folder)
    assert job == {"queue": "batch", "gpus_per_node": "4", "cpus_per_gpu": "2"}
    assert found.description == "a cluster, Slurm 22.05.8"
    assert "scontrol show config: slurm_load_ctl_conf error: Access/permission denied" in text
    assert "srun: is not on this machine's PATH" in text


def test_no_client_at_all(cluster: Cluster) -> None:
    for name in SCHEDULERS.names():
        found, text, _ = drafted(cluster.clients(), name, cluster.folder)
        assert found.scheduler == name, text


def test_a_client_that_hangs(cluster: Cluster) -> None:
    """It is ended with its children, and is not called again."""
    cluster.has("slurm_test_cluster.txt")
    mark = cluster.folder / "called"
    cluster.runs("scontrol", f"echo x >>{mark}\nsleep 1000 & echo $! >{mark}.child\nwait")
    found, text, _ = drafted(cluster.clients(seconds=0.5), "slurm", cluster.folder)
    assert "scontrol show config: did not answer within 0.5 s" in text
    assert mark.read_text() == "x\n"
    child = int(Path(f"{mark}.child").read_text())
    wait_until(lambda: has_ended(child), "the child")
    assert found.srun_mpi == "pmix"  # others still answer


def test_a_client_whose_child_keeps_its_output_open(cluster: Cluster) -> None:
    mark = cluster.folder / "child"
    program = f"import os, time; os.setsid(); open('{mark}', 'w').write(str(os.getpid()))"
    cluster.runs("qstat", f'{sys.executable} -c "{program}; time.sleep(1000)" &\nsleep 1000')
    clients = cluster.clients(seconds=2)
    assert clients.output("qstat", "-Bf") == ""
    assert clients.unread == ["qstat -Bf: did not answer within 2 s"]
    if mark.exists():
        os.kill(int(mark.read_text()), signal.SIGKILL)


def has_ended(pid: int) -> bool:
    try:
        return ") Z" in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_hostile_names(cluster: Cluster) -> None:
    """Whatever a command prints, the file can be read, and says no more than its comments."""
    cluster.has("slurm_test_cluster.txt")
    for name in (
        "a: b",
        "x\x1b[31mred",
        "#",
        "'",
        '"',
        "$(touch hacked)",
        "{nodes: 9}",
        "é",
        "null",
        "1e3",
        "\udcff",
    ):
        config = f"ClusterName = {name}\nKillWait = {name}\nAccountingStorageType = x/none\n"
        cluster.cases.clear()
        cluster.has("slurm_test_cluster.txt")
        cluster.cases["scontrol"] = []
        cluster.answers("scontrol show config", config.encode("utf-8", "replace").decode())
        word = name.replace(" ", "_").encode("utf-8", "replace").decode()
        one = f"PartitionName={word} Default=YES State=UP MaxTime=UNLIMITED OverSubscribe=NO\n"
        cluster.answers("scontrol --oneliner show partitions", one)
        node = f"NodeName=n CPUTot=8 RealMemory=1 Gres=gpu:{word}:4 Partitions={word}\n"
        cluster.answers("scontrol --oneliner show nodes", node)
        found, text, job = drafted(cluster.clients(), "slurm", cluster.folder)
        assert found.scheduler == "slurm" and "\x1b" not in text
        assert job.get("queue", word) == word
        assert set(job) <= {"queue", "gpus_per_node", "cpus_per_gpu"}
        (cluster.folder / "here.yaml").unlink()
    assert not list(cluster.folder.rglob("hacked"))


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("gpu:4", {"": 4}),
        ("gpu:a100:4(S:0-1),nvme:1", {"a100": 4}),
        ("gpu:a40:1(S:0,2,4,6,8,10)", {"a40": 1}),
        ("gpu:a100:2(S:0),gpu:v100:2(S:1)", {"a100": 2, "v100": 2}),
        ("craynetwork:4,gpu:nvidia_a100-sxm4-40gb:4", {"nvidia_a100-sxm4-40gb": 4}),
        ("(null)", {}),
        ("gpu", {}),
        ("shard:8", {}),
    ],
)
def test_gres(gres: str, expected: dict[str, int]) -> None:
    assert reports.gpus(gres) == expected


def test_types_of_mpi() -> None:
    """The form of today, that of versions before 21.08, and one with an error (executorlib#761)."""
    today = (
        "MPI plugin types are...\n\tnone\n\tpmix\n\tcray_shasta\n\tpmi2\n"
        "specific pmix plugin versions available: pmix_v5\n"
        "srun: error:  mpi/pmix_v5: init: (null) [0]: mpi_pmix.c:193: can not load PMIx library\n"
    )
    assert reports.mpi_types(today) == ["none", "pmix", "cray_shasta", "pmi2", "pmix_v5"]
    before = "srun: MPI types are...\nsrun: cray_shasta\nsrun: pmi2\nsrun: none\n"
    assert reports.mpi_types(before) == ["cray_shasta", "pmi2", "none"]


# -- other schedulers -----------------------------------------------------------------------------


def test_pbs_with_several_kinds_of_nodes(cluster: Cluster) -> None:
    cluster.has("pbs_kinds.txt")
    found, text, job = drafted(cluster.clients(), "pbs", cluster.folder)
    assert (found.gpu_request, found.description) == ("ngpus", "pbhead, PBS 23.06.06")
    assert job == {
        "queue": "debug",
        "walltime": "00:30:00",
        "gpus_per_node": "4",
        "cpus_per_gpu": "2",
    }
    assert "#chunk: [gputype=a100]" in text
    assert "1 nodes: 8 CPUs, 4 GiB, ngpus=0, vntype=cray_login" in text
    assert "queue shut: execution, not enabled, not started" in text
    assert "Other queues (qstat -Qf): workq." in text  # neither `small` nor `shut` takes jobs
    with pytest.raises(UsageError, match="there is no queue nix"):
        drafted(cluster.clients(), "pbs", cluster.folder, "nix")


def test_pbs_with_vnodes(cluster: Cluster) -> None:
    """Vnodes of one host are one node."""
    cluster.has("pbs_vnodes.txt")
    found, text, job = drafted(cluster.clients(), "pbs", cluster.folder)
    assert (found.gpu_request, job["gpus_per_node"]) == ("none", "0")
    assert "1 nodes: 16 CPUs, 32 GiB, ngpus=0" in text
    assert "1 nodes: 8 CPUs, 71 GiB, ngpus=0, NodeType=large" in text


def test_gridengine(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.has("gridengine_test_cluster.txt")
    monkeypatch.setenv("SGE_CLUSTER_NAME", "p6444")
    found, text, job = drafted(cluster.clients(), "gridengine", cluster.folder)
    assert found.description == "p6444, SGE 8.1.9"
    # GPUs are counted for each slot, so the slots of a node have to divide them.
    assert found.gpu_request == "gpu-per-slot"
    assert found.options == {
        "parallel_environment": "mpi4",
        "slots_per_node": "4",
        "one_node_environment": "smp",
        "gpu_resource": "gpu",
    }
    assert job == {"gpus_per_node": "4", "cpus_per_gpu": "1"}
    assert "may survive" not in text


def test_the_job_for_a_node_gets_all_gpus_if_one_is_refused(cluster: Cluster) -> None:
    """Each of the four slots of a node has a GPU, so a single GPU cannot be requested."""
    cluster.has("gridengine_test_cluster.txt")
    draft = site.read_cluster(cluster.clients(), "gridengine", None)
    file = cluster.folder / "mine.yaml"
    file.write_text(site.finish(draft, "mine").text)
    plan, _ = prepare_look(draft, file, ["true"])
    assert plan.job.resources.gpus_per_node == 4


SOME_TAKEN = """\
HOSTNAME                ARCH         NCPU NSOC NCOR NTHR  LOAD  MEMTOT  MEMUSE  SWAPTO  SWAPUS
----------------------------------------------------------------------------------------------
global                  -               -    -    -    -     -       -       -       -       -
n1                      lx-amd64        8    1    8    8 11.06   23.5G    5.5G     0.0     0.0
    Host Resource(s):      hc:gpu=%d.000000
n2                      lx-amd64        8    1    8    8 11.06   23.5G    5.5G     0.0     0.0
    Host Resource(s):      hc:gpu=0.000000
"""


@pytest.mark.parametrize(("free", "asked"), [(1, 1), (0, 4)])
def test_gridengine_with_jobs_on_its_gpus(cluster: Cluster, free: int, asked: int) -> None:
    """qhost shows what is left of a consumable, complex_values of a host what it has."""
    cluster.answers("qconf -sc", "gpu gpu INT <= YES JOB 0 0\n")
    cluster.answers("qhost -F gpu", SOME_TAKEN % free)
    found, text, job = drafted(cluster.clients(), "gridengine", cluster.folder)
    assert found.gpu_request == "gpu" and found.options["gpu_resource"] == "gpu"
    assert "gpus_per_node" not in job and f"    #gpus_per_node: {asked}\n" in text
    assert f"At most {free} are free now" in flat(text)

    for name in ("n1", "n2"):
        cluster.answers(f"qconf -se {name}", f"hostname {name}\ncomplex_values h_vmem=64G,gpu=4\n")
    found, text, job = drafted(cluster.clients(), "gridengine", cluster.folder)
    assert job["gpus_per_node"] == "4"
    assert "complex_values gpu=4 of 2 hosts" in flat(text)
    assert "no consumable resource" not in text


def test_gridengine_without_fitting_environments(cluster: Cluster) -> None:
    cluster.answers("qconf -sql", "all.q\nlong.q\n")
    cluster.answers("qconf -sq", "qname all.q\npe_list make\nh_rt 12:00:00\n")
    cluster.answers("qconf -spl", "make\n")
    cluster.answers("qconf -sp make", "pe_name make\nallocation_rule $round_robin\n")
    found, text, job = drafted(cluster.clients(), "gridengine", cluster.folder)
    assert found.options == {} and job == {}
    assert "jobs on several nodes need one whose allocation_rule is a number" in flat(text)
    assert "#queue: all.q" in text


@pytest.mark.parametrize(
    ("status", "components", "is_asked"),
    [(0, "mca:plm:rsh:version:1\nmca:plm:slurm:version:1\n", True),
     (0, "mca:plm:tm:version:1\n", False), (0, "", False), (1, "cannot load it\n", False)],
)  # fmt: skip
def test_pbs_asks_about_an_open_mpi_without_tm_only_if_it_lists_its_components(
    cluster: Cluster, status: int, components: str, is_asked: bool
) -> None:
    cluster.has("pbs_kinds.txt")
    cluster.answers("ompi_info", components, status)
    _, text, _ = drafted(cluster.clients(), "pbs", cluster.folder)
    assert ("OMPI_MCA_plm_rsh_agent" in text) == is_asked


@pytest.mark.parametrize(
    ("file", "scheduler"),
    [
        ("slurm_test_cluster.txt", "slurm"),
        ("slurm_kinds.txt", "slurm"),
        ("pbs_kinds.txt", "pbs"),
        ("gridengine_test_cluster.txt", "gridengine"),
        ("cobalt_queues.txt", "cobalt"),
    ],
)
def test_the_mark_of_any_open_key_can_be_removed(
    file: str, scheduler: str, cluster: Cluster
) -> None:
    """Of each key alone, and of all."""
    cluster.has(file)
    draft = site.read_cluster(cluster.clients(), scheduler, None)
    draft.ask("env", {"A": "1", "B": "two"}, "Which variables?")
    draft.ask("fabric", "ib", "Which network?")
    draft.ask("defaults.job.account", "me", "Who pays?")
    _all_open_keys_can_be_opened(draft, cluster.folder)
    for entry in draft.entries.values():
        entry.is_open = entry.is_open or entry.key.startswith("defaults.")
    _all_open_keys_can_be_opened(draft, cluster.folder)


def _all_open_keys_can_be_opened(draft: SiteDraft, folder: Path) -> None:
    text = site.finish(draft, "here").text
    file = folder / "here.yaml"
    open_keys = [one for one in draft.entries.values() if one.is_open]
    for chosen in [*([one] for one in open_keys), open_keys]:
        lines = text.splitlines()
        for entry in chosen:
            at = entry.line - 1
            while at < len(lines) and re.match(r" *#[^ ?#]| *#  ", lines[at]):
                lines[at] = lines[at].replace("#", "", 1)
                at += 1
        file.write_text("\n".join(lines))
        found: Any = plain(load_site(file).defaults)
        for entry in chosen:
            _, _, name = entry.key.partition("defaults.job.")
            assert not name or name in found["job"]


def test_a_value_with_any_break_of_lines_stays_in_its_comment(cluster: Cluster) -> None:
    draft = SiteDraft()
    draft.add("scheduler", "slurm", "here")
    for number, letter in enumerate("\x85\u2028\u2029"):
        draft.ask(f"env{number}", f"a{letter}runtime: x", "Which?")
    assert len(draft.text("x").splitlines()) == len(draft.text("x").split("\n")) - 1
    site.finish(draft, "here")


def test_the_name_of_a_file_is_not_the_name_auto() -> None:
    assert site.checked_name("mine.yaml") == "mine"
    for name in ("auto.yaml", "auto", ".yaml"):
        with pytest.raises(UsageError, match="cannot be the name of a site"):
            site.checked_name(name)


def test_cobalt(cluster: Cluster) -> None:
    cluster.has("cobalt_queues.txt")
    _, text, job = drafted(cluster.clients(), "cobalt", cluster.folder)
    assert job == {"queue": "single-gpu", "walltime": "00:30:00"}  # `aaa` is for one user
    assert "Cobalt 1.0.33" in text
    assert "2 nodes in queue aaa (nodelist)" in text
    assert "queue old: State dead" in text
    for question in ("gpus_per_node: 8", "directives: [--attrs filesystems=home]", "account:"):
        assert f"#{question}" in text


def test_a_table_of_cobalt_with_an_empty_column() -> None:
    text = "Host  Queue  State\n==================\nn1           down \n"
    assert table(text) == [{"Host": "n1", "Queue": "", "State": "down"}]
    assert table("nodelist is only supported on cluster systems.\n") == []


# -- this machine ---------------------------------------------------------------------------------


def test_modules_of_lmod() -> None:
    """The example of Lmod's documentation."""
    text = (
        "a13(@a/13.2.345)\n/opt/apps/modulefiles:\nab2/\nab2/7(@ab2/7.4.3)\nab2/7.4.3\n"
        "/opt/apps/other:\nC/\nC/1.0\nC/3.0 <F>\n/opt/apps/lmod/modulefiles:\nlmod\n"
    )
    names = ["a13", "ab2", "ab2/7", "ab2/7.4.3", "C", "C/1.0", "C/3.0", "lmod"]
    assert machine.module_names(text) == names


def test_a_runtime_in_a_module(cluster: Cluster) -> None:
    cluster.has("slurm_test_cluster.txt")
    listing = "/apps/modules:\\ncontainers/apptainer/1.3.2(default)\\nopenmpi/4.1.5\\n"
    cluster.runs("bash", f"printf '{listing}'")
    found, text, _ = drafted(cluster.clients(), "slurm", cluster.folder)
    assert (found.runtime, found.setup) == ("apptainer", "module load containers/apptainer\n")
    assert "# module avail: containers/apptainer/1.3.2" in text


def test_runtimes_that_are_installed(cluster: Cluster) -> None:
    cluster.has("slurm_test_cluster.txt")
    cluster.cases["srun"] = []
    cluster.answers("srun --help", "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n")
    cluster.answers("podman", "podman version 4.3.1\n")
    found, text, _ = drafted(cluster.clients(), "slurm", cluster.folder)
    assert found.runtime == "podman"
    assert "pyxis: srun --help has --container-image" in flat(text)


def test_shared_file_systems() -> None:
    lines = [
        "proc /proc proc rw 0 0",
        "10.0.0.1:/home /home nfs4 rw 0 0",
        "mds@o2ib:/lus /lus/grand lustre rw 0 0",
        "mds@o2ib:/lus /lus/grand/projects lustre rw 0 0",
        "srv:/opt /usr/local nfs rw 0 0",
        "srv:/x /with\\040blank nfs rw 0 0",
        "short",
    ]
    assert machine.shared_mounts(lines) == {"/home": "nfs4", "/lus/grand": "lustre"}


@pytest.mark.parametrize(
    ("names", "fabric"),
    [
        (["eth0"], None),
        (["eno1", "ib0"], "ib"),
        (["ibp65s0"], "ib"),
        (["hsn0", "hsn1", "nmn0"], "slingshot"),
        (["ibm_usb"], None),
    ],
)
def test_fabric(names: list[str], fabric: str | None) -> None:
    assert machine.fabric_of(names) == fabric


def test_a_password_in_a_proxy_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = SiteDraft()
    environ = {"https_proxy": "http://me:secret@proxy:3128", "http_proxy": "http://proxy:3128"}
    machine.draft_machine(draft, Clients(which=lambda name: None), ["localhost"], environ)
    assert draft.entries["env"].value == {"http_proxy": "http://proxy:3128"}
    assert draft.entries["hosts"].is_open


# -- on a node ------------------------------------------------------------------------------------


def test_what_a_node_shows() -> None:
    draft = SiteDraft()
    draft.ask("fabric", "ib", "?")
    draft.ask("bind", ["/scratch", "/home"], "?")
    draft.add("runtime", "podman", "login")
    draft.add("defaults.job.gpus_per_node", 0, "none counted")
    add_seen(
        draft,
        [
            ("host", "x1000c0s0b0n0"),
            ("device", "/dev/nvidia0"),
            ("device", "/dev/nvidia1"),
            ("device", "/dev/fuse"),
            ("gpu", "NVIDIA A100-SXM4-40GB, 535.129.03, 40960 MiB"),
            ("interface", "lo"),
            ("interface", "hsn0"),
            ("runtime", "apptainer /usr/bin/apptainer apptainer version 1.3.2"),
            ("mount", "/scratch lustre"),
            ("mount", "/ ext4"),
            ("scratch", "/local/scratch xfs 3000 GiB"),
        ],
    )
    assert draft.value("fabric") == "slingshot"
    assert draft.value("runtime") == "apptainer"
    assert draft.value("bind") == ["/scratch"]
    assert draft.value("defaults.job.gpus_per_node") == 2
    assert any("A100-SXM4-40GB, 535.129.03" in fact for fact in draft.facts)


def test_the_script_for_a_node(tmp_path: Path) -> None:
    """It runs here, and its result can be read."""
    from hpc_amp.draft.node import SCRIPT, read_seen

    result = tmp_path / "seen"
    subprocess.run(["bash", str(SCRIPT), str(result), "sh", "no-such-program"], check=True)
    seen = read_seen(result)
    assert ("host", os.uname().nodename) in seen
    assert ("interface", "lo") in seen
    assert any(key == "runtime" and value.startswith("sh /") for key, value in seen)
    assert all(key and value for key, value in seen)


def test_a_real_job_on_this_machine(cluster: Cluster) -> None:
    """Without a stub: the job is submitted, runs, and is removed."""
    environ = clean_environ(XDG_CONFIG_HOME=str(cluster.folder / "config"))
    # The login shell of this machine may be slow, and has no modules.
    cluster.runs("bash", 'case $1 in -lc) ;; *) exec /bin/bash "$@" ;; esac')
    environ["PATH"] = f"{cluster.bin}:{ORDINARY_PATH}"
    work = cluster.folder / "work"
    work.mkdir()
    words = ("site", "draft", "mine", "--scheduler", "local", "--on-node")
    result = commands.hpc_amp(*words, cwd=work, environ=environ)
    assert result.returncode == 0, result.stderr
    assert "which looks at a node" in result.stderr
    text = (cluster.folder / "config/hpc-amp/sites/mine.yaml").read_text()
    assert f"node {os.uname().nodename}: interfaces" in flat(text).replace("- ", "")
    assert not list(work.iterdir())


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def environ(cluster: Cluster) -> dict[str, str]:
    """The environment of a login node of the test cluster."""
    cluster.has("slurm_test_cluster.txt")
    cluster.answers("sbatch", "")
    (cluster.folder / "slurm.conf").touch()
    config = str(cluster.folder / "config")
    made = clean_environ(XDG_CONFIG_HOME=config, PATH=str(cluster.bin))
    return {**made, "SLURM_CONF": str(cluster.folder / "slurm.conf")}


def test_the_command_writes_checks_and_does_not_overwrite(
    cluster: Cluster, environ: dict[str, str]
) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return commands.hpc_amp(*words, cwd=cluster.folder, environ=environ)

    path = cluster.folder / "config/hpc-amp/sites/hpcamp.yaml"
    first = call("site", "draft")
    assert first.returncode == 0, first.stderr
    assert f"wrote {path}" in first.stdout and "doctor site=hpcamp" in first.stdout
    assert os.listdir(path.parent) == ["hpcamp.yaml"]
    path.write_text(f"# mine\n{path.read_text()}")
    again = call("site", "draft")
    assert again.returncode == 2 and "already exists; --force replaces it" in again.stderr
    assert path.read_text().startswith("# mine\n")
    assert call("site", "draft", "--force").returncode == 0
    assert not path.read_text().startswith("# mine\n")
    printed = call("site", "draft", "-o", "-")
    assert printed.stdout == path.read_text()
    assert call("site", "draft", "../x").returncode == 2
    assert "there is no partition nix" in call("site", "draft", "b", "-q", "nix").stderr
    assert os.listdir(path.parent) == ["hpcamp.yaml"]

    listed = json.loads(call("site", "list", "--json").stdout)
    ours = next(one for one in listed if one["name"] == "hpcamp")
    assert ours["path"] == str(path) and ours["scheduler"] == "slurm"
    assert call("site", "show", "hpcamp").stdout == f"# {path}\n{path.read_text()}"
    shown = json.loads(call("site", "show", "hpcamp", "--json").stdout)
    assert shown["defaults"]["job"]["queue"] == "batch" and shown["path"] == str(path)


def test_no_scheduler(cluster: Cluster, environ: dict[str, str]) -> None:
    (cluster.bin / "sbatch").unlink()
    result = commands.hpc_amp("site", "draft", cwd=cluster.folder, environ=environ)
    assert result.returncode == 2
    assert "no scheduler is configured on this machine" in result.stderr
    assert result.stderr.count("\n") == 1


def test_ctrl_c_leaves_nothing(cluster: Cluster, environ: dict[str, str]) -> None:
    mark = cluster.folder / "called"
    cluster.runs("scontrol", f"sleep 1000 & echo $! >{mark}\nwait")
    process = subprocess.Popen(
        [sys.executable, "-m", "hpc_amp", "site", "draft"],
        cwd=cluster.folder,
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: mark.exists() and mark.read_text().endswith("\n"), "the call")
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in process.communicate()[1]
    assert process.returncode == 130
    child = int(mark.read_text())
    wait_until(lambda: has_ended(child), "the child")
    assert not (cluster.folder / "config").exists()


def test_ctrl_c_at_the_start_of_a_command_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Interrupted(subprocess.Popen[str]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    other = threading.Event()
    thread = threading.Thread(target=other.wait)  # the signal may come to it, as to one of torch
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_in_time(["sleep", "1000"], 600)
    other.set()
    thread.join()
    assert [process.returncode for process in started] == [-signal.SIGTERM]


# -- doctor ---------------------------------------------------------------------------------------


def test_doctor_checks_a_site(cluster: Cluster, environ: dict[str, str]) -> None:
    cluster.answers("squeue", "")
    cluster.answers("sinfo --all", "batch*|up|1-00:00:00|1-infinite|4|gpu:4\n")

    def findings(name: str, *more: str) -> tuple[int, list[dict[str, Any]]]:
        result = commands.hpc_amp(
            "doctor", f"site={name}", *more, "--json", cwd=cluster.folder, environ=environ
        )
        assert result.stdout, result.stderr
        return result.returncode, json.loads(result.stdout)

    commands.hpc_amp("site", "draft", "good", cwd=cluster.folder, environ=environ)
    status, found = findings("good")
    assert status == 0, found
    what = {one["id"]: one["what"] for one in found}
    assert what["sched"] == "Slurm answers" and what["config"].startswith("a job with the site's")
    for wrong, text in (
        ("job.gpus_per_node=5", "and the nodes of batch have 4"),
        ("job.queue=nix", "there is no partition nix"),
        ("job.walltime=48h", "is more than batch allows"),
        ("job.nodes=9", "batch has 4"),
    ):
        status, found = findings("good", wrong)
        assert status == 1 and any(text in one["what"] for one in found), wrong
    own = cluster.folder / "own.yaml"
    own.write_text("scheduler: slurm\nsrun_mpi: pmi1\nhosts: [elsewhere]\n")
    status, found = findings(str(own))
    warned = [one["what"] for one in found if one["severity"] == "warning"]
    assert any("srun has no MPI type pmi1" in one for one in warned)
    assert any("site: auto is slurm on this machine" in one for one in warned)
    own.write_text("scheduler: slurm\ngpu_request: ngpus\n")
    status, found = findings(str(own))
    assert status == 1 and "own.yaml:2: gpu_request: Slurm does not know" in found[0]["what"]
    words = ("doctor", "site=nix")
    unknown = commands.hpc_amp(*words, cwd=cluster.folder, environ=environ)
    assert unknown.returncode == 2 and "there is no site 'nix'" in unknown.stderr
