// Package purgatory waits by one session, which it resumes however often the connection breaks: each operation is
// registered once, and each result is delivered once. The rules are in docs/grpc.md, "How to write a client".
package purgatory

//go:generate go run github.com/bufbuild/buf/cmd/buf@v1.75.0 generate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "purgatory.example/client/gen/purgatory/v1"
)

const (
	batchMax        = 1_000
	messageBytesMax = 4 << 20  // of a daemon that states no limit
	resultBytesMax  = 64 << 20 // results may be larger than gRPC accepts by default
	envelopeBytes   = 256      // of a message without its operations, at most
	pauseMin        = 50 * time.Millisecond
	pauseMax        = 5 * time.Second
	refusedPause    = time.Second
	silentIntervals = 3
)

// ErrTakenOver means that another client opened the session, which now belongs to it.
var ErrTakenOver = errors.New("another client opened the session")

// ErrClosed means that the session was closed, which cancelled its operations.
var ErrClosed = errors.New("the session is closed")

// ErrUnreachable means that there was no connection for Options.GiveUpAfter.
var ErrUnreachable = errors.New("the daemon cannot be reached")

// Options of a session. The zero value selects the defaults.
type Options struct {
	GiveUpAfter time.Duration // end the session after this long without a connection; 0: 30 s; negative: never
	OpenTimeout time.Duration // how long the daemon may take to open the session before the next attempt; 0: 10 s
}

// Token is a bearer token, for grpc.WithPerRPCCredentials. It is sent over TLS only.
type Token string

