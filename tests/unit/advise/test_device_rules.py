"""Rules that look at a device's work and memory, on traces made by hand: found, priced, and silent where they should be."""

from typing import ClassVar

import pytest

from dtprof.advise import findings
from dtprof.analyse import study_of
from dtprof.catalogue.precision import is_product, precision_of
from tests.unit.advise.recorded import MS
from tests.unit.shapes.build import T0, US, PartBuilder, shape

A100, H100, V100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB"
SGEMM, TF32 = "ampere_sgemm_128x64_nn", "cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4"
BF16 = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
CAST = "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda>"
STEP = 10_000


def part(work, *, rank=0, ranks=1, device=A100, steps=3, gap=0, extra=None, phase=None):
    """Steps of 10 ms on one stream: ``work`` is (name, us, how many), back to back; ``gap`` us of nothing at the end."""
    made = PartBuilder(rank, rank, device=device, world_size=ranks)
    at = (made.thread(), made.stream(7))
    for step in range(steps):
        begin, now = STEP * step, STEP * step
        for name, us, count in work:
            for _ in range(count):
                made.launched(at, "kernel", name, now + 10, now + 10 + us, begin, step=step, phase=phase)
                now += us
        rest = STEP - gap - (now - begin)
        made.launched(at, "kernel", "other_kernel", now + 10, now + 10 + rest, begin, step=step)
        if extra:
            extra(made, at, step, begin)
        made.step(step, begin, begin + STEP)
    return made


def study(*parts, **manifest):
    return study_of(shape(list(parts), {}, world_size=len(parts), **manifest).run)


def by_rule(*parts, **manifest):
    return {f.rule: f for f in findings(study(*parts, **manifest))}


@pytest.mark.parametrize(
    ("name", "precision", "product"),
    [
        ("volta_sgemm_128x64_nn", "fp32", True),
        ("cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1", "fp32", True),
        (TF32, "tf32", True),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize64x128x32", "tf32", True),
        (BF16, "bf16", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bf16", True),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "bf16", True),
        ("nvjet_hsh_192x192_64x4_2x1_v_bz_coopB_TNN", "fp16", True),
        ("turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_tn", "fp16", True),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", "fp16", True),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256", "bf16", True),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1", "fp32", True),
        ("void gemmSN_TN_kernel<float, 128, 16, 2, 4, 8, 9, false>", "fp32", False),
        (ADD, "fp32", False),
    ],
)
def test_names_say_what_is_multiplied(name, precision, product):
    assert precision_of(name) == precision
    assert is_product(name) == product


class TestPrecision:
    def test_fp32_products_are_priced_by_the_peaks(self):
        found = by_rule(part([(SGEMM, 500, 10)]))["compute.precision"]
        # 5 of 10 ms in fp32: TF32 is 156 / 19.5 = 8 times as fast
        assert found.seconds_per_step == pytest.approx(0.005 * 7 / 8, rel=1e-3)
        assert (found.bound, found.severity) == (True, "high")
        assert "TF32, 8 times" in found.title and "bf16 is 16 times" in found.next
        assert found.evidence[0].count == 30 - 10  # the last step is not complete

    def test_a_v100_has_fp16_only(self):
        assert "GradScaler" in by_rule(part([(SGEMM, 500, 10)], device=V100))["compute.precision"].next

    @pytest.mark.parametrize(
        ("work", "device"),
        [([(BF16, 500, 10)], A100), ([(TF32, 500, 10)], A100), ([(SGEMM, 50, 10)], A100), ([(SGEMM, 500, 10)], "Unheard-of"),
         ([(SGEMM, 500, 10)], None)],
        ids=["bf16", "tf32", "little", "unknown device", "no device"],
    )  # fmt: skip
    def test_it_is_silent_where_nothing_is_faster_or_known(self, work, device):
        assert "compute.precision" not in by_rule(part(work, device=device))

    def test_eight_bits_are_never_more_than_a_low_finding(self):
        found = by_rule(part([(BF16, 800, 10)], device=H100))["compute.precision"]
        assert found.severity == "low" and "fp8" in found.title

    def test_where_the_device_waits_for_the_host_faster_products_gain_nothing(self):
        assert "compute.precision" not in by_rule(part([(SGEMM, 300, 10)], gap=3000))

    def test_conversions_that_cost_more_than_products_gain(self):
        found = by_rule(part([(CAST, 200, 10), (BF16, 50, 10)]))["compute.precision"]
        # 2 ms of conversions; 0.5 ms of products would take 1 ms at TF32
        assert found.seconds_per_step == pytest.approx(0.0015, rel=1e-3)

    def test_graph_launches_without_kernels_abstain_with_the_reason(self):
        def lost(made, at, step, begin):
            made.span(at[0], "runtime", "cudaGraphLaunch", begin, begin + 5, correlation=9_000 + step, step=step)

        made = part([(SGEMM, 500, 10)], extra=lost)
        assert "graph launches have no kernels" in study(made).result("compute").why
        assert not {r for r in by_rule(made) if r.startswith("compute.")}


