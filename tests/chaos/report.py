"""The report of a chaos run as text."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.fault_plan import Fault, Kill, NetworkFault, Pause, Reshard


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of a run, each as one field. `problems` is empty if every promise was kept."""

    command: str  # that repeats the run
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
        """Return the report as text."""
        kills = [each for each in self.injected if isinstance(each, Kill)]
        pauses = [each for each in self.injected if isinstance(each, Pause)]
        network_faults = [each for each in self.injected if isinstance(each, NetworkFault)]
        longer = sum(each.for_s > self.failover_s for each in pauses)
        lines = [
            f"repeat: {self.command}",
            f"{len(self.injected)} faults in {self.took_s:.0f} s"
            + (f"; {self.not_injected} had no victim" if self.not_injected else ""),
            f"  kills      {len(kills)}: {_count_names(each.victim.value for each in kills)}",
            (
                f"  pauses     {len(pauses)}: {longer} longer than the failover time, {len(pauses) - longer} shorter; "
                f"{_count_names(each.victim.value for each in pauses)}"
            ),
            f"  reshards   {self.splits + self.merges}: splits {self.splits}, merges {self.merges}",
            (
                f"  network    {len(network_faults)}: {_count_names(each.kind.value for each in network_faults)}; "
                f"{_count_names(each.dependency.value for each in network_faults)}"
            ),
            (
                f"  failures   the pipeline was started {self.pipeline_starts} times; without a kill or pause it ended "
                f"{len(self.pipeline_failures)} times, and workers ended {len(self.worker_failures)} times"
            ),
            f"records    {self.produced:,} produced",
            (
                f"  archive  {self.archived:,} rows in {self.objects:,} objects, about {self.by_spark:,} by Spark; "
                f"lost {self.lost}, duplicated {self.duplicated}"
            ),
            (
                f"  handler  {self.handled:,} handled, lost {self.not_handled}, repeated "
                f"{sum(self.repeated.values()):,}: {_format_counts(self.repeated)}"
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
    """Return the number of faults of each kind as text."""
    names = {Kill: "kills", Pause: "pauses", Reshard: "reshards", NetworkFault: "network"}
    counts = Counter(type(each) for each in injected)
    return ", ".join(f"{name} {counts[kind]}" for kind, name in names.items())


def _count_names(names: Iterable[str]) -> str:
    return _format_counts(Counter(names))


def _format_counts(counts: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda each: -each[1]))
        or "none"
    )
