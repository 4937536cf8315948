"""Rules about how the training is done: what costs accuracy or steps rather than time of a step."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.advise.places import severity_of
from dtprof.analyse.training import TrainingResult
from dtprof.findings import Evidence, Finding
from dtprof.numbers import count, counted, fixed, named, percent
from dtprof.protocols import Lens

# a scaler that doubles its scale every 2000 steps skips one step in as many
_MOST_SKIPS, _LEAST_SKIPS = 0.02, 3
# batch by noise scale from which on more samples gain little, and below which larger batches would need fewer steps
_TOO_LARGE, _TOO_SMALL = 4.0, 0.1
# the rate is meant for another batch from this factor on
_OTHER_BATCH = 2.0


class SamplerEpoch:
    """A shuffling DistributedSampler gives every epoch the order of the first."""

    id = "training.sampler_epoch"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs two iterations of one sampler; silent as soon as its epoch was ever another one. It costs no time: no price."""
        result: TrainingResult = study.result("training")
        if not result.repeated:
            return
        ranks = tuple(sorted(result.repeated))
        epochs = result.repeated[ranks[0]]
        yield Finding(
            rule=self.id,
            severity="medium",
            title=f"Every epoch has the order of the first: {named('rank', ranks)} never set the sampler's epoch",
            ranks=ranks,
            steps=(),
            seconds_per_step=None,
            evidence=(
                Evidence(
                    f"The shuffling DistributedSampler was iterated {counted(len(epochs), 'time')}, each time as epoch "
                    f"{epochs[0]}."
                ),
            ),
            why="DistributedSampler shuffles with seed + epoch, and the epoch stays what it is until set_epoch is called",
            next="call sampler.set_epoch(epoch) at the beginning of every epoch, on every rank",
            apply="for epoch in range(epochs): sampler.set_epoch(epoch); for batch in loader: …",
            verify="run two epochs again: the rule is silent when the epochs differ",
        )


class ClipOrder:
    """Gradients are clipped while they are multiplied by the loss scale."""

    id = "training.clip_order"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs torch's GradScaler and clipping, both heard of by the collector ``training``. It costs no time: no price."""
        result: TrainingResult = study.result("training")
        if result.clips is None or not result.clips[0]:
            return
        scaled, unscaled = result.clips
        factor = (
            f"{count(round(result.skips.scale))} times" if result.skips and result.skips.scale else "as many times as the scale"
        )
        yield Finding(
            rule=self.id,
            severity="high" if not unscaled else "medium",
            title="Gradients are clipped before they are unscaled: the norm that is clipped is that of the scaled ones",
            ranks=(),
            steps=(),
            seconds_per_step=None,
            evidence=(
                Evidence(
                    f"{counted(scaled, 'clipping')} between GradScaler.scale and unscale_, {count(unscaled)} after unscale_."
                ),
            ),
            why=f"scaled gradients are {factor} too long, so that nearly all of them is cut off, and the limit means nothing",
            next="call scaler.unscale_(optimizer) before clip_grad_norm_",
            apply="scaler.unscale_(optimizer); torch.nn.utils.clip_grad_norm_(parameters, limit); scaler.step(optimizer)",
            verify="run again: the rule is silent, and the loss falls faster at the same learning rate",
        )


