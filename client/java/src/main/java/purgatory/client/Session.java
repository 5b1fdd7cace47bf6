package purgatory.client;

import com.google.protobuf.ByteString;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import purgatory.v1.AcknowledgeResults;
import purgatory.v1.AdvanceReceipt;
import purgatory.v1.AdvanceRequest;
import purgatory.v1.CancelOperations;
import purgatory.v1.CancelReceipt;
import purgatory.v1.CloseSessionRequest;
import purgatory.v1.Event;
import purgatory.v1.EventRefusal;
import purgatory.v1.EventRows;
import purgatory.v1.GoingAway;
import purgatory.v1.Heartbeat;
import purgatory.v1.HighWatermark;
import purgatory.v1.KeySignalled;
import purgatory.v1.OpenSession;
import purgatory.v1.Operation;
import purgatory.v1.OperationRefusal;
import purgatory.v1.OperationRows;
import purgatory.v1.OperationsExtended;
import purgatory.v1.PurgatoryServiceGrpc;
import purgatory.v1.Receipt;
import purgatory.v1.RegisterBatch;
import purgatory.v1.Result;
import purgatory.v1.ResultBatch;
import purgatory.v1.SessionOpened;
import purgatory.v1.SessionRequest;
import purgatory.v1.SessionResponse;

/**
 * Waits by one session, which it resumes however often the connection breaks: each operation is registered once, and each
 * result is delivered once. The rules are in docs/grpc.md, "How to write a client".
 *
 * <p>Safe for use by many threads. Its state is in memory: a program that must survive its own crash stores the operations,
 * and the last sequence number and incarnation with their results, before it acknowledges.
 */
public final class Session implements AutoCloseable {
  private static final int BATCH_MAX = 1_000;
  private static final long MESSAGE_BYTES_MAX = 4 << 20; // of a daemon that states no limit
  private static final int RESULT_BYTES_MAX = 64 << 20; // results may be larger than gRPC accepts by default
  private static final long ENVELOPE_BYTES = 256; // of a message without its operations, at most
  private static final long PAUSE_MS_MIN = 50;
  private static final long PAUSE_MS_MAX = 5_000;
  private static final long REFUSED_PAUSE_MS = 1_000;
  private static final long CALL_TIMEOUT_MS = 30_000;
  private static final int SILENT_INTERVALS = 3;
  private static final Metadata.Key<byte[]> DETAILS =
      Metadata.Key.of("grpc-status-details-bin", Metadata.BINARY_BYTE_MARSHALLER);

  /**
   * @param giveUpAfter the session ends after this long without a connection; null: never
   * @param openTimeout how long the daemon may take to open the session before the next attempt
   */
  public record Options(Duration giveUpAfter, Duration openTimeout) {
    public static final Options DEFAULT = new Options(Duration.ofSeconds(30), Duration.ofSeconds(10));
  }

  /** The session has ended, for a reason other than a status of the daemon (StatusRuntimeException). */
  public static final class EndedException extends RuntimeException {
    public enum Reason { TAKEN_OVER, CLOSED, UNREACHABLE }

    public final Reason reason;

    EndedException(Reason reason, String message) {
      super(message);
      this.reason = reason;
    }
  }

  /** When an operation was sent: `beforeMs` is how long it had waited when it was sent again; 0: it was sent once. */
  private static final class Sent {
    boolean isSent;
    long beforeMs;
  }

  /** An operation that has no result yet. */
  private record Wait(Operation operation, long submittedMs, CompletableFuture<WaitResult> result, Sent sent) {
    long id() {
      return operation.getOperationId();
    }

    long leftMs(long defaultMs) {
      return (operation.hasTimeoutMs() ? operation.getTimeoutMs() : defaultMs) - (nowMs() - submittedMs);
    }

    Wait extended(long timeoutMs, SessionOpened daemon) {
      if (leftMs(daemon.getTimeoutMsDefault()) >= timeoutMs) {
        return this;
      }
      long sinceSubmittedMs = nowMs() - submittedMs + timeoutMs;
      return new Wait(operation.toBuilder().setTimeoutMs(sinceSubmittedMs).build(), submittedMs, result, sent);
    }
  }

  private final Channel channel;
  private final PurgatoryServiceGrpc.PurgatoryServiceStub stub;
  private final PurgatoryServiceGrpc.PurgatoryServiceBlockingStub blocking;
  private final String id;
  private final Options options;
  private final Thread thread;
  private ManagedChannel owned; // to be ended with the session; null: it belongs to the caller

