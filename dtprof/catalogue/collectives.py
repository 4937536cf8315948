"""Collective operations: names, sizes, bandwidth conventions.

Bandwidth follows nccl-tests, doc/PERFORMANCE.md: ``algbw = S / t`` and ``busbw = algbw * factor(op, n)`` with S the
bytes of the larger side (all-gather: what one rank receives; reduce-scatter: what one rank puts in).
"""

from __future__ import annotations

import re

# kernels that communicate, by name: NCCL old and new, RCCL, MSCCL, oneCCL, HCCL, NVSHMEM, symmetric memory,
# multimem, custom all-reduce of inference engines, DeepEP
COMM_NAME = re.compile(
    r"nccl|rccl|msccl|multimem_all|multimem_one_shot|multimem_reduce_scatter|all_reduce_kernel|cross_device_reduce|allreduce"
    r"|nvshmem|oneccl|hccl|one_shot_all_reduce|two_shot_all_reduce|symm_mem|deep_ep::|(?:intra|inter)node::(?:dispatch|combine|notify)",
    re.IGNORECASE,
)

_ALIASES: tuple[tuple[str, str], ...] = (
    (r"all_?reduce|multimem_one_shot|cross_device_reduce", "all_reduce"),
    (r"reduce_?scatter", "reduce_scatter"),
    (r"all_?gather", "all_gather"),
    (r"all_?to_?all|(?:intra|inter)node::(?:dispatch|combine)|deep_ep::", "all_to_all"),
    (r"send_?recv", "send_recv"),
    (r"broadcast", "broadcast"),
    (r"barrier", "barrier"),
    (r"gather", "gather"),
    (r"scatter", "scatter"),
    (r"(?<!all)(?<!all_)reduce", "reduce"),
    (r"(?:^|[^a-z])send(?:$|[^a-z])", "send"),
    (r"(?:^|[^a-z])(?:i?recv|recv_any_source|receive)(?:$|[^a-z])", "recv"),
)
_OPS = tuple((re.compile(pattern, re.IGNORECASE), op) for pattern, op in _ALIASES)

# operations after which every rank has waited for every other: they end together
SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})

_DTYPE_BYTES = {
    "float": 4, "float32": 4, "int": 4, "int32": 4, "double": 8, "float64": 8, "long": 8, "long int": 8, "int64": 8,
    "half": 2, "c10::half": 2, "float16": 2, "bfloat16": 2, "c10::bfloat16": 2, "short": 2, "short int": 2, "int16": 2,
    "uint16": 2, "uint32": 4, "uint64": 8, "unsigned char": 1, "char": 1, "signed char": 1, "byte": 1, "bool": 1, "int8": 1,
    "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1,
    "c10::float8_e4m3fnuz": 1, "c10::float8_e5m2fnuz": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "complexfloat": 8, "c10::complex<float>": 8, "complexdouble": 16, "c10::complex<double>": 16,
}  # fmt: skip


def operation(name: str) -> str:
    """Canonical operation that a record, argument or kernel name means; ``unknown`` where it says none.

    Name suffixes such as LL or RING say nothing about the protocol that ran and are ignored.
    """
    text = re.sub(r"^(?:nccl|gloo|mpi|ucc|c10d|symm_mem|_c10d_functional)::?", "", name)
    for pattern, op in _OPS:
        if pattern.search(text):
            return op
    return "unknown"


def dtype_bytes(dtype: str | None) -> int | None:
    """Bytes of one element, None where the type is not known."""
    return _DTYPE_BYTES.get(dtype.lower()) if dtype else None


def size_bytes(op: str, bytes_in: int | None, bytes_out: int | None, n: int | None) -> int | None:
    """Size S of an operation: the bytes of the larger side (nccl-tests doc/PERFORMANCE.md)."""
    if bytes_in is None and bytes_out is None:
        return None
    if op == "all_gather":
        return bytes_out if bytes_out is not None else bytes_in * n if bytes_in is not None and n else None
    if op == "reduce_scatter":
        return bytes_in if bytes_in is not None else bytes_out * n if bytes_out is not None and n else None
    return max(b for b in (bytes_in, bytes_out) if b is not None)


def busbw_factor(op: str, n: int) -> float | None:
    """busbw / algbw for a group of ``n`` ranks (nccl-tests doc/PERFORMANCE.md); None where the convention has none."""
    if op == "all_reduce":
        return 2 * (n - 1) / n
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (n - 1) / n
    if op in ("broadcast", "reduce", "send", "recv", "send_recv"):
        return 1.0
    return None
