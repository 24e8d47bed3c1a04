"""`hpc-amp container`: get images and inspect them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from hpc_amp.cli.options import json_option
from hpc_amp.errors import to_type

if TYPE_CHECKING:
    from hpc_amp.config.site import Site
    from hpc_amp.containers import Container
    from hpc_amp.containers.inspect import ImageFacts

F = TypeVar("F", bound=Callable[..., Any])

output_option = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write to this file. Default: print to standard output.",
)
force_option = click.option("--force", is_flag=True, help="Replace an existing file.")
bind_point_option = click.option(
    "--bind-point",
    "bind_points",
    multiple=True,
    metavar="PATH",
    help="Create this folder in the image, so that a file system can be bound there. May be "
    "repeated; replaces the default list.",
)
base_option = click.option(
    "--base",
    metavar="URI|PATH",
    help="Start from this image: docker://..., docker-archive://FILE, oras://..., a local .sif "
    "file or a sandbox folder.",
)


def _making_options(command: F) -> F:
    """Add the options of the commands that make an image."""
    folder = click.Path(path_type=Path)
    for option in (
        click.option(
            "--arg",
            "args",
            multiple=True,
            metavar="OPTION",
            help="Pass this option to the container runtime: --arg=--no-https. May be repeated.",
        ),
        click.option(
            "--size",
            metavar="SIZE",
            help="Expected size of the image, such as 12GiB; used to check the free space.",
        ),
        click.option("--cache-dir", type=folder, help="Keep downloads in this folder."),
        click.option(
            "--tmp-dir",
            type=folder,
            help="Folder for temporary files. Default: the folder of the new image.",
        ),
        click.option(
            "--site",
            "site_name",
            default="auto",
            metavar="NAME",
            help="Use proxies, --fakeroot and the container runtime of this site. Default: the "
            "site of this machine.",
        ),
    ):
        command = option(command)
    return command


@click.group(no_args_is_help=False)
def container() -> None:
    """Pull, build and inspect container images.

    \b
    To get NVIDIA's PyTorch image:
      hpc-amp container pull docker://nvcr.io/nvidia/pytorch:25.06-py3
      hpc-amp container inspect pytorch_25.06-py3.sif
    """


# ---- def -----------------------------------------------------------------------------------------


@container.group("def")
def definition() -> None:
    """Write a definition file for `container build`."""


@definition.command()
@click.option(
    "--tag",
    default="25.06-py3",
    show_default=True,
    help="Release of the image: see hpc-amp container list. 25.06 is the last one with CUDA 12.",
)
@click.option("--digest", metavar="sha256:...", help="Use exactly this build of the release.")
@base_option
@click.option("--mpi4py", is_flag=True, help="Add mpi4py, for your own programs that use MPI.")
@click.option(
    "--pip",
    "packages",
    multiple=True,
    metavar="PACKAGE",
    help="Install this Python package. If it would replace NVIDIA's torch, the build fails. May be "
    "repeated.",
)
@bind_point_option
@output_option
@force_option
def ngc(
    tag: str,
    digest: str | None,
    base: str | None,
    mpi4py: bool,
    packages: tuple[str, ...],
    bind_points: tuple[str, ...],
    output: Path | None,
    force: bool,
) -> None:
    """Define NVIDIA's PyTorch image with additional packages."""
    from hpc_amp.containers.apptainer import definition as definitions
    from hpc_amp.containers.ngc import OLDEST_TORCH, table

    place, name = definitions.ngc_base(tag, digest)
    words = ["ngc", "--tag", tag]
    for option, value in (("--digest", digest), ("--base", base)):
        words += [option, value] if value else []
    words += ["--mpi4py"] if mpi4py else []
    for package in packages:
        words += ["--pip", package]
    row = table().find(tag) if base is None else None
    if row is not None and not row.trains:
        oldest = ".".join(map(str, OLDEST_TORCH))
        _say(f"release {row.release} has torch {row.torch}; built-in training needs {oldest}")
    text = definitions.ngc(
        definitions.Definition(
            base=base or place,
            name=None if base else name,
            bind_points=bind_points or definitions.BIND_POINTS,
            mpi4py=mpi4py,
            packages=packages,
            command=shlex.join(_with_points(words, bind_points)),
        )
    )
    _write(text, output, force=force)


