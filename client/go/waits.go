package purgatory

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "purgatory.example/client/gen/purgatory/v1"
)

// Condition is something to wait for: a Mark, a Signal, or several of them by All, Any or AtLeast.
type Condition interface {
	operation() (*pb.Operation, error)
}

// Term is one condition: see Mark and Signal.
type Term struct {
	term *pb.Term
	err  error
}

// Several is a condition of several terms: see All, Any and AtLeast.
type Several struct {
	required      int
	terms, unless []Term
}

// Mark is true when the high watermark of a partition such as "orders-3" has reached the offset, which is exclusive: wait
// for 42 to see the record at 41.
func Mark(partition string, offset int64) Term {
	name, err := partitionOf(partition)
	mark := &pb.MarkTerm{TopicPartition: name, RequiredOffset: offset}
	return Term{&pb.Term{Condition: &pb.Term_Mark{Mark: mark}}, err}
}

// Signal is true when the key has been signalled. Earlier signals count.
func Signal(key string) Term {
	return Term{&pb.Term{Condition: &pb.Term_Signal{Signal: &pb.SignalKey{Key: key}}}, nil}
}

// All is true when all terms are.
func All(terms ...Term) Several { return AtLeast(len(terms), terms...) }

// Any is true when one of the terms is.
func Any(terms ...Term) Several { return AtLeast(1, terms...) }

// AtLeast is true when so many of the terms are.
func AtLeast(required int, terms ...Term) Several { return Several{required: required, terms: terms} }

// Unless adds terms of which any one ends the wait as failed.
func (s Several) Unless(terms ...Term) Several {
	s.unless = append(s.unless[:len(s.unless):len(s.unless)], terms...)
	return s
}

func (t Term) operation() (*pb.Operation, error) {
	if mark := t.term.GetMark(); mark != nil {
		one := &pb.ProducePartition{TopicPartition: mark.TopicPartition, RequiredOffset: mark.RequiredOffset}
		produce := &pb.Produce{Partitions: []*pb.ProducePartition{one}}
		return &pb.Operation{Condition: &pb.Operation_Produce{Produce: produce}}, t.err
	}
	signal := &pb.Signal{Keys: []*pb.SignalKey{t.term.GetSignal()}}
	return &pb.Operation{Condition: &pb.Operation_Signal{Signal: signal}}, t.err
}

func (s Several) operation() (*pb.Operation, error) {
	composite := &pb.Composite{RequiredTerms: proto.Int32(int32(s.required))}
	var err error
	for _, term := range s.terms {
		composite.Terms, err = append(composite.Terms, term.term), cmp.Or(err, term.err)
	}
	for _, term := range s.unless {
		composite.Unless, err = append(composite.Unless, term.term), cmp.Or(err, term.err)
	}
	return &pb.Operation{Condition: &pb.Operation_Composite{Composite: composite}}, err
}

// partitionOf splits "orders-3". Names of sources without partitions may contain dashes.
func partitionOf(name string) (*pb.TopicPartition, error) {
	if isWhole(name) {
		return &pb.TopicPartition{Topic: name}, nil
	}
	dash := strings.LastIndexByte(name, '-')
	number, err := strconv.ParseUint(name[dash+1:], 10, 31)
	if dash < 1 || err != nil {
		return nil, &RefusedError{codes.InvalidArgument, "topic_partition",
			fmt.Sprintf("%q is not a partition; write the topic, a dash and the partition number, like \"orders-3\"", name)}
	}
	return &pb.TopicPartition{Topic: name[:dash], Partition: int32(number)}, nil
}

func isWhole(name string) bool {
	kind, _, found := strings.Cut(name, "/")
	return found && slices.Contains([]string{"pg", "mysql", "redis", "poll"}, kind)
}

func nameOf(name *pb.TopicPartition) string {
	if isWhole(name.Topic) && name.Partition == 0 {
		return name.Topic
	}
	return fmt.Sprint(name.Topic, "-", name.Partition)
}

// RefusedError says why a wait or an event was not accepted. It changed nothing.
type RefusedError struct {
	Code    codes.Code
	Field   string // as a path in the request; may be empty
	Message string
}

func (e *RefusedError) Error() string { return strings.TrimPrefix(e.Field+": "+e.Message, ": ") }

// GRPCStatus makes status.Code work with it.
func (e *RefusedError) GRPCStatus() *status.Status { return status.New(e.Code, e.Error()) }

// Result says how a wait ended. Running out of time is an outcome, not an error.
type Result struct{ *pb.Result }

// Satisfied is true if the condition was met in time.
func (r *Result) Satisfied() bool { return r.Outcome == pb.Outcome_OUTCOME_SATISFIED }

// Value is that of a signalled key, or the reason of its failure; nil: none.
func (r *Result) Value(key string) []byte {
	for _, item := range r.Partitions {
		if item.TopicPartition == nil && item.Key == key {
			return item.SignalValue
		}
	}
	return nil
}