  // Guarded by `this`, which is notified of every change that may give the session's thread something to do.
  private final TreeMap<Long, Wait> pending = new TreeMap<>();
  private final TreeMap<Long, Boolean> cancelling = new TreeMap<>(); // cancels without an answer; true: sent
  private SessionOpened daemon = SessionOpened.getDefaultInstance(); // of the last connection
  private long issued; // the highest operation id given out
  private long sent; // operations up to this id need not be sent on this connection
  private List<Wait> batch = List.of(); // the batch that has no receipt yet
  private int room = BATCH_MAX; // operations in the next batch: fewer after a refusal, more after each success
  private int roomMax = BATCH_MAX; // fewer after a batch was refused for its size
  private long notBeforeMs; // when batches may be sent again
  private long lastSequence; // of the results that were delivered
  private long acknowledged; // on this connection
  private long reachedMs = nowMs(); // when there was last a connection, or no need for one
  private RuntimeException error; // why the session ended

  /** Begins a session. The id must be unique among all clients, such as a UUID. */
  public Session(Channel channel, String id, Options options) {
    this.channel = channel;
    this.stub = PurgatoryServiceGrpc.newStub(channel).withMaxInboundMessageSize(RESULT_BYTES_MAX);
    this.blocking = PurgatoryServiceGrpc.newBlockingStub(channel);
    this.id = id;
    this.options = options;
    thread = new Thread(this::run, "purgatory-session-" + id);
    thread.setDaemon(true);
    thread.start();
  }

  /** Opens a session at the daemon at "127.0.0.1:7440". Of several ("a:7440,b:7440") it uses the one that serves. */
  public static Session connect(String addresses) {
    return connect(addresses, InsecureChannelCredentials.create(), Options.DEFAULT);
  }

  public static Session connect(String addresses, ChannelCredentials credentials, Options options) {
    String target = addresses.contains(":///") ? addresses : "purgatory:///" + addresses;
    ManagedChannel channel =
        Grpc.newChannelBuilder(target, credentials)
            .defaultServiceConfig(DaemonList.SERVICE_CONFIG)
            .keepAliveTime(10, TimeUnit.SECONDS) // notices a daemon that hangs
            .keepAliveTimeout(1, TimeUnit.SECONDS)
            .build();
    Session session = new Session(channel, UUID.randomUUID().toString(), options);
    session.owned = channel;
    return session;
  }

  /** As `submit`, for callers that wait here. An interrupt cancels the operation. */
  public WaitResult await(Condition condition, Duration timeout) throws InterruptedException {
    CompletableFuture<WaitResult> result = submit(condition, timeout);
    try {
      return result.get();
    } catch (ExecutionException failed) {
      throw (RuntimeException) failed.getCause(); // all of ours are
    } finally {
      result.cancel(false);
    }
  }

  /** Waits until the condition is true, or for as long as `timeout` says; zero asks for an answer at once. */
  public CompletableFuture<WaitResult> submit(Condition condition, Duration timeout) {
    // Away from zero, which would ask for an answer at once, or make a negative timeout, which is refused, look valid.
    long timeoutMs = timeout.plusNanos(timeout.isNegative() ? -999_999 : 999_999).toMillis();
    return submit(condition.operation().toBuilder().setTimeoutMs(timeoutMs).build());
  }

  /**
   * Registers an operation, whose id is set here. Completing the future from outside, as by `cancel` or `orTimeout`, cancels the
   * operation. The future fails with a RefusedException if the daemon refuses the operation, or if it is too large for a
   * message; and if the session ends first, with an EndedException, or with a StatusRuntimeException of the daemon.
   * Callbacks run on a thread of the channel, and must not block.
   */
  public CompletableFuture<WaitResult> submit(Operation operation) {
    CompletableFuture<WaitResult> result = new CompletableFuture<>();
    long operationId;
    synchronized (this) {
      if (error != null) {
        return CompletableFuture.failedFuture(error);
      }
      if (pending.isEmpty()) {
        reachedMs = nowMs();
      }
      operationId = ++issued;
      Operation numbered = operation.toBuilder().setOperationId(operationId).build();
      pending.put(operationId, new Wait(numbered, nowMs(), result, new Sent()));
      notifyAll();
    }
    result.whenComplete((value, failure) -> cancel(operationId)); // from outside: this class forgets the wait first
    return result;
  }

