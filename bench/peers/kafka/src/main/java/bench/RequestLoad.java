package bench;

import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.TimeUnit;

import com.sun.management.OperatingSystemMXBean;

import org.apache.kafka.server.purgatory.DelayedOperation;
import org.apache.kafka.server.purgatory.DelayedOperationPurgatory;
import org.apache.kafka.server.purgatory.TopicPartitionOperationKey;

/**
 * The load of Kafka's own benchmark of its purgatory (TestPurgatoryPerformance): requests at a rate, each watched on some of
 * the keys and completed from outside after a log-normal time. The draws are those of bench/subjects/request_load.py.
 */
final class RequestLoad {
    private static final long TIMEOUT_MS = 600_000;
    private static final double NORMAL_P75 = 0.674489750196082;

    private RequestLoad() {
    }

    private static final class Request extends DelayedOperation implements Delayed {
        private final long dueNanos;
        private final long[] latenessNanos;
        private final int place;
        private final CountDownLatch left;

        Request(long dueNanos, long[] latenessNanos, int place, CountDownLatch left) {
            super(TIMEOUT_MS);
            this.dueNanos = dueNanos;
            this.latenessNanos = latenessNanos;
            this.place = place;
            this.left = left;
        }

        @Override
        public boolean tryComplete() {
            return System.nanoTime() >= dueNanos && forceComplete();
        }

        @Override
        public void onComplete() {
            latenessNanos[place] = System.nanoTime() - dueNanos;
            left.countDown();
        }

        @Override
        public void onExpiration() {
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return unit.convert(dueNanos - System.nanoTime(), TimeUnit.NANOSECONDS);
        }

        @Override
        public int compareTo(Delayed other) {
            return Long.compare(dueNanos, ((Request) other).dueNanos);
        }
    }

    static Map<String, Double> run(Parameters parameters) throws Exception {
        int count = parameters.integer("count");
        int keys = parameters.integer("keys");
        double rate = parameters.number("rate");
        double mu = Math.log(parameters.number("p50_ms"));
        double sigma = (Math.log(parameters.number("p75_ms")) - mu) / NORMAL_P75;
        long[] random = {1};
        long[] startsNanos = new long[count];
        long[] takesNanos = new long[count];
        int[][] keysOf = new int[count][3];
        double at = 0;
        for (int place = 0; place < count; place++) {
            at += rate > 0 ? -Math.log(1 - draw(random)) / rate : 0;
            startsNanos[place] = (long) (at * 1e9);
            double normal = Math.sqrt(-2 * Math.log(1 - draw(random))) * Math.cos(2 * Math.PI * draw(random));
            takesNanos[place] = (long) (Math.exp(mu + sigma * normal) * 1e6);
            for (int each = 0; each < 3; each++) {
                keysOf[place][each] = (int) (draw(random) * keys);
            }
        }
        DelayedOperationPurgatory<Request> purgatory = new DelayedOperationPurgatory<>("bench", 0);
        DelayQueue<Request> queue = new DelayQueue<>();
        long[] latenessNanos = new long[count];
        CountDownLatch left = new CountDownLatch(count);
        Thread completer = new Thread(() -> {
            try {
                while (left.getCount() > 0) {
                    Request request = queue.poll(100, TimeUnit.MILLISECONDS);
                    if (request != null) {
                        request.forceComplete();
                    }
                }
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        });
        completer.start();
        System.gc();
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long usedNanos = system.getProcessCpuTime();
        long started = System.nanoTime();
        for (int place = 0; place < count; place++) {
            long aheadNanos = started + startsNanos[place] - System.nanoTime();
            if (aheadNanos > 0) {
                TimeUnit.NANOSECONDS.sleep(aheadNanos);
            }
            int[] drawn = keysOf[place];
            long now = System.nanoTime();
            Request request = new Request(now + takesNanos[place], latenessNanos, place, left);
            queue.put(request);
            purgatory.tryCompleteElseWatch(request, List.of(new TopicPartitionOperationKey("bench", drawn[0]),
                new TopicPartitionOperationKey("bench", drawn[1]), new TopicPartitionOperationKey("bench", drawn[2])));
        }
        left.await();
        double seconds = Parameters.secondsSince(started);
        usedNanos = system.getProcessCpuTime() - usedNanos;
        completer.join();
        purgatory.shutdown();
        Arrays.sort(latenessNanos);
        return Map.of("seconds", seconds, "operations", (double) count, "cpu_us", usedNanos / 1e3 / count,
            "late_p50_us", latenessNanos[count / 2] / 1e3, "late_p99_us", latenessNanos[count - 1 - count / 100] / 1e3);
    }

    private static double draw(long[] random) {
        random[0] = random[0] * 6364136223846793005L + 1442695040888963407L;
        return (random[0] >>> 11) / (double) (1L << 53);
    }
}