// String is one line: the outcome, the time, and what each mark and key had reached.
func (r *Result) String() string {
	outcome := strings.ToLower(strings.TrimPrefix(r.Outcome.String(), "OUTCOME_"))
	text := fmt.Sprintf("%s after %v", outcome, time.Duration(r.WaitedMs)*time.Millisecond)
	for _, item := range r.Partitions {
		name, reached := item.Key, fmt.Sprint("reached ", item.ReachedOffset)
		if item.TopicPartition != nil {
			name = nameOf(item.TopicPartition)
		}
		if item.ReachedOffset < 0 {
			reached = "no mark reported"
		}
		text += fmt.Sprintf("; %s: %s of %d", name, reached, item.RequiredOffset)
		if item.ErrorCode != 0 && item.ErrorCode != notInTime {
			text += fmt.Sprint(", error ", item.ErrorCode)
		}
		if item.StaleMs != nil {
			text += fmt.Sprintf(", stale for %v %s", time.Duration(*item.StaleMs)*time.Millisecond, item.StaleReason)
		}
		if len(item.SignalValue) > 0 {
			text += fmt.Sprintf(", value %s", item.SignalValue)
		}
	}
	return text
}

const notInTime = 7 // Kafka's REQUEST_TIMED_OUT: also of terms that were not needed

// Dial opens a session at the daemon at an address such as "127.0.0.1:7440". Of several ("a:7440,b:7440") it uses the one
// that serves. The connection is not encrypted unless one of the options is grpc.WithTransportCredentials. Close ends it.
func Dial(addresses string, options Options, dial ...grpc.DialOption) (*Session, error) {
	pings := keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second}
	all := append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(pings), grpc.WithDefaultServiceConfig(ServiceConfig)}, dial...)
	if !strings.Contains(addresses, ":///") {
		for address := range strings.SplitSeq(addresses, ",") {
			if _, _, err := net.SplitHostPort(address); err != nil {
				return nil, err
			}
		}
		addresses = Scheme + ":///" + addresses
	}
	conn, err := grpc.NewClient(addresses, all...)
	if err != nil {
		return nil, err
	}
	session := Open(conn, rand.Text(), options)
	session.dialled = conn
	return session, nil
}

// Wait waits until the condition is true, or for as long as timeout says; 0 asks for an answer at once. If ctx ends first,
// the operation is cancelled at the daemon. The error is a *RefusedError if it was not accepted.
func (s *Session) Wait(ctx context.Context, condition Condition, timeout time.Duration) (*Result, error) {
	operation, err := condition.operation()
	if err != nil {
		return nil, err
	}
	// Away from zero, which would ask for an answer at once, or make a negative timeout, which is refused, look valid.
	up := time.Millisecond - 1
	if timeout < 0 {
		up = -up
	}
	operation.TimeoutMs = proto.Int64(int64((timeout + up) / time.Millisecond))
	return s.WaitFor(ctx, operation)
}

// Advance reports that the high watermark of a partition has reached an offset. The receipt counts the waits that this
// ended. The error is a *RefusedError if the daemon does not accept the event.
func (s *Session) Advance(ctx context.Context, partition string, offset int64) (*pb.AdvanceReceipt, error) {
	name, err := partitionOf(partition)
	if err != nil {
		return nil, err
	}
	mark := &pb.Event_HighWatermark{HighWatermark: &pb.HighWatermark{Offset: offset}}
	return s.Report(ctx, &pb.Event{TopicPartition: name, Event: mark})
}

// Signal signals a key, with the value that its waits get; nil: none. The first value of a key is kept.
func (s *Session) Signal(ctx context.Context, key string, value []byte) (*pb.AdvanceReceipt, error) {
	signal := &pb.Event_KeySignalled{KeySignalled: &pb.KeySignalled{Key: key, Value: value}}
	return s.Report(ctx, &pb.Event{Event: signal})
}

// Fail signals that what a key stands for has failed, and why: its waits fail.
func (s *Session) Fail(ctx context.Context, key string, reason []byte) (*pb.AdvanceReceipt, error) {
	failed := &pb.KeySignalled{Key: key, Value: reason, Failed: true}
	return s.Report(ctx, &pb.Event{Event: &pb.Event_KeySignalled{KeySignalled: failed}})
}

// Report sends events of any kind, in order. They are never sent twice: if the connection breaks, they may or may not have
// been applied. Those that are not refused are applied.
func (s *Session) Report(ctx context.Context, events ...*pb.Event) (*pb.AdvanceReceipt, error) {
	rows := &pb.AdvanceRequest_Rows{Rows: &pb.EventRows{Events: events}}
	answer, err := s.stub.Advance(ctx, &pb.AdvanceRequest{Shape: rows})
	if err != nil {
		return nil, err
	}
	for _, one := range answer.Receipt.Refusals {
		return answer.Receipt, &RefusedError{codes.Code(one.Code), one.Field, one.Message}
	}
	return answer.Receipt, nil
}
