import java.math.BigInteger;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.TreeSet;
import java.util.stream.Collectors;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.core.interceptor.Context;
import software.amazon.awssdk.core.interceptor.ExecutionAttributes;
import software.amazon.awssdk.core.interceptor.ExecutionInterceptor;
import software.amazon.awssdk.http.apache.ApacheHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.kinesis.KinesisClient;
import software.amazon.awssdk.services.kinesis.model.ChildShard;
import software.amazon.awssdk.services.kinesis.model.GetRecordsResponse;
import software.amazon.awssdk.services.kinesis.model.InvalidArgumentException;
import software.amazon.awssdk.services.kinesis.model.Record;
import software.amazon.awssdk.services.kinesis.model.Shard;
import software.amazon.awssdk.services.kinesis.model.ShardIteratorType;

/**
 * Uses a Kinesis server with the AWS SDK for Java, in its default protocol, CBOR: creates, puts, splits, reads to
 * the end. Prints what it found as lines of "name value"; the test compares them.
 *
 *     java -cp 'jars/*' KinesisPolling.java http://127.0.0.1:PORT STREAM
 */
public class KinesisPolling {
    /** The content types that really went over the wire. */
    static final class ContentTypes implements ExecutionInterceptor {
        final TreeSet<String> sent = new TreeSet<>();
        final TreeSet<String> received = new TreeSet<>();

        @Override
        public void beforeTransmission(Context.BeforeTransmission context, ExecutionAttributes attributes) {
            sent.add(context.httpRequest().firstMatchingHeader("Content-Type").orElse("none"));
        }

        @Override
        public void afterTransmission(Context.AfterTransmission context, ExecutionAttributes attributes) {
            received.add(context.httpResponse().firstMatchingHeader("Content-Type").orElse("none"));
        }
    }

    public static void main(String[] args) {
        ContentTypes types = new ContentTypes();
        try (KinesisClient client = connect(args[0], types)) {
            use(client, args[1]);
        }
        System.out.println("sent " + String.join(",", types.sent));
        System.out.println("received " + String.join(",", types.received));
    }

    static KinesisClient connect(String endpoint, ContentTypes types) {
        return KinesisClient.builder()
            .endpointOverride(URI.create(endpoint))
            .region(Region.US_EAST_1)
            .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("test", "test")))
            .httpClientBuilder(ApacheHttpClient.builder())
            .overrideConfiguration(config -> config.addExecutionInterceptor(types))
            .build();
    }

    static void use(KinesisClient client, String stream) {
        client.createStream(request -> request.streamName(stream).shardCount(1));
        client.waiter().waitUntilStreamExists(request -> request.streamName(stream));
        Shard parent = client.listShards(request -> request.streamName(stream)).shards().get(0);
        byte[] allBytes = new byte[256];
        for (int i = 0; i < 256; i++) {
            allBytes[i] = (byte) i;
        }
        for (byte[] data : List.of(allBytes, "second".getBytes())) {
            String number = client.putRecord(request -> request.streamName(stream)
                .partitionKey("Schl\u00fcssel").data(SdkBytes.fromByteArray(data))).sequenceNumber();
            System.out.println("put " + number);
        }
        String middle = BigInteger.TWO.pow(127).toString();
        client.splitShard(request -> request.streamName(stream)
            .shardToSplit(parent.shardId()).newStartingHashKey(middle));
        client.waiter().waitUntilStreamExists(request -> request.streamName(stream));
        readToEnd(client, stream, parent.shardId());
        try {
            client.getRecords(request -> request.shardIterator("garbage"));
        } catch (InvalidArgumentException expected) {
            System.out.println("refused " + expected.awsErrorDetails().errorCode());
        }
    }

    static void readToEnd(KinesisClient client, String stream, String shardId) {
        String iterator = client.getShardIterator(request -> request.streamName(stream)
            .shardId(shardId).shardIteratorType(ShardIteratorType.TRIM_HORIZON)).shardIterator();
        List<ChildShard> children = new ArrayList<>();
        while (iterator != null) {
            String current = iterator;
            GetRecordsResponse answer = client.getRecords(request -> request.shardIterator(current));
            answer.records().forEach(KinesisPolling::tell);
            children.addAll(answer.childShards());
            iterator = answer.nextShardIterator();
        }
        System.out.println("children " + children.stream().map(ChildShard::shardId).collect(Collectors.joining(",")));
    }

    static void tell(Record record) {
        System.out.println("record " + record.sequenceNumber() + " "
            + base64(record.partitionKey().getBytes(StandardCharsets.UTF_8)) + " "
            + record.approximateArrivalTimestamp().toEpochMilli() + " " + base64(record.data().asByteArray()));
    }

    static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }
}
