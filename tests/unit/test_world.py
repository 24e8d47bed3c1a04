"""Which rank a process is: one order of sources, each taken whole, checked against the job."""

from __future__ import annotations

import pytest

from hpc_amp.distributed.world import World, WorldError, resolve, standard_variables

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
PALS = {"PALS_RANKID": "6", "PALS_LOCAL_RANKID": "2", "PMI_SIZE": "8", "HPC_AMP_PPN": "4"}
PMI = {"PMI_RANK": "2", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "2", "HPC_AMP_PPN": "4"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "8", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4"}
SLURM = {
    "SLURM_PROCID": "7",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "3",
    "HPC_AMP_PPN": "4",
}
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "8"}
BATCH_SCRIPT |= {"SLURM_NNODES": "2", "SLURM_JOB_ID": "42"}


@pytest.mark.parametrize(
    ("environ", "world", "node"),
    [
        (TORCHRUN, World(5, 8, 1, 4, 2, "torchrun"), 1),
        (OPEN_MPI, World(3, 8, 3, 4, 2, "Open MPI"), 0),
        (PALS, World(6, 8, 2, 4, 2, "PALS"), 1),
        (PMI, World(2, 8, 2, 4, 2, "PMI"), 0),
        (HYDRA, World(2, 8, 2, 4, 2, "PMI"), 0),
        (SLURM, World(7, 8, 3, 4, 2, "Slurm step"), 1),
        ({}, World(0, 1, 0, 1, 1, "single process"), 0),
    ],
)
def test_each_source(environ: dict[str, str], world: World, node: int) -> None:
    assert resolve(environ) == world
    assert resolve(environ).node_rank == node
    assert resolve({**environ, "HPC_AMP_WORLD_SIZE": str(world.size)}) == world


def test_pals_without_a_world_size_takes_the_job_s() -> None:
    environ = {**PALS, "HPC_AMP_WORLD_SIZE": "8"}
    del environ["PMI_SIZE"]

    assert resolve(environ) == World(6, 8, 2, 4, 2, "PALS")


def test_the_order() -> None:
    """A launcher inside another one counts: torchrun in an srun step is torchrun."""
    order = [
        (TORCHRUN, "torchrun"), (OPEN_MPI, "Open MPI"), (PALS, "PALS"), (PMI, "PMI"),
        (SLURM, "Slurm step"),
    ]  # fmt: skip
    while order:
        everything = {name: value for source, _ in order for name, value in source.items()}
        assert resolve(everything).source == order[0][1]
        order.pop(0)


@pytest.mark.parametrize("source", [TORCHRUN, OPEN_MPI, PALS, PMI, SLURM])
def test_a_source_is_all_or_nothing(source: dict[str, str]) -> None:
    """Half of the variables are a leftover, not a rank. They never mix with another source."""
    for missing in source:
        if missing in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "HPC_AMP_PPN"):
            continue  # how many ranks a node has may come from the job
        for rest in (
            {name: value for name, value in source.items() if name != missing},
            {**source, missing: ""},
        ):
            # Ranks of a node that the job has told stand in for PMI's local rank: see below.
            alone = {name: value for name, value in rest.items() if name != "HPC_AMP_PPN"}
            assert resolve(alone) == World()
            assert resolve({**rest, **SLURM}) == resolve(SLURM)


@pytest.mark.parametrize("local", ["PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE", "HPC_AMP_PPN"])
def test_the_ranks_of_a_node_come_from_the_launcher_else_from_the_job(local: str) -> None:
    source = {name: value for name, value in PALS.items() if name != "HPC_AMP_PPN"}
    if local == "PMI_LOCAL_SIZE":
        source = {name: value for name, value in PMI.items() if name != "HPC_AMP_PPN"}

    world = resolve({**source, local: "4"})

    assert (world.local_size, world.nodes) == (4, 2)
    assert resolve(source).local_size == 8, "without a word about nodes there is one"


@pytest.mark.parametrize(
    ("counts", "node", "local_size"),
    [("4(x2)", "1", 4), ("5,3", "1", 3), ("2(x2),3,1", "2", 3), ("8", "0", 8)],
)
def test_slurm_says_how_many_tasks_the_nodes_of_a_step_have(
    counts: str, node: str, local_size: int
) -> None:
    """Where nothing of ours has started the step: `srun python -m hpc_amp.distributed.exec`."""
    step = {"SLURM_PROCID": "7", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "0"}

    world = resolve({**step, "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": node})

    assert world.local_size == local_size


@pytest.mark.parametrize("counts", ["", "4(x", "four", "4(x2)", "3,,4"])
def test_without_slurm_s_counts_the_job_s_word_holds(counts: str) -> None:
    """`4(x2)` has no third node: it is the count of another step."""
    step = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_NODEID": "2"}

    assert resolve(step) == resolve(SLURM)


@pytest.mark.parametrize(
    ("environ", "source"),
    [
        ({"PMI_RANK": "6", "PMI_SIZE": "8"}, "PMI"),
        ({"PMIX_RANK": "6", "HPC_AMP_WORLD_SIZE": "8"}, "PMIx"),
    ],
)
def test_a_local_rank_that_nobody_says_follows_from_the_blocks(
    environ: dict[str, str], source: str
) -> None:
    assert resolve({**environ, "HPC_AMP_PPN": "4"}) == World(6, 8, 2, 4, 2, source)
    assert resolve(environ | {"HPC_AMP_WORLD_SIZE": ""}) == World()
    # srun --mpi=pmi2 and --mpi=pmix set these beside Slurm's own, which know the local rank.
    step = {**environ, **SLURM, "SLURM_PROCID": "6", "SLURM_LOCALID": "2"}
    assert resolve(step) == World(6, 8, 2, 4, 2, "Slurm step")