@definition.command()
@base_option
@click.option(
    "--mirror",
    metavar="URL",
    help="Install from this Debian mirror. Default: the mirror of the base image.",
)
@click.option("--mpi4py", is_flag=True, help="Add mpi4py and the library of Open MPI.")
@click.option(
    "--apt",
    "packages",
    multiple=True,
    metavar="PACKAGE",
    help="Install this Debian package. May be repeated.",
)
@bind_point_option
@output_option
@force_option
def debian(
    base: str | None,
    mirror: str | None,
    mpi4py: bool,
    packages: tuple[str, ...],
    bind_points: tuple[str, ...],
    output: Path | None,
    force: bool,
) -> None:
    """Define a small image for CPUs from Debian packages."""
    from hpc_amp.containers.apptainer import definition as definitions

    words = ["debian"]
    for option, value in (("--base", base), ("--mirror", mirror)):
        words += [option, value] if value else []
    words += ["--mpi4py"] if mpi4py else []
    for package in packages:
        words += ["--apt", package]
    text = definitions.debian(
        definitions.Definition(
            base=base or f"docker://{definitions.DEBIAN_IMAGE}",
            bind_points=bind_points or definitions.BIND_POINTS,
            mpi4py=mpi4py,
            packages=packages,
            mirror=mirror,
            command=shlex.join(_with_points(words, bind_points)),
        )
    )
    _write(text, output, force=force)


def _with_points(words: list[str], bind_points: Sequence[str]) -> list[str]:
    for point in bind_points:
        words += ["--bind-point", point]
    return words


def _write(text: str, output: Path | None, *, force: bool) -> None:
    from hpc_amp.errors import UsageError

    if output is None:
        click.echo(text.encode(), nl=False)
        return
    try:
        with output.open("w" if force else "x") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(f"{output} already exists", hint="use --force to replace it") from None
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from None
    build = to_type("container", "build", output, f"{output.stem}.sif")
    click.echo(f"wrote {output}; next: {build}")


# ---- build and pull ------------------------------------------------------------------------------


@container.command()
@click.argument("definition_file", metavar="DEFINITION", type=click.Path(path_type=Path))
@click.argument("image", type=click.Path(path_type=Path))
@click.option(
    "--fakeroot/--no-fakeroot",
    default=None,
    help="Build with --fakeroot. Default: only if container_args of the site contain it.",
)
@force_option
@_making_options
def build(
    definition_file: Path, image: Path, fakeroot: bool | None, site_name: str, **making: Any
) -> None:
    """Build IMAGE from a definition file.

    The free space is checked first. Temporary files and caches are kept out of your home folder and
    out of file systems in memory. IMAGE appears only when it is complete.
    """
    making |= {"size": _bytes(making["size"]), "fakeroot": fakeroot}
    making |= {"definition": definition_file, "image": image}
    site, runtime = _site_and_runtime(site_name)
    made = _interruptible(lambda: runtime.build(site=site, say=_say, **making))
    _done(made)


@container.command()
@click.argument("uri")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--arch",
    help="Architecture of the nodes, such as arm64. Default: the architecture of this machine.",
)
@force_option
@_making_options
def pull(uri: str, file: Path | None, arch: str | None, site_name: str, **making: Any) -> None:
    """Pull an image from docker://, oras://, library:// or https://.

    NVIDIA's public images need no login. Set NGC_API_KEY for NVIDIA's private images, and
    APPTAINER_DOCKER_USERNAME and APPTAINER_DOCKER_PASSWORD for other registries. hpc-amp does not
    store these values.
    """
    making |= {"size": _bytes(making["size"]), "architecture": _architecture(arch)}
    making |= {"uri": uri, "image": file}
    site, runtime = _site_and_runtime(site_name)
    made = _interruptible(lambda: runtime.pull(site=site, say=_say, **making))
    _done(made)


