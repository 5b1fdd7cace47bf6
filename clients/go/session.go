// Package purgatory waits by one session, which it resumes however often the connection breaks: each operation is
// registered once, and each result is delivered once. Written from the comments in proto/ alone.
package purgatory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "purgatory.example/client/gen/purgatory/v1"
)

const (
	batchMax        = 1_000 // rows are large, and a message is 4 MiB at most
	pauseMin        = 50 * time.Millisecond
	pauseMax        = 5 * time.Second
	openTimeout     = 30 * time.Second
	silentIntervals = 3
)

// ErrTakenOver: another client opened the session, which is now that one's.
var ErrTakenOver = errors.New("another client opened the session")

// ErrClosed: the session was closed, and what was pending in it was cancelled.
var ErrClosed = errors.New("the session is closed")

// Session is safe for use by many goroutines. What it knows is in memory: a program that must survive its own crash
// stores the operations, and the last sequence number with their results, before it acknowledges.
type Session struct {
	stub pb.PurgatoryServiceClient
	id   string
	stop context.CancelFunc
	wake chan struct{} // there may be something to send

	mu           sync.Mutex
	pending      map[uint64]*wait
	issued       uint64 // the highest operation id given out
	sent         uint64 // operations up to this id need not be sent on this connection
	inFlight     uint64 // the highest id of the batch that has no receipt yet; 0: there is none
	notBefore    time.Time
	lastSequence uint64 // of the results that were delivered
	acknowledged uint64 // as told on this connection
	err          error
}

type wait struct {
	operation *pb.Operation
	result    chan *pb.Result
}

// Open begins a session, or resumes it. The id must be unique among all clients, such as a UUID.
func Open(conn grpc.ClientConnInterface, id string) *Session {
	ctx, stop := context.WithCancel(context.Background())
	s := &Session{stub: pb.NewPurgatoryServiceClient(conn), id: id, stop: stop,
		wake: make(chan struct{}, 1), pending: map[uint64]*wait{}}
	go s.run(ctx)
	return s
}

// Submit registers an operation, whose id it sets. The channel gets its one result; it is closed without one when the
// session ends, and Err says why.
func (s *Session) Submit(operation *pb.Operation) <-chan *pb.Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &wait{operation, make(chan *pb.Result, 1)}
	if s.err != nil {
		close(w.result)
		return w.result
	}
	s.issued++
	operation.OperationId = s.issued
	s.pending[s.issued] = w
	s.notify()
	return w.result
}

// Wait is Submit for those who want to wait here. If ctx ends first, the operation is cancelled.
func (s *Session) Wait(ctx context.Context, operation *pb.Operation) (*pb.Result, error) {
	results := s.Submit(operation)
	select {
	case result, ok := <-results:
		if !ok {
			return nil, s.Err()
		}
		return result, nil
	case <-ctx.Done():
		go s.cancel(operation.OperationId)
		return nil, ctx.Err()
	}
}

func (s *Session) cancel(operationID uint64) {
	s.mu.Lock()
	if operationID > max(s.sent, s.inFlight) {
		delete(s.pending, operationID) // was never sent
	}
	s.mu.Unlock()
	ctx, done := context.WithTimeout(context.Background(), openTimeout)
	defer done()
	// If this fails, the operation's own timeout ends it.
	_, _ = s.stub.Cancel(ctx, &pb.CancelRequest{SessionId: s.id, OperationIds: []uint64{operationID}})
}

// Err says why the session ended; nil while it goes on.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the session here and at the daemon, which cancels what is pending in it; if another client has opened it, it
// is left to that one.
func (s *Session) Close(ctx context.Context) error {
	s.end(ErrClosed)
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
	ceiling := pauseMin
	for ctx.Err() == nil {
		opened, err := s.connect(ctx)
		if s.Err() != nil {
			return
		}
		if !retried(err) {
			s.end(err)
			return
		}
		if opened {
			ceiling = pauseMin
		}
		time.Sleep(rand.N(ceiling))
		ceiling = min(2*ceiling, pauseMax)
	}
}

// retried: as the comment at the head of purgatory_service.proto says of streams. nil: the daemon ended the stream.
func retried(err error) bool {
	switch status.Code(err) {
	case codes.OK, codes.Unavailable, codes.ResourceExhausted, codes.Canceled, codes.DeadlineExceeded, codes.Aborted,
		codes.Internal, codes.Unknown:
		return !errors.Is(err, ErrTakenOver) && !errors.Is(err, ErrClosed)
	}
	return false
}

