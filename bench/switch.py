"""A switch in user space, for a lab with latency where the kernel has no netem: every frame arrives so much later than it was sent.

    python bench/switch.py MILLISECONDS DEVICE...

Makes a TAP device for every host (whoever starts it moves them into the hosts), says "ready", and carries frames until its standard input
is closed. Frames are as large as the hosts hand them over, up to 64 KB, so that one Python process carries a gigabit.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
TAP, NO_PI, VNET_HEADER = 0x2, 0x1000, 0x4000
CHECKSUMS_AND_LARGE_FRAMES = 1 | 2 | 4
HEADER_BYTES = 10
MOST_BYTES = 70_000


def tap(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), TAP | NO_PI | VNET_HEADER))
    fcntl.ioctl(device, TUNSETVNETHDRSZ, struct.pack("i", HEADER_BYTES))
    fcntl.ioctl(device, TUNSETOFFLOAD, CHECKSUMS_AND_LARGE_FRAMES)
    return device


def carry(ports: list[int], seconds: float) -> None:
    known: dict[bytes, int] = {}  # behind which port an address is
    on_the_way: deque[tuple[float, list[int], bytes]] = (
        deque()
    )  # all take equally long: the first to leave is the first to arrive
    while True:
        wait = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
        ready, _, _ = select.select([*ports, sys.stdin], [], [], wait)
        if sys.stdin in ready:
            return
        for port in ready:
            with suppress(OSError):
                frame = os.read(port, MOST_BYTES)
                to, sender = frame[HEADER_BYTES : HEADER_BYTES + 6], frame[HEADER_BYTES + 6 : HEADER_BYTES + 12]
                known[sender] = port
                targets = [known[to]] if to in known else [other for other in ports if other != port]
                on_the_way.append((time.monotonic() + seconds, targets, frame))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, targets, frame = on_the_way.popleft()
            for target in targets:
                with suppress(OSError):  # its queue is full, or it is gone: a switch drops
                    os.write(target, frame)


if __name__ == "__main__":
    made = [tap(name) for name in sys.argv[2:]]
    print("ready", flush=True)
    carry(made, float(sys.argv[1]) / 1e3)
