"""The MPI check, with a made-up mpi4py: what it finds, what it says, and who says it.

Real libraries under real launchers: tests/cluster/test_mpi.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import commands
from support.environment import clean_environ
from support.mpi import FakeMpi
from support.waiting import wait_until

from hpc_amp.preflight.mpi_fit import Library, host_library, image_library

OLD_IMAGE = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4"
NEW_IMAGE = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution"
MPICH_IMAGE = "MPICH Version:      4.3.2\nMPICH Release date: Mon Oct  6\nMPICH ABI: 17:2:5\n"
OLD_HOST = "mpirun (Open MPI) 4.1.8"
NEW_HOST = "mpirun (Open MPI) 5.0.11"
HYDRA_HOST = "HYDRA build details: Version: 4.3.2"
PREFIX = "hpc-amp: MPI check: "
NO_MPI = "`launch.mpi: none` (torch needs no MPI)"


class Ranks:
    """The check of a job in `folder`, started as mpirun of Open MPI starts ranks."""

    def __init__(
        self,
        folder: Path,
        mpi: FakeMpi | None = None,
        *,
        use: str = "hybrid",
        image: str | None = "/images/a.sif",
        env: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.attempt = folder / "attempts" / "1"
        for made in (self.attempt, folder / "work"):
            made.mkdir(parents=True)
        self.path = str((mpi or FakeMpi()).write(folder / "packages"))
        self.job = folder / "job.json"
        job: dict[str, Any] = {"run": ["true"], "launch": {"mpi": use}}
        job["container"] = {"image": image, "env": env or {}}
        host_mpi = {"prefix": "/host/mpi", "libraries": ["/host/mpi/lib"], "bind": []}
        resolved = {"workdir": str(folder / "work"), "host_mpi": host_mpi, "job": job}
        self.job.write_text(json.dumps(resolved))

    def environ(self, rank: int, size: int, **more: str) -> dict[str, str]:
        """The whole environment of a rank."""
        place = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size)}
        place |= {"OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size)}
        script = {"HPC_AMP_WORLD_SIZE": str(size), "HPC_AMP_ATTEMPT": "1"}
        script |= {"MASTER_ADDR": "n1", "MASTER_PORT": "61000", "HPC_AMP_HOST_MPI": NEW_HOST}
        path = os.pathsep.join([self.path, clean_environ()["PYTHONPATH"]])
        return {**clean_environ(**place, **script), "PYTHONPATH": path, **more}

    def words(self) -> list[str]:
        """Python's arguments for a rank."""
        return ["-m", "hpc_amp.distributed.exec", "--job", str(self.job), "--mpi-probe"]

    def start(self, rank: int, size: int, **environ: str) -> subprocess.Popen[str]:
        descriptor = environ.get("PMI_FD")
        return subprocess.Popen(
            [sys.executable, *self.words()],
            env=self.environ(rank, size, **environ),
            pass_fds=[int(descriptor)] if descriptor else [],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def check(self, size: int = 1, **environ: str) -> list[tuple[int, str, str]]:
        """Status, output and errors of every rank."""
        processes = [self.start(rank, size, **environ) for rank in range(size)]
        said = [process.communicate(timeout=300) for process in processes]
        return [(process.returncode, *both) for process, both in zip(processes, said, strict=True)]

    def explanation(self, size: int = 1, **environ: str) -> str:
        """What rank 0 says, as one line, where it is the first to fail."""
        ended = commands.python(
            *self.words(), cwd=self.folder, environ=self.environ(0, size, **environ), timeout=600
        )
        assert (ended.returncode, ended.stdout) == (3, ""), ended.stderr
        (line,) = ended.stderr.splitlines()
        assert line.startswith(PREFIX)
        return line[len(PREFIX) :]

    def explanation_of_a_hang(self, size: int, reached: Path) -> str:
        """The same where MPI hangs once it has written `reached`: the time has to be long enough
        for that on this machine, whatever it is."""
        limit = 1.0
        while True:
            line = self.explanation(size, HPC_AMP_MPI_TIMEOUT=f"{limit:g}")
            if reached.exists() and reached.read_text().endswith("\n"):
                return line.replace(f"within {limit:g} s", "within X s")
            assert limit < 300, "MPI does not come to the place where it should hang"
            limit *= 2
            for record in self.attempt.iterdir():
                record.unlink()


def hang_at(reached: Path, *values: str) -> str:
    """Python that says it was here, with some values, and never comes back."""
    shown = f"' '.join(map(str, [{', '.join(values)}]))"
    return f"open({str(reached)!r}, 'w').write({shown} + '\\n'); time.sleep(10000)"


# ---- ranks that meet -----------------------------------------------------------------------------


@pytest.mark.parametrize(("image", "inside"), [("/images/a.sif", "image"), (None, "program")])
def test_ranks_that_meet_are_one_line_of_rank_0(
    image: str | None, inside: str, tmp_path: Path
) -> None:
    results = Ranks(tmp_path, image=image).check(3)

    versions = f"host {NEW_HOST}, {inside} Open MPI v4.1.4, mpi4py 4.1.2"
    assert results == [(0, f"MPI: 3 ranks, {versions}\n", ""), (0, "", ""), (0, "", "")]
    assert not list((tmp_path / "attempts" / "1").iterdir())


@pytest.mark.parametrize(
    ("said", "shown"), [("", "host unknown"), ("unknown", "host unknown"), ("x 1.0", "host x 1.0")]
)
def test_a_host_that_says_nothing_is_no_mistake(said: str, shown: str, tmp_path: Path) -> None:
    ((status, output, _),) = Ranks(tmp_path).check(HPC_AMP_HOST_MPI=said)

    assert (status, output.split(", ")[:2]) == (0, ["MPI: 1 rank", shown])


def test_the_check_sees_what_the_program_will_see(tmp_path: Path) -> None:
    """Environment, working directory and the open descriptor behind which PMI's server is; the
    module of that name in the working directory it does not take for mpi4py."""
    reading, writing = os.pipe()
    record = tmp_path / "seen.json"
    look = (
        "import json; os.fstat(int(os.environ['PMI_FD'])); json.dump([os.getcwd(), "
        f"dict(os.environ)], open({str(record)!r}, 'w'))"
    )
    ranks = Ranks(
        tmp_path / "run", FakeMpi(start=look), use="bind", env={"OWN": "a b", "RANK": "9"}
    )
    FakeMpi(load="raise OSError").write(tmp_path / "run" / "work")

    ((status, _, errors),) = ranks.check(PMI_FD=str(writing), LD_LIBRARY_PATH="/image")
    os.close(reading)
    os.close(writing)

    assert status == 0, errors
    folder, environ = json.loads(record.read_text())
    assert folder == str(tmp_path / "run" / "work")
    assert (environ["OWN"], environ["RANK"], environ["WORLD_SIZE"]) == ("a b", "0", "1")
    assert environ["LD_LIBRARY_PATH"] == "/host/mpi/lib:/image"
    assert environ["OPAL_PREFIX"] == "/host/mpi"


# ---- ranks that do not meet ----------------------------------------------------------------------

ALONE = FakeMpi(size="1", rank="0", library=OLD_IMAGE)


def test_a_newer_open_mpi_on_the_host_is_explained_with_both_versions(tmp_path: Path) -> None:
    assert Ranks(tmp_path, ALONE).explanation(4) == (
        "rank 0 sees a world of 1 in MPI, but the launcher started 4 (from Open MPI): the image's "
        "Open MPI v4.1.4 cannot talk to the host's mpirun (Open MPI) 5.0.11: its major version "
        "must not be newer than that of the image. Use an image with Open MPI 5 or newer, or "
        f"`launch.mpi: bind`, or {NO_MPI}"
    )


@pytest.mark.parametrize(
    ("host", "image", "use", "environ", "parts"),
    [
        (HYDRA_HOST, OLD_IMAGE, "hybrid", {}, [
            "the image's Open MPI v4.1.4 cannot talk to the host's mpiexec (HYDRA) 4.3.2: Open MPI "
            "and MPICH do not work together. Use an image with MPICH, or launch.method: mpirun "
            "with Open MPI on the host, or `launch.mpi: bind`"]),
        (NEW_HOST, MPICH_IMAGE, "hybrid", {}, [
            "the image's MPICH 4.3.2 cannot talk to the host's mpirun (Open MPI) 5.0.11: Open MPI "
            "and MPICH do not work together. Use an image with Open MPI, or launch.method: mpiexec "
            "with MPICH on the host"]),
        (OLD_HOST, NEW_IMAGE, "hybrid", {}, [
            "the image's Open MPI v5.0.11 cannot talk to the host's mpirun (Open MPI) 4.1.8, "
            "although their versions should work together. Remove --cleanenv and --containall"]),
        (OLD_HOST, NEW_IMAGE, "hybrid", {"PMIX_SERVER_TMPDIR": "/no/such/ompi.vm.0"}, [
            "the launcher's folder /no/such/ompi.vm.0 is not visible in the container. Add a "
            "parent of it, such as /no/such, to container.bind"]),
        (NEW_HOST, OLD_IMAGE, "bind", {}, [
            "the image's Open MPI v4.1.4 cannot talk to the host's mpirun (Open MPI) 5.0.11: it is "
            "not the host's library. Set host_mpi.libraries", "MPI4PY_LIBMPI"]),
        (NEW_HOST, NEW_IMAGE, "bind", {}, [
            "the image's Open MPI v5.0.11 cannot talk to the host's mpirun (Open MPI) 5.0.11: "
            "check host_mpi of the site"]),
        ("slurm 24.05.1", NEW_IMAGE, "hybrid", {}, [
            "cannot talk to the host's slurm 24.05.1: srun starts the ranks without MPI "
            "(`--mpi=none`). Set `srun_mpi: pmix`"]),
        ("slurm 24.05.1", MPICH_IMAGE, "hybrid", {}, ["Set `srun_mpi: pmi2`"]),
        ("slurm 24.05.1", NEW_IMAGE, "hybrid", {"PMI_RANK": "0"}, [
            "Open MPI needs PMIx. Set `srun_mpi: pmix`"]),
        ("slurm 24.05.1", MPICH_IMAGE, "hybrid", {"PMIX_RANK": "0"}, [
            "MPICH needs PMI. Set `srun_mpi: pmi2`"]),
        ("slurm 24.05.1", NEW_IMAGE, "hybrid", {"PMIX_RANK": "0"}, ["PMIX_MCA_psec=^munge"]),
        ("slurm 24.05.1", MPICH_IMAGE, "hybrid", {"PMI_RANK": "0"}, ["a newer library"]),
        ("", OLD_IMAGE, "hybrid", {"OMPI_VERSION": "5.0.11"}, [
            "Open MPI v4.1.4 cannot talk to the host's mpirun (Open MPI) 5.0.11: its major "]),
        ("", OLD_IMAGE, "hybrid", {}, [
            "cannot talk to the host's launcher (HPC_AMP_HOST_MPI does not say which), although"]),
    ],
)  # fmt: skip
def test_the_reason_follows_from_both_sides(
    host: str, image: str, use: str, environ: dict[str, str], parts: list[str], tmp_path: Path
) -> None:
    ranks = Ranks(tmp_path, FakeMpi(size="1", rank="0", library=image), use=use)

    line = ranks.explanation(2, HPC_AMP_HOST_MPI=host, **environ)

    assert line.startswith("rank 0 sees a world of 1 in MPI, but the launcher started 2 (from ")
    assert all(part in line for part in parts), line
    assert line.endswith(NO_MPI)


def test_a_rank_that_mpi_numbers_otherwise(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, FakeMpi(rank="1 - int(os.environ['RANK'])"))

    assert ranks.explanation(2) == (
        "rank 0 is rank 1 in MPI, but the launcher's variables say 0 of 2 (from Open MPI; host: "
        "mpirun (Open MPI) 5.0.11, image: Open MPI v4.1.4): variables of a second launcher are "
        "set. Remove them from job.setup and container.env, or set launch.method to the right "
        "launcher"
    )


def test_messages_that_arrive_wrong(tmp_path: Path) -> None:
    line = Ranks(tmp_path, FakeMpi(total="7")).explanation(3)

    assert line.startswith("the sum of the ranks 0 to 2 is 7 in MPI (host: mpirun (Open MPI) 5.")


# ---- no MPI at all -------------------------------------------------------------------------------


def test_an_image_without_mpi4py(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    ranks.path = ""

    assert ranks.explanation(2) == (
        f"the image has no mpi4py ({sys.executable}), which launch.mpi needs. Install it, or use "
        f"{NO_MPI}"
    )


@pytest.mark.parametrize(
    ("use", "error", "reason", "cure"),
    [
        ("hybrid", "ImportError('libmpi.so.40: cannot open shared object file')",
         "libmpi.so.40: cannot open shared object file", "of the host with `launch.mpi: bind`"),
        ("hybrid", "RuntimeError('cannot load MPI library\\nlibmpi.so: no\\nlibmpi.so.12: none')",
         "cannot load MPI library; libmpi.so: no; libmpi.so.12: none", "install the MPI that"),
        ("bind", "ImportError('libmpi.so.12: cannot open')", "libmpi.so.12: cannot open",
         "check host_mpi.libraries and host_mpi.bind of the site"),
        ("bind", "ImportError('libc.so.6: version `GLIBC_2.38 not found')", "GLIBC_2.38",
         "needs a newer C library than the image has: use `launch.mpi: hybrid`"),
        ("hybrid", "OSError()", "it gives no reason", "install the MPI that"),
    ],
)  # fmt: skip
def test_a_library_that_does_not_load(
    use: str, error: str, reason: str, cure: str, tmp_path: Path
) -> None:
    ranks = Ranks(tmp_path, FakeMpi(load=f"raise {error}"), use=use)

    line = ranks.explanation(2, OPENMPI_VERSION="4.1.7")

    assert line.startswith("mpi4py in the image cannot load an MPI library (")
    assert reason in line and cure in line
    # NVIDIA's images say what they have: both versions are named although nothing could be asked.
    assert "host: mpirun (Open MPI) 5.0.11; image: Open MPI v4.1.7, by OPENMPI_VERSION; " in line


def test_an_mpi4py_that_lacks_a_part_is_not_an_absent_one(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    FakeMpi().write(tmp_path / "broken", package="import no_such_part")
    ranks.path = str(tmp_path / "broken")

    assert "cannot load an MPI library (No module named 'no_such_part')" in ranks.explanation()


# ---- MPI that hangs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "doing"),
    [
        ("start", "MPI_Init"),
        ("talk", "the first exchange among the 2 ranks"),
        ("end", "MPI_Finalize"),
    ],
)
def test_mpi_that_hangs_is_ended(where: str, doing: str, tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    ranks = Ranks(tmp_path / "run", FakeMpi(**{where: hang_at(reached)}))

    line = ranks.explanation_of_a_hang(2, reached)

    assert line.startswith(
        f"{doing} did not end within X s (to wait longer, export HPC_AMP_MPI_TIMEOUT in "
        "job.setup): the image's Open MPI v4.1.4 cannot talk to the host's mpirun (Open MPI) "
        "5.0.11: its major version must not be newer"
    )


def test_a_library_that_cannot_be_read_is_no_quarrel_of_versions(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, FakeMpi(load="time.sleep(10000)"))

    line = ranks.explanation(HPC_AMP_MPI_TIMEOUT="0.5")

    assert line.startswith(("loading the MPI library did not", "the import of mpi4py did not"))
    assert "its file system is slow" in line


def test_a_world_that_is_wrong_is_told_even_if_it_hangs_later(tmp_path: Path) -> None:
    reached = tmp_path / "reached"
    mpi = FakeMpi(size="1", rank="0", end=hang_at(reached))

    line = Ranks(tmp_path / "run", mpi).explanation_of_a_hang(2, reached)

    assert line.startswith("rank 0 sees a world of 1 in MPI")


def read_when_written(path: Path) -> str:
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), str(path))
    return path.read_text()


def wait_until_gone(pid: int) -> None:
    """A killed process of another parent is gone when somebody has reaped it; a zombie is dead."""

    def gone() -> bool:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        return stat.rpartition(")")[2].split()[0] in "ZX"

    wait_until(gone, f"the end of process {pid}")


def test_nothing_stays_behind_of_mpi_that_hangs(tmp_path: Path) -> None:
    """Open MPI 4 starts a daemon where it finds none."""
    reached = tmp_path / "reached"
    daemon = "__import__('subprocess').Popen(['sleep', '10000']).pid"
    ranks = Ranks(tmp_path / "run", FakeMpi(start=hang_at(reached, "os.getpid()", daemon)))

    ranks.explanation_of_a_hang(1, reached)

    first, second = reached.read_text().split()
    wait_until_gone(int(first))
    wait_until_gone(int(second))


def test_mpi_ends_with_a_rank_that_the_launcher_kills(tmp_path: Path) -> None:
    record = tmp_path / "pid"
    start = hang_at(record, "os.getpid()")
    process = Ranks(tmp_path / "run", FakeMpi(start=start)).start(0, 1)
    pid = int(read_when_written(record))

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)

    assert process.returncode == -signal.SIGTERM
    wait_until_gone(pid)


