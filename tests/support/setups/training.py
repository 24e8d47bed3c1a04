"""What the pieces of a training script in docs/apex.md take for granted."""

import torch
from torch.nn.parallel import DistributedDataParallel

from hpc_amp import amp

__all__ = [
    "DistributedDataParallel",
    "amp",
    "criterion",
    "loader",
    "model",
    "optimizer",
    "path",
    "scheduler",
    "torch",
]

store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
torch.manual_seed(0)
x, target = torch.randn(8, 4), torch.randn(8, 2)
loader = [(x, target)] * 3
n = 2
path = "checkpoint.pt"
criterion = torch.nn.MSELoss()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
