"""The responses of a supervisor for the status of its processes. It asks all of them at the same time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from leasehold.adapters.status_server import Response
from leasehold.core.observing.merged_status import ProcessStatus, merge_health, merge_metrics, parse_health
from leasehold.tasks import all_of
from leasehold.worker.processes.member_process import Slot
from leasehold.worker.processes.messages import Answer

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def health_response(slots: Sequence[Slot]) -> Response:
    """200 if all processes are healthy, 503 if not. The body lists the problems."""
    report = merge_health(await _statuses(slots))
    return _json_response(report, 200 if report["ok"] else 503)


async def status_response(slots: Sequence[Slot]) -> Response:
    """The processes, each with its own report."""
    statuses = await _statuses(slots)
    return _json_response(
        {"processes": [{**each.to_json(), "health": each.health} for each in statuses]}, 200
    )


async def metrics_response(slots: Sequence[Slot]) -> Response:
    """The metrics of all processes, labelled by process."""
    answers = await _ask(slots, "/metrics")
    texts = {
        slot.number: answer.body
        for slot, answer in zip(slots, answers, strict=True)
        if answer is not None and answer.status == 200
    }
    merged = merge_metrics(texts, [slot.status() for slot in slots])
    return Response(200, _METRICS_TYPE, merged.encode())


async def _statuses(slots: Sequence[Slot]) -> list[ProcessStatus]:
    answers = await _ask(slots, "/health")
    return [
        replace(slot.status(), health=None if answer is None else parse_health(answer.body))
        for slot, answer in zip(slots, answers, strict=True)
    ]


async def _ask(slots: Sequence[Slot], path: str) -> list[Answer | None]:
    return await all_of(*(_ask_one(slot, path) for slot in slots))


async def _ask_one(slot: Slot, path: str) -> Answer | None:
    member = slot.member
    return await member.ask(path) if member is not None and member.has_connected else None


def _json_response(value: Mapping[str, Any], status: int) -> Response:
    return Response(status, "application/json", json.dumps(value, indent=2).encode() + b"\n")
