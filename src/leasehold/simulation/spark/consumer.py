"""The registered consumer of a simulated query, as one of its processes uses it."""

from __future__ import annotations

from leasehold.fleet.reading.stream_consumer import StreamConsumer
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.services import APPLICATION
from leasehold.simulation.environment.streams import STREAM
from leasehold.simulation.world import World


def open_simulated_consumer(world: World, process: SimulatedProcess) -> StreamConsumer | None:
    """Return the consumer with which a process subscribes; None if the query polls."""
    if not world.settings.fan_out.is_fan_out:
        return None
    return StreamConsumer(
        world.services.fan_out_for(process, world),
        world.settings.fan_out,
        stream=STREAM,
        application=APPLICATION,
        clock=process.clock,
        rng=world.spec.rng_for(f"{process.name}:consumer"),
        observe=lambda event: world.observe(process, event),
    )
