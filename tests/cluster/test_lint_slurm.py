"""The linter's tokenizer and rules for Slurm, against the real sbatch."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.cluster import Cluster

from hpc_amp.lint.header import header_errors
from hpc_amp.schedulers.slurm.grammar import GRAMMAR

pytestmark = [pytest.mark.cluster, pytest.mark.slurm]

# Headers behind `#!/bin/bash`; {q}: what sbatch takes for the comment of the job is compared.
ACCEPTED = [
    "#SBATCH --comment='a b'",
    "#SBATCH --comment=a\\#b",
    '#SBATCH --comment="it\'s"',
    "#SBATCH --comment='it\\'s'",
    '#SBATCH --comment="a\\"b"',
    "#SBATCH --comment='a\\\\b' # comment",
    "#SBATCH --comment 'x\ty'",
    "#SBATCH -N1 --comment=x \\\n#SBATCH -n 1",
    "#SBATCH--comment=x",
    "#SBATCH\t--comment=x",
    "\n  # comment\n\n#SBATCH --comment=x\n##SBATCH --comment=y\n#sbatch --comment=z",
    "#SBATCH --comment=x\n#SBATCH --comment=y",
    "#SBATCH --comment\n#SBATCH x",
    "#SBATCH --comm=x",
    "#SBATCH --comment=x\ntrue\n#SBATCH --comment=y",
    " #SBATCH --comment=y\n#SBATCH --comment=x",
    "#SBATCH --comment=$USER",
    "#SBATCH --comment=a'b c'd",
    "#SBATCH --comment=x#y z",
    "#SBATCH --gpus= --qos= --comment=x",
    "#SBATCH #--comment=y\n#SBATCH --comment=x",
]
REFUSED = [
    "#SBATCH --comment=a b",
    "#SBATCH -N 1 2",
    "#SBATCH --comment='a",
    "#SBATCH --comment=it's",
    "#SBATCH: options",
    "#SBATCH_options",
    "#SBATCHES --comment=x",
    "#SBATCH --exclusive user",
    "#SBATCH --cpus_per_task=1",
    "#SBATCH --node=1",
    "#SBATCH -N=1",
    "#SBATCH --output",
    "#SBATCH --time=1h",
    "#SBATCH --gres=",
    "#SBATCH --mem=''",
    "#SBATCH --ntasks=\n",
    "#SBATCH --mem=1M\n#SBATCH --mem-per-cpu=1M",
    "#SBATCH \u2013N 1",
    "#SBATCH\u00a0-N 1",
]


def sbatch(cluster: Cluster, folder: Path, data: bytes) -> subprocess.CompletedProcess[str]:
    """Submit a script, held. A controller that cannot be reached refuses everything, which would
    prove nothing."""
    script = folder / "job.sh"
    script.write_bytes(data)
    result = cluster.run("sbatch", "-H", "--parsable", str(script), cwd=folder, check=False)
    assert "configuration source" not in result.stderr, result.stderr
    assert "Unable to contact" not in result.stderr, result.stderr
    return result


def comment_of(cluster: Cluster, folder: Path, job_id: str) -> str | None:
    shown = cluster.run("scontrol", "show", "job", job_id, cwd=folder).stdout
    match = re.search(r"^   Comment=(.*?) ?$", shown, re.MULTILINE)
    return match[1] if match else None


@pytest.mark.parametrize("header", ACCEPTED)
def test_a_header_means_to_us_what_it_means_to_sbatch(
    cluster: Cluster, tmp_path: Path, header: str
) -> None:
    text = f"#!/bin/bash\n{header}\nsleep 1\n"

    result = sbatch(cluster, tmp_path, text.encode())

    job_id = result.stdout.strip()
    try:
        assert result.returncode == 0, result.stderr
        seen = comment_of(cluster, tmp_path, job_id)
    finally:
        cluster.run("scancel", job_id, cwd=tmp_path, check=False)
    options = GRAMMAR.parse(GRAMMAR.read(text.splitlines()))
    ours = options.last("comment") or next((one.value for one in options.no_value), None)
    assert ours == seen


@pytest.mark.parametrize("header", REFUSED)
def test_what_sbatch_refuses_is_an_error(cluster: Cluster, tmp_path: Path, header: str) -> None:
    text = f"#!/bin/bash\n{header}\nsleep 1\n"

    result = sbatch(cluster, tmp_path, text.encode())

    cluster.run("scancel", result.stdout.strip() or "0", cwd=tmp_path, check=False)
    assert result.returncode != 0
    assert header_errors(text, GRAMMAR) != []


def test_more_tasks_than_the_nodes_take_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    """sbatch looks at that only where the job is not held."""
    text = "#!/bin/bash\n#SBATCH -N 2 --ntasks=8 --ntasks-per-node=2\ntrue\n"
    (tmp_path / "job.sh").write_text(text)

    result = cluster.run("sbatch", "--parsable", "job.sh", cwd=tmp_path, check=False)

    cluster.run("scancel", result.stdout.strip() or "0", cwd=tmp_path, check=False)
    assert "configuration is not available" in result.stderr
    assert [one.id for one in header_errors(text, GRAMMAR)] == ["conflicting-options"]


@pytest.mark.parametrize(
    "text",
    [
        "#SBATCH -N 1\n",
        "\n#!/bin/bash\n",
        "# !/bin/bash\n",
        "\ufeff#!/bin/bash\n",
        "#!/bin/bash\r\n",
    ],
)
def test_a_first_line_that_sbatch_refuses_is_an_error(
    cluster: Cluster, tmp_path: Path, text: str
) -> None:
    text += "#SBATCH -N 1\nsleep 1\n"

    assert sbatch(cluster, tmp_path, text.encode()).returncode != 0
    assert header_errors(text, GRAMMAR) != []


def test_we_know_all_options_that_sbatch_names(cluster: Cluster) -> None:
    shown = cluster.run("sbatch", "--help", cwd=Path("/")).stdout
    known = {**GRAMMAR.options.with_value, **GRAMMAR.options.flags}
    unknown = []
    for letter, name, value in re.findall(
        r"^ +(?:(-\w), +)?(--[\w-]+)(\[?=)?", shown, re.MULTILINE
    ):
        if name not in known:
            unknown.append(name)
        if value == "=" and not GRAMMAR.options.takes_value(name):
            unknown.append(f"{name}=")
        if letter and GRAMMAR.options.canonical(letter) is None:
            unknown.append(letter)

    assert unknown == []
