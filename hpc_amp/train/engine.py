"""The training loop, which is the same for every task.

One step is, in this order: update the networks, count the step, log, agree with the other ranks
whether to save or stop, evaluate, save.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
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
from hpc_amp.distributed.collect import copy_from_first, gather, gather_on_main
from hpc_amp.distributed.gradients import average_gradients
from hpc_amp.distributed.world import World
from hpc_amp.models.weights import load_weights
from hpc_amp.tasks.base import Task
from hpc_amp.train import randomness, state
from hpc_amp.train.agreement import Agreement
from hpc_amp.train.batch_norm import BatchNormEstimate
from hpc_amp.train.checkpoint import CheckpointStore, Retention
from hpc_amp.train.compiling import Compiler
from hpc_amp.train.ema import WeightAverage
from hpc_amp.train.errors import Superseded, TrainingError
from hpc_amp.train.manifest import DamagedCheckpoint
from hpc_amp.train.memory_format import to_channels_last
from hpc_amp.train.observer import Observer
from hpc_amp.train.pace import Pace
from hpc_amp.train.report import ProgressReport
from hpc_amp.train.rundir import RunDirectory
from hpc_amp.train.saver import CheckpointSaver
from hpc_amp.train.schedule import RateFactor, decay_after, rate_factor
from hpc_amp.train.sentry import Sentry
from hpc_amp.train.start import start_networks
from hpc_amp.train.stopping import StopReason, StopWatch
from hpc_amp.train.timing import StepTimer
from hpc_amp.train.tracking import Tracking
from hpc_amp.train.update import PhaseUpdate

# Seconds between two exchanges of the ranks during an evaluation.
_EVALUATING_SECONDS = 0.25


class Engine:
    """Trains one task on this rank, together with the other ranks.

    Every rank makes an engine with the same arguments and then calls `fit`. To make one is a
    collective call: it reads the newest valid checkpoint of the run, if there is one.

    `task`: what is trained.
    `train`: the `train` section of the job.
    `device`: the device of this rank (`hpc_amp.train.stages.prepare_device`).
    `run`: the run directory, and the number of this attempt.
    `watch`: what this process knows about a stop (signals, time limit, stop file).
    `sentry`: the thread that notices a hang. The engine reports each step to it.
    `observers`: are called when training begins and ends, and after reports and evaluations.
    `rate`: a learning rate schedule that replaces the one of `train.schedule`.

    Raises DataError, ModelError, PrecisionError, SettingError or TrainingError if the job cannot be
    trained, and ValueError if the phases of the task contradict each other.
    """

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
        self.compiler = Compiler(run, device) if train.compile else None
        self.observers: Sequence[Observer] = observers
        if self.compiler is not None:
            self.observers = [*observers, self.compiler]
        self.timer = StepTimer(train.timing, world, device) if train.timing is not None else None
        self.policy = PrecisionPolicy.create(train.precision, device)
        self.policy.configure_backends()
        self.data = task.prepare_data()
        self.total_steps = train.epochs * self.data.steps_per_epoch
        if train.max_steps is not None:
            self.total_steps = min(self.total_steps, train.max_steps)
        first_decay = decay_after(train.schedule, self.data.steps_per_epoch)
        self.rate = rate or partial(rate_factor, train.schedule, decay_after=first_decay)

        # Checkpoints. The one to resume from is chosen before the networks are built, because a run
        # that has a checkpoint does not read its first weights.
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

        # Networks: equal on all ranks. Afterwards each rank has random numbers of its own.
        randomness.seed_everything(train.seed)
        built = task.build_networks()
        started: list[str] = []
        if chosen is None:
            if train.start_from is not None:
                started = start_networks(built, train.start_from, world)
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

        # Phases: one optimizer each.
        average = self.timer.exchanges.average if self.timer is not None else average_gradients
        trained = self.networks
        if self.compiler is not None:
            trained = self.compiler.compiled(self.networks)
        self.updates = [
            PhaseUpdate(task, phase, trained, self._wrap, self.precision, train, average)
            for phase in task.phases()
        ]
        self.precision.complete()
        self._phase_changes: set[int] = set()
        """The epochs in which a phase begins or has ended."""
        for update in self.updates:
            self._phase_changes.add(update.phase.begins)
            if update.phase.ends is not None:
                self._phase_changes.add(update.phase.ends)
        self._check_phases()

        # Progress, which a checkpoint restores.
        self.step = 0
        self.evaluated_step = -1
        self.metrics: dict[str, float] = {}
        self.best_value: float | None = None
        self.warnings: dict[str, str] = {}
        self.seconds_before = 0.0
        self.started = time.monotonic()
        self._has_reserved = False
        self._last_save = time.monotonic()
        resumed = self._resume(chosen)

        # Logs and checkpoints of this attempt.
        self.agreement = Agreement(world, watch)
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
        for line in [*started, *resumed]:
            self.tracker.say(line)
        # Last: if the engine cannot be made, no function of torch stays patched.
        self.precision.open()

    # -- building ---------------------------------------------------------------------------------

    def _check_phases(self) -> None:
        """Raise ValueError if the phases of the task contradict each other."""
        task = self.task.name
        phase_names = [update.phase.name for update in self.updates]
        loss_names: list[str] = []
        for update in self.updates:
            for entry in update.phase.losses:
                loss_names += [entry] if isinstance(entry, str) else entry
        if len(phase_names) > len(set(phase_names)):
            raise ValueError(f"task {task} has two phases of the same name: {phase_names}")
        if len(loss_names) > len(set(loss_names)):
            raise ValueError(f"task {task} has two losses of the same name: {loss_names}")
        for update in self.updates:
            unknown = sorted(set(update.phase.weights) - set(update.losses))
            if unknown:
                raise ValueError(
                    f"phase {update.phase.name} has no loss of the name {', '.join(unknown)}, but "
                    "`weights` names it"
                )
        for update in self.updates:
            if update.phase.every < 1:
                raise ValueError(
                    f"phase {update.phase.name} has every = {update.phase.every}, which is below 1"
                )
        for epoch in {0} | self._phase_changes:
            phases = [update.phase for update in self.updates if update.phase.runs_in(epoch)]
            if epoch < self.train.epochs and not any(phase.every == 1 for phase in phases):
                raise ValueError(
                    f"task {task} has no phase in epoch {epoch} that runs in each step"
                )

    def _place(self, network: nn.Module) -> nn.Module:
        """Move a network to the device, in the memory format that the job asks for."""
        if self.train.sync_batchnorm and self.world.size > 1:
            if self.device.type != "cuda":
                raise TrainingError(
                    "sync_batchnorm works on GPUs only (torch has no CPU kernel for it); "
                    "use group normalisation on CPUs"
                )
            converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)
            network = converted
        network = network.to(self.device)
        if self.train.channels_last:
            return to_channels_last(network)
        return network.to(memory_format=torch.contiguous_format)

    def _wrap(self, network: nn.Module) -> nn.Module:
        """Wrap a network in DDP if there are several ranks and it has weights to train.

        Buffers are not broadcast at every step: training does not read running statistics, and
        `_evaluation_networks` copies those of rank 0 to all ranks before an evaluation reads them.
        """
        if self.world.size == 1 or not any(p.requires_grad for p in network.parameters()):
            return network
        devices = [self.device.index] if self.device.type == "cuda" else None
        # torch 2.14 renames the argument.
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        switch = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: dict[str, Any] = {switch: False}
        wrapped = DistributedDataParallel(
            network, device_ids=devices, gradient_as_bucket_view=True, **options
        )
        if self.timer is not None:
            self.timer.exchanges.watch(wrapped)
        return wrapped

    # -- the loop ---------------------------------------------------------------------------------

    def fit(self) -> StopReason:
        """Train until the last step, or until the ranks agree to stop.

        Returns the reason to stop, StopReason.NONE after the last step. In both cases a checkpoint
        of the newest step is on disk, unless the disk refused it. A collective call.

        Raises Superseded, without saving, if a later attempt works on the run, and TrainingError if
        training cannot go on.
        """
        for observer in self.observers:
            observer.begin(self)
        try:
            reason = self._train()
            # Exchange once more, because the last exchange may have been some steps ago.
            latest, _ = self.agreement.exchange(self.step, save=False)
            if StopReason.SUPERSEDED in (reason, latest):
                text = StopReason.SUPERSEDED.text
                raise Superseded(f"{text}: {self.agreement.watch.successor} is there")
            for observer in self.observers:
                observer.end(self)
            if self.timer is not None:
                self.timer.write(self, self.run.timing, hurry=bool(reason))
            if not reason and self.evaluated_step != self.step and self.timer is None:
                self._estimate_statistics()
            self._moved("saving")
            self.save()
            return reason
        finally:
            # An error must not cut off a checkpoint that is still being written.
            self.saver.finish()
            self.precision.close()

    def _train(self) -> StopReason:
        """The loop over steps. Returns the reason to stop, StopReason.NONE after the last step."""
        # A stop may have interrupted the evaluation of the step that was resumed. Its checkpoint
        # has no metric then; saving again adds the metric, so that `keep_best` can compare it.
        resumed_evaluation = self.evaluated_step
        reason, _ = self._evaluate_if_due()
        if self.evaluated_step != resumed_evaluation and self.train.checkpoint.keep_best > 0:
            self.save()
        while self.step < self.total_steps and not reason:
            epoch, start = divmod(self.step, self.data.steps_per_epoch)
            batches = self.pace.watch(self.data.epoch(epoch, start))
            if self.timer is not None:
                batches = self.timer.watch(batches)
            for micro_batches in batches:
                if self.step == 0 and self.world.is_main:
                    images = self.task.input_pictures(micro_batches[0])
                    self.tracker.pictures(1, images, "inputs")
                self.train_step(micro_batches)
                if self.timer is not None:
                    self.timer.step_done()
                    if self.timer.ends_training:
                        self.total_steps = self.step
                if self._is_time_to_log(self.step):
                    self.report.log()
                reason, save = self._agree()
                # Evaluate before saving: a resumed run would otherwise evaluate this step again.
                if not reason:
                    reason, best = self._evaluate_if_due()
                    save |= best and self.train.checkpoint.keep_best > 0
                if reason or self.step >= self.total_steps:
                    break
                if save:
                    self.save()
        return reason

    def train_step(self, micro_batches: list[Any]) -> None:
        """Run one step: each phase that is due in it, once.

        `micro_batches` is this rank's share of one global batch, in `train.accumulate` parts.
        Raises TrainingError if a loss scale falls to its lower limit.
        """
        epoch = self.step // self.data.steps_per_epoch
        updates = [u for u in self.updates if u.phase.runs_at(self.step, epoch)]
        factor = self.rate(self.step, self.total_steps)
        taken = False
        try:
            if self.world.size > 1:
                self._rehearse([u for u in updates if not u.rehearsed], micro_batches)
            for update in updates:
                update.set_rate(factor)
                measure = self._reports_before(self.step + update.phase.every)
                taken |= update.run(micro_batches, self.saver.settle, measure=measure)
        except ScaleFloorError as error:
            raise TrainingError(f"step {self.step + 1}: {error}") from None
        except Exception as error:
            explained = self.compiler.explained(error) if self.compiler is not None else None
            if explained is None:
                raise
            raise explained from error
        if taken and self.average is not None:
            self.average.update()
        self.step += 1
        self._moved("training")
        if self.world.is_main and not self._has_reserved:
            # An optimizer has all of its state after the first step of its phase.
            self.saver.reserve(state.tensors(self))
            self._has_reserved = True

    def _is_time_to_log(self, step: int) -> bool:
        """Whether to report after `step`: at every `log_every`-th step, at the last one, and where
        the phases change, so that all losses of a report are means over the same steps."""
        if step % self.train.log_every == 0 or step == self.total_steps:
            return True
        epoch, into = divmod(step, self.data.steps_per_epoch)
        return into == 0 and epoch in self._phase_changes

    def _reports_before(self, step: int) -> bool:
        """Whether there is a report after the present step or a later one up to `step`."""
        return any(self._is_time_to_log(later) for later in range(self.step + 1, step + 1))

    def _moved(self, phase: str) -> None:
        """Report progress to the sentry."""
        if self.sentry is not None:
            self.sentry.moved(self.step, phase)

    def _rehearse(self, updates: list[PhaseUpdate], micro_batches: list[Any]) -> None:
        """Run the first step of `updates` once without keeping its effects.

        DDP rearranges its buckets after its first backward pass. The sum of three or more
        floating-point numbers depends on their order, and the order depends on the position in a
        bucket. Without a rehearsal in each attempt, the first step after a resume would differ in
        the last bit from the same step of a run that was never stopped.
        """
        if not updates:
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
        """Exchange with the other ranks after a step. Returns the reason to stop that all ranks
        agree on, and whether all ranks save now."""
        every = self.save_every
        by_time = every.unit == "seconds"
        save = not by_time and self.step % (every.count * self._steps_in[every.unit]) == 0
        if self._keep_every is not None and self.step % self._keep_every == 0:
            save = True
        reason = StopReason.NONE
        if self.agreement.due(self.step):
            self.saver.poll()
            # Twice the time of a checkpoint: one that is being written has to be finished first.
            self.agreement.watch.leave_time(2 * (self.saver.seconds + self.agreement.step_seconds))
            overdue = by_time and time.monotonic() - self._last_save >= every.count
            reason, overdue = self.agreement.exchange(self.step, save=overdue)
            save |= overdue
        if self.step >= self.total_steps and reason is not StopReason.SUPERSEDED:
            return StopReason.NONE, False  # the run is complete, and `fit` saves the last step
        return reason, save

    # -- evaluation -------------------------------------------------------------------------------

    def _evaluate_if_due(self) -> tuple[StopReason, bool]:
        """Evaluate after this step if it is time to. Returns a reason to stop that came up during
        the evaluation, and whether the result is the best so far."""
        if self.train.evaluate_every == 0 or self.step in (0, self.evaluated_step):
            return StopReason.NONE, False
        epoch, into = divmod(self.step, self.data.steps_per_epoch)
        end_of_epoch = into == 0 and epoch % self.train.evaluate_every == 0
        if not end_of_epoch and self.step < self.total_steps:
            return StopReason.NONE, False
        before = self.best_value
        reason = self.evaluate()
        return reason, self.best_value != before

    def _evaluation_networks(self) -> dict[str, nn.Module]:
        """The networks to evaluate: the average if there is one. Every rank gets the buffers of
        rank 0, since DDP does not broadcast them during training. A collective call."""
        networks = self.average.networks if self.average is not None else self.networks
        buffers = [b for network in networks.values() for b in network.buffers()]
        copy_from_first(self.world, buffers)
        return networks

    @torch.no_grad()
    def evaluate(self) -> StopReason:
        """Compute the metrics over the whole test data and store them in `metrics`.

        The result is exact for any number of ranks: the ranks add up sums, they do not average
        averages. If the ranks agree to stop meanwhile, the evaluation is abandoned, the next
        attempt repeats it, and the reason is returned; otherwise StopReason.NONE. A collective
        call.
        """
        self.pace.pause()
        self._moved("evaluation")
        networks = self._evaluation_networks()
        for network in networks.values():
            network.eval()
        self._estimate_statistics()
        sums, reason = self._evaluation_sums(networks)
        if not reason and self.world.is_main:
            with self.policy.autocast():
                self.tracker.pictures(self.step, self.task.pictures(networks))
                self.tracker.animation(self.step, self.task.animation(networks))
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

    @torch.no_grad()
    def _estimate_statistics(self) -> None:
        """Estimate the statistics of the batch norms of the average from the first training
        batches, which are the same in every evaluation, so one that is repeated after a resume
        gives the same ones. With `accumulate`, they depend on the number of ranks. A collective
        call."""
        count = min(self.train.ema_batch_norm, self.data.steps_per_epoch)
        if self.average is None or count == 0:
            return
        networks = self.average.networks
        estimate = BatchNormEstimate(networks.values(), self.world)
        if not estimate.layers:
            return
        for network in networks.values():
            network.eval()
        generators = randomness.own_state(self.device)
        with estimate, self.policy.autocast():
            for micro_batches in itertools.islice(self.data.epoch(0), count):
                if not all(self.task.forward_pass(batch, networks) for batch in micro_batches):
                    break
                self._moved("evaluation")
        randomness.set_own_state(generators, self.device)

    def _evaluation_sums(
        self, networks: dict[str, nn.Module]
    ) -> tuple[dict[str, Tensor], StopReason]:
        """The sums over this rank's share of the test data, and a reason to stop. The ranks agree
        about a stop several times a second."""
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
        while True:  # until the slowest rank has evaluated its share
            reason, all_done = self.agreement.exchange_evaluating(done=True)
            self._moved("evaluation")
            if all_done:
                return sums, StopReason.NONE
            if reason:
                return sums, reason

    def _add_over_ranks(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """The sums over all ranks, by name."""
        if self.world.size == 1:
            return {name: float(value) for name, value in sums.items()}
        # A rank without test samples has no sums, so the names are exchanged with the values.
        views = gather(self.world, {name: value.item() for name, value in sums.items()})
        totals: dict[str, float] = {}
        for view in views:
            for name, value in view.items():
                totals[name] = totals.get(name, 0) + value
        return {name: float(total) for name, total in totals.items()}

    # -- state ------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds of training in all attempts of the run."""
        return self.seconds_before + time.monotonic() - self.started

    def resume_clocks(self) -> None:
        """Measure speed and step times again after something that is not training, such as an
        evaluation or a checkpoint."""
        self.pace.resume()
        if self.timer is not None:
            self.timer.restart()

    def _warn(self, text: str) -> None:
        if self.world.is_main:
            with contextlib.suppress(OSError):  # the log may be on the disk that is full
                print(f"WARNING: {text}", flush=True)

    def save(self) -> None:
        """Save a checkpoint of the current step.

        Rank 0 copies the state and writes it while training goes on. A collective call: each rank
        sends its random state. If the disk refuses the checkpoint, the log says so and training
        goes on.
        """
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
        """Restore the checkpoint of step `chosen`, or an earlier one if any rank cannot read it.
        Returns lines for the log, empty if the run begins from nothing. A collective call."""
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
        # Networks were built without their first weights, because there was a checkpoint.
        first_weights = self.train.start_from is not None or bool(self.task.first_weights())
        if chosen is not None and first_weights:
            raise TrainingError(
                "no checkpoint of the run can be read any more, and this attempt did not load its "
                "first weights"
            )
        return []

    def _choose_checkpoint(self) -> int | None:
        """The step of the newest valid checkpoint that rank 0 finds, or None. A collective call."""
        choice = [self.store.newest() if self.world.is_main else None]
        if self.world.size > 1:
            dist.broadcast_object_list(choice, src=0)
        return choice[0]
