"""What a kernel multiplies with, by its name: the type of its inputs, and whether tensor cores (matrix cores) do it."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

from dtprof.catalogue.kernels import kernel_class

Precision = Literal["fp8", "bf16", "fp16", "tf32", "fp64", "fp32"]

# first match wins. Names of cuBLAS, cuDNN and CUTLASS: s1688 takes tf32 on Ampere (fp16 is named where it is meant), h1688 and
# h884 take fp16; nvjet's first letter is its type (t: bf16, h: fp16, s: tf32, q: fp8); Tensile's BBS, HHS and SB are bf16,
# fp16, fp32
_NAMES: tuple[tuple[Precision, str], ...] = (
    ("fp8", r"e4m3|e5m2|e2m1|fp8|float8|mxfp4|nvjet_q"),
    ("bf16", r"bf16|bfloat16|nvjet_t|_BBS_|_BB_"),
    ("fp16", r"fp16|(?<!b)f16(?!f)|half|hgemm|h(?:884|1688|16816)|s884gemm|nvjet_h|_HHS_|_HB_"),
    ("tf32", r"tf32|xf32|s1688|nvjet_s"),
    ("fp64", r"dgemm|double|f64|_DB_"),
    ("fp32", r"sgemm|scudnn|simt|<float|float,|cgemm|_SB_|f32f32"),
)
_PATTERNS = tuple((kind, re.compile(pattern)) for kind, pattern in _NAMES)
# products of a matrix and a vector read each element once: no core makes them faster
_VECTOR = re.compile(r"gemv|gemmSN|gemmk1|dot_kernel")
_CONVOLUTION = re.compile(r"[sh]cudnn_|cudnn\w*_[sh]cudnn")


def is_product(name: str) -> bool:
    """Does this kernel multiply matrices or convolve (attention counts apart)?"""
    return (kernel_class(name) == "gemm" or _CONVOLUTION.search(name) is not None) and not _VECTOR.search(name)


@cache
def precision_of(name: str) -> Precision | None:
    """The type that a product or an attention kernel multiplies; None where its name does not say."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), None)
