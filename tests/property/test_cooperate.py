"""All processes stop at the same step or none does, however their reads and writes interleave.

The real code of both sides runs on threads of which one moves at a time, from one access to a
page to the next; which one, is drawn. gpuckpt may be killed between any two accesses.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpuckpt import cooperate
from gpuckpt.flow.work import quiescing
from gpuckpt.flow.work.interrupts import Interrupts
from gpuckpt.tools import cooperation
from gpuckpt.tools.cooperation import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WORDS = cooperate.W_ASKER + 1
TURNS = 30_000  # enough for every run; more would be a hang
SETTLED = 400


class KilledError(BaseException):
    """The end of one who is killed."""


class Baton:
    """Lets one thread move at a time, from turn to turn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ready: dict[str, threading.Semaphore] = {}
        self.back = threading.Semaphore(0)
        self.doomed: set[str] = set()
        self.failed: list[BaseException] = []
        self.who = threading.local()

    def add(self, name: str, work: Callable[[], None]) -> threading.Thread:
        self.ready[name] = threading.Semaphore(0)

        def run() -> None:
            self.who.name = name
            try:
                self.turn()
                work()
            except KilledError:
                pass
            except BaseException as why:  # noqa: BLE001 - raised again by who moves all
                self.failed.append(why)
            finally:
                del self.ready[name]
                self.back.release()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.back.acquire()
        return thread

    def turn(self, _: float = 0.0) -> None:
        """Wait until it is this thread's turn again."""
        name = self.who.name
        mine = self.ready[name]
        self.back.release()
        mine.acquire()
        if name in self.doomed:
            raise KilledError

    def move(self, name: str = "") -> None:
        """Let one thread, or this one, make its next move."""
        chosen = name or self.random.choice(sorted(self.ready))
        self.ready[chosen].release()
        self.back.acquire()
        if self.failed:
            raise self.failed[0]


@dataclass
class Memory:
    """A page whose every access is a turn."""

    baton: Baton
    words: list[int] = field(default_factory=lambda: [0] * WORDS)
    locked: bool = False

    def __getitem__(self, word: int) -> int:  # noqa: D105
        self.baton.turn()
        return self.words[word]

    def __setitem__(self, word: int, value: int) -> None:  # noqa: D105
        self.baton.turn()
        self.words[word] = value


class Page(cooperation._Page):
    """gpuckpt's door to one."""

    def __init__(self, pid: int, memory: Memory) -> None:
        self.pid, self.memory = pid, memory

    @property
    def there(self) -> bool:
        return True

    def words(self) -> tuple[int, ...]:
        return tuple(self.memory[word] for word in range(WORDS))

    def write(self, word: int, value: int) -> None:
        self.memory[word] = value

    def held(self) -> bool:
        return self.memory.locked

    def close(self) -> None:
        pass


class Held(Ranks):
    """The tool on pages of this kind."""

    def __init__(self, pages: dict[int, Memory]) -> None:
        self.pages = pages
        self._held = {}

    def _open(self, pid: int, flags: int) -> Page:
        del flags
        return Page(pid, self.pages[pid])

    def ask(self, pids: Iterable[int]) -> None:
        for pid in pids:
            self._held[pid] = Page(pid, self.pages[pid])
            self.pages[pid].locked = True

    def close(self) -> None:
        self.unlock()
        self._held = {}

    def unlock(self) -> None:
        for memory in self.pages.values():
            memory.locked = False


class Rank(cooperate.Point):
    """One process: it works on, at most `lag` steps ahead of the others."""

    def __init__(self, pid: int, world: World) -> None:
        self.pid, self.world = pid, world
        self._step, self._fd = 0, -1
        self._words = world.pages[pid]
        self.stops: list[int] = []
        self.away = False

    def _down(self) -> None:
        self.away = True
        self.stops.append(self._step)
        self.world.baton.turn()

    def _up(self) -> None:
        self.world.baton.turn()
        self.away = False

    def _asker_is_gone(self) -> bool:
        self.world.baton.turn()
        return not self.world.pages[self.pid].locked

    def work(self) -> None:
        while True:
            self.world.baton.turn()
            if self._step <= min(one._step for one in self.world.ranks) + self.world.lag:
                self.here()


class Leader:
    """What a process sees of the decision."""

    known = True

    def __init__(self, world: World) -> None:
        self.page = world.pages[min(world.pages)]

    def confirmed(self) -> int:
        return self.page[cooperate.W_CONFIRMED]

    def close(self) -> None:
        pass


