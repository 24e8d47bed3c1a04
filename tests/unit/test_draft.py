"""Programs in the place of job files, and job files that are drafted from scripts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from support.stubs import StubHost

from hpc_amp.config.load import JobText, load_job, read_job
from hpc_amp.config.tree import Items, MappingNode, Node, Scalar
from hpc_amp.config.write import job_text, tree_text
from hpc_amp.draft.script import draft_from_script
from hpc_amp.errors import ConfigError, UsageError
from hpc_amp.schedulers import grammars
from hpc_amp.schedulers.grammar import Grammar

CONFIGS = Path(__file__).parents[2] / "configs"
PROGRAM = (
    "import json, os, sys\nprint('said', json.dumps([os.environ['WORLD_SIZE'], *sys.argv[1:]]))\n"
)


def test_a_program_runs_without_a_job_file(host: StubHost) -> None:
    (host.work / "train.py").write_text(PROGRAM)
    words = [
        "--lr=0.1",
        "two words",
        "$(touch hacked) '\"; x",
        "a\nb",
        "é",
        "yes",
        "1e3",
        "--",
        "{lr}",
    ]
    options = ["--gpus", "0", "-t", "10m", "--name", "mine", "job.ranks_per_node=2"]
    result = host.hpc_amp("run", "train.py", *options, "--", *words)
    assert result.returncode == 0, result.stderr
    said = [json.loads(line[5:]) for line in result.stdout.splitlines() if line.startswith("said ")]
    assert said == [["2", *words]] * 2
    assert "mine: finished" in result.stdout
    assert not (host.work / "hacked").exists()


def test_what_is_saved_is_what_is_submitted(host: StubHost) -> None:
    (host.work / "my program").write_text("#!/bin/sh\necho started\n")
    (host.work / "my program").chmod(0o755)
    given = ["-N", "2", "--gpus", "4", "-q", "short", "-A", "proj", "-t", "1h", "site=slurm"]
    run_id = ["--run-id", "20260101-000000-aaaa"]
    given += ["container.env={A: '1'}", "job.nodes=3"]
    given += ["--save", "job.yaml", "--dry-run", *run_id]
    direct = host.hpc_amp("submit", "my program", *given, "--", "0x10", "no")
    assert direct.returncode == 0, direct.stderr
    again = host.hpc_amp("render", "job.yaml", *run_id)
    assert again.stdout == direct.stdout
    job = load_job(host.work / "job.yaml").job
    assert job.name == "my-program" and job.run == [str(host.work / "my program"), "0x10", "no"]
    resources = job.resources
    assert (resources.nodes, resources.gpus_per_node) == (
        3,
        4,
    )  # a key counts more than its short form
    assert (resources.queue, resources.account, resources.walltime) == ("short", "proj", "1h")
    refused = host.hpc_amp("submit", "my program", "--save", "job.yaml", "--dry-run")
    assert refused.returncode == 2 and "job.yaml already exists" in refused.stderr


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["folder"], "folder is a folder; name a job file or a program in it"),
        (["image.sif"], "hpc-amp submit train.py --image image.sif"),
        (["old.sh"], "old.sh is a job script with directives of its own; hpc-amp init old.sh"),
        (["job.yaml", "--", "--lr", "1"], "arguments after -- are for a program"),
        (["missing.py"], "missing.py: there is no such job file"),
        (["train.py", "--gpus", "many"], "job.gpus_per_node: must be a whole number"),
    ],
)
def test_what_is_not_a_job_is_refused_with_what_to_type(
    host: StubHost, given: list[str], why: str
) -> None:
    (host.work / "folder").mkdir()
    (host.work / "old.sh").write_text("#!/bin/sh\n#SBATCH -N 2\nsrun python train.py\n")
    (host.work / "job.yaml").write_text("name: a\nrun: [python]\n")
    (host.work / "train.py").write_text("")
    result = host.hpc_amp("submit", *given)
    assert result.returncode == 2
    assert why in result.stderr and result.stderr.count("\n") == 1
    assert not (host.work / "runs").exists()


SLURM = """#!/bin/bash
#SBATCH --job-name=res/net
#SBATCH -N 2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4 --cpus-per-task=8
#SBATCH --time=90
#SBATCH -p gpu
#SBATCH --account=proj1 --mem=200G
#SBATCH --constraint=a100
#SBATCH --output=log-%j.txt
module load apptainer cuda/12
export NCCL_DEBUG=INFO
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
DATA=/scratch/data
if [ -n "$DEBUG" ]; then
  export NCCL_DEBUG=TRACE