class ScalerSkips:
    """A gradient scaler leaves out many steps after it should have found its scale."""

    id = "training.scaler_skips"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs the metric ``skipped``. Skips in a row at the start are how a scale is found. The price: steps for nothing."""
        result: TrainingResult = study.result("training")
        skips = result.skips
        if skips is None or skips.later < _LEAST_SKIPS:
            return
        share = skips.later / max(skips.steps - skips.first, 1)
        if share < _MOST_SKIPS:
            return
        price = None if result.step_ns is None or share >= 1 else result.step_ns * share / (1 - share) / 1e9
        listed = ", ".join(map(str, skips.numbers[:8])) + (", …" if len(skips.numbers) > 8 else "")
        scale = f" The scale is {skips.scale:g} at the end." if skips.scale is not None else ""
        yield Finding(
            rule=self.id,
            severity=severity_of(share),
            title=f"{percent(share)} of the steps update nothing: the gradient scaler found overflows in "
            f"{count(skips.later)} of them",
            ranks=(),
            steps=skips.numbers,
            seconds_per_step=price,
            evidence=(
                Evidence(
                    f"Skipped steps: {listed}; {counted(skips.first, 'skip')} at the start, while the scale is looked for, "
                    f"do not "
                    f"count.{scale}"
                ),
            ),
            why="gradients overflow in fp16 again and again, so that the scale is halved for each; a healthy scaler skips one "
            "step in some two thousand",
            next="bf16 needs no scaler; else look for what overflows (loss spikes, attention scores, a division), or grow the "
            "scale less often (growth_interval)",
            apply="torch.autocast(dtype=torch.bfloat16) without a scaler, where the device has it",
            verify="run again: the metric skipped stays 0 after the start",
            share=share,
        )


class NoiseScale:
    """The batch is far from what the noise of the gradients calls for."""

    id = "training.noise_scale"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs the metric ``gradient_noise_scale`` and the samples of all ranks. It is about steps needed: no price."""
        result: TrainingResult = study.result("training")
        batch, noise = result.batch, result.noise
        if batch is None or noise is None or noise <= 0 or _TOO_SMALL * noise < batch < _TOO_LARGE * noise:
            return
        large = batch >= _TOO_LARGE * noise
        # McCandlish et al. 2018, equation 2.11: samples needed grow by 1 + B / noise, steps by 1 + noise / B
        wasted, steps = 1 - 1 / (1 + batch / noise), 1 + noise / batch
        title = (
            f"{percent(wasted)} of the samples are for nothing: the batch is {fixed(batch / noise, 1)} times the gradient "
            f"noise scale"
            if large
            else f"A larger batch would need fewer steps: this one is {percent(batch / noise)} of the gradient noise scale"
        )
        yield Finding(
            rule=self.id,
            severity="low",
            title=title,
            ranks=(),
            steps=(),
            seconds_per_step=None,
            evidence=(
                Evidence(
                    f"{count(round(batch))} samples per step on all ranks; noise scale {fixed(noise, 1)} samples (median of "
                    f"the "
                    "second half of the run)."
                ),
            ),
            why="averaging more samples than the noise scale leaves the direction of the step nearly as it is"
            if large
            else f"at this batch training needs {fixed(steps, 1)} times the steps of a very large batch, and each is nearly "
                f"as long",
            next=f"a batch of about {count(max(round(noise), 1))} samples balances steps and samples; the noise scale grows "
                f"as the "
            "loss falls, so look again",
            apply="fewer ranks or samples per rank, with the learning rate scaled" if large else "more samples per step, "
                "with the "
            "learning rate scaled",
            verify="samples, or steps, to the same loss",
        )  # fmt: skip


class LrScaling:
    """The learning rate is meant for another batch than the one of this run."""

    id = "training.lr_scaling"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs the knobs ``base_batch`` (and ``lr``, or the metric ``learning_rate``), and the samples of all ranks."""
        result: TrainingResult = study.result("training")
        batch, base = result.batch, result.base_batch
        if batch is None or base is None or result.scaling not in (None, "none"):
            return
        factor = batch / base
        if 1 / _OTHER_BATCH < factor < _OTHER_BATCH:
            return
        rate = result.rate
        linear, root = (f"{rate * f:.3g}" if rate is not None else f"{f:.3g} times" for f in (factor, factor**0.5))
        yield Finding(
            rule=self.id,
            severity="low",
            title=f"The learning rate is that of a batch of {count(round(base))}, and the step has {count(round(batch))} "
            f"samples",
            ranks=(),
            steps=(),
            seconds_per_step=None,
            evidence=(
                Evidence(
                    f"knobs: base_batch {count(round(base))}, lr_scaling {result.scaling or 'not given'}"
                    + (f"; rate {rate:g}" if rate is not None else "")
                    + f"; {count(round(batch))} samples per step on all ranks."
                ),
            ),
            why="a batch of k times the size takes k times fewer steps, and at the same rate the weights move less",
            next=f"scale it: {linear} by the linear rule (SGD; Goyal et al. 2017, with a warm-up), {root} by the root (Adam; "
            "Krizhevsky 2014)",
            apply=f"lr {linear} or {root}, with a warm-up of some hundred steps",
            verify="the loss after the same number of samples",
        )
