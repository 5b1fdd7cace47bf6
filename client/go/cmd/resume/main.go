// Waits for the high watermark of a partition to reach each of the offsets 1 to COUNT, and prints a line for each result.
//
//	resume ADDRESS[,ADDRESS] TOPIC COUNT
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	purgatory "purgatory.example/client"
	pb "purgatory.example/client/gen/purgatory/v1"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: resume ADDRESS[,ADDRESS] TOPIC COUNT")
	}
	address, topic := os.Args[1], os.Args[2]
	count, err := strconv.ParseInt(os.Args[3], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	conn, err := grpc.NewClient(purgatory.Scheme+":///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: time.Second}))
	if err != nil {
		log.Fatal(err)
	}
	session := purgatory.Open(conn, "go-"+rand.Text(), purgatory.Options{})
	var results []<-chan *pb.Result
	for offset := int64(1); offset <= count; offset++ {
		results = append(results, session.Submit(produce(topic, offset)))
	}
	for _, one := range results {
		result, ok := <-one
		if !ok {
			log.Fatal(session.Err())
		}
		fmt.Println(result.OperationId, result.Outcome, result.Partitions[0].RequiredOffset)
	}
	if err := session.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func produce(topic string, offset int64) *pb.Operation {
	timeoutMs := int64(600_000)
	partition := &pb.ProducePartition{TopicPartition: &pb.TopicPartition{Topic: topic}, RequiredOffset: offset}
	return &pb.Operation{TimeoutMs: &timeoutMs, Condition: &pb.Operation_Produce{
		Produce: &pb.Produce{Partitions: []*pb.ProducePartition{partition}}}}
}
