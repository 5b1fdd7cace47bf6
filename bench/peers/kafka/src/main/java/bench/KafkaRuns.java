package bench;

import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;
import org.apache.kafka.server.purgatory.TopicPartitionOperationKey;
import org.apache.kafka.server.util.timer.SystemTimer;
import org.apache.kafka.server.util.timer.TimerTask;

/** Kafka's own purgatory and timer, driven as a broker drives them: one thread registers and checks, the reaper reaps. */
final class KafkaRuns {
    static final Map<String, Main.Workload> WORKLOADS = Map.ofEntries(
        Map.entry("register-complete", KafkaRuns::registerComplete),
        Map.entry("expire-all", KafkaRuns::expireAll),
        Map.entry("cancel-all", KafkaRuns::cancelAll),
        Map.entry("fetch-evaluations", KafkaRuns::fetchEvaluations),
        Map.entry("memory", KafkaRuns::memory),
        Map.entry("leftovers", KafkaLeftovers::leftovers),
        Map.entry("five-partitions", KafkaPatterns::fivePartitions),
        Map.entry("zipf", KafkaPatterns::zipf),
        Map.entry("falling", KafkaPatterns::falling),
        Map.entry("request-load", RequestLoad::run),
        Map.entry("timer-add-cancel", KafkaRuns::timerAddCancel),
        Map.entry("timer-add-expire", KafkaRuns::timerAddExpire),
        Map.entry("timer-percentiles", TimerPercentiles::kafka));

    private static final long LONG_MS = 600_000;

    private KafkaRuns() {
    }

    /** A produce that waits for the high watermark of one partition: the smallest DelayedProduce there can be. */
    static final class Produce extends DelayedOperation {
        private final Marks marks;
        private final int key;
        private final long required;

        Produce(Marks marks, int key, long required, long delayMs) {
            super(delayMs);
            this.marks = marks;
            this.key = key;
            this.required = required;
        }

        @Override
        public boolean tryComplete() {
            marks.evaluations++;
            return marks.highWatermarks[key] >= required && forceComplete();
        }

        @Override
        public void onComplete() {
            marks.completed++;
        }

        @Override
        public void onExpiration() {
            marks.expired.incrementAndGet();
        }
    }

    /** What the operations of one run share. */
    static final class Marks {
        final long[] highWatermarks;
        final long[] lastRequired;
        final List<List<TopicPartitionOperationKey>> keys = new java.util.ArrayList<>();
        final AtomicInteger expired = new AtomicInteger();
        long completed;
        long evaluations;

        Marks(int count) {
            highWatermarks = new long[count];
            lastRequired = new long[count];
            for (int key = 0; key < count; key++) {
                keys.add(List.of(new TopicPartitionOperationKey("bench", key)));
            }
        }

        void register(DelayedOperationPurgatory<Produce> purgatory, int key, long delayMs) {
            purgatory.tryCompleteElseWatch(new Produce(this, key, ++lastRequired[key], delayMs), keys.get(key));
        }

        void fill(DelayedOperationPurgatory<Produce> purgatory, int pending, long delayMs) {
            for (int place = 0; place < pending; place++) {
                for (int key = 0; key < highWatermarks.length; key++) {
                    register(purgatory, key, delayMs);
                }
            }
        }
    }

    private static Map<String, Double> registerComplete(Parameters parameters) throws Exception {
        int hot = parameters.integer("hot");
        int step = parameters.integer("step");
        int events = parameters.integer("events");
        double budget = parameters.number("seconds");
        Marks marks = new Marks(parameters.integer("keys"));
        DelayedOperationPurgatory<Produce> purgatory = new DelayedOperationPurgatory<>("bench", 0);
        marks.fill(purgatory, parameters.integer("pending"), LONG_MS);
        System.gc();
        long started = System.nanoTime();
        double seconds;
        do {
            for (int event = 0; event < events; event++) {
                int key = event % hot;
                marks.highWatermarks[key] += step;
                purgatory.checkAndComplete(marks.keys.get(key).get(0));
            }
            for (int operation = 0; operation < events * step; operation++) {
                marks.register(purgatory, operation % hot, LONG_MS);
            }
            seconds = Parameters.secondsSince(started);
        } while (seconds < budget);
        long completed = marks.completed;
        purgatory.shutdown();
        return Parameters.measured(seconds, completed);
    }

    private static Map<String, Double> expireAll(Parameters parameters) throws Exception {
        int count = parameters.integer("count");
        int keys = parameters.integer("keys");
        long delayMs = parameters.integer("delay_ms");
        Marks marks = new Marks(keys);
        SystemTimer timer = new SystemTimer("bench");
        DelayedOperationPurgatory<Produce> purgatory = new DelayedOperationPurgatory<>("bench", timer, 0, false);
        marks.fill(purgatory, count / keys, delayMs);
        System.gc();
        Thread.sleep(delayMs + 50);
        long started = System.nanoTime();
        while (marks.expired.get() < count) {
            timer.advanceClock(1);
        }
        double seconds = Parameters.secondsSince(started);
        purgatory.shutdown();
        return Parameters.measured(seconds, count);
    }

