"""``python -m dtprof``."""

import sys

from dtprof.cli import main

sys.exit(main())
