"""Fixtures for all tests."""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

# Threads of OpenMP wait for each other in busy loops. Beside other parts of the tests, on the same
# cores, they cost five times the time of one thread. To be set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from support import cluster as test_cluster
from support.environment import in_ci
from support.stubs import StubHost
from support.warm import FIXED, Warm
from support.warm_python import WarmPython

# Nothing of what the tests are collected into is garbage, and there are ten thousand of them.
gc.disable()

# A shell lets what it starts in the background ignore Ctrl-C, and all that the tests start inherits
# that: `tests/run` runs parts of the tests so.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="Rewrite tests/golden from what is rendered."
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow image of tests/cluster/test_containers.py is built early by a part of `make test`
    that does not use Slurm, and so is there when the part that does needs it, at its end.

    The parts look for their tests where they can be: the one that uses Slurm in tests/cluster, the
    others that mostly wait in the files that name their marks."""
    text = functools.cache(Path.read_text)
    for item in items:
        if item.get_closest_marker("slurm") and item.path.parent.name != "cluster":
            raise pytest.UsageError(f"{item.nodeid} uses Slurm: it belongs into tests/cluster")
        for mark in ("cluster", "ranks", "standin"):
            if item.get_closest_marker(mark) and f"mark.{mark}" not in text(item.path):
                raise pytest.UsageError(
                    f"{item.nodeid} has the mark {mark}, which its file has not"
                )

    def turn(item: pytest.Item) -> int:
        if item.path.name != "test_containers.py":
            return 1
        return 2 if item.get_closest_marker("slurm") else 0

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """From now on there is garbage. The collector need not look at the tests, and at torch."""
    gc.freeze()
    gc.enable()


def pytest_keyboard_interrupt() -> None:
    """Python would wait for threads at its end. For one of a pool it would do so for ever, if the
    interrupt came while the thread began: then the pool does not know that it has it to end."""
    threading._shutdown = lambda: None  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The folders that the tests use are not recorded in the state folder of the user."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> test_cluster.Cluster:
    """The running test cluster. Without one: a failure in CI or with HPC_AMP_REQUIRE_CLUSTER=1,
    else a skip."""
    reason = test_cluster.complaints()
    if reason is None:
        return test_cluster.connect(tmp_path_factory.mktemp("home"))
    if in_ci() or os.environ.get("HPC_AMP_REQUIRE_CLUSTER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def _impatient(cluster: test_cluster.Cluster) -> Iterator[None]:
    """Jobs of Slurm do not wait longer than they have to."""
    with test_cluster.requeued_jobs_start_soon(cluster):
        yield


@pytest.fixture(autouse=True)
def _cluster_where_marked(request: pytest.FixtureRequest) -> None:
    """A test that is marked needs the cluster, whether it asks for the fixture or not."""
    if request.node.get_closest_marker("cluster"):
        request.getfixturevalue("cluster")
    if request.node.get_closest_marker("slurm"):
        request.getfixturevalue("_impatient")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder that is not in memory, where `tmp_path` may be."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder).resolve()


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The messages that the test logs, from warnings on."""
    messages: list[str] = []

    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logging.getLogger().addHandler(handler := Note(logging.WARNING))
    yield messages
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On a busy machine, the threads of a small network wait for each other most of the time."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def seed_zero() -> None:
    """Random numbers of torch begin anew."""
    import torch

    torch.manual_seed(0)


@pytest.fixture
def host(tmp_path: Path) -> StubHost:
    """A machine whose schedulers and containers are stubs."""
    return StubHost(tmp_path / "host")


@pytest.fixture(scope="session")
def warm(warm_pythons: WarmPython) -> Iterator[Warm]:
    """Runs programs with torch, without the seconds in which they would import it."""
    made = Warm("torch", FIXED, warm_pythons.fork)
    yield made
    made.close()


@pytest.fixture(scope="session")
def warm_pythons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """Makes Pythons for jobs on this machine, whose trainings do without those seconds, too."""
    made = WarmPython(tmp_path_factory.mktemp("warm"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def warm_python(warm_pythons: WarmPython) -> Path:
    """Such a Python."""
    return warm_pythons.python


@pytest.fixture(scope="session")
def warm_cluster(
    cluster: test_cluster.Cluster, warm_pythons: WarmPython, warm_python: Path
) -> test_cluster.Cluster:
    """The cluster with that Python in its containers."""
    folders = [str(warm_python.parents[1]), str(warm_pythons.home)]
    return dataclasses.replace(cluster, binds=[*cluster.binds, *folders], python=str(warm_python))


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
