"""Every rule of the linter: scripts that break it, at the line given, and scripts that do not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpc_amp.lint.findings import RULES
from hpc_amp.lint.header import header_errors
from hpc_amp.lint.linter import lint
from hpc_amp.schedulers import grammars

ROOT = Path(__file__).parents[2]
SLURM = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 --cpus-per-task=8\n"
ONE_NODE = "#!/bin/bash\n#SBATCH --nodes=1 --ntasks-per-node=4 --gpus-per-node=4 -c 8\n"
PER_NODE = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=4 -c 32\n"
PBS = "#!/bin/bash\n#PBS -l select=2:ncpus=8:ngpus=4 -l place=scatter -l walltime=1:00:00\n"
PBS += 'cd "$PBS_O_WORKDIR"\n'
COBALT = "#!/bin/bash\n#COBALT -n 2 -t 60\n"
HETEROGENEOUS = "#!/bin/bash\n#SBATCH -N 1 -n 1 -c 32\n#SBATCH hetjob\n"
HETEROGENEOUS += "#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-node=4 -c 32\n"


def slurm(*directives: str) -> str:
    return "#!/bin/bash\n" + "".join(f"#SBATCH {one}\n" for one in directives) + "srun ./a.out\n"


def pbs(*directives: str) -> str:
    lines = "".join(f"#PBS {one}\n" for one in directives)
    return f"#!/bin/bash\n{lines}cd $PBS_O_WORKDIR\n./a.out\n"


def cobalt(*directives: str) -> str:
    return "#!/bin/bash\n" + "".join(f"#COBALT {one}\n" for one in directives) + "./a.out\n"


def gridengine(*directives: str) -> str:
    return "#!/bin/bash\n" + "".join(f"#$ {one}\n" for one in directives) + "./a.out\n"


# Rule: [(script, line of the finding)], [script without it]. A script here has no other finding.
EXAMPLES: dict[str, tuple[list[tuple[str, int]], list[str]]] = {
    "byte-order-mark": (
        [("\ufeff" + slurm("-N 1"), 1), ("\ufeff" + pbs("-N a"), 1)],
        [slurm("--comment=é")],
    ),
    "crlf": (
        [
            (slurm("-N 1").replace("\n", "\r\n"), 1),
            (slurm("-N 1") + "echo\r\n", 4),
            (pbs("-N a").replace("\n", "\r\n"), 1),
            (cobalt("-n 1 -t 10").replace("\n", "\r\n"), 1),
        ],
        [slurm("-N 1") + "printf 'a\\r\\n'\n"],
    ),
    "missing-shebang": (
        [
            ("#SBATCH -N 1\nsrun ./a.out\n", 1),
            ("\n#!/bin/bash\n#SBATCH -N 1\n", 1),
            (" #!/bin/bash\n#SBATCH -N 1\n", 1),
            ("# !/bin/bash\n#SBATCH -N 1\n", 1),
            ("#COBALT -n 1 -t 10\n./a.out\n", 1),
        ],
        ["#PBS -N a\ncd $PBS_O_WORKDIR\n./a.out\n", "echo no directives\n", slurm("-N 1")],
    ),
    "directive-never-read": (
        [
            (slurm("-N 1") + "#SBATCH --gres=gpu:4\n", 4),
            ("#!/bin/bash\nset -e\n#SBATCH -N 2\n./a.out\n", 3),
            ("#!/bin/bash\n#SBATCH -N 1\n #SBATCH --mem=1G\n./a.out\n", 3),
            ("#!/bin/bash\n#PBS -N a\nmodule load x\n  #PBS -l walltime=1:00:00\n", 4),
            ("#!/bin/csh\n#PBS -N a\nset x = 1\n#PBS -j oe\n", 4),
            ("#!/bin/bash\n#COBALT -n 2\n\n#COBALT -t 30\n./a.out\n", 4),
            ("#!/bin/bash\n#COBALT -n 2\n# nodes\n#COBALT -t 30\n./a.out\n", 4),
            ("#!/bin/bash\n#COBALT -n 2\n#COBALT\t-t 30\n./a.out\n", 3),
            ("#!/bin/bash\n#COBALT -n 2\n #COBALT -t 30\n./a.out\n", 3),
            ("#!/bin/bash\n#COBALT -n 2\n#SBATCH -N 2\n#COBALT -t 30\n./a.out\n", 4),
        ],
        [
            "#!/bin/bash\n\n# comment\n#SBATCH -N 1\n\n##SBATCH --mem=1G\n#SBATCH -n 1\n./a.out\n",
            "#!/bin/bash\n#SBATCH -N 1\ncat > b <<EOF\n#!/bin/bash\n#SBATCH -N 2\nEOF\nsbatch b\n",
            "#!/bin/bash\nsbatch <<-'EOF'\n\t#!/bin/bash\n\t#SBATCH -N 2\n\tEOF\n",
            "#!/bin/bash\necho '\n#SBATCH -N 2\n' > b.sh\n",
            "#!/bin/bash\n#SBATCH -N 1\n./a.out\n# #SBATCH lines must come first\n##SBATCH -n 2\n",
            "#!/usr/bin/env python3\n#SBATCH -N 1\nTEXT = '''\n#SBATCH -n 2\n'''\n",
            "#!/bin/bash\n#PBS -N a\n:\n\n # c\n   #PBS -j oe\ncd $PBS_O_WORKDIR\n",
        ],
    ),
    "directive-misspelt": (
        [
            ("#!/bin/bash\n#SBATCH -N 1\n#SBATCh --mem=1G\n./a.out\n", 3),
            ("#!/bin/bash\n#SBATCH -N 1\n#sbatch --mem=1G\n./a.out\n", 3),
            ("#!/bin/bash\n#SBTACH --mem=1G\n./a.out\n", 2),
            ("#!/bin/bash\n#SBATCH -N 1\n#BATCH --mem=1G\n./a.out\n", 3),
            ("#!/bin/bash\n#SBATCH -N 1\n#!SBATCH --mem=1G\n./a.out\n", 3),
            ("#!/bin/bash\nSBATCH --mem=1G\n./a.out\n", 2),
            ("#!/bin/bash\n#PBS -N a\n#pbs -j oe\ncd $PBS_O_WORKDIR\n", 3),
            ("#!/bin/bash\n#PSB -N a\n./a.out\n", 2),
            ("#!/bin/bash\n#COBLAT -n 2\n./a.out\n", 2),
        ],
        ["#!/bin/bash\n#SBATCH -N 1\n#xSBATCH -n 2\n#-SBATCH -n 3\n# sbatch -N 2 this.sh\n"],
    ),
    "directive-commented-out": (
        [
            ("#!/bin/bash\n#SBATCH -N 1\n# SBATCH --mem=1G\n./a.out\n", 3),
            ("#!/bin/bash\n# SBATCH -N 1\n./a.out\n", 2),
            ("#!/bin/bash\n#PBS -N a\n# PBS -j oe\ncd $PBS_O_WORKDIR\n", 3),
        ],
        [
            slurm("-N 1") + "# SBATCH -N 2 would be two\n",
            "#!/bin/bash\n#SBATCH --time=1:00:00\n# SBATCH --time=2:00:00\n./a.out\n",
            "#!/bin/bash\n#SBATCH -N 1\n##SBATCH -n 2\n# #SBATCH -n 3\n#  SBATCH lines\n./a.out\n",
        ],
    ),
    "comment-is-directive": (
        [
            ("#!/bin/bash\n#PBS_NODEFILE holds the hosts\n#PBS -N a\ncd $PBS_O_WORKDIR\n", 2),
            ("#!/bin/bash\n#PBS -N a\n#PBSPro wants this\ncd $PBS_O_WORKDIR\n", 3),
            ("#!/bin/bash\n#SBATCH: the directives\n#SBATCH -N 1\n./a.out\n", 2),
            ("#!/bin/bash\n#SBATCH_options follow\n#SBATCH -N 1\n./a.out\n", 2),
        ],
        [
            "#!/bin/bash\n# PBS_NODEFILE is\n#PBS\n#PBS-N a\n#PBS\t-j oe\ncd $PBS_O_WORKDIR\n",
            "#!/bin/bash\n#SBATCH\n#SBATCH-N 1\n#SBATCH # comment\n#SBATCH#x\n./a.out\n",
            pbs("-N a") + "#PBS_NODEFILE is read below\n",
        ],
    ),
    "unmatched-quote": (
        [(slurm('--comment="a b'), 2), (slurm("--comment=it's"), 2), (pbs("-A 'a b"), 2)],
        [slurm("--comment=\"it's\"", "--wckey='a b'"), pbs("-A 'a b'"), pbs("-A it\\'s")],
    ),
    "stray-word": (
        [
            (slurm("--job-name=my job"), 2),
            (slurm("--nodes=2 4"), 2),
            (slurm("--mem 16 GB"), 2),
            (slurm("--exclusive user"), 2),
            (pbs("-N a b"), 2),
            (pbs("-l walltime=1:00:00 mem=4gb"), 2),
            (cobalt("-n 2 two", "-t 60"), 2),
            (cobalt("-A my project", "-n 2 -t 60"), 2),
        ],
        [
            slurm("--job-name='my job'", "-N 1 -n 2", "--mem=16G # GB", "hetjob", "-N 2"),
            slurm("--account=<your project>", "--qos=[the name]", "-A <your account>"),
            slurm("--container-image docker://x/y:1 --nvmps --image=a"),
            cobalt("-t 1:00:00 -q full-node -n 1", "--attrs filesystems=home:pubnet=true"),
            pbs("-N a -j oe", "-l walltime=1:00:00 -l select=1"),
        ],
    ),
    "trailing-comment": (
        [
            (pbs("-l walltime=1:00:00 # one hour"), 2),
            (pbs("-N a #name"), 2),
            (cobalt("-n 2 # nodes", "-t 60"), 2),
        ],
        [slurm("-N 2 # nodes"), pbs("-A a#b"), cobalt("-n 2 -t 60", "-A a#b")],
    ),
    "value-cut": (
        [(slurm("--comment=a#b"), 2), (slurm("--container-image nvcr.io#nvidia/pytorch:1"), 2)],
        [slurm("--comment='a#b'", "--wckey=a\\#b", "--mem=1G# memory", "-N 1 #x")],
    ),
    "backslash-lost": (
        [(slurm("--comment='a\\b'"), 2), (slurm('--comment="a\\b"'), 2)],
        [slurm("--comment='a\\\\b'"), slurm("--comment=a\\ b"), slurm('--comment="a\\"b"')],
    ),
    "quotes-kept": (
        [
            (cobalt("-n 2 -t 60", '--jobname "myjob"'), 3),
            (cobalt("-n 2 -t 60", '--attrs="filesystems=home"'), 3),
            (cobalt("-n 2 -t 60", "--env 'A=b c'"), 3),
            (cobalt("-n 2 -t 60", "--jobname a\\ b", "-A p"), 3),
            (cobalt("-n 2 -t 60", "--jobname a\\b"), 3),
        ],
        [
            cobalt("-n 2 -t 60", "--env A=1\\:2:B=2"),
            slurm('--job-name="my job"'),
            pbs('-A "my job"'),
        ],
    ),
    "typographic-character": (
        [
            (slurm("\u2013nodes=2"), 2),
            (slurm("--job-name=\u201cx\u201d"), 2),
            ("#!/bin/bash\n#SBATCH\u00a0-N 2\n./a.out\n", 2),
            (pbs("\u2014N a"), 2),
            (cobalt("\u2013n 2 -t 60"), 2),
        ],
        [slurm("--comment='a\u2013b'"), slurm("-N 1 # a \u2013 b")],
    ),
    "line-continuation": (
        [
            ("#!/bin/bash\n#PBS -N a \\\n#PBS -j oe\ncd $PBS_O_WORKDIR\n", 2),
            ("#!/bin/bash\n#SBATCH -N 1 \\\n# --mem=1G\n./a.out\n", 2),
        ],
        ["#!/bin/bash\n#SBATCH -N 1 \\\n#SBATCH --mem=1G\n./a.out\n", slurm("--comment=a\\\\")],
    ),
    "unknown-option": (
        [
            (slurm("--cpus_per_task=4"), 2),
            (slurm("--ntask=4"), 2),
            (slurm("--node=2"), 2),
            (slurm("--gpu-per-node=2"), 2),
            (slurm("--parition=gpu"), 2),
            (cobalt("-n 2 -t 60", "--attr filesystems=home --quue x"), 3),
            (cobalt("-n 2 -t 60", "--frobnicate 1"), 3),
            (cobalt("-n 2 -t 60", "--gres=gpu:2"), 3),
            (cobalt("-n 2 -t 60", "-Z 1"), 3),
            (cobalt("-n 2 -t 60", "--interactive_mode x"), 3),
            (cobalt("-n 2 -t 60", "--run x"), 3),  # --run_users or --run_project
        ],
        [
            slurm("--ntasks-per-nod=2", "--image=x", "--environment=y", "--module=gpu"),
            cobalt("-n 2 -t 60", "--proj p --kernel k -K o --ion_kernel i", "--held -v --verbose"),
            cobalt("--nodecount=2 --time=60", "--user_list a --run_users b --umask 022 --notify m"),
            cobalt("-n 2 -t 60", "--ion_kerneloptions o --run_project --disable_preboot", "-d"),
            cobalt("-n 2 -t 60", "--<option> x"),
        ],
    ),
    "torque-option": (
        [(pbs("-t 1-10"), 2), (pbs("-d /tmp"), 2), (pbs("-l select=1", "-n"), 3)],
        [pbs("-J 1-10"), pbs("-T openmpi", "-b 2", "-l elapstim_req=1:00:00")],
    ),
    "missing-value": (
        [
            (slurm("-N 1 --output"), 2),
            (slurm("--output", "-N 1"), 2),
            (pbs("-A", "-j oe"), 2),
            (slurm("--ntasks=4", "--gres="), 3),
            (slurm("--mem=''"), 2),
            (slurm("-N 1", '-t ""'), 3),
        ],
        [slurm("--exclusive", "--requeue", "-N", "2"), pbs("-V"), slurm("--gpus=", "--comment=")],
    ),
    "short-option-equals": (
        [(slurm("-J=name"), 2), (slurm("-N=2"), 2), (cobalt("-n 2 -t 60", "-A=x"), 3)],
        [slurm("-Jname", "-N2", "--nodes=2"), pbs("-Na")],
    ),
    "bad-value": (
        [
            (slurm("--time=24h"), 2),
            (pbs("-N 'my job'"), 2),
            (pbs("-j both"), 2),
            (pbs("-J 1,2"), 2),
            (cobalt("-n 2 -t 4"), 2),
            (cobalt("-n 2 -t 00:04:59"), 2),
            (cobalt("-n 2 -t 1d"), 2),
            (cobalt("-n two -t 60"), 2),
            (cobalt("-n 2 -t 60", "--dependencies 1,2"), 3),
            (cobalt("-n 2 -t 60", "--dependencies abc"), 3),
            (cobalt("-n 2 -t 60", "--dependencies 1:x"), 3),
            (cobalt("-n 2 -t 60", "--dependencies none"), 3),
            (cobalt("-n 2 -t 60", "--attrs a=b=c"), 3),
            (cobalt("-n 2 -t 60", "--attrs x=1:a=b=c"), 3),
            (cobalt("-n 2 -t 60", "-u 9"), 3),
            (cobalt("-n 2 -t 60", "--proccount 0"), 3),
            (cobalt("-n 2 -t 60", "--proccount x"), 3),
            (cobalt("-n 2 -t 60", "--geometry 1x1"), 3),
            (cobalt("-n 2 -t 60", "--cwd sub"), 3),
            (cobalt("-n 2 -t 60", "--preemptable=1"), 3),
            (cobalt("-n 010 -t 60"), 2),
            (cobalt("-n 08 -t 60"), 2),
            (cobalt("-n 0 -t 60"), 2),
        ],
        [
            slurm("--time=1-00:00:00"),
            pbs("-N a.b_c-d+e", "-j oe", "-k eod", "-J 1-10:2%3", "-r y"),
            cobalt("-n 2 -t 00:10:00"),
            cobalt("-n 03 -t 00:61:00"),
            cobalt("-n 2 -t 60", "--dependencies 1:23 -u 027 --proccount 4"),
            cobalt("-n 2 -t +60", "--geometry 1x2x3x4x2"),
            cobalt("-n 2 -t 60", "--attrs a=b:c:no_d --cwd ./sub"),
            cobalt("-n <nodes> -t HH:MM:SS"),
        ],
    ),
    "variable-in-directive": (
        [
            (slurm("--output=$HOME/log"), 2),
            (slurm("--nodes=${NODES}"), 2),
            (slurm("--job-name='$USER'"), 2),
            (slurm("--comment=`date`"), 2),
            (pbs("-A $PROJECT"), 2),
            (cobalt("-n 2 -t 60", "-A $COBALT_PROJ"), 3),
            (cobalt("-n 2 -t 60", "--cwd $HOME/x"), 3),
        ],
        [
            slurm("--output=%x-%j.out # $HOME"),
            slurm("--comment=5$"),
            cobalt("-n 2 -t 60", "-O logs/$jobid", "--env ID=$COBALT_JOBID"),
        ],
    ),
    "variable-in-log-path": (
        [(pbs("-o $PBS_O_WORKDIR/log"), 2), (pbs("-e err.${PBS_JOBID}"), 2)],
        [pbs("-o logs/")],
    ),
    "tilde-in-path": (
        [(slurm("--output=~/log"), 2), (pbs("-o ~me/log"), 2), (cobalt("-n 1 -t 9", "-o ~/x"), 3)],
        [slurm("--output=a~b")],
    ),
    "conflicting-options": (
        [
            (slurm("--mem=1G", "--mem-per-cpu=1G"), 3),
            (pbs("-l select=1", "-l ncpus=4"), 3),
            (pbs("-l nodes=2:ppn=2", "-l select=2"), 2),
            (cobalt("-n 2 -t 60 --mode c16"), 2),
            (slurm("-N 2", "--ntasks=8", "--ntasks-per-node=2"), 3),
            (cobalt("-n 2 -t 60 -I"), 2),
        ],
        [
            slurm("--mem=1G", "hetjob", "--mem-per-cpu=1G"),
            slurm("-N 2-4", "--ntasks=8", "--ntasks-per-node=2"),
            slurm("-N 2", "--ntasks=8", "--ntasks-per-node=4"),
            pbs("-l ncpus=4", "-l mem=4gb"),
            pbs("-l select=1:ncpus=4", "-l filesystems=home", "-l place=scatter"),
            cobalt("-n 2 -t 60 --mode script"),
        ],
    ),
    "option-twice": (
        [(slurm("-N 1", "--nodes=2"), 3), (slurm("--time=10", "-t 20"), 3)],
        [
            slurm("-N 2", "--nodes=2"),
            slurm("--mail-type=BEGIN", "--mail-type=END"),
            slurm("-N 1", "hetjob", "-N 2"),
        ],
    ),
    "first-resource-wins": (
        [
            (pbs("-l select=1", "-l select=2"), 3),
            (pbs("-l walltime=1:00:00,walltime=2:00:00"), 2),
            (pbs("-l walltime=60 -l select=1", "-j oe", "-l walltime=120"), 4),
        ],
        [pbs("-l walltime=60", "-l walltime=60"), pbs("-l select=1:ncpus=2+2:ncpus=4")],
    ),
    "submits-nothing": (
        [(cobalt("-n 2 -t 60", "--help"), 3), (cobalt("-n 2 -t 60 --version"), 2)],
        [cobalt("-n 2 -t 60 --verbose")],
    ),
    "non-ascii": (
        [
            (cobalt("-n 2 -t 60", "--env A=\u00e9"), 3),
            (cobalt("-n 2 -t 60", "--jobname \u00e9"), 3),
            (cobalt("-n 2 -t 60", "-A proj\u00e9t -q \u00fc"), 3),
        ],
        [cobalt("-n 2 -t 60") + "echo \u00e9\n", slurm("--job-name=\u00e9"), pbs("-A \u00e9")],
    ),
    "quote-takes-the-rest": (
        [
            (gridengine("-j y -N 'a' -cwd"), 2),
            (gridengine("-cwd", '-A "a b" -j y # why'), 3),
            (gridengine("-j y") + "cat <<X\n#$ -A 'a' -r y\nX\n", 5),
        ],
        [
            gridengine("-j y -N 'a'", '-A "a b"  # why', "-cwd"),
            gridengine("-v A='x',B='y'"),
            slurm("--comment='a b' -N 2"),
        ],
    ),
    "attrs-twice": (
        [(cobalt("-n 2 -t 60", "--attrs a=1", "--attrs b=2"), 4)],
        [cobalt("-n 2 -t 60", "--attrs a=1:b=2")],
    ),
    "env-not-merged": (
        [
            (cobalt("-n 2 -t 60", "--env=A=1", "--env=B=2"), 4),
            (pbs("-v A=1", "-v B=2"), 3),
        ],
        [cobalt("-n 2 -t 60", "--env A=1", "--env B=2"), pbs("-v A=1,B=2")],
    ),
    "env-value": (
        [
            (cobalt("-n 2 -t 60", "--env MYVAR"), 3),
            (cobalt("-n 2 -t 60", "--env :A=1"), 3),
            (cobalt("-n 2 -t 60", "--env A=1;2"), 3),
            (cobalt("-n 2 -t 60", "--env A={a,b}"), 3),
            (cobalt("-n 2 -t 60", "--env A={1..3}"), 3),
            (cobalt("-n 2 -t 60", "--env A=~/x"), 3),
            (cobalt("-n 2 -t 60", "--env P=/a:~/b"), 3),
            (pbs("-v 'A=a\\b'"), 2),
            (pbs("-v \"A=it's\""), 2),
            (pbs("-v A='x, y'"), 2),
        ],
        [
            cobalt("-n 2 -t 60", "--env P=/a:/b:Q=http://h:80/~x"),
            cobalt("-n 2 -t 60", "--env A={a}"),
            pbs("-v \"a=10,var2='A,B'\"", "-j oe"),
            pbs("-v A=1,B,C=x"),
        ],
    ),
    "hours-not-minutes": (
        [(cobalt("-n 2 -t 10:00"), 2), (cobalt("-n 2 -t 30:00"), 2)],
        [cobalt("-n 2 -t 02:00"), cobalt("-n 2 -t 00:30"), cobalt("-n 2 -t 00:10:00")],
    ),
    "export-comma": (
        [
            (slurm("--export=ALL,NCCL_SOCKET_IFNAME=hsn0,hsn1"), 2),
            (slurm('--export=ALL,A="x,y"'), 2),
            (slurm('--export=ALL,A="X,Y"'), 2),
            (slurm("--export=\"ALL,A='x,y'\""), 2),
            (SLURM + "srun --export=ALL,DEVICES=0,1 ./a.out\n", 3),
        ],
        [
            slurm("--export=ALL,A=1,B=2"),
            slurm('--export="ALL,A=1,PATH"'),
            slurm("--export=PATH,LD_LIBRARY_PATH"),
            slurm("--export=NONE"),
        ],
    ),
    "export-twice": (
        [(slurm("--export=ALL", "--export=ALL,A=1"), 3)],
        [slurm("--export=ALL,A=1")],
    ),
    "export-drops-environment": (
        [(slurm("--export=A=1"), 2), (SLURM + "srun --export=A=$B ./a.out\n", 3)],
        [slurm("--export=ALL,A=1"), slurm("--export=NONE"), slurm("--export=HOME,USER")],
    ),
    "log-directory-too-late": (
        [
            (slurm("--output=logs/%j.out") + "mkdir -p logs\n", 2),
            (cobalt("-n 2 -t 60", "-O logs/x") + "mkdir logs\n", 3),
        ],
        [
            slurm("--output=logs/%j.out"),
            slurm("--output=%j.out") + "mkdir -p logs\n",
            pbs("-o logs/") + "mkdir -p logs\n",
            "#!/bin/bash\n#SBATCH -o logs/%j\nif [ -z $SLURM_JOB_ID ]; then\n mkdir -p logs\n"
            " sbatch $0\n exit\nfi\n",
        ],
    ),
    "no-cd": (
        [
            ("#!/bin/bash\n#PBS -l select=1\nmodule load x\npython work.py\n", 4),
            ("#!/bin/bash\n#PBS -l select=1\nmpiexec -n 4 ./a.out\n", 3),
        ],
        [
            "#!/bin/bash\n#PBS -l select=1\ncd /data\npython work.py\n",
            "#!/bin/bash\n#PBS -l select=1\npython /data/work.py\n",
            "#!/bin/bash\n#PBS -l ncpus=1\n#PBS -l wd\npython work.py\n",
        ],
    ),
    "signal-misses-script": (
        [(slurm("--signal=USR1@60") + "trap 'save' SIGUSR1\nsrun ./a.out &\nwait\n", 2)],
        [
            slurm("--signal=USR1@60"),
            slurm("--signal=USR1@60") + "trap 'clean' EXIT\n",
            slurm("--signal=B:USR1@60") + "trap 'save' USR1\nsrun ./a.out &\nwait\n",
        ],
    ),
    "signal-reaches-nobody": (
        [
            ("#!/bin/bash\n#SBATCH -n 1\n#SBATCH --signal=SIGUSR1@90\npython3 fit.py\n", 3),
            ("#!/bin/bash\n#SBATCH -n 1 --signal=USR1@90\nsrun hostname\nexec python fit.py\n", 2),
            ("#!/bin/bash\n#SBATCH -N 1 --signal=10@90\ntorchrun --standalone train.py\n", 2),
            ("#!/bin/bash\n#SBATCH -N 1 --signal=USR1@90\nsingularity exec a.sif python a.py\n", 2),
        ],
        [
            "#!/bin/bash\n#SBATCH -n 1 --signal=USR1@120\nsrun python fit.py\n",
            "#!/bin/bash\n#SBATCH -n 1 --signal=USR1@120\nmpirun python fit.py\n",
            "#!/bin/bash\n#SBATCH -n 1 --signal=B:USR1@120\nexec python fit.py\n",
            "#!/bin/bash\n#SBATCH -n 1 --signal=USR1@120\nbash steps.sh\n",
            "#!/bin/bash\n#SBATCH -n 1 --signal=USR1@120\n$LAUNCHER python fit.py\n",
            "#!/bin/bash\n#SBATCH -n 1 --signal=USR1@120\npython a.py\nsrun python fit.py\n",
            "#!/bin/bash\n#SBATCH -n 1 --signal=USR1@120\ngmx mdrun\n",
        ],
    ),
    "signal-kills-script": (
        [
            ("#!/bin/bash\n#SBATCH -n 1\n#SBATCH --signal=B:USR1@120\npython fit.py\n", 3),
            ("#!/bin/bash\n#SBATCH -n 1\n#SBATCH --signal=B:10@120\nsource venv/bin/activate\n"
             "srun python fit.py\n", 3),
            ("#!/bin/bash\n#SBATCH -n 1 --signal=B:USR2@120\ntrap a USR1\nsrun ./a &\nwait\n", 2),
        ],
        [
            "#!/bin/bash\n#SBATCH -n 1 --signal=B:USR1@120\nexec python fit.py\n",
            "#!/bin/bash\n#SBATCH -n 1 --signal=B:USR1@120\ntrap '' USR1\npython fit.py\n",
            "#!/bin/bash\n#SBATCH -n 1 --signal=B:USR1@120\nfor s in USR1 TERM; do\n trap save $s\n"
            "done\nsrun ./a.out &\nwait\n",
            "#!/bin/bash\n#SBATCH -n 1 --signal=B:USR1@120\nsource requeue.sh\npython fit.py\n",
            "#!/bin/bash\n#SBATCH -n 1 --signal=B:TERM@120\npython fit.py\n",
            "#!/usr/bin/env python3\n#SBATCH -n 1 --signal=B:USR1@120\nimport fit\n",
        ],
    ),
    "array-by-job-id": (
        [
            ("#!/bin/bash\n#SBATCH --array=0-7 -n 1 -c 4\nsrun python fit.py\n"
             'scontrol requeue "$SLURM_JOB_ID"\n', 4),
            ("#!/bin/bash\n#SBATCH -a 1,5 -n 1\nagain() {\n scontrol requeue ${SLURM_JOBID}\n}\n"
             "trap again USR1\nsrun ./a.out &\nwait\n", 4),
            ("#!/bin/bash\n#SBATCH --array=0-7%2 -n 1\nID=$SLURM_JOB_ID\nsrun ./a.out\n"
             "scancel $ID\n", 5),
        ],
        [
            "#!/bin/bash\n#SBATCH --array=0-7 -n 1\nsrun ./a.out\n"
            'scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"\n',
            '#!/bin/bash\n#SBATCH -n 1\nsrun ./a.out\nscontrol requeue "$SLURM_JOB_ID"\n',
            '#!/bin/bash\n#SBATCH --array=3 -n 1\nsrun ./a.out\nscontrol requeue "$SLURM_JOB_ID"\n',
            '#!/bin/bash\n#SBATCH --array=0-7 -n 1\nscontrol show job "$SLURM_JOB_ID"\nsrun ./a\n',
        ],
    ),
    "first-node-only": (
        [
            (PER_NODE + "export MASTER_ADDR=$(scontrol show hostnames | head -n1)\n\ntorchrun "
             "--nnodes=$SLURM_NNODES --nproc_per_node=4 --rdzv_backend=c10d train.py\n", 5),
            (PER_NODE + "srun hostname\naccelerate launch --num_machines 2 train.py\n", 4),
            (PBS + "torchrun --nnodes=2 --nproc_per_node=4 train.py\n", 4),
            (COBALT + "singularity exec --nv a.sif python3 -m torch.distributed.launch --nnodes=2 "
             "--node_rank=0 train.py\n", 3),
        ],
        [
            PER_NODE + "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d train.py\n",
            ONE_NODE + "torchrun --nproc_per_node=4 train.py\n",
        ],
    ),
    "started-once": (
        [
            (PER_NODE + "python train.py\n", 3),
            (PER_NODE + "torchrun --nproc_per_node=4 train.py\n", 3),
            (ONE_NODE + "export WORLD_SIZE=$SLURM_NTASKS\npython train.py\n", 4),
        ],
        [SLURM + "srun python train.py\n", ONE_NODE + "python train.py\n"],
    ),
    "background-not-waited": (
        [
            (SLURM + "srun python train.py &\n", 3),
            (PBS + "mpiexec -n 8 --ppn 4 python train.py &\necho started\n", 4),
            (ONE_NODE + "for i in 1 2; do\n srun -n1 -c8 python fit.py $i &\ndone\n", 4),
        ],
        [
            SLURM + "srun python train.py &\nwait\n",
            SLURM + "srun -n1 -c8 python server.py &\nsrun python client.py\n",
            "#!/bin/bash\npython watch.py &\n",
        ],
    ),
    "trap-waits": (
        [("#!/bin/bash\n#SBATCH --signal=B:USR1@60\ntrap save USR1\nsrun ./a.out\n", 4)],
        ["#!/bin/bash\n#SBATCH --signal=B:USR1@60\ntrap save USR1\nsrun ./a.out &\nwait\n"],
    ),
    "rank-in-batch-shell": (
        [
            (SLURM + "export RANK=$SLURM_PROCID\nsrun python train.py\n", 3),
            (SLURM + "export LOCAL_RANK=${SLURM_LOCALID:-0}\nsrun python train.py\n", 3),
            (SLURM + "RANK=$SLURM_PROCID\nexport RANK\nsrun python train.py\n", 3),
            (SLURM + "export RANK=0\nsrun python train.py\n", 3),
            (PBS + "export RANK=$PMI_RANK\nmpiexec -n 8 python train.py\n", 4),
            (COBALT + "export RANK=$OMPI_COMM_WORLD_RANK\nmpirun -n 16 python train.py\n", 3),
        ],
        [
            SLURM + "srun bash -c 'export RANK=$SLURM_PROCID; exec python train.py'\n",
            SLURM + 'srun bash -c "export RANK=\\$SLURM_PROCID; exec python train.py"\n',
            SLURM + "export WORLD_SIZE=$SLURM_NTASKS\nsrun python train.py\n",
            "#!/bin/bash\nexport RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID\nexec python x.py\n",
            PER_NODE + "export LOCAL_RANK=$SLURM_LOCALID\nsrun torchrun --nnodes=2 "
            "--nproc_per_node=4 --rdzv_backend=c10d train.py\n",
            "#!/bin/bash\n#SBATCH --nodes=1\nexport RANK=$SLURM_PROCID\npython train.py\n",
            SLURM + "run() {\n export RANK=$SLURM_PROCID\n}\nexport -f run\nsrun bash -c run\n",
        ],
    ),
    "rank-expanded-early": (
        [
            (SLURM + 'srun bash -c "python train.py --rank $SLURM_PROCID"\n', 3),
            (PER_NODE + "srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID train.py\n", 3),
            (PER_NODE + "NODE=$SLURM_NODEID\nsrun torchrun --node_rank=$NODE train.py\n", 4),
            (PER_NODE + 'CMD="torchrun --node_rank $SLURM_PROCID x.py"\nsrun $CMD\n', 3),
            (SLURM + "cat > run.sh <<EOF\nexport RANK=$SLURM_PROCID\nEOF\nsrun bash run.sh\n", 4),
            (PBS + 'mpiexec -n 8 bash -c "RANK=$PMI_RANK python train.py"\n', 4),
        ],
        [
            SLURM + "srun bash -c 'python train.py --rank $SLURM_PROCID'\n",
            SLURM + 'srun bash -c "python train.py --rank \\$SLURM_PROCID"\n',
            PER_NODE + "srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID --rdzv_backend=c10d "
            "--rdzv_endpoint=$A:$P train.py\n",
            PER_NODE + 'CMD="torchrun --node_rank \\$SLURM_PROCID x.py"\nsrun bash -c "$CMD"\n',
            SLURM + "cat > run.sh <<'EOF'\nexport RANK=$SLURM_PROCID\nEOF\nsrun bash run.sh\n",
            SLURM + "cat > run.sh <<EOF\nexport RANK=\\$SLURM_PROCID\nEOF\nsrun bash run.sh\n",
            SLURM + 'echo "on $SLURM_NODEID"\nsrun python train.py\n',
            "#!/bin/bash\n#SBATCH -N 1\nsrun torchrun --nnodes=1 --node_rank=$SLURM_PROCID x.py\n",
        ],
    ),
    "local-rank-argument": (
        [
            (SLURM + "srun python option.py\n", 3),
            (PER_NODE + "srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d "
             "option.py\n", 3),
            (PBS + "mpiexec -n 8 --ppn 4 python -u option.py --lr 1\n", 4),
        ],
        [
            SLURM + "srun python variable.py\n",
            SLURM + "srun python package.py\n",
            SLURM + "srun python elsewhere.py\n",
            SLURM + "srun bash -c 'exec python option.py --local_rank $SLURM_LOCALID'\n",
            PER_NODE + "srun python -m torch.distributed.launch --nnodes=2 --nproc_per_node=4 "
            "--node_rank $X option.py\n",
        ],
    ),
    "gpus-per-task": (
        [
            ("#!/bin/bash\n#SBATCH -N 2 -c 8\n#SBATCH --ntasks-per-node=4\n"
             "#SBATCH --gpus-per-task=1\nsrun python train.py\n", 4),
            ("#!/bin/bash\n#SBATCH -n 8 -c 8\nsrun --gpus-per-task=1 python train.py\n", 3),
        ],
        [
            "#!/bin/bash\n#SBATCH -N 2 -c 8 --ntasks-per-node=4 --gpus-per-task=1 --gpu-bind=none\n"
            "srun python train.py\n",
            "#!/bin/bash\n#SBATCH -N 2\nsrun -n16 -c7 --gpus-per-task=1 --gpu-bind=closest "
            "python train.py\n",
            "#!/bin/bash\n#SBATCH -N 2 -c 32 --ntasks-per-node=1 --gpus-per-task=4\n"
            "srun torchrun --nproc_per_node=4 --rdzv_backend=c10d train.py\n",
            "#!/bin/bash\n#SBATCH -N 2 -n 8 --gpus-per-task=1\nsrun ./simulate\n",
        ],
    ),
    "missing-cpus-per-task": (
        [
            ("#!/bin/bash\n#SBATCH -N 2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"
             "srun python train.py\n", 5),
            ("#!/bin/bash\n#SBATCH --gres=gpu:4\ntorchrun --nproc_per_node=4 train.py\n", 3),
            (SLURM + "srun --ntasks=8 --ntasks-per-node=4 python train.py\n", 3),
        ],
        [
            SLURM + "srun python train.py\n",
            SLURM + "srun --ntasks=8 --cpus-per-task=8 python train.py\n",
            SLURM + "export SRUN_CPUS_PER_TASK=8\nsrun --ntasks=8 python train.py\n",
            "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=4 --gpus-per-node=4\nsrun -c 8 "
            "python train.py\n",
            "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=4 --gpus-per-node=4 --exclusive\n"
            "srun python train.py\n",
            "#!/bin/bash\n#SBATCH --ntasks-per-node=4 --gpus-per-node=4\nsrun ./simulate\n",
            "#!/bin/bash\n#SBATCH --gres=gpu:1\nsrun python train.py\n",
        ],
    ),
    "tasks-per-node-list": (
        [(SLURM + "export WORLD_SIZE=$((SLURM_NNODES * SLURM_TASKS_PER_NODE))\n", 3)],
        [SLURM + "export WORLD_SIZE=$((SLURM_NNODES * SLURM_NTASKS_PER_NODE))\n"],
    ),
    "ranks-and-gpus": (
        [
            ("#!/bin/bash\n#SBATCH --ntasks-per-node=8 --gpus-per-node=4 -c 4\n"
             "srun python train.py\n", 3),
            ("#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=4 -c 4\n"
             "srun bash -c 'RANK=$SLURM_PROCID exec python train.py'\n", 3),
        ],
        [
            SLURM + "srun python train.py\n",
            PER_NODE + "srun torchrun --nproc_per_node=4 --rdzv_backend=c10d train.py\n",
            PER_NODE + "srun python train.py --devices 4\n",
            PER_NODE + "RUN='python -m accelerate.commands.launch --num_machines 2 --machine_rank "
            "$SLURM_PROCID'\nsrun bash -c \"$RUN train.py\"\n",
            PER_NODE + "srun bash -c 'python -m sglang.launch_server --tp 8 --node-rank "
            "$SLURM_PROCID'\n",
            PER_NODE + "srun python -c 'import torch; print(torch.cuda.device_count())'\n"
            "srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID --rdzv_backend=c10d train.py\n",
            PER_NODE + "srun bash -c 'python check.py --node_rank=$SLURM_PROCID'\n",
            "#!/bin/bash\n#SBATCH --ntasks-per-node=2 --gres=gpu=2 -c 4\nsrun python train.py\n",
        ],
    ),
    "ntasks-wins": (
        [
            (slurm("--ntasks=1", "--nodes=1", "--ntasks-per-node=2"), 2),
            (slurm("--ntasks-per-node=4", "-n 2"), 3),
            (slurm("-N 2", "-n 2", "--ntasks-per-node=2"), 3),
        ],
        [
            slurm("--nodes=2", "--ntasks=8", "--ntasks-per-node=4"),
            slurm("--ntasks=6", "--ntasks-per-node=4"),
            slurm("--nodes=2", "--ntasks=7", "--ntasks-per-node=4"),
            slurm("--nodes=2", "--ntasks=2", "--ntasks-per-node=1"),
            slurm("-n 1", "hetjob", "-N 2 --ntasks-per-node=4"),
        ],
    ),
    "node-file-lines": (
        [
            ("#!/bin/bash\n#PBS -l select=2:ncpus=8:mpiprocs=4\ncd $PBS_O_WORKDIR\n"
             "NNODES=$(wc -l < $PBS_NODEFILE)\nmpiexec -n $NNODES --ppn 1 ./a.out\n", 4),
            ("#!/bin/bash\n#PBS -l nodes=2:ppn=4\ncd $PBS_O_WORKDIR\n"
             "export NUM_NODES=`cat $PBS_NODEFILE | wc -l`\nmpiexec -n 8 ./a.out\n", 4),
            ("#!/bin/bash\n#PBS -l select=2:ncpus=8:mpiprocs=4\ncd $PBS_O_WORKDIR\nmpiexec -n 2 "
             "--ppn 1 torchrun --nnodes $(wc -l < $PBS_NODEFILE) train.py\n", 4),
        ],
        [
            "#!/bin/bash\n#PBS -l select=2:ncpus=8:mpiprocs=4\ncd $PBS_O_WORKDIR\n"
            "NNODES=$(sort -u $PBS_NODEFILE | wc -l)\nmpiexec -n 8 ./a.out\n",
            "#!/bin/bash\n#PBS -l select=2:ncpus=8:mpiprocs=4\ncd $PBS_O_WORKDIR\n"
            "NPROCS=$(wc -l < $PBS_NODEFILE)\nmpiexec -n $NPROCS ./a.out\n",
            "#!/bin/bash\n#PBS -l select=2:ncpus=8:mpiprocs=1\ncd $PBS_O_WORKDIR\n"
            "NNODES=$(wc -l < $PBS_NODEFILE)\nmpiexec -n $NNODES ./a.out\n",
            "#!/bin/bash\n#PBS -l select=2:system=x\ncd $PBS_O_WORKDIR\n"
            "NNODES=$(wc -l < $PBS_NODEFILE)\nmpiexec -n $NNODES ./a.out\n",
        ],
    ),
    "torchrun-per-rank": (
        [
            (SLURM + "srun torchrun --nproc_per_node=4 train.py\n", 3),
            (SLURM + "srun python -m torch.distributed.run --nproc-per-node gpu train.py\n", 3),
            (SLURM + "N=4\nsrun bash -c 'torchrun --nproc_per_node=4 train.py'\n", 4),
        ],
        [
            PER_NODE + "srun torchrun --nproc_per_node=4 train.py\n",
            SLURM + "srun --ntasks-per-node=1 -c 32 torchrun --nproc_per_node=4 train.py\n",
            SLURM + "srun -n $SLURM_NNODES -c 32 torchrun --nproc_per_node=4 train.py\n",
            SLURM + "srun torchrun --nnodes=8 --nproc_per_node=1 train.py\n",
        ],
    ),
    "fixed-port": (
        [
            (SLURM + "export MASTER_PORT=29500\nsrun python train.py\n", 3),
            (SLURM + "MASTER_PORT='12345' srun python train.py\n", 3),
            (SLURM + "PORT=29500\nexport MASTER_PORT=$PORT\nsrun python train.py\n", 4),
            (PER_NODE + "srun torchrun --master_port=29500 train.py\n", 3),
            (PER_NODE + "srun torchrun --master-port 29500 train.py\n", 3),
            (PER_NODE + "srun torchrun --rdzv_endpoint=$HOST:29500 train.py\n", 3),
            (PER_NODE + "srun bash -c 'torchrun --rdzv_endpoint $HOST:29500 train.py'\n", 3),
            (SLURM + "srun bash -c 'export MASTER_PORT=29500; python train.py'\n", 3),
            (SLURM + "srun python train.py --init_method tcp://$MASTER_ADDR:3456\n", 3),
            (COBALT + "mpirun -n 16 -x MASTER_PORT=2345 python train.py\n", 3),
            (PBS + "mpirun -n 8 -x MAIN_PORT=3000 -x MAIN_ADDR=$A python train.py\n", 4),
            ("#!/bin/bash\ntorchrun --master_port 29500 train.py\n", 2),
        ],
        [
            SLURM + "export MASTER_PORT=$((61000 + SLURM_JOB_ID % 4536))\nsrun python train.py\n",
            SLURM + 'export MASTER_PORT="1${SLURM_JOB_ID:0-4}"\nsrun python train.py\n',
            SLURM + "export MASTER_PORT=$(shuf -i 20000-30000 -n 1)\nsrun python train.py\n",
            PER_NODE + "srun torchrun --standalone train.py\n",
            PER_NODE + "srun torchrun --rdzv_endpoint=localhost:0 --nnodes=1 train.py\n",
            SLURM + 'echo "MASTER_PORT=29500"\nsrun python train.py\n',
            SLURM + "# export MASTER_PORT=29500\nsrun python train.py\n",
            SLURM.replace("per-node=4", "per-node=8") + "export MASTER_PORT=29500\n"
            "srun python train.py\n",
            SLURM.replace(" --nodes", " --exclusive --nodes") + "srun bash -c 'python -m "
            "sglang.launch_server --dist-init-addr $head:7000'\n",
        ],
    ),
    "hostname-address": (
        [
            (SLURM + "export MASTER_ADDR=$(hostname -i)\nsrun python train.py\n", 3),
            (SLURM + "export MASTER_ADDR=`hostname --ip-address`\nsrun python train.py\n", 3),
            (PBS + "mpirun -n 8 -x MASTER_ADDR=$(hostname -i) python train.py\n", 4),
            (SLURM + "MASTER_ADDR=$(hostname -I | awk '{print $1}')\nsrun python train.py\n", 3),
            (PER_NODE + 'head_node_ip=$(srun -N1 -n1 -w "$head" hostname --ip-address)\n'
             "srun torchrun --rdzv_endpoint $head_node_ip:$P train.py\n", 3),
        ],
        [
            SLURM + "export MASTER_ADDR=$(hostname)\nsrun python train.py\n",
            SLURM + "export MASTER_ADDR=$(hostname -s)\nsrun python train.py\n",
            SLURM + 'echo "address $(hostname -i)"\nsrun python train.py\n',
            SLURM + "head_node_ip=$(hostname -i)\n"
            "srun -n1 ray start --head --node-ip-address $head_node_ip\npython train.py\n",
        ],
    ),
    "launch-node-address": (
        [(SLURM + "export MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR\nsrun python train.py\n", 3)],
        [SLURM + "export MASTER_ADDR=$SLURMD_NODENAME\nsrun python train.py\n"],
    ),
    "node-list-cut": (
        [
            (SLURM + "export MASTER_ADDR=${SLURM_NODELIST%%,*}\nsrun python train.py\n", 3),
            (SLURM + "export MASTER_ADDR=$(echo $SLURM_JOB_NODELIST | cut -d, -f1)\n"
             "srun python train.py\n", 3),
        ],
        [
            SLURM + 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)'
            "\nsrun python train.py\n",
        ],
    ),
    "localhost-on-many-nodes": (
        [
            (SLURM + "export MASTER_ADDR=localhost\nsrun python train.py\n", 3),
            (PER_NODE + "srun torchrun --master_addr 127.0.0.1 train.py\n", 3),
            (PBS + "export MASTER_ADDR=127.0.0.1\nmpiexec -n 8 python train.py\n", 4),
        ],
        [
            ONE_NODE + "export MASTER_ADDR=localhost\nsrun python train.py\n",
            PER_NODE + "srun torchrun --rdzv_endpoint=localhost:0 --nnodes=1 train.py\n",
        ],
    ),
    "interface-excluded": (
        [(SLURM + "export NCCL_SOCKET_IFNAME=^docker0\nsrun python train.py\n", 3)],
        [
            SLURM + "export NCCL_SOCKET_IFNAME=^docker0,lo\nsrun python train.py\n",
            SLURM + "export NCCL_SOCKET_IFNAME=ib0\nsrun python train.py\n",
        ],
    ),
    "port-per-task": (
        [
            (SLURM + "srun bash -c 'export MASTER_PORT=$((20000 + RANDOM % 20000)) "
             "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS; exec python train.py'\n", 3),
            (PER_NODE + "srun bash -c 'torchrun --nnodes=2 --rdzv_backend=c10d "
             "--rdzv_endpoint=$HEAD:$RANDOM train.py'\n", 3),
            (PER_NODE + "srun bash -c \"torchrun --nnodes=2 --node_rank=\\$SLURM_NODEID "
             '--master_port=\\$(shuf -i 20000-30000 -n 1) train.py"\n', 3),
            (PER_NODE + "srun bash <<'EOF'\ncd work\ntorchrun --nnodes=2 --node_rank=$SLURM_NODEID "
             "--master_addr=$HEAD --master_port=$RANDOM train.py\nEOF\n", 5),
        ],
        [
            SLURM + "export MASTER_PORT=$((20000 + RANDOM % 20000))\nsrun python train.py\n",
            SLURM + 'srun bash -c "export MASTER_PORT=$((20000 + RANDOM % 20000)) '
            'RANK=\\$SLURM_PROCID; exec python train.py"\n',
            PER_NODE + "srun bash -c 'torchrun --nproc_per_node=4 --master_port=$RANDOM t.py'\n",
            SLURM + "srun -n1 -c8 bash -c 'MASTER_PORT=$RANDOM WORLD_SIZE=1 python train.py'\n",
            SLURM + "srun bash -c 'if [ $SLURM_PROCID == 0 ]; then MASTER_PORT=$RANDOM; fi; "
            "WORLD_SIZE=8 python train.py'\n",
        ],
    ),
    "seed-per-task": (
        [
            (SLURM + "srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS python train.py "
             "--seed $RANDOM'\n", 3),
        ],
        [
            SLURM + "srun python train.py --seed $RANDOM\n",
            SLURM + "srun bash -c 'RANK=$SLURM_PROCID python train.py --seed 1'\n",
        ],
    ),
    "first-component-address": (
        [
            (HETEROGENEOUS + 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\n'
             "srun --het-group=0 python actor.py &\n"
             "srun --het-group=1 torchrun --nnodes=2 --rdzv_endpoint=$head:$P train.py\nwait\n", 5),
        ],
        [
            HETEROGENEOUS + "A=$(scontrol show hostnames $SLURM_JOB_NODELIST_HET_GROUP_1 | head "
            "-n1)\nsrun --het-group=1 torchrun --nnodes=2 --rdzv_endpoint=$A:$P train.py\n",
            HETEROGENEOUS + 'A=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\n'
            "srun --het-group=0,1 torchrun --nnodes=3 --rdzv_endpoint=$A:$P train.py\n",
            HETEROGENEOUS + 'A=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\n'
            "srun --het-group=0 ray start --head &\nsrun --het-group=1 ray start --address $A\n",
            PER_NODE + 'A=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)\n'
            "srun torchrun --nnodes=2 --rdzv_endpoint=$A:$P train.py\n",
        ],
    ),
    "env-not-sent": (
        [
            (COBALT + "export MASTER_ADDR=$A MASTER_PORT=$P\nmpirun -n 16 -npernode 8 "
             "--hostfile $COBALT_NODEFILE python train.py\n", 4),
        ],
        [
            COBALT + "export MASTER_ADDR=$A\nmpirun -n 16 -npernode 8 -x MASTER_ADDR python x.py\n",
            PBS + "export MASTER_ADDR=$A\nmpiexec -n 8 --ppn 4 --hostfile $HOSTS python x.py\n",
            COBALT + "export MASTER_ADDR=$A\nmpirun -n 16 -npernode 8 $FLAGS -x $N python x.py\n",
        ],
    ),
    "image-per-rank": (
        [(SLURM + "srun apptainer exec --nv docker://pytorch/pytorch python train.py\n", 3)],
        [
            SLURM + "apptainer pull a.sif docker://pytorch/pytorch\nsrun apptainer exec a.sif "
            "python train.py\n",
            SLURM + "srun --container-image=docker://pytorch/pytorch python train.py\n",
        ],
    ),
    "scontrol-in-container": (
        [
            (SLURM + "srun apptainer exec a.sif bash -c 'export MASTER_ADDR=$(scontrol show "
             "hostnames | head -n1); python train.py'\n", 3),
        ],
        [
            SLURM + 'srun apptainer exec a.sif bash -c "A=$(scontrol show hostnames | head -n1) '
            'python train.py"\n',
        ],
    ),
    "ranks-cut-off": (
        [(SLURM + "srun singularity exec --nv --cleanenv a.sif python train.py\n", 3)],
        [
            SLURM + "srun singularity exec --nv a.sif python -e train.py\n",
            SLURM + "srun apptainer exec --cleanenv --env RANK=1 a.sif python train.py\n",
            PER_NODE + "srun apptainer exec --cleanenv a.sif torchrun --nproc_per_node=4 x.py\n",
        ],
    ),
}  # fmt: skip
OPTION = 'parser.add_argument("--local_rank", type=int, default='


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs that the scripts start."""
    monkeypatch.chdir(tmp_path)
    Path("option.py").write_text(f"{OPTION}0)\n")
    Path("variable.py").write_text(f'{OPTION}int(os.environ.get("LOCAL_RANK", 0)))\n')
    Path("package.py").write_text(f"import deepspeed\n{OPTION}0)\n")


