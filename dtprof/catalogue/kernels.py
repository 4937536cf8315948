"""Kernel classes by name."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

KernelClass = Literal[
    "gemm", "attention", "normalization", "elementwise", "reduction", "optimizer", "communication", "copy", "other"
]

# first match wins: the special before the general
_NAMES: tuple[tuple[KernelClass, str], ...] = (
        ("attention", r"flash|fmha|attention|mha_|sdpa|softmax.*(?:mask|scale)"),
        ("optimizer", r"adam|multi_tensor|foreach|fused_sgd|\blamb(?!da)|lamb_|adagrad|optimizer"),
        (
            "gemm",
            r"gemm|cutlass|cublas|wgmma|xmma|sm\d+_.*mma|matmul|_mm_|\bmm\b|convolution|conv2d|implicit_convolve|Cijk_"
            r"|winograd|dgrad|wgrad|nvjet|cudnn.*(?:conv|engine)|ampere_\w*(?:h|s|bf)1688",
        ),
        ("normalization", r"norm|batch_?norm|layer_?norm|rms_?norm|bn_fw|bn_bw"),
        ("copy", r"copy|memcpy|memset|fill|cat_?array|CatArray|transpose|permute|index_select|gather_|indexing|embedding"),
        ("reduction", r"reduce|softmax|argmax|topk|sort|scan|cub::|radix|nll_loss|cross_entropy"),
        ("elementwise", r"elementwise|pointwise|vectorized|triton_poi|unrolled|relu|gelu|silu|dropout|add|mul|sigmoid|tanh"),
)  # fmt: skip
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _NAMES)


@cache
def kernel_class(name: str) -> KernelClass:
    """Class of a compute kernel; ``other`` where the name says nothing."""
    for kind, pattern in _PATTERNS:
        if pattern.search(name):
            return kind
    return "other"
