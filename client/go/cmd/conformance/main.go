// The client as a program for the conformance test (docs/grpc.md).
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	purgatory "purgatory.example/client"
	pb "purgatory.example/client/gen/purgatory/v1"
)

func main() {
	var session *purgatory.Session
	var running sync.WaitGroup
	cancels := map[string]context.CancelFunc{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "open":
			session = open(words[1], words[2:])
		case "wait":
			ctx, cancel := context.WithCancel(context.Background())
			cancels[words[1]] = cancel
			running.Go(func() { fmt.Println(words[1], wait(ctx, session, words)) })
		case "cancel":
			cancels[words[1]]()
		case "close":
			ctx, done := context.WithTimeout(context.Background(), time.Second)
			_ = session.Close(ctx) // the daemon may be gone
			done()
			running.Wait()
			fmt.Println("closed")
		}
	}
}

func open(address string, pairs []string) *purgatory.Session {
	options := map[string]string{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		options[name] = value
	}
	dial := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	if ca := options["ca"]; ca != "" {
		tls, err := credentials.NewClientTLSFromFile(ca, "")
		if err != nil {
			log.Fatal(err)
		}
		token := purgatory.Token(options["token"])
		dial = []grpc.DialOption{grpc.WithTransportCredentials(tls), grpc.WithPerRPCCredentials(token)}
	}
	conn, err := grpc.NewClient(purgatory.Scheme+":///"+address, dial...)
	if err != nil {
		log.Fatal(err)
	}
	giveUpAfter := time.Duration(number(options["give_up_after_ms"])) * time.Millisecond
	openTimeout := time.Duration(number(options["open_timeout_ms"])) * time.Millisecond
	return purgatory.Open(conn, rand.Text(), purgatory.Options{GiveUpAfter: giveUpAfter, OpenTimeout: openTimeout})
}

// wait returns how the wait of the line `wait ID TIMEOUT_MS TOPIC PARTITIONS` ended.
func wait(ctx context.Context, session *purgatory.Session, words []string) string {
	produce := &pb.Produce{}
	for partition := range int32(number(words[4])) {
		name := &pb.TopicPartition{Topic: words[3], Partition: partition}
		produce.Partitions = append(produce.Partitions, &pb.ProducePartition{TopicPartition: name, RequiredOffset: 1})
	}
	timeoutMs := number(words[2])
	operation := &pb.Operation{TimeoutMs: &timeoutMs, Condition: &pb.Operation_Produce{Produce: produce}}
	result, err := session.WaitFor(ctx, operation)
	switch {
	case err == nil:
		outcome := strings.ToLower(strings.TrimPrefix(result.Outcome.String(), "OUTCOME_"))
		return fmt.Sprint(outcome, " ", result.WaitedMs)
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, purgatory.ErrTakenOver):
		return "taken_over"
	case errors.Is(err, purgatory.ErrClosed):
		return "closed"
	case errors.Is(err, purgatory.ErrUnreachable):
		return "unreachable"
	}
	return "refused"
}

func number(text string) int64 {
	value, _ := strconv.ParseInt(text, 10, 64)
	return value
}