def _done(image: Path) -> None:
    click.echo(f"{image}\nnext: {to_type('container', 'inspect', image)}")


def _architecture(name: str | None) -> str | None:
    """The name that container runtimes use; `name` may be in the form of `uname -m`."""
    from hpc_amp.errors import UsageError

    names = {"x86_64": "amd64", "aarch64": "arm64"}
    name = names.get(name, name) if name else None
    if name not in (None, "amd64", "arm64", "ppc64le", "386", "arm", "s390x", "riscv64"):
        raise UsageError(f"--arch: {name!r} is not an architecture", hint="use amd64 or arm64")
    return name


def _bytes(size: str | None) -> float | None:
    from hpc_amp.config.units import parse_size
    from hpc_amp.errors import UsageError

    if size is None:
        return None
    try:
        return parse_size(size)
    except ValueError as error:
        raise UsageError(f"--size: {error}") from None


def _site_and_runtime(name: str) -> tuple[Site, Container]:
    from hpc_amp.config.sites import find_site
    from hpc_amp.containers import image_runtime

    site = find_site(name)
    return site, image_runtime(site)


def _interruptible(work: Callable[[], Path]) -> Path:
    try:
        return work()
    except KeyboardInterrupt:
        _say("stopped; no image was made")
        raise SystemExit(130) from None


def _say(text: str) -> None:
    click.echo(f"hpc-amp: {text}", err=True)
    sys.stderr.flush()


# ---- inspect -------------------------------------------------------------------------------------


@container.command()
@click.argument("image")
@json_option
def inspect(image: str, as_json: bool) -> None:
    """Show what an image contains and what it lacks."""
    from hpc_amp.config.sites import find_site
    from hpc_amp.containers import image_runtime
    from hpc_amp.containers.inspect import inspect_image

    report = inspect_image(image, image_runtime(find_site("auto")))
    if as_json:
        click.echo(json.dumps(report.to_plain(), indent=1))
    else:
        click.echo(_describe(report))


def _describe(report: ImageFacts) -> str:
    from hpc_amp.containers.inspect import SUPPORT
    from hpc_amp.containers.storage import gib

    size = f", {gib(report.size)}" if report.size is not None else ""
    release = f", NGC {report.ngc_release}" if report.ngc_release else ""
    rows = [
        ("image", f"{report.image} ({report.kind}{size}{release})"),
        ("architecture", f"{report.architecture or 'unknown'} (this machine: {report.machine})"),
    ]
    if report.looked_inside:
        driver = "-"
        if report.driver_floor:
            native = report.driver_native or "unknown"
            driver = f"made for {native}, works with {report.driver_floor} or newer"
        here = report.driver_here or "no NVIDIA driver, as on most login nodes"
        if report.driver_support:
            here += f": it runs {SUPPORT[report.driver_support]}"
        rows += [
            ("python", report.python or "-"),
            ("torch", report.torch or "-"),
            ("torchvision", report.torchvision or "-"),
            ("cuda", report.cuda or "-"),
            ("cudnn", report.cudnn or "-"),
            ("nccl", report.nccl or "-"),
            ("open mpi", report.openmpi or "-"),
            ("mpi4py", report.mpi4py or "-"),
            ("tensorboard", report.tensorboard or "-"),
            ("c library", report.libc or "-"),
            ("driver", driver),
            ("driver here", here),
        ]
    base = report.labels.get("org.hpc-amp.base")
    if base:
        rows.append(("made from", base))
    lines = [f"{name:<13} {value}" for name, value in rows]
    if report.masks:
        lines.append("sets itself   " + " ".join(report.masks))
        lines.append(
            "              container.env of a job and env of a site can change these variables, "
            "setup cannot"
        )
    lines += [f"{name:<13} {text}" for name, text in report.traps.items()]
    for lack in report.lacks:
        title = "lacks" if lack.needed else "not included"
        lines.append(f"{title:<13} {lack.what}: {lack.why}")
    verdict = {True: "hpc-amp can train in it", False: "hpc-amp cannot train in it"}
    if report.usable is not None:
        lines.append(verdict[report.usable])
    return "\n".join(lines)


