"""A small launcher: starts a script once per rank with the variables that a real one sets, and waits.

usage: run_ranks.py STYLE RANKS SCRIPT [ARGUMENT…]
STYLE: torchrun (RANK and the like), slurm (SLURM_PROCID and SLURM_NTASKS alone), both (RANK is right, SLURM_PROCID 0 in all),
none (the rank is the script's last argument)
"""

import os
import socket
import subprocess
import sys

style, ranks, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
started = []
for rank in map(str, range(ranks)):
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if style in ("torchrun", "both"):
        env |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    if style in ("slurm", "both"):
        env |= {"SLURM_PROCID": rank if style == "slurm" else "0", "SLURM_NTASKS": str(ranks)}
    started.append(subprocess.Popen([sys.executable, *words, *([rank] if style == "none" else [])], env=env))
if "RUN_PIDS" in os.environ:
    with open(os.environ["RUN_PIDS"], "w") as file:
        print(os.getpid(), *(process.pid for process in started), file=file)
codes = [process.wait() for process in started]
sys.exit(next((code if code > 0 else 128 - code for code in codes if code), 0))