@pytest.mark.parametrize("limit", ["0", "-1", "soon", "inf", "nan"])
def test_a_time_limit_that_is_none(limit: str, tmp_path: Path) -> None:
    ((status, _, errors),) = Ranks(tmp_path).check(HPC_AMP_MPI_TIMEOUT=limit)

    assert status == 2
    assert errors == (
        f"hpc-amp: HPC_AMP_MPI_TIMEOUT={limit!r} is not a positive number of seconds\n"
    )


# ---- MPI that dies -------------------------------------------------------------------------------

ABORT = """\
--------------------------------------------------------------------------
It looks like MPI_INIT failed for some reason; your parallel process is
likely to abort: PMIX_ERR_UNREACH
--------------------------------------------------------------------------
*** An error occurred in MPI_Init_thread
*** on a NULL communicator
[vm:1] Local abort before MPI_INIT completed completed successfully, but am not able
"""


def test_mpi_that_aborts_is_told_by_its_most_telling_line(tmp_path: Path) -> None:
    start = f"sys.stderr.write({ABORT!r}); sys.stderr.flush(); os._exit(15)"
    ranks = Ranks(tmp_path, FakeMpi(start=start))

    line = ranks.explanation(2)

    record = ranks.attempt / "mpi-crash.txt"
    assert line.startswith(
        "the process ended with status 15 in MPI_Init (likely to abort: PMIX_ERR_UNREACH): the "
        "image's Open MPI v4.1.4 cannot talk to the host's mpirun (Open MPI) 5.0.11: its major "
    )
    assert line.endswith(f"{NO_MPI}. What MPI wrote is in {record}")
    assert record.read_text().endswith(f"\n\n{ABORT}")


