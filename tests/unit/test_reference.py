"""docs/config.md and docs/sites.md: current, complete, and with examples that work."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from hpc_amp.config.fabric import Fabric, fabric_files
from hpc_amp.config.keys import keys_of
from hpc_amp.config.load import load_job
from hpc_amp.config.reference import (
    BEGIN,
    END,
    END_OF_FABRICS,
    FABRICS,
    fabrics_as_markdown,
    keys_as_markdown,
    main,
    with_keys,
)
from hpc_amp.config.schema import Job
from hpc_amp.config.site import Site
from hpc_amp.config.sites import load_site, site_files
from hpc_amp.config.values import at_least

DOCS = Path(__file__).parents[2] / "docs"


@dataclass(kw_only=True)
class Inner:
    """A section."""

    SHORTHAND = "size"

    size: Annotated[int, at_least(2)] = 3
    """How large; `a|b`."""


@dataclass(kw_only=True)
class Outer:
    """Everything."""

    name: str
    """A name
    in two lines."""
    mode: Literal["a", "b", "c"] = "a"
    """A choice."""
    inner: Inner = field(default_factory=Inner)
    """More."""
    parts: list[float] = field(default_factory=lambda: [0.5, 2.0])
    """Parts."""
    note: str | None = None
    """A note."""


def test_tables_say_all_about_a_key():
    assert (
        keys_as_markdown(Outer)
        == """\
### Top level

Everything.

| Key | Type | Default | Meaning |
|---|---|---|---|
| `name` | text | *required* | A name in two lines. |
| `mode` | `a`, `b` or `c` | `a` | A choice. |
| `inner` | [section](#inner) |  | More. |
| `parts` | list of numbers | `[0.5, 2]` | Parts. |
| `note` | text | `null` | A note. |

### `inner`

A section.

Short form: `inner: X` means `inner: {size: X}`.

| Key | Type | Default | Meaning |
|---|---|---|---|
| `size` | whole number, at least 2 | `3` | How large; `a\\|b`. |"""
    )


def test_only_what_is_between_the_marks_is_replaced():
    made = with_keys(f"before\n{BEGIN}\nold\n{END}\nafter\n", Outer)
    assert made.startswith(f"before\n{BEGIN}\n\n### Top level")
    assert made.endswith(f"|\n\n{END}\nafter\n") and "old" not in made
    assert with_keys(made, Outer) == made
    with pytest.raises(ValueError, match="it needs the lines"):
        with_keys("no marks", Outer)


def test_documents_are_written_and_checked(tmp_path, capsys):
    for name in ("config.md", "sites.md"):
        (tmp_path / name).write_text(f"{BEGIN}\n{END}\n{FABRICS}\n{END_OF_FABRICS}\n")
    assert main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err == (
        f"{tmp_path}/config.md is out of date: run python -m hpc_amp.config.reference\n"
    )
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    assert "`skip_directives`" in (tmp_path / "sites.md").read_text()
    assert "`slingshot`: " in (tmp_path / "sites.md").read_text()
    assert "`slingshot`: " not in (tmp_path / "config.md").read_text()
    (tmp_path / "sites.md").unlink()
    assert main([], tmp_path) == 1
    assert "sites.md" in capsys.readouterr().err


def test_the_documents_are_current():
    assert main(["--check"], DOCS) == 0


def test_the_table_of_fabric_profiles(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "description: Net\nsource: us\nenv: {A: 1, B: '2'}\nmulti_node_env: {C: x y}\n"
    )
    (tmp_path / "b.yaml").write_text("description: Other\nsource: us\n")
    lines = fabrics_as_markdown(tmp_path).splitlines()
    assert lines[:4] == [
        "| Profile | In every job | In jobs on several nodes |",
        "|---|---|---|",
        "| `a`: Net | `A=1`<br>`B=2` | `C=x y` |",
        "| `b`: Other |  |  |",
    ]
    assert lines[7].startswith("| Key |") and len(lines) == 9 + len(keys_of(Fabric))


def test_the_documents_list_every_site_and_profile_that_ships():
    text = (DOCS / "sites.md").read_text()
    for name in site_files():
        assert re.search(rf"^\| `{name}` \|", text, re.MULTILINE), name
    for name in fabric_files():
        assert f"| `{name}`: " in text, name


@pytest.mark.parametrize("root", [Job, Site])
def test_every_key_is_documented(root):
    text = keys_as_markdown(root)
    for name in keys_of(root):
        assert re.search(rf"^\| `{name}` \| .+ \| .* \| \S.+ \|$", text, re.MULTILINE), name


def examples(document, language="yaml"):
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / document).read_text(), re.M | re.S)


@pytest.mark.parametrize("text", examples("config.md"))
def test_the_example_jobs_are_valid(tmp_path, text):
    (tmp_path / "job.yaml").write_text(text)
    load_job(tmp_path / "job.yaml")


def test_the_example_site_is_valid(tmp_path):
    *_, text = examples("sites.md")  # the first one is a part of a draft
    (tmp_path / "summit-lake.yaml").write_text(text)
    site = load_site(tmp_path / "summit-lake.yaml")
    assert site.gpu_type == "a100" and site.defaults.entries


def test_the_error_in_the_introduction_is_the_real_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("configs").mkdir()
    Path("configs/mine.yaml").write_text("\n" * 5 + "train:\n  batchsize: 3\n")
    with pytest.raises(Exception) as caught:
        load_job(Path("configs/mine.yaml"))
    assert f"{caught.value}\n" in examples("config.md", "")


def test_the_overrides_in_the_introduction_are_valid():
    table = (DOCS / "config.md").read_text().partition("| Argument | Meaning |")[2]
    rows = re.findall(r"^\| `([^`]+)` \|", table.partition("\n\n")[0], re.MULTILINE)
    assert len(rows) == 8
    job = DOCS.parent / "configs" / "cifar_resnet.yaml"
    for row in rows[:-1]:
        load_job(job, [row])
    assert load_job(job, ["train=null", "run=[python, train.py]"]).job.train is None
