"""`/api/v1/collector`: what lifecycle mail waits, and what of the budget is used."""

from __future__ import annotations

from dataclasses import asdict

from quart import Response

from relay.http.operations import Access, Answer, Call, Operation, View, json_response
from relay.http.routing import Api
from relay.lifecycle.batching import REASONS
from relay.lifecycle.report import Spending
from relay.metrics import registry


class CollectorState(View):
    """What waits on all nodes, and what this process handed over since its start.

    `parked` are letters whose account fits them no more, and may again in time.
    """

    activations: int
    recoveries: int
    parked: int
    oldest_seconds: float | None
    batches: int
    letters: int
    budget: Spending | None


def register(api: Api) -> None:
    """Declare the call."""

    @api.add(
        "GET",
        "/api/v1/collector",
        Operation(
            "getCollector",
            "See what lifecycle mail waits, and the budget",
            "accounts",
            Access.SCOPE,
            (Answer(200, "now", CollectorState),),
            scope="admin",
        ),
    )
    async def show(call: Call) -> Response:
        found = await api.deps.collector_report()
        count = registry.get_sample_value
        return json_response(
            {
                "activations": found.due.activations,
                "recoveries": found.due.recoveries,
                "parked": found.due.parked,
                "oldest_seconds": found.oldest,
                "batches": int(
                    sum(
                        count("relay_collector_batches_total", {"reason": reason}) or 0
                        for reason in REASONS
                    )
                ),
                "letters": int(count("relay_collector_batch_rows_sum") or 0),
                "budget": None if found.spending is None else asdict(found.spending),
            }
        )