@pytest.mark.parametrize(
    ("mpi", "start"),
    [
        (FakeMpi(start="os.kill(os.getpid(), 11)"),
         "the process was killed by signal 11 (Segmentation fault) in MPI_Init: the image's"),
        (FakeMpi(talk="raise RuntimeError('MPI_ERR_OTHER: known error')"),
         "the process ended with status 1 in the first exchange (RuntimeError: MPI_ERR_OTHER: "
         "known error): the image's"),
        (FakeMpi(end="os._exit(0)"), "the process ended with status 0 in MPI_Finalize: the"),
        (FakeMpi(start="os._exit(0)"), "the process ended with status 0 in MPI_Init: the"),
    ],
)  # fmt: skip
def test_the_ways_to_die(mpi: FakeMpi, start: str, tmp_path: Path) -> None:
    assert Ranks(tmp_path, mpi).explanation(2).startswith(start)


def test_open_mpi_that_looks_in_another_folder_for_its_files(tmp_path: Path) -> None:
    said = (
        "    /opt/hpcx/ompi/share/openmpi/help-mpi-runtime.txt: No such file or directory.  Sorry!"
    )
    ranks = Ranks(tmp_path, FakeMpi(start=f"print({said!r}, flush=True); os._exit(1)"))

    line = ranks.explanation(HPC_AMP_HOST_MPI=OLD_HOST)

    assert "it searches its own files in /opt/hpcx/ompi, which does not exist in the image" in line


