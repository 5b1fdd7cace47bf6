package bench;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;
import org.apache.kafka.server.purgatory.TopicPartitionOperationKey;

/** Kafka's purgatory under the workloads of bench/subjects/engine_patterns.py: the same operations and marks, in the same order. */
final class KafkaPatterns {
    private static final long LONG_MS = 600_000;
    private static final int EACH = 5;
    private static final double ZIPF_EXPONENT = 1.1;
    private static final int ZIPF_BATCH = 500;
    private static final int ZIPF_BATCHES = 120;

    private KafkaPatterns() {
    }

    /** A produce that waits for the high watermarks of five partitions that follow each other. */
    private static final class FiveProduces extends DelayedOperation {
        private final KafkaRuns.Marks marks;
        private final int first;
        private final long required;

        FiveProduces(KafkaRuns.Marks marks, int first, long required) {
            super(LONG_MS);
            this.marks = marks;
            this.first = first;
            this.required = required;
        }

        @Override
        public boolean tryComplete() {
            for (int key = first; key < first + EACH; key++) {
                if (marks.highWatermarks[key] < required) {
                    return false;
                }
            }
            return forceComplete();
        }

        @Override
        public void onComplete() {
            marks.completed++;
        }

        @Override
        public void onExpiration() {
        }
    }

    static Map<String, Double> fivePartitions(Parameters parameters) throws Exception {
        int partitions = parameters.integer("partitions");
        int rows = parameters.integer("pending") / (partitions / EACH);
        double budget = parameters.number("seconds");
        KafkaRuns.Marks marks = new KafkaRuns.Marks(partitions);
        List<List<TopicPartitionOperationKey>> watched = new ArrayList<>();
        for (int first = 0; first < partitions; first += EACH) {
            List<TopicPartitionOperationKey> keys = new ArrayList<>();
            for (int key = first; key < first + EACH; key++) {
                keys.add(marks.keys.get(key).get(0));
            }
            watched.add(List.copyOf(keys));
        }
        DelayedOperationPurgatory<FiveProduces> purgatory = new DelayedOperationPurgatory<>("bench", 0);
        for (int row = 1; row <= rows; row++) {
            registerRow(purgatory, marks, watched, row);
        }
        System.gc();
        long started = System.nanoTime();
        long mark = 0;
        double seconds;
        do {
            mark++;
            for (int key = 0; key < partitions; key++) {
                marks.highWatermarks[key] = mark;
                purgatory.checkAndComplete(marks.keys.get(key).get(0));
            }
            registerRow(purgatory, marks, watched, rows + mark);
            seconds = Parameters.secondsSince(started);
        } while (seconds < budget);
        long completed = marks.completed;
        purgatory.shutdown();
        return Parameters.measured(seconds, completed);
    }

    private static void registerRow(
        DelayedOperationPurgatory<FiveProduces> purgatory,
        KafkaRuns.Marks marks,
        List<List<TopicPartitionOperationKey>> watched,
        long required) {
        for (int place = 0; place < watched.size(); place++) {
            purgatory.tryCompleteElseWatch(new FiveProduces(marks, place * EACH, required), watched.get(place));
        }
    }

    static Map<String, Double> zipf(Parameters parameters) throws Exception {
        int keys = parameters.integer("keys");
        double budget = parameters.number("seconds");
        KafkaRuns.Marks marks = new KafkaRuns.Marks(keys);
        int pending = parameters.integer("pending");
        int[][] drawn = draw(keys);
        DelayedOperationPurgatory<KafkaRuns.Produce> purgatory = new DelayedOperationPurgatory<>("bench", 0);
        marks.fill(purgatory, pending, LONG_MS);
        System.gc();
        int turns = 0;
        long started = System.nanoTime();
        double seconds;
        do {
            int[] batch = drawn[turns++ % ZIPF_BATCHES];
            for (int key : batch) {
                marks.highWatermarks[key]++;
                purgatory.checkAndComplete(marks.keys.get(key).get(0));
            }
            for (int key : batch) {
                marks.register(purgatory, key, LONG_MS);
            }
            seconds = Parameters.secondsSince(started);
        } while (seconds < budget);
        long completed = marks.completed;
        purgatory.shutdown();
        return Parameters.measured(seconds, completed);
    }

    /** Batches of keys by Zipf's law, the same as in bench/subjects/engine_patterns.py. */
    private static int[][] draw(int keys) {
        double[] shares = new double[keys];
        double sum = 0;
        for (int rank = 0; rank < keys; rank++) {
            sum += Math.pow(rank + 1.0, -ZIPF_EXPONENT);
            shares[rank] = sum;
        }
        int[][] batches = new int[ZIPF_BATCHES][ZIPF_BATCH];
        long state = 1;
        for (int[] batch : batches) {
            for (int place = 0; place < ZIPF_BATCH; place++) {
                state = state * 6364136223846793005L + 1442695040888963407L;
                int found = Arrays.binarySearch(shares, (state >>> 11) / (double) (1L << 53) * sum);
                batch[place] = Math.min(found >= 0 ? found + 1 : -found - 1, keys - 1);
            }
        }
        return batches;
    }

    static Map<String, Double> falling(Parameters parameters) throws Exception {
        int pending = parameters.integer("pending");
        int step = parameters.integer("step");
        double budget = parameters.number("seconds");
        KafkaRuns.Marks marks = new KafkaRuns.Marks(1);
        DelayedOperationPurgatory<KafkaRuns.Produce> purgatory = new DelayedOperationPurgatory<>("bench", 0);
        List<TopicPartitionOperationKey> key = marks.keys.get(0);
        System.gc();
        long started = System.nanoTime();
        double seconds;
        do {
            long base = marks.highWatermarks[0];
            for (long required = base + pending; required > base; required--) {
                purgatory.tryCompleteElseWatch(new KafkaRuns.Produce(marks, 0, required, LONG_MS), key);
            }
            for (int reached = 0; reached < pending; reached += step) {
                marks.highWatermarks[0] += step;
                purgatory.checkAndComplete(key.get(0));
            }
            seconds = Parameters.secondsSince(started);
        } while (seconds < budget);
        long completed = marks.completed;
        purgatory.shutdown();
        return Parameters.measured(seconds, completed);
    }
}
