"""Steps of several ways of training, measured by turns: drift of the machine hits all alike."""

import gc
import random
import time

WARM = 4


def by_turns(ways, steps):
    """Seconds of every step: name -> ``steps`` times of ``ways[name].step()``, after WARM that do not count.

    The order is drawn anew for each turn, the same on all ranks. Garbage is not collected meanwhile.
    """
    for way in ways.values():
        for _ in range(WARM):
            way.step()
    gc.collect()
    gc.disable()
    chance, found = random.Random(1), {name: [] for name in ways}
    for _ in range(steps):
        order = list(ways)
        chance.shuffle(order)
        for name in order:
            began = time.perf_counter()
            ways[name].step()
            found[name].append(time.perf_counter() - began)
    return found