fi
mkdir -p out
srun apptainer exec --nv -B /scratch:/scratch --cleanenv pytorch.sif \\
   python3 -u train.py --data $DATA --lr 0.1 --tag $TAG
"""
TORCHRUN = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=32
#SBATCH --gres=gpu:a100:4 --time=1-00:00:00
srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_endpoint=$head:29500 train.py --batch 8
"""
PBS = """#!/bin/bash
#PBS -N vit
#PBS -l select=4:ncpus=64:ngpus=4:mpiprocs=4,walltime=12:00:00
#PBS -l place=scatter -q preemptable
#PBS -A Proj
#PBS -j oe
cd $PBS_O_WORKDIR
module load conda; conda activate base
mpiexec -n 16 --ppn 4 singularity exec --nv /i/t.sif python -m pkg.train -e 3
"""
COBALT = """#!/bin/bash
#COBALT -n 2 -t 60 -q single-gpu -A Proj
source /lus/venv/bin/activate
mpirun -n 16 -N 8 -hostfile $COBALT_NODEFILE python train.py
"""
GRID_ENGINE = """#!/bin/bash
#$ -N fit
#$ -l h_rt=02:00:00,gpu=2
#$ -P proj
#$ -cwd
python train.py --epochs 3
"""


def drafted(folder: Path, script: str) -> tuple[dict[str, object], str]:
    """The keys of the job file that is drafted from a script, and its text."""
    path = folder / "old script.sh"
    path.write_text(script)
    text = draft_from_script(path)
    job = load_job_text(text)
    return job, text


def load_job_text(text: str) -> dict[str, object]:
    job = read_job(JobText(Path("draft"), text)).validate().job
    resources = job.resources
    return {
        "name": job.name, "run": job.run, "nodes": resources.nodes, "gpus": resources.gpus_per_node,
        "ranks": job.ranks_per_node, "cpus": resources.cpus_per_gpu, "time": resources.walltime,
        "queue": resources.queue, "account": resources.account, "memory": resources.memory,
        "further": resources.directives, "setup": resources.setup, "image": job.container.image,
        "bind": job.container.bind, "args": job.container.args,
    }  # fmt: skip


def test_a_slurm_script_becomes_a_job_file(tmp_path: Path) -> None:
    job, text = drafted(tmp_path, SLURM)
    assert job == {
        "name": "res-net", "nodes": 2, "gpus": 4, "ranks": 4, "cpus": 8, "time": "01:30:00",
        "queue": "gpu", "account": "proj1", "memory": "200GiB", "further": ["--constraint=a100"],
        "setup": "module load apptainer cuda/12\nexport NCCL_DEBUG=INFO\nDATA=/scratch/data\n",
        "image": "pytorch.sif", "bind": ["/scratch:/scratch"], "args": ["--cleanenv"],
        "run": ["python", "-u", "train.py", "--data", "/scratch/data", "--lr", "0.1",
                "--tag", "$TAG"],
    }  # fmt: skip
    for remark in (
        "line 13: left out, hpc-amp sets it: export MASTER_ADDR=",
        "line 16: not taken over: export NCCL_DEBUG=TRACE",
        "line 18: not taken over: mkdir -p out",
        "no shell replaces $TAG",
    ):
        assert remark in text


def test_torchrun_is_left_out(tmp_path: Path) -> None:
    job, text = drafted(tmp_path, TORCHRUN)
    wanted = {"run": ["python", "train.py", "--batch", "8"], "gpus": 4, "ranks": 4, "cpus": 8}
    assert job | wanted == job
    assert job["time"] == "1-00:00:00" and job["name"] == "old-script"
    assert "lint found in it" in text and "29500" in text  # the port that all jobs would share


def test_scripts_of_other_schedulers_become_job_files(tmp_path: Path) -> None:
    job, _ = drafted(tmp_path, PBS)
    wanted = {
        "name": "vit", "nodes": 4, "gpus": 4, "ranks": 4, "time": "12:00:00",
        "queue": "preemptable", "account": "Proj", "further": ["-l place=scatter"],
        "image": "/i/t.sif",
        "setup": "module load conda; conda activate base\n",
        "run": ["python", "-m", "pkg.train", "-e", "3"],
    }  # fmt: skip
    assert job | wanted == job
    job, _ = drafted(tmp_path, COBALT)
    wanted = {"nodes": 2, "gpus": 0, "ranks": 8, "time": "01:00:00", "run": ["python", "train.py"]}
    assert job | wanted == job
    job, _ = drafted(tmp_path, GRID_ENGINE)
    wanted = {"name": "fit", "nodes": 1, "time": "02:00:00", "account": "proj"}
    assert job | wanted == job
    assert job["run"] == ["python", "train.py", "--epochs", "3"]