  /** Reports that the high watermark of a partition has reached an offset. The receipt counts the waits that it ended. */
  public AdvanceReceipt advance(String partition, long offset) {
    HighWatermark mark = HighWatermark.newBuilder().setOffset(offset).build();
    return report(Event.newBuilder().setTopicPartition(Condition.partition(partition)).setHighWatermark(mark).build());
  }

  /** Signals a key, with the value that its waits get; empty: none. The first value of a key is kept. */
  public AdvanceReceipt signal(String key, byte... value) {
    KeySignalled signal = KeySignalled.newBuilder().setKey(key).setValue(ByteString.copyFrom(value)).build();
    return report(Event.newBuilder().setKeySignalled(signal).build());
  }

  /** Signals that what a key stands for has failed, and why: its waits fail. */
  public AdvanceReceipt fail(String key, byte... reason) {
    KeySignalled.Builder signal = KeySignalled.newBuilder().setKey(key).setValue(ByteString.copyFrom(reason));
    return report(Event.newBuilder().setKeySignalled(signal.setFailed(true)).build());
  }

  /**
   * Sends events of any kind, in order. They are never sent twice: if the connection breaks, which is a
   * StatusRuntimeException, they may or may not have been applied. Throws RefusedException if the daemon refuses one of
   * them; the others are applied.
   */
  public AdvanceReceipt report(Event... events) {
    AdvanceRequest request =
        AdvanceRequest.newBuilder().setRows(EventRows.newBuilder().addAllEvents(List.of(events))).build();
    AdvanceReceipt receipt =
        blocking.withDeadlineAfter(CALL_TIMEOUT_MS, TimeUnit.MILLISECONDS).advance(request).getReceipt();
    for (EventRefusal refusal : receipt.getRefusalsList()) {
      throw new RefusedException(refusal.getCode(), refusal.getField(), refusal.getMessage());
    }
    return receipt;
  }

  private synchronized void cancel(long operationId) {
    if (pending.remove(operationId) != null) {
      cancelling.put(operationId, false);
      notifyAll();
    }
  }

