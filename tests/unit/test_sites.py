"""Site files, and which one a job gets."""

from pathlib import Path

import pytest

from hpc_amp import resources
from hpc_amp.config import sites
from hpc_amp.config.schema import Resources
from hpc_amp.config.sites import (
    find_site,
    load_for_site,
    load_site,
    site_files,
    slurm_is_configured,
)
from hpc_amp.errors import ConfigError


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine without Slurm and without sites of its user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("HPC_AMP_SITES", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sites, "SLURM_FILES", (tmp_path / "slurm.conf",))
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
    assert {"local", "slurm"} <= set(files)
    for name in files:
        site = find_site(name)
        assert site.name == name and site.description


def test_a_site_has_the_defaults_of_its_class():
    site = load_site(write("a.yaml", "scheduler: slurm\n"))
    assert (site.name, site.scheduler, site.launcher, site.gpu_request) == (
        "a", "slurm", "auto", "gpus-per-node",
    )  # fmt: skip
    assert (site.bind, site.env, site.setup, site.defaults.entries) == ([], {}, "", {})


CASES = {
    "description: x": "a.yaml: scheduler is missing; add a line scheduler: ...",
    "scheduler: slrm": "a.yaml:1: scheduler: 'slrm' is not one of slurm, local; did you mean "
    "slurm?",
    "scheduler: slurm\nmodules: x": "a.yaml:2: unknown key modules; the keys at the top level are "
    "name, description, scheduler, launcher, runtime, hosts, gpu_request, gpu_type, bind, env, "
    "setup, directives, skip_directives, address_suffix, container_args, defaults",
    "scheduler: slurm\nhost: [a]": "a.yaml:2: unknown key host; did you mean hosts?",
    "scheduler: slurm\nname: b": "a.yaml:2: name: 'b' is not the file's name; leave the key out, "
    "or rename the file to b.yaml",
    "scheduler: slurm\naddress_suffix: ' x'": "a.yaml:2: address_suffix: ' x' cannot stand behind "
    "a host name: use letters, digits, '.', '-'",
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
    "defaults.train.precision.mode: 'fp8' is not one of fp32, tf32, bf16, fp16",
    "scheduler: slurm\ndefaults:\n  name: x": "a.yaml:3: defaults.name: a site cannot choose it; "
    "it belongs in the job file",
    "scheduler: slurm\ndefaults:\n  run: [x]": "a.yaml:3: defaults.run: a site cannot choose it; "
    "it belongs in the job file",
    "": "a.yaml: this site file is empty; write keys, such as scheduler: slurm",
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
    monkeypatch.setattr(sites, "resource_folder", lambda name: shipped.parent)
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

    def test_asks_the_machine_for_its_names(self, monkeypatch):
        write("config/hpc-amp/sites/lake.yaml", "scheduler: slurm\nhosts: [login1.lake.org]\n")
        monkeypatch.setattr(sites.socket, "gethostname", lambda: "login1")
        monkeypatch.setattr(sites.socket, "getfqdn", lambda: "login1.lake.org")
        assert find_site(which=nothing).name == "lake"
        monkeypatch.setattr(sites.socket, "gethostname", lambda: "login2.lake.org")
        assert find_site(which=nothing).name == "local"

    def test_is_slurm_where_slurm_is_configured(self, monkeypatch):
        monkeypatch.setenv("SLURM_CONF", "/etc/x.conf")
        assert find_site(hostname="a", which="/usr/bin/{}".format).name == "slurm"
        assert find_site(hostname="a", which=nothing).name == "local"


class TestSlurm:
    def which(self, *names):
        return lambda name: str(Path(name).resolve()) if name in names else None

    def test_needs_sbatch(self, monkeypatch):
        monkeypatch.setenv("SLURM_CONF", "/etc/x.conf")
        assert slurm_is_configured(self.which("sbatch"))
        assert not slurm_is_configured(self.which("scontrol"))

    def test_is_configured_by_its_file(self, machine):
        assert not slurm_is_configured(self.which("sbatch"))
        write("slurm.conf", "")
        assert slurm_is_configured(self.which("sbatch"))

    def test_is_configured_where_its_controller_answers(self):
        program("scontrol", "[ $1 = ping ]")
        assert slurm_is_configured(self.which("sbatch", "scontrol"))
        program("scontrol", "exit 1")
        assert not slurm_is_configured(self.which("sbatch", "scontrol"))

    def test_is_not_configured_where_scontrol_cannot_run(self):
        write("scontrol", "not a program")
        assert not slurm_is_configured(self.which("sbatch", "scontrol"))


class TestJobOnASite:
    def test_has_the_defaults_of_its_site_beneath(self):
        write("lake.yaml", "scheduler: slurm\ndefaults: {job: {queue: gpu, nodes: 2}}\n")
        path = write("job.yaml", "name: x\nsite: ./lake.yaml\nrun: [a]\njob: {nodes: 3}\n")
        loaded, site = load_for_site(path, ["job.cpus_per_gpu=4"])
        assert site.name == "lake"
        assert loaded.job.job == Resources(queue="gpu", nodes=3, cpus_per_gpu=4)
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
