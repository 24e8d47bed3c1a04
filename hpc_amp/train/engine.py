"""The training loop: task, networks, optimizers and checkpoints put together.

The order of things within a step is fixed: update, count, log, then the ranks agree whether to save
or stop. All state that matters is in `_trainer_state` and `_tensor_state`; a run that is stopped
anywhere and resumed gives the same weights as one that never stopped.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpc_amp.amp.precision import PrecisionPolicy
from hpc_amp.config.schema import Train, to_plain
from hpc_amp.config.units import parse_interval
from hpc_amp.distributed.collect import gather, gather_on_main
from hpc_amp.distributed.world import World
from hpc_amp.tasks.base import Task
from hpc_amp.train import randomness
from hpc_amp.train.agreement import Agreement
from hpc_amp.train.checkpoint import CheckpointStore
from hpc_amp.train.ema import WeightAverage
from hpc_amp.train.pace import Pace
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.schedule import rate_factor
from hpc_amp.train.stopping import StopReason, StopWatch
from hpc_amp.train.tracking import Tracker
from hpc_amp.train.update import PhaseUpdate


class TrainingError(RuntimeError):
    """The training cannot go on; the message says why and what to try."""


class Engine:
    """Trains one task on this rank, together with the others."""

    def __init__(
        self,
        task: Task,
        train: Train,
        world: World,
        device: torch.device,
        run: RunDirectory,
        watch: StopWatch,
    ) -> None:
        self.task, self.train, self.world, self.device = task, train, world, device
        self.policy = PrecisionPolicy.create(train.precision, device)
        self.policy.configure_backends()
        self.data = task.prepare_data()
        self.total_steps = train.epochs * self.data.steps_per_epoch
        if train.max_steps is not None:
            self.total_steps = min(self.total_steps, train.max_steps)

        randomness.seed_everything(train.seed)
        self.networks = {n: self._place(net) for n, net in task.build_networks().items()}
        randomness.seed_everything(train.seed, rank=1 + world.rank)
        wrapped = {name: self._wrap(network) for name, network in self.networks.items()}
        self.updates = [
            PhaseUpdate(task, phase, wrapped, self.policy, train) for phase in task.phases()
        ]
        names = [name for update in self.updates for name in update.sums]
        if len(names) > len(set(names)):
            raise ValueError(f"task {task.name} has two losses of one name: {names}")
        self.average = WeightAverage(self.networks, train.ema) if train.ema is not None else None

        self.step = 0
        self.evaluated_step = -1
        self.metrics: dict[str, float] = {}
        self.best_accuracy: float | None = None
        self.seconds_before = 0.0
        self.started = time.monotonic()
        self._steps_since_log = 0
        self._rehearsed = False

        self.agreement = Agreement(world, watch)
        self.store = CheckpointStore(
            run.path / "checkpoints", keep=train.checkpoint.keep, warn=self._warn
        )
        self.save_every = parse_interval(train.checkpoint.every)
        self._steps_in = {"steps": 1, "epochs": self.data.steps_per_epoch}
        self._last_save = time.monotonic()
        resumed = self._resume()
        self.tracker = Tracker(run, world, start_step=self.step)
        self.pace = Pace(device)
        if resumed:
            self.tracker.say(resumed)

    # -- building ---------------------------------------------------------------------------------

    def _place(self, network: nn.Module) -> nn.Module:
        if self.train.sync_batchnorm and self.world.size > 1:
            if self.device.type != "cuda":
                raise TrainingError(
                    "sync_batchnorm works on GPUs only (torch has no CPU kernel for it); "
                    "use train.model.norm=group on CPUs"
                )
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        layout = torch.channels_last if self.train.channels_last else torch.contiguous_format
        return network.to(self.device, memory_format=layout)

    def _wrap(self, network: nn.Module) -> nn.Module:
        """DDP where there are several ranks. Buffers are not broadcast at every step: training does
        not read running statistics, and `_evaluation_networks` takes rank 0's before they count."""
        if self.world.size == 1 or not any(p.requires_grad for p in network.parameters()):
            return network
        devices = [self.device.index] if self.device.type == "cuda" else None
        # torch 2.14 renames the switch.
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        switch = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        return DistributedDataParallel(
            network, device_ids=devices, gradient_as_bucket_view=True, **{switch: False}
        )

    # -- the loop ---------------------------------------------------------------------------------

    def fit(self) -> StopReason:
        """Train to the end, or until the ranks agree to stop. Returns the reason, NONE at the end.
        A checkpoint of the last step is on disk in both cases."""
        if self._evaluation_due():
            self.evaluate()
        reason = StopReason.NONE
        while self.step < self.total_steps and not reason:
            epoch, start = divmod(self.step, self.data.steps_per_epoch)
            for micro_batches in self.data.epoch(epoch, start):
                self.train_step(micro_batches)
                if self.step % self.train.log_every == 0 or self.step == self.total_steps:
                    self.log()
                reason, save = self._agree()
                # Before a save: the resumed run would otherwise evaluate this step again.
                if not reason and self._evaluation_due():
                    self.evaluate()
                if reason or self.step >= self.total_steps:
                    break
                if save:
                    self.save()
        self.save()
        return reason

    def train_step(self, micro_batches: list[Any]) -> None:
        """One step: every phase once, on this rank's share of one global batch."""
        if not self._rehearsed:
            self._rehearse(micro_batches)
        factor = rate_factor(self.train.schedule, self.step, self.total_steps)
        taken = False
        for update in self.updates:
            update.set_rate(factor)
            taken |= update.run(micro_batches)
        if taken and self.average is not None:
            self.average.update()
        self.step += 1
        self._steps_since_log += 1

    def _rehearse(self, micro_batches: list[Any]) -> None:
        """Run the first step of this attempt once without its effects.

        DDP rearranges its buckets after its first backward pass. The sum of three or more numbers
        depends on their order, and the order on the place in a bucket; so without this, the first
        step after a resume would differ in the last bit from the same step of a run that was never
        stopped.
        """
        self._rehearsed = True
        if self.world.size == 1:
            return
        buffers = [b for network in self.networks.values() for b in network.buffers()]
        kept = [buffer.clone() for buffer in buffers]
        sums = [total for update in self.updates for total in update.sums.values()]
        kept_sums = [total.clone() for total in sums]
        generators = randomness.own_state(self.device)
        for update in self.updates:
            update.rehearse(micro_batches)
        randomness.set_own_state(generators, self.device)
        with torch.no_grad():
            for live, before in zip([*buffers, *sums], [*kept, *kept_sums], strict=True):
                live.copy_(before)

    def _agree(self) -> tuple[StopReason, bool]:
        """What all ranks do after a step: stop for a reason, save."""
        every = self.save_every
        in_time = every.unit == "seconds"
        save = not in_time and self.step % (every.count * self._steps_in[every.unit]) == 0
        reason = StopReason.NONE
        if self.agreement.due(self.step):
            late = in_time and time.monotonic() - self._last_save >= every.count
            reason, late = self.agreement.exchange(self.step, save=late)
            save |= late
        if self.step >= self.total_steps:
            return StopReason.NONE, False
        return reason, save

    # -- evaluation -------------------------------------------------------------------------------

    def _evaluation_due(self) -> bool:
        if self.step == self.evaluated_step or self.step == 0:
            return False
        epoch, into = divmod(self.step, self.data.steps_per_epoch)
        whole = into == 0 and epoch % self.train.evaluate_every == 0
        return whole or self.step >= self.total_steps

    def _evaluation_networks(self) -> dict[str, nn.Module]:
        networks = self.average.networks if self.average is not None else self.networks
        if self.world.size > 1:
            for network in networks.values():
                for buffer in network.buffers():
                    dist.broadcast(buffer, src=0)
        return networks

    @torch.no_grad()
    def evaluate(self) -> None:
        """Metrics over the whole test data, exact for any number of ranks: sums are added up, not
        averages of averages."""
        self.pace.pause()
        networks = self._evaluation_networks()
        for network in networks.values():
            network.eval()
        sums: dict[str, Tensor] = {}
        with self.policy.autocast():
            for batch in self.task.evaluation_batches():
                for name, value in self.task.evaluate(batch, networks).items():
                    sums[name] = sums[name] + value if name in sums else value
        for network in networks.values():
            network.train()
        self.metrics = self.task.summarize(self._add_over_ranks(sums))
        self.evaluated_step = self.step
        accuracy = self.metrics.get("accuracy")
        if accuracy is not None:
            self.best_accuracy = max(accuracy, self.best_accuracy or 0.0)
        self.tracker.scalars(self.step, {f"eval/{k}": v for k, v in self.metrics.items()})
        text = "  ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        self.tracker.say(f"evaluation at step {self.step}: {text}")
        self.pace.resume()

    def _add_over_ranks(self, sums: dict[str, Tensor]) -> dict[str, float]:
        if self.world.size == 1:
            return {name: float(value) for name, value in sums.items()}
        # A rank without a test sample has no sums, so the names are exchanged with the values.
        views = gather(self.world, {name: value.item() for name, value in sums.items()})
        names = {name for view in views for name in view}
        return {name: float(sum(view.get(name, 0) for view in views)) for name in names}

    # -- reporting --------------------------------------------------------------------------------

    def log(self) -> None:
        """Report the mean loss over all ranks since the last report, the speed and the scale."""
        losses = self._mean_losses()
        rate = self.pace.lap(self._steps_since_log) * self.train.batch_size
        self._steps_since_log = 0
        learning_rate = self.updates[0].optimizer.param_groups[0]["lr"]
        values = {f"train/{name}": value for name, value in losses.items()}
        values |= {"train/lr": learning_rate, "train/images_per_second": rate}
        scale = self.loss_scale()
        if scale is not None:
            values |= {"train/loss_scale": scale, "train/skipped_steps": self.skipped_steps()}
        self.tracker.scalars(self.step, values)
        self._say_progress(losses, learning_rate, rate)
        for name, value in losses.items():
            if not (math.isfinite(value) or self.policy.scales_loss):
                raise TrainingError(
                    f"the loss `{name}` is {value} at step {self.step}: the weights are lost. "
                    "Lower the learning rate, or set train.clip_norm"
                )

    def _mean_losses(self) -> dict[str, float]:
        sums = {name: total for update in self.updates for name, total in update.sums.items()}
        together = torch.stack(list(sums.values()))
        if self.world.size > 1:
            dist.all_reduce(together)
        together = together / (self.world.size * max(1, self._steps_since_log))
        for total in sums.values():
            total.zero_()
        return dict(zip(sums, together.tolist(), strict=True))

    def _say_progress(self, losses: dict[str, float], learning_rate: float, rate: float) -> None:
        epoch = (self.step - 1) // self.data.steps_per_epoch + 1
        parts = [f"epoch {epoch}/{self.train.epochs}", f"step {self.step}/{self.total_steps}"]
        parts += [f"{name} {value:.4f}" for name, value in losses.items()]
        parts += [f"lr {learning_rate:.4g}", f"{rate:,.0f} img/s"]
        if (scale := self.loss_scale()) is not None:
            parts.append(f"scale {scale:g} ({self.skipped_steps()} skipped)")
        seconds_left = (self.total_steps - self.step) * self.train.batch_size / max(rate, 1e-9)
        parts.append(f"eta {int(seconds_left) // 60}:{int(seconds_left) % 60:02d}")
        self.tracker.say("  ".join(parts))
        self.tracker.progress(
            step=self.step, total_steps=self.total_steps, epoch=epoch, images_per_second=rate,
            **losses,
        )  # fmt: skip

    def loss_scale(self) -> float | None:
        """The smallest current loss scale, or None where the loss is not scaled."""
        values = [s.value for update in self.updates for s in update.scalers.values()]
        return min(values, default=None)

    def skipped_steps(self) -> int:
        """Updates that were skipped because their gradients overflowed."""
        return sum(s.skipped_steps for update in self.updates for s in update.scalers.values())

    def summary(self) -> dict[str, Any]:
        """The facts of the run up to here, for summary.json."""
        return {
            "data": self.task.data_name,
            "synthetic": self.task.synthetic,
            "accuracy": self.metrics.get("accuracy"),
            "best_accuracy": self.best_accuracy,
            "images_per_second": round(self.pace.steps_per_second * self.train.batch_size, 2),
            "world_size": self.world.size,
            "nodes": self.world.nodes,
            "device": self.device.type,
            "precision": self.policy.mode,
            "loss_scale": self.loss_scale(),
            "skipped_steps": self.skipped_steps(),
            "steps": self.step,
            "total_steps": self.total_steps,
            "seconds": round(self.seconds, 2),
            "weights_sha256": self.weights_digest(),
        }

    @property
    def seconds(self) -> float:
        """Seconds of training over all attempts."""
        return self.seconds_before + time.monotonic() - self.started

    def weights_digest(self) -> str:
        """sha256 over all parameters of all networks, in order: equal means bit-equal weights."""
        digest = hashlib.sha256()
        for name, network in self.networks.items():
            for key, parameter in network.named_parameters():
                digest.update(f"{name}.{key}".encode())
                digest.update(memoryview(parameter.detach().cpu().contiguous().numpy()).cast("B"))
        return digest.hexdigest()

    def _warn(self, text: str) -> None:
        if self.world.is_main:
            print(f"WARNING: {text}", flush=True)

    # -- state ------------------------------------------------------------------------------------

    def save(self) -> None:
        """Save a checkpoint of the current step. A collective call: all ranks give their random
        states. A disk that refuses is reported and training goes on with the older checkpoint."""
        self.pace.pause()
        ranks = gather_on_main(self.world, self._own_state())
        self._last_save = time.monotonic()
        if ranks is not None:
            states, sums = (list(parts) for parts in zip(*ranks, strict=True))
            self._write_checkpoint({**self._tensor_state(), "random": states, "sums": sums})
        self.pace.resume()

    def _write_checkpoint(self, tensors: dict[str, Any]) -> None:
        finite = all(total.isfinite() for own in tensors["sums"] for total in own.values())
        if not (finite or self.policy.scales_loss):
            self._warn(f"no checkpoint of step {self.step}: the loss is not finite")
            return
        try:
            path = self.store.save(self.step, self._trainer_state(), tensors)
            self.tracker.say(f"checkpoint {path}")
        except OSError as error:
            self._warn(f"no checkpoint of step {self.step}: {error}; training goes on")

    def _own_state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What each rank has of its own: its random states, and its running loss sums, so that the
        next mean is what it would have been."""
        sums = {n: t.cpu().clone() for update in self.updates for n, t in update.sums.items()}
        return randomness.own_state(self.device), sums

    def _tensor_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "networks": {name: network.state_dict() for name, network in self.networks.items()},
            "optimizers": {u.phase.name: u.optimizer.state_dict() for u in self.updates},
        }
        if self.average is not None:
            averaged = self.average.networks.items()
            state["average"] = {name: network.state_dict() for name, network in averaged}
        return state

    def _trainer_state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": self.step // self.data.steps_per_epoch,
            "samples": self.step * self.train.batch_size,
            "world_size": self.world.size,
            "batch_size": self.train.batch_size,
            "scalers": {
                u.phase.name: {name: s.state_dict() for name, s in u.scalers.items()}
                for u in self.updates
            },
            "average_updates": self.average.updates if self.average is not None else 0,
            "metrics": self.metrics,
            "best_accuracy": self.best_accuracy,
            "evaluated_step": self.evaluated_step,
            "steps_since_log": self._steps_since_log,
            "seconds": self.seconds,
            "data": self.task.data_name,
            "config_sha256": config_digest(self.train),
            "torch": torch.__version__,
        }

    def _resume(self) -> str | None:
        """Go on from the newest valid checkpoint, which rank 0 chooses for all. Returns a line for
        the log, or None where there is none."""
        step = self._choose_checkpoint()
        if step is None:
            return None
        checkpoint = self.store.load(step)
        trainer, tensors = checkpoint.trainer, checkpoint.tensors
        self._refuse_other_run(trainer)
        for name, network in self.networks.items():
            network.load_state_dict(tensors["networks"][name])
        for update in self.updates:
            update.optimizer.load_state_dict(tensors["optimizers"][update.phase.name])
            for name, scaler in update.scalers.items():
                scaler.load_state_dict(trainer["scalers"][update.phase.name][name])
        if self.average is not None:
            for name, network in self.average.networks.items():
                network.load_state_dict(tensors["average"][name])
            self.average.updates = trainer["average_updates"]
        self.step = trainer["step"]
        self.metrics = trainer["metrics"]
        self.best_accuracy = trainer["best_accuracy"]
        self.evaluated_step = trainer["evaluated_step"]
        self.seconds_before = trainer["seconds"]
        same_world = trainer["world_size"] == self.world.size
        if same_world:
            self._steps_since_log = trainer["steps_since_log"]
            own = tensors["sums"][self.world.rank]
            for update in self.updates:
                for name, total in update.sums.items():
                    total.copy_(own[name])
        # Last, since everything above may draw random numbers.
        randomness.restore(tensors["random"], self.world, self.device, self.train.seed + self.step)
        line = f"resumed from {checkpoint.path} at step {self.step}"
        return line if same_world else f"{line} (saved by {trainer['world_size']} ranks)"

    def _choose_checkpoint(self) -> int | None:
        choice = [self.store.newest() if self.world.is_main else None]
        if self.world.size > 1:
            dist.broadcast_object_list(choice, src=0)
        return choice[0]

    def _refuse_other_run(self, trainer: dict[str, Any]) -> None:
        if trainer["batch_size"] != self.train.batch_size:
            raise TrainingError(
                f"the checkpoint was trained with batch_size {trainer['batch_size']}, not "
                f"{self.train.batch_size}: steps and sample order would not fit"
            )
        if trainer["data"] != self.task.data_name:
            raise TrainingError(
                f"the checkpoint was trained on {trainer['data']}, but now there is "
                f"{self.task.data_name}: restore the data, or start a new run"
            )


def config_digest(train: Train) -> str:
    """sha256 of the training configuration, for the record in a checkpoint."""
    return hashlib.sha256(json.dumps(to_plain(train), sort_keys=True).encode()).hexdigest()