// connect is one connection, from its opening to its end.
func (s *Session) connect(parent context.Context) (opened bool, err error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	silence := time.AfterFunc(openTimeout, cancel)
	defer silence.Stop()
	stream, err := s.stub.Session(ctx)
	if err != nil {
		return false, err
	}
	opening := &pb.OpenSession{SessionId: s.id, LastSequence: s.lastSequence}
	if err := stream.Send(&pb.SessionRequest{Message: &pb.SessionRequest_Open{Open: opening}}); err != nil {
		_, err = stream.Recv() // Send says only that the stream has ended, Recv says why
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
	s.resume(daemon)
	interval := time.Duration(daemon.HeartbeatIntervalMs) * time.Millisecond
	written := make(chan struct{})
	go func() {
		defer close(written)
		defer cancel() // a stream that cannot be written to has ended
		s.write(ctx, stream, interval, min(batchMax, int(daemon.OperationsPerBatchMax)))
	}()
	defer func() {
		cancel()
		<-written // before the next connection: what it would take from now on would be lost
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

// resume: what the daemon does not know is sent again. A new session knows nothing, and numbers its results from 1.
func (s *Session) resume(opened *pb.SessionOpened) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !opened.Resumed {
		s.lastSequence = 0
	}
	s.sent, s.inFlight, s.notBefore = opened.HighestOperationId, 0, time.Time{}
	s.acknowledged = s.lastSequence
}

func (s *Session) receive(message *pb.SessionResponse) error {
	switch m := message.Message.(type) {
	case *pb.SessionResponse_Results:
		s.deliver(m.Results.FirstSequence, m.Results.GetRows().GetResults())
	case *pb.SessionResponse_Receipt:
		return s.receipt(m.Receipt)
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
			w.result <- result // has room for one
			delete(s.pending, result.OperationId)
		}
		s.lastSequence = max(s.lastSequence, sequence)
		sequence++
	}
	s.notify()
}

// receipt: operations that are refused one by one also get results, so only a batch refused as a whole matters here.
func (s *Session) receipt(receipt *pb.Receipt) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if refusal := receipt.BatchRefusal; refusal == nil {
		s.sent = max(s.sent, s.inFlight)
	} else if code := codes.Code(refusal.Code); code == codes.ResourceExhausted || code == codes.Unavailable {
		s.notBefore = time.Now().Add(time.Second)
	} else {
		return status.Error(code, fmt.Sprintf("%s: %s", refusal.Field, refusal.Message))
	}
	s.inFlight = 0
	s.notify()
	return nil
}

// write sends what there is to send, or heartbeats, until the stream ends.
func (s *Session) write(ctx context.Context, stream pb.PurgatoryService_SessionClient, interval time.Duration, room int) {
	for {
		message, again := s.next(room)
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

// next is the next message; nil: there is none until it is woken, or until that time has passed. One batch is under way
// at a time, so that one that is refused can be sent again.
func (s *Session) next(room int) (message *pb.SessionRequest, again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.acknowledged < s.lastSequence {
		s.acknowledged = s.lastSequence
		results := &pb.AcknowledgeResults{Sequence: s.lastSequence}
		return &pb.SessionRequest{Message: &pb.SessionRequest_Acknowledge{Acknowledge: results}}, 0
	}
	if left := time.Until(s.notBefore); left > 0 {
		return nil, left
	}
	rows := &pb.OperationRows{}
	for id := s.sent + 1; s.inFlight == 0 && id <= s.issued && len(rows.Operations) < room; id++ {
		if w := s.pending[id]; w != nil {
			rows.Operations = append(rows.Operations, w.operation)
		}
	}
	if len(rows.Operations) == 0 {
		return nil, pauseMax * 1000
	}
	s.inFlight = rows.Operations[len(rows.Operations)-1].OperationId
	batch := &pb.RegisterBatch{BatchId: s.inFlight, Shape: &pb.RegisterBatch_Rows{Rows: rows}}
	return &pb.SessionRequest{Message: &pb.SessionRequest_Register{Register: batch}}, 0
}
