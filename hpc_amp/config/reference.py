"""Generate the tables of all keys in `docs/config.md` and `docs/sites.md` from the schema, and the
table of the shipped fabric profiles.

    python -m hpc_amp.config.reference            # writes both documents
    python -m hpc_amp.config.reference --check    # exits with 1 if a document is out of date
    python -m hpc_amp.config.reference --task my_package.tasks:Segmentation CODE_FOLDER

Only the text between two marks is replaced. The rest of both documents is written by hand.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from hpc_amp.config import units
from hpc_amp.config.fabric import Fabric, load_fabric
from hpc_amp.config.keys import Key, keys_of
from hpc_amp.config.schema import Job, Train
from hpc_amp.config.site import Site
from hpc_amp.config.tree import MappingNode
from hpc_amp.config.values import run_name
from hpc_amp.documents import with_part
from hpc_amp.resources import resource_folder
from hpc_amp.tasks.registry import TASKS, TaskError, config_class

BEGIN = "<!-- keys: made by `python -m hpc_amp.config.reference` from the schema -->"
END = "<!-- end of keys -->"
FABRICS = BEGIN.replace("keys:", "fabrics:").replace("the schema", "configs/fabrics")
END_OF_FABRICS = END.replace("keys", "fabrics")
DOCUMENTS: dict[str, type] = {"config.md": Job, "sites.md": Site}

# The name of a type by its check. The bounds of checks such as `at_least(1)` are shown as they are.
_CHECKED: dict[Callable[[Any], object], str] = {
    units.parse_duration: "[duration](config.md#units)",
    units.parse_interval: "[interval](config.md#units)",
    units.parse_size: "[size](config.md#units)",
    run_name: "name",
}
_WORDS: dict[Any, tuple[str, str]] = {
    str: ("text", "texts"),
    int: ("whole number", "whole numbers"),
    float: ("number", "numbers"),
    bool: ("true or false", "booleans"),
    MappingNode: ("mapping", "mappings"),
}


def keys_as_markdown(root: type) -> str:
    """The tables of all keys of a schema class and of its sections, as Markdown. For `Job`, the
    tables of the keys that each task of this package adds follow."""
    tables = list(_sections(root, ""))
    if root is Job:
        for name in TASKS.own():
            tables += task_as_markdown(name)
    return "\n\n".join(tables)


def task_as_markdown(name: str, code: Path | None = None) -> list[str]:
    """The tables of the keys that a task adds to `train`, as Markdown. `code` is the folder of the
    user's own modules. Raises TaskError if the task cannot be used."""
    config = config_class(name, code)
    own = {key for key in keys_of(config) if key not in keys_of(Train)}
    if not own:
        return []
    unused = ", ".join(f"`{key}`" for key in config.UNUSED)
    lines = [f"### `train` of the task `{name}`", "", inspect.cleandoc(config.__doc__ or "")]
    if unused:
        lines += ["", f"It does not use {unused}."]
    several = _names_of_several_tasks()
    owners = {key: f" of `{name}`" for key in own if key in several and name in TASKS.own()}
    tables = ["\n".join([*lines, "", *_table(config, "train", own, owners)])]
    for key in keys_of(config).values():
        if key.name in own and key.is_section:
            tables += _sections(key.type, f"train.{key.name}", owners.get(key.name, ""))
    return tables


def _names_of_several_tasks() -> set[str]:
    """The keys that more than one task of this package adds, such as `images`: headings say of
    which task they are."""
    counts = Counter(key for name in TASKS.own() for key in keys_of(config_class(name)))
    return {key for key, count in counts.items() if count > 1 and key not in keys_of(Train)}


def fabrics_as_markdown(folder: Path) -> str:
    """The table of the fabric profiles in a folder and the table of a profile's keys, as
    Markdown."""
    lines = ["| Profile | In every job | In jobs on several nodes |", "|---|---|---|"]
    for path in sorted(folder.glob("*.yaml"), key=lambda path: path.stem):
        fabric = load_fabric(path)
        cells = [f"`{fabric.name}`: {fabric.description}"]
        for settings in (fabric.env, fabric.multi_node_env):
            cells.append("<br>".join(f"`{name}={value}`" for name, value in settings.items()))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", "The keys of a profile:", "", *_table(Fabric, "")])


def with_keys(document: str, root: type) -> str:
    """Replace the text between the marks of a document by the tables of all keys. Raises ValueError
    if the document has no marks."""
    return with_part(document, BEGIN, END, keys_as_markdown(root))


def with_fabrics(document: str) -> str:
    """Replace the text between the marks of a document by the shipped fabric profiles. Raises
    ValueError if the document has no marks."""
    made = fabrics_as_markdown(resource_folder("configs") / "fabrics")
    return with_part(document, FABRICS, END_OF_FABRICS, made)


