"""Trees of any shape: the same tree has the same digest, and each difference of two is named."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuckpt.tools.software import Software
from gpuckpt.tools.tracked import differences

RELAXED = settings(deadline=None, max_examples=60)
# what is at a path: the bytes and mode of a file, or where a link leads
Thing = tuple[bytes, int] | str
things = st.one_of(
    st.tuples(st.binary(max_size=20), st.sampled_from([0o600, 0o644, 0o755])),
    st.sampled_from(["here", "../there", "/nowhere"]),
)
names = st.sampled_from(["a", "b", "ä", "\udce4", "a b", "a\nb", "-"])
paths = st.lists(names, min_size=1, max_size=3).map("/".join)


def fitting(tree: dict[str, Thing]) -> dict[str, Thing]:
    """Leave out what would lie in a file."""
    return {
        path: thing
        for path, thing in tree.items()
        if not any(path.startswith(f"{other}/") for other in tree)
    }


trees = st.dictionaries(paths, things, max_size=8).map(fitting)


def make(top: Path, tree: dict[str, Thing]) -> None:
    top.mkdir()
    for path, thing in tree.items():
        place = top / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(thing, str):
            place.symlink_to(thing)
        else:
            place.write_bytes(thing[0])
            place.chmod(thing[1])


def everything(tree: dict[str, Thing]) -> dict[str, Thing | None]:
    """Return all that is in a tree, with the folders in between."""
    folders = {path[:at]: None for path in tree for at, letter in enumerate(path) if letter == "/"}
    return {**folders, **tree}


@RELAXED
@given(before=trees, after=trees)
def test_differences_are_what_differs(before: dict[str, Thing], after: dict[str, Thing]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        walks = []
        for name, tree in (("one", before), ("two", after)):
            make(Path(folder, name), tree)
            found = Software(Path("/proc")).walk(f"{folder}/{name}", full=False)
            assert found is not None
            walks.append(found)
    one, two = everything(before), everything(after)
    expected = {
        (path, "missing" if path not in two else "new" if path not in one else "changed")
        for path in one.keys() | two.keys()
        if (path in one, one.get(path)) != (path in two, two.get(path))
    }
    assert set(differences(walks[0].listing, walks[1].listing)) == expected
    assert (walks[0].digest == walks[1].digest) == (not expected)
    assert [walk.entries for walk in walks] == [len(one) + 1, len(two) + 1]
