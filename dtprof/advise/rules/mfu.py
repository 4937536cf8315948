"""The rule about model FLOPs utilisation."""

from __future__ import annotations

from collections.abc import Iterator

from dtprof.advise.places import steps_of
from dtprof.analyse.compute_mfu import Mfu
from dtprof.analyse.results import AccountingResult
from dtprof.catalogue.usual import usual_mfu
from dtprof.findings import Evidence, Finding
from dtprof.numbers import percent
from dtprof.protocols import Lens

# half of what is usual is far from it; a little less is another model
_FAR = 0.5


class LowMfu:
    """The job does far fewer FLOPs than well-tuned trainings on such devices do."""

    id = "compute.mfu"

    def find(self, study: Lens) -> Iterator[Finding]:
        """Needs FLOPs and tokens, and a device for which utilisations were published. A measure, not a cause: low, no price."""
        result: Mfu = study.result("mfu")
        accounting: AccountingResult = study.result("accounting")
        usual = usual_mfu(result.gpu.name) if result.gpu is not None else None
        if result.share is None or usual is None or result.share >= _FAR * usual.low:
            return
        shares = accounting.mean_shares()
        computing = shares.get("compute_ns") if any(shares.values()) else None
        told = f" The devices compute during {percent(computing)} of the step." if computing is not None else ""
        cause = (
            "the devices compute most of the time, so that the kernels are slow: look at precision, attention and sizes"
            if computing is not None and computing > 0.5
            else "the devices do not compute most of the time: the other findings say why"
        )
        yield Finding(
            rule=self.id,
            severity="low",
            title=f"The job reaches {percent(result.share)} of its devices' peak; {percent(usual.low)} to "
            f"{percent(usual.high)} "
            "is usual for large transformers",
            ranks=(),
            steps=steps_of(accounting),
            seconds_per_step=None,
            evidence=(
                Evidence(
                    f"{result.tokens_per_s:,.0f} tokens/s on {result.ranks} devices, {result.per_token:.3g} FLOPs per token "
                    f"({result.source}), peak {(result.gpu.flops('bf16') or 0) / 1e12:g} TFLOP/s in bf16 each.{told}"
                    if result.gpu is not None
                    else ""
                ),
                Evidence(f"Usual: {usual.source}."),
            ),
            why=cause,
            next="take the dearest finding first; small models and short sequences stay below this whatever is done",
            apply="see the other findings",
            verify="the same number again",
        )
