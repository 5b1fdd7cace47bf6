package purgatory.client;

import io.grpc.Status;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import purgatory.v1.Composite;
import purgatory.v1.MarkTerm;
import purgatory.v1.Operation;
import purgatory.v1.Produce;
import purgatory.v1.ProducePartition;
import purgatory.v1.Signal;
import purgatory.v1.SignalKey;
import purgatory.v1.TopicPartition;

/** Something to wait for: a mark, a signal, or several of them. Import its methods statically. */
public interface Condition {
  /** Names of sources without partitions, which may contain dashes. */
  Pattern WHOLE = Pattern.compile("(?:pg|mysql|redis|poll)/.*");

  Pattern PARTITION = Pattern.compile("(.+)-(\\d{1,10})");

  /** The message of the contract, without a timeout. */
  Operation operation();

  /**
   * True when the high watermark of a partition such as "orders-3" has reached the offset, which is exclusive: wait for 42 to
   * see the record at 41. Throws RefusedException if that is not the name of a partition.
   */
  static Term mark(String partition, long offset) {
    MarkTerm mark = MarkTerm.newBuilder().setTopicPartition(partition(partition)).setRequiredOffset(offset).build();
    return new Term(purgatory.v1.Term.newBuilder().setMark(mark).build());
  }

  /** True when the key has been signalled. Earlier signals count. */
  static Term signal(String key) {
    return new Term(purgatory.v1.Term.newBuilder().setSignal(SignalKey.newBuilder().setKey(key)).build());
  }

  static Several all(Term... terms) {
    return atLeast(terms.length, terms);
  }

  static Several any(Term... terms) {
    return atLeast(1, terms);
  }

  static Several atLeast(int required, Term... terms) {
    return new Several(required, List.of(terms), List.of());
  }

  /** The partition with a name such as "orders-3". */
  static TopicPartition partition(String name) {
    if (WHOLE.matcher(name).matches()) {
      return TopicPartition.newBuilder().setTopic(name).build();
    }
    Matcher parts = PARTITION.matcher(name);
    if (!parts.matches() || Long.parseLong(parts.group(2)) > Integer.MAX_VALUE) {
      String message = "\"%s\" is not a partition; write the topic, a dash and the partition number, like \"orders-3\"";
      throw new RefusedException(Status.Code.INVALID_ARGUMENT.value(), "topic_partition", message.formatted(name));
    }
    return TopicPartition.newBuilder().setTopic(parts.group(1)).setPartition(Integer.parseInt(parts.group(2))).build();
  }

  /** One condition. */
  record Term(purgatory.v1.Term message) implements Condition {
    @Override
    public Operation operation() {
      if (message.hasSignal()) {
        return Operation.newBuilder().setSignal(Signal.newBuilder().addKeys(message.getSignal())).build();
      }
      ProducePartition.Builder one = ProducePartition.newBuilder().setTopicPartition(message.getMark().getTopicPartition());
      one.setRequiredOffset(message.getMark().getRequiredOffset());
      return Operation.newBuilder().setProduce(Produce.newBuilder().addPartitions(one)).build();
    }
  }

  /** Several conditions, of which some are required. */
  record Several(int required, List<Term> terms, List<Term> failures) implements Condition {
    /** Adds terms of which any one ends the wait as failed. */
    public Several unless(Term... more) {
      return new Several(required, terms, Stream.concat(failures.stream(), Stream.of(more)).toList());
    }

    @Override
    public Operation operation() {
      Composite.Builder composite = Composite.newBuilder().setRequiredTerms(required);
      terms.forEach(term -> composite.addTerms(term.message()));
      failures.forEach(term -> composite.addUnless(term.message()));
      return Operation.newBuilder().setComposite(composite).build();
    }
  }
}
