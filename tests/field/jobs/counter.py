"""The plainest of jobs: counter.py FILE appends one number after the other to a file."""

from __future__ import annotations

import sys
import time
from pathlib import Path


def main() -> None:
    """Count."""
    with Path(sys.argv[1]).open("a", buffering=1) as log:
        number = 0
        while True:
            log.write(f"{number}\n")
            number += 1
            time.sleep(0.02)


main()