def main(arguments: Sequence[str], folder: Path) -> int:
    """Write the documents in `folder`, check them (`--check`), or print the keys of a task
    (`--task`). Returns the exit code."""
    if "--task" in arguments:
        name, *rest = arguments[arguments.index("--task") + 1 :]
        try:
            print("\n\n".join(task_as_markdown(name, Path(rest[0]) if rest else None)))
        except TaskError as error:
            print(error, file=sys.stderr)
            return 2
        return 0
    for name, root in DOCUMENTS.items():
        path = folder / name
        try:
            present = path.read_text(encoding="utf-8")
            wanted = with_keys(present, root)
            if root is Site:
                wanted = with_fabrics(wanted)
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        if wanted == present:
            continue
        if "--check" in arguments:
            print(f"{path} is out of date: run {BEGIN.split('`')[1]}", file=sys.stderr)
            return 1
        path.write_text(wanted, encoding="utf-8")
    return 0


def _sections(section: type, path: str, owner: str = "") -> Iterator[str]:
    """Yield the Markdown of a section, then of its subsections."""
    yield _section(section, path, owner)
    for key in keys_of(section).values():
        if key.is_section:
            yield from _sections(key.type, _below(path, key.name), owner)


def _section(section: type, path: str, owner: str) -> str:
    heading = f"`{path}`{owner}" if path else "Top level"
    lines = [f"### {heading}", "", inspect.cleandoc(section.__doc__ or "")]
    shorthand = getattr(section, "SHORTHAND", None)
    if shorthand:
        name = path.rpartition(".")[2]
        lines += ["", f"Short form: `{name}: X` means `{name}: {{{shorthand}: X}}`."]
    owners = dict.fromkeys(keys_of(section), owner)
    return "\n".join([*lines, "", *_table(section, path, owners=owners)])


def _table(
    section: type,
    path: str,
    only: Collection[str] | None = None,
    owners: Mapping[str, str] | None = None,
) -> list[str]:
    """The lines of the table of a section's keys. `only` restricts it to some keys. `owners` has,
    by key, what follows the path in the heading of a section below."""
    lines = ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    meanings = _field_docs(section)
    defaults = {field.name: field for field in dataclasses.fields(section)}
    for name, key in keys_of(section).items():
        if only is not None and name not in only:
            continue
        cells = [
            f"`{name}`",
            _type(key, path, (owners or {}).get(name, "")),
            _default(key, defaults[key.field]),
            " ".join([*meanings.get(key.field, "").split(), *_fixed(key)]),
        ]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return lines


def _fixed(key: Key) -> list[str]:
    """The note on a key that `resume` cannot change."""
    if key.fixed is None:
        return []
    if not key.fixed.free:
        return ["[*Fixed*](reliability.md#changing-a-run)."]
    free = ", ".join(f"`{value}`" for value in key.fixed.free)
    return [f"[*Fixed*](reliability.md#changing-a-run), but for changes among {free}."]


def _type(key: Key, path: str, owner: str) -> str:
    """The type of a key, in words."""
    if key.is_section:
        heading = f"{_below(path, key.name)}{owner}".lower().replace(" ", "-")
        anchor = re.sub(r"[^a-z0-9_-]", "", heading)
        return f"[section](#{anchor})"
    origin, arguments = get_origin(key.type), get_args(key.type)
    for check in key.checks:
        if check in _CHECKED:
            return _CHECKED[check]
    if key.is_path:
        many = "list of [paths](config.md#paths)"
        return many if origin is list else "[path](config.md#paths)"
    if key.registered is not None:
        return _either([f"`{choice}`" for choice in key.registered.own_choices])
    if origin is Literal:
        return _either([f"`{choice}`" for choice in arguments])
    if origin is list:
        return f"list of {_WORDS[arguments[0]][1]}"
    if origin is tuple:
        return f"list of {len(arguments)} {_WORDS[arguments[0]][1]}"
    if origin is dict:
        return "mapping of names to texts"
    bounds = [check.__doc__ for check in key.checks if "<locals>" in check.__qualname__]
    return ", ".join([_WORDS[key.type][0], *(bound for bound in bounds if bound)])


def _default(key: Key, field: dataclasses.Field[Any]) -> str:
    if key.required:
        return "*required*"
    if key.is_section or key.type is MappingNode:
        return ""
    made = field.default_factory
    return f"`{_yaml(field.default if made is dataclasses.MISSING else made())}`"


def _yaml(value: Any) -> str:
    """A default value in YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value) if value.is_integer() else value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_yaml(item) for item in value)}]"
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", value):
        return f'"{value}"'
    return str(value)


def _either(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _field_docs(section: type) -> dict[str, str]:
    """The string under each field of a dataclass and of its base classes, by field."""
    docs: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if dataclasses.is_dataclass(base):
            docs |= _docs_of_module(base.__module__).get(base.__name__, {})
    return docs


@functools.cache
def _docs_of_module(name: str) -> dict[str, dict[str, str]]:
    """For each class of a module, the string under each annotated name of its body."""
    source = Path(str(sys.modules[name].__file__)).read_text(encoding="utf-8")
    docs: dict[str, dict[str, str]] = {}
    for item in ast.parse(source).body:
        if isinstance(item, ast.ClassDef):
            docs[item.name] = dict(_documented(item.body))
    return docs


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(body):
        match (field, below):
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, text


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], Path(__file__).resolve().parents[2] / "docs"))
