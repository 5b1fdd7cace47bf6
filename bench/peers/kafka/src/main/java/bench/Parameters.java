package bench;

import java.util.HashMap;
import java.util.Map;

/** The key=value words of a line. */
final class Parameters {
    private final Map<String, String> values = new HashMap<>();

    Parameters(String[] words) {
        for (String word : words) {
            int equals = word.indexOf('=');
            if (equals > 0) {
                values.put(word.substring(0, equals), word.substring(equals + 1));
            }
        }
    }

    int integer(String name) {
        return Integer.parseInt(values.get(name));
    }

    double number(String name) {
        return Double.parseDouble(values.get(name));
    }

    /** What a workload answers when operations were done in a time. */
    static Map<String, Double> measured(double seconds, double operations) {
        return Map.of("seconds", seconds, "operations", operations);
    }

    static double secondsSince(long startedNanos) {
        return (System.nanoTime() - startedNanos) / 1e9;
    }
}
