"""A job that is bound to its parent: `bound.py FOLDER HOW`.

With `signal` it asks the kernel for SIGTERM at the parent's end, with `look` it goes when it finds
another parent, as a Jupyter kernel does. Meanwhile it writes a line into FOLDER/log ten times a
second.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

folder, how = Path(sys.argv[1]), sys.argv[2]
parent = os.getppid()
if how == "signal":
    ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG
with (folder / "log").open("w", buffering=1) as log:
    while how == "signal" or os.getppid() == parent:
        log.write(f"{time.time()} {os.environ.get('SLURM_JOB_ID')}\n")
        time.sleep(0.1)