def test_pmix_alone_does_not_make_a_world() -> None:
    """Every launcher with PMIx sets its rank; only the script knows of how many."""
    assert resolve({"PMIX_RANK": "6", "HPC_AMP_PPN": "4"}) == World()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
            "8 ranks are on this node, but the job puts 4 on each (from Open MPI): remove what "
            "changes the layout from launch.args",
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            "rank 3 has local rank 1 (from Open MPI), but the job lays its ranks out in blocks of "
            "4: remove what changes the order, such as `-map-by node` or `--distribution=cyclic`, "
            "from launch.args",
        ),
        (
            {"HPC_AMP_NNODES": "4"},
            "8 ranks, 4 on each node, need 2 nodes, but the job has 4 (from Open MPI)",
        ),
        ({"HPC_AMP_PPN": "all"}, "HPC_AMP_PPN='all' is not a number"),
        ({"HPC_AMP_NNODES": "two"}, "HPC_AMP_NNODES='two' is not a number"),
    ],
)
def test_another_layout_than_the_script_s_is_an_error(change: dict[str, str], message: str) -> None:
    script = {"HPC_AMP_WORLD_SIZE": "8", "HPC_AMP_NNODES": "2", "HPC_AMP_PPN": "4"}
    assert resolve({**OPEN_MPI, **script}).node_rank == 0

    with pytest.raises(WorldError) as caught:
        resolve({**OPEN_MPI, **script, **change})

    assert str(caught.value) == message


def test_the_order_of_the_local_ranks_does_not_matter_on_one_node() -> None:
    """mpirun of Open MPI 5.0.11, four ranks on two cores: rank 1 has local rank 2."""
    environ = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}
    environ |= {"OMPI_COMM_WORLD_LOCAL_RANK": "2", "HPC_AMP_PPN": "4", "HPC_AMP_NNODES": "1"}

    assert resolve(environ) == World(1, 4, 2, 4, 1, "Open MPI")


def test_a_batch_script_is_not_rank_0_of_its_job() -> None:
    """Slurm sets SLURM_PROCID=0 and SLURM_NTASKS in the batch script too: there it is one process
    by itself, and waiting for seven others would hang."""
    assert resolve(BATCH_SCRIPT) == World()
    with pytest.raises(WorldError, match="started for 8 ranks, but this process sees 1"):
        resolve({**BATCH_SCRIPT, "HPC_AMP_WORLD_SIZE": "8"})


def test_a_step_of_one_task() -> None:
    one = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}

    assert resolve(one) == World(source="Slurm step")
    with pytest.raises(WorldError, match="started for 2 ranks, but this process sees 1"):
        resolve({**one, "HPC_AMP_WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "8"}, "rank 8 is outside a world of 8 (torchrun)"),
        ({"RANK": "-1"}, "rank -1 is outside a world of 8 (torchrun)"),
        ({"WORLD_SIZE": "0"}, "rank 5 is outside a world of 0 (torchrun)"),
        ({"LOCAL_RANK": "4"}, "local rank 4 is outside the 4 ranks of this node (torchrun)"),
        ({"LOCAL_RANK": "-1"}, "local rank -1 is outside the 4 ranks of this node (torchrun)"),
        ({"LOCAL_WORLD_SIZE": "0"}, "local rank 1 is outside the 0 ranks of this node (torchrun)"),
        ({"RANK": "five"}, "RANK='five' is not a number"),
        ({"WORLD_SIZE": "8.0"}, "WORLD_SIZE='8.0' is not a number"),
        ({"LOCAL_RANK": "1 2"}, "LOCAL_RANK='1 2' is not a number"),
        ({"LOCAL_WORLD_SIZE": "x"}, "LOCAL_WORLD_SIZE='x' is not a number"),
        ({"HPC_AMP_WORLD_SIZE": "many"}, "HPC_AMP_WORLD_SIZE='many' is not a number"),
    ],
)
def test_what_cannot_be_is_an_error(change: dict[str, str], message: str) -> None:
    with pytest.raises(WorldError) as caught:
        resolve({**TORCHRUN, **change})

    assert str(caught.value) == message


def test_a_world_of_another_size_is_an_error() -> None:
    with pytest.raises(WorldError) as caught:
        resolve({**TORCHRUN, "HPC_AMP_WORLD_SIZE": "16"})

    assert str(caught.value).startswith(
        "the job was started for 16 ranks, but this process sees 8 (from torchrun): "
    )


def test_the_standard_variables() -> None:
    meeting = {"MASTER_ADDR": "n1", "MASTER_PORT": "61000"}

    assert standard_variables(resolve(SLURM), meeting) == {
        "RANK": "7",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "3",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        **meeting,
    }


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({}, "MASTER_ADDR and MASTER_PORT not set, but 8 ranks have to find each other"),
        ({"MASTER_ADDR": "n1"}, "MASTER_PORT not set, but 8 ranks have to find each other"),
        (
            {"MASTER_PORT": "1", "MASTER_ADDR": ""},
            "MASTER_ADDR not set, but 8 ranks have to find each other",
        ),
    ],
)
def test_ranks_have_to_know_where_to_meet(environ: dict[str, str], message: str) -> None:
    with pytest.raises(WorldError) as caught:
        standard_variables(resolve(SLURM), environ)

    assert str(caught.value) == message


def test_one_rank_meets_nobody() -> None:
    variables = standard_variables(World(), {})

    assert variables["MASTER_ADDR"] == "127.0.0.1"
    assert variables["MASTER_PORT"] == "0"
