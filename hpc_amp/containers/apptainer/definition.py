"""Render definition files from the templates in `containers`.

The templates of definition files themselves (`%arguments`, `{{ }}`) are not used: Apptainer has
them since 1.2, SingularityCE later, Singularity never. A rendered file can also be read, tested and
kept. Text reaches the shell code of a definition through `hpc_amp.jobs.shell`, as in launch
scripts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpc_amp import __version__
from hpc_amp.containers.ngc import REPOSITORY
from hpc_amp.errors import UsageError
from hpc_amp.jobs.shell import ShellText, only_shell, quote, verbatim, words
from hpc_amp.resources import resource_folder

BIND_POINTS = (
    *("/data", "/eagle", "/flare", "/global", "/gpfs", "/grand", "/lus", "/lustre"),
    *("/project", "/projects", "/pscratch", "/scratch", "/work"),
)
DEFAULT_TAG = "25.06-py3"
SUITE = "trixie"
DEBIAN_IMAGE = f"debian:{SUITE}-slim"
_DEBIAN_PACKAGES = ("python3", "python3-torch", "python3-torchvision")

# The values of Bootstrap in the header of a definition.
_BOOTSTRAPS = ("docker", "docker-archive", "oci", "oci-archive", "oras", "library", "localimage")
_REFERENCE = r"[A-Za-z0-9][A-Za-z0-9._/:@-]*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The options of a definition file."""

    base: str
    """The base image: `docker://...`, another transport, or the path of an image."""
    name: str | None = None
    """The name of the base in the image's label. Default: `base`."""
    bind_points: Sequence[str] = BIND_POINTS
    mpi4py: bool = False
    packages: Sequence[str] = field(default_factory=list)
    """Further packages: pip's for NGC, Debian's for Debian."""
    mirror: str | None = None
    """Debian: the package archive to use. Default: that of the base image."""
    command: str = ""
    """The arguments of `hpc-amp container def`, for a comment at the beginning of the file."""
    version: str = __version__


def ngc(definition: Definition) -> str:
    """Render a definition that is based on NVIDIA's PyTorch. Raises UsageError for a wrong
    option."""
    packages = [*(["mpi4py>=4.1"] if definition.mpi4py else []), *definition.packages]
    for package in packages:
        _check_pip(package)
    title = "NVIDIA's PyTorch" + (" with mpi4py" if definition.mpi4py else "")
    stem = "ngc-pytorch" + ("-mpi4py" if definition.mpi4py else "")
    return _render(definition, stem, title, packages, template="ngc-pytorch", cuda=True)


def debian(definition: Definition) -> str:
    """Render a small definition without CUDA, with Debian's packages. Raises UsageError for a wrong
    option."""
    packages = [*_DEBIAN_PACKAGES, *(["python3-mpi4py"] if definition.mpi4py else [])]
    packages += definition.packages
    for package in packages:
        if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]*(=[A-Za-z0-9.+~:-]+)?", package):
            raise UsageError(
                f"--apt: {package!r} is not the name of a Debian package",
                hint="write name or name=version",
            )
    if definition.mirror is not None and not re.fullmatch(
        r"https?://[A-Za-z0-9._~:/%@\[\]-]+", definition.mirror
    ):
        raise UsageError(
            f"--mirror: {definition.mirror!r} is not the address of an archive",
            hint="write it as in sources.list: http://deb.debian.org/debian",
        )
    if definition.mirror is not None and "@" in definition.mirror:
        raise UsageError(
            "--mirror: the address has a user or a password, which would stay in the image",
            hint="use an archive that needs none",
        )
    title = f"PyTorch for CPUs from Debian's packages ({SUITE})"
    return _render(definition, "debian-cpu", title, packages, template="debian-cpu", cuda=False)


