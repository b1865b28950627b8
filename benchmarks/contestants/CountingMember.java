import java.io.FileOutputStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
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
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.leases.LeaseManagementConfig;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.metrics.MetricsLevel;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.retrieval.KinesisClientRecord;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/** A member on the Java KCL that adds up the data of its records, and checkpoints every batch. */
public final class CountingMember {
    private static FileOutputStream counts;

    public static void main(String[] given) throws Exception {
        String kinesisUrl = given[0], dynamoDbUrl = given[1], stream = given[2], application = given[3];
        counts = new FileOutputStream(given[4], true);
        KinesisAsyncClient kinesis = connect(KinesisAsyncClient.builder(), kinesisUrl);
        ConfigsBuilder configs = new ConfigsBuilder(
                new SingleStreamTracker(
                        stream,
                        InitialPositionInStreamExtended.newInitialPosition(InitialPositionInStream.TRIM_HORIZON)),
                application,
                kinesis,
                connect(DynamoDbAsyncClient.builder(), dynamoDbUrl),
                connect(CloudWatchAsyncClient.builder(), "http://127.0.0.1:9"),
                "java",
                Counter::new);
        // The KCL takes half a minute until it reads the first record; it may hurry, because the start is not counted.
        LeaseManagementConfig leases = configs.leaseManagementConfig().shardSyncIntervalMillis(1_000L);
        leases.leaseAssignmentIntervalMillis(1_000L);
        leases.workerUtilizationAwareAssignmentConfig().workerMetricsReporterFreqInMillis(1_000L);
        new Scheduler(
                        configs.checkpointConfig(),
                        configs.coordinatorConfig(),
                        leases,
                        configs.lifecycleConfig(),
                        configs.metricsConfig().metricsLevel(MetricsLevel.NONE),
                        configs.processorConfig(),
                        configs.retrievalConfig()
                                .retrievalSpecificConfig(
                                        new PollingConfig(stream, kinesis).idleTimeBetweenReadsInMillis(200)))
                .run();
    }

    private static <B extends AwsClientBuilder<B, C> & AwsAsyncClientBuilder<B, C>, C> C connect(B builder, String url) {
        return builder.endpointOverride(URI.create(url))
                .region(Region.US_EAST_1)
                .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("test", "test")))
                .httpClientBuilder(NettyNioAsyncHttpClient.builder().protocol(Protocol.HTTP1_1))
                .build();
    }

    private static final class Counter implements ShardRecordProcessor {
        @Override
        public void initialize(InitializationInput input) {}

        @Override
        public void processRecords(ProcessRecordsInput input) {
            long size = 0;
            for (KinesisClientRecord record : input.records()) {
                size += record.data().remaining();
            }
            if (input.records().isEmpty()) {
                return;
            }
            try {
                counts.write((input.records().size() + " " + size + "\n").getBytes(StandardCharsets.US_ASCII));
                input.checkpointer().checkpoint();
            } catch (Exception failed) {
                throw new IllegalStateException(failed);
            }
        }

        @Override
        public void leaseLost(LeaseLostInput input) {}

        @Override
        public void shardEnded(ShardEndedInput input) {}

        @Override
        public void shutdownRequested(ShutdownRequestedInput input) {}
    }
}