BAD = [(rule, *case) for rule, (bad, _) in EXAMPLES.items() for case in bad]
GOOD = [(rule, text) for rule, (_, good) in EXAMPLES.items() for text in good]


@pytest.mark.parametrize(("rule", "text", "line"), BAD, ids=[rule for rule, _, _ in BAD])
def test_a_fault_is_found_at_its_line_and_nothing_else(rule: str, text: str, line: int) -> None:
    found = lint(text.encode(), "x.sh")

    assert {one.id for one in found} == {rule}, [str(one) for one in found]
    assert found[0].line == line
    assert found[0].severity == RULES[rule]
    assert found[0].what and found[0].fix


@pytest.mark.parametrize(("rule", "text"), GOOD, ids=[rule for rule, _ in GOOD])
def test_what_is_right_has_no_finding(rule: str, text: str) -> None:
    assert lint(text.encode(), f"{rule}.sh") == []


def test_every_rule_has_examples_of_both_kinds() -> None:
    assert set(EXAMPLES) == set(RULES)
    assert all(bad and good for bad, good in EXAMPLES.values())


def test_every_rule_is_documented_with_its_severity_and_no_other() -> None:
    text = (ROOT / "docs" / "lint.md").read_text()
    documented = dict(re.findall(r"^\| `([a-z-]+)` \| (error|warning) \|", text, re.MULTILINE))

    assert documented == RULES


@pytest.mark.parametrize("path", sorted(ROOT.glob("tests/golden/*.sh")), ids=lambda p: p.stem)
def test_our_own_scripts_have_no_finding(path: Path) -> None:
    assert lint(path.read_bytes(), path.name) == []


def test_header_errors_are_those_of_one_scheduler() -> None:
    text = "#!/bin/bash\n#SBATCH --job-name=my job\n#PBS -N my job\nexport MASTER_PORT=29500\n"
    grammar = {one.name: one for one in grammars()}

    assert [one.line for one in header_errors(text, grammar["slurm"])] == [2]
    assert [one.line for one in header_errors(text.encode(), grammar["pbs"])] == [3]
    assert header_errors("#!/bin/bash\n#SBATCH -N 1\n#SBATCH -N 2\n", grammar["slurm"]) == []
    assert [one.id for one in header_errors("#PBS -t 1-3\n", grammar["pbs"])] == ["torque-option"]