def test_a_script_without_a_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="starts no program that hpc-amp recognises"):
        drafted(tmp_path, "#!/bin/sh\n#SBATCH -N 1\nls\n")


def test_init_drafts_from_programs_and_scripts(host: StubHost) -> None:
    (host.work / "train.py").write_text(PROGRAM)
    (host.work / "old.sbatch").write_text(TORCHRUN)
    for name in ("train.py", "old.sbatch"):
        result = host.hpc_amp("init", name)
        path = f"{name.partition('.')[0]}.yaml"
        assert result.stdout == f"wrote {path}; next: hpc-amp validate {path}\n", result.stderr
        assert host.hpc_amp("validate", path).returncode == 0
        assert f"{path} already exists" in host.hpc_amp("init", name).stderr
    assert "no file none.py" in host.hpc_amp("init", "none.py").stderr
    (host.work / "notes.txt").write_text("text")
    assert "neither a program nor a job script" in host.hpc_amp("init", "notes.txt").stderr


def without_places(node: Node | None) -> object:
    """A tree as plain values, with the quotes of scalars."""
    if isinstance(node, MappingNode):
        return {name: without_places(below) for name, below in node.entries.items()}
    if isinstance(node, Items):
        return [without_places(item) for item in node.items]
    assert isinstance(node, Scalar)
    return (node.text, node.quoted)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_tree_that_is_written_is_read_again(path: Path) -> None:
    tree = read_job(path).tree
    again = read_job(JobText(path, tree_text(tree))).tree
    assert without_places(again) == without_places(tree)


@pytest.mark.parametrize(
    "text", ["1e3", "0x10", "~", "no", "01:00:00", "a: b", "- x", "#", "é\n", "*a"]
)
def test_any_scalar_is_written_as_it_is_read(text: str) -> None:
    override = f"container.env={{A: {json.dumps(text)}}}"
    tree = read_job(JobText(Path("x"), "name: a\nrun: [x]\n"), [override]).tree
    again = read_job(JobText(Path("x"), tree_text(tree))).validate().job
    assert again.container.env == {"A": text}


@pytest.mark.parametrize(
    ("limit", "slurm", "pbs"),
    [
        ("90", 5400, 90),
        ("10:30", 630, 630),
        ("01:00:00", 3600, 3600),
        ("2-0", 172800, 172800),
        ("1-02:03", 93780, 93780),
        ("1-02:03:04", 93784, 93784),
        ("UNLIMITED", None, None),
    ],
)
def test_time_limits_of_directives(limit: str, slurm: int | None, pbs: int | None) -> None:
    found: dict[str, Grammar] = {grammar.name: grammar for grammar in grammars()}
    assert found["slurm"].seconds(limit) == slurm
    assert found["pbs"].seconds(limit) == pbs


def test_the_examples_of_the_help_parse(host: StubHost) -> None:
    """`hpc-amp submit --help` shows a command; its options exist."""
    (host.work / "train.py").write_text("")
    (host.work / "pytorch.sif").write_text("hsqs: the beginning of an image")
    help_text = host.hpc_amp("submit", "--help").stdout
    line = next(line for line in help_text.splitlines() if "hpc-amp submit train.py" in line)
    words = shlex.split(line)[1:]
    at = words.index("--")
    result = host.hpc_amp(*words[:at], "--dry-run", "site=slurm", *words[at:])
    assert result.returncode == 0, result.stderr
    assert "--job-name=train\n" in result.stdout and "--nodes=2" in result.stdout


# ---- values and results --------------------------------------------------------------------------
REPORTS = """import os, sys
from hpc_amp import report
assert os.environ["HPC_AMP_RESUMES"] == "0"
assert os.path.exists(os.environ["HPC_AMP_RUN_DIR"] + "/launch.sh")
lr, rank = float(sys.argv[1].partition("=")[2]), float(os.environ["RANK"])
for step in (1, 2):
    report(step, total_steps=2, loss=lr / step + rank, lr=lr)
report(accuracy=0.5)
"""


