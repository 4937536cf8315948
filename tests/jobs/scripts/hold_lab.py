"""Set a lab up with a sleeping process in it, say so, and wait for standard input to end: ``hold_lab.py SPEC``."""

import subprocess
import sys

from dtprof_sample_jobs.lab.network import lab
from dtprof_sample_jobs.lab.spec import parse_lab

with lab(parse_lab(sys.argv[1], ranks=2)) as made:
    sleeper = subprocess.Popen(made.inside(1, ["sleep", "600"]))
    print(made.name, flush=True)
    sys.stdin.read()
sys.exit(0 if sleeper.wait() else 1)
