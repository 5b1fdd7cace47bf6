// Waits until partition 0 of orders has reached offset 42, and meanwhile reports that it has: once ADDRESS
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "purgatory.example/client/gen/purgatory/v1"
)

var orders = &pb.TopicPartition{Topic: "orders", Partition: 0}

func main() {
	conn, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	service := pb.NewPurgatoryServiceClient(conn)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	go report(ctx, service)
	timeoutMs := int64(30_000)
	partition := &pb.ProducePartition{TopicPartition: orders, RequiredOffset: 42}
	answer, err := service.Wait(ctx, &pb.WaitRequest{Operation: &pb.Operation{
		TimeoutMs: &timeoutMs,
		Condition: &pb.Operation_Produce{Produce: &pb.Produce{Partitions: []*pb.ProducePartition{partition}}},
	}})
	if err != nil {
		log.Fatal(err) // a wait that has expired is not an error: its outcome says so
	}
	fmt.Println(answer.Result.Outcome, answer.Result.Partitions[0].ReachedOffset)
}

func report(ctx context.Context, service pb.PurgatoryServiceClient) {
	event := &pb.Event{
		TopicPartition: orders,
		Event:          &pb.Event_HighWatermark{HighWatermark: &pb.HighWatermark{Offset: 42}},
	}
	rows := &pb.EventRows{Events: []*pb.Event{event}}
	_, err := service.Advance(ctx, &pb.AdvanceRequest{Shape: &pb.AdvanceRequest_Rows{Rows: rows}})
	if err != nil {
		log.Fatal(err)
	}
}
