"""The layouts that can be laid out at all, and why the others cannot. Memory is not asked here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

from dtprof.plan.search.wanted import Numbers, Wanted
from dtprof.plan.spec import Layout, Offload, Recompute, ScheduleName, check, divisors, nearest

# tensor parallelism is tried over this many nodes, to be able to tell what it would cost
_NODES_OF_TP = 2
_MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
_VIRTUAL = (1, 2, 3, 4, 5, 6, 8)
# context parallelism leaves a rank at least so many tokens of a sequence
_LEAST_TOKENS = 2048
# key and value of what was left out, and why
Skip = Callable[[str, object, str], None]


class Space:
    """All layouts for one size of the cluster and one global batch."""

    def __init__(self, wanted: Wanted, gpus: int, global_batch: int, skip: Skip) -> None:
        self.wanted, self.gpus, self.batch, self.skip = wanted, gpus, global_batch, skip
        self.model, self.node = wanted.model, wanted.cluster.gpus_per_node

    def grids(self) -> list[tuple[int, int, int, int, int]]:
        """(tp, cp, pp, dp, ep) that fill the cluster and part the model."""
        out = []
        for tp in self._tensor():
            for cp in self._context(tp):
                for pp in self._pipeline(tp * cp):
                    dp = self.gpus // (tp * cp * pp)
                    if self.wanted.dp and dp not in self.wanted.dp:
                        continue
                    if self.batch % dp:
                        self.skip("dp", dp, f"does not divide a global batch of {self.batch}")
                        continue
                    out += [(tp, cp, pp, dp, ep) for ep in self._experts(dp * cp * tp)]
        return out

    def layouts(self, grid: tuple[int, int, int, int, int], offload: tuple[Offload, ...] = ()) -> Iterator[Layout]:
        """All layouts on such a grid, those that need least memory last of their kind."""
        tp, cp, pp, dp, ep = grid
        wanted = self.wanted
        for micro in self._micro_batches(dp):
            if not self._sound(grid, micro):
                return
            for schedule, vpp in self._schedules(pp, self.batch // (dp * micro)):
                for zero, shard in self._shards(dp * cp, tp, pp > 1):
                    for recompute in self._recompute():
                        for precision in wanted.precision:
                            yield Layout(
                                dp, micro, self.batch, wanted.seq, tp, pp, vpp, cp, ep, wanted.etp, self._sequence(tp, cp),
                                zero, shard, recompute, offload, precision, wanted.optimizer, wanted.gradient_dtype,
                                wanted.attention, schedule,
                            )  # fmt: skip

    def _sound(self, grid: tuple[int, int, int, int, int], micro: int) -> bool:
        """Does a plain layout of this grid keep the constraints that are not enumerated, as precision and what is fixed?"""
        tp, cp, pp, dp, ep = grid
        wanted = self.wanted
        cluster = replace(wanted.cluster, gpus=self.gpus)
        for precision in wanted.precision:
            plain = Layout(dp, micro, self.batch, wanted.seq, tp, pp, 1, cp, ep, wanted.etp, self._sequence(tp, cp),
                           precision=precision)  # fmt: skip
            for problem in check(self.model, cluster, plain):
                mend = "" if problem.nearest is None else f"; {problem.nearest} would do"
                self.skip(problem.key, problem.value, problem.message + mend)
                return False
        return True

    def _tensor(self) -> Iterator[int]:
        model = self.model
        for tp in self.wanted.tp or [one for one in divisors(self.gpus) if one <= _NODES_OF_TP * self.node]:
            if self.gpus % tp:
                self.skip("tp", tp, f"does not divide {self.gpus} GPUs")
            elif model.heads % tp or model.ffn % tp:
                self.skip("tp", tp, f"does not divide {model.heads} heads and an inner size of {model.ffn}")
            elif model.kv_heads % tp and tp % model.kv_heads:
                self.skip("tp", tp, f"does not go with {model.kv_heads} heads of keys")
            else:
                yield tp

    def _context(self, tp: int) -> Iterator[int]:
        seq = self.wanted.seq
        for cp in self.wanted.cp or [one for one in divisors(self.gpus // tp) if one == 1 or seq // one >= _LEAST_TOKENS]:
            if (self.gpus // tp) % cp:
                self.skip("cp", cp, f"does not divide {self.gpus} GPUs over tp = {tp}")
            elif cp > 1 and seq % (2 * cp):
                self.skip("cp", cp, f"a sequence of {seq} cannot be parted into {2 * cp} pieces")
            else:
                yield cp

    def _pipeline(self, taken: int) -> Iterator[int]:
        for pp in self.wanted.pp or divisors(self.gpus // taken):
            if (self.gpus // taken) % pp:
                self.skip("pp", pp, f"does not divide {self.gpus} GPUs over {taken}")
            elif pp > self.model.layers:
                self.skip("pp", pp, f"is more than {self.model.layers} layers")
            else:
                yield pp

    def _experts(self, ranks: int) -> Iterator[int]:
        moe = self.model.moe
        if moe is None:
            yield 1
            return
        for ep in self.wanted.ep or divisors(moe.experts):
            if moe.experts % ep or ranks % (ep * self.wanted.etp):
                fine = [one for one in divisors(moe.experts) if ranks % (one * self.wanted.etp) == 0]
                mend = f"; {nearest(ep, fine)} would do" if fine else ""
                self.skip("ep", ep, f"does not divide {moe.experts} experts and {ranks} ranks{mend}")
            else:
                yield ep

    def _micro_batches(self, dp: int) -> Iterator[int]:
        mine = self.batch // dp
        for micro in self.wanted.micro_batch or _MICRO_BATCHES:
            if mine % micro == 0:
                yield micro
            elif micro <= mine:
                near = max(one for one in range(1, micro + 1) if mine % one == 0)
                self.skip("micro_batch", micro, f"does not divide the {mine} sequences of a rank; {near} would do")

    def _schedules(self, pp: int, microbatches: int) -> Iterator[tuple[ScheduleName, int]]:
        wanted = self.wanted.schedule
        if pp == 1:
            yield "1f1b", 1
            return
        if not wanted or "1f1b" in wanted:
            yield "1f1b", 1
        for other in ("gpipe", "zero-bubble"):
            if other in wanted:
                yield cast(ScheduleName, other), 1
        if wanted and "interleaved" not in wanted:
            return
        for vpp in self._virtual(pp):
            if microbatches % pp == 0:
                yield "interleaved", vpp
            else:
                self.skip("vpp", vpp, f"needs a multiple of pp = {pp} micro-batches, these are {microbatches}")

    def _virtual(self, pp: int) -> Numbers:
        wanted = self.wanted.vpp or _VIRTUAL
        return tuple(vpp for vpp in wanted if vpp > 1 and pp * vpp <= self.model.layers and self.model.layers % (pp * vpp) == 0)

    def _stages(self, pipelined: bool) -> Numbers:
        """With a pipeline gradients are summed once a step and parameters stay gathered: stage 3 is FSDP's alone there, and
        stage 2 nobody's (DeepSpeed, Megatron-LM).
        """
        if not pipelined:
            return 0, 1, 2, 3
        return (0, 1, 3) if self.wanted.software.fsdp == 2 else (0, 1)

    def _shards(self, ranks: int, tp: int, pipelined: bool) -> Iterator[tuple[int, int]]:
        """ZeRO stages, and with stage 3 the ranks that share: all, or those of a node (HSDP)."""
        if ranks == 1:
            yield 0, 0
            return
        for zero in self.wanted.zero or self._stages(pipelined):
            if zero and self.wanted.shard:
                yield from ((zero, shard) for shard in self.wanted.shard if ranks % shard == 0)
                continue
            yield zero, 0
            inside = self.node // tp if tp < self.node else 1
            if zero == 3 and 1 < inside < ranks and ranks % inside == 0:
                yield 3, inside

    def _recompute(self) -> tuple[Recompute, ...]:
        if self.wanted.recompute:
            return self.wanted.recompute
        # attention that writes no scores leaves its core nothing to save, except where FSDP2 chooses by operation
        some = self.wanted.attention == "unfused" or self.wanted.software.fsdp == 2
        return ("none", "selective", "full") if some else ("none", "full")

    def _sequence(self, tp: int, cp: int) -> bool:
        if self.wanted.sequence_parallel is not None:
            return self.wanted.sequence_parallel
        # costs no more communication (Korthikanti et al. 2022, section 4.2.2)
        return tp > 1 and (self.wanted.seq // cp) % tp == 0
