package leasehold.interop;

import java.util.ArrayList;
import java.util.List;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.common.StreamConfig;
import software.amazon.kinesis.common.StreamIdentifier;
import software.amazon.kinesis.processor.FormerStreamsLeasesDeletionStrategy;
import software.amazon.kinesis.processor.MultiStreamTracker;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.ShardRecordProcessorFactory;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.processor.StreamTracker;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/** What a member consumes: one stream by its name (`stream`), or several by their identifiers (`streams`, with commas). */
final class Streams {
    private static final InitialPositionInStreamExtended START =
            InitialPositionInStreamExtended.newInitialPosition(InitialPositionInStream.TRIM_HORIZON);

    private Streams() {}

    static StreamTracker tracker(JavaMember.Options options) {
        List<StreamConfig> several = new ArrayList<>();
        options.ifGiven("streams", value -> {
            for (String identifier : value.split(",")) {
                several.add(new StreamConfig(StreamIdentifier.multiStreamInstance(identifier), START));
            }
        });
        return several.isEmpty() ? new SingleStreamTracker(options.text("stream"), START) : new Several(several);
    }

    static PollingConfig polling(StreamTracker tracker, KinesisAsyncClient kinesis, JavaMember.Options options) {
        return tracker.isMultiStream() ? new PollingConfig(kinesis) : new PollingConfig(options.text("stream"), kinesis);
    }

    /** The list never changes, and what others added to the table is left there. */
    private static final class Several implements MultiStreamTracker {
        private final List<StreamConfig> streams;

        Several(List<StreamConfig> streams) {
            this.streams = streams;
        }

        @Override
        public List<StreamConfig> streamConfigList() {
            return streams;
        }

        @Override
        public FormerStreamsLeasesDeletionStrategy formerStreamsLeasesDeletionStrategy() {
            return new FormerStreamsLeasesDeletionStrategy.NoLeaseDeletionStrategy();
        }
    }

    /** Processors that tell the stream before the shard, where there are several. */
    static final class Processors implements ShardRecordProcessorFactory {
        private final long checkpointEveryMs;

        Processors(long checkpointEveryMs) {
            this.checkpointEveryMs = checkpointEveryMs;
        }

        @Override
        public ShardRecordProcessor shardRecordProcessor() {
            return new TellingProcessor("", checkpointEveryMs);
        }

        @Override
        public ShardRecordProcessor shardRecordProcessor(StreamIdentifier stream) {
            boolean isOneOfSeveral = stream.streamCreationEpochOptional().isPresent();
            return isOneOfSeveral ? new TellingProcessor(stream.streamName() + "/", checkpointEveryMs) : shardRecordProcessor();
        }
    }
}
