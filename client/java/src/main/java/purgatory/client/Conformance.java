package purgatory.client;

import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptors;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.MetadataUtils;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import purgatory.v1.Operation;
import purgatory.v1.Produce;
import purgatory.v1.ProducePartition;
import purgatory.v1.TopicPartition;

/** The client as a program for the conformance test (docs/grpc.md). */
public final class Conformance {
  private Conformance() {}

  public static void main(String[] arguments) throws IOException {
    Session session = null;
    Map<String, CompletableFuture<WaitResult>> waits = new HashMap<>();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = lines.readLine()) != null; ) {
      String[] words = line.split(" ");
      switch (words[0]) {
        case "open" -> session = open(List.of(words));
        case "wait" -> {
          CompletableFuture<WaitResult> wait = session.submit(produce(words));
          wait.whenComplete((result, failed) -> System.out.println(words[1] + " " + ending(result, failed)));
          waits.put(words[1], wait);
        }
        case "cancel" -> waits.get(words[1]).completeExceptionally(new CancellationException()); // as from outside
        case "close" -> {
          try {
            session.close();
          } catch (StatusRuntimeException unreachable) {
            // the daemon may be gone
          }
          System.out.println("closed");
        }
        default -> throw new IllegalArgumentException(line);
      }
    }
  }

  private static Session open(List<String> words) throws IOException {
    Map<String, String> options = new HashMap<>();
    for (String pair : words.subList(2, words.size())) {
      options.put(pair.split("=", 2)[0], pair.split("=", 2)[1]);
    }
    ChannelCredentials credentials = InsecureChannelCredentials.create();
    Metadata headers = new Metadata();
    if (options.containsKey("ca")) {
      credentials = TlsChannelCredentials.newBuilder().trustManager(new File(options.get("ca"))).build();
      Metadata.Key<String> authorization = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
      headers.put(authorization, "Bearer " + options.get("token"));
    }
    var channel = Grpc.newChannelBuilder("purgatory:///" + words.get(1), credentials).build();
    Duration giveUpAfter = Duration.ofMillis(Long.parseLong(options.getOrDefault("give_up_after_ms", "30000")));
    Duration openTimeout = Duration.ofMillis(Long.parseLong(options.getOrDefault("open_timeout_ms", "10000")));
    return new Session(
        headers.keys().isEmpty()
            ? channel
            : ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers)),
        UUID.randomUUID().toString(),
        new Session.Options(giveUpAfter, openTimeout));
  }

  /** The words are {@code wait ID TIMEOUT_MS TOPIC PARTITIONS}. */
  private static Operation produce(String[] words) {
    Produce.Builder produce = Produce.newBuilder();
    for (int partition = 0; partition < Integer.parseInt(words[4]); partition++) {
      TopicPartition name = TopicPartition.newBuilder().setTopic(words[3]).setPartition(partition).build();
      produce.addPartitions(ProducePartition.newBuilder().setTopicPartition(name).setRequiredOffset(1));
    }
    return Operation.newBuilder().setTimeoutMs(Long.parseLong(words[2])).setProduce(produce).build();
  }

  private static String ending(WaitResult result, Throwable failed) {
    if (failed instanceof CancellationException) {
      return "cancelled";
    } else if (failed instanceof Session.EndedException ended) {
      return ended.reason.name().toLowerCase();
    }
    if (failed != null) {
      return "refused";
    }
    return result.outcome().name().replace("OUTCOME_", "").toLowerCase() + " " + result.message().getWaitedMs();
  }
}
