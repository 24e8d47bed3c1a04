"""The command line and the YAML files of scenarios.

A value comes from the command line, or from the YAML file of `--config`, or is the default. Keys of
YAML files are the names of flags, with `_` or `-`, and their values are parsed in the same way.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from hpc_amp.train import ArgumentParser

HERE = Path(__file__).resolve().parent
LR_POLICIES = ("constant_lr", "cosine_lr", "normal_lr", "multistep_lr")
INIT_POLICIES = ("default", "kaimingn", "kaimingu", "xaviern", "xavieru")
NONLINEARITIES = ("relu", "leaky_relu", "linear", "sigmoid", "tanh", "selu")
PRECISIONS = ("auto", "fp32", "tf32", "bf16", "fp16", "O0", "O1", "O2", "O3")
DATA_SETS = ("mnist", "fashionmnist", "cifar10", "cifar100", "imagenet", "synthetic")


class Parser(ArgumentParser):
    """A parser whose result has only the flags that were given; defaults are in `defaults`. Its
    errors are one line."""

    def __init__(self) -> None:
        super().__init__(
            description="Image classification with scenarios.",
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )
        self.defaults: dict[str, Any] = {"local_rank": None}
        self.place = ""
        """The file that is being parsed, for messages; empty for the command line."""

    def flag(self, *names: str, default: Any, **options: Any) -> None:
        """Add a flag. The first of its long names is the name of the attribute."""
        name = next(name for name in names if name.startswith("--"))[2:].replace("-", "_")
        self.defaults[name] = default
        if default is not None and default is not False:
            options["help"] += f" ({default})"
        self.add_argument(*names, dest=name, **options)

    def switch(self, *names: str, **options: Any) -> None:
        """Add a flag that is true without a value, and may have the value true or false."""
        self.flag(*names, default=False, nargs="?", const=True, type=_boolean, **options)

    def error(self, message: str) -> NoReturn:
        super().error(f"{self.place}{message}")


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def make_parser() -> Parser:
    """All flags. Names after the first one are those of older scripts and YAML files."""
    parser = Parser()
    flag, switch = parser.flag, parser.switch
    flag("--config", default=None, help="YAML file, or its name in configs/DATA/ARCH")
    flag("--arch", "-a", default="resnet50", help="network")
    flag("--dataname", default="imagenet", choices=DATA_SETS, help="data set")
    flag("--datapath", default="data", help="folder of the data")
    switch("--synthetic", help="synthetic images if the data is not there")
    flag("--workers", "-w", default=20, type=int, help="loader processes of each rank")
    flag("--batch-size", "-b", default=200, type=int, help="images of each rank in a step")
    switch("--channels-last", help="channels-last memory order")
    flag(
        "--dense-init-policy", "--init-policy", default="kaimingn", choices=INIT_POLICIES,
        help="initial weights of convolutions and dense layers; default: torch's own",
    )  # fmt: skip
    flag(
        "--dense-bias-init", "--dense-init-bias", "--init-bias", default="zero",
        choices=("zero", "default"), help="initial biases of these layers",
    )  # fmt: skip
    flag(
        "--kaiming-mode", "--init-kaiming-mode", default="fan_in", choices=("fan_in", "fan_out"),
        help="preserve the variance of activations (fan_in) or of gradients (fan_out)",
    )  # fmt: skip
    flag(
        "--kaiming-nonlinearity", "--init-kaiming-nonlinearity", default="relu",
        choices=NONLINEARITIES, help="the function after these layers",
    )  # fmt: skip
    flag("--optimizer", "-o", default="SGD+M", choices=("SGD", "SGD+M", "Adam"), help="optimizer")
    flag("--initial-epoch", default=0, type=int, help="with --resume: the epoch to go on from")
    flag("--epochs", default=90, type=int, help="passes over the training data")
    flag("--momentum", default=0.9, type=float, help="momentum of SGD+M")
    switch("--nesterov", help="Nesterov momentum")
    flag("--label-smoothing", default=0.0, type=float, help="label smoothing in training")
    flag("--lr", "--learning-rate", default=0.256, type=float, help="peak learning rate")
    flag("--lr-policy", default="constant_lr", choices=LR_POLICIES, help="learning rate schedule")
    flag("--weight-decay", "--wd", default=1e-4, type=float, help="weight decay")
    flag("--warmup-length", default=5, type=int, help="epochs of linear warm-up")
    flag("--lr-gamma", default=0.1, type=float, help="multistep_lr: factor at each step")
    flag("--lr-steps", default=[], type=int, nargs="+", help="multistep_lr: epochs of the steps")
    flag("--scale-coslr", default=1.0, type=float, help="cosine_lr: half period, in runs")
    flag("--scale-gausslr", default=1500.0, type=float, help="normal_lr: width, in epochs^2")
    flag("--print-freq-tr", default=10, type=int, help="steps between two lines of the log")
    flag("--print-freq-ts", default=10, type=int, help="test batches between two lines of the log")
    switch("--logterminal", help="print the log on the terminal as well")
    switch("--save-epochs", help="save the network after each epoch")
    switch("--pretrained", help="begin with torchvision's ImageNet weights")
    flag("--resume", default=None, metavar="PATH", help="history/checkpoints/... to go on with")
    switch("--evaluate", "-e", help="evaluate, and do not train")
    flag("--gpu-ids", "--gpu-idx", default=None, nargs="+", help="GPUs to use")
    flag("--precision", default="auto", choices=PRECISIONS, help="auto: fp16 on GPUs, else fp32")
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    return parser


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Parse all flags. Exits with 2 and one line if they are wrong."""
    parser = make_parser()
    given = vars(parser.parse_args(words))
    values = {**parser.defaults, **_from_file(parser, given), **given}
    flags = argparse.Namespace(**values)
    _check(parser, flags)
    return flags


