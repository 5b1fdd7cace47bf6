package bench;

import java.util.List;
import java.util.Map;

import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;
import org.apache.kafka.server.purgatory.TopicPartitionOperationKey;

/**
 * What Kafka's purgatory keeps of operations that were watched on two keys and completed through one (KAFKA-19389,
 * KAFKA-19763). The reaper removes the entries under the other key once more than the purge interval of them are there.
 */
final class KafkaLeftovers {
    private static final long LONG_MS = 600_000;
    private static final int PURGE_INTERVAL = 1_000;
    private static final long REAPER_MS = 1_000;
    private static final int BUSY = 0;
    private static final int IDLE = 1;

    private KafkaLeftovers() {
    }

    static Map<String, Double> leftovers(Parameters parameters) throws Exception {
        int count = parameters.integer("count");
        KafkaRuns.Marks marks = new KafkaRuns.Marks(2);
        DelayedOperationPurgatory<KafkaRuns.Produce> purgatory = new DelayedOperationPurgatory<>("bench", 0, PURGE_INTERVAL);
        double before = KafkaRuns.usedBytes();
        complete(purgatory, marks, count);
        // Read at once: the reaper's turn comes every 200 ms.
        double entries = purgatory.watched();
        Thread.sleep(REAPER_MS);
        double later = purgatory.watched();
        double bytes = KafkaRuns.usedBytes() - before;
        purgatory.shutdown();
        return Map.of("entries", entries, "later", later, "bytes", Math.max(0, bytes), "operations", (double) count);
    }

    private static void complete(
        DelayedOperationPurgatory<KafkaRuns.Produce> purgatory, KafkaRuns.Marks marks, int count) {
        TopicPartitionOperationKey busy = marks.keys.get(BUSY).get(0);
        List<TopicPartitionOperationKey> both = List.of(busy, marks.keys.get(IDLE).get(0));
        for (int operation = 0; operation < count; operation++) {
            purgatory.tryCompleteElseWatch(
                new KafkaRuns.Produce(marks, BUSY, ++marks.lastRequired[BUSY], LONG_MS), both);
            marks.highWatermarks[BUSY]++;
            purgatory.checkAndComplete(busy);
        }
    }
}
