package leasehold.interop;

import com.amazonaws.services.kinesis.clientlibrary.exceptions.InvalidStateException;
import com.amazonaws.services.kinesis.clientlibrary.exceptions.KinesisClientLibDependencyException;
import com.amazonaws.services.kinesis.clientlibrary.exceptions.ShutdownException;
import com.amazonaws.services.kinesis.clientlibrary.exceptions.ThrottlingException;
import com.amazonaws.services.kinesis.clientlibrary.interfaces.IRecordProcessorCheckpointer;
import com.amazonaws.services.kinesis.clientlibrary.interfaces.v2.IRecordProcessor;
import com.amazonaws.services.kinesis.clientlibrary.interfaces.v2.IShutdownNotificationAware;
import com.amazonaws.services.kinesis.clientlibrary.lib.worker.ShutdownReason;
import com.amazonaws.services.kinesis.clientlibrary.types.InitializationInput;
import com.amazonaws.services.kinesis.clientlibrary.types.ProcessRecordsInput;
import com.amazonaws.services.kinesis.clientlibrary.types.ShutdownInput;
import com.amazonaws.services.kinesis.clientlibrary.types.UserRecord;
import com.amazonaws.services.kinesis.model.Record;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/** Tells which records it was given, and checkpoints after every batch. The same events as those of the other members. */
final class TellingProcessor implements IRecordProcessor, IShutdownNotificationAware {
    private final String token = UUID.randomUUID().toString();
    private String shard = "";

    @Override
    public void initialize(InitializationInput input) {
        shard = input.getShardId();
        Told.tell("begun", Map.of("shard", shard, "token", token, "after", input.getExtendedSequenceNumber().toString()));
    }

    @Override
    public void processRecords(ProcessRecordsInput input) {
        if (input.getRecords().isEmpty()) {
            return;
        }
        List<List<Object>> records = new ArrayList<>();
        for (Record record : input.getRecords()) {
            String number = StandardCharsets.UTF_8.decode(record.getData()).toString();
            records.add(List.of(record.getSequenceNumber(), ((UserRecord) record).getSubSequenceNumber(), number));
        }
        Told.tell("handled", Map.of("shard", shard, "token", token, "records", records));
        checkpoint(input.getCheckpointer());
    }

    @Override
    public void shutdown(ShutdownInput input) {
        if (input.getShutdownReason() == ShutdownReason.TERMINATE) {
            checkpoint(input.getCheckpointer());
            Told.tell("ended", Map.of("shard", shard, "token", token));
        } else {
            Told.tell("lost", Map.of("shard", shard, "token", token));
        }
    }

    @Override
    public void shutdownRequested(IRecordProcessorCheckpointer checkpointer) {
        checkpoint(checkpointer);
        Told.tell("asked to stop", Map.of("shard", shard, "token", token));
    }

    private void checkpoint(IRecordProcessorCheckpointer checkpointer) {
        try {
            checkpointer.checkpoint();
        } catch (ShutdownException lost) {
            Told.tell("checkpoint refused", Map.of("shard", shard, "token", token));
        } catch (ThrottlingException | KinesisClientLibDependencyException | InvalidStateException broken) {
            throw new IllegalStateException(broken);
        }
    }
}
