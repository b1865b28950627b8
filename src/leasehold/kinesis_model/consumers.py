"""Registered consumers, and their current subscription to each shard."""

from __future__ import annotations

from dataclasses import dataclass, field

from leasehold.core.model import ShardId
from leasehold.kinesis_model.api_errors import in_use_error


@dataclass(slots=True)
class SubscriptionSlot:
    """The current subscription of a consumer to a shard. A consumer has at most one for each shard."""

    subscription_id: int
    since_ms: int
    is_free: bool = False


@dataclass(slots=True, eq=False)
class Consumer:
    """A registered consumer of a stream. It is ACTIVE from `active_from_ms` on."""

    name: str
    arn: str
    created_ms: int
    active_from_ms: int
    subscription_count: int = 0
    slots: dict[ShardId, SubscriptionSlot] = field(default_factory=dict)

    def status(self, now_ms: int) -> str:
        return "ACTIVE" if now_ms >= self.active_from_ms else "CREATING"

    def subscribe(self, shard_id: ShardId, now_ms: int, takeover_after_ms: int) -> int:
        """Start a subscription to a shard and return its id. It replaces one that began `takeover_after_ms` ago.

        An earlier subscription counts even if its client has disconnected: AWS documents it so.
        """
        slot = self.slots.get(shard_id)
        if slot and not slot.is_free and now_ms - slot.since_ms < takeover_after_ms:
            raise in_use_error(
                f"Another active subscription exists for this consumer: {self.arn} on shard {shard_id} since "
                f"{now_ms - slot.since_ms} ms. It can be replaced {takeover_after_ms} ms after it began."
            )
        self.subscription_count += 1
        self.slots[shard_id] = SubscriptionSlot(self.subscription_count, now_ms)
        return self.subscription_count

    def is_current(self, shard_id: ShardId, subscription_id: int) -> bool:
        """True until another subscription replaces this one."""
        slot = self.slots.get(shard_id)
        return slot is not None and slot.subscription_id == subscription_id

    def release(self, shard_id: ShardId, subscription_id: int) -> None:
        """Free the shard for the next subscription, because the server ended this one."""
        if self.is_current(shard_id, subscription_id):
            self.slots[shard_id].is_free = True
