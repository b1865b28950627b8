package leasehold.interop;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.LinkedHashMap;
import java.util.Map;

/** What a member tells a test: one JSON object per line on standard output, each with the system's monotonic time. */
final class Told {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Told() {}

    static void tell(String event, Map<String, ?> members) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("at_ns", System.nanoTime());
        line.putAll(members);
        try {
            String text = JSON.writeValueAsString(line);
            synchronized (Told.class) {
                System.out.println(text);
                System.out.flush();
            }
        } catch (JsonProcessingException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
