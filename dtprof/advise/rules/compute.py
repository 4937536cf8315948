"""Rules about what the device computes: precision, attention, short and unfused kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dtprof.advise.places import per_rank, ranks_of, severity_of, step_ns, steps_of
from dtprof.analyse.compute import ComputeResult, gpu_of_all
from dtprof.analyse.compute_attention import AttentionResult
from dtprof.analyse.kernels import SHORT_NS
from dtprof.analyse.results import AccountingResult
from dtprof.catalogue.hardware import Gpu
from dtprof.findings import Evidence, Finding
from dtprof.numbers import count, counted, percent, time
from dtprof.protocols import Lens

_LEAST_SHARE = 0.05
_FP32_SHARE, _SIXTEEN_SHARE, _CASTS_SHARE = 0.10, 0.50, 0.10
_SMALL_SHARE, _LEAST_SMALL = 0.20, 100
_FUSABLE_SHARE = 0.25
# where the device waits for the host longer than this, shorter kernels gain nothing
_HOST_BOUND = 0.15
_NAMES = {"tf32": "TF32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}
_HOW = {
    "tf32": "torch.set_float32_matmul_precision('high')",
    "bf16": "torch.autocast('cuda', dtype=torch.bfloat16) around forward and loss",
    "fp16": "torch.autocast('cuda', dtype=torch.float16) around forward and loss, with torch.amp.GradScaler",
    "fp8": "torchao.float8.convert_to_float8_training(model), or Transformer Engine",
}


class Precision:
    """Products are multiplied in a type for which the device has a much faster one."""

    id = "compute.precision"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs one kind of device of the catalogue. The price is a bound: products at the peak's ratio, all else as it is."""
        result: ComputeResult = study.result("compute")
        accounting: AccountingResult = study.result("accounting")
        gpu = gpu_of_all(study.run)
        if gpu is None or result.why or _waits_for_host(accounting):
            return
        whole = step_ns(accounting)
        yield from self._wasted_casts(accounting, result, gpu, whole)
        for now, wanted, least in (("fp32", ("tf32", "bf16", "fp16"), _FP32_SHARE), ("bf16", ("fp8",), _SIXTEEN_SHARE)):
            spent, target = result.math.get(now), _faster(gpu, now, wanted)
            if spent is None or target is None or spent.ns < least * whole:
                continue
            better, ratio = target
            cost = spent.ns * (1 - 1 / ratio)
            share = min(cost / whole, 1.0)
            half = _faster(gpu, now, ("bf16",)) if better == "tf32" else None
            more = f"; bf16 is {half[1]:.0f} times as fast" if half else ""
            yield Finding(
                rule=self.id,
                # fewer bits than 16 are another training: never more than a low finding
                severity="low" if now == "bf16" else severity_of(share),
                title=f"{percent(spent.ns / whole)} of the step multiplies matrices in {now}; {gpu.name} has {_NAMES[better]}, "
                f"{ratio:.0f} times as fast at its peak",
                ranks=ranks_of(accounting),
                steps=steps_of(accounting),
                seconds_per_step=cost / 1e9,
                evidence=(
                    Evidence(
                        f"{spent.count:.0f} kernels per step whose names say {now}, {time(spent.ns)} of "
                        f"{time(whole)}.", spent.rows
                    ),
                    Evidence(f"Dense peaks of {gpu.name}: {_peak(gpu, now)} and {_peak(gpu, better)} ({gpu.source})."),
                ),
                why=f"these products run on the plain arithmetic units, at {_peak(gpu, now)} at most"
                if now == "fp32"
                else "products are most of the step, and the device multiplies 8 bits twice as fast",
                next=f"{_HOW[better]}{more}; watch the loss",
                apply=_HOW[better],
                verify="dtprof gate with both commands; the losses side by side over some thousand steps",
                share=share,
                bound=True,
            )  # fmt: skip

    def _wasted_casts(self, accounting: AccountingResult, result: ComputeResult, gpu: Gpu, whole: float) -> Iterator[Finding]:
        """16 bits that cost more in conversions than they gain in products."""
        products = sum(result.math[t].ns for t in ("bf16", "fp16") if t in result.math)
        slower = gpu.flops("tf32") or gpu.flops("fp32")
        if not products or slower is None or result.casts.ns < _CASTS_SHARE * whole:
            return
        gained = products * ((gpu.flops("bf16") or slower) / slower - 1)
        if gained >= result.casts.ns:
            return
        cost = result.casts.ns - gained
        yield Finding(
            rule=self.id,
            severity=severity_of(cost / whole),
            title=f"Conversions to and from 16 bits take {time(result.casts.ns)}, and the products gain {time(gained)} at most",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=cost / 1e9,
            evidence=(
                Evidence(f"{result.casts.count:.0f} conversions per step.", result.casts.rows),
                Evidence(f"Products in 16 bits take {time(products)} per step; without, they would run at {slower / 1e12:g} "
                    f"TFLOP/s."),
            ),
            why="the model has few products for its size, so that autocast converts more than it saves",
            next="keep weights and activations in one type (model.to(torch.bfloat16) with fp32 master weights), or leave "
                "autocast",
            apply="no autocast around small modules; or parameters in bf16",
            verify="dtprof gate with both commands",
            share=cost / whole,
            bound=True,
        )  # fmt: skip


