"""Fabric profiles: what ships, where they are looked for, and which one a job gets."""

import itertools
from pathlib import Path

import pytest

from hpc_amp.config.fabric import Fabric, fabric_files, fabric_of, find_fabric, load_fabric
from hpc_amp.config.schema import Job, Launch
from hpc_amp.config.site import Site
from hpc_amp.errors import ConfigError

# Read in the documentation of NCCL, libfabric (fi_cxi) and Cray MPICH.
DOCUMENTED = {
    *("NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_NET"),
    *("FI_MR_CACHE_MONITOR", "FI_CXI_DISABLE_HOST_REGISTER", "FI_CXI_DEFAULT_CQ_SIZE"),
    *("FI_CXI_RX_MATCH_MODE", "FI_CXI_RDZV_GET_MIN", "FI_CXI_RDZV_THRESHOLD"),
    *("FI_CXI_RDZV_EAGER_SIZE", "MPICH_GPU_SUPPORT_ENABLED"),
}


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine without profiles of its user."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HPC_AMP_SITES", raising=False)
    return tmp_path


def write(path, text):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class TestShipped:
    @pytest.mark.parametrize("name", fabric_files())
    def test_says_what_it_is_and_sets_only_documented_variables(self, name):
        fabric = find_fabric(name)
        assert (fabric.name, bool(fabric.description and fabric.source)) == (name, True)
        assert fabric.settings(2).keys() <= DOCUMENTED
        assert not fabric.env.keys() & fabric.multi_node_env.keys()

    @pytest.mark.parametrize("name", fabric_files())
    def test_explains_every_variable(self, name):
        """Right above it or behind it, or in slingshot.yaml, which its variants point to."""
        explained = set()
        for file in (name, "slingshot"):
            lines = fabric_files()[file].read_text().splitlines()
            for above, line in itertools.pairwise(lines):
                if above.strip().startswith("# ") or " # " in line:
                    explained.add(line.strip().partition(":")[0])
        assert find_fabric(name).settings(2).keys() <= explained

    def test_nothing_needs_a_network_where_there_is_one_node(self):
        """Interfaces and a plugin that are not there would stop a job on one node for nothing."""
        for name in fabric_files():
            assert not {"NCCL_SOCKET_IFNAME", "NCCL_NET"} & find_fabric(name).settings(1).keys()

    @pytest.mark.parametrize("name", ["slingshot-no-eager", "slingshot-ofi"])
    def test_the_variants_of_slingshot_differ_only_in_what_they_are_for(self, name):
        plain, variant = find_fabric("slingshot").settings(2), find_fabric(name).settings(2)
        changed = {key for key in variant if variant[key] != plain.get(key)}
        assert plain.keys() <= variant.keys()
        assert (
            changed
            == {
                "slingshot-ofi": {"NCCL_NET"},
                "slingshot-no-eager": {
                    "NCCL_SOCKET_IFNAME",
                    "FI_CXI_RDZV_GET_MIN",
                    "FI_CXI_RDZV_THRESHOLD",
                    "FI_CXI_RDZV_EAGER_SIZE",
                },
            }[name]
        )

    def test_excluding_docker_excludes_lo_too(self):
        """`^docker0` alone makes NCCL take lo (horovod/horovod issue 700)."""
        for name in fabric_files():
            interfaces = find_fabric(name).settings(2).get("NCCL_SOCKET_IFNAME", "")
            if interfaces.startswith("^"):
                assert "lo" in interfaces[1:].split(",")


def test_what_the_script_gets():
    fabric = Fabric(
        name="a",
        description="Net",
        source="us",
        env={"A": "1"},
        multi_node_env={"B": "2"},
        notes="Look.",
    )
    assert fabric.settings(1) == {"A": "1"}
    assert fabric.settings(2) == {"A": "1", "B": "2"}
    assert fabric.comments() == ["a: Net", "From us.", "Look."]
    assert Fabric(name="a", description="Net", source="us").comments() == ["a: Net", "From us."]


def test_folders_are_searched_in_order(machine, monkeypatch):
    mine = "description: own\nsource: me\n"
    write("config/hpc-amp/fabrics/lake.yaml", mine)
    write("config/hpc-amp/fabrics/ib.yaml", mine)
    assert find_fabric("lake").description == find_fabric("ib").description == "own"
    write("group/fabrics/ib.yaml", mine.replace("own", "group"))
    monkeypatch.setenv("HPC_AMP_SITES", str(machine / "group"))
    assert find_fabric("ib").description == "group"
    assert find_fabric("lake").description == "own"
    assert "slingshot" in fabric_files()


def test_an_unknown_name():
    with pytest.raises(ConfigError) as caught:
        find_fabric("slingshott", where="job.yaml:4", key="launch.fabric")
    assert str(caught.value) == (
        "job.yaml:4: launch.fabric: there is no fabric profile 'slingshott'; did you mean "
        "slingshot? The profiles are ethernet, ib, slingshot, slingshot-no-eager, slingshot-ofi"
    )


ABOUT = "description: x\nsource: y\n"
CASES = {
    "source: y": "a.yaml: description is missing; add a line description: ...",
    "description: x": "a.yaml: source is missing; add a line source: ...",
    ABOUT + "name: b": "a.yaml:3: name: 'b' is not the file's name; leave the key out, or rename "
    "the file to b.yaml",
    ABOUT + "environment: {A: b}": "a.yaml:3: unknown key environment; the keys at the top level "
    "are name, description, source, env, multi_node_env, notes",
    ABOUT + "env: {A-B: c}": "a.yaml:3: env: 'A-B' cannot be the name of an environment variable",
    ABOUT + 'env: {A: "b\\nc"}': "a.yaml:3: env: the value of A has a control character",
    'description: "x\\ny"\nsource: z': "a.yaml:1: description: 'x\\ny' has a newline or another "
    "control character",
    "": "a.yaml: this fabric profile is empty; write keys, such as description: ...",
}


@pytest.mark.parametrize("text", CASES)
def test_errors_in_profiles_are_one_line(text):
    with pytest.raises(ConfigError) as caught:
        load_fabric(write("a.yaml", text))
    assert str(caught.value) == CASES[text]


@pytest.mark.parametrize("name", ["auto", "none"])
def test_words_with_a_meaning_of_their_own_cannot_be_names(name):
    with pytest.raises(ConfigError, match=rf"^{name}\.yaml: a fabric profile cannot be called"):
        load_fabric(write(f"{name}.yaml", ABOUT))


@pytest.mark.parametrize(
    ("job", "site", "chosen"),
    [
        ("auto", None, None),
        ("auto", "none", None),
        ("auto", "ib", "ib"),
        ("none", "ib", None),
        ("slingshot", "ib", "slingshot"),
        ("slingshot", None, "slingshot"),
    ],
)
def test_the_job_chooses_before_the_site(job, site, chosen):
    fabric = fabric_of(
        Job(name="a", launch=Launch(fabric=job)), Site(scheduler="local", fabric=site)
    )
    assert (fabric and fabric.name) == chosen
