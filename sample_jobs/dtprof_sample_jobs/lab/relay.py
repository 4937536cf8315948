"""The lab's switch when a round-trip time is asked for: frames between TAP devices, each held back for half of it.

``python relay.py DELAY_US IFACE NAMESPACE…`` opens a device IFACE in each namespace, says ``ready`` and switches until it
is killed. Frames that the kernel has not segmented yet (up to 64 KiB, with a virtio-net header) are passed whole, so that
5 Gb/s are some 10,000 frames a second. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

# linux/if_tun.h, linux/sched.h, linux/prctl.h
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
CLONE_NEWNET = 0x40000000
PR_SET_TIMERSLACK = 29

HEADER = 10  # bytes of virtio-net header before the frame
FRAME = HEADER + 66_000
BATCH = 64  # frames taken from one device before the others have their turn
# waking up and passing a frame on takes about this long and is part of the round trip
OWN_NS = 70_000
HELD = 16_384  # frames held at most: about 1 GB; more is not read, and waits in the devices

_libc = ctypes.CDLL(None, use_errno=True)


def open_taps(iface: str, namespaces: list[str]) -> list[int]:
    """A TAP device in each namespace; the process returns to its own namespace."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    taps = []
    for name in namespaces:
        space = os.open(f"/run/netns/{name}", os.O_RDONLY)
        _enter(space)
        os.close(space)
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", iface.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
        fcntl.ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
        taps.append(tap)
    _enter(home)
    os.close(home)
    return taps


def _enter(space: int) -> None:
    if _libc.setns(space, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def switch(taps: list[int], delay_ns: int) -> None:
    """Pass frames for ever: to the device behind which the address was seen, or to all others."""
    held: deque[tuple[int, int, bytes]] = deque()  # due, from, frame: in order of due, for all have the same delay
    behind: dict[bytes, int] = {}
    while True:
        now = time.monotonic_ns()
        while held and held[0][0] <= now:
            _, source, frame = held.popleft()
            target = behind.get(frame[HEADER : HEADER + 6])
            for tap in [target] if target is not None else [t for t in taps if t != source]:
                # a full device drops, as a full switch does; one that is not up yet refuses
                with contextlib.suppress(BlockingIOError, OSError):
                    os.write(tap, frame)
        wait = max(held[0][0] - time.monotonic_ns(), 0) / 1e9 if held else None
        for tap in select.select(taps if len(held) < HELD else [], [], [], wait)[0]:
            with contextlib.suppress(BlockingIOError):
                for _ in range(BATCH):
                    frame = os.read(tap, FRAME)
                    held.append((time.monotonic_ns() + delay_ns, tap, frame))
                    behind[frame[HEADER + 6 : HEADER + 12]] = tap


def main(words: list[str]) -> None:
    """Open the devices, tell the launcher, switch."""
    delay_us, iface, *namespaces = words
    taps = open_taps(iface, namespaces)
    _libc.prctl(PR_SET_TIMERSLACK, 1_000, 0, 0, 0)
    # frames leave on time also when the ranks take all cores; without the right they leave when there is a core
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    print("ready", flush=True)
    switch(taps, max(int(delay_us) * 1_000 - OWN_NS, 0))


if __name__ == "__main__":
    main(sys.argv[1:])
