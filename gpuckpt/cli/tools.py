"""The real tools of this host, put together; what is slow to find is found when first needed."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuckpt.flow.work.toolbox import Toolbox
from gpuckpt.tools import criu, cuda
from gpuckpt.tools.carried import Carried
from gpuckpt.tools.cooperation import Ranks
from gpuckpt.tools.cpus import Cpus
from gpuckpt.tools.files import Files
from gpuckpt.tools.host import Host
from gpuckpt.tools.net import Net
from gpuckpt.tools.nvidia import Nvidia
from gpuckpt.tools.pidspace import Spaces
from gpuckpt.tools.proc import Proc
from gpuckpt.tools.remote import Stores
from gpuckpt.tools.run import Runner
from gpuckpt.tools.shell import Shell
from gpuckpt.tools.software import Software
from gpuckpt.tools.starting import Starter
from gpuckpt.tools.taskmemory import Memories

if TYPE_CHECKING:
    from gpuckpt.model import Version
    from gpuckpt.tools.criurun import DumpRun, RestoreRun

RUN_DIR: Final = Path("/run/gpuckpt")


def real(state_dir: Path) -> Toolbox:
    """Return the tools of this host."""
    runner = Runner()
    return Toolbox(
        proc=Proc(),
        host=Host(runner=runner),
        nvidia=Nvidia(),
        cuda=cuda.choose(runner),
        criu=LateCriu(runner),
        files=Files(),
        carried=Carried(Path("/proc")),
        net=Net(),
        cpus=Cpus(),
        memory=Memories(Path("/proc")),
        ranks=Ranks(Path("/proc")),
        shell=Shell(runner),
        spaces=Spaces(Path("/proc")),
        software=Software(Path("/proc")),
        starter=Starter(runner),
        stores=Stores(),
        state_dir=state_dir,
        # without rights there nothing is dumped, but looking and planning work all the same
        run_dir=RUN_DIR if os.access(RUN_DIR.parent, os.W_OK) else state_dir,
    )


class LateCriu:
    """CRIU, looked for when it is first asked something: doctor must run where there is none.

    Every member raises CriuMissing, CriuTooOld or CriuBroken if that is what is found.
    """

    def __init__(self, runner: Runner) -> None:
        """Look for nothing yet."""
        self._runner = runner

    @property
    def program(self) -> str:
        """See CriuTool."""
        return self._found.program

    @property
    def version(self) -> Version:
        """See CriuTool."""
        return self._found.version

    def check(self) -> str:
        """See CriuTool."""
        return self._found.check()

    def dump(self, run: DumpRun) -> None:
        """See CriuTool."""
        self._found.dump(run)

    def restore(self, run: RestoreRun) -> None:
        """See CriuTool."""
        self._found.restore(run)

    @cached_property
    def _found(self) -> criu.Criu:
        return criu.find(self._runner)
