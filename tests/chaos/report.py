"""What a run of chaos showed, as text."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.fault_plan import Fault, Kill, NetworkFault, Pause, Reshard


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run. `problems` is empty if every promise was kept."""

    command: str  # repeats it
    took_s: float
    failover_s: float
    injected: Sequence[Fault]
    not_injected: int
    splits: int
    merges: int
    produced: int
    archived: int
    by_spark: int
    objects: int
    lost: int
    duplicated: int
    handled: int
    not_handled: int
    repeated: Mapping[str, int]
    pipeline_starts: int
    pipeline_failures: Sequence[str]
    worker_failures: Sequence[str]
    problems: Sequence[str]

    def text(self) -> str:
        """All of it, for people."""
        kills = [each for each in self.injected if isinstance(each, Kill)]
        pauses = [each for each in self.injected if isinstance(each, Pause)]
        network_faults = [each for each in self.injected if isinstance(each, NetworkFault)]
        longer = sum(each.for_s > self.failover_s for each in pauses)
        lines = [
            f"repeat: {self.command}",
            f"{len(self.injected)} faults in {self.took_s:.0f} s"
            + (f"; {self.not_injected} had no victim in time" if self.not_injected else ""),
            f"  kills      {len(kills)}: {_counted(each.victim.value for each in kills)}",
            (
                f"  pauses     {len(pauses)}: {longer} longer than the failover time, {len(pauses) - longer} shorter; "
                f"{_counted(each.victim.value for each in pauses)}"
            ),
            f"  reshards   {self.splits + self.merges}: splits {self.splits}, merges {self.merges}",
            (
                f"  network    {len(network_faults)}: {_counted(each.how.value for each in network_faults)}; "
                f"{_counted(each.dependency.value for each in network_faults)}"
            ),
            (
                f"  aftermath  the pipeline was started {self.pipeline_starts} times, and ended without being hit "
                f"{len(self.pipeline_failures)} times; workers did so {len(self.worker_failures)} times"
            ),
            f"records    {self.produced:,} produced",
            (
                f"  archive  {self.archived:,} rows in {self.objects:,} objects, about {self.by_spark:,} by Spark; "
                f"lost {self.lost}, doubled {self.duplicated}"
            ),
            (
                f"  handler  {self.handled:,} given, lost {self.not_handled}, given again "
                f"{sum(self.repeated.values()):,}: {_listed(self.repeated)}"
            ),
        ]
        ended = [*self.pipeline_failures, *self.worker_failures]
        lines += [f"  ended: {reason.strip().splitlines()[-1][:300]}" for reason in ended if reason.strip()]
        lines += [f"BROKEN {problem}" for problem in self.problems]
        lines.append(
            "every promise was kept" if not self.problems else f"{len(self.problems)} promises were broken"
        )
        return "\n".join(lines)


def count_by_kind(injected: Sequence[Fault]) -> str:
    """How many of each kind, in a few words."""
    names = {Kill: "kills", Pause: "pauses", Reshard: "reshards", NetworkFault: "network"}
    counts = Counter(type(each) for each in injected)
    return ", ".join(f"{name} {counts[kind]}" for kind, name in names.items())


def _counted(names: Iterable[str]) -> str:
    return _listed(Counter(names))


def _listed(counts: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda each: -each[1]))
        or "none"
    )