# ---- who speaks ----------------------------------------------------------------------------------


def test_ranks_that_fail_alike_speak_once(tmp_path: Path) -> None:
    """Rank 0 as a rule, but whichever it is says all of it."""
    results = Ranks(tmp_path, ALONE).check(4)

    assert [(status, output) for status, output, _ in results] == [(3, "")] * 4
    ((rank, line),) = [(rank, errors) for rank, (_, _, errors) in enumerate(results) if errors]
    assert line.startswith(f"{PREFIX}rank {rank} sees a world of 1 in MPI, but ")
    assert "Open MPI v4.1.4" in line and NEW_HOST in line and line.count("\n") == 1


def test_a_rank_that_fails_alone_speaks(tmp_path: Path) -> None:
    """Rank 0 is content, or waits for the others until the launcher kills it."""
    mpi = FakeMpi(start="os.environ['RANK'] == '2' and os._exit(1)")

    results = Ranks(tmp_path, mpi).check(3)

    assert [status for status, _, _ in results] == [0, 0, 3]
    assert results[2][2].startswith(f"{PREFIX}the process ended with status 1 in ")
    assert [errors for _, _, errors in results[:2]] == ["", ""]


def test_two_sorts_of_failures_are_two_lines(tmp_path: Path) -> None:
    mpi = FakeMpi(start="os.environ['RANK'] == '1' and os._exit(1)", size="1", rank="0")

    results = Ranks(tmp_path, mpi).check(3)

    lines = "".join(errors for _, _, errors in results).splitlines()
    assert [status for status, _, _ in results] == [3, 3, 3]
    assert sorted(re.sub(r"rank \d", "rank N", line.split(" in ")[0]) for line in lines) == [
        f"{PREFIX}rank N sees a world of 1",
        f"{PREFIX}the process ended with status 1",
    ]


