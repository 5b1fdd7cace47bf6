package purgatory.client;

import java.util.Locale;
import purgatory.v1.Outcome;
import purgatory.v1.PartitionResult;
import purgatory.v1.Result;
import purgatory.v1.TopicPartition;

/** How a wait has ended. Running out of time is an outcome, not an exception. */
public record WaitResult(Result message) {
  private static final int NOT_IN_TIME = 7; // Kafka's REQUEST_TIMED_OUT: also of terms that were not needed

  public Outcome outcome() {
    return message.getOutcome();
  }

  public boolean isSatisfied() {
    return outcome() == Outcome.OUTCOME_SATISFIED;
  }

  /** The value of a signalled key, or the reason of its failure; empty if it has none. */
  public byte[] value(String key) {
    for (PartitionResult item : message.getPartitionsList()) {
      if (!item.hasTopicPartition() && item.getKey().equals(key)) {
        return item.getSignalValue().toByteArray();
      }
    }
    return new byte[0];
  }

  /** One line: the outcome, the time, and what each mark and key had reached. */
  @Override
  public String toString() {
    String outcome = outcome().name().replace("OUTCOME_", "").toLowerCase(Locale.ROOT);
    StringBuilder text = new StringBuilder(outcome + " after " + message.getWaitedMs() + " ms");
    for (PartitionResult item : message.getPartitionsList()) {
      text.append("; ").append(item.hasTopicPartition() ? nameOf(item.getTopicPartition()) : item.getKey());
      text.append(item.getReachedOffset() < 0 ? ": no mark reported" : ": reached " + item.getReachedOffset());
      text.append(" of ").append(item.getRequiredOffset());
      if (item.getErrorCode() != 0 && item.getErrorCode() != NOT_IN_TIME) {
        text.append(", error ").append(item.getErrorCode());
      }
      if (item.hasStaleMs()) {
        text.append(", stale for ").append(item.getStaleMs()).append(" ms ").append(item.getStaleReason());
      }
      if (!item.getSignalValue().isEmpty()) {
        text.append(", value ").append(item.getSignalValue().toStringUtf8());
      }
    }
    return text.toString();
  }

  private static String nameOf(TopicPartition name) {
    boolean isWhole = name.getPartition() == 0 && Condition.WHOLE.matcher(name.getTopic()).matches();
    return isWhole ? name.getTopic() : name.getTopic() + "-" + name.getPartition();
  }
}
