package leasehold.interop;

import java.util.List;
import software.amazon.kinesis.coordinator.CoordinatorConfig;
import software.amazon.kinesis.coordinator.CoordinatorConfig.ClientVersionConfig;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.leases.LeaseManagementConfig;

/** What a member can be told only on KCL 3.x: its mode, its leader's lock, its load. */
final class Generation {
    private Generation() {}

    static void configure(CoordinatorConfig config, JavaMember.Options options) {
        config.clientVersionConfig(ClientVersionConfig.valueOf("CLIENT_VERSION_CONFIG_" + options.text("mode")));
        // By reflection, since only KCL 3.5 and later can be told.
        options.ifGiven("one_table", value -> Inside.call(config, "migrateAllEntitiesToLeaseTable", boolean.class, true));
    }

    static void configure(LeaseManagementConfig config, JavaMember.Options options) {
        options.ifGiven("assignment_ms", value -> config.leaseAssignmentIntervalMillis(Long.valueOf(value)));
        // KCL 3.0 and 3.1 cannot be told; their lock lasts for two minutes.
        options.ifGiven("lock_ms", value -> Inside.tell(
                config, "dynamoDbLockBasedLeaderLeaseDurationInMillis", long.class, Long.parseLong(value)));
        options.ifGiven("beat_ms", value -> Inside.tell(
                config, "dynamoDbLockBasedLeaderHeartbeatPeriodInMillis", long.class, Long.parseLong(value)));
        options.ifGiven("report_ms", value -> config.workerUtilizationAwareAssignmentConfig()
                .workerMetricsReporterFreqInMillis(Long.parseLong(value)));
        options.ifGiven("load", value -> config.workerUtilizationAwareAssignmentConfig()
                .workerMetricList(List.of(new FixedLoad(Double.parseDouble(value)))));
        options.ifGiven("balance_by", value -> balanceBy(config, value));
    }

    static void hurry(Scheduler scheduler, JavaMember.Options options) {
        options.ifGiven("hurry", value -> Hurry.through(scheduler, Long.parseLong(value)));
    }

    /** By reflection, since only KCL 3.4.3 and later can be told. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void balanceBy(LeaseManagementConfig config, String strategy) {
        Class<?> type = Inside.typeOf(config, "leaseAssignmentStrategy");
        Inside.call(config, "leaseAssignmentStrategy", type, Enum.valueOf((Class<Enum>) type, strategy));
    }
}
