"""Whole scripts of the kind that `hpc-amp migrate` is for: what is found, what is changed, and that
what comes out runs."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

import pytest
from support.warm import Warm

from hpc_amp.migrate.finding import MigrationFinding
from hpc_amp.migrate.scan import scan

# A GAN with three losses and two optimizers under apex.amp.
GAN = '''\
"""Train a small GAN on noise images."""
from __future__ import print_function
import argparse
import torch
import torch.nn as nn
import torch.optim as optim

try:
    from apex import amp
except ImportError:
    raise ImportError('this script needs apex')

parser = argparse.ArgumentParser()
parser.add_argument('--opt_level', default='O1', help='amp: O0 to O3')
parser.add_argument('--steps', type=int, default=2)
parser.add_argument('--out', default='gan.pt')
opt = parser.parse_args()

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
torch.manual_seed(7)

netG = nn.Sequential(nn.ConvTranspose2d(4, 8, 4), nn.BatchNorm2d(8), nn.ReLU(True),
                     nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh()).to(device)
netD = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True),
                     nn.Conv2d(8, 1, 4)).to(device)
criterion = nn.BCEWithLogitsLoss()
optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))

[netD, netG], [optimizerD, optimizerG] = amp.initialize(
    [netD, netG], [optimizerD, optimizerG], opt_level=opt.opt_level, num_losses=3)

for step in range(opt.steps):
    # D: real, then fake
    netD.zero_grad()
    real = torch.randn(8, 1, 8, 8, device=device)
    output = netD(real).view(-1)
    errD_real = criterion(output, torch.ones_like(output))
    with amp.scale_loss(errD_real, optimizerD, loss_id=0) as errD_real_scaled:
        errD_real_scaled.backward()
    fake = netG(torch.randn(8, 4, 1, 1, device=device))
    output = netD(fake.detach()).view(-1)
    errD_fake = criterion(output, torch.zeros_like(output))
    with amp.scale_loss(errD_fake, optimizerD, loss_id=1) as errD_fake_scaled:
        errD_fake_scaled.backward()
    optimizerD.step()

    # G
    netG.zero_grad()
    output = netD(fake).view(-1)
    errG = criterion(output, torch.ones_like(output))
    with amp.scale_loss(errG, optimizerG, loss_id=2) as errG_scaled:
        errG_scaled.backward()
    optimizerG.step()
    print('step', step, 'D', (errD_real + errD_fake).item(), 'G', errG.item())

torch.save({'netG': netG.state_dict(), 'optimizerG': optimizerG.state_dict()}, opt.out)
'''

# An image classifier under apex.amp, with apex's own data parallelism and batch norm.
CLASSIFIER = """\
import argparse
import os
import torch
import torch.nn as nn
import torch.nn.parallel
try:
    from apex.parallel import DistributedDataParallel as DDP
    from apex.fp16_utils import *
    from apex import amp, optimizers
    from apex.multi_tensor_apply import multi_tensor_applier
except ImportError:
    raise ImportError("Please install apex from its repository.")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--opt-level", type=str, default="O1")
    parser.add_argument("--keep-batchnorm-fp32", type=str, default=None)
    parser.add_argument("--loss-scale", type=str, default=None)
    parser.add_argument("--sync_bn", action="store_true")
    parser.add_argument("--resume", default="")
    return parser.parse_args()


def main():
    global args
    args = parse()
    args.distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                          nn.Linear(8 * 36, 10))
    if args.sync_bn:
        import apex
        model = apex.parallel.convert_syncbn_model(model)
    if torch.cuda.is_available():
        model = model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    model, optimizer = amp.initialize(model, optimizer,
                                      opt_level=args.opt_level,
                                      keep_batchnorm_fp32=args.keep_batchnorm_fp32,
                                      loss_scale=args.loss_scale
                                      )
    if args.distributed:
        model = DDP(model, delay_allreduce=True)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(2):
        train(model, criterion, optimizer, epoch)
        save({'epoch': epoch + 1, 'state_dict': model.state_dict(),
              'optimizer': optimizer.state_dict()})


def train(model, criterion, optimizer, epoch):
    model.train()
    for i in range(2):
        device = next(model.parameters()).device
        input = torch.randn(4, 3, 8, 8, device=device)
        target = torch.randint(10, (4,), device=device)
        output = model(input)
        loss = criterion(output, target)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        print("epoch", epoch, "loss", to_python_float(loss))


def save(state):
    torch.save(state, "checkpoint.pt")


if __name__ == "__main__":
    main()
"""

# fp16 from before there was any tool for it.
BY_HAND = """\
import torch
import torch.nn as nn

LOSS_SCALE = 128.0


def network_to_half(network):
    network.half()
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.float()
    return network


class Trainer:
    def __init__(self, model, args):
        self.model = network_to_half(model)
        self.args = args
        self.params = [p.clone().type(torch.cuda.FloatTensor).detach()
                       for p in self.model.parameters()]
        self.optimizer = torch.optim.SGD(self.params, lr=0.1)

    def step(self, images, target):
        images = images.cuda().half()
        loss = nn.functional.cross_entropy(self.model(images), target)
        loss = loss * self.args.loss_scale
        self.model.zero_grad()
        loss.backward()
        for param, master in zip(self.model.parameters(), self.params):
            master.grad = param.grad.float()
            master.grad.data.div_(self.args.loss_scale)
        self.optimizer.step()
