package leasehold.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import software.amazon.kinesis.exceptions.InvalidStateException;
import software.amazon.kinesis.exceptions.ShutdownException;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.processor.RecordProcessorCheckpointer;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.retrieval.KinesisClientRecord;

/** Tells which records it was given, and checkpoints after every batch, or not more often than it is told. */
final class TellingProcessor implements ShardRecordProcessor {
    private final String token = UUID.randomUUID().toString();
    private final long checkpointEveryNs;
    private long checkpointedNs = System.nanoTime();
    private final String stream;
    private String shard = "";

    TellingProcessor(String stream, long checkpointEveryMs) {
        this.stream = stream;
        checkpointEveryNs = TimeUnit.MILLISECONDS.toNanos(checkpointEveryMs);
    }

    @Override
    public void initialize(InitializationInput input) {
        shard = stream + input.shardId();
        Told.tell("begun", Map.of("shard", shard, "token", token, "after", input.extendedSequenceNumber().toString()));
    }

    @Override
    public void processRecords(ProcessRecordsInput input) {
        if (input.records().isEmpty()) {
            return;
        }
        List<List<Object>> records = new ArrayList<>();
        for (KinesisClientRecord record : input.records()) {
            String number = StandardCharsets.UTF_8.decode(record.data()).toString();
            records.add(List.of(record.sequenceNumber(), record.subSequenceNumber(), number));
        }
        Told.tell("handled", Map.of("shard", shard, "token", token, "records", records));
        if (System.nanoTime() - checkpointedNs >= checkpointEveryNs) {
            checkpointedNs = System.nanoTime();
            checkpoint(input.checkpointer());
        }
    }

    @Override
    public void leaseLost(LeaseLostInput input) {
        Told.tell("lost", Map.of("shard", shard, "token", token));
    }

    @Override
    public void shardEnded(ShardEndedInput input) {
        checkpoint(input.checkpointer());
        Told.tell("ended", Map.of("shard", shard, "token", token));
    }

    @Override
    public void shutdownRequested(ShutdownRequestedInput input) {
        checkpoint(input.checkpointer());
        Told.tell("asked to stop", Map.of("shard", shard, "token", token));
    }

    private void checkpoint(RecordProcessorCheckpointer checkpointer) {
        try {
            checkpointer.checkpoint();
        } catch (ShutdownException lost) {
            Told.tell("checkpoint refused", Map.of("shard", shard, "token", token));
        } catch (InvalidStateException broken) {
            throw new IllegalStateException(broken);
        }
    }
}