def ngc_base(tag: str, digest: str | None) -> tuple[str, str]:
    """`base` and `name` of a `Definition` for a tag of NVIDIA's PyTorch, and its digest if it is
    given. Raises UsageError if one of them is wrong."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", tag):
        raise UsageError(f"--tag: {tag!r} is not a tag", hint="write one such as 25.06-py3")
    if re.fullmatch(r"\d\d\.\d\d", tag):
        tag += "-py3"
    if digest is None:
        return f"docker://{REPOSITORY}:{tag}", f"{REPOSITORY}:{tag}"
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise UsageError(
            f"--digest: {digest!r} is not a digest", hint="write sha256: and 64 hexadecimal digits"
        )
    return f"docker://{REPOSITORY}@{digest}", f"{REPOSITORY}:{tag}@{digest}"


def _check_pip(package: str) -> None:
    """Raise UsageError if the text is not a requirement of one package, or if the package would
    replace one of the image."""
    match = re.fullmatch(
        r"([A-Za-z0-9][A-Za-z0-9._-]*)(\[[A-Za-z0-9,._-]+\])? *([<>=!~][A-Za-z0-9.,*+!<>=~ -]+)?",
        package,
    )
    if match is None:
        raise UsageError(
            f"--pip: {package!r} is not a package",
            hint="write a name, with a version if it matters: 'wandb>=0.17'",
        )
    if match[1].lower().replace("_", "-") in ("torch", "torchvision", "torchaudio", "triton"):
        raise UsageError(
            f"--pip: {match[1]} comes with the image, as NVIDIA built it",
            hint="choose another --tag for another version",
        )


def _render(
    definition: Definition,
    stem: str,
    title: str,
    packages: Sequence[str],
    *,
    template: str,
    cuda: bool,
) -> str:
    bootstrap, reference = _header(definition.base)
    for point in definition.bind_points:
        if not re.fullmatch(r"/[A-Za-z0-9._/-]+", point) or ".." in point.split("/"):
            raise UsageError(f"--bind-point: {point!r} is not an absolute path of plain letters")
    import jinja2  # only to write a definition

    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_folder("containers")),
        undefined=jinja2.StrictUndefined,
        finalize=only_shell,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return templates.get_template(f"{template}.def.j2").render(
        bootstrap=verbatim(bootstrap),
        **{"from": verbatim(reference)},
        base=_one_line(definition.name or reference),
        title=verbatim(title),
        kind=verbatim(stem),
        stem=verbatim(stem),
        file=verbatim(f"{stem}.def"),
        command=_one_line(definition.command),
        version=verbatim(definition.version),
        mpi4py=definition.mpi4py,
        cuda=cuda,
        bind_points=words(sorted(set(definition.bind_points))),
        packages=words(packages),
        mirror=quote(definition.mirror) if definition.mirror else None,
        suite=verbatim(SUITE),
    )


def _one_line(text: str) -> ShellText:
    """Text for a comment. Raises UsageError if it has several lines or contains `{{`, which
    Apptainer would read as a template."""
    if "\n" in text or "{{" in text:
        raise UsageError("an option has a newline or {{ in it; a definition cannot contain these")
    return verbatim(text)


def _header(base: str) -> tuple[str, str]:
    """The values of Bootstrap and From for a base. Raises UsageError if it is wrong."""
    transport, separator, reference = base.partition("://")
    if not separator:
        transport, reference = "localimage", base
        if (
            not re.fullmatch(r"[A-Za-z0-9._/+~-][A-Za-z0-9._/+~@,=: -]*", base)
            or base != base.strip()
        ):
            raise UsageError(
                f"--base: a definition file cannot contain {base!r}",
                hint="use a path without special characters",
            )
    elif transport.endswith("-archive") or transport == "oci":
        if not re.fullmatch(r"[A-Za-z0-9._/+~:-]+", reference):
            raise UsageError(f"--base: a definition file cannot contain {base!r}")
    elif not re.fullmatch(_REFERENCE, reference) or "@" in reference.partition("@sha256:")[0]:
        raise UsageError(
            f"--base: {base!r} is not the reference of an image",
            hint="write docker://registry/name:tag",
        )
    if transport not in _BOOTSTRAPS:
        raise UsageError(
            f"--base: no definition can begin with {transport}://",
            hint=f"use one of {', '.join(f'{name}://' for name in _BOOTSTRAPS[:-1])} or a path",
        )
    return transport, reference
