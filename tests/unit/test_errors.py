"""What every error promises about the job."""

from __future__ import annotations

from gpuckpt import errors


def family(root: type[errors.GpuckptError]) -> list[type[errors.GpuckptError]]:
    return [root, *(one for child in root.__subclasses__() for one in family(child))]


def test_one_exit_code_means_one_fate_of_the_job() -> None:
    """A runbook branches on the code alone, so the code must say what became of the job."""
    fates: dict[int, set[str]] = {}
    for error in family(errors.GpuckptError):
        if error is not errors.Interrupted:  # its code is 128 plus the signal
            fates.setdefault(error.code, set()).add(error.job)
    assert {code: len(said) for code, said in fates.items()} == dict.fromkeys(fates, 1)


def test_an_interrupt_ends_like_the_signal() -> None:
    assert errors.Interrupted(15).exit_code == 143
    assert errors.Interrupted(2).exit_code == 130
