"""The registered consumer of a simulated query, as one of its processes uses it."""

from __future__ import annotations

from collections.abc import Iterable

from leasehold.fleet.reading.stream_consumer import StreamConsumer
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.services import APPLICATION
from leasehold.simulation.world import World


def open_simulated_consumers(
    world: World, process: SimulatedProcess, names: Iterable[str]
) -> dict[str, StreamConsumer]:
    """Return the consumers with which a process subscribes, one for each stream; none if the query polls."""
    if not world.settings.fan_out.is_fan_out:
        return {}
    rng = world.spec.rng_for(f"{process.name}:consumer")
    return {
        name: StreamConsumer(
            world.services.fan_out_for(process, world, name),
            world.settings.fan_out,
            stream=name,
            application=APPLICATION,
            clock=process.clock,
            rng=rng,
            observe=lambda event: world.observe(process, event),
        )
        for name in names
    }
