import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.http.Protocol;
import software.amazon.awssdk.http.nio.netty.NettyNioAsyncHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.awssdk.services.kinesis.model.ChildShard;
import software.amazon.awssdk.services.kinesis.model.ShardIteratorType;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardEvent;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardResponseHandler;

/**
 * Subscribes to a closed shard with the AWS SDK for Java, in its default protocol, CBOR, until the server ends the
 * subscription. Prints what it found as lines of "name value"; the test compares them.
 *
 *     java -cp 'jars/*' KinesisFanOut.java http://127.0.0.1:PORT CONSUMER_ARN SHARD_ID
 */
public class KinesisFanOut {
    public static void main(String[] args) throws Exception {
        try (KinesisAsyncClient client = connect(args[0])) {
            SubscribeToShardResponseHandler handler = SubscribeToShardResponseHandler.builder()
                .subscriber(event -> tell((SubscribeToShardEvent) event))
                .onComplete(() -> System.out.println("complete"))
                .build();
            client.subscribeToShard(
                request -> request.consumerARN(args[1]).shardId(args[2])
                    .startingPosition(position -> position.type(ShardIteratorType.TRIM_HORIZON)),
                handler).get(60, TimeUnit.SECONDS);
        }
    }

    static KinesisAsyncClient connect(String endpoint) {
        return KinesisAsyncClient.builder()
            .endpointOverride(URI.create(endpoint))
            .region(Region.US_EAST_1)
            .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("test", "test")))
            // The SDK's default for this client is HTTP/2; the server speaks HTTP/1.1, and fan-out works over it.
            .httpClientBuilder(NettyNioAsyncHttpClient.builder().protocol(Protocol.HTTP1_1))
            .overrideConfiguration(config -> config.apiCallTimeout(Duration.ofSeconds(60)))
            .build();
    }

    static void tell(SubscribeToShardEvent event) {
        event.records().forEach(record -> System.out.println("record " + record.sequenceNumber() + " "
            + base64(record.partitionKey().getBytes(StandardCharsets.UTF_8)) + " "
            + record.approximateArrivalTimestamp().toEpochMilli() + " " + base64(record.data().asByteArray())));
        if (event.hasChildShards()) {
            System.out.println("children "
                + event.childShards().stream().map(ChildShard::shardId).collect(Collectors.joining(",")));
        }
    }

    static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }
}
