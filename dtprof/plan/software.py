"""Generations of software by name: what they fuse and what they hide. Declared from how they are built, not fitted."""

from __future__ import annotations

from dtprof.errors import InputError
from dtprof.plan.spec import Software

_SOFTWARE = (
    Software("megatron-2021", False, "fused-softmax", parallel_loss=True, products="2021", messages_split=True,
             summary="Megatron-LM and Megatron-DeepSpeed of 2021: eager, fused softmax, nothing overlapped"),
    Software("megatron-2020", False, "fused-softmax", parallel_loss=True, products="2021",
             summary="Megatron-LM before April 2021: messages between stages are sent whole by every rank"),
    Software("ddp-eager", False, "fused-softmax", dp_hidden=1.0, products="2021",
             summary="eager PyTorch with DDP, attention that writes its scores"),
    Software("ddp-binned", False, "fused-softmax", dp_hidden=1.0, products="2021", bin_tokens=64,
             summary="ddp-eager, with an encoder's sequences batched by length, as NVIDIA's LDDL does from 512 tokens on"),
    Software("fsdp-2023", False, "flash-1", dp_hidden=1.0, fsdp=1, loss_in_place=True,
             summary="eager PyTorch with FSDP and FlashAttention, as LLM-Foundry"),
    Software("fsdp-compile", True, "flash-2", dp_hidden=1.0, fsdp=1, summary="torch.compile with FSDP, as fms-fsdp"),
    Software("fsdp2", False, "flash-2", dp_hidden=1.0, fsdp=2, summary="eager PyTorch with FSDP2, as torchtitan"),
    Software("fsdp2-compile", True, "flash-2", dp_hidden=1.0, fsdp=2, summary="torch.compile with FSDP2, as torchtitan"),
    Software("fsdp2-compile-2025", True, "flash-2", dp_hidden=1.0, fsdp=2, fused_loss=True,
             summary="fsdp2-compile with the loss compiled too, as torchtitan since 2025"),
    Software("internevo-2024", False, "flash-1", dp_hidden=1.0, products="internevo",
             summary="InternEvo of 2024: FlashAttention, ZeRO-1 with gradients reduced beside the backward pass"),
    Software("megatron-core", True, "cudnn", tp_pieces=True, dp_hidden=1.0, launch_bound=False, fused_loss=True,
             gather_hidden=True, messages_hidden=True, messages_split=True, sums_fused=True, products="2025",
             summary="Megatron-Core with Transformer Engine, 2025: cuDNN's attention, tensor parallelism beside products"),
    Software("eager-flash", False, "flash-2", dp_hidden=1.0, summary="eager PyTorch with FlashAttention-2, as nanotron"),
)  # fmt: skip
SOFTWARE = {one.name: one for one in _SOFTWARE}
DEFAULT = "fsdp2-compile"


def software(name: str) -> Software:
    """The generation of this name; InputError lists them."""
    if name not in SOFTWARE:
        raise InputError(f"no software is called {name!r}", f"one of {', '.join(SOFTWARE)}")
    return SOFTWARE[name]
