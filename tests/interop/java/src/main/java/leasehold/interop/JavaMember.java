package leasehold.interop;

import java.net.URI;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.awscore.client.builder.AwsAsyncClientBuilder;
import software.amazon.awssdk.awscore.client.builder.AwsClientBuilder;
import software.amazon.awssdk.http.Protocol;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.coordinator.CoordinatorConfig;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.leases.LeaseManagementConfig;
import software.amazon.kinesis.metrics.MetricsConfig;
import software.amazon.kinesis.metrics.MetricsLevel;
import software.amazon.kinesis.processor.StreamTracker;
import software.amazon.kinesis.retrieval.RetrievalConfig;
import software.amazon.kinesis.retrieval.fanout.FanOutConfig;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * One member of a fleet, on the real KCL, by polling, or by fan-out with the option retrieval=fan_out. Options are words
 * of the form name=value; see `Options`.
 * SIGTERM: it stops in good order and tells so.
 */
public final class JavaMember {
    private JavaMember() {}

    public static void main(String[] words) {
        Options options = new Options(words);
        Scheduler scheduler = scheduler(options);
        Generation.hurry(scheduler, options);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> stop(scheduler)));
        Told.tell("started", Map.of("worker", options.text("worker")));
        scheduler.run();
        Told.tell("scheduler ended", Map.of());
    }

    private static void stop(Scheduler scheduler) {
        try {
            boolean inGoodOrder = scheduler.startGracefulShutdown().get(60, TimeUnit.SECONDS);
            Told.tell("stopped", Map.of("in_good_order", inGoodOrder));
        } catch (Exception failed) {
            Told.tell("stopped", Map.of("in_good_order", false, "why", String.valueOf(failed)));
        }
    }

    private static Scheduler scheduler(Options options) {
        // The SDK subscribes to shards over HTTP/2 only.
        Protocol protocol = options.isFanOut() ? Protocol.HTTP2 : Protocol.HTTP1_1;
        KinesisAsyncClient kinesis = connect(KinesisAsyncClient.builder(), options.text("kinesis"), protocol);
        DynamoDbAsyncClient dynamoDb =
                connect(DynamoDbAsyncClient.builder(), options.text("dynamodb"), Protocol.HTTP1_1);
        // The KCL wants this client even where it publishes nothing.
        CloudWatchAsyncClient cloudWatch = connect(CloudWatchAsyncClient.builder(), "http://127.0.0.1:9", Protocol.HTTP1_1);
        StreamTracker streams = Streams.tracker(options);
        ConfigsBuilder configs = new ConfigsBuilder(
                streams,
                options.text("application"),
                kinesis,
                dynamoDb,
                cloudWatch,
                options.text("worker"),
                new Streams.Processors(options.number("checkpoint_ms")));
        return new Scheduler(
                configs.checkpointConfig(),
                coordination(configs.coordinatorConfig(), options),
                leases(configs.leaseManagementConfig(), options),
                configs.lifecycleConfig(),
                metrics(configs.metricsConfig()),
                configs.processorConfig(),
                retrieval(configs.retrievalConfig(), streams, kinesis, options));
    }

    /** HTTP/1.1 where possible: the KCL's own helper wants HTTP/2 with prior knowledge, which few local servers speak. */
    private static <B extends AwsClientBuilder<B, C> & AwsAsyncClientBuilder<B, C>, C> C connect(
            B builder, String url, Protocol protocol) {
        return builder.endpointOverride(URI.create(url))
                .region(Region.US_EAST_1)
                .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("test", "test")))
                .httpClientBuilder(NettyNioAsyncHttpClient.builder().protocol(protocol))
                .build();
    }

    private static CoordinatorConfig coordination(CoordinatorConfig config, Options options) {
        Generation.configure(config, options);
        options.ifGiven("parents_ms", value -> config.parentShardPollIntervalMillis(Long.parseLong(value)));
        return config;
    }

    private static LeaseManagementConfig leases(LeaseManagementConfig config, Options options) {
        options.ifGiven("failover_ms", value -> config.failoverTimeMillis(Long.parseLong(value)));
        // A leader that makes the first leases sleeps for this long before it begins to work.
        options.ifGiven("sync_ms", value -> config.shardSyncIntervalMillis(Long.parseLong(value)));
        options.ifGiven(
                "audit_ms", value -> config.leasesRecoveryAuditorExecutionFrequencyMillis(Long.parseLong(value)));
        Generation.configure(config, options);
        return config;
    }

    private static MetricsConfig metrics(MetricsConfig config) {
        return config.metricsLevel(MetricsLevel.NONE);
    }

    private static RetrievalConfig retrieval(
            RetrievalConfig config, StreamTracker streams, KinesisAsyncClient kinesis, Options options) {
        if (options.isFanOut()) {
            return config.retrievalSpecificConfig(new FanOutConfig(kinesis)
                    .streamName(options.text("stream"))
                    .applicationName(options.text("application")));
        }
        PollingConfig polling = Streams.polling(streams, kinesis, options);
        options.ifGiven("idle_ms", value -> polling.idleTimeBetweenReadsInMillis(Long.parseLong(value)));
        return config.retrievalSpecificConfig(polling);
    }

    /** What a member is told. What is not given is left to the KCL's default. */
    static final class Options {
        private final Map<String, String> given = new HashMap<>();

        Options(String[] words) {
            for (String word : words) {
                String[] parts = word.split("=", 2);
                if (parts.length != 2) {
                    throw new IllegalArgumentException(word + ": expected name=value");
                }
                given.put(parts[0], parts[1]);
            }
        }

        String text(String name) {
            if (!given.containsKey(name)) {
                throw new IllegalArgumentException(name + "=... is missing");
            }
            return given.get(name);
        }

        long number(String name) {
            return Long.parseLong(given.getOrDefault(name, "0"));
        }

        boolean isFanOut() {
            return "fan_out".equals(given.get("retrieval"));
        }

        void ifGiven(String name, java.util.function.Consumer<String> use) {
            if (given.containsKey(name)) {
                use.accept(given.get(name));
            }
        }
    }
}
