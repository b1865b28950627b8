"""Every key of a MultiLang daemon's properties file: the setting that it has here, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# Kinds of values.
TEXT: Final = "text"
MILLIS: Final = "millis"
COUNT: Final = "count"
REAL: Final = "real"
FLAG: Final = "flag"
NO_FLAG: Final = "no flag"  # the setting has the opposite meaning

SETTINGS: Final[Mapping[str, tuple[str, str]]] = {
    "tableName": ("lease_table", TEXT),
    "workerId": ("worker_id", TEXT),
    "workerIdentifier": ("worker_id", TEXT),
    "kinesisEndpoint": ("kinesis_endpoint", TEXT),
    "kinesisClient.endpointOverride": ("kinesis_endpoint", TEXT),
    "dynamoDBEndpoint": ("dynamodb_endpoint", TEXT),
    "dynamoDbClient.endpointOverride": ("dynamodb_endpoint", TEXT),
    "cloudWatchEndpoint": ("cloudwatch_endpoint", TEXT),
    "cloudWatchClient.endpointOverride": ("cloudwatch_endpoint", TEXT),
    "failoverTimeMillis": ("failover_after", MILLIS),
    "cleanupLeasesUponShardCompletion": ("clean_up", FLAG),
    "ignoreUnexpectedChildShards": ("ignore_unexpected_child_shards", FLAG),
    "leaseTableDeletionProtectionEnabled": ("table_deletion_protection", FLAG),
    "leaseTablePitrEnabled": ("table_point_in_time_recovery", FLAG),
    "gracefulLeaseHandoffTimeoutMillis": ("handoff_timeout", MILLIS),
    "isGracefulLeaseHandoffEnabled": ("handoff", FLAG),
    "taskBackoffTimeMillis": ("retry_initial_wait", MILLIS),
    "maxLeasesForWorker": ("max_leases", COUNT),
    "maxLeasesToStealAtOneTime": ("leases_to_request", COUNT),
    "leaseTableScanTotalSegments": ("scan_segments", COUNT),
    "parentShardPollIntervalMillis": ("check_parents_every", MILLIS),
    "logWarningForTaskAfterMillis": ("stuck_after", MILLIS),
    "maxRecords": ("records_per_call", COUNT),
    "pollingConfig.maxRecords": ("records_per_call", COUNT),
    "idleTimeBetweenReadsInMillis": ("idle_poll_every", MILLIS),
    "pollingConfig.idleTimeBetweenReadsInMillis": ("idle_poll_every", MILLIS),
    "fanoutConfig.consumerArn": ("consumer_arn", TEXT),
    "fanoutConfig.consumerName": ("consumer_name", TEXT),
    "disableWorkerMetrics": ("measure_load", NO_FLAG),
    "maxThroughputPerHostKBps": ("max_kbps", COUNT),
    "dampeningPercentage": ("balance_step", REAL),
    "reBalanceThresholdPercentage": ("balance_threshold", REAL),
    "allowThroughputOvershoot": ("balance_overshoot", FLAG),
    "workerMetricsEMAAlpha": ("newest_report_weight", REAL),
    "coordinatorStateTableName": ("coordinator_table", TEXT),
    "workerMetricsTableName": ("worker_metrics_table", TEXT),
}

# Translated by functions, because they need other keys, or mean more than one setting.
TRANSLATED: Final = frozenset(
    {
        "executableName",
        "applicationName",
        "streamName",
        "streamArn",
        "regionName",
        "kinesisClient.region",
        "dynamoDbClient.region",
        "cloudWatchClient.region",
        "AwsCredentialsProvider",
        "AwsCredentialsProviderDynamoDB",
        "AwsCredentialsProviderCloudWatch",
        "initialPositionInStream",
        "initialPositionInStreamExtended",
        "timeoutInSeconds",
        "shutdownGraceMillis",
        "callProcessRecordsEvenForEmptyRecordList",
        "retrievalMode",
        "clientVersionConfig",
        "varianceBalancingFrequency",
        "metricsLevel",
        "metricsEnabledDimensions",
    }
)

CLIENT_PREFIXES: Final = ("kinesisClient.", "dynamoDbClient.", "cloudWatchClient.")
REGIONS: Final = ("regionName", "kinesisClient.region", "dynamoDbClient.region", "cloudWatchClient.region")

# Under retrievalMode=DEFAULT, the KCL polls if one of them is set.
POLLING_KEYS: Final = tuple(
    f"{prefix}{key}"
    for prefix in ("", "pollingConfig.")
    for key in (
        "maxRecords",
        "idleTimeBetweenReadsInMillis",
        "millisBehindLatestThresholdForReducedTps",
        "retryGetRecordsInSeconds",
        "maxGetRecordsThreadPool",
    )
)

REFUSED: Final[Mapping[str, str]] = {
    "shardPrioritization": "it has no text form, and stops Java as well; parents are always read before their children",
}

_JAVA_TABLE: Final = "only Java creates this table; the setting has no effect here"
_FIXED_REPORTS: Final = "fixed at the KCL's default, because a leader's patience is derived from it"
_NO_THREADS: Final = "there is no thread pool: calls are concurrent on one event loop"
_RETRIED: Final = "a call that fails is retried with growing pauses until it succeeds"

# By key: why it has no setting, and whether that is worth a warning.
WITHOUT_SETTING: Final[Mapping[str, tuple[str, bool]]] = {
    "processingLanguage": ("it is only a part of Java's user agent", False),
    "maxActiveThreads": (_NO_THREADS, True),
    "validateSequenceNumberBeforeCheckpointing": (
        "in Java without effect; a checkpoint is always checked against the delivered records",
        False,
    ),
    "leaseAssignmentIntervalMillis": ("a leader decides every 0.4 failover times", False),
    "shardSyncIntervalMillis": (
        "leases of children are created with the end of their parent; the audit (audit_every) finds the rest",
        False,
    ),
    "maxLeaseRenewalThreads": (_NO_THREADS, False),
    "listShardsBackoffTimeInMillis": (_RETRIED, False),
    "maxListShardsRetryAttempts": (_RETRIED, False),
    "enablePriorityLeaseAssignment": (
        "always so: leases that are free for three failover times are taken beyond the fair share",
        False,
    ),
    "initialLeaseTableReadCapacity": (
        "in Java without effect; set LEASEHOLD_TABLE_READ_CAPACITY for provisioned capacity",
        False,
    ),
    "initialLeaseTableWriteCapacity": (
        "in Java without effect; set LEASEHOLD_TABLE_WRITE_CAPACITY for provisioned capacity",
        False,
    ),
    "skipShardSyncAtWorkerInitializationIfLeasesExist": (
        "always so: a member that finds leases creates none at its start",
        False,
    ),
    "schedulerInitializationBackoffTimeMillis": (_RETRIED, False),
    "migrateAllEntitiesToLeaseTable": ("the move of three tables into one is left to a Java leader", True),
    "tableMigrationCompleteBakeTimeSeconds": (
        "the move of three tables into one is left to a Java leader",
        True,
    ),
    **{
        f"{prefix}{key}": reason
        for prefix in ("", "pollingConfig.")
        for key, reason in {
            "millisBehindLatestThresholdForReducedTps": (
                "a reader that is behind reads as fast as Kinesis allows",
                True,
            ),
            "retryGetRecordsInSeconds": ("without effect in KCL 3, except that it selects polling", False),
            "maxGetRecordsThreadPool": ("without effect in KCL 3, except that it selects polling", False),
        }.items()
    },
    "fanoutConfig.maxDescribeStreamSummaryRetries": (_RETRIED, False),
    "fanoutConfig.maxDescribeStreamConsumerRetries": (_RETRIED, False),
    "fanoutConfig.registerStreamConsumerRetries": (_RETRIED, False),
    "fanoutConfig.retryBackoffMillis": (_RETRIED, False),
    "metricsBufferTimeMillis": ("fixed: values are added up in memory, and sent every 10 s", False),
    "metricsMaxQueueSize": ("fixed: values are added up in memory, and sent every 10 s", False),
    "inMemoryWorkerMetricsCaptureFrequencyMillis": (_FIXED_REPORTS, True),
    "workerMetricsReporterFreqInMillis": (_FIXED_REPORTS, True),
    "noOfPersistedMetricsPerWorkerMetrics": (_FIXED_REPORTS, True),
    "staleWorkerMetricsEntryCleanupDuration": ("fixed at a day, the KCL's default", True),
    **{
        f"{table}{key}": (_JAVA_TABLE, False)
        for table in ("coordinatorState", "workerMetrics")
        for key in (
            "BillingMode",
            "ReadCapacity",
            "WriteCapacity",
            "PointInTimeRecoveryEnabled",
            "DeletionProtectionEnabled",
            "Tags",
        )
    },
}

KNOWN: Final = frozenset({*SETTINGS, *TRANSLATED, *REFUSED, *WITHOUT_SETTING})