func (t Token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

func (t Token) RequireTransportSecurity() bool { return true }

// Session is safe for use by many goroutines. Its state is in memory: a program that must survive its own crash stores
// the operations, and the last sequence number and incarnation with their results, before it acknowledges.
type Session struct {
	conn    grpc.ClientConnInterface
	dialled *grpc.ClientConn // to be closed with the session; nil: it belongs to the caller
	stub    pb.PurgatoryServiceClient
	id      string
	options Options
	stop    context.CancelFunc
	done    chan struct{} // closed when no stream will be opened any more
	wake    chan struct{} // there may be something to send

	mu           sync.Mutex
	opened       *pb.SessionOpened // of the last connection
	pending      map[uint64]*wait
	cancelling   map[uint64]bool // cancels that the daemon has not answered; true: sent on this connection
	issued       uint64          // the highest operation id given out
	sent         uint64          // operations up to this id need not be sent on this connection
	batch        []*wait         // the batch that has no receipt yet
	room         int             // operations in the next batch: fewer after a refusal, more after each success
	roomMax      int             // fewer after a batch was refused for its size
	notBefore    time.Time       // when batches may be sent again
	lastSequence uint64          // of the results that were delivered
	acknowledged uint64          // on this connection
	reached      time.Time       // when there was last a connection, or no need for one
	err          error
}

type wait struct {
	operation *pb.Operation
	submitted time.Time
	timeoutMs int64 // negative: not known
	result    chan *pb.Result
	isSent    bool
	beforeMs  int64 // how long it had waited when it was sent again; 0: it was sent once
}

func (w *wait) leftMs() int64 { return w.timeoutMs - time.Since(w.submitted).Milliseconds() }

// Open begins a session. The id must be unique among all clients, such as a UUID.
func Open(conn grpc.ClientConnInterface, id string, options Options) *Session {
	options.GiveUpAfter = cmp.Or(options.GiveUpAfter, 30*time.Second)
	options.OpenTimeout = cmp.Or(options.OpenTimeout, 10*time.Second)
	ctx, stop := context.WithCancel(context.Background())
	s := &Session{conn: conn, stub: pb.NewPurgatoryServiceClient(conn), id: id, options: options, stop: stop,
		done: make(chan struct{}), wake: make(chan struct{}, 1), opened: &pb.SessionOpened{},
		pending: map[uint64]*wait{}, cancelling: map[uint64]bool{}, room: batchMax, roomMax: batchMax}
	go s.run(ctx)
	return s
}

// Submit registers a copy of an operation. The channel gets its one result: with OUTCOME_REFUSED if the daemon refuses the
// operation, or if it is too large for a message. The channel is closed without a result when the session ends; Err says
// why.
func (s *Session) Submit(operation *pb.Operation) <-chan *pb.Result {
	return s.submit(operation).result
}

func (s *Session) submit(operation *pb.Operation) *wait {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &wait{operation: proto.CloneOf(operation), submitted: time.Now(), timeoutMs: -1, result: make(chan *pb.Result, 1)}
	if s.err != nil {
		close(w.result)
		return w
	}
	if len(s.pending) == 0 {
		s.reached = w.submitted
	}
	if operation.TimeoutMs != nil {
		w.timeoutMs = *operation.TimeoutMs
	}
	s.issued++
	w.operation.OperationId = s.issued
	s.pending[s.issued] = w
	s.notify()
	return w
}

// WaitFor is Wait for an operation of the generated code, of any kind.
func (s *Session) WaitFor(ctx context.Context, operation *pb.Operation) (*Result, error) {
	w := s.submit(operation)
	select {
	case result, ok := <-w.result:
		if !ok {
			return nil, s.Err()
		}
		if refusal := result.Refusal; refusal != nil {
			return nil, &RefusedError{codes.Code(refusal.Code), refusal.Field, refusal.Message}
		}
		return &Result{result}, nil
	case <-ctx.Done():
		s.cancel(w.operation.OperationId)
		return nil, ctx.Err()
	}
}

func (s *Session) cancel(operationID uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending[operationID] != nil {
		delete(s.pending, operationID)
		s.cancelling[operationID] = false
		s.notify()
	}
}

// Err says why the session ended; nil while it goes on.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the session here and at the daemon, which cancels its operations. A session that another client has taken
// over is left alone.
func (s *Session) Close(ctx context.Context) error {
	s.end(ErrClosed)
	<-s.done
	if s.dialled != nil {
		defer s.dialled.Close()
	}
	if errors.Is(s.Err(), ErrTakenOver) {
		return nil
	}
	_, err := s.stub.CloseSession(ctx, &pb.CloseSessionRequest{SessionId: s.id})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

func (s *Session) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	for id, w := range s.pending {
		close(w.result)
		delete(s.pending, id)
	}
	s.stop()
}

func (s *Session) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run connects again until the session ends.
func (s *Session) run(ctx context.Context) {
	defer close(s.done)
	patience := s.options.OpenTimeout
	if s.options.GiveUpAfter > 0 {
		patience = min(patience, s.options.GiveUpAfter)
	}
	for ceiling := pauseMin; ; ceiling = min(2*ceiling, pauseMax, patience) {
		opened, err := s.connect(ctx, patience)
		if opened {
			ceiling = pauseMin
		}
		if err := s.disconnected(opened, err); err != nil {
			s.end(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(rand.N(ceiling)):
		}
		if conn, ok := s.conn.(*grpc.ClientConn); ok {
			conn.ResetConnectBackoff() // gRPC's own pauses grow to two minutes
		}
	}
}

// disconnected returns the error that ends the session; nil: it connects again.
func (s *Session) disconnected(opened bool, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if opened || len(s.pending) == 0 {
		s.reached = time.Now()
	}
	if errors.Is(err, ErrTakenOver) || errors.Is(err, ErrClosed) || !retried(status.Code(err)) {
		return err
	}
	// The daemon's own refusals have details. One without is gRPC's: the message was too large.
	state := status.Convert(err)
	if state.Code() == codes.ResourceExhausted && len(state.Details()) == 0 && len(s.batch) > 0 {
		s.roomMax = max(1, len(s.batch)/2)
		s.room = s.roomMax
		if len(s.batch) == 1 {
			s.refuse(s.batch[0], &pb.OperationRefusal{Code: int32(state.Code()), Message: state.Message()})
		}
	}
	if limit := s.options.GiveUpAfter; limit > 0 && time.Since(s.reached) >= limit {
		return fmt.Errorf("%w: no connection for %v: %w", ErrUnreachable, limit, err)
	}
	return nil
}

// retried implements the rule for streams at the head of purgatory_service.proto.
func retried(code codes.Code) bool {
	switch code {
	case codes.OK, codes.Unavailable, codes.ResourceExhausted, codes.Canceled, codes.DeadlineExceeded, codes.Aborted,
		codes.Internal, codes.Unknown:
		return true
	}
	return false
}

// connect is one connection, from its opening to its end.
func (s *Session) connect(parent context.Context, patience time.Duration) (opened bool, err error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	silence := time.AfterFunc(patience, cancel)
	defer silence.Stop()
	stream, err := s.stub.Session(ctx, grpc.MaxCallRecvMsgSize(resultBytesMax))
	if err != nil {
		return false, err
	}
	opening := &pb.OpenSession{SessionId: s.id, LastSequence: s.lastSequence, Incarnation: s.opened.Incarnation}
	if err := stream.Send(&pb.SessionRequest{Message: &pb.SessionRequest_Open{Open: opening}}); err != nil {
		_, err = stream.Recv() // Send reports only that the stream has ended, Recv why
		return false, err
	}
	first, err := stream.Recv()
	if err != nil {
		return false, err
	}
	daemon := first.GetOpened()
	if daemon == nil {
		return false, status.Error(codes.FailedPrecondition, "the stream did not begin with `opened`")
	}
	if err := s.resume(daemon); err != nil {
		return false, err
	}
	interval := time.Duration(daemon.HeartbeatIntervalMs) * time.Millisecond
	written := make(chan struct{})
	go func() {
		defer close(written)
		defer cancel() // a stream that cannot be written to has ended
		s.write(ctx, stream, interval)
	}()
	defer func() {
		cancel()
		<-written // before the next connection: whatever it took from now on would be lost
	}()
	for {
		silence.Reset(silentIntervals * interval)
		message, err := stream.Recv()
		if err != nil {
			return true, err
		}
		if err := s.receive(message); err != nil {
			return true, err
		}
	}
}

// resume decides what is sent again: what the daemon does not know. A new session knows nothing, and numbers its results
// from 1. If it knows operations all the same, they are another client's.
func (s *Session) resume(opened *pb.SessionOpened) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !opened.Resumed || s.opened.Incarnation != opened.Incarnation {
		if opened.HighestOperationId > 0 {
			return status.Errorf(codes.AlreadyExists, "another client uses the session %s: choose a unique id", s.id)
		}
		s.lastSequence = 0
		clear(s.cancelling)
	}
	s.sent = opened.HighestOperationId
	for id := range s.cancelling {
		s.cancelling[id] = false
	}
	s.opened, s.batch, s.notBefore, s.acknowledged = opened, nil, time.Time{}, s.lastSequence
	return nil
}

func (s *Session) receive(message *pb.SessionResponse) error {
	switch m := message.Message.(type) {
	case *pb.SessionResponse_Results:
		s.deliver(m.Results.FirstSequence, m.Results.GetRows().GetResults())
	case *pb.SessionResponse_Receipt:
		s.receipt(m.Receipt.BatchRefusal)
	case *pb.SessionResponse_Cancelled:
		s.cancelled(m.Cancelled)
	case *pb.SessionResponse_Extended:
		s.extended(m.Extended)
	case *pb.SessionResponse_GoingAway:
		switch m.GoingAway.Reason {
		case pb.GoingAway_REASON_TAKEN_OVER:
			return ErrTakenOver
		case pb.GoingAway_REASON_SESSION_CLOSED:
			return ErrClosed
		}
	}
	return nil
}

func (s *Session) deliver(sequence uint64, results []*pb.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, result := range results {
		if w := s.pending[result.OperationId]; w != nil && sequence > s.lastSequence {
			result.WaitedMs += w.beforeMs
			w.result <- result // has room for one
			delete(s.pending, result.OperationId)
		}
		s.lastSequence = max(s.lastSequence, sequence)
		sequence++
	}
	s.notify()
}

// receipt handles the refusal of a whole batch; nil: it was accepted. Operations that are refused one by one get results.
func (s *Session) receipt(refusal *pb.OperationRefusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	code := codes.Code(refusal.GetCode())
	again := code == codes.ResourceExhausted || code == codes.Unavailable
	if again {
		s.notBefore = time.Now().Add(refusedPause)
		s.room = max(1, len(s.batch)/2)
	} else if refusal == nil && len(s.batch) > 0 {
		s.sent = s.batch[len(s.batch)-1].operation.OperationId
		s.room = min(2*s.room, s.roomMax)
	}
	for _, w := range s.batch {
		if refusal != nil && (!again || w.leftMs() <= 0) {
			s.refuse(w, refusal)
		}
	}
	s.batch = nil
	s.notify()
}

func (s *Session) refuse(w *wait, refusal *pb.OperationRefusal) {
	if id := w.operation.OperationId; s.pending[id] != nil {
		delete(s.pending, id)
		w.result <- &pb.Result{OperationId: id, Outcome: pb.Outcome_OUTCOME_REFUSED, Refusal: refusal}
	}
}

func (s *Session) cancelled(receipt *pb.CancelReceipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range append(receipt.CancelledOperationIds, receipt.NotPendingOperationIds...) {
		delete(s.cancelling, id)
	}
}

// extended notes more time that any caller gave to operations: it is sent if they are registered again.
func (s *Session) extended(extended *pb.OperationsExtended) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range extended.OperationIds {
		if w := s.pending[id]; w != nil {
			w.timeoutMs = max(w.timeoutMs, time.Since(w.submitted).Milliseconds()+extended.TimeoutMs)
		}
	}
}

