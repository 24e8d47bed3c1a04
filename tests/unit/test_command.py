"""Launchers as a command of one's own: refused where several ranks would start them."""

from pathlib import Path

import pytest

from hpc_amp.config.checks import check_job
from hpc_amp.config.command import launcher_in, launchers_in_script
from hpc_amp.config.load import load_job
from hpc_amp.config.sites import load_for_site
from hpc_amp.errors import ConfigError
from hpc_amp.jobs.plan import make_plan


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


LAUNCHERS = {
    "torchrun --standalone --nproc-per-node=2 who.py": "torchrun",
    "/opt/conda/bin/torchrun who.py": "torchrun",
    "python -m torch.distributed.run who.py": "python -m torch.distributed.run",
    "python3 -u -m torch.distributed.launch who.py": "python -m torch.distributed.launch",
    "/usr/bin/python3.11 -W ignore -mtorch.distributed.run who.py": "python -m "
    "torch.distributed.run",
    "python -um torch.distributed.run who.py": "python -m torch.distributed.run",
    "python /usr/bin/torchrun who.py": "torchrun",
    "accelerate launch who.py": "accelerate launch",
    "accelerate-launch who.py": "accelerate-launch",
    "python -m accelerate.commands.launch who.py": "python -m accelerate.commands.launch",
    "python -m accelerate.commands.accelerate_cli launch who.py": "python -m "
    "accelerate.commands.accelerate_cli launch",
    "deepspeed --num_gpus 2 who.py": "deepspeed",
    "srun -n 2 who": "srun",
    "srun -v who": "srun",
    "mpirun -np 2 who": "mpirun",
    "mpiexec -n 2 who": "mpiexec",
    "mpiexec.hydra -n 2 who": "mpiexec.hydra",
    "horovodrun -np 2 python who.py": "horovodrun",
    "aprun -n 2 who": "aprun",
    "jsrun -n 2 who": "jsrun",
    "fabric run who.py": "fabric run",
    "env A=1 -u B torchrun who.py": "torchrun",
    "env -S 'torchrun who.py'": "torchrun",
    "A=1 B=2 torchrun who.py": "torchrun",
    "exec torchrun who.py": "torchrun",
    "nice -n 5 torchrun who.py": "torchrun",
    "nice torchrun who.py": "torchrun",
    "timeout -k 5 60 torchrun who.py": "torchrun",
    "timeout --signal=TERM 60 env A=1 nohup torchrun who.py": "torchrun",
    "time -p torchrun who.py": "torchrun",
    "stdbuf -oL torchrun who.py": "torchrun",
    "numactl --membind 0 -C 0-3 torchrun who.py": "torchrun",
    "taskset -c 0-3 torchrun who.py": "torchrun",
    "nsys profile -o out --trace=cuda torchrun who.py": "torchrun",
    "conda run -n me --no-capture-output torchrun who.py": "torchrun",
    "uv run torchrun who.py": "torchrun",
    "apptainer exec --nv -B /a a.sif torchrun who.py": "torchrun",
    "bash -c 'torchrun who.py'": "torchrun",
    "sh -lc 'cd x && exec mpirun who'": "mpirun",
    "bash -o pipefail -ec 'torchrun who.py | tee log'": "torchrun",
    "bash -c 'if true; then A=1 torchrun who.py; fi'": "torchrun",
    "bash -c 'f() { torchrun who.py; }; f'": "torchrun",
    "bash -c 'eval \"torchrun who.py\"'": "torchrun",
    "bash -c \"sh -c 'python -m torch.distributed.run who.py'\"": "python -m torch.distributed.run",
}


def split(line):
    import shlex

    return shlex.split(line)


@pytest.mark.parametrize("line", LAUNCHERS)
def test_launchers_are_found(line):
    found = launcher_in(split(line))
    assert found is not None
    assert found.name == LAUNCHERS[line]


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "python -m accelerate_my_thing",
        "python -m torch.distributed.run_mine",
        "python -m pytest -m torch.distributed.run",
        "python -c 'import torchrun' torchrun",
        "python -X importtime train.py torchrun",
        "python train.py --launcher mpirun",
        "python train.py -m torch.distributed.run",
        "accelerate config",
        "accelerate env launch",
        "accelerate launch --help",
        "mpirun --version",
        "srun --help",
        "torchrun --help",
        "echo mpirun",
        "./mpirun_helper.py",
        "mpirun.py",
        "torchrunner x.py",
        "env A=torchrun python train.py",
        "timeout 60 python torchrun.py",
        "bash -c 'echo torchrun who.py'",
        "bash -c 'command -v torchrun && python train.py'",
        "bash -c 'which mpirun; python train.py # torchrun'",
        "bash -c \"python train.py 'a; torchrun x'\"",
        "bash train.sh torchrun",
        "sh -c '' torchrun",
        "bash -c",
        "nsys stats torchrun",
        "conda install torchrun",
        "lightning fit",
        "flux jobs",
        "env",
        "nice",
        "timeout 60",
        "python -m",
        "python",
        "",
    ],
)
def test_near_misses_are_none(line):
    assert launcher_in(split(line)) is None


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("torchrun --nproc-per-node 2 who.py --a b", "python who.py --a b"),
        ("torchrun --nproc-per-node 2 -m who.train --a", "python -m who.train --a"),
        ("accelerate launch --num_processes 2 who.py", "python who.py"),
        ("mpirun -n 4 -x A /usr/bin/python3 -u who.py", "python -u who.py"),
        ("srun --mpi=pmix who", None),
    ],
)
def test_the_program_alone(line, program):
    found = launcher_in(split(line))
    assert found is not None
    assert found.program == (None if program is None else program.split())