def test_what_a_program_reports_is_shown_and_ranked(host: StubHost) -> None:
    (host.work / "fit.py").write_text(REPORTS)
    shown = host.hpc_amp("run", "fit.py", "--gpus", "0", "job.ranks_per_node=2", "--", "--lr=3")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for row in ("loss      1.5", "lr        3", "accuracy  0.5"):
        assert f"  {row}\n" in shown.stdout
    (status,) = json.loads(host.hpc_amp("status", "fit", "--json").stdout)
    assert (status["step"], status["total_steps"]) == (2, 2)
    lines = (host.work / "runs" / "fit" / "latest" / "metrics.jsonl").read_text().splitlines()
    assert [set(json.loads(line)) for line in lines] == [
        {"step", "time", "loss", "lr"}, {"step", "time", "loss", "lr"}, {"time", "accuracy"},
    ]  # fmt: skip

    swept = host.hpc_amp(
        "sweep", "fit.py", "--gpus", "0", "site=local", "--", "--lr=0.2,0.1", "{x}"
    )
    assert swept.returncode == 0, swept.stdout + swept.stderr
    ranking = json.loads(
        host.hpc_amp("sweep", "report", "fit", "--metric", "loss", "--json").stdout
    )
    assert [point["value"] for point in ranking["ranked"]] == [0.05, 0.1]


def test_report_outside_of_a_job_does_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from hpc_amp import report

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HPC_AMP_RUN_DIR", raising=False)
    report(1, loss=0.5)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises((TypeError, ValueError)):
        report(loss="small")  # type: ignore[arg-type]


def test_values_are_put_into_the_words_of_run() -> None:
    text = (
        'name: a\nrun: [x, "--lr={lr}", "{lr}{n}", "{other}", "{}"]\nvalues: {lr: 0.10, n: "a b"}\n'
    )
    job = read_job(JobText(Path("job"), text), ["values.n={lr}"]).validate().job
    assert job.run == ["x", "--lr=0.10", "0.10{lr}", "{other}", "{}"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("run: [x]\nvalues: {lr: 1}", "values.lr: run has no {lr}"),
        ("train: {}\nvalues: {lr: 1}", "values.lr: run has no {lr}"),
        ('run: ["{a-b}"]\nvalues: {a-b: 1}', "'a-b' is not a name of letters, digits and _"),
    ],
)
def test_values_that_have_no_place_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as failed:
        read_job(JobText(Path("job"), f"name: a\n{text}\n")).validate()
    assert why in str(failed.value)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_job_with_all_its_keys_is_the_same_job(path: Path) -> None:
    loaded = load_job(path, ["job.nodes=2", "container.env={A: '1', B: 'x: y'}"])
    for origins in (False, True):
        again = read_job(JobText(path, job_text(loaded, origins=origins))).validate()
        assert again.job == loaded.job


def test_config_shows_where_values_are_from(host: StubHost) -> None:
    text = 'name: a\nrun: [x, "{n}"]\nvalues: {n: 1}\njob:\n  walltime: 2h\n'
    (host.work / "job.yaml").write_text(text)
    shown = host.hpc_amp("config", "job.yaml", "--origin", "-N", "3").stdout
    places = {}
    for line in shown.splitlines():
        key, _, place = line.partition("#")
        places[key.strip()] = place.strip()
    assert places["name: a"] == "job.yaml:1"
    assert places["run: [x, '1']"] == "job.yaml:2"
    assert places["walltime: 2h"] == "job.yaml:5"
    assert places["nodes: 3"] == "override 'job.nodes=3'"
    assert places["cpus_per_gpu: 1"] == "default"


# ---- a run again ---------------------------------------------------------------------------------
def test_a_run_is_run_again_with_its_code_and_settings(
    host: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host.work / "src").mkdir()
    (host.work / "src" / "say.py").write_text(PROGRAM)
    text = "name: again\nsite: local\ncode: src\nrun: [python, say.py, '{n}', old]\n"
    (host.work / "job.yaml").write_text(text + "values: {n: 1}\njob: {gpus_per_node: 0}\n")
    first = host.hpc_amp("run", "job.yaml", "values.n=2")
    assert 'said ["1", "2", "old"]' in first.stdout, first.stderr
    (host.work / "src" / "say.py").write_text("broken")
    (host.work / "job.yaml").write_text("broken")
    elsewhere = host.folder / "elsewhere"
    elsewhere.mkdir()
    run = host.work / "runs" / "again" / "latest"

    second = host.hpc_amp("run", str(run), cwd=elsewhere)
    assert second.returncode == 0, second.stdout + second.stderr
    assert 'said ["1", "2", "old"]' in second.stdout
    third = host.hpc_amp("run", str(run), "values.n=3", cwd=elsewhere)
    assert 'said ["1", "3", "old"]' in third.stdout, third.stderr
    assert len(list((host.work / "runs" / "again").glob("2*"))) == 3
    assert list(elsewhere.iterdir()) == []


def test_a_run_that_does_not_record_its_submission_is_not_run_again(host: StubHost) -> None:
    run = host.work / "run"
    run.mkdir()
    (run / "job.json").write_text('{"job": {}, "schema": 1}')
    result = host.hpc_amp("submit", "run")
    assert result.returncode == 2 and result.stderr.count("\n") == 1