@pytest.mark.parametrize("attempt", ["", "2"])
def test_without_a_place_to_agree_all_speak(attempt: str, tmp_path: Path) -> None:
    """By hand there is no attempt; a folder may be missing or not writable."""
    results = Ranks(tmp_path, ALONE).check(2, HPC_AMP_ATTEMPT=attempt)

    assert [status for status, _, _ in results] == [3, 3]
    for rank, (_, _, errors) in enumerate(results):
        assert errors.startswith(f"{PREFIX}rank {rank} sees a world of 1 in MPI")
        assert errors.count("\n") == 1


def test_a_wrong_world_of_the_environment_comes_first(tmp_path: Path) -> None:
    ((status, output, errors),) = Ranks(tmp_path, ALONE).check(HPC_AMP_WORLD_SIZE="8")

    assert (status, output) == (2, "")
    assert errors.startswith("hpc-amp: the job was started for 8 ranks, but this process sees 1 ")


def test_a_folder_that_is_not_in_the_image(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    (tmp_path / "work").rmdir()

    ((status, _, errors),) = ranks.check()

    assert status == 2
    assert errors.startswith(f"hpc-amp: rank 0 cannot check MPI in '{tmp_path}/work': ")


# ---- versions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "library"),
    [
        (OLD_IMAGE, Library("Open MPI v4.1.4", "Open MPI", "4.1.4")),
        ("Open MPI v5.0.10rc2, package", Library("Open MPI v5.0.10rc2", "Open MPI", "5.0.10rc2")),
        (MPICH_IMAGE, Library("MPICH 4.3.2", "MPICH", "4.3.2")),
        (
            "MPI VERSION    : CRAY MPICH version 8.1.28.15 (ANL base 3.4a2)\nMPI BUILD INFO : x",
            Library("Cray MPICH 8.1.28.15", "MPICH", "8.1.28.15"),
        ),
        (
            "Intel(R) MPI Library 2021.10 for Linux* OS\n",
            Library("Intel MPI 2021.10", "MPICH", "2021.10"),
        ),
        ("MVAPICH2 Version      :\t2.3.7\n", Library("MVAPICH 2.3.7", "MPICH", "2.3.7")),
        ("Somebody's MPI\n" * 9, Library(("Somebody's MPI " * 9)[:60])),
        ("", Library()),
    ],
)
def test_what_libraries_say_of_themselves(said: str, library: Library) -> None:
    assert image_library(said, {}) == library


@pytest.mark.parametrize(
    ("said", "family", "major"),
    [
        (NEW_HOST, "Open MPI", 5),
        ("mpirun.openmpi (OpenRTE) 4.1.4", "Open MPI", 4),
        ("prterun (PRRTE) 3.0.12", "Open MPI", 0),
        (HYDRA_HOST, "MPICH", 4),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 2023", "MPICH", 2021),
        ("slurm-wlm 22.05.8", "Slurm", 22),
        ("srun: slurm 24.05, --mpi=openmpi", "Slurm", 24),
        ("something else 9.9", "", 0),
    ],
)
def test_what_launchers_say_of_themselves(said: str, family: str, major: int) -> None:
    host = host_library({"HPC_AMP_HOST_MPI": said, "OMPI_VERSION": "1.0"})

    assert (host.family, host.major) == (family, major)