  /**
   * Ends the session here and at the daemon, which cancels its operations. A session that another client has taken over is
   * left alone. Throws StatusRuntimeException.
   */
  @Override
  public void close() {
    end(new EndedException(EndedException.Reason.CLOSED, "the session is closed"));
    try {
      thread.join(); // a stream that it opened later would begin a new session
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
    try {
      if (error instanceof EndedException ended && ended.reason == EndedException.Reason.TAKEN_OVER) {
        return;
      }
      CloseSessionRequest request = CloseSessionRequest.newBuilder().setSessionId(id).build();
      blocking.withDeadlineAfter(CALL_TIMEOUT_MS, TimeUnit.MILLISECONDS).closeSession(request);
    } catch (StatusRuntimeException failed) {
      if (failed.getStatus().getCode() != Status.Code.NOT_FOUND) {
        throw failed;
      }
    } finally {
      if (owned != null) {
        owned.shutdownNow();
      }
    }
  }

  private void end(RuntimeException cause) {
    List<Wait> waits;
    synchronized (this) {
      if (error != null) {
        return;
      }
      error = cause;
      waits = new ArrayList<>(pending.values());
      pending.clear();
      notifyAll();
    }
    waits.forEach(wait -> wait.result.completeExceptionally(cause));
  }

  /** Connects again until the session ends. */
  private void run() {
    long giveUpMs = options.giveUpAfter == null ? Long.MAX_VALUE : options.giveUpAfter.toMillis();
    long patienceMs = Math.min(options.openTimeout.toMillis(), giveUpMs);
    try {
      for (long ceilingMs = PAUSE_MS_MIN; ; ceilingMs = Math.min(2 * ceilingMs, Math.min(PAUSE_MS_MAX, patienceMs))) {
        Connection connection = new Connection(patienceMs);
        Status ended = connection.serve();
        if (connection.isOpened) {
          ceilingMs = PAUSE_MS_MIN;
        }
        disconnected(connection, ended, giveUpMs);
        if (!pause(ThreadLocalRandom.current().nextLong(ceilingMs))) {
          return;
        }
        if (channel instanceof ManagedChannel managed) {
          managed.resetConnectBackoff(); // gRPC's own pauses grow to two minutes
        }
      }
    } catch (RuntimeException failed) {
      end(failed);
    } catch (InterruptedException interrupted) {
      end(new IllegalStateException("the session's thread was interrupted", interrupted));
    }
  }

  /** Ends the session if connecting again does not help. */
  private void disconnected(Connection connection, Status ended, long giveUpMs) {
    if (!retried(ended)) {
      end(ended.asRuntimeException());
      return;
    }
    List<Wait> refused = List.of();
    boolean isGivenUp;
    synchronized (this) {
      if (connection.isOpened || pending.isEmpty()) {
        reachedMs = nowMs();
      }
      // The daemon's own refusals have details. One without is gRPC's: the message was too large.
      if (ended.getCode() == Status.Code.RESOURCE_EXHAUSTED && !connection.hasDetails && !batch.isEmpty()) {
        room = roomMax = Math.max(1, batch.size() / 2);
        refused = batch.size() == 1 ? take(batch) : refused;
      }
      isGivenUp = nowMs() - reachedMs >= giveUpMs;
    }
    refuse(refused, Status.Code.RESOURCE_EXHAUSTED.value(), "", "refused for its size: " + ended);
    if (isGivenUp) {
      String cause = ended.getCode() + ", " + ended.getDescription(); // a Status as text has a stack trace
      String message = "no connection for " + options.giveUpAfter.toMillis() + " ms: " + cause;
      end(new EndedException(EndedException.Reason.UNREACHABLE, message));
    }
  }

  /**
   * Removes those of these waits that are still pending, and returns them. Call it with the lock, in the same block that
   * clears `batch`: a wait that is left in `pending` would be sent again.
   */
  private List<Wait> take(List<Wait> waits) {
    return waits.stream().filter(wait -> pending.remove(wait.id()) != null).toList();
  }

  /** Fails these waits. Call it without the lock: it runs callbacks. */
  private void refuse(List<Wait> waits, int code, String field, String message) {
    waits.forEach(wait -> wait.result.completeExceptionally(new RefusedException(code, field, message)));
  }

  /** True: the pause is over. False: the session has ended. */
  private synchronized boolean pause(long pauseMs) throws InterruptedException {
    long untilMs = nowMs() + pauseMs;
    for (long leftMs; error == null && (leftMs = untilMs - nowMs()) > 0; ) {
      wait(leftMs);
    }
    return error == null;
  }

  /** As the comment at the head of purgatory_service.proto says of streams. OK: the daemon ended the stream. */
  private static boolean retried(Status status) {
    return switch (status.getCode()) {
      case OK, UNAVAILABLE, RESOURCE_EXHAUSTED, CANCELLED, DEADLINE_EXCEEDED, ABORTED, INTERNAL, UNKNOWN -> true;
      default -> false;
    };
  }

  private static long nowMs() {
    return System.nanoTime() / 1_000_000;
  }

  /**
   * One stream, from its opening to its end. The session's thread sends; the channel's threads receive, one message at a
   * time. Two never overlap: what an old one would still take from `pending` would be lost.
   */
  private final class Connection implements ClientResponseObserver<SessionRequest, SessionResponse> {
    private final long patienceMs;
    private ClientCallStreamObserver<SessionRequest> requests;

    // Guarded by the session, as its own fields are.
    private boolean isOpened;
    private boolean hasDetails; // the status with which it ended
    private Status ended;
    private long heardMs = nowMs();
    private long spokenMs = nowMs();

    Connection(long patienceMs) {
      this.patienceMs = patienceMs;
    }

    /** Returns how it ended. */
    Status serve() throws InterruptedException {
      stub.session(this);
      synchronized (Session.this) {
        OpenSession.Builder open = OpenSession.newBuilder().setSessionId(id).setLastSequence(lastSequence);
        open.setIncarnation(daemon.getIncarnation());
        requests.onNext(SessionRequest.newBuilder().setOpen(open).build());
      }
      for (SessionRequest message; (message = next()) != null; ) {
        requests.onNext(message);
      }
      requests.cancel("the client ends this stream", null);
      synchronized (Session.this) {
        while (ended == null) {
          Session.this.wait(); // until nothing more can be received
        }
        return ended;
      }
    }

    /** The next message, as soon as there is one; null: the stream has ended, or must be ended. */
    private SessionRequest next() throws InterruptedException {
      SessionRequest message = null;
      while (message == null) {
        List<Wait> tooLarge = new ArrayList<>();
        synchronized (Session.this) {
          long nowMs = nowMs();
          long intervalMs = daemon.getHeartbeatIntervalMs();
          long wakeMs = heardMs + (isOpened ? SILENT_INTERVALS * intervalMs : patienceMs);
          if (ended != null || error != null || wakeMs <= nowMs) {
            return null;
          }
          if (isOpened) {
            message = due(nowMs, tooLarge);
            tooLarge = take(tooLarge);
            spokenMs = message != null ? nowMs : spokenMs;
            wakeMs = Math.min(wakeMs, spokenMs + intervalMs);
            wakeMs = notBeforeMs > nowMs ? Math.min(wakeMs, notBeforeMs) : wakeMs;
          }
          if (message == null && tooLarge.isEmpty()) {
            Session.this.wait(Math.max(1, wakeMs - nowMs));
          }
        }
        String why = "the operation is larger than a message may be (" + messageBytesMax() + " bytes): split it";
        refuse(tooLarge, Status.Code.RESOURCE_EXHAUSTED.value(), "", why);
      }
      return message;
    }

    private SessionRequest due(long nowMs, List<Wait> tooLarge) {
      if (acknowledged < lastSequence) {
        acknowledged = lastSequence;
        AcknowledgeResults results = AcknowledgeResults.newBuilder().setSequence(lastSequence).build();
        return SessionRequest.newBuilder().setAcknowledge(results).build();
      }
      CancelOperations.Builder cancel = CancelOperations.newBuilder();
      cancelling.entrySet().stream().filter(one -> !one.getValue()).limit(BATCH_MAX).forEach(
          one -> {
            one.setValue(true);
            cancel.addOperationIds(one.getKey());
          });
      if (cancel.getOperationIdsCount() > 0) {
        return SessionRequest.newBuilder().setCancel(cancel).build();
      }
      if (batch.isEmpty() && notBeforeMs <= nowMs) {
        OperationRows rows = nextBatch(tooLarge);
        if (rows.getOperationsCount() > 0) {
          return SessionRequest.newBuilder().setRegister(RegisterBatch.newBuilder().setRows(rows)).build();
        }
      }
      if (spokenMs + daemon.getHeartbeatIntervalMs() <= nowMs) {
        return SessionRequest.newBuilder().setHeartbeat(Heartbeat.getDefaultInstance()).build();
      }
      return null;
    }

    /**
     * As many operations as fit a message. One batch is under way at a time: one that is refused can then be sent again
     * under its ids. Timeouts count from the submission.
     */
    private OperationRows nextBatch(List<Wait> tooLarge) {
      OperationRows.Builder rows = OperationRows.newBuilder();
      batch = new ArrayList<>();
      long bytes = 0;
      for (Wait wait : pending.tailMap(sent, false).values()) {
        Operation.Builder operation = wait.operation.toBuilder();
        if (!operation.hasTimeoutMs() || operation.getTimeoutMs() > 0) { // 0 asks for an answer at once
          operation.setTimeoutMs(Math.max(1, wait.leftMs(daemon.getTimeoutMsDefault())));
        }
        long size = operation.build().getSerializedSize() + 8; // its tag and length
        if (size > messageBytesMax()) {
          tooLarge.add(wait);
          continue;
        }
        bytes += size;
        if (batch.size() == Math.min(room, daemon.getOperationsPerBatchMax()) || bytes > messageBytesMax()) {
          break;
        }
        if (wait.sent.isSent) {
          wait.sent.beforeMs = nowMs() - wait.submittedMs;
        }
        wait.sent.isSent = true;
        batch.add(wait);
        rows.addOperations(operation);
      }
      return rows.build();
    }

    private long messageBytesMax() {
      long stated = daemon.getMessageBytesMax();
      return (stated > 0 ? stated : MESSAGE_BYTES_MAX) - ENVELOPE_BYTES;
    }

    @Override
    public void beforeStart(ClientCallStreamObserver<SessionRequest> stream) {
      requests = stream;
    }

    @Override
    public void onNext(SessionResponse message) {
      synchronized (Session.this) {
        heardMs = nowMs();
      }
      switch (message.getMessageCase()) {
        case OPENED -> resume(message.getOpened());
        case RECEIPT -> receive(message.getReceipt());
        case RESULTS -> deliver(message.getResults());
        case CANCELLED -> receive(message.getCancelled());
        case EXTENDED -> extend(message.getExtended());
        case GOING_AWAY -> leave(message.getGoingAway().getReason());
        default -> {} // a heartbeat, or a message of a later version
      }
    }

    /**
     * What the daemon does not know is sent again. A new session knows nothing, and numbers its results from 1. If it knows
     * operations all the same, they are another client's.
     */
    private void resume(SessionOpened opened) {
      boolean isForeign = false;
      synchronized (Session.this) {
        sent = opened.getHighestOperationId();
        if (!opened.getResumed() || !daemon.getIncarnation().equals(opened.getIncarnation())) {
          isForeign = sent > 0;
          lastSequence = 0;
          cancelling.clear();
        }
        cancelling.replaceAll((operationId, isSent) -> false);
        batch = List.of();
        notBeforeMs = nowMs();
        acknowledged = lastSequence;
        daemon = opened;
        isOpened = !isForeign;
        Session.this.notifyAll();
      }
      if (isForeign) {
        String message = "another client uses the session " + id + ": choose a unique id";
        end(Status.ALREADY_EXISTS.withDescription(message).asRuntimeException());
      }
    }

    /** Operations that are refused one by one also get results, so only a batch refused as a whole matters here. */
    private void receive(Receipt receipt) {
      OperationRefusal refusal = receipt.getBatchRefusal();
      boolean isExhausted = refusal.getCode() == Status.Code.RESOURCE_EXHAUSTED.value();
      boolean again = isExhausted || refusal.getCode() == Status.Code.UNAVAILABLE.value();
      List<Wait> refused = List.of();
      synchronized (Session.this) {
        if (again) {
          notBeforeMs = nowMs() + REFUSED_PAUSE_MS;
          room = Math.max(1, batch.size() / 2);
        } else if (!receipt.hasBatchRefusal() && !batch.isEmpty()) {
          sent = batch.get(batch.size() - 1).id();
          room = Math.min(2 * room, roomMax);
        }
        if (receipt.hasBatchRefusal()) {
          long defaultMs = daemon.getTimeoutMsDefault();
          refused = take(batch.stream().filter(wait -> !again || wait.leftMs(defaultMs) <= 0).toList());
        }
        batch = List.of();
        Session.this.notifyAll();
      }
      refuse(refused, refusal.getCode(), refusal.getField(), refusal.getMessage());
    }

    private void receive(CancelReceipt receipt) {
      synchronized (Session.this) {
        cancelling.keySet().removeAll(receipt.getCancelledOperationIdsList());
        cancelling.keySet().removeAll(receipt.getNotPendingOperationIdsList());
      }
    }

    /** More time that any caller gave to operations: it is sent if they are registered again. */
    private void extend(OperationsExtended extended) {
      synchronized (Session.this) {
        for (long operationId : extended.getOperationIdsList()) {
          pending.computeIfPresent(operationId, (key, wait) -> wait.extended(extended.getTimeoutMs(), daemon));
        }
      }
    }

    private void deliver(ResultBatch batch) {
      long sequence = batch.getFirstSequence() - 1;
      for (Result result : batch.getRows().getResultsList()) {
        sequence++;
        Wait wait;
        synchronized (Session.this) {
          wait = sequence > lastSequence ? pending.remove(result.getOperationId()) : null;
        }
        if (wait != null && result.hasRefusal()) {
          OperationRefusal refusal = result.getRefusal();
          refuse(List.of(wait), refusal.getCode(), refusal.getField(), refusal.getMessage());
        } else if (wait != null) {
          long waitedMs = result.getWaitedMs() + wait.sent.beforeMs;
          wait.result.complete(new WaitResult(result.toBuilder().setWaitedMs(waitedMs).build()));
        }
      }
      synchronized (Session.this) { // only now: what is acknowledged must have been delivered
        lastSequence = Math.max(lastSequence, sequence);
        Session.this.notifyAll();
      }
    }

    private void leave(GoingAway.Reason reason) {
      switch (reason) {
        case REASON_TAKEN_OVER ->
            end(new EndedException(EndedException.Reason.TAKEN_OVER, "another client opened the session"));
        case REASON_SESSION_CLOSED -> end(new EndedException(EndedException.Reason.CLOSED, "the session was closed"));
        default -> {} // the stream ends, and the next one resumes the session
      }
    }

    @Override
    public void onError(Throwable failed) {
      Metadata trailers = Status.trailersFromThrowable(failed);
      hasDetails = trailers != null && trailers.containsKey(DETAILS);
      ended(Status.fromThrowable(failed));
    }

    @Override
    public void onCompleted() {
      ended(Status.OK);
    }

    private void ended(Status status) {
      synchronized (Session.this) {
        ended = status;
        Session.this.notifyAll();
      }
    }
  }
}
