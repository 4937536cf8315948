"""Steps of loops of every shape, by optimizers that step nothing."""

import gc
import threading
import weakref

import pytest

from dtprof.launch.steps import StepFinder

N = 6


class Optimizer:
    def __init__(self, finder):
        self.finder = finder
        finder.created(self)

    def step(self):
        self.finder.enter(self)
        self.finder.leave()


class Second(Optimizer):
    pass


def steps_of(loop, optimizers=2):
    """(kinds of the steps as they ended, the pattern) of ``loop(*optimizers)``."""
    kinds = []
    finder = StepFinder(kinds.append)
    made = [(Optimizer, Second)[n % 2](finder) for n in range(optimizers)]
    loop(*made)
    finder.finish()
    return kinds, finder.pattern()


def test_with_one_optimizer_every_step_of_it_is_a_step():
    def loop(a):
        for _ in range(N):
            a.step()

    assert steps_of(loop, 1) == ([None] * N, "per step: Optimizer 1 time")


def test_two_optimizers_in_an_iteration_are_one_step():
    def loop(d, g):
        for _ in range(N):
            d.step()
            g.step()

    kinds, pattern = steps_of(loop)
    # the first iteration's end is seen only when the second begins
    assert kinds == ["warm-up", "warm-up", None, None, None, None]
    assert pattern == "per step: Optimizer 1 time, Second 1 time"


def test_one_every_second_iteration_and_the_other_three_times():
    def loop(d, g):
        for step in range(5):
            if step % 2 == 0:
                d.step()
            for _ in range(3):
                g.step()

    kinds, pattern = steps_of(loop)
    assert len(kinds) == 5
    assert pattern == "per step: Optimizer 0 to 1 time, Second 3 times"


def counted_by_while(d, g):
    step = 0
    while step < N:
        if step % 2 == 0:
            d.step()
        for _ in range(3):
            g.step()
        step += 1


def endless(d, g):
    step = 0
    while True:
        d.step()
        between = step * 3
        g.step()
        step += 1
        if step == N or between < 0:
            break


def alternating(d, g):
    for step in range(N):
        if step % 2:
            d.step()
        else:
            g.step()


def over_a_list(d, g):
    for _ in range(N):
        for optimizer in (d, g):
            optimizer.step()


def over_a_list_in_epochs(d, g):
    for _ in range(2):
        for _ in range(N // 2):
            for optimizer in (d, g):
                optimizer.step()


def second_now_and_then(d, g):
    for step in range(N):
        d.step()
        if step % 2:
            g.step()


def through_a_function(d, g):
    def update(optimizer):
        optimizer.step()

    for _ in range(N):
        update(d)
        update(g)


def in_a_function_of_its_own(d, g):
    def training_step(step):
        if step % 2 == 0:
            d.step()
        for _ in range(2):
            g.step()

    for step in range(N):
        training_step(step)


def with_handlers(d, g):
    for _ in range(N):
        try:
            d.step()
            if d is None:
                continue
        except ValueError:
            continue
        with threading.Lock():
            g.step()


@pytest.mark.parametrize(
    "loop",
    [
        counted_by_while, endless, alternating, over_a_list, over_a_list_in_epochs, second_now_and_then, through_a_function,
        in_a_function_of_its_own, with_handlers,
    ],
)  # fmt: skip
def test_iterations_are_counted_whatever_the_loop_looks_like(loop):
    assert len(steps_of(loop)[0]) == N


def test_at_module_level_the_loop_counts_just_the_same():
    source = """
for step in range(6):
    if step % 2 == 0:
        d.step()
    for _ in range(3):
        g.step()
"""
    code = compile(source, "script.py", "exec")
    kinds, _ = steps_of(lambda d, g: exec(code, {"__name__": "__main__", "d": d, "g": g}))
    assert len(kinds) == 6


def test_phases_in_loops_of_their_own_are_not_one_iteration():
    def loop(d, g):
        for _ in range(2):
            for _ in range(40):
                d.step()
            for _ in range(40):
                g.step()

    kinds, _ = steps_of(loop)
    assert 140 <= len(kinds) <= 160


def test_a_step_inside_a_step_is_not_another_one():
    kinds = []
    finder = StepFinder(kinds.append)
    inner = Optimizer(finder)
    outer = Second(finder)
    for _ in range(N):
        finder.enter(outer)
        inner.step()
        finder.leave()
    finder.finish()
    assert len(kinds) == N
    assert finder.pattern() == "per step: Second 1 time"


def test_a_gradient_scaler_enters_with_the_same_optimizer():
    kinds = []
    finder = StepFinder(kinds.append)
    optimizer = Optimizer(finder)
    for step in range(N):
        finder.enter(optimizer)
        if step:
            optimizer.step()
        else:
            finder.skipped += 1
        finder.leave()
    assert len(kinds) == N
    assert finder.pattern() == "per step: Optimizer 1 time; 1 steps left out by the gradient scaler"


def test_a_step_that_raises_ends_all_the_same():
    kinds = []
    finder = StepFinder(kinds.append)
    optimizer = Optimizer(finder)
    for _ in range(N):
        finder.enter(optimizer)
        assert finder.depth() == 1
        finder.leave()
        assert finder.depth() == 0
    assert len(kinds) == N


def test_no_variable_of_the_loop_is_kept_alive():
    class Big:
        pass

    def loop(d, g):
        gone = []
        for step in range(N):
            activations = Big()
            watch = weakref.ref(activations)
            d.step()
            if step % 2:
                g.step()
            del activations
            gc.collect()
            gone.append(watch() is None)
        assert all(gone)

    assert len(steps_of(loop)[0]) == N


def test_a_loop_that_reads_its_own_locals_is_left_alone():
    def loop(d, g):
        options = locals()
        for _ in range(N):
            d.step()
            g.step()
        assert options["d"] is d

    assert len(steps_of(loop)[0]) == N
