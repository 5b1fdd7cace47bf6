package purgatory.client;

import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import purgatory.v1.AdvanceRequest;
import purgatory.v1.Event;
import purgatory.v1.EventRows;
import purgatory.v1.HighWatermark;
import purgatory.v1.Operation;
import purgatory.v1.Produce;
import purgatory.v1.ProducePartition;
import purgatory.v1.PurgatoryServiceGrpc;
import purgatory.v1.Result;
import purgatory.v1.TopicPartition;
import purgatory.v1.WaitRequest;
import purgatory.v1.WaitResponse;

/** Waits until partition 0 of orders has reached offset 42, and meanwhile reports that it has: Once ADDRESS. */
public final class Once {
  private Once() {}

  public static void main(String[] arguments) throws Exception {
    ManagedChannel channel = Grpc.newChannelBuilder(arguments[0], InsecureChannelCredentials.create()).build();
    var service = PurgatoryServiceGrpc.newFutureStub(channel).withDeadlineAfter(60, TimeUnit.SECONDS);
    TopicPartition orders = TopicPartition.newBuilder().setTopic("orders").setPartition(0).build();

    ProducePartition partition =
        ProducePartition.newBuilder().setTopicPartition(orders).setRequiredOffset(42).build();
    Produce condition = Produce.newBuilder().addPartitions(partition).build();
    Operation operation = Operation.newBuilder().setTimeoutMs(30_000).setProduce(condition).build();
    Future<WaitResponse> wait = service.wait(WaitRequest.newBuilder().setOperation(operation).build());

    HighWatermark mark = HighWatermark.newBuilder().setOffset(42).build();
    Event event = Event.newBuilder().setTopicPartition(orders).setHighWatermark(mark).build();
    EventRows rows = EventRows.newBuilder().addEvents(event).build();
    service.advance(AdvanceRequest.newBuilder().setRows(rows).build()).get();

    Result result = wait.get().getResult(); // one that has expired does not throw: its outcome says so
    System.out.println(result.getOutcome() + " " + result.getPartitions(0).getReachedOffset());
    channel.shutdownNow();
  }
}