class TestKernels:
    def test_many_short_kernels(self):
        found = by_rule(part([("short_kernel", 5, 600)]))["compute.small_kernels"]
        assert found.seconds_per_step == pytest.approx(0.003, rel=1e-3)
        assert "torch.compile" in found.next

    def test_those_of_the_optimizer_have_their_own_remedy(self):
        assert "fused=True" in by_rule(part([("adam_step", 5, 600)], phase="optimizer"))["compute.small_kernels"].next

    def test_a_few_are_healthy(self):
        assert "compute.small_kernels" not in by_rule(part([("short_kernel", 5, 90)]))

    def test_unfused_elementwise_kernels(self):
        found = by_rule(part([(ADD, 100, 40)]))["compute.unfused"]
        assert found.seconds_per_step == pytest.approx(0.004, rel=1e-3)

    @pytest.mark.parametrize("work", [[(ADD, 100, 20)], [(ADD, 100, 40), ("triton_poi_fused_add_0", 10, 1)]])
    def test_few_of_them_or_compiled_ones_are_healthy(self, work):
        assert "compute.unfused" not in by_rule(part(work))


def attend(host_ops):
    """Operators of one layer of attention on the host, and kernels of 100 us that they launch."""

    def extra(made, at, step, begin):
        now = begin + 20
        for layer in range(10):
            for name in host_ops:
                op = made.span(at[0], "cpu_op", name, now, now + 8, step=step)
                made.correlation += 1
                known = {"correlation": made.correlation, "step": step}
                call = made.span(at[0], "runtime", "cudaLaunchKernel", now + 1, now + 6, parent=op, **known)
                start = begin + 1000 + layer * 300 + host_ops.index(name) * 60
                kernel = "softmax_warp_forward" if "softmax" in name else "gemm_kernel" if "bmm" in name else "div_kernel"
                made.span(at[1], "kernel", kernel, start, start + 60, launch=call, **known)
                now += 10

    return extra


class TestAttention:
    def test_what_lies_between_the_products_is_the_price(self):
        made = part([], extra=attend(["aten::bmm", "aten::div", "aten::_softmax", "aten::bmm"]))
        found = by_rule(made)["compute.fused_attention"]
        # ten layers of 60 us of scaling and 60 us of softmax
        assert found.seconds_per_step == pytest.approx(10 * 120e-6)
        assert "10 times per step" in found.evidence[0].text
        assert found.evidence[0].count == 20

    @pytest.mark.parametrize(
        "ops",
        [["aten::_scaled_dot_product_flash_attention"], ["aten::mm", "aten::_softmax", "aten::nll_loss"],
         ["aten::bmm", "aten::div", "aten::relu", "aten::bmm"]],
        ids=["fused", "a loss", "no softmax"],
    )  # fmt: skip
    def test_other_operators_are_no_attention(self, ops):
        assert "compute.fused_attention" not in by_rule(part([], extra=attend(ops)))


