"""Progress reports of the engine: losses, speed and loss scale from time to time, and a summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hpc_amp.amp.scaler import LossScaler
from hpc_amp.train.errors import TrainingError
from hpc_amp.train.losses import RecentLosses
from hpc_amp.train.observer import Training
from hpc_amp.train.state import weights_digest


class ProgressReport:
    """Reports the progress of one engine."""

    def __init__(self, engine: Training) -> None:
        self._engine = engine

    def log(self) -> None:
        """Report the mean of each loss and of the time that a step waited for data since the last
        report, over all ranks; the norms of gradients in the last step; the speed, the memory and
        the loss scale. A collective call.

        Raises TrainingError if a loss is not finite, unless a loss scaler skips such steps.
        """
        engine = self._engine
        steps = max(loss.count for update in engine.updates for loss in update.losses.values())
        means, waited = self._means(engine.pace.waited() / steps)
        rate = engine.pace.lap(steps) * engine.train.batch_size
        rates = self._learning_rates()
        values = {f"train/{name}": value for name, value in means.items()}
        values |= {f"train/{name}": value for name, value in rates.items()}
        values |= {f"train/{name}": value for name, value in self._gradient_norms().items()}
        values["train/samples_per_second"] = rate
        values["train/data_wait_seconds"] = waited
        values["train/epoch"] = engine.step / engine.data.steps_per_epoch
        values |= {f"gpu/{name}": value for name, value in self._memory().items()}
        scale = self.loss_scale()
        if scale is not None:
            values |= {"train/loss_scale": scale, "train/skipped_steps": self.skipped_steps()}
            scalers = self._scalers()
            if len(scalers) > 1:
                values |= {f"train/loss_scale_{name}": s.value for name, s in scalers.items()}
        engine.tracker.scalars(engine.step, values)
        self._say_progress(means, rates, rate)
        self._warn(engine.task.concerns(engine.step, means))
        for observer in engine.observers:
            observer.reported(engine, values)
        if not engine.policy.scales_loss:
            bad = [name for name, value in means.items() if not math.isfinite(value)]
            if bad:
                self._raise_not_finite(bad, means)
        for update in engine.updates:
            for loss in update.losses.values():
                loss.clear()

    def _means(self, waited: float) -> tuple[dict[str, float], float]:
        """The mean of each loss since the last report, by name, and of `waited`, over all ranks. A
        collective call."""
        engine = self._engine
        losses: dict[str, RecentLosses] = {}
        for update in engine.updates:
            losses |= {name: loss for name, loss in update.losses.items() if loss.count}
        means = [loss.recent().mean() for loss in losses.values()]
        together = torch.stack([*means, torch.tensor(waited, device=engine.device)])
        if engine.world.size > 1:
            dist.all_reduce(together)
            together = together / engine.world.size
        *values, waited = together.tolist()
        return dict(zip(losses, values, strict=True)), waited

    def _gradient_norms(self) -> dict[str, float]:
        """The norm of the gradients of each phase in its last update, by its name in a report:
        `grad_norm`, and `grad_norm_NAME` if the task has several phases. A skipped update has
        none."""
        updates = self._engine.updates
        names = [f"grad_norm_{update.phase.name}" for update in updates]
        if len(names) == 1:
            names = ["grad_norm"]
        norms: dict[str, float] = {}
        for name, update in zip(names, updates, strict=True):
            if update.gradient_norm is not None:
                norms[name] = float(update.gradient_norm)
        return norms

    def _memory(self) -> dict[str, float]:
        """On a GPU, the most that torch has allocated and reserved on this rank's since the last
        report, in GiB. Empty on a CPU, and while steps are timed, whose peak is measured apart."""
        engine = self._engine
        if engine.device.type != "cuda" or engine.train.timing is not None:
            return {}
        allocated = torch.cuda.max_memory_allocated(engine.device)
        reserved = torch.cuda.max_memory_reserved(engine.device)
        torch.cuda.reset_peak_memory_stats(engine.device)
        return {
            "memory_allocated_gib": allocated / 2**30,
            "memory_reserved_gib": reserved / 2**30,
        }

    def _learning_rates(self) -> dict[str, float]:
        """The learning rates, by their names in a report: `lr`, that of the first phase, and
        `lr_NAME` for each phase if several have run."""
        rates: dict[str, float] = {}
        for update in self._engine.updates:
            if any(loss.count for loss in update.losses.values()):
                rates[f"lr_{update.phase.name}"] = float(update.optimizer.param_groups[0]["lr"])
        first = next(iter(rates.values()))
        return {"lr": first, **rates} if len(rates) > 1 else {"lr": first}

    def _raise_not_finite(self, names: Sequence[str], means: Mapping[str, float]) -> None:
        """Raise TrainingError that names, of losses that are not finite, the one that became so
        first, on any rank, and the step."""
        engine = self._engine
        steps = torch.tensor([self._first_bad_step(name) for name in names], device=engine.device)
        if engine.world.size > 1:
            dist.all_reduce(steps, op=dist.ReduceOp.MIN)
        name, step = names[int(steps.argmin())], int(steps.min())
        raise TrainingError(
            f"the loss `{name}` is {means[name]} since step {step}: the weights are lost. Lower "
            "the learning rate, or set train.clip_norm"
        )

    def _first_bad_step(self, name: str) -> int:
        """The first step, counted from 1, in which a loss was not finite on this rank; the present
        one if there is none."""
        engine = self._engine
        update = next(u for u in engine.updates if name in u.losses)
        first, count = update.losses[name].first_bad(), update.losses[name].count
        if first is None:
            return engine.step
        every = update.phase.every  # the phase runs in each so many steps alone
        return engine.step - engine.step % every - (count - 1 - first) * every

    def _say_progress(self, losses: dict[str, float], rates: dict[str, float], rate: float) -> None:
        """Log a line about the last step, and update the progress file. `rate` is in samples per
        second."""
        engine = self._engine
        epoch = (engine.step - 1) // engine.data.steps_per_epoch + 1
        parts = [f"epoch {epoch}/{engine.train.epochs}", f"step {engine.step}/{engine.total_steps}"]
        parts += [f"{name} {value:.4f}" for name, value in losses.items()]
        parts += [f"lr {rates['lr']:.4g}", f"{rate:,.0f} samples/s"]
        if (scale := self.loss_scale()) is not None:
            parts.append(f"scale {scale:g} ({self.skipped_steps()} skipped)")
        seconds = (engine.total_steps - engine.step) * engine.train.batch_size / max(rate, 1e-9)
        parts.append(f"eta {int(seconds) // 60}:{int(seconds) % 60:02d}")
        engine.tracker.say("  ".join(parts))
        engine.tracker.progress(
            step=engine.step, total_steps=engine.total_steps, epoch=epoch, samples_per_second=rate,
            steps_per_epoch=engine.data.steps_per_epoch, **losses,
        )  # fmt: skip

    def evaluation(self) -> None:
        """Report the metrics of an evaluation and how they were measured, and tell the
        observers."""
        engine = self._engine
        values = {f"eval/{name}": value for name, value in engine.metrics.items()}
        engine.tracker.scalars(engine.step, values)
        text = "  ".join(f"{name} {value:.4f}" for name, value in engine.metrics.items())
        engine.tracker.say(f"evaluation at step {engine.step}: {text}")
        self._warn(engine.task.concerns(engine.step, {}))
        protocol = engine.task.protocol()
        if protocol:
            engine.tracker.protocol(step=engine.step, metrics=engine.metrics, protocol=protocol)
        for observer in engine.observers:
            observer.evaluated(engine)

    def _warn(self, concerns: Mapping[str, str]) -> None:
        """Log each cause of concern, once in a run."""
        engine = self._engine
        for cause, text in concerns.items():
            if cause not in engine.warnings:
                engine.warnings[cause] = text
                engine.tracker.say(f"WARNING: {text}")

    def loss_scale(self) -> float | None:
        """The smallest loss scale of the present phases, or None if losses are not scaled."""
        return min((scaler.value for scaler in self._scalers().values()), default=None)

    def skipped_steps(self) -> int:
        """The number of updates that were skipped because gradients overflowed."""
        return sum(update.skipped for update in self._engine.updates)

    def _scalers(self) -> dict[str, LossScaler]:
        """The scalers of the phases of the present epoch, by the names of their losses."""
        engine = self._engine
        epoch = max(0, engine.step - 1) // engine.data.steps_per_epoch
        running = [update for update in engine.updates if update.phase.runs_in(epoch)]
        return {name: s for update in running for name, s in update.scalers.items()}

    def _best(self) -> dict[str, Any] | None:
        """The metric by which the task compares checkpoints, and its best value so far."""
        best = self._engine.task.best
        if best is None:
            return None
        return {
            "metric": best.metric,
            "direction": best.direction,
            "value": self._engine.best_value,
        }

    def summary(self) -> dict[str, Any]:
        """The content of summary.json so far, without outcome and name."""
        engine = self._engine
        rate = engine.pace.steps_per_second * engine.train.batch_size
        return {
            "data": engine.task.data_name,
            "synthetic": engine.task.synthetic,
            "metrics": engine.metrics,
            "best": self._best(),
            "samples_per_second": round(rate, 2),
            "world_size": engine.world.size,
            "nodes": engine.world.nodes,
            "device": engine.device.type,
            "precision": engine.policy.mode,
            "loss_scale": self.loss_scale(),
            "skipped_steps": self.skipped_steps(),
            "warnings": list(engine.warnings.values()),
            "steps": engine.step,
            "total_steps": engine.total_steps,
            "seconds": round(engine.seconds, 2),
            "weights_sha256": weights_digest(engine.networks),
        }
