package bench;

import java.util.Map;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.DelayQueue;
import java.util.concurrent.Delayed;
import java.util.concurrent.TimeUnit;

/**
 * The two timers of the JDK with which articles compare the timing wheel. Both keep a binary heap: the first entry is found
 * in O(1), and taken out in O(log n).
 */
final class JdkTimers {
    static final Map<String, Main.Workload> UTIL_TIMER = Map.of("timer-percentiles", JdkTimers::utilTimer);
    static final Map<String, Main.Workload> DELAY_QUEUE = Map.of("timer-percentiles", JdkTimers::delayQueue);

    private static final long VISITS_MAX = 2_000_000_000L;

    private JdkTimers() {
    }

    /** Its own thread runs the tasks. Cancelling only marks a task; it stays in the heap until it is due. */
    private static Map<String, Double> utilTimer(Parameters parameters) throws Exception {
        Timer timer = new Timer("bench", true);
        return TimerPercentiles.<TimerTask>measured(parameters, parameters.integer("samples"), (delayMs, call) -> {
            TimerTask task = new TimerTask() {
                @Override
                public void run() {
                    call.run();
                }
            };
            timer.schedule(task, delayMs);
            return task;
        }, TimerTask::cancel, () -> {
            Thread.sleep(1);
            return true;
        });
    }

    /** Cancelling takes the entry out of the heap, which is searched for it from its start. So large heaps get fewer samples. */
    private static Map<String, Double> delayQueue(Parameters parameters) throws Exception {
        DelayQueue<Entry> queue = new DelayQueue<>();
        int samples = (int) Math.min(parameters.integer("samples"), VISITS_MAX / parameters.integer("pending"));
        return TimerPercentiles.<Entry>measured(parameters, samples, (delayMs, call) -> {
            Entry entry = new Entry(System.nanoTime() + delayMs * 1_000_000, call);
            queue.put(entry);
            return entry;
        }, queue::remove, () -> {
            Entry due = queue.poll();
            if (due != null) {
                due.call.run();
            }
            return due != null;
        });
    }

    private record Entry(long dueNanos, Runnable call) implements Delayed {
        @Override
        public long getDelay(TimeUnit unit) {
            return unit.convert(dueNanos - System.nanoTime(), TimeUnit.NANOSECONDS);
        }

        @Override
        public int compareTo(Delayed other) {
            return Long.compare(dueNanos, ((Entry) other).dueNanos);
        }

        @Override
        public boolean equals(Object other) {
            return this == other;
        }

        @Override
        public int hashCode() {
            return System.identityHashCode(this);
        }
    }
}