class TestHost:
    @staticmethod
    def synced(us):
        """In the middle of each step the host waits for the device, and launches the rest ``us`` later."""
        made = PartBuilder(0, 0, device=A100, world_size=1)
        at = (made.thread(), made.stream(7))
        for step in range(4):
            begin = STEP * step
            made.launched(at, "kernel", "gemm", begin + 100, begin + 5000, begin, step=step)
            op = made.span(at[0], "cpu_op", "aten::item", begin + 50, begin + 5020, step=step)
            made.span(at[0], "runtime", "cudaStreamSynchronize", begin + 60, begin + 5010, step=step, parent=op)
            again = begin + 5000 + us
            made.launched(at, "kernel", "gemm", again, begin + STEP + 100, again - 20, step=step)
            made.step(step, begin, begin + STEP)
        return made

    def test_a_gap_behind_a_blocking_call_is_its_price(self):
        found = by_rule(self.synced(1500))["host.sync"]
        assert found.seconds_per_step == pytest.approx(0.0015)
        assert "cudaStreamSynchronize in aten::item" in found.why
        assert found.bound
        assert found.evidence[0].count == 3

    def test_a_short_gap_is_healthy(self):
        assert "host.sync" not in by_rule(self.synced(200))

    def test_a_call_on_an_idle_device_is_not_to_blame(self):
        def idle(made, at, step, begin):
            made.span(at[0], "runtime", "cudaStreamSynchronize", begin + STEP - 1000, begin + STEP - 990, step=step)

        assert "host.sync" not in by_rule(part([("gemm", 1000, 1)], gap=2000, extra=idle))


class TestPinning:
    @staticmethod
    def copied(name, beside):
        def copy(made, at, step, begin):
            side = made.stream(9, "copy") if step == 0 else made.side
            made.side = side
            start = begin + (5000 if beside else STEP - 990)
            made.launched(
                (at[0], side), "memcpy", name, start, start + 900, begin, step=step, bytes=9_000_000, copy_kind="HtoD"
            )

        return part([], gap=1000, extra=copy)

    def test_pageable_copies_in_the_way(self):
        found = by_rule(self.copied("Memcpy HtoD (Pageable -> Device)", False))["input.pinning"]
        assert found.seconds_per_step == pytest.approx(0.0009, rel=0.01)
        assert "9.00 MB" in found.evidence[0].text.replace("\xa0", " ")

    @pytest.mark.parametrize(
        ("name", "beside"), [("Memcpy HtoD (Pinned -> Device)", False), ("Memcpy HtoD (Pageable -> Device)", True)]
    )
    def test_pinned_or_hidden_copies_are_healthy(self, name, beside):
        assert "input.pinning" not in by_rule(self.copied(name, beside))


class TestInputStall:
    @staticmethod
    def waiting(ranges):
        def fetch(made, at, step, begin):
            made.span(at[0], "range", ranges, begin + STEP - 2000, begin + STEP - 10, step=step, phase="data")

        return part([], gap=2000, extra=fetch)

    def test_a_loader_without_workers_gets_an_edit(self):
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        found = by_rule(self.waiting(name))["input.stall"]
        assert found.edit == {"loader.num_workers": 2}
        assert "the training process loads by itself" in found.evidence[1].text

    def test_with_workers_there_is_only_advice(self):
        found = by_rule(self.waiting("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"))["input.stall"]
        assert found.edit is None


def throttled(rank, clock, reason):
    made = part([("gemm", 8000, 1)], rank=rank, ranks=2)
    for i in range(10):
        for metric, value in (("sm_clock", clock), ("gpu_utilization", 95.0), (f"throttle_{reason}", float(rank == 1))):
            made.add("samples", ts=T0 + i * MS, metric=metric, value=value, unit="", device=0)
    return made


