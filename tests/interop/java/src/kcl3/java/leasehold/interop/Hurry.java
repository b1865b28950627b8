package leasehold.interop;

import java.util.Map;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import software.amazon.kinesis.coordinator.Scheduler;

/**
 * Makes the clocks of the KCL's two migrations run faster: its minutes of looking and of waiting are fixed in the code.
 * Nothing else is touched; what is waited for has to come about just the same.
 */
final class Hurry {
    private static final long FLIP_AFTER_S = 600;
    private static final long BAKE_S = 3600;

    private Hurry() {}

    static void through(Scheduler scheduler, long times) {
        Object versions = Inside.get(scheduler, "migrationStateMachine");
        Inside.set(versions, "stateMachineThreadPool", new Pool(2, times));
        Inside.set(versions, "flipTo3XStabilizerTimeInSeconds", FLIP_AFTER_S / times);
        electSooner(Inside.get(versions, "initializer"), times);
        if (Inside.has(scheduler, "tableMigrationStateMachine")) {
            bakeShorter(Inside.get(scheduler, "tableMigrationStateMachine"), times);
        }
    }

    /** The leader of a fleet without a lock is elected anew after one minute, and then every five. */
    private static void electSooner(Object initializer, long times) {
        Supplier<?> creator = (Supplier<?>) Inside.get(initializer, "deterministicLeaderDeciderCreator");
        Supplier<Object> sooner = () -> {
            Object decider = creator.get();
            Inside.set(decider, "leaderElectionThreadPool", new Pool(1, times));
            return decider;
        };
        Inside.set(initializer, "deterministicLeaderDeciderCreator", sooner);
    }

    /** Each phase of the move to one table is left after an hour or more. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void bakeShorter(Object tables, long times) {
        Map<Object, Long> bakeTimes = (Map<Object, Long>) Inside.get(tables, "bakeTimeOverrides");
        Class<Enum> statuses = (Class<Enum>) bakeTimes.keySet().iterator().next().getClass();
        bakeTimes.put(Enum.valueOf(statuses, "TABLE_MIGRATION_STATUS_DEPLOYED"), BAKE_S / times);
        bakeTimes.put(Enum.valueOf(statuses, "TABLE_MIGRATION_STATUS_COMPLETE"), BAKE_S / times);
    }

    /** Does everything so many times as often. */
    private static final class Pool extends ScheduledThreadPoolExecutor {
        private final long times;

        Pool(int threads, long times) {
            super(threads);
            this.times = times;
        }

        @Override
        public ScheduledFuture<?> scheduleWithFixedDelay(Runnable task, long first, long delay, TimeUnit unit) {
            long firstMs = Math.max(1, unit.toMillis(first) / times);
            long delayMs = Math.max(1, unit.toMillis(delay) / times);
            return super.scheduleWithFixedDelay(task, firstMs, delayMs, TimeUnit.MILLISECONDS);
        }
    }
}