    private static Map<String, Double> cancelAll(Parameters parameters) throws Exception {
        int count = parameters.integer("count");
        int keys = parameters.integer("keys");
        Marks marks = new Marks(keys);
        DelayedOperationPurgatory<Produce> purgatory = new DelayedOperationPurgatory<>("bench", 0);
        marks.fill(purgatory, count / keys, LONG_MS);
        System.gc();
        long started = System.nanoTime();
        int cancelled = 0;
        for (int key = 0; key < keys; key++) {
            cancelled += purgatory.cancelForKey(marks.keys.get(key).get(0)).size();
        }
        double seconds = Parameters.secondsSince(started);
        purgatory.shutdown();
        return Parameters.measured(seconds, cancelled);
    }

    /** Long polls on one partition, checked at each append as a broker does: how often is each one evaluated? */
    private static Map<String, Double> fetchEvaluations(Parameters parameters) throws Exception {
        int fetches = parameters.integer("fetches");
        int appends = parameters.integer("appends");
        Marks marks = new Marks(1);
        DelayedOperationPurgatory<Produce> purgatory = new DelayedOperationPurgatory<>("bench", 0);
        for (int fetch = 0; fetch < fetches; fetch++) {
            purgatory.tryCompleteElseWatch(new Produce(marks, 0, appends, LONG_MS), marks.keys.get(0));
        }
        long started = System.nanoTime();
        for (int append = 0; append < appends; append++) {
            marks.highWatermarks[0]++;
            purgatory.checkAndComplete(marks.keys.get(0).get(0));
        }
        double seconds = Parameters.secondsSince(started);
        double each = (double) marks.evaluations / fetches;
        long completed = marks.completed;
        purgatory.shutdown();
        return Map.of("seconds", seconds, "operations", (double) completed, "evaluations", each);
    }

    private static Map<String, Double> memory(Parameters parameters) throws Exception {
        int count = parameters.integer("count");
        int keys = parameters.integer("keys");
        Marks marks = new Marks(keys);
        DelayedOperationPurgatory<Produce> purgatory = new DelayedOperationPurgatory<>("bench", 0);
        double before = usedBytes();
        marks.fill(purgatory, count / keys, LONG_MS);
        double after = usedBytes();
        purgatory.shutdown();
        return Map.of("bytes", (after - before) / count, "operations", (double) count);
    }

    static double usedBytes() throws InterruptedException {
        for (int round = 0; round < 3; round++) {
            System.gc();
            Thread.sleep(50);
        }
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }

    private static final class Fired extends TimerTask {
        private final AtomicInteger fired;

        Fired(long delayMs, AtomicInteger fired) {
            super(delayMs);
            this.fired = fired;
        }

        @Override
        public void run() {
            fired.incrementAndGet();
        }
    }

    /** One more timer and one less, over and over, beside `pending` others: the life of a timeout that never strikes. */
    private static Map<String, Double> timerAddCancel(Parameters parameters) throws Exception {
        int pending = parameters.integer("pending");
        double budget = parameters.number("seconds");
        AtomicInteger fired = new AtomicInteger();
        SystemTimer timer = new SystemTimer("bench");
        Fired[] ring = new Fired[pending];
        for (int place = 0; place < pending; place++) {
            ring[place] = new Fired(30_000 + place % 30_000, fired);
            timer.add(ring[place]);
        }
        System.gc();
        long operations = 0;
        int place = 0;
        long started = System.nanoTime();
        double seconds;
        do {
            for (int turn = 0; turn < 1_000; turn++) {
                ring[place].cancel();
                ring[place] = new Fired(30_000 + place % 30_000, fired);
                timer.add(ring[place]);
                place = place + 1 == pending ? 0 : place + 1;
            }
            operations += 1_000;
            timer.advanceClock(0);
            seconds = Parameters.secondsSince(started);
        } while (seconds < budget);
        timer.close();
        return Parameters.measured(seconds, operations);
    }

    /** Many timers with one same deadline: the time to add them, and to run them all once they are due. */
    private static Map<String, Double> timerAddExpire(Parameters parameters) throws Exception {
        int count = parameters.integer("count");
        long delayMs = parameters.integer("delay_ms");
        AtomicInteger fired = new AtomicInteger();
        SystemTimer timer = new SystemTimer("bench");
        System.gc();
        long started = System.nanoTime();
        long dueNanos = started + delayMs * 1_000_000;
        long leftMs = delayMs;
        for (int place = 0; place < count; place++) {
            if (place % 1_000 == 0) {
                leftMs = (dueNanos - System.nanoTime()) / 1_000_000;
            }
            timer.add(new Fired(leftMs, fired));
        }
        double adding = Parameters.secondsSince(started);
        while (System.nanoTime() < dueNanos + 20_000_000) {
            Thread.sleep(10);
        }
        long drained = System.nanoTime();
        while (fired.get() < count) {
            timer.advanceClock(1);
        }
        double draining = Parameters.secondsSince(drained);
        timer.close();
        return Map.of("seconds", adding + draining, "operations", (double) count, "drain_rate", count / draining);
    }
}
