package leasehold.interop;

import software.amazon.kinesis.worker.metric.OperatingRange;
import software.amazon.kinesis.worker.metric.WorkerMetric;
import software.amazon.kinesis.worker.metric.WorkerMetricType;

/** A member that says how busy it is as a test wants it: on one machine all members are equally busy in truth. */
final class FixedLoad implements WorkerMetric {
    private final double percent;

    FixedLoad(double percent) {
        this.percent = percent;
    }

    @Override
    public String getShortName() {
        return WorkerMetricType.CPU.getShortName();
    }

    @Override
    public WorkerMetricValue capture() {
        return WorkerMetricValue.builder().value(percent).build();
    }

    @Override
    public OperatingRange getOperatingRange() {
        return OperatingRange.builder().maxUtilization(100).build();
    }

    @Override
    public WorkerMetricType getWorkerMetricType() {
        return WorkerMetricType.CPU;
    }
}
