package bench;

import io.netty.util.HashedWheelTimer;
import io.netty.util.Timeout;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiFunction;
import java.util.function.Consumer;

import org.apache.kafka.server.util.timer.SystemTimer;
import org.apache.kafka.server.util.timer.TimerTask;

/** The time of each operation of Kafka's timer and of Netty's, as bench/timer_table.py describes it. */
final class TimerPercentiles {
    private TimerPercentiles() {
    }

    static Map<String, Double> kafka(Parameters parameters) throws Exception {
        SystemTimer timer = new SystemTimer("bench");
        return TimerPercentiles.<TimerTask>measured(parameters, parameters.integer("samples"), (delayMs, call) -> {
            TimerTask task = new TimerTask(delayMs) {
                @Override
                public void run() {
                    call.run();
                }
            };
            timer.add(task);
            return task;
        }, TimerTask::cancel, () -> timer.advanceClock(1));
    }

    static Map<String, Double> netty(Parameters parameters) throws Exception {
        int buckets = Math.max(512, parameters.integer("pending") / 512);
        HashedWheelTimer timer = new HashedWheelTimer(1, TimeUnit.MILLISECONDS, buckets);
        return TimerPercentiles.<Timeout>measured(parameters, parameters.integer("samples"), (delayMs, call) ->
            timer.newTimeout(timeout -> call.run(), delayMs, TimeUnit.MILLISECONDS), Timeout::cancel, () -> fired(timer));
    }

    private static boolean fired(HashedWheelTimer timer) throws InterruptedException {
        Thread.sleep(1);
        return timer.pendingTimeouts() > 0;
    }

    static <T> Map<String, Double> measured(
        Parameters parameters, int samples, BiFunction<Long, Runnable, T> add, Consumer<T> cancel, Callable<Boolean> turn
    ) throws Exception {
        int pending = parameters.integer("pending");
        long[] random = {1};
        Runnable nothing = () -> { };
        ArrayList<T> ring = new ArrayList<>(pending);
        for (int place = 0; place < pending; place++) {
            ring.add(add.apply(farMs(random), nothing));
        }
        Map<String, long[]> taken = Map.of("clock", new long[samples], "add", new long[samples],
            "cancel", new long[samples], "expire", new long[samples / 10 - 1]);
        for (int pass = 0; pass < 2; pass++) {
            System.gc();
            for (int at = 0; at < samples; at++) {
                int place = (int) (draw(random) % pending);
                long delayMs = farMs(random);
                long began = System.nanoTime();
                long started = System.nanoTime();
                cancel.accept(ring.get(place));
                long cancelled = System.nanoTime();
                ring.set(place, add.apply(delayMs, nothing));
                taken.get("add")[at] = System.nanoTime() - cancelled;
                taken.get("cancel")[at] = cancelled - started;
                taken.get("clock")[at] = started - began;
            }
            long[] stamps = new long[samples / 10];
            AtomicInteger fired = new AtomicInteger();
            long due = System.nanoTime() + 2_000_000_000L;
            for (int at = 0; at < stamps.length; at++) {
                add.apply((due - System.nanoTime()) / 1_000_000, () -> {
                    stamps[fired.get()] = System.nanoTime();
                    fired.lazySet(fired.get() + 1);
                });
            }
            Thread.sleep(Math.max(0, (due - System.nanoTime()) / 1_000_000) + 20);
            while (fired.get() < stamps.length) {
                turn.call();
            }
            Arrays.setAll(taken.get("expire"), at -> stamps[at + 1] - stamps[at]);
        }
        Map<String, Double> said = new HashMap<>();
        taken.forEach((name, values) -> {
            Arrays.sort(values);
            Map.of("p50", 500L, "p99", 990L, "p999", 999L).forEach((part, share) ->
                said.put(name + "_" + part, (double) values[(int) (values.length * share / 1_000)]));
        });
        return said;
    }

    private static long farMs(long[] random) {
        return 600_000 + draw(random) % 600_000;
    }

    private static long draw(long[] random) {
        random[0] = (random[0] * 25_214_903_917L + 11) & ((1L << 48) - 1);
        return random[0] >> 16;
    }
}