class World:
    """A job of some processes."""

    def __init__(self, seed: int, count: int, lag: int) -> None:
        self.baton = Baton(seed)
        self.pages = {pid: Memory(self.baton) for pid in range(count)}
        self.lag = lag
        self.ranks = [Rank(pid, self) for pid in self.pages]
        self.tools = mock.Mock(ranks=Held(self.pages))
        for one in self.ranks:
            self.baton.add(f"rank {one.pid}", one.work)

    def at_rest(self) -> bool:
        return all(one.away for one in self.ranks)

    def decided(self) -> bool:
        return any(memory.words[cooperate.W_CONFIRMED] for memory in self.pages.values())

    def free(self) -> bool:
        return not any(memory.words[cooperate.W_ARRIVED] for memory in self.pages.values())

    def until(self, done: Callable[[], bool], what: str) -> None:
        for _ in range(TURNS):
            if done():
                return
            self.baton.move()
        raise AssertionError(f"never {what}: {[m.words for m in self.pages.values()]}")

    def close(self) -> None:
        self.baton.doomed |= set(self.baton.ready)
        for name in sorted(self.baton.ready):
            self.baton.move(name)


def gpuckpt(world: World, then: str) -> None:
    """Bring all to rest, and let them go on."""
    pids = sorted(world.pages)
    calm = mock.create_autospec(Interrupts, instance=True)
    if then == "give up":  # at once: nobody has had the time to come
        world.tools.ranks.ask(pids)
        world.tools.ranks.target(world.baton.random.randint(1, 4))
        assert not quiescing.go_on(world.tools, pids)
        return
    step = quiescing.agree(world.tools, calm, pids, 1e6)
    quiescing.rest(world.tools, calm, pids, step, 1e6)
    assert world.at_rest(), "said to be at rest"
    assert not quiescing.go_on(world.tools, pids)


def turning(world: World) -> Any:
    leader: Callable[[Any], Leader] = lambda _words: Leader(world)  # noqa: E731
    return (
        mock.patch.object(cooperate, "_Leader", leader),
        mock.patch.object(cooperate.time, "sleep", world.baton.turn),
    )


def assert_together(world: World) -> None:
    stops = {tuple(one.stops) for one in world.ranks}
    assert len(stops) == 1, stops


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 3),
    lag=st.integers(0, 3),
    ahead=st.integers(0, 60),
    killed=st.one_of(
        st.none(),
        st.tuples(st.just("begun"), st.integers(0, 400)),
        # the moment that matters
        st.tuples(st.just("decided"), st.integers(0, 12)),
    ),
    then=st.sampled_from(["dump", "give up"]),
)
def test_all_or_none(  # noqa: PLR0917 - hypothesis gives them by name
    seed: int, count: int, lag: int, ahead: int, killed: tuple[str, int] | None, then: str
) -> None:
    """Undisturbed all stop and go on; if gpuckpt is killed they decide alike and can be mended."""
    world = World(seed, count, lag)
    leader, sleep = turning(world)
    with leader, sleep:
        try:
            for _ in range(ahead):
                world.baton.move()
            world.baton.add("gpuckpt", lambda: gpuckpt(world, then))
            running = lambda: "gpuckpt" in world.baton.ready  # noqa: E731
            since, most = killed or ("", TURNS)
            moves = turns = 0
            while running() and turns < TURNS and moves < most:
                world.baton.move()
                turns += 1
                moves += since != "decided" or world.decided()
            if running():
                assert killed is not None, "gpuckpt never comes to an end"
                world.baton.doomed.add("gpuckpt")
                world.baton.move("gpuckpt")
                world.tools.ranks.unlock()  # as the kernel does, all at once
                world.tools.ranks._held = {}
                world.until(lambda: world.at_rest() or world.free(), "decided alike")
                for _ in range(SETTLED):
                    world.baton.move()
                assert world.at_rest() or not any(one.away for one in world.ranks)
                assert_together(world)
                repair(world)
            world.until(world.free, "all go on")
            assert_together(world)
            assert not any(one.away for one in world.ranks)
            if killed is None:
                assert len(world.ranks[0].stops) == (then == "dump")
            before = [one._step for one in world.ranks]
            world.until(
                lambda: all(
                    one._step > step for one, step in zip(world.ranks, before, strict=True)
                ),
                "the work goes on",
            )
        finally:
            world.close()


def repair(world: World) -> None:
    """What `gpuckpt repair` does, then what the next dump does: it works again."""
    pids = sorted(world.pages)

    def mend() -> None:
        assert not quiescing.go_on(world.tools, pids)

    world.baton.add("repair", mend)
    world.until(lambda: "repair" not in world.baton.ready, "repaired")
    world.baton.add("again", lambda: gpuckpt(world, "dump"))
    world.until(lambda: "again" not in world.baton.ready, "dumped again")