def test_a_throttled_rank_is_priced_by_the_clock_of_its_peer():
    found = by_rule(throttled(0, 1400.0, "hw_thermal_slowdown"), throttled(1, 1050.0, "hw_thermal_slowdown"))["gpu.throttling"]
    assert found.ranks == (1,)
    # a quarter of the clock is missing of 10 ms of computing
    assert found.seconds_per_step == pytest.approx(0.0025, rel=0.01)
    assert found.bound


GIB = 2**30
CAPACITY = 80 * GIB


def filled(
    peak, *, rank=0, ranks=1, state=None, oom=0, activation=0, nvml=CAPACITY, reserved=None, held=None, extra=None, again=0
):
    """A part with an allocator's peak of ``peak`` bytes on a device of 80 GiB, and state by category."""
    made = part([("gemm", 4000, 1)], rank=rank, ranks=ranks, extra=extra)
    made.part.extra["collectors"] = [{"name": "nvml", "facts": {"memory_total": nvml}}] if nvml else []
    for metric, value in (("memory_allocated_peak", peak), ("memory_ooms", oom)):
        made.add("metrics", step=2, metric=metric, value=float(value))
    for category, size in {"activation": activation, **(state or {})}.items():
        if size:
            made.add("memory", ts=T0, device=0, category=category, bytes=size, module="blocks")
    if reserved:
        for metric, value in (("memory_reserved", reserved), ("memory_allocated", peak), ("memory_inactive_split", held)):
            made.add("metrics", step=2, metric=metric, value=float(value))
    return made


ddp = {"name": "ddp", "facts": {"models": [{"n_parameters": 1}]}}