def _from_file(parser: Parser, given: dict[str, Any]) -> dict[str, Any]:
    """The flags in the YAML file of `--config`."""
    name = given.get("config")
    if name is None:
        return {}
    path = _find(parser, name, {**parser.defaults, **given})
    try:
        import yaml
    except ModuleNotFoundError:
        parser.error("--config needs PyYAML: pip install pyyaml")
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        parser.error(f"{path} cannot be read: {' '.join(str(error).split())}")
    if not isinstance(content, dict):
        parser.error(f"{path} does not say key: value")
    known = {name for action in parser._actions for name in action.option_strings}
    parser.place = f"{path}: "
    words: list[str] = []
    for key, value in content.items():
        option = "--" + str(key).replace("_", "-")
        if key == "local_rank" or value is None or value == []:
            continue  # set by the launcher, or empty
        if option not in known:
            parser.error(f"there is no flag {option}")
        items = value if isinstance(value, list) else [value]
        words += [option, *(str(item) for item in items)]
    read = vars(parser.parse_args(words))
    parser.place = ""
    return read


def _find(parser: Parser, name: str, values: dict[str, Any]) -> Path:
    """Find the file of `--config`."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    folders = [Path("configs"), HERE / "configs"]
    for folder in folders:
        path = folder / values["dataname"] / values["arch"] / f"{name}.yaml"
        if path.is_file():
            return path
    found = sorted({path for folder in folders for path in folder.glob(f"*/*/{name}.yaml")})
    if len(found) != 1:
        many = f"several files: {', '.join(map(str, found))}" if found else "no such file"
        parser.error(f"--config {name}: {many}, looked for configs/DATA/ARCH/{name}.yaml")
    return found[0]


def _check(parser: Parser, flags: argparse.Namespace) -> None:
    for name in ("epochs", "batch_size", "print_freq_tr", "print_freq_ts"):
        if getattr(flags, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: {getattr(flags, name)} is too small")
    for name in ("scale_coslr", "scale_gausslr"):
        if getattr(flags, name) <= 0:
            parser.error(f"--{name.replace('_', '-')}: it must be above 0")
    flags.lr_steps = sorted(epoch for epoch in flags.lr_steps if epoch > 0)
    if flags.lr_policy == "multistep_lr" and not flags.lr_steps:
        parser.error("--lr-policy multistep_lr needs --lr-steps, such as --lr-steps 30 60 80")
    if flags.initial_epoch and flags.resume is None:
        parser.error("--initial-epoch needs --resume: there is no epoch to go on from")
    if flags.resume is not None and not Path(flags.resume, "checkpoints").is_dir():
        parser.error(f"--resume {flags.resume}: there are no checkpoints")
