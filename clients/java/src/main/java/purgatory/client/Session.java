package purgatory.client;

import io.grpc.Channel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import purgatory.v1.AcknowledgeResults;
import purgatory.v1.CancelRequest;
import purgatory.v1.CancelResponse;
import purgatory.v1.CloseSessionRequest;
import purgatory.v1.GoingAway;
import purgatory.v1.Heartbeat;
import purgatory.v1.OpenSession;
import purgatory.v1.Operation;
import purgatory.v1.OperationRows;
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
 * result is delivered once. Written from the comments in proto/ alone.
 *
 * <p>Safe for use by many threads. What it knows is in memory: a program that must survive its own crash stores the
 * operations, and the last sequence number with their results, before it acknowledges.
 */
public final class Session implements AutoCloseable {
  private static final int BATCH_MAX = 1_000; // rows are large, and a message is 4 MiB at most
  private static final long PAUSE_MS_MIN = 50;
  private static final long PAUSE_MS_MAX = 5_000;
  private static final long CALL_TIMEOUT_MS = 30_000;
  private static final int SILENT_INTERVALS = 3;

  /** An operation that has no result yet. */
  private record Wait(Operation operation, CompletableFuture<Result> result) {}

  private final PurgatoryServiceGrpc.PurgatoryServiceStub stub;
  private final PurgatoryServiceGrpc.PurgatoryServiceBlockingStub blocking;
  private final String id;
  private final Thread thread;

  // Guarded by `this`, which is notified of every change that may give the session's thread something to do.
  private final TreeMap<Long, Wait> pending = new TreeMap<>();
  private long issued; // the highest operation id given out
  private long sent; // operations up to this id need not be sent on this connection
  private long inFlight; // the highest id of the batch that has no receipt yet; 0: there is none
  private long notBeforeMs; // batches wait until then
  private long lastSequence; // of the results that were delivered
  private long acknowledged; // as told on this connection
  private RuntimeException error; // why the session ended
  private volatile boolean takenOver; // by another client

  /** Begins a session, or resumes it. The id must be unique among all clients, such as a UUID. */
  public Session(Channel channel, String id) {
    this.stub = PurgatoryServiceGrpc.newStub(channel);
    this.blocking = PurgatoryServiceGrpc.newBlockingStub(channel);
    this.id = id;
    thread = new Thread(this::run, "purgatory-session-" + id);
    thread.setDaemon(true);
    thread.start();
  }

  /**
   * Registers an operation, whose id is set here. Cancelling the future cancels the operation. The future fails if the
   * session ends first. What follows on it runs on a thread of the channel, and must not block.
   */
  public CompletableFuture<Result> submit(Operation operation) {
    CompletableFuture<Result> result = new CompletableFuture<>();
    long operationId;
    synchronized (this) {
      if (error != null) {
        return CompletableFuture.failedFuture(error);
      }
      operationId = ++issued;
      Operation numbered = operation.toBuilder().setOperationId(operationId).build();
      pending.put(operationId, new Wait(numbered, result));
      notifyAll();
    }
    result.whenComplete(
        (value, failure) -> {
          if (result.isCancelled()) {
            cancel(operationId);
          }
        });
    return result;
  }

  private void cancel(long operationId) {
    synchronized (this) {
      boolean known = operationId <= Math.max(sent, inFlight);
      if (!known) {
        pending.remove(operationId);
        return;
      }
    }
    CancelRequest request = CancelRequest.newBuilder().setSessionId(id).addOperationIds(operationId).build();
    // If this fails, the operation's own timeout ends it.
    stub.withDeadlineAfter(CALL_TIMEOUT_MS, TimeUnit.MILLISECONDS).cancel(request, new Unanswered<CancelResponse>());
  }

