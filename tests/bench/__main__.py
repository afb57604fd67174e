"""Compare gpuckpt with what people do today, in one run: `make bench`.

Every round dumps and restores one fresh process by each way, one after the other, so that all of
them see the same machine. Prints medians, and how they stand to bare CRIU's.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from gpuckpt.tools.criu import find
from gpuckpt.tools.run import Runner
from tests.bench.ways import Bare, Gpuckpt, Script, Taken
from tests.root.harness import exists, wait_for

if TYPE_CHECKING:
    from tests.bench.ways import Way

JOB = Path(__file__).with_name("job.py")


def one_round(way: Way, mebibytes: int, parent: Path) -> tuple[Taken, Taken]:
    """Dump and restore one fresh process by one way."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    ready = folder / "ready"
    job = subprocess.Popen(
        [sys.executable, str(JOB), str(mebibytes), str(ready)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    # a parent that waits at once, as a shell would: nobody then waits for the zombie's pid
    threading.Thread(target=job.wait, daemon=True).start()
    try:
        wait_for("the memory is filled", ready.exists)
        os.sync()
        dumped = way.dump(job.pid, folder)
        job.wait()
        wait_for("the pid is free", lambda: not exists(job.pid))
        restored = way.restore(folder)
    finally:
        if exists(job.pid):
            os.kill(job.pid, signal.SIGKILL)
        job.wait()
        wait_for("the restored process is gone", lambda: not exists(job.pid))
        shutil.rmtree(folder)
    return dumped, restored


def table(results: dict[str, list[tuple[Taken, Taken]]]) -> str:
    """Return medians as a Markdown table, ratios to the row of bare CRIU behind them."""
    rows = {
        name: tuple(
            statistics.median(values)
            for values in (
                [dumped.frozen for dumped, _ in rounds],
                [dumped.whole for dumped, _ in rounds],
                [restored.whole for _, restored in rounds],
            )
        )
        for name, rounds in results.items()
    }
    base = rows[Bare.name]
    lines = ["| way | frozen s | dump s | restore s |", "|---|---|---|---|"]
    for name, row in rows.items():
        cells = (f"{s:.2f} ({s / b:.2f}x)" for s, b in zip(row, base, strict=True))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run all rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"))
    asked = parser.parse_args()
    criu = find(Runner())
    ways: tuple[Way, ...] = (Gpuckpt(), Bare(criu.program), Script(criu.program))
    results: dict[str, list[tuple[Taken, Taken]]] = {way.name: [] for way in ways}
    for number in range(asked.rounds):
        for way in ways:
            taken = one_round(way, asked.mebibytes, asked.folder)
            results[way.name].append(taken)
            print(f"round {number + 1}, {way.name}: {taken}", file=sys.stderr)
    print(
        f"{asked.mebibytes} MiB, half of it zeros; medians of {asked.rounds} rounds; "
        f"{os.cpu_count()} cores, Linux {platform.release()}, CRIU {criu.version}\n"
    )
    print(table(results))


main()