class TestMemory:
    def test_fragmentation_hurts_only_on_a_full_device(self):
        tight = filled(55 * GIB, reserved=78 * GIB, held=20 * GIB)
        found = by_rule(tight)["memory.fragmentation"]
        assert "expandable_segments" in found.next and found.severity == "medium"
        assert "memory.fragmentation" not in by_rule(filled(30 * GIB, reserved=50 * GIB, held=20 * GIB))
        assert "memory.fragmentation" not in by_rule(filled(76 * GIB, reserved=78 * GIB, held=GIB))

    def test_a_request_that_failed_beside_free_memory_is_high(self):
        made = filled(55 * GIB, reserved=70 * GIB, held=15 * GIB, oom=1)
        assert by_rule(made)["memory.fragmentation"].severity == "high"

    def test_replicated_states_on_full_devices(self):
        state = {"parameter": 10 * GIB, "gradient": 10 * GIB, "optimizer": 20 * GIB}
        parts = [filled(76 * GIB, rank=r, ranks=4, state=state) for r in range(4)]
        for made in parts:
            made.part.extra["collectors"].append(ddp)
        found = by_rule(*parts)["memory.zero_stage"]
        assert "up to 30.0 GiB" in found.title.replace("\xa0", " ")
        assert "stage 1 frees 15.0 GiB" in found.evidence[1].text.replace("\xa0", " ")
        assert found.seconds_per_step is None

    @pytest.mark.parametrize(("peak", "nvml"), [(40 * GIB, CAPACITY), (76 * GIB, 0)])
    def test_with_room_or_an_unknown_device_nothing_is_said(self, peak, nvml):
        state = {"parameter": 10 * GIB, "optimizer": 20 * GIB}
        parts = [filled(peak, rank=r, ranks=2, state=state, nvml=nvml) for r in range(2)]
        for made in parts:
            made.part.device = None
            made.part.extra["collectors"].append(ddp)
        assert not {rule for rule in by_rule(*parts) if rule.startswith("memory.")}

    def test_a_single_full_rank_may_offload_its_optimizer(self):
        found = by_rule(filled(77 * GIB, state={"parameter": 10 * GIB, "optimizer": 30 * GIB}))["memory.offload"]
        assert "30.0 GiB of optimizer state" in found.title.replace("\xa0", " ")

    @staticmethod
    def offloaded(peak):
        def move(made, at, step, begin):
            made.span(at[0], "range", "offload", begin + 5000, begin + 6500, step=step)
            made.add("metrics", step=step, metric="offload_in", value=float(4 * GIB))

        made = filled(peak, extra=None)
        rows = made.rows["events"]
        # the device is idle while tensors move
        rows[:] = [r for r in rows if r["name"] != "other_kernel"]
        for step in range(3):
            move(made, (0, 1), step, STEP * step)
        return made

    def test_needless_offloading_costs_the_moves_that_nothing_hides(self):
        found = by_rule(self.offloaded(20 * GIB))["memory.offload"]
        assert found.seconds_per_step == pytest.approx(0.0015, rel=0.01)
        assert "4.0 GiB" in found.title.replace("\xa0", " ").replace("4.00", "4.0")

    def test_offloading_that_is_needed_is_left_alone(self):
        assert "memory.offload" not in by_rule(self.offloaded(75 * GIB))

    @staticmethod
    def recomputing(us):
        """Backward nodes that run forward operators again, whose kernels take ``us`` per step."""

        def extra(made, at, step, begin):
            made.span(at[0], "cpu_op", "aten::linear", begin + 20, begin + 30, step=step)
            node = made.span(at[0], "cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", begin + 100, begin + 400,
                             step=step)  # fmt: skip
            for i in range(2):
                op = made.span(
                    at[0], "cpu_op", "aten::linear", begin + 110 + 50 * i, begin + 150 + 50 * i, step=step, parent=node
                )
                made.correlation += 1
                call = made.span(at[0], "runtime", "cudaLaunchKernel", begin + 120 + 50 * i, begin + 125 + 50 * i, parent=op,
                                 correlation=made.correlation, step=step)  # fmt: skip
                start = begin + 5000 + i * us // 2
                made.span(at[1], "kernel", "gemm", start, start + us // 2, correlation=made.correlation, launch=call, step=step)

        return extra

    KNOBS: ClassVar = {"layers": 12, "dim": 768, "seq": 1024, "batch": 8, "vocabulary": 50304, "heads": 12, "precision": "bf16",
             "checkpointing": "full"}  # fmt: skip

    def test_recomputation_that_memory_does_not_need(self):
        made = filled(20 * GIB, extra=self.recomputing(1200))
        steps = study(made).result("accounting").parts[0].steps
        assert {s.recompute_ns for s in steps if s.complete} == {1200 * US}
        found = by_rule(made, knobs=self.KNOBS, job="ddp")["memory.checkpointing"]
        assert found.seconds_per_step == pytest.approx(0.0012)
        assert found.bound

    def test_without_dimensions_nobody_knows_whether_it_fits(self):
        assert "memory.checkpointing" not in by_rule(filled(20 * GIB, extra=self.recomputing(1200)))

    def test_recomputation_on_a_full_device_is_needed(self):
        assert "memory.checkpointing" not in by_rule(
            filled(70 * GIB, extra=self.recomputing(1200)), knobs=self.KNOBS, job="ddp"
        )

    def test_a_full_device_that_keeps_all_activations(self):
        def forward_only(made, at, step, begin):
            made.span(at[0], "cpu_op", "aten::linear", begin + 20, begin + 30, step=step)
            made.span(
                at[0], "cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", begin + 100, begin + 400, step=step
            )

        found = by_rule(filled(78 * GIB, activation=40 * GIB, extra=forward_only))["memory.checkpointing"]
        assert "40.0 GiB" in found.title.replace("\xa0", " ")
        assert found.seconds_per_step is None


def test_healthy_devices_have_no_finding():
    made = [filled(40 * GIB, rank=r, ranks=2, reserved=50 * GIB, held=2 * GIB) for r in range(2)]
    assert by_rule(*made) == {}