def _peak(gpu: Gpu, dtype: str) -> str:
    return f"{(gpu.flops(dtype) or 0.0) / 1e12:g} TFLOP/s in {dtype}"


def _faster(gpu: Gpu, now: str, wanted: tuple[str, ...]) -> tuple[str, float] | None:
    """The first of the wanted types that the device multiplies at twice the rate or more, and how many times."""
    base = gpu.flops(now)
    for dtype in wanted:
        rate = gpu.flops(dtype)
        if base and rate and rate >= 1.9 * base:
            return dtype, rate / base
    return None


def _waits_for_host(accounting: AccountingResult) -> bool:
    idle = per_rank(accounting, "idle_host_ns")
    return bool(idle) and float(np.mean(list(idle.values()))) >= _HOST_BOUND * step_ns(accounting)


class FusedAttention:
    """Attention is written out, and its scores go through memory."""

    id = "compute.fused_attention"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs the operators of the host. The price is a bound: a fused kernel does the same arithmetic, without the
        traffic."""
        result: AttentionResult = study.result("attention")
        accounting: AccountingResult = study.result("accounting")
        whole = step_ns(accounting)
        if not result.layers or result.between_ns < _LEAST_SHARE * whole:
            return
        share = result.between_ns / whole
        yield Finding(
            rule=self.id,
            severity=severity_of(share),
            title=f"Attention is written out: scaling, mask, softmax and dropout of its scores take {percent(share)} of the "
            f"step",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=result.between_ns / 1e9,
            evidence=(
                Evidence(
                    f"bmm, softmax, bmm in a row, {result.layers:.3g} times per step in the forward pass; between the "
                    f"products, "
                    f"forward and backward, {time(result.between_ns)} of computing.",
                    result.rows,
                ),
            ),
            why="the scores of all pairs of tokens are written and read again for every operation on them; their number grows "
            "with the square of the sequence",
            next="torch.nn.functional.scaled_dot_product_attention: one kernel that keeps the scores on the chip, and less "
            "memory",
            apply="F.scaled_dot_product_attention(q, k, v, is_causal=True) instead of softmax(q @ k.T / sqrt(d)) @ v",
            verify="dtprof gate with both commands; the peak of memory falls as well",
            share=share,
            bound=True,
        )


class SmallKernels:
    """The device is busy with very many very short kernels."""

    id = "compute.small_kernels"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Where the device waits for launches, host.launch_bound says it already. The price is a bound: their whole time."""
        result: ComputeResult = study.result("compute")
        accounting: AccountingResult = study.result("accounting")
        whole, small = step_ns(accounting), result.small
        if small.ns < _SMALL_SHARE * whole or small.count < _LEAST_SMALL or _waits_for_host(accounting):
            return
        own = result.small_optimizer
        most = own.count > small.count / 2
        fused = "fused=True (or foreach=True) for the optimizer, which then takes a few kernels instead of some per parameter"
        yield Finding(
            rule=self.id,
            severity=severity_of(small.ns / whole),
            title=f"{count(round(small.count))} kernels below {time(SHORT_NS)} take {percent(small.ns / whole)} of the step",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=small.ns / 1e9,
            evidence=(
                Evidence(f"{time(small.ns)} per step; {count(round(own.count))} of them in the optimizer.", small.rows),
            ),
            why="a kernel of a few microseconds mostly starts and ends: the device cannot fill itself with so little work",
            next=fused if most else "torch.compile, which fuses neighbours; CUDA graphs; a larger batch. dtprof hta PATH lists "
            "the sequences that repeat",
            apply=fused if most else "torch.compile(model), or torch.compile(model, mode='reduce-overhead')",
            verify="dtprof gate with both commands; dtprof report should count fewer kernels",
            share=small.ns / whole,
            bound=True,
        )  # fmt: skip


class Unfused:
    """Elementwise kernels and normalisations, each of which reads and writes everything, fill a good part of the step."""

    id = "compute.unfused"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Silent where a compiler made kernels already. The price is a bound: fusing leaves one read and one write."""
        result: ComputeResult = study.result("compute")
        accounting: AccountingResult = study.result("accounting")
        whole, spent = step_ns(accounting), result.fusable
        if result.fused or spent.ns < _FUSABLE_SHARE * whole or _waits_for_host(accounting):
            return
        products = result.kinds.get("products")
        beside = f"; products take {percent(products.ns / whole)}" if products else ""
        yield Finding(
            rule=self.id,
            severity=severity_of(spent.ns / whole),
            title=f"Elementwise kernels and normalisations take {percent(spent.ns / whole)} of the step, each for itself",
            ranks=ranks_of(accounting),
            steps=steps_of(accounting),
            seconds_per_step=spent.ns / 1e9,
            evidence=(
                Evidence(f"{counted(round(spent.count), 'kernel')} per step, {time(spent.ns)}{beside}; none was made by a "
                    f"compiler.",
                         spent.rows),
            ),
            why="each of them reads its inputs from memory and writes its output back, for an operation or two per element",
            next="torch.compile(model), which puts chains of them into one kernel; or fused modules (RMSNorm, SwiGLU, rotary "
            "positions, cross entropy)",
            apply="torch.compile(model), layer by layer where graphs break",
            verify="dtprof gate with both commands; the kernels are then called triton_…",
            share=spent.ns / whole,
            bound=True,
        )  # fmt: skip
