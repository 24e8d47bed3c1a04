"""The training loop: task, networks, optimizers and checkpoints put together.

The order of things within a step is fixed: update, count, log, then the ranks agree whether to save
or stop.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpc_amp.amp.model_precision import ModelPrecision
from hpc_amp.amp.precision import PrecisionPolicy
from hpc_amp.amp.scaler import ScaleFloorError
from hpc_amp.config.schema import Train
from hpc_amp.config.units import parse_interval
from hpc_amp.distributed.collect import gather, gather_on_main
from hpc_amp.distributed.world import World
from hpc_amp.models.weights import load_weights
from hpc_amp.tasks.base import Task
from hpc_amp.train import randomness, state
from hpc_amp.train.agreement import Agreement
from hpc_amp.train.checkpoint import CheckpointStore, Retention
from hpc_amp.train.ema import WeightAverage
from hpc_amp.train.errors import Superseded, TrainingError
from hpc_amp.train.manifest import DamagedCheckpoint
from hpc_amp.train.observer import Observer
from hpc_amp.train.pace import Pace
from hpc_amp.train.report import ProgressReport
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.saver import CheckpointSaver
from hpc_amp.train.schedule import RateFactor, decay_after, rate_factor
from hpc_amp.train.sentry import Sentry
from hpc_amp.train.stopping import StopReason, StopWatch
from hpc_amp.train.timing import StepTimer
from hpc_amp.train.tracking import Tracking
from hpc_amp.train.update import PhaseUpdate

_EVALUATING_SECONDS = 0.25


class Engine:
    """Trains one task on this rank, together with the others. `sentry` hears of every step. `rate`
    takes the place of the schedule of `train`."""

    def __init__(
        self,
        task: Task,
        train: Train,
        world: World,
        device: torch.device,
        run: RunDirectory,
        watch: StopWatch,
        sentry: Sentry | None = None,
        *,
        observers: Sequence[Observer] = (),
        rate: RateFactor | None = None,
    ) -> None:
        self.task, self.train, self.world, self.device = task, train, world, device
        self.run = run
        self.sentry = sentry
        self.observers = observers
        self.timer = StepTimer(train.timing, world, device) if train.timing is not None else None
        self.policy = PrecisionPolicy.create(train.precision, device)
        self.policy.configure_backends()
        self.data = task.prepare_data()
        peak = decay_after(train.schedule, self.data.steps_per_epoch)
        self.rate = rate or partial(rate_factor, train.schedule, decay_after=peak)
        self.total_steps = train.epochs * self.data.steps_per_epoch
        if train.max_steps is not None:
            self.total_steps = min(self.total_steps, train.max_steps)

        self.save_every = parse_interval(train.checkpoint.every)
        self._steps_in = {"steps": 1, "epochs": self.data.steps_per_epoch}
        self._keep_every: int | None = None
        if train.checkpoint.keep_every is not None:
            interval = parse_interval(train.checkpoint.keep_every)
            self._keep_every = interval.count * self._steps_in[interval.unit]
        self.store = CheckpointStore(
            run.path / "checkpoints",
            run=run.path.name,
            retention=Retention(
                train.checkpoint.keep,
                train.checkpoint.keep_best,
                self._keep_every,
                lowest=task.best is not None and task.best.direction == "lowest",
            ),
            warn=self._warn,
        )
        chosen = self._choose_checkpoint()

        randomness.seed_everything(train.seed)
        built = task.build_networks()
        if chosen is None:
            for name, file in task.first_weights().items():
                load_weights(built[name], file, name)
        self.networks = {name: self._place(network) for name, network in built.items()}
        task.trained = self.networks
        self.precision = ModelPrecision(self.policy)
        self.average: WeightAverage | None = None
        if train.ema is not None:
            self.average = WeightAverage(
                self.networks, train.ema, self.precision.value, train.ema_start
            )
        for network in self.networks.values():
            self.precision.cast(network)
        randomness.seed_everything(train.seed, rank=1 + world.rank)
        self.updates = [
            PhaseUpdate(task, phase, self.networks, self._wrap, self.precision, train)
            for phase in task.phases()
        ]
        self.precision.complete()
        phases = [update.phase for update in self.updates]
        ends = [phase.ends for phase in phases if phase.ends is not None]
        self._changes = {phase.begins for phase in phases}.union(ends)
        """The epochs that have other phases than the one before."""
        self._check_phases()

        self.step = 0
        self.evaluated_step = -1
        self.metrics: dict[str, float] = {}
        self.best_value: float | None = None
        self.seconds_before = 0.0
        self.started = time.monotonic()
        self._has_reserved = False

        self.agreement = Agreement(world, watch)
        self._last_save = time.monotonic()
        resumed = self._resume(chosen)
        self.tracker = Tracking(
            run,
            world,
            start_step=self.step,
            evaluated=self.evaluated_step == self.step,
            trackers=train.trackers,
        )
        self.saver = CheckpointSaver(
            self.store,
            background=train.checkpoint.background,
            say=self.tracker.say,
            warn=self._warn,
        )
        self.pace = Pace(device)
        self.report = ProgressReport(self)
        for line in resumed:
            self.tracker.say(line)
        self.precision.open()  # last: an engine that cannot be made leaves nothing patched

    # -- building ---------------------------------------------------------------------------------

    def _check_phases(self) -> None:
        """Raise ValueError where the task's phases cannot be carried out."""
        phases = [update.phase for update in self.updates]
        entries = [entry for phase in phases for entry in phase.losses]
        losses = [n for entry in entries for n in ((entry,) if isinstance(entry, str) else entry)]
        for kind, names in {"phases": [phase.name for phase in phases], "losses": losses}.items():
            if len(names) > len(set(names)):
                raise ValueError(f"task {self.task.name} has two {kind} of one name: {names}")
        for update in self.updates:
            unknown = ", ".join(sorted(set(update.phase.weights) - set(update.losses)))
            if unknown:
                raise ValueError(f"phase {update.phase.name} has weights for no loss: {unknown}")
        for phase in phases:
            if phase.every < 1:
                raise ValueError(f"phase {phase.name} has every = {phase.every}, which is below 1")
        for epoch in {0} | self._changes:
            runs = any(phase.runs_in(epoch) and phase.every == 1 for phase in phases)
            if epoch < self.train.epochs and not runs:
                raise ValueError(
                    f"task {self.task.name} has no phase in epoch {epoch} that runs in each step"
                )

    def _place(self, network: nn.Module) -> nn.Module:
        if self.train.sync_batchnorm and self.world.size > 1:
            if self.device.type != "cuda":
                raise TrainingError(
                    "sync_batchnorm works on GPUs only (torch has no CPU kernel for it); "
                    "use group normalisation on CPUs"
                )
            converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)
            network = converted
        layout = torch.channels_last if self.train.channels_last else torch.contiguous_format
        return network.to(self.device).to(memory_format=layout)

    def _wrap(self, network: nn.Module) -> nn.Module:
        """DDP where there are several ranks. Buffers are not broadcast at every step: training does
        not read running statistics, and `_evaluation_networks` takes rank 0's before they count."""
        if self.world.size == 1 or not any(p.requires_grad for p in network.parameters()):
            return network
        devices = [self.device.index] if self.device.type == "cuda" else None
        # torch 2.14 renames the switch.
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        switch = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: dict[str, Any] = {switch: False}
        wrapped = DistributedDataParallel(
            network, device_ids=devices, gradient_as_bucket_view=True, **options
        )
        if self.timer is not None:
            self.timer.watch_exchange(wrapped)
        return wrapped

    # -- the loop ---------------------------------------------------------------------------------

    def fit(self) -> StopReason:
        """Train to the end, or until the ranks agree to stop. Returns the reason, NONE at the end.
        A checkpoint of the last step is on disk in both cases. Raises Superseded, without saving,
        where a later attempt works on the run."""
        for observer in self.observers:
            observer.begin(self)
        try:
            reason = self._train()
            # Once more: the last exchange may have been some steps ago.
            latest, _ = self.agreement.exchange(self.step, save=False)
            if StopReason.SUPERSEDED in (reason, latest):
                text = StopReason.SUPERSEDED.text
                raise Superseded(f"{text}: {self.agreement.watch.successor} is there")
            for observer in self.observers:
                observer.end(self)
            if self.timer is not None:
                self.timer.write(self, self.run.timing, hurry=bool(reason))
            self._moved("saving")
            self.save()
            return reason
        finally:
            # An error costs the steps since the last checkpoint, not one that is being written.
            self.saver.finish()
            self.precision.close()

    def _train(self) -> StopReason:
        evaluated = self.evaluated_step
        reason, _ = self._evaluate_if_due()
        if self.evaluated_step != evaluated and self.train.checkpoint.keep_best > 0:
            self.save()  # a stop had put that off, so the checkpoint is there without a metric
        while self.step < self.total_steps and not reason:
            epoch, start = divmod(self.step, self.data.steps_per_epoch)
            batches = self.data.epoch(epoch, start)
            for micro_batches in batches if self.timer is None else self.timer.watch(batches):
                self.train_step(micro_batches)
                if self.timer is not None:
                    self.timer.step_done()
                    if self.timer.ends_training:
                        self.total_steps = self.step
                if self._is_time_to_log():
                    self.report.log()
                reason, save = self._agree()
                # Before a save: the resumed run would otherwise evaluate this step again.
                if not reason:
                    reason, best = self._evaluate_if_due()
                    save |= best and self.train.checkpoint.keep_best > 0
                if reason or self.step >= self.total_steps:
                    break
                if save:
                    self.save()
        return reason

    def train_step(self, micro_batches: list[Any]) -> None:
        """One step: every phase of its epoch once, on this rank's share of one global batch."""
        epoch = self.step // self.data.steps_per_epoch
        updates = [u for u in self.updates if u.phase.runs_at(self.step, epoch)]
        self._rehearse([update for update in updates if not update.rehearsed], micro_batches)
        factor = self.rate(self.step, self.total_steps)
        taken = False
        try:
            for update in updates:
                update.set_rate(factor)
                taken |= update.run(micro_batches, self.saver.settle)
        except ScaleFloorError as error:
            raise TrainingError(f"step {self.step + 1}: {error}") from None
        if taken and self.average is not None:
            self.average.update()
        self.step += 1
        self._moved("training")
        if self.world.is_main and not self._has_reserved:
            # Optimizers have all their state after the first step of their phase.
            self.saver.reserve(state.tensors(self))
            self._has_reserved = True

    def _is_time_to_log(self) -> bool:
        """All the losses of a report are means over the same steps."""
        if self.step % self.train.log_every == 0 or self.step == self.total_steps:
            return True
        epoch, into = divmod(self.step, self.data.steps_per_epoch)
        return into == 0 and epoch in self._changes

    def _moved(self, phase: str) -> None:
        if self.sentry is not None:
            self.sentry.moved(self.step, phase)

    def _rehearse(self, updates: list[PhaseUpdate], micro_batches: list[Any]) -> None:
        """Run the first step that phases have in this attempt once without its effects.

        DDP rearranges its buckets after its first backward pass. The sum of three or more numbers
        depends on their order, and the order on the place in a bucket; so without this, the first
        step after a resume would differ in the last bit from the same step of a run that was never
        stopped.
        """
        if self.world.size == 1 or not updates:
            return
        buffers = [b for network in self.networks.values() for b in network.buffers()]
        kept = [buffer.clone() for buffer in buffers]
        generators = randomness.own_state(self.device)
        for update in updates:
            update.rehearse(micro_batches)
        randomness.set_own_state(generators, self.device)
        with torch.no_grad():
            for live, before in zip(buffers, kept, strict=True):
                live.copy_(before)

    def _agree(self) -> tuple[StopReason, bool]:
        """What all ranks do after a step: stop for a reason, save."""
        every = self.save_every
        in_time = every.unit == "seconds"
        save = not in_time and self.step % (every.count * self._steps_in[every.unit]) == 0
        save |= self._keep_every is not None and self.step % self._keep_every == 0
        reason = StopReason.NONE
        if self.agreement.due(self.step):
            self.saver.poll()
            # Twice: what is being written has to be done first.
            self.agreement.watch.leave_time(2 * (self.saver.seconds + self.agreement.step_seconds))
            late = in_time and time.monotonic() - self._last_save >= every.count
            reason, late = self.agreement.exchange(self.step, save=late)
            save |= late
        if self.step >= self.total_steps and reason is not StopReason.SUPERSEDED:
            return StopReason.NONE, False
        return reason, save

    # -- evaluation -------------------------------------------------------------------------------

    def _evaluate_if_due(self) -> tuple[StopReason, bool]:
        """Evaluate after the step if it is time. Returns a reason to stop that came up meanwhile,
        and whether its result is the best so far."""
        if self.train.evaluate_every == 0 or self.step in (0, self.evaluated_step):
            return StopReason.NONE, False
        epoch, into = divmod(self.step, self.data.steps_per_epoch)
        whole = into == 0 and epoch % self.train.evaluate_every == 0
        if not whole and self.step < self.total_steps:
            return StopReason.NONE, False
        before = self.best_value
        reason = self.evaluate()
        return reason, self.best_value != before

    def _evaluation_networks(self) -> dict[str, nn.Module]:
        networks = self.average.networks if self.average is not None else self.networks
        if self.world.size > 1:
            for network in networks.values():
                for buffer in network.buffers():
                    dist.broadcast(buffer, src=0)
        return networks

    @torch.no_grad()
    def evaluate(self) -> StopReason:
        """Metrics over the whole test data, exact for any number of ranks: sums are added up, not
        averages of averages. Where the ranks agree to stop meanwhile, the evaluation is given up,
        for the next attempt to do, and the reason returned."""
        self.pace.pause()
        self._moved("evaluation")
        networks = self._evaluation_networks()
        for network in networks.values():
            network.eval()
        sums, reason = self._evaluation_sums(networks)
        if not reason and self.world.is_main:
            with self.policy.autocast():
                self.tracker.pictures(self.step, self.task.pictures(networks))
        for network in networks.values():
            network.train()
        if not reason:
            self.metrics = self.task.summarize(self._add_over_ranks(sums))
            self.evaluated_step = self.step
            best = self.task.best
            if best is not None:
                self.best_value = best.better(self.metrics.get(best.metric), self.best_value)
            self.report.evaluation()
        self.resume_clocks()
        return reason

    def _evaluation_sums(
        self, networks: dict[str, nn.Module]
    ) -> tuple[dict[str, Tensor], StopReason]:
        """This rank's sums. The ranks exchange several times a second whether to stop."""
        sums: dict[str, Tensor] = {}
        exchanged = time.monotonic()
        with self.policy.autocast():
            for batch in self.task.evaluation_batches():
                for name, value in self.task.evaluate(batch, networks).items():
                    sums[name] = sums[name] + value if name in sums else value
                self._moved("evaluation")
                if time.monotonic() - exchanged >= _EVALUATING_SECONDS:
                    reason, _ = self.agreement.exchange_evaluating(done=False)
                    exchanged = time.monotonic()
                    if reason:
                        return sums, reason
        while True:
            reason, all_done = self.agreement.exchange_evaluating(done=True)
            self._moved("evaluation")
            if all_done:  # there is nothing left to give up
                return sums, StopReason.NONE
            if reason:
                return sums, reason

    def _add_over_ranks(self, sums: dict[str, Tensor]) -> dict[str, float]:
        if self.world.size == 1:
            return {name: float(value) for name, value in sums.items()}
        # A rank without a test sample has no sums, so the names are exchanged with the values.
        views = gather(self.world, {name: value.item() for name, value in sums.items()})
        names = {name for view in views for name in view}
        return {name: float(sum(view.get(name, 0) for view in views)) for name in names}

    # -- state ------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds of training over all attempts."""
        return self.seconds_before + time.monotonic() - self.started

    def resume_clocks(self) -> None:
        """Measure time again, after something that is not a training."""
        self.pace.resume()
        if self.timer is not None:
            self.timer.restart()

    def _warn(self, text: str) -> None:
        if self.world.is_main:
            with contextlib.suppress(OSError):  # the log may be on the disk that is full
                print(f"WARNING: {text}", flush=True)

    def save(self) -> None:
        """Save a checkpoint of the current step: the state is copied, and written while the
        training goes on. A collective call: all ranks give their random states. A disk that refuses
        is reported and training goes on with the older checkpoint."""
        self.pace.pause()
        ranks = gather_on_main(self.world, state.own(self))
        if ranks is not None:
            random, losses = (list(parts) for parts in zip(*ranks, strict=True))
            if self.policy.scales_loss or state.is_finite(losses):
                self.saver.save(
                    state.capture(self),
                    {"random": random, "losses": losses},
                    changing=[b for network in self.networks.values() for b in network.buffers()],
                )
            else:
                self._warn(f"no checkpoint of step {self.step}: the loss is not finite")
        self._last_save = time.monotonic()
        self.resume_clocks()

    def _resume(self, chosen: int | None) -> list[str]:
        """Go on from the checkpoint that rank 0 has chosen for all, or from one before where that
        cannot be read. Returns lines for the log; none where there is no checkpoint."""
        step = chosen
        while step is not None:
            problem = checkpoint = None
            try:
                checkpoint = self.store.load(step)
            except (DamagedCheckpoint, OSError) as error:
                problem = str(error)
            problems = [text for text in gather(self.world, problem) if text is not None]
            if checkpoint is not None and not problems:
                return state.restore(self, checkpoint)
            self.store.pass_over(step, problems[0])
            step = self._choose_checkpoint()
        if chosen is not None and self.task.first_weights():
            raise TrainingError(
                "none of the run's checkpoints can be read, and this attempt has not read its "
                "first weights"
            )
        return []

    def _choose_checkpoint(self) -> int | None:
        """The step of the newest valid checkpoint, as rank 0 sees it; None where there is none. A
        collective call."""
        choice = [self.store.newest() if self.world.is_main else None]
        if self.world.size > 1:
            dist.broadcast_object_list(choice, src=0)
        return choice[0]
