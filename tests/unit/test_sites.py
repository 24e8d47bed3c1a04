"""Site files, and which one a job gets."""

import itertools
import re
import shlex
import socket
import subprocess
from pathlib import Path

import pytest
from support.container import sif
from support.environment import REPOSITORY

from hpc_amp import resources, schedulers
from hpc_amp.config import folders
from hpc_amp.config.checks import check_job
from hpc_amp.config.fabric import find_fabric
from hpc_amp.config.schema import Resources
from hpc_amp.config.sites import (
    find_site,
    load_for_site,
    load_site,
    site_files,
)
from hpc_amp.errors import ConfigError
from hpc_amp.jobs.plan import make_plan
from hpc_amp.jobs.render import render
from hpc_amp.schedulers import SCHEDULERS
from hpc_amp.schedulers.cobalt import Cobalt
from hpc_amp.schedulers.pbs import Pbs
from hpc_amp.schedulers.slurm import Slurm


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine without a scheduler and without sites of its user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("HPC_AMP_SITES", "SLURM_CONF", "PBS_CONF_FILE", "PBS_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("COBALT_CONFIG_FILES", raising=False)
    monkeypatch.setattr("hpc_amp.schedulers.slurm.scheduler.FILES", (tmp_path / "slurm.conf",))
    monkeypatch.setattr("hpc_amp.schedulers.pbs.scheduler.FILE", tmp_path / "pbs.conf")
    monkeypatch.setattr("hpc_amp.schedulers.cobalt.scheduler.FILE", tmp_path / "cobalt.conf")
    return tmp_path


def write(path, text):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def program(path, text):
    write(path, f"#!/bin/sh\n{text}\n").chmod(0o755)


def nothing(name):
    return None


def test_every_shipped_site_loads_and_is_found_by_its_name():
    files = site_files()
    assert set(files) == {
        *("local", "slurm", "pbs", "cobalt", "gridengine", "slurm-slingshot"),
        *("thetagpu", "polaris", "aurora", "perlmutter"),
    }
    for name in files:
        site = find_site(name)
        assert site.name == name and site.description


def test_a_site_has_the_defaults_of_its_class():
    site = load_site(write("a.yaml", "scheduler: slurm\n"))
    assert (site.name, site.scheduler, site.launcher, site.gpu_request) == (
        "a", "slurm", "auto", "auto",
    )  # fmt: skip
    assert (site.bind, site.env, site.setup, site.defaults.entries) == ([], {}, "", {})


CASES = {
    "description: x": "a.yaml: scheduler is missing; add a line scheduler: ...",
    "scheduler: slrm": "a.yaml:1: scheduler: 'slrm' is not one of slurm, pbs, cobalt, gridengine, "
    "local; did you mean slurm?",
    "scheduler: slurm\nmodules: x": "a.yaml:2: unknown key modules; the keys at the top level are "
    "name, description, scheduler, launcher, launcher_args, srun_mpi, host_mpi, fabric, runtime, "
    "hosts, gpu_request, gpu_order, chunk, gpu_type, options, bind, env, setup, directives, "
    "skip_directives, address, container_args, defaults",
    "scheduler: slurm\nhost: [a]": "a.yaml:2: unknown key host; did you mean hosts?",
    "scheduler: slurm\nname: b": "a.yaml:2: name: 'b' is not the file's name; leave the key out, "
    "or rename the file to b.yaml",
    "scheduler: slurm\naddress: '{host} x'": "a.yaml:2: address: '{host} x' is not {host} with "
    "letters, digits, '.' and '-' before or behind it, such as ic-{host}",
    "scheduler: slurm\naddress: -ib0": "a.yaml:2: address: '-ib0' is not {host} with letters, "
    "digits, '.' and '-' before or behind it, such as ic-{host}",
    "scheduler: slurm\naddress: '{host}{host}'": "a.yaml:2: address: '{host}{host}' is not {host} "
    "with letters, digits, '.' and '-' before or behind it, such as ic-{host}",
    "scheduler: slurm\naddress_suffix: -ib0": "a.yaml:2: address_suffix is called address now; "
    'write address: "{host}-ib0"',
    "scheduler: slurm\nenv: {A: b,\n  MASTER_ADDR: x}": "a.yaml:3: env.MASTER_ADDR: hpc-amp sets "
    "it itself; leave it out: it is the name of the first node; `address` of a site file gives "
    "that name another form, such as ic-{host}",
    "scheduler: slurm\ngpu_type: a 100": "a.yaml:2: gpu_type: 'a 100' cannot name a GPU: write it "
    "as `sinfo -o %G` shows it: a100",
    "scheduler: slurm\ndefaults: gpu": "a.yaml:2: defaults: must be a mapping, not 'gpu'",
    "scheduler: slurm\ndefaults:\n  job: {nods: 1}": "a.yaml:3: unknown key defaults.job.nods; did "
    "you mean defaults.job.nodes?",
    "scheduler: slurm\ndefaults:\n  nodes: 1": "a.yaml:3: unknown key defaults.nodes; `nodes` "
    "belongs under defaults.job",
    "scheduler: slurm\ndefaults:\n  job: {nodes: 0}": "a.yaml:3: defaults.job.nodes: 0 is too "
    "small: it must be at least 1",
    "scheduler: slurm\ndefaults:\n  train:\n    precision: fp8": "a.yaml:4: "
    "defaults.train.precision.mode: 'fp8' is not one of fp32, tf32, bf16, fp16, O0, O1, O2, O3",
    "scheduler: slurm\ndefaults:\n  name: x": "a.yaml:3: defaults.name: a site cannot choose it; "
    "it belongs in the job file",
    "scheduler: slurm\ndefaults:\n  run: [x]": "a.yaml:3: defaults.run: a site cannot choose it; "
    "it belongs in the job file",
    "scheduler: pbs\ngpu_request: gres": "a.yaml:2: gpu_request: PBS does not know gres; use one "
    "of: auto, ngpus, none",
    "scheduler: slurm\ngpu_request: ngpus": "a.yaml:2: gpu_request: Slurm does not know ngpus; use "
    "one of: auto, gpus-per-node, gres, none",
    "scheduler: cobalt\ngpu_request: gpus-per-node": "a.yaml:2: gpu_request: Cobalt does not know "
    "gpus-per-node; use one of: auto, none",
    "scheduler: pbs\ngpu_type: a100": "a.yaml:2: gpu_type: PBS does not use it; "
    "write it into chunk, such as gputype=A100",
    "scheduler: local\ngpu_type: a100": "a.yaml:2: gpu_type: the local scheduler does not use "
    "it; remove it",
    "scheduler: slurm\nchunk: [a=b]": "a.yaml:2: chunk: Slurm does not use it; use directives",
    "scheduler: pbs\nchunk: [a b]": "a.yaml:2: chunk: 'a b' is not a resource of a chunk: write "
    "name=value",
    "scheduler: pbs\nlauncher: srun": "a.yaml:2: launcher: srun does not work with PBS; use one "
    "of: auto, mpirun, mpiexec, torchrun, processes, single",
    "scheduler: pbs\nfabric: slingshots": "a.yaml:2: fabric: there is no fabric profile "
    "'slingshots'; did you mean slingshot? The profiles are ethernet, ib, slingshot, "
    "slingshot-no-eager, slingshot-ofi",
    "scheduler: pbs\nbind: [/lus, /usr/lib64/]": "a.yaml:2: bind: /usr/lib64/ hides the image's "
    "own /usr/lib64, which its programs are loaded from; bind it under another name: "
    "/usr/lib64:/hostlib64",
    "scheduler: pbs\nhost_mpi:\n  bind: ['/opt/x:/usr/lib/x86_64-linux-gnu:ro']": "a.yaml:3: "
    "host_mpi.bind: /opt/x:/usr/lib/x86_64-linux-gnu:ro hides the image's own "
    "/usr/lib/x86_64-linux-gnu, which its programs are loaded from; bind it under another name: "
    "/opt/x:/hostx86_64-linux-gnu",
    "scheduler: pbs\nhost_mpi:\n  libraries: [/lib64]": "a.yaml:3: host_mpi.libraries: '/lib64' is "
    "the image's own inside, and it is searched anyway",
    "scheduler: pbs\nhost_mpi:\n  libraries: ['/a:/b']": "a.yaml:3: host_mpi.libraries: '/a:/b' is "
    "not one absolute path: list every folder by itself",
    "scheduler: pbs\nhost_mpi:\n  libraries: ['${A}/b']": "a.yaml:3: host_mpi.libraries: '${A}/b' "
    "is not the name of a variable: write $NAME",
    "scheduler: pbs\nhost_mpi:\n  libraries: [/hl]\n  bind: ['/usr/lib64:/hl']": "a.yaml:3: "
    "host_mpi.libraries: /hl is the host's /usr/lib64, with its C library, which the image's "
    "programs would load; bind only the libraries that are missing, into a folder of their own",
    "": "a.yaml: this site file is empty; write keys, such as scheduler: local",
}


@pytest.mark.parametrize("text", CASES)
def test_errors_in_site_files_are_one_line(text):
    with pytest.raises(ConfigError) as caught:
        load_site(write("a.yaml", text))
    assert str(caught.value) == CASES[text]


def test_folders_are_searched_in_order(machine, monkeypatch):
    write("config/hpc-amp/sites/mine.yaml", "scheduler: local\ndescription: own")
    write("config/hpc-amp/sites/local.yaml", "scheduler: local\ndescription: own")
    assert find_site("mine").description == "own"
    assert find_site("local").description == "own"
    write("group/local.yaml", "scheduler: local\ndescription: group")
    monkeypatch.setenv("HPC_AMP_SITES", str(machine / "group"))
    assert find_site("local").description == "group"
    assert find_site("mine").description == "own"
    monkeypatch.setenv("HPC_AMP_SITES", "/no/such")
    with pytest.raises(ConfigError) as caught:
        find_site("local")
    assert str(caught.value) == "$HPC_AMP_SITES: there is no folder /no/such; correct or unset it"


def test_a_folder_that_cannot_be_read(monkeypatch):
    """Like one without permission, but for root as well."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/" + 300 * "x")
    with pytest.raises(ConfigError, match=r"^/x{300}/hpc-amp/sites cannot be read: File name too"):
        find_site("local")


@pytest.mark.parametrize("path", ["a.yaml", "./a.yaml", "sub/a.yml"])
def test_a_path_is_that_file(path):
    write(path, "scheduler: local\n")
    assert find_site(path).name == "a"


def test_a_path_to_nothing():
    with pytest.raises(ConfigError) as caught:
        find_site("./b.yaml")
    assert str(caught.value) == "b.yaml: there is no such site file; check the path"


def test_an_unknown_name_lists_the_sites(machine, monkeypatch):
    shipped = write(machine / "share/sites/local.yaml", "scheduler: local").parent
    write(shipped / "polaris.yaml", "scheduler: local")
    monkeypatch.setattr(folders, "resource_folder", lambda name: shipped.parent)
    with pytest.raises(ConfigError) as caught:
        find_site("polris", where="job.yaml:2")
    assert str(caught.value) == (
        "job.yaml:2: site: there is no site 'polris'; did you mean polaris? "
        "The sites are local, polaris"
    )
    with pytest.raises(ConfigError) as caught:
        find_site("zzz")
    assert str(caught.value) == "site: there is no site 'zzz'; the sites are local, polaris"


class TestAuto:
    def test_is_the_site_whose_pattern_fits(self):
        write("config/hpc-amp/sites/lake.yaml", 'scheduler: slurm\nhosts: ["login?.lake.org", x]\n')
        assert find_site(hostname="login1.lake.org", which=nothing).name == "lake"
        assert find_site(hostname="LOGIN2.lake.org", which=nothing).name == "lake"
        assert find_site(hostname="x", which=nothing).name == "lake"
        assert find_site(hostname="login1.lake.org.evil", which=nothing).name == "local"

    def test_a_wrong_file_of_another_site_stops_it_only_if_it_may_be_the_one(self):
        place = write("config/hpc-amp/sites/lake.yaml", "scheduler: slurm\nhost: [login1]\n")
        with pytest.raises(ConfigError, match=r"lake.yaml:2: unknown key host; did you mean hosts"):
            find_site(hostname="login1", which=nothing)
        place.write_text("scheduler: slurm\nhosts: [login1]\nchunk: [a=b]\n")
        with pytest.raises(ConfigError, match=r"lake.yaml:3: chunk: Slurm does not use it"):
            find_site(hostname="login1", which=nothing)
        assert find_site(hostname="login2", which=nothing).name == "local"

    def test_asks_the_machine_for_its_names(self, monkeypatch):
        write("config/hpc-amp/sites/lake.yaml", "scheduler: slurm\nhosts: [login1.lake.org]\n")
        monkeypatch.setattr(socket, "gethostname", lambda: "login1")
        monkeypatch.setattr(socket, "getfqdn", lambda: "login1.lake.org")
        assert find_site(which=nothing).name == "lake"
        monkeypatch.setattr(socket, "gethostname", lambda: "login2.lake.org")
        assert find_site(which=nothing).name == "local"

    def test_is_slurm_where_slurm_is_configured(self, monkeypatch):
        monkeypatch.setenv("SLURM_CONF", "/etc/x.conf")
        assert find_site(hostname="a", which="/usr/bin/{}".format).name == "slurm"
        assert find_site(hostname="a", which=nothing).name == "local"

    def test_imports_only_schedulers_whose_command_is_here(self, monkeypatch):
        asked = set()
        get = SCHEDULERS.get
        monkeypatch.setattr(SCHEDULERS, "get", lambda name: asked.add(name) or get(name))
        monkeypatch.setenv("SLURM_CONF", "/etc/x.conf")
        assert find_site(hostname="a", which=only("sbatch")).name == "slurm"
        assert asked == {"slurm"}
        monkeypatch.delenv("SLURM_CONF")
        asked.clear()
        assert find_site(hostname="a", which=nothing).name == "local"
        assert asked == {"local"}

    def test_knows_the_commands_of_all_schedulers(self):
        commands = {one.name: one.command for one in map(SCHEDULERS.get, SCHEDULERS.own())}
        assert commands == schedulers._COMMANDS | {"local": ""}

    def test_prefers_a_known_site_to_a_scheduler(self, monkeypatch):
        monkeypatch.setenv("SLURM_CONF", "/etc/x.conf")
        host = "login07.chn.perlmutter.nersc.gov"
        assert find_site(hostname=host, which="/usr/bin/{}".format).name == "perlmutter"

    @pytest.mark.parametrize(
        ("host", "site"),
        [
            ("login07.chn.perlmutter.nersc.gov", "perlmutter"),
            ("polaris-login-01", "polaris"),
            ("polaris-login-04.hsn.cm.polaris.alcf.anl.gov", "polaris"),
            ("aurora-uan-0009", "aurora"),
            ("aurora-uan-0009.hostmgmt.cm.aurora.alcf.anl.gov", "aurora"),
            ("thetagpusn1", "thetagpu"),
            ("login07.cluster.example.org", "local"),
        ],
    )
    def test_knows_the_login_nodes_of_the_shipped_sites(self, host, site):
        assert find_site(hostname=host, which=nothing).name == site

    def test_asks_for_pbs_and_cobalt_after_slurm(self, monkeypatch):
        assert find_site(hostname="a", which=only("qsub", "qstat")).name == "local"
        write("pbs.conf", "PBS_SERVER=head\n")
        assert find_site(hostname="a", which=only("qsub", "qstat")).name == "pbs"
        write("cobalt.conf", "")
        assert find_site(hostname="a", which=only("qsub", "qstat", "cqwait")).name == "cobalt"
        monkeypatch.setenv("SLURM_CONF", "/etc/x.conf")
        assert find_site(hostname="a", which=only("sbatch", "qsub", "qstat")).name == "slurm"


def only(*names):
    """A PATH with these programs, all in one folder."""
    return lambda name: f"/usr/bin/{name}" if name in names else None


class TestPbs:
    CLIENT = ("qsub", "qstat", "pbsnodes")

    def test_needs_its_commands_and_the_name_of_a_server(self, monkeypatch):
        write("pbs.conf", "# PBS_SERVER=old\nPBS_EXEC=/opt/pbs\n")
        assert not Pbs.is_configured(only(*self.CLIENT))
        monkeypatch.setenv("PBS_SERVER", "head")
        assert Pbs.is_configured(only(*self.CLIENT))
        monkeypatch.delenv("PBS_SERVER")
        write("pbs.conf", "PBS_EXEC=/opt/pbs\n PBS_SERVER = head\n")
        assert Pbs.is_configured(only(*self.CLIENT))
        assert not Pbs.is_configured(only("qstat", "pbsnodes"))
        assert not Pbs.is_configured(only("qsub"))
        assert not Pbs.is_configured(nothing)

    def test_finds_its_file_by_the_variable(self, monkeypatch):
        write("elsewhere.conf", "PBS_PRIMARY=head\n")
        monkeypatch.setenv("PBS_CONF_FILE", "elsewhere.conf")
        assert Pbs.is_configured(only(*self.CLIENT))
        monkeypatch.setenv("PBS_CONF_FILE", "missing.conf")
        assert not Pbs.is_configured(only(*self.CLIENT))

    def test_torque_has_the_same_commands_but_not_the_file(self):
        assert not Pbs.is_configured(only(*self.CLIENT, "pbsdsh", "momctl"))

    @pytest.mark.parametrize("other", ["qconf", "cqwait"])
    def test_grid_engine_and_cobalt_are_told_by_what_lies_beside_qsub(self, other):
        write("pbs.conf", "PBS_SERVER=left-behind\n")
        assert not Pbs.is_configured(only("qsub", "qstat", other))

        def elsewhere(name):
            return f"/opt/other/{name}" if name == other else only(*self.CLIENT)(name)

        assert Pbs.is_configured(elsewhere)

    def test_looks_on_the_real_path(self, machine, monkeypatch):
        for name in self.CLIENT:
            program(f"bin/{name}", "exit 0")
        monkeypatch.setenv("PATH", str(machine / "bin"))
        assert not Pbs.is_configured()
        write("pbs.conf", "PBS_SERVER=head\n")
        assert Pbs.is_configured()
        program("bin/qconf", "exit 0")
        assert not Pbs.is_configured()


class TestCobalt:
    def test_needs_its_commands_and_a_file(self):
        assert not Cobalt.is_configured(only("qsub", "cqwait"))
        write("cobalt.conf", "")
        assert Cobalt.is_configured(only("qsub", "cqwait"))
        assert Cobalt.is_configured(only("qsub", "cqstat"))
        assert not Cobalt.is_configured(only("qsub", "qstat", "qalter"))
        assert not Cobalt.is_configured(only("cqwait"))

    def test_finds_its_files_by_the_variable(self, monkeypatch):
        write("gpu.conf", "")
        monkeypatch.setenv("COBALT_CONFIG_FILES", "missing.conf:gpu.conf")
        assert Cobalt.is_configured(only("qsub", "cqwait"))
        monkeypatch.setenv("COBALT_CONFIG_FILES", "missing.conf")
        write("cobalt.conf", "")
        assert not Cobalt.is_configured(only("qsub", "cqwait"))


class TestSlurm:
    def which(self, *names):
        return lambda name: str(Path(name).resolve()) if name in names else None

    def test_needs_sbatch(self, monkeypatch):
        monkeypatch.setenv("SLURM_CONF", "/etc/x.conf")
        assert Slurm.is_configured(self.which("sbatch"))
        assert not Slurm.is_configured(self.which("scontrol"))

    def test_is_configured_by_its_file(self, machine):
        assert not Slurm.is_configured(self.which("sbatch"))
        write("slurm.conf", "")
        assert Slurm.is_configured(self.which("sbatch"))

    def test_is_configured_where_its_controller_answers(self):
        program("scontrol", "[ $1 = ping ]")
        assert Slurm.is_configured(self.which("sbatch", "scontrol"))
        program("scontrol", "exit 1")
        assert not Slurm.is_configured(self.which("sbatch", "scontrol"))

    def test_is_not_configured_where_scontrol_cannot_run(self):
        write("scontrol", "not a program")
        assert not Slurm.is_configured(self.which("sbatch", "scontrol"))


class TestJobOnASite:
    def test_has_the_defaults_of_its_site_beneath(self):
        write("lake.yaml", "scheduler: slurm\ndefaults: {job: {queue: gpu, nodes: 2}}\n")
        path = write("job.yaml", "name: x\nsite: ./lake.yaml\nrun: [a]\njob: {nodes: 3}\n")
        loaded, site = load_for_site(path, ["job.cpus_per_gpu=4"])
        assert site.name == "lake"
        assert loaded.job.resources == Resources(queue="gpu", nodes=3, cpus_per_gpu=4)
        assert loaded.where("job.queue") == "lake.yaml:2"

    def test_names_the_line_of_an_unknown_site(self):
        path = write("job.yaml", "name: x\nsite: slrm\nrun: [a]\n")
        with pytest.raises(ConfigError, match=r"^job\.yaml:2: site: there is no site 'slrm'; did"):
            load_for_site(path)
        with pytest.raises(ConfigError, match=r"^override 'site=lokal': site: there is no site"):
            load_for_site(path, ["site=lokal"])


class TestResourceFolder:
    def test_in_a_checkout_lies_beside_the_package(self):
        assert (resources.resource_folder("configs") / "cifar_resnet.yaml").is_file()

    def test_in_an_install_lies_in_the_package(self, machine, monkeypatch):
        monkeypatch.setattr(resources, "_PACKAGE", machine / "hpc_amp")
        (machine / "configs").mkdir()
        assert resources.resource_folder("configs") == machine / "configs"
        (machine / "hpc_amp/_share/configs").mkdir(parents=True)
        assert resources.resource_folder("configs") == machine / "hpc_amp/_share/configs"

    def test_says_so_where_an_install_lacks_it(self, machine, monkeypatch):
        monkeypatch.setattr(resources, "_PACKAGE", machine / "hpc_amp")
        with pytest.raises(resources.HpcAmpError) as caught:
            resources.resource_folder("jobs")
        assert str(caught.value) == (
            "this installation of hpc-amp has no folder 'jobs'; install it again"
        )


class TestShippedSitesAsScripts:
    """What comes of the shipped sites: headers, and the block of the network."""

    NEEDED = {  # noqa: RUF012  lines of the header of a job on two nodes
        "thetagpu": ["-n 2", "-q full-node", "--attrs filesystems=home,theta-fs0:pubnet=true"],
        "polaris": [
            *("-l select=2:ncpus=32:mpiprocs=4:system=polaris", "-l place=scatter", "-q debug"),
            *("-l filesystems=home:eagle", "-l singularity_fakeroot=true", "-k doe"),
        ],
        "aurora": ["-l select=2:ncpus=96:mpiprocs=12", "-l filesystems=home:flare", "-q debug"],
        "perlmutter": ["--gpus-per-node=4", "--constraint=gpu", "--qos=regular"],
        "slurm-slingshot": ["--gpus-per-node=1", "--nodes=2"],
        "slurm": ["--gpus-per-node=1", "--nodes=2"],
        "pbs": ["-l select=2:ncpus=1:mpiprocs=1:ngpus=1", "-l place=scatter"],
        "cobalt": ["-n 2", "-t 60"],
        "gridengine": ["-pe mpi 2", "-l h_rt=3600"],
    }
    LAUNCHED = {  # noqa: RUF012  on one node, on two
        "thetagpu": ("--ranks", "mpirun -n"),
        "polaris": ("mpiexec -n", "mpiexec -n"),
        "aurora": ("mpiexec -n", "mpiexec -n"),
        "perlmutter": ("srun ", "srun "),
        "slurm-slingshot": ("srun ", "srun "),
        "slurm": ("srun ", "srun "),
        "pbs": ("python", "mpirun -n"),
        "cobalt": ("python", "mpirun -n"),
        "gridengine": ("python", "mpirun -n"),
    }

    def script(self, site, *overrides):
        Path("a.sif").write_bytes(sif())
        path = write("job.yaml", "name: x\nrun: [python, a.py]\ncontainer: a.sif\n")
        loaded, chosen = load_for_site(path, [f"site={site}", *overrides])
        check_job(loaded, chosen)
        return render(make_plan(loaded, chosen, Path("runs/x/1")))

    def header(self, script):
        lines = script.splitlines()[1:]
        end = next(i for i, line in enumerate(lines) if not re.match(r"#([A-Z]+|\$) ", line))
        return [line.partition(" ")[2] for line in lines[:end]]

    def test_every_site_is_looked_at(self):
        assert self.NEEDED.keys() == self.LAUNCHED.keys() == site_files().keys() - {"local"}

    @pytest.mark.parametrize("nodes", [1, 2])
    @pytest.mark.parametrize("name", NEEDED)
    def test_a_job_on_one_and_two_nodes(self, name, nodes):
        script = self.script(name, f"job.nodes={nodes}")
        assert self.LAUNCHED[name][nodes - 1] in script
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        if nodes == 2:
            assert set(self.NEEDED[name]) <= set(self.header(script))

    @pytest.mark.parametrize("nodes", [1, 2])
    @pytest.mark.parametrize("name", NEEDED)
    def test_the_network_is_a_commented_block_before_what_goes_on_top(self, name, nodes):
        fabric = find_site(name).fabric
        lines = self.script(name, f"job.nodes={nodes}").splitlines()
        if fabric is None:
            assert not any("Network between" in line for line in lines)
            return
        start = lines.index("# Network between the nodes.")
        block = list(itertools.takewhile(lambda line: "Settings" not in line, lines[start:]))
        assert block[1].startswith(f"# {fabric}: ") and block[2].startswith("# From ")
        exports = [line for line in block if line.startswith("export ")]
        wanted = find_fabric(fabric).settings(nodes)
        assert exports[: len(wanted)] == [
            f"export {key}={shlex.quote(value)}" for key, value in wanted.items()
        ]

    def test_a_job_chooses_another_network_or_none(self):
        script = self.script("polaris", "job.nodes=2", "launch.fabric=slingshot-ofi")
        assert "export NCCL_NET='AWS Libfabric'" in script
        script = self.script("polaris", "job.nodes=2", "launch.fabric=none")
        assert "NCCL_" not in script

    @pytest.mark.parametrize("name", ["polaris", "aurora", "thetagpu"])
    def test_proxies_have_both_spellings(self, name):
        env = find_site(name).env
        assert env["http_proxy"] == env["HTTP_PROXY"] and env["https_proxy"] == env["HTTPS_PROXY"]

    def test_the_line_of_a_job_replaces_that_of_its_site(self):
        own = "-l filesystems=home"
        header = self.header(self.script("polaris", f"job.directives=[{own!r}]"))
        assert [line for line in header if "filesystems" in line] == [own]
        assert "-l singularity_fakeroot=true" in header
        header = self.header(self.script("perlmutter", "job.directives=['--qos=debug']"))
        assert [line for line in header if line.startswith("--qos")] == ["--qos=debug"]
        own = "--attrs filesystems=home,grand:mig-mode=True"
        header = self.header(self.script("thetagpu", f"job.directives=[{own!r}]"))
        assert [line for line in header if line.startswith("--attrs")] == [
            "--attrs filesystems=home,grand:pubnet=true:mig-mode=True"
        ]

    @pytest.mark.parametrize(
        ("name", "option", "gone", "stays"),
        [
            ("perlmutter", "--gpus-per-node", "--gpus-per-node=4", "--constraint=gpu"),
            ("perlmutter", "--constraint", None, "--constraint=gpu"),
            ("polaris", "-l place", "-l place=scatter", "-l walltime=01:00:00"),
            ("polaris", "-k", "-k doe", "-j oe"),
            ("polaris", "-l filesystems", None, "-l filesystems=home:eagle"),
            ("thetagpu", "-q", "-q full-node", "-n 1"),
            ("thetagpu", "--attrs", None, "--attrs filesystems=home,theta-fs0:pubnet=true"),
        ],
    )
    def test_skipping_touches_generated_lines_only(self, name, option, gone, stays):
        before = self.header(self.script(name))
        after = self.header(self.script(name, f"job.skip_directives=[{option!r}]"))
        assert stays in after
        assert set(before) - set(after) == ({gone} if gone else set())


@pytest.mark.parametrize(
    ("pattern", "node", "address"),
    [
        ("{host}-ib0", "n1.lake.example.org", "n1-ib0"),
        ("ic-{host}", "n1", "ic-n1"),
        ("x.{host}.hsn.example.org", "n1.lake.example.org", "x.n1.hsn.example.org"),
        (None, "n1.lake.example.org", "n1.lake.example.org"),
    ],
)
@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "cobalt"])
def test_the_address_of_the_first_node_has_the_form_of_the_site(scheduler, pattern, node, address):
    given = f"scheduler: {scheduler}\n" + (f"address: '{pattern}'\n" if pattern else "")
    write("lake.yaml", given)
    write("job.yaml", "name: x\nsite: ./lake.yaml\nrun: [true]\njob: {nodes: 2}\n")
    loaded, site = load_for_site(Path("job.yaml"))
    script = render(make_plan(loaded, site, Path("runs/x/20261127-223455-kqzf")))
    settings = re.search(r"^declare -A job=\(.*?^\)$", script, re.DOTALL | re.MULTILINE)[0]
    library = (REPOSITORY / "hpc_amp" / "host" / "run.sh").read_text()
    choice = re.search(
        r'^if \[ -z "\$master_addr" \]; then$.*?^fi$', library, re.DOTALL | re.MULTILINE
    )[0]
    text = "\n".join(
        [settings, f"hosts={node}$'\\n'n2", "master_addr=", choice, 'echo "$master_addr"']
    )
    ran = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{address}\n"


def test_a_scheduler_without_a_site_file_is_a_site_with_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`site: auto` chooses it where it is configured, and the commands on a run look it up by the
    name that the run has noted."""
    monkeypatch.setitem(SCHEDULERS._own, "lake", "hpc_amp.schedulers.local:Local")

    site = find_site("lake")

    assert (site.name, site.scheduler) == ("lake", "lake")
