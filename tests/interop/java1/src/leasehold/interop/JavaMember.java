package leasehold.interop;

import com.amazonaws.auth.AWSStaticCredentialsProvider;
import com.amazonaws.auth.BasicAWSCredentials;
import com.amazonaws.client.builder.AwsClientBuilder;
import com.amazonaws.services.cloudwatch.AmazonCloudWatchClientBuilder;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBClientBuilder;
import com.amazonaws.services.kinesis.AmazonKinesisClientBuilder;
import com.amazonaws.services.kinesis.clientlibrary.lib.worker.InitialPositionInStream;
import com.amazonaws.services.kinesis.clientlibrary.lib.worker.KinesisClientLibConfiguration;
import com.amazonaws.services.kinesis.clientlibrary.lib.worker.Worker;
import com.amazonaws.services.kinesis.metrics.interfaces.MetricsLevel;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** One member of a fleet, on the real KCL 1.x. Options are words of the form name=value; those of a leader are ignored. */
public final class JavaMember {
    private JavaMember() {}

    public static void main(String[] words) {
        Map<String, String> options = new HashMap<>();
        for (String word : words) {
            String[] parts = word.split("=", 2);
            options.put(parts[0], parts[1]);
        }
        Worker worker = worker(options);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> stop(worker)));
        Told.tell("started", Map.of("worker", options.get("worker")));
        worker.run();
        Told.tell("scheduler ended", Map.of());
    }

    private static void stop(Worker worker) {
        try {
            boolean inGoodOrder = worker.startGracefulShutdown().get(60, TimeUnit.SECONDS);
            Told.tell("stopped", Map.of("in_good_order", inGoodOrder));
        } catch (Exception failed) {
            Told.tell("stopped", Map.of("in_good_order", false, "why", String.valueOf(failed)));
        }
    }

    private static Worker worker(Map<String, String> options) {
        KinesisClientLibConfiguration config = new KinesisClientLibConfiguration(
                        options.get("application"), options.get("stream"), credentials(), options.get("worker"))
                .withInitialPositionInStream(InitialPositionInStream.TRIM_HORIZON)
                .withMetricsLevel(MetricsLevel.NONE)
                .withFailoverTimeMillis(number(options, "failover_ms"))
                .withShardSyncIntervalMillis(number(options, "sync_ms"))
                .withLeasesRecoveryAuditorExecutionFrequencyMillis(number(options, "audit_ms"))
                .withParentShardPollIntervalMillis(number(options, "parents_ms"))
                .withIdleTimeBetweenReadsInMillis(number(options, "idle_ms"));
        return new Worker.Builder()
                .recordProcessorFactory(TellingProcessor::new)
                .config(config)
                .kinesisClient(connect(AmazonKinesisClientBuilder.standard(), options.get("kinesis")))
                .dynamoDBClient(connect(AmazonDynamoDBClientBuilder.standard(), options.get("dynamodb")))
                // The KCL wants this client even where it publishes nothing.
                .cloudWatchClient(connect(AmazonCloudWatchClientBuilder.standard(), "http://127.0.0.1:9"))
                .build();
    }

    private static AWSStaticCredentialsProvider credentials() {
        return new AWSStaticCredentialsProvider(new BasicAWSCredentials("test", "test"));
    }

    private static <B extends AwsClientBuilder<B, C>, C> C connect(B builder, String url) {
        return builder.withCredentials(credentials())
                .withEndpointConfiguration(new AwsClientBuilder.EndpointConfiguration(url, "us-east-1"))
                .build();
    }

    private static long number(Map<String, String> options, String name) {
        return Long.parseLong(options.get(name));
    }
}