# ---- list ----------------------------------------------------------------------------------------


@container.command("list")
@click.option(
    "--torch", metavar="VERSION", help="Show only images with this version of torch, such as 2.6."
)
@click.option(
    "--driver",
    metavar="VERSION",
    help="Show how well this NVIDIA driver supports each image: 535, or the version that "
    "nvidia-smi prints.",
)
@json_option
def list_releases(torch: str | None, driver: str | None, as_json: bool) -> None:
    """List NVIDIA's PyTorch images with torch, CUDA and driver.

    The newest image is first. If the driver is known, images that work with it come before the
    others. Default of --driver: the driver of this machine, if it has one.
    """
    from dataclasses import asdict

    from hpc_amp.containers import ngc as releases
    from hpc_amp.containers.inspect import driver_here

    table = releases.table()
    numbers = releases.check_torch(torch) if torch else ()
    driver = releases.check_driver(driver) if driver else driver_here()
    ordered = releases.best_first(
        [row for row in table.releases if releases.version(row.torch)[: len(numbers)] == numbers],
        driver,
    )
    rows: list[dict[str, Any]] = [
        {
            **asdict(row),
            "image": row.image,
            "trains": row.trains,
            "support": row.support(driver) if driver else None,
        }
        for row in ordered
    ]
    best = releases.recommended(ordered, driver)
    if as_json:
        facts = {
            "date": table.date,
            "driver": driver,
            "recommended": best and best.image,
            "sources": table.sources,
            "releases": rows,
        }
        click.echo(json.dumps(facts, indent=1))
        return
    click.echo(_release_table(rows, with_support=driver is not None))
    if best is not None:
        reason = f"for driver {driver}" if driver else "the newest; see --driver for your nodes"
        click.echo(f"\nrecommended ({reason}): hpc-amp container pull docker://{best.image}")
    elif driver is not None:
        click.echo(f"\nno image in this table is known to work with driver {driver} and to train")
    click.echo(
        f"\nAs of {table.date}.\nmade for: the driver version that the image was made for\n"
        "from: the oldest driver version that works, by CUDA's minor-version compatibility\n"
        "?: not confirmed, -: not known, *: this torch is too old for built-in training (2.1)\n"
        "Sources:"
    )
    for source in table.sources:
        click.echo(f"  {source}")
    if driver is not None:
        click.echo(
            "native, minor-version: the image works with this driver\n"
            "forward: it works on data-centre GPUs only, with the driver libraries in the image\n"
            "too-old: it does not work\n"
            "unknown: no source says which older drivers work"
        )


def _release_table(rows: list[dict[str, Any]], *, with_support: bool) -> str:
    from hpc_amp.campaigns.tables import Table, as_text

    titles = ["release", "torch", "cuda", "made for", "from", "open mpi", "source"]
    keys = ["release", "torch", "cuda", "driver", "floor", "openmpi", "source"]
    if with_support:
        titles.insert(5, "support")
        keys.insert(5, "support")
    cells = []
    for row in rows:
        line = []
        for key in keys:
            cell = str(row[key] or "-")
            if key in row["unverified"]:
                cell += "?"
            if key == "torch" and not row["trains"]:
                cell += "*"
            line.append(cell)
        cells.append(tuple(line))
    return "\n".join(as_text(Table(tuple(titles), tuple(cells), words=frozenset(titles))))