"""

# Mixed precision of 2021: right, but for the names.
NATIVE = """\
import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast


class Trainer:
    def __init__(self, model, optimizer, amp=True):
        self.model, self.optimizer, self.amp = model, optimizer, amp
        self.scaler = GradScaler(enabled=amp)

    def step(self, x, y, clip=None):
        self.optimizer.zero_grad()
        with autocast(self.amp):
            loss = nn.functional.mse_loss(self.model(x), y)
        self.scaler.scale(loss).backward()
        if clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def state(self):
        return {'model': self.model.state_dict(), 'optimizer': self.optimizer.state_dict(),
                'scaler': self.scaler.state_dict()}

    def load(self, state):
        self.model.load_state_dict(state['model'])
        self.optimizer.load_state_dict(state['optimizer'])
        self.scaler.load_state_dict(state['scaler'])


if __name__ == '__main__':
    model = nn.Linear(4, 4)
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    print(trainer.step(torch.ones(2, 4), torch.zeros(2, 4), clip=1.0))
    trainer.load(trainer.state())
"""

SCRIPTS = {"gan": GAN, "classifier": CLASSIFIER, "by hand": BY_HAND, "native": NATIVE}


def migrated(text: str) -> tuple[list[MigrationFinding], str, list[str]]:
    """Findings, the new text, and the lines that are new in it."""
    findings, new = scan(text, "x.py", "drop-in", (2, 4))
    difference = difflib.ndiff(text.splitlines(), new.splitlines())
    return findings, new, [line[2:].strip() for line in difference if line.startswith("+ ")]


def left(findings: list[MigrationFinding]) -> list[tuple[int, str]]:
    return [(finding.line, finding.id) for finding in findings if not finding.mechanical]


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS)
def test_what_comes_out_is_python_and_is_done(text: str) -> None:
    findings, new, _ = migrated(text)
    ast.parse(new)
    again, same, _ = migrated(new)

    assert same == new
    assert [one.id for one in again] == [one.id for one in findings if not one.mechanical]


def test_a_gan_needs_one_line_and_its_checkpoint_lacks_the_scaler() -> None:
    findings, _, new_lines = migrated(GAN)

    assert new_lines == ["from hpc_amp import amp"]
    assert left(findings) == [(57, "apex-state-not-saved")]


def test_a_classifier_with_all_parts_of_apex() -> None:
    findings, _, new_lines = migrated(CLASSIFIER)

    assert new_lines == [
        "from torch.nn.parallel import DistributedDataParallel as DDP",
        "from hpc_amp import amp",
        "from apex import optimizers",
        "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
        "model = DDP(model, find_unused_parameters=True, broadcast_buffers=False)",
    ]
    assert left(findings) == [
        (8, "apex-still-needed"),
        (8, "star-import"),
        (9, "apex-still-needed"),
        (9, "apex-unused"),
        (10, "apex-still-needed"),
        (10, "apex-unused"),
        (47, "apex-state-not-saved"),
        (62, "apex-clip"),
        (64, "apex-fp16-utils"),
    ]


def test_each_part_of_hand_made_fp16_is_explained() -> None:
    findings, _, new_lines = migrated(BY_HAND)

    assert new_lines == []
    assert left(findings) == [
        (8, "half-model"),
        (11, "manual-batchnorm-float"),
        (19, "manual-master-weights"),
        (24, "half-tensor"),
        (26, "manual-loss-scale"),
        (31, "manual-unscale"),
    ]


def test_native_code_gets_new_names_and_no_reproach() -> None:
    findings, _, new_lines = migrated(NATIVE)

    assert new_lines == [
        "from torch.amp import GradScaler, autocast",
        'self.scaler = GradScaler("cuda", enabled=amp)',
        'with autocast("cuda", enabled=self.amp):',
    ]
    assert left(findings) == []


def run(warm: Warm, script: str, folder: Path, *arguments: str) -> str:
    (folder / "script.py").write_text(script)
    result = warm.run("script.py", *arguments, cwd=folder, strict=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_the_migrated_gan_trains(warm: Warm, tmp_path: Path, level: str) -> None:
    said = run(warm, migrated(GAN)[1], tmp_path, "--opt_level", level)

    assert "step 1 D" in said
    assert (tmp_path / "gan.pt").exists()


def test_the_migrated_classifier_trains_without_apex(warm: Warm, tmp_path: Path) -> None:
    new = migrated(CLASSIFIER)[1]
    # What was left to a person, done as the findings say.
    for old, instead in (
        ("    from apex.fp16_utils import *\n", ""),
        ("    from apex import optimizers\n", ""),
        ("    from apex.multi_tensor_apply import multi_tensor_applier\n", ""),
        ("to_python_float(loss)", "loss.item()"),
        ("clip_grad_norm_(model.parameters()", "clip_grad_norm_(amp.master_params(optimizer)"),
        ("optimizer.state_dict()}", "optimizer.state_dict(), 'amp': amp.state_dict()}"),
    ):
        assert old in new
        new = new.replace(old, instead)

    assert left(migrated(new)[0]) == []
    assert "epoch 1 loss" in run(warm, new, tmp_path)


def test_the_migrated_native_script_runs_without_a_deprecation(warm: Warm, tmp_path: Path) -> None:
    assert float(run(warm, migrated(NATIVE)[1], tmp_path)) > 0
    with pytest.raises(AssertionError, match="deprecated"):
        run(warm, NATIVE, tmp_path)
