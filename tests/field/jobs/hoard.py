"""A job that needs a lot of things to be as they were where it is brought back.

Usage: hoard.py FOLDER, which holds lib.so, data, gone and moded. It maps the library, has the
files open, listens, has a deleted file in use and a second thread; it appends one numbered line
after the other to FOLDER/log, and writes FOLDER/port once all of that is so.
"""

from __future__ import annotations

import ctypes
import socket
import sys
import threading
import time
from pathlib import Path


def main() -> None:
    """Get hold of everything, then count."""
    folder = Path(sys.argv[1])
    library = ctypes.CDLL(str(folder / "lib.so"))
    listener = socket.create_server(("127.0.0.1", 0))
    opened = [(folder / name).open("r+b") for name in ("data", "gone", "moded", "ghost")]
    (folder / "ghost").unlink()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    fresh = folder / "port.new"
    fresh.write_text(str(listener.getsockname()[1]))
    fresh.rename(folder / "port")
    with (folder / "log").open("a", buffering=1) as log:
        number = 0
        while library and opened:
            log.write(f"line {number}\n")
            number += 1
            time.sleep(0.02)


main()
