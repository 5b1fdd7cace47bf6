package bench;

import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;

import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Netty's timer. Its worker thread does part of the work, so each run ends when the worker has caught up. */
final class NettyRuns {
    static final Map<String, Main.Workload> WORKLOADS = Map.of(
        "timer-add-cancel", NettyRuns::timerAddCancel,
        "timer-add-expire", NettyRuns::timerAddExpire,
        "timer-percentiles", TimerPercentiles::netty);

    private NettyRuns() {
    }

    private static HashedWheelTimer newTimer() {
        return new HashedWheelTimer(1, TimeUnit.MILLISECONDS, 512);
    }

    private static Map<String, Double> timerAddCancel(Parameters parameters) throws Exception {
        int pending = parameters.integer("pending");
        double budget = parameters.number("seconds");
        HashedWheelTimer timer = newTimer();
        Timeout[] ring = new Timeout[pending];
        for (int place = 0; place < pending; place++) {
            ring[place] = timer.newTimeout(timeout -> { }, 30_000 + place % 30_000, TimeUnit.MILLISECONDS);
        }
        System.gc();
        long operations = 0;
        int place = 0;
        long started = System.nanoTime();
        do {
            for (int turn = 0; turn < 1_000; turn++) {
                ring[place].cancel();
                ring[place] = timer.newTimeout(timeout -> { }, 30_000 + place % 30_000, TimeUnit.MILLISECONDS);
                place = place + 1 == pending ? 0 : place + 1;
            }
            operations += 1_000;
        } while (Parameters.secondsSince(started) < budget);
        while (timer.pendingTimeouts() > pending) {
            Thread.onSpinWait();
        }
        double seconds = Parameters.secondsSince(started);
        timer.stop();
        return Parameters.measured(seconds, operations);
    }

    private static Map<String, Double> timerAddExpire(Parameters parameters) throws Exception {
        int count = parameters.integer("count");
        long delayMs = parameters.integer("delay_ms");
        AtomicInteger fired = new AtomicInteger();
        long[] firstNanos = new long[1];
        long[] lastNanos = new long[1];
        HashedWheelTimer timer = newTimer();
        timer.start();
        System.gc();
        long started = System.nanoTime();
        long dueNanos = started + delayMs * 1_000_000;
        long leftNanos = delayMs * 1_000_000;
        for (int place = 0; place < count; place++) {
            if (place % 1_000 == 0) {
                leftNanos = dueNanos - System.nanoTime();
            }
            timer.newTimeout(timeout -> {
                int before = fired.get();
                if (before == 0) {
                    firstNanos[0] = System.nanoTime();
                }
                if (before == count - 1) {
                    lastNanos[0] = System.nanoTime();
                }
                fired.lazySet(before + 1);
            }, leftNanos, TimeUnit.NANOSECONDS);
        }
        double adding = Parameters.secondsSince(started);
        while (fired.get() < count) {
            Thread.sleep(1);
        }
        double draining = (lastNanos[0] - firstNanos[0]) / 1e9;
        timer.stop();
        return Map.of("seconds", adding + draining, "operations", (double) count, "drain_rate", count / draining);
    }
}
