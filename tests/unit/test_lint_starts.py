"""What runs once, on the first node of a job: scripts in the style of public ones where it is a
fault, and many more that come near to it and are right."""

from __future__ import annotations

import pytest

from hpc_amp.lint.linter import lint

RULES = {"first-node-only", "started-once", "background-not-waited", "signal-reaches-nobody"}
NODES4 = """#!/bin/bash
#SBATCH --job-name=pretrain
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
"""
ONE_NODE = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
"""
PBS2 = """#!/bin/bash
#PBS -l select=2:ncpus=32:ngpus=4
#PBS -l place=scatter
cd "$PBS_O_WORKDIR"
"""
COBALT2 = "#!/bin/bash\n#COBALT -n 2 -t 30 -q full-node\ncd /lus/work\n"
RUN = (
    "torchrun --nnodes=$SLURM_NNODES --nproc_per_node=8 --rdzv_backend=c10d "
    "--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT train.py"
)
RUN2 = (
    "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:$P train.py"
)

FAULTS: dict[str, tuple[str, str]] = {
    "the agent alone": ("first-node-only", NODES4 + f"{RUN}\n"),
    "after questions to the nodes": (
        "first-node-only",
        NODES4 + f"srun hostname\nsrun -l bash -c 'nvidia-smi; df -h'\n{RUN}\n",
    ),
    "the head's address by srun": (
        "first-node-only",
        NODES4 + 'ip=$(srun --nodes=1 --ntasks=1 -w "$MASTER_ADDR" hostname --fqdn)\n'
        "torchrun --nnodes 4 --rdzv_endpoint $ip:$MASTER_PORT train.py\n",
    ),
    "data copied to all nodes before": (
        "first-node-only",
        NODES4 + f"srun mkdir -p /tmp/data\nsrun tar xf /data/set.tar -C /tmp/data\n{RUN}\n",
    ),
    "in a container": (
        "first-node-only",
        NODES4 + f"apptainer exec --nv -B /data image.sif {RUN}\n",
    ),
    "in a variable": ("first-node-only", NODES4 + f'CMD="{RUN}"\necho "$CMD"\n$CMD\n'),
    "through bash -c": ("first-node-only", NODES4 + f'bash -c "{RUN}"\n'),
    "through eval": ("first-node-only", NODES4 + f'CMD="{RUN}"\neval "$CMD"\n'),
    "in a function": ("first-node-only", NODES4 + f"go() {{\n  {RUN}\n}}\ngo\n"),
    "with time and a log": ("first-node-only", NODES4 + f"time {RUN} 2>&1 | tee log.txt\n"),
    "from an environment's folder": (
        "first-node-only",
        NODES4 + f"source venv/bin/activate\n$VENV/bin/{RUN}\n",
    ),
    "the module": (
        "first-node-only",
        NODES4 + "python -u -m torch.distributed.run --nnodes=4 --nproc-per-node=8 train.py\n",
    ),
    "the old module": (
        "first-node-only",
        NODES4 + "python3 -m torch.distributed.launch --nnodes=4 --node_rank=0 train.py\n",
    ),
    "accelerate": (
        "first-node-only",
        NODES4 + "accelerate launch --num_machines 4 --num_processes 32 --machine_rank "
        "$SLURM_NODEID --main_process_ip $MASTER_ADDR train.py\n",
    ),
    "the word srun in an echo": (
        "first-node-only",
        NODES4 + f'echo "no srun here"\n# srun {RUN}\n{RUN}\n',
    ),
    "an array of such jobs": (
        "first-node-only",
        NODES4.replace("#SBATCH --nodes", "#SBATCH --array=0-3\n#SBATCH --nodes") + f"{RUN}\n",
    ),
    "nodes by their tasks": (
        "first-node-only",
        f"#!/bin/bash\n#SBATCH --ntasks=2 --ntasks-per-node=1 --gpus-per-node=4 -c 8\n{RUN2}\n",
    ),
    "PBS": ("first-node-only", PBS2 + f"HEAD=$(head -n1 $PBS_NODEFILE)\n{RUN2}\n"),
    "PBS, chunks": (
        "first-node-only",
        f"#!/bin/bash\n#PBS -l select=2:ncpus=8:ngpus=4\ncd $PBS_O_WORKDIR\n{RUN2}\n",
    ),
    "Cobalt": (
        "first-node-only",
        COBALT2 + "singularity exec --nv a.sif python3 -m torch.distributed.launch "
        "--nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=$(head -n1 $COBALT_NODEFILE) "
        "train.py\n",
    ),
    "the agent of one node": (
        "started-once",
        NODES4 + "torchrun --standalone --nproc_per_node=8 train.py\n",
    ),
    "Python": ("started-once", NODES4 + "python train.py --epochs 3\n"),
    "Python after a helper": (
        "started-once",
        NODES4 + "python download.py\nsrun hostname\npython -u train.py --epochs 3\n",
    ),
    "Python on Cobalt": ("started-once", COBALT2 + "python train.py --ddp\n"),
    "Python that is told of more ranks": (
        "started-once",
        ONE_NODE + "export WORLD_SIZE=$SLURM_NTASKS\npython train.py\n",
    ),
    "nothing waits": ("background-not-waited", NODES4 + f'srun {RUN} &\necho "started"\n'),
    "a loop that nobody waits for": (
        "background-not-waited",
        "#!/bin/bash\n#SBATCH --ntasks=4 --gpus-per-node=4\nfor i in 0 1 2 3; do\n"
        "  srun -n1 --exact python fit.py --fold $i &\ndone\ndate\n",
    ),
    "PBS, nothing waits": (
        "background-not-waited",
        PBS2 + "mpiexec -n 8 --ppn 4 python train.py > log 2>&1 &\n",
    ),
}

NEAR_MISSES: dict[str, str] = {
    "srun": NODES4 + f"srun {RUN}\n",
    "exec srun": NODES4 + f"exec srun {RUN}\n",
    "srun with options and a container": NODES4
    + f"srun --kill-on-bad-exit=1 --mpi=none apptainer exec --nv a.sif {RUN}\n",
    "srun bash -c": NODES4 + f"srun bash -c '{RUN}'\n",
    "srun, continued lines": NODES4 + f"srun \\\n  --label \\\n  {RUN}\n",
    "srun reads a here-document": NODES4 + f"srun bash <<'EOF'\n{RUN}\nEOF\n",
    "srun of a script that is written here": NODES4
    + f"cat > launcher.sh <<'EOF'\n#!/bin/bash\n{RUN}\nEOF\nchmod +x launcher.sh\n"
    "srun ./launcher.sh\n",
    "srun of another script": NODES4 + "srun train_node.sh\n",
    "a function that srun calls": NODES4
    + f"worker() {{\n  {RUN}\n}}\nexport -f worker\nsrun bash -c worker\n",
    "the script itself by srun": NODES4
    + f'if [ -z "$SLURM_STEP_ID" ]; then\n  srun bash "$0"\n  exit\nfi\n{RUN}\n',
    "srun only where there are several nodes": NODES4
    + f'if [ "$SLURM_NNODES" -gt 1 ]; then\n  srun {RUN}\nelse\n  torchrun --standalone a.py\nfi\n',
    "a helper before srun": NODES4
    + f"python download.py\npython prepare.py --nnodes 4\nsrun {RUN}\n",
    "a question by the agent's help": NODES4 + f"torchrun --help\nsrun {RUN}\n",
    "a launcher in a variable": NODES4 + f'LAUNCHER="srun --label"\n$LAUNCHER {RUN}\n',
    "a launcher that is set elsewhere": NODES4 + f"source common.sh\n$LAUNCHER {RUN}\n",
    "an optional launcher": NODES4
    + f'LAUNCHER=""\n[ "$SLURM_NNODES" -gt 1 ] && LAUNCHER="srun"\n$LAUNCHER {RUN}\n',
    "a command in a variable": NODES4 + f'cmd="srun {RUN}"\necho "$cmd"\n$cmd\n',
    "a command by eval": NODES4 + f'cmd="srun {RUN}"\neval "$cmd"\n',
    "a command in an array": NODES4 + f"cmd=(srun {RUN})\n\"${{cmd[@]}}\"\n",
    "a command by bash -c": NODES4 + f"LAUNCHER='{RUN}'\nsrun --jobid $SLURM_JOBID bash -c "
    '"$LAUNCHER --log out"\n',
    "another script": NODES4 + "bash run.sh\n",
    "another script, and an agent": NODES4 + f"bash start_workers.sh &\n{RUN}\n",
    "a script of one's own": NODES4 + "./scripts/start --nodes 4\n",
    "a loop with ssh": NODES4
    + 'for host in $(scontrol show hostnames); do\n  ssh "$host" "cd $PWD && '
    f'{RUN}" &\ndone\nwait\n',
    "a loop with srun": NODES4
    + 'i=0\nfor host in $(scontrol show hostnames); do\n  srun -N1 -n1 -w "$host" torchrun '
    "--nnodes=4 --node_rank=$i --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train.py &\n"
    "  i=$((i + 1))\ndone\nwait\n",
    "the workers by srun, the head here": NODES4
    + f"srun -N3 -n3 -r1 {RUN} &\n{RUN}\nwait\n",
    "pdsh": NODES4 + f"pdsh -w \"$(nodeset -e $SLURM_NODELIST)\" '{RUN}'\n",
    "clush": NODES4 + f"clush -w $SLURM_NODELIST '{RUN}'\n",
    "GNU parallel": NODES4 + "parallel --sshloginfile hosts.txt 'cd work; ./node.sh {}' ::: 0 1\n",
    "mpirun": NODES4 + "mpirun -np 32 --map-by ppr:8:node python train.py\n",
    "a path to mpirun": NODES4 + "/opt/openmpi/bin/mpirun -np 32 python train.py\n",
    "mpirun of a module": NODES4 + '$(which mpirun) -np 32 python train.py\n',
    "horovodrun": NODES4 + "horovodrun -np 32 -H $HOSTS python train.py\n",
    "deepspeed": NODES4 + "deepspeed --hostfile hosts.txt train.py\n",
    "accelerate starts others by itself": NODES4
    + "accelerate launch --num_machines 4 --deepspeed_hostfile hosts.txt train.py\n",
    "accelerate with a file of its own": NODES4
    + "accelerate launch --config_file multi.yaml --num_machines 4 train.py\n",
    "ibrun": NODES4 + "ibrun python train.py\n",
    "a launcher of the site": NODES4 + "ccc_mprun python train.py\n",
    "ray": NODES4
    + 'srun -N1 -n1 -w "$MASTER_ADDR" ray start --head --block &\nsleep 10\n'
    "srun -N3 -n3 ray start --address $MASTER_ADDR:6379 --block &\npython train.py --ray\n",
    "dask": NODES4 + "srun dask-worker --scheduler-file s.json &\npython train.py\n",
    "Python that submits steps": NODES4 + "python launch.py --config train.yaml\n",
    "Python that gets the hosts": NODES4 + "python train.py --hosts $SLURM_JOB_NODELIST\n",
    "heterogeneous": "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=2\n"
    "python train.py\n",
    "one node": ONE_NODE + "torchrun --standalone --nproc_per_node=4 train.py\n",
    "one node, nnodes in a variable": ONE_NODE
    + "torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 train.py\n",
    "one node with mpirun": ONE_NODE + "mpirun -np 4 python train.py\n",
    "one node, an array": "#!/bin/bash\n#SBATCH --array=0-9 --nodes=1 --gpus-per-node=1 -c 8\n"
    "python train.py --fold $SLURM_ARRAY_TASK_ID\n",
    "two jobs of one node each": ONE_NODE
    + 'torchrun --nnodes=2 --node_rank="$1" --master_addr="$2" --master_port="$3" train.py\n',
    "tasks for cores": "#!/bin/bash\n#SBATCH --ntasks=16 --gpus-per-node=1\npython train.py\n",
    "one node, processes of its own": ONE_NODE
    + "export WORLD_SIZE=$SLURM_NTASKS\npython main.py --multiprocessing-distributed\n",
    "nodes that are not said": "#!/bin/bash\n#SBATCH --gpus-per-node=8 -c 64\n" + f"{RUN}\n",
    "left open": NODES4.replace("nodes=4", "nodes=<N>") + f"{RUN}\n",
    "no batch script": f"#!/bin/bash\n{RUN}\n",
    "salloc by hand": f"#!/bin/bash\nsalloc -N 4 --gpus-per-node=8 bash -c 'srun {RUN}'\n",
    "PBS, mpiexec": PBS2 + "mpiexec -n 8 --ppn 4 --hostfile $PBS_NODEFILE python train.py\n",
    "PBS, pbsdsh": PBS2 + f"pbsdsh -- bash -lc 'cd work; {RUN2}'\n",
    "PBS, a loop over the nodes": PBS2
    + f'for n in $(sort -u $PBS_NODEFILE); do\n  ssh "$n" "{RUN2}" &\ndone\nwait\n',
    "PBS, a loop that reads the nodes": PBS2
    + f'while read -r n; do\n  ssh -n "$n" "{RUN2}" &\ndone < <(sort -u $PBS_NODEFILE)\nwait\n',
    "PBS, chunks for cores": "#!/bin/bash\n#PBS -l select=4:ncpus=1\ncd $PBS_O_WORKDIR\n"
    "python train.py\n",
    "Cobalt, mpirun": COBALT2 + "mpirun -n 16 -npernode 8 -hostfile $COBALT_NODEFILE python t.py\n",
    "Cobalt, aprun": COBALT2 + "aprun -n 2 -N 1 python train.py\n",
    "Cobalt starts it": "#!/bin/bash\n#COBALT -n 2 -t 30 --mode c16\npython train.py\n",
    "Cobalt, one node": "#!/bin/bash\n#COBALT -n 1 -t 30\npython train.py\n",
    "waits": NODES4 + f"srun {RUN} &\npid=$!\nwait $pid\n",
    "waits in a function": NODES4 + f"end() {{\n  wait\n}}\nsrun {RUN} &\nend\n",
    "a server in the background": NODES4
    + "srun -N1 -n1 python server.py --port $MASTER_PORT &\nsleep 20\nsrun python client.py\n",
    "a watcher in the background": NODES4 + f"nvidia-smi -l 60 > gpu.log &\nsrun {RUN}\n",
    "a loop that looks whether it lives": NODES4
    + f"srun {RUN} &\npid=$!\nwhile kill -0 $pid; do\n  sleep 60\ndone\n",
}  # fmt: skip


def found(text: str) -> set[str]:
    return {one.id for one in lint(text.encode(), "x.sh")} & RULES


@pytest.mark.parametrize("name", FAULTS)
def test_what_nobody_starts_is_found(name: str) -> None:
    rule, text = FAULTS[name]

    assert found(text) == {rule}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_misses_are_silent(name: str) -> None:
    assert found(NEAR_MISSES[name]) == set()


@pytest.mark.parametrize(
    ("script", "start"),
    [
        (NODES4 + f"{RUN}\n", "srun --ntasks-per-node=1 torchrun"),
        (PBS2 + f"{RUN2}\n", "mpiexec -n NODES --ppn 1 torchrun"),
        (COBALT2 + f"{RUN2}\n", 'mpirun -n NODES --hostfile "$COBALT_NODEFILE"'),
    ],
)
def test_the_advice_is_that_of_the_scheduler(script: str, start: str) -> None:
    (finding,) = [one for one in lint(script.encode(), "x.sh") if one.id == "first-node-only"]

    assert start in finding.fix