// write sends what there is to send, or heartbeats, until the stream ends.
func (s *Session) write(ctx context.Context, stream pb.PurgatoryService_SessionClient, interval time.Duration) {
	for {
		message, again := s.next()
		if message == nil {
			timer := time.NewTimer(min(interval, again))
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-s.wake:
				timer.Stop()
				continue
			case <-timer.C:
			}
			if again < interval {
				continue
			}
			message = &pb.SessionRequest{Message: &pb.SessionRequest_Heartbeat{Heartbeat: &pb.Heartbeat{}}}
		}
		if stream.Send(message) != nil {
			return
		}
	}
}

// next returns the next message; nil: there is none until it is woken, or until that time has passed.
func (s *Session) next() (message *pb.SessionRequest, again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.acknowledged < s.lastSequence {
		s.acknowledged = s.lastSequence
		results := &pb.AcknowledgeResults{Sequence: s.lastSequence}
		return &pb.SessionRequest{Message: &pb.SessionRequest_Acknowledge{Acknowledge: results}}, 0
	}
	cancel := &pb.CancelOperations{}
	for id, sent := range s.cancelling {
		if !sent && len(cancel.OperationIds) < batchMax {
			s.cancelling[id] = true
			cancel.OperationIds = append(cancel.OperationIds, id)
		}
	}
	if len(cancel.OperationIds) > 0 {
		return &pb.SessionRequest{Message: &pb.SessionRequest_Cancel{Cancel: cancel}}, 0
	}
	if left := time.Until(s.notBefore); left > 0 {
		return nil, left
	}
	rows := s.nextBatch()
	if len(rows) == 0 {
		return nil, time.Hour
	}
	batch := &pb.RegisterBatch{Shape: &pb.RegisterBatch_Rows{Rows: &pb.OperationRows{Operations: rows}}}
	return &pb.SessionRequest{Message: &pb.SessionRequest_Register{Register: batch}}, 0
}

