"""Lists every setting of the Java KCL's configuration classes: the fields of the classes in its jars, by `javap`.

Run it with the folders or jars of the KCL and of its multi-language daemon, and write the result to
tests/docs/kcl_settings.txt. docs/java.md names each of them with its counterpart, and a test compares.

    python -m tools.list_kcl_settings .servers/kcl-3.5.1/lib .servers/kclpy/lib/*/site-packages/amazon_kclpy/jars
"""

import re
import subprocess
import sys
from pathlib import Path

CLASSES = (
    "common.ConfigsBuilder",
    "common.StreamConfig",
    "coordinator.CoordinatorConfig",
    "leases.LeaseManagementConfig",
    "leases.LeaseManagementConfig$WorkerUtilizationAwareAssignmentConfig",
    "leases.LeaseManagementConfig$GracefulLeaseHandoffConfig",
    "common.LeaseCleanupConfig",
    "common.DdbTableConfig",
    "retrieval.RetrievalConfig",
    "retrieval.polling.PollingConfig",
    "retrieval.fanout.FanOutConfig",
    "lifecycle.LifecycleConfig",
    "checkpoint.CheckpointConfig",
    "processor.ProcessorConfig",
    "metrics.MetricsConfig",
    "multilang.MultiLangDaemonConfig",
    "multilang.config.MultiLangDaemonConfiguration",
    "multilang.config.PollingConfigBean",
    "multilang.config.FanoutConfigBean",
)
_FIELD = re.compile(r"^ +(?!.*\bstatic\b)[\w.<>$?, \[\]]+ (\w+);$", re.MULTILINE)


def settings_of(jars: str, name: str) -> list[str]:
    """The fields of a class, in the order of the source."""
    shown = subprocess.run(
        ["javap", "-p", "-cp", jars, f"software.amazon.kinesis.{name}"],
        check=True,
        capture_output=True,
        text=True,
    )
    return _FIELD.findall(shown.stdout)


def main() -> None:
    """Print one setting a line, as Class.name."""
    found = [
        path
        for given in map(Path, sys.argv[1:])
        for path in ([given] if given.is_file() else given.glob("*.jar"))
    ]
    jars = ":".join(map(str, found))
    for name in CLASSES:
        for setting in settings_of(jars, name):
            print(f"{re.split('[.$]', name)[-1]}.{setting}")


if __name__ == "__main__":
    main()
