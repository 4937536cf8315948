"""What the texts of NVTX ranges mean: operators of ``emit_nvtx``, our own ranges with their payloads, libraries' ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dtprof.ranges import format_range, parse_range
from dtprof.schema import PHASES

# domains of libraries: their ranges are neither steps nor phases of the training
LIBRARIES = re.compile(
    r"^(?:NCCL|CCCL|cub|thrust|cu(?:BLAS|DNN|SPARSE|SOLVER|FFT|RAND|TENSOR|ML|DF)\w*|TensorRT|libcudf|libkvikio|RAFT|RMM|NVSHMEM|"
    r"UCX|UCC|UCP|DALI|nvImageCodec|nvJPEG|OpenMP|MPI|numba\.\w*|cupy)",
    re.I,
)
# … and names that are a library's own in the default domain
_LIBRARY_NAMES = re.compile(r"^(?:cub|thrust|at_cuda_detail::cub|raft|rmm|cudf|cuml|cublas\w*|cudnn\w*|p?nccl[A-Z]\w*)(?:::|$)")
# torch.autograd.profiler.emit_nvtx: name[, seq = N][, op_id = M][, sizes = [...]][, input_op_ids = [...]]
_EMITTED = re.compile(
    r"^(?P<name>.*?)(?:, seq = (?P<seq>\d+))?(?:, op_id = (?P<op>\d+))?(?:, sizes = (?P<sizes>\[.*?\]))?"
    r"(?:, input_op_ids = \[.*\])?$",
    re.S,
)
_OPERATOR = re.compile(
    r"^(?!FSDP::|DDP::|PP:)[A-Za-z_]\w*::\w+(?:\.\w+)?$|^record_param_comms$|^autograd::engine::|^torch::autograd::"
)
NCCL_NAME = re.compile(r"^p?nccl[A-Z]\w*$")

_CAT_OF_DOMAIN = {"torch": "cpu_op", "python": "python_function", "other": "other"}
# copies of ranges that dtprof's exporter puts on launching threads, for nsys's projections
COPIES_DOMAIN = "dtprof.launch"
OURS = "dtprof"


@dataclass(frozen=True)
class Meaning:
    """A range's plain name, its category in Kineto's words, and numbers that its text carries (None where it has none)."""

    name: str
    cat: str
    op_id: int | None = None
    sequence: int | None = None
    sizes: str | None = None
    library: bool = False


def meaning_of(text: str, domain: str | None, number: int | None = None, category: str | None = None) -> Meaning:
    """Meaning of a range with this text in this domain; ``number`` and ``category`` as our own ranges carry them."""
    if domain == OURS:
        return Meaning(_ours(text, number, category), "user_annotation")
    if domain in _CAT_OF_DOMAIN:
        return Meaning(text, _CAT_OF_DOMAIN[domain])
    if domain and LIBRARIES.match(domain):
        return Meaning(text, "user_annotation", library=True)
    found = _EMITTED.match(text) if ", " in text else None
    if found is None or (found["seq"] is None and found["op"] is None and found["sizes"] is None):
        operator = _OPERATOR.match(text) and not _LIBRARY_NAMES.match(text)
        return Meaning(text, "cpu_op" if operator else "user_annotation", library=bool(_LIBRARY_NAMES.match(text)))
    name, sequence, op = found["name"], found["seq"], found["op"]
    cat = "cpu_op" if sequence is not None or _OPERATOR.match(name) else "user_annotation"
    return Meaning(name, cat, int(op) if op else None, int(sequence) if sequence else None, found["sizes"])


def _ours(text: str, number: int | None, category: str | None) -> str:
    """The whole name of one of our ranges: NVTX carries the step as payload and the phase as category."""
    base, tags = parse_range(text)
    told = [tags.get("microbatch"), tags.get("bucket")]
    if number is not None and base != f"ProfilerStep#{number}" and "step" not in tags and number not in told:
        tags["step"] = number
    if category in PHASES and category != base and "phase" not in tags and base not in PHASES:
        tags["phase"] = str(category)
    return format_range(base, tags)