def check(run, **job):
    resources = {"gpus_per_node": 0, **job}
    Path("job.yaml").write_text(f"name: x\nrun: {run}\njob: {resources}\n")
    check_job(load_job(Path("job.yaml")))


REFUSED = {
    ("[torchrun, --nproc-per-node=2, who.py]", 1, 2): "torchrun starts ranks itself, and the job "
    "would start it 2 times: 2 separate worlds; write the program alone, "
    "run: [python, who.py], which hpc-amp starts on every rank; or set job.ranks_per_node: 1, "
    "so that torchrun alone starts ranks",
    (
        "[torchrun, --nnodes=2, who.py, 'a b', --c, d, --e, f]",
        2,
        1,
    ): "torchrun starts ranks itself, "
    "and the job would start it 2 times: 2 separate worlds; write the "
    'program alone, run: [python, who.py, "a b", --c, d, ...], which hpc-amp starts on every rank',
    ("[bash, -c, mpirun ./a.out]", 2, 2): "mpirun starts ranks itself, and the job would start it "
    "4 times: 4 separate worlds; write the program alone, "
    "run: [python, train.py, ...], which hpc-amp starts on every rank (with launch.mpi where it "
    "uses MPI)",
}


@pytest.mark.parametrize(("run", "nodes", "ranks"), REFUSED)
def test_a_launcher_in_several_ranks_is_refused_and_told_what_to_write(run, nodes, ranks):
    with pytest.raises(ConfigError) as caught:
        check(run, nodes=nodes, ranks_per_node=ranks)
    assert str(caught.value) == f"job.yaml:2: run: {REFUSED[run, nodes, ranks]}"


def test_a_launcher_in_the_only_rank_is_as_good_as_any_program():
    check("[torchrun, --nproc-per-node=2, who.py]")
    check("[bash, -c, 'mpirun -n 4 ./a.out']", gpus_per_node=4, ranks_per_node=1)


def plan_on_slurm(run, method):
    Path("job.yaml").write_text(f"name: x\nsite: slurm\nrun: {run}\nlaunch: {method}\n")
    loaded, site = load_for_site(Path("job.yaml"))
    check_job(loaded, site)
    return make_plan(loaded, site, Path("runs/x/20261127-223455-kqzf"))


def test_a_step_inside_a_step_is_refused():
    for method in ("auto", "srun"):
        with pytest.raises(ConfigError) as caught:
            plan_on_slurm("[bash, -c, srun -n 2 ./a.out]", method)
        assert str(caught.value) == (
            "job.yaml:3: run: srun inside a step of srun waits forever for the cores of this step; "
            "write launch: single, so that the batch script itself starts the command"
        )
    plan_on_slurm("[bash, -c, srun -n 2 ./a.out]", "single")
    plan_on_slurm("[srun, --overlap, -n, '2', ./a.out]", "srun")
    plan_on_slurm("[torchrun, --nproc-per-node=2, a.py]", "srun")


def remarks(run, **job):
    resources = {"gpus_per_node": 0, **job}
    Path("job.yaml").write_text(f"name: x\nsite: local\nrun: {run}\njob: {resources}\ncode: src\n")
    loaded, site = load_for_site(Path("job.yaml"))
    check_job(loaded, site)
    return make_plan(loaded, site, Path("runs/x/20261127-223455-kqzf")).remarks


def test_an_option_for_the_local_rank_that_nobody_gives_is_said():
    Path("src").mkdir()
    program = Path("src/who.py")
    option = 'import argparse\np = argparse.ArgumentParser()\np.add_argument("--local_rank"'
    program.write_text(f"{option}, type=int, default=0)\n")
    (said,) = remarks("[python, -u, who.py]", ranks_per_node=2)
    assert said.startswith("run: line 3 of who.py takes the local rank from an option")
    assert "it is 0 in every rank" in said
    assert remarks("[python, who.py]", ranks_per_node=1) == ()
    assert remarks("[python, who.py, --local_rank=0]", ranks_per_node=2) == ()
    program.write_text(f"{option})\n")
    assert "it is None in every rank" in remarks("[python, who.py]", ranks_per_node=2)[0]
    assert 'default=int(os.environ.get("LOCAL_RANK", 0))' in said
    for package in ("import deepspeed", "from accelerate import Accelerator", "import lightning"):
        program.write_text(f"{package}\n{option})\n")
        assert remarks("[python, who.py]", ranks_per_node=2) == ()
    program.write_text(f'{option}, default=int(os.environ.get("LOCAL_RANK", 0)))\n')
    assert remarks("[python, who.py]", ranks_per_node=2) == ()


def test_a_launcher_in_a_script_of_the_code_is_said():
    Path("src").mkdir()
    Path("src/go.sh").write_text("#!/bin/bash\n# torchrun x\ncd here\nexec torchrun who.py\n")
    said = (
        "run: every one of the 2 ranks runs go.sh, whose line 4 starts torchrun, and that starts "
        "ranks itself",
    )
    assert remarks("[bash, -e, go.sh, a]", ranks_per_node=2) == said
    assert remarks("[./go.sh]", ranks_per_node=2) == (said[0].replace("go.sh", "./go.sh"),)
    assert remarks("[bash, go.sh]", ranks_per_node=1) == ()
    assert remarks("[bash, missing.sh]", ranks_per_node=2) == ()
    assert remarks("[python, who.py]", ranks_per_node=2) == ()
    Path("src/go.sh").write_text("#!/bin/bash\necho torchrun who.py\npython who.py\n")
    assert remarks("[bash, go.sh]", ranks_per_node=2) == ()


def test_lines_of_a_script():
    text = "srun true\n\nfor i in 1 2; do\n  mpirun -n $i a\ndone\n"
    assert [(line, found.name) for line, found in launchers_in_script(text)] == [
        (1, "srun"), (4, "mpirun"),
    ]  # fmt: skip
