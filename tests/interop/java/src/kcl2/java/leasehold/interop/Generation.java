package leasehold.interop;

import software.amazon.kinesis.coordinator.CoordinatorConfig;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.leases.LeaseManagementConfig;

/** What a member can be told only on KCL 3.x: here, on 2.x, nothing. */
final class Generation {
    private Generation() {}

    static void configure(CoordinatorConfig config, JavaMember.Options options) {}

    static void configure(LeaseManagementConfig config, JavaMember.Options options) {}

    static void hurry(Scheduler scheduler, JavaMember.Options options) {}
}
