"""The same, with amp and DDP set up."""

from support.setups import training
from torch.nn.parallel import DistributedDataParallel

from hpc_amp import amp

__all__ = ["amp", "criterion", "model", "n", "optimizer", "target", "x"]

x, target, n, criterion = training.x, training.target, training.n, training.criterion
model, optimizer = amp.initialize(training.model, training.optimizer, opt_level="O1")
model = DistributedDataParallel(model)
