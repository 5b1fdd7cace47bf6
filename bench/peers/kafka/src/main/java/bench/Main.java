package bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Locale;
import java.util.Map;

/**
 * One process of peers: reads "run WORKLOAD key=value ..." lines, answers each with one line of JSON, and ends with its
 * input. The workloads and their parameters are those of bench/workloads.md.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Workload> workloads = switch (arguments[0]) {
            case "kafka" -> KafkaRuns.WORKLOADS;
            case "netty" -> NettyRuns.WORKLOADS;
            case "util-timer" -> JdkTimers.UTIL_TIMER;
            case "delay-queue" -> JdkTimers.DELAY_QUEUE;
            default -> throw new IllegalArgumentException("there is no peer " + arguments[0]);
        };
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.trim().split(" ");
            Workload workload = words.length > 1 ? workloads.get(words[1]) : null;
            if (!words[0].equals("run") || workload == null) {
                System.out.println("{\"error\": \"no such workload\"}");
            } else {
                System.out.println(json(workload.run(new Parameters(words))));
            }
            System.out.flush();
        }
        System.exit(0);
    }

    private static String json(Map<String, Double> measured) {
        StringBuilder text = new StringBuilder("{");
        for (Map.Entry<String, Double> entry : measured.entrySet()) {
            text.append(text.length() > 1 ? ", " : "");
            text.append(String.format(Locale.ROOT, "\"%s\": %.9f", entry.getKey(), entry.getValue()));
        }
        return text.append("}").toString();
    }

    /** Something to measure: parameters in, "seconds" and "operations" (or other numbers) out. */
    @FunctionalInterface
    interface Workload {
        Map<String, Double> run(Parameters parameters) throws Exception;
    }
}