  /**
   * Ends the session here and at the daemon, which cancels what is pending in it; if another client has opened it, it is
   * left to that one. Throws StatusRuntimeException.
   */
  @Override
  public void close() {
    end(new IllegalStateException("the session is closed"));
    try {
      thread.join(); // a stream that it opened later would begin a new session
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
    if (takenOver) {
      return;
    }
    try {
      CloseSessionRequest request = CloseSessionRequest.newBuilder().setSessionId(id).build();
      blocking.withDeadlineAfter(CALL_TIMEOUT_MS, TimeUnit.MILLISECONDS).closeSession(request);
    } catch (StatusRuntimeException failed) {
      if (failed.getStatus().getCode() != Status.Code.NOT_FOUND) {
        throw failed;
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
    try {
      for (long ceilingMs = PAUSE_MS_MIN; ; ceilingMs = Math.min(2 * ceilingMs, PAUSE_MS_MAX)) {
        Connection connection = new Connection();
        Status ended = connection.serve();
        if (!retried(ended)) {
          end(ended.asRuntimeException());
        }
        if (connection.opened != null) {
          ceilingMs = PAUSE_MS_MIN;
        }
        if (!pause(ThreadLocalRandom.current().nextLong(ceilingMs))) {
          return;
        }
      }
    } catch (RuntimeException failed) {
      end(failed);
    } catch (InterruptedException interrupted) {
      end(new IllegalStateException("the session's thread was interrupted", interrupted));
    }
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
    private ClientCallStreamObserver<SessionRequest> requests;

    // Guarded by the session, as its own fields are.
    private SessionOpened opened;
    private Status ended;
    private long heardMs = nowMs();
    private long spokenMs = nowMs();

    /** Returns how it ended. */
    Status serve() throws InterruptedException {
      stub.session(this);
      synchronized (Session.this) {
        OpenSession open = OpenSession.newBuilder().setSessionId(id).setLastSequence(lastSequence).build();
        requests.onNext(SessionRequest.newBuilder().setOpen(open).build());
      }
      for (SessionRequest message; (message = next()) != null; ) {
        requests.onNext(message);
      }
      requests.cancel("this stream is given up", null);
      synchronized (Session.this) {
        while (ended == null) {
          Session.this.wait(); // until nothing more can be received
        }
        return ended;
      }
    }

    /** The next message, as soon as there is one; null: the stream has ended, or is to be ended. */
    private SessionRequest next() throws InterruptedException {
      synchronized (Session.this) {
        while (ended == null && error == null) {
          long nowMs = nowMs();
          long silentMs = opened == null ? CALL_TIMEOUT_MS : SILENT_INTERVALS * opened.getHeartbeatIntervalMs();
          long wakeMs = heardMs + silentMs;
          if (wakeMs <= nowMs) {
            return null;
          }
          if (opened != null) {
            SessionRequest message = due(nowMs);
            if (message != null) {
              spokenMs = nowMs;
              return message;
            }
            wakeMs = Math.min(wakeMs, spokenMs + opened.getHeartbeatIntervalMs());
            wakeMs = notBeforeMs > nowMs ? Math.min(wakeMs, notBeforeMs) : wakeMs;
          }
          Session.this.wait(Math.max(1, wakeMs - nowMs));
        }
        return null;
      }
    }

    /** One batch is under way at a time, so that one that is refused can be sent again. */
    private SessionRequest due(long nowMs) {
      if (acknowledged < lastSequence) {
        acknowledged = lastSequence;
        AcknowledgeResults results = AcknowledgeResults.newBuilder().setSequence(lastSequence).build();
        return SessionRequest.newBuilder().setAcknowledge(results).build();
      }
      if (inFlight == 0 && notBeforeMs <= nowMs && issued > sent) {
        OperationRows.Builder rows = OperationRows.newBuilder();
        int room = Math.min(BATCH_MAX, opened.getOperationsPerBatchMax());
        pending.tailMap(sent, false).values().stream().limit(room).forEach(wait -> rows.addOperations(wait.operation));
        if (rows.getOperationsCount() > 0) {
          inFlight = rows.getOperations(rows.getOperationsCount() - 1).getOperationId();
          RegisterBatch batch = RegisterBatch.newBuilder().setBatchId(inFlight).setRows(rows).build();
          return SessionRequest.newBuilder().setRegister(batch).build();
        }
      }
      if (spokenMs + opened.getHeartbeatIntervalMs() <= nowMs) {
        return SessionRequest.newBuilder().setHeartbeat(Heartbeat.getDefaultInstance()).build();
      }
      return null;
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
        case GOING_AWAY -> leave(message.getGoingAway().getReason());
        default -> {} // a heartbeat, or what a later version says
      }
    }

    /** What the daemon does not know is sent again. A new session knows nothing, and numbers its results from 1. */
    private void resume(SessionOpened daemon) {
      synchronized (Session.this) {
        if (!daemon.getResumed()) {
          lastSequence = 0;
        }
        sent = daemon.getHighestOperationId();
        inFlight = 0;
        notBeforeMs = nowMs();
        acknowledged = lastSequence;
        opened = daemon;
        Session.this.notifyAll();
      }
    }

    /** Operations that are refused one by one also get results, so only a batch refused as a whole matters here. */
    private void receive(Receipt receipt) {
      Status refused = Status.OK;
      if (receipt.hasBatchRefusal()) {
        var refusal = receipt.getBatchRefusal();
        String why = refusal.getField() + ": " + refusal.getMessage();
        refused = Status.fromCodeValue(refusal.getCode()).withDescription(why);
      }
      synchronized (Session.this) {
        if (refused.isOk()) {
          sent = Math.max(sent, inFlight);
        } else {
          notBeforeMs = nowMs() + 1_000;
        }
        inFlight = 0;
        Session.this.notifyAll();
      }
      switch (refused.getCode()) {
        case OK, RESOURCE_EXHAUSTED, UNAVAILABLE -> {}
        default -> end(refused.asRuntimeException());
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
        if (wait != null) {
          wait.result.complete(result);
        }
      }
      synchronized (Session.this) { // only now: what is acknowledged must have been delivered
        lastSequence = Math.max(lastSequence, sequence);
        Session.this.notifyAll();
      }
    }

    private void leave(GoingAway.Reason reason) {
      switch (reason) {
        case REASON_TAKEN_OVER -> {
          takenOver = true;
          end(new IllegalStateException("another client opened the session"));
        }
        case REASON_SESSION_CLOSED -> end(new IllegalStateException("the session was closed"));
        default -> {} // the stream ends, and the next one resumes the session
      }
    }

    @Override
    public void onError(Throwable failed) {
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

  /** For a call whose answer changes nothing. */
  private static final class Unanswered<T> implements StreamObserver<T> {
    @Override
    public void onNext(T answer) {}

    @Override
    public void onError(Throwable failed) {}

    @Override
    public void onCompleted() {}
  }
}
