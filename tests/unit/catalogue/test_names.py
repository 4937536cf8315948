"""Names of kernels and operations as they occur in the field."""

from __future__ import annotations

import pytest

from dtprof.catalogue.collectives import busbw_factor, dtype_bytes, operation, size_bytes
from dtprof.catalogue.kernels import kernel_class


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("volta_sgemm_128x32_nt", "gemm"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "gemm"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNN", "gemm"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_SE_1LDSB0", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>", "gemm"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>", "normalization"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::sqrt_kernel_cuda(...)::{lambda()#2}>", "elementwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>", "optimizer"),
        ("triton_poi_fused_add_gelu_0", "elementwise"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "reduction"),
        ("void softmax_warp_forward<float, float, float, 8, false, false>", "reduction"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", "copy"),
        ("unheard_of", "other"),
    ],
)
def test_kernel_classes(name, kind):
    assert kernel_class(name) == kind


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("allreduce", "all_reduce"), ("nccl:all_reduce", "all_reduce"), ("_allgather_base", "all_gather"),
        ("nccl:_all_gather_base", "all_gather"), ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("c10d::alltoall_base_", "all_to_all"), ("all_to_allv", "all_to_all"), ("nccl:reduce", "reduce"),
        ("c10d::broadcast_", "broadcast"), ("barrier", "barrier"), ("c10d::gather_", "gather"), ("scatter", "scatter"),
        ("send", "send"), ("nccl:recv 0<-1", "recv"), ("gloo:send", "send"), ("none", "unknown"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "unknown"),
        ("symm_mem::multimem_all_reduce_", "all_reduce"), ("symm_mem::two_shot_all_reduce_", "all_reduce"),
    ],
)  # fmt: skip
def test_operations(name, op):
    assert operation(name) == op


def test_conventions_of_nccl_tests():
    assert busbw_factor("all_reduce", 8) == pytest.approx(1.75)
    assert (
        busbw_factor("all_gather", 8)
        == busbw_factor("reduce_scatter", 8)
        == busbw_factor("all_to_all", 8)
        == pytest.approx(0.875)
    )
    assert busbw_factor("broadcast", 8) == busbw_factor("reduce", 8) == 1.0
    assert busbw_factor("barrier", 8) is None
    assert size_bytes("all_gather", 10, 80, 8) == size_bytes("all_gather", 10, None, 8) == 80
    assert size_bytes("reduce_scatter", 80, 10, 8) == size_bytes("reduce_scatter", None, 10, 8) == 80
    assert size_bytes("all_reduce", None, None, 8) is None
    assert (dtype_bytes("c10::BFloat16"), dtype_bytes("Float"), dtype_bytes("long int"), dtype_bytes("quint")) == (
        2,
        4,
        8,
        None,
    )