// nextBatch returns as many operations as fit a message. One batch is under way at a time: one that is refused can then be
// sent again under its ids. Timeouts count from the submission.
func (s *Session) nextBatch() (rows []*pb.Operation) {
	if s.batch != nil {
		return nil
	}
	room := min(s.room, int(s.opened.OperationsPerBatchMax))
	bytesMax := int(cmp.Or(s.opened.MessageBytesMax, messageBytesMax)) - envelopeBytes
	bytes := 0
	for id := s.sent + 1; id <= s.issued && len(rows) < room; id++ {
		w := s.pending[id]
		if w == nil {
			continue
		}
		if w.operation.TimeoutMs == nil && s.opened.TimeoutMsDefault > 0 {
			w.timeoutMs = s.opened.TimeoutMsDefault
		}
		if w.timeoutMs > 0 {
			w.operation.TimeoutMs = proto.Int64(max(1, w.leftMs())) // 0 would ask for an answer at once
		}
		size := proto.Size(w.operation) + 8 // its tag and length
		if size > bytesMax {
			s.refuse(w, &pb.OperationRefusal{OperationId: id, Code: int32(codes.ResourceExhausted),
				Message: fmt.Sprintf("an operation of %d bytes; the daemon accepts %d: split it", size, bytesMax)})
			continue
		}
		if bytes += size; bytes > bytesMax {
			break
		}
		if w.isSent {
			w.beforeMs = time.Since(w.submitted).Milliseconds()
		}
		w.isSent = true
		rows, s.batch = append(rows, w.operation), append(s.batch, w)
	}
	return rows
}
