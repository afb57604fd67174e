"""The page that tells what a restore of an image would meet here: of plan and restore --plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuckpt.cli import describe, filesteps, gpus, moved, timeline, units
from gpuckpt.cli.page import Fields, Findings, Next, Outcome, Page, Tone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpuckpt.cli.page import Block
    from gpuckpt.flow.preview import Preview


def outcome(seen: Preview, force: Iterable[str] = (), gpu_map: str | None = None) -> Outcome:
    """Lay out verdict, image and findings; the next command is the restore, or this page again."""
    places = seen.facts.gpus.places if seen.facts.gpus is not None else ()
    blocks: list[Block] = [Fields(tuple(_rows(seen))), *gpus.table(places)]
    blocks += filesteps.table(seen.facts.steps)
    blocks += moved.table(seen.identity, with_gpus=False)  # the table above has these
    if seen.findings:
        blocks.append(Findings(seen.findings))
    if seen.error is not None:
        blocks.append(Fields((("error", f"{seen.error.name}, exit {seen.error.exit_code}"),)))
    if seen.thp:
        blocks.append(Fields((("faster", describe.THP),)))
    blocks.append(Next((_following(seen, force, gpu_map),)))
    return Outcome(
        payload={
            "target": "image",
            "image": seen.path,
            "image_id": seen.manifest.image_id,
            "root_pid": seen.manifest.root_pid,
            "can_restore": seen.error is None,
            "created": seen.manifest.created,
            "same_boot": seen.same_boot,
            "totals": seen.manifest.totals,
            "memory_needed": seen.memory,
            "memory_available": seen.facts.host.memory_available,
            "forecast": {
                "seconds": seen.forecast.seconds,
                "parts": seen.forecast.parts,
                "lately": seen.forecast.lately,
            },
            "gpus": gpus.payload(places),
            "files": filesteps.payload(seen.facts.steps),
            "identity": moved.payload(seen.identity),
            "thp_helps": seen.thp,
            "findings": seen.findings,
        },
        page=Page(_verdict(seen), Tone.GOOD if seen.error is None else Tone.BAD, tuple(blocks)),
        quiet="\n".join(dict.fromkeys(one.id for one in seen.findings if one.blocks)),
        error=seen.error,
    )


def _following(seen: Preview, force: Iterable[str], gpu_map: str | None) -> str:
    """Return the restore with the options that were asked about, or this page again."""
    options = ["--gpu-map", gpu_map] if gpu_map else []
    options += ["--files", seen.facts.choice] if seen.facts.choice != "refuse" else []
    options += [word for pair in seen.facts.moved for word in ("--map-path", "=".join(pair))]
    asked = ["--pid-namespace"] if seen.facts.apart else []
    asked += [word for gate in sorted(force) for word in ("--force-gate", gate)]
    verb = "restore"
    if seen.error is None:
        asked += ["--thp"] if seen.thp else []
    elif asked:
        asked += ["--plan"]
    else:
        verb = "plan"
    return describe.command_line("gpuckpt", verb, str(seen.path), *options, *asked)


def _verdict(seen: Preview) -> str:
    blockers = sum(one.blocks for one in seen.findings)
    if seen.error is not None:
        stop = "stops" if blockers == 1 else "stop"
        return f"{units.count(blockers, 'finding')} {stop} a restore here"
    warnings = len(seen.findings)
    but = f", with {units.count(warnings, 'warning')}" if warnings else ""
    return f"this image can be restored here now{but}"


def _rows(seen: Preview) -> Iterator[tuple[str, str]]:
    manifest, host = seen.manifest, seen.facts.host
    yield "image", str(seen.path)
    yield "job", describe.job(manifest)
    where = "this host, since its last boot" if seen.same_boot else manifest.host.hostname
    if not seen.same_boot and manifest.host.hostname == host.hostname:
        where = f"a host named {host.hostname}, as this one is, in another boot"
    yield "dumped", f"{manifest.created} on {where}"
    yield "size", describe.sizes(manifest)
    have = units.size(host.memory_available)
    yield "memory", f"{units.size(seen.memory)} needed, {have} available"
    known = seen.forecast
    checks = units.seconds(known.checks.value)
    parts = f"checks {checks}, CRIU {units.seconds(known.criu.value)} ({known.criu.basis})"
    if known.gpu_in.value:
        parts += f", GPU {units.seconds(known.gpu_in.value)} ({known.gpu_in.basis})"
    said = timeline.lately(known.lately)
    told = f"{units.seconds(known.seconds)} until it runs: {parts}"
    yield "forecast", told + (said and f"; {said}")
