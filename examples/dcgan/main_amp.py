"""A DCGAN with the flags of apex's `main_amp.py`, on hpc-amp's engine.

    python main_amp.py                                          # synthetic images, here and now
    torchrun --nproc-per-node 4 main_amp.py --dataset cifar10 --dataroot data --outf out
    python main_amp.py --dataset lfw --dataroot data/lfw --outf out --resume

Everything goes to the folder --outf: checkpoints/, samples/, tensorboard/, metrics.jsonl.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpc_amp.train import ArgumentParser, Observer, run_program

if TYPE_CHECKING:
    from hpc_amp.config.schema import Data
    from hpc_amp.tasks.dcgan.config import DcganConfig

FOLDERS = ("folder", "imagenet", "lfw", "lsun")


def parse() -> argparse.Namespace:
    """The flags. Exits with 2 where they are wrong."""
    parser = ArgumentParser(description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False)
    flag = parser.add_argument
    sets = ("cifar10", "fashion_mnist", "mnist", *FOLDERS, "fake")
    flag(
        "--dataset",
        choices=sets,
        default="fake",
        help="`fake`: synthetic images; default %(default)s",
    )
    flag("--dataroot", default="./", help="folder of the data")
    flag("--classes", default="bedroom", help="LSUN: classes, separated by commas")
    flag("--workers", type=int, default=2, help="loader processes of each rank")
    flag("--batchSize", type=int, default=64, help="images in a step, over all ranks")
    flag("--imageSize", type=int, default=64, help="side of the images in pixels")
    flag("--nz", type=int, default=100, help="length of the latent vectors")
    flag("--ngf", type=int, default=64, help="width of the generator")
    flag("--ndf", type=int, default=64, help="width of the discriminator")
    flag("--niter", type=int, default=25, help="epochs")
    flag("--lr", type=float, default=2e-4, help="learning rate")
    flag("--beta1", type=float, default=0.5, help="Adam's first coefficient")
    flag("--ngpu", type=int, default=1, help="GPUs of this node: as many as there are ranks")
    flag("--netG", help="weights that the generator starts with")
    flag("--netD", help="weights that the discriminator starts with")
    flag("--outf", type=Path, default=Path("."), help="folder of all that is written")
    flag("--manualSeed", type=int, default=2809, help="seed")
    levels = ("O0", "O1", "O2", "O3")
    flag("--opt_level", choices=levels, help="as in apex; default: O1 on a GPU, O0 on a CPU")
    flag("--precision", choices=("fp32", "tf32", "bf16", "fp16"), help="in place of --opt_level")
    flag("--device", choices=("auto", "cuda", "cpu"), default="auto", help="default %(default)s")
    flag("--resume", action="store_true", help="go on from the newest checkpoint in --outf")
    flag("--dry-run", action="store_true", help="one step only")
    flags = parser.parse_args()
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if flags.ngpu > 1 and flags.ngpu != ranks:
        parser.error(f"--ngpu {flags.ngpu}: start it with torchrun --nproc-per-node {flags.ngpu}")
    # A job's second attempt goes on where the first one stopped.
    resume = flags.resume or int(os.environ.get("HPC_AMP_ATTEMPT", "1")) > 1
    if not resume and any(flags.outf.glob("checkpoints/step-*")):
        parser.error(f"{flags.outf} has checkpoints: add --resume, or name another --outf")
    return flags


def data_of(flags: argparse.Namespace) -> Data:
    """The data set that the flags name."""
    from hpc_amp.config.schema import Augment, Data, Synthetic

    common: dict[str, Any] = {"workers": flags.workers, "augment": Augment(crop=0, flip=False)}
    if flags.dataset == "fake":
        return Data(name="synthetic", synthetic=Synthetic(image_size=flags.imageSize), **common)
    if flags.dataset in FOLDERS:
        # These may be large: they are read again in each epoch.
        return Data(name="imagefolder", root=str(image_folder(flags)), in_memory=False, **common)
    return Data(name=flags.dataset, root=flags.dataroot, **common)


def image_folder(flags: argparse.Namespace) -> Path:
    """A folder with train/CLASS/* and test/CLASS/* (or val).

    LSUN's are CLASS_train and CLASS_val. Where there is no such division, as in LFW, an evaluation
    compares with the training images.
    """
    from hpc_amp.distributed.world import resolve
    from hpc_amp.tasks.base import DataError

    root = Path(flags.dataroot).absolute()
    if not root.is_dir():
        raise DataError(f"--dataroot: there is no folder {root}")
    if flags.dataset != "lsun" and (root / "train").is_dir():
        return root
    if flags.dataset == "lsun":
        names = flags.classes.split(",")
        links = {f"train/{name}": root / f"{name}_train" for name in names}
        links |= {f"test/{name}": root / f"{name}_val" for name in names}
    else:
        links = {"train": root, "test": root}
    divided = flags.outf.absolute() / flags.dataset
    if resolve(os.environ).is_main:
        for name, target in links.items():
            link = divided / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    return divided


def settings(flags: argparse.Namespace) -> DcganConfig:
    """The flags as a configuration of the engine."""
    import torch

    from hpc_amp.config.schema import Checkpointing, Precision, Schedule
    from hpc_amp.tasks.dcgan.config import DcganConfig, Gan

    on_gpu = flags.device == "cuda" or (flags.device == "auto" and torch.cuda.is_available())
    mode = flags.precision or flags.opt_level or ("O1" if on_gpu else "O0")
    gan = Gan(
        image_size=flags.imageSize,
        latent=flags.nz,
        generator_width=flags.ngf,
        discriminator_width=flags.ndf,
        lr=flags.lr,
        betas=(flags.beta1, 0.999),
        eps=1e-4 if mode == "O3" else 1e-8,  # 1e-8 is 0 in fp16
        generator_weights=flags.netG,
        discriminator_weights=flags.netD,
        evaluation_images=64 if flags.dry_run else 1024,
    )
    return DcganConfig(
        gan=gan,
        data=data_of(flags),
        epochs=flags.niter,
        max_steps=1 if flags.dry_run else None,
        batch_size=flags.batchSize,
        schedule=Schedule(name="constant", warmup=0.0),
        precision=Precision(mode=mode),
        checkpoint=Checkpointing(every="1epoch"),
        seed=flags.manualSeed,
        device=flags.device,
    )


class Judgement(Observer):
    """Says what the discriminator thinks: 0.5 for each is a draw."""

    def reported(self, engine: Any, values: Mapping[str, float]) -> None:
        """D(G(z)) comes twice: before and after the discriminator's update."""
        real, fake, later = (engine.task.judged[name].item() for name in ("d_real", "d_fake", "g"))
        engine.tracker.say(f"D(x) {real:.3f}  D(G(z)) {fake:.3f} / {later:.3f}")


def main() -> int:
    """Train. Returns the exit status."""
    flags = parse()
    from hpc_amp.train import fit  # and with it torch, which takes seconds

    return fit(settings(flags), flags.outf, observers=[Judgement()]).exit_status


if __name__ == "__main__":
    run_program(main)
