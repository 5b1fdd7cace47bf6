package purgatory.client;

import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import purgatory.v1.Operation;
import purgatory.v1.Produce;
import purgatory.v1.ProducePartition;
import purgatory.v1.Result;
import purgatory.v1.TopicPartition;

/**
 * Waits for the high watermark of a partition to reach each of the offsets 1 to COUNT, and prints a line for each result:
 * {@code java -cp 'target/classes:target/lib/*' purgatory.client.Resume ADDRESS[,ADDRESS] TOPIC COUNT}.
 */
public final class Resume {
  private Resume() {}

  public static void main(String[] arguments) {
    if (arguments.length != 3) {
      throw new IllegalArgumentException("usage: Resume ADDRESS[,ADDRESS] TOPIC COUNT");
    }
    String topic = arguments[1];
    long count = Long.parseLong(arguments[2]);
    ManagedChannel channel =
        Grpc.newChannelBuilder("purgatory:///" + arguments[0], InsecureChannelCredentials.create())
            .keepAliveTime(10, TimeUnit.SECONDS)
            .keepAliveTimeout(1, TimeUnit.SECONDS)
            .build();
    String id = "java-" + UUID.randomUUID();
    try (Session session = new Session(channel, id, Session.Options.DEFAULT)) {
      List<CompletableFuture<WaitResult>> results = new ArrayList<>();
      for (long offset = 1; offset <= count; offset++) {
        results.add(session.submit(produce(topic, offset)));
      }
      StringBuilder lines = new StringBuilder();
      for (CompletableFuture<WaitResult> one : results) {
        Result result = one.join().message();
        long offset = result.getPartitions(0).getRequiredOffset();
        lines.append("%d %s %d\n".formatted(result.getOperationId(), result.getOutcome(), offset));
      }
      System.out.print(lines);
    }
    channel.shutdownNow();
  }

  private static Operation produce(String topic, long offset) {
    TopicPartition name = TopicPartition.newBuilder().setTopic(topic).build();
    ProducePartition partition =
        ProducePartition.newBuilder().setTopicPartition(name).setRequiredOffset(offset).build();
    Produce produce = Produce.newBuilder().addPartitions(partition).build();
    return Operation.newBuilder().setTimeoutMs(600_000).setProduce(produce).build();
  }
}
