"""Scripts as people wrote them for apex, with nothing changed but the line of the import."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hpc_amp import amp

CLASSIFIER = """
import argparse, torch, torch.nn as nn, torch.nn.functional as F
try:
    from apex import amp
except ImportError:
    raise ImportError("Please install apex")

def main(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--opt-level", type=str)
    parser.add_argument("--keep-batchnorm-fp32", type=str, default=None)
    parser.add_argument("--loss-scale", type=str, default=None)
    parser.add_argument("--resume", default=None)
    parser.add_argument("--save", default=None)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args(argv)
    torch.manual_seed(args.start)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level=args.opt_level,
        keep_batchnorm_fp32=args.keep_batchnorm_fp32, loss_scale=args.loss_scale)
    criterion = nn.CrossEntropyLoss()
    if args.resume:
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        amp.load_state_dict(checkpoint["amp"])
    losses = []
    for step in range(args.start, args.steps):
        stream = torch.Generator().manual_seed(step)
        target = torch.randint(0, 4, (16,), generator=stream)
        images = torch.randn(16, 3, 8, 8, generator=stream) + target.view(-1, 1, 1, 1)
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 5.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    if args.save:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict(), "amp": amp.state_dict()}, args.save)
    model.eval()
    with torch.no_grad():
        stream = torch.Generator().manual_seed(99)
        target = torch.randint(0, 4, (64,), generator=stream)
        images = torch.randn(64, 3, 8, 8, generator=stream) + target.view(-1, 1, 1, 1)
        accuracy = (model(images).argmax(1) == target).float().mean().item()
    return losses, accuracy, model.state_dict()
"""

GAN = """
import torch, torch.nn as nn
from apex import amp

def main(opt_level):
    torch.manual_seed(0)
    netG = nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4), nn.BatchNorm2d(16), nn.ReLU(True),
        nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh())
    netD = nn.Sequential(
        nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(16, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(32, 1, 2), nn.Flatten(0))
    criterion = nn.BCEWithLogitsLoss()
    optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999), eps=1e-4)
    optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999), eps=1e-4)
    [netD, netG], [optimizerD, optimizerG] = amp.initialize(
        [netD, netG], [optimizerD, optimizerG], opt_level=opt_level, num_losses=3)
    history = []
    for i in range(12):
        netD.zero_grad()
        real = torch.rand(8, 3, 8, 8) * 0.2
        label = torch.full((8,), 1.0)
        errD_real = criterion(netD(real), label)
        with amp.scale_loss(errD_real, optimizerD, loss_id=0) as errD_real_scaled:
            errD_real_scaled.backward()
        fake = netG(torch.randn(8, 8, 1, 1))
        label.fill_(0.0)
        errD_fake = criterion(netD(fake.detach()), label)
        with amp.scale_loss(errD_fake, optimizerD, loss_id=1) as errD_fake_scaled:
            errD_fake_scaled.backward()
        optimizerD.step()
        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake), label)
        with amp.scale_loss(errG, optimizerG, loss_id=2) as errG_scaled:
            errG_scaled.backward()
        optimizerG.step()
        history.append((errD_real.item(), errD_fake.item(), errG.item()))
    return history, netG.state_dict()
"""


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    amp.reset()


def run(script: str, *args: Any) -> Any:
    """What the script's `main` returns, with its import of amp changed."""
    changed = script.replace("from apex import amp", "from hpc_amp import amp")
    assert changed.count("hpc_amp") == 1
    names: dict[str, Any] = {}
    exec(compile(changed, "script", "exec"), names)
    try:
        return names["main"](*args)
    finally:
        amp.reset()


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("loss_scale", [[], ["--loss-scale", "128.0"], ["--loss-scale", "dynamic"]])
@pytest.mark.parametrize("batchnorm", [[], ["--keep-batchnorm-fp32", "True"]])
def test_a_classifier_learns_at_every_level(
    level: str, loss_scale: list[str], batchnorm: list[str]
) -> None:
    if level == "O1" and batchnorm:
        with pytest.raises(RuntimeError, match="keep_batchnorm_fp32 has no meaning at O1"):
            run(CLASSIFIER, ["--opt-level", level, *batchnorm])
        return
    more = [*loss_scale, *batchnorm, "--steps", "30"]
    losses, accuracy, weights = run(CLASSIFIER, ["--opt-level", level, *more])
    assert losses[-1] < 0.8 * losses[0]
    assert accuracy > 0.4, "chance is 0.25"
    assert {t.dtype for t in weights.values() if t.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_classifier_resumes_where_it_was(level: str, tmp_path: Path) -> None:
    file = str(tmp_path / "checkpoint.pt")
    whole = run(CLASSIFIER, ["--opt-level", level])
    first = run(CLASSIFIER, ["--opt-level", level, "--steps", "5", "--save", file])
    rest = run(CLASSIFIER, ["--opt-level", level, "--start", "5", "--resume", file])
    assert first[0] + rest[0] == whole[0]
    assert all(torch.equal(a, b) for a, b in zip(rest[2].values(), whole[2].values(), strict=True))


def test_the_first_loss_is_the_same_at_every_level() -> None:
    levels = ("O0", "O1", "O2", "O3")
    first, *others = (
        run(CLASSIFIER, ["--opt-level", level, "--steps", "1"])[0] for level in levels
    )
    assert others == [pytest.approx(first, rel=1e-2)] * 3


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_gan_with_three_losses_and_two_optimizers(level: str) -> None:
    history, weights = run(GAN, level)
    exact, _ = run(GAN, "O0")
    for ours, theirs in zip(history, exact, strict=True):
        assert ours == pytest.approx(theirs, abs=0.1)
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert history[-1][0] < history[0][0], "the discriminator learns"
